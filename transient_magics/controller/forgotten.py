"""The first lines of a new journal, for a cluster whose journal was removed.

Its bill begins with the most that it can have cost, so `--max-cost` holds. The work in its folder
counts as failed. Nothing says whether it ended, and work is not computed and paid for twice unless
its user asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..journal import events, now
from ..journal.declared import agreed, was_governed
from .record import Recorder
from .works import Works

_WHY = "the journal that says what became of it was removed"


def begin_without_journal(directory: Path, recorder: Recorder, works: Iterable[Works[Any]]) -> None:
    """Write the first lines of a new journal, if the cluster in `directory` had one before."""
    if not was_governed(directory):
        return
    spec = agreed(directory)
    dollars = spec.most_hourly * max(now() - spec.declared_at, 0.0) / 3600
    if spec.max_cost is not None:
        dollars = min(dollars, spec.max_cost)
    recorder.record(events.ClusterForgotten(dollars=dollars))
    for kind in works:
        kind.fail_waiting(_WHY)
    what = f"The journal of {spec.name} was removed, and what it said is not known any more"
    recorder.note(
        "journal removed",
        f"{what}: its bill begins with ${dollars:.2f}, the most that it can have cost",
    )
