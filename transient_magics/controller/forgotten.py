"""The first lines of a new journal, for a cluster whose journal was removed.

Its bill begins with the most that it can have cost, so `--max-cost` holds. The runs, jobs, bags and studies in its
folder count as failed. Nothing says whether they ended, and work is not computed and paid for twice unless its user
asks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import ClusterError
from ..journal import Event, events, now
from ..journal.bags.events import BagEnded
from ..journal.declared import agreed, waiting, was_governed
from .bags.conduct import Bags
from .jobs.conduct import Jobs
from .record import Recorder
from .runs.conduct import Runs
from .studies.conduct import Studies

log = logging.getLogger(__name__)

_WHY = "the journal that says what became of it was removed"


def begin_without_journal(
    directory: Path, recorder: Recorder, runs: Runs, jobs: Jobs, bags: Bags, studies: Studies
) -> None:
    """Write the first lines of a new journal, if the cluster in `directory` had one before."""
    if not was_governed(directory):
        return
    spec = agreed(directory)
    dollars = spec.most_hourly * max(now() - spec.declared_at, 0.0) / 3600
    if spec.max_cost is not None:
        dollars = min(dollars, spec.max_cost)
    recorder.record(events.ClusterForgotten(dollars=dollars))
    names = waiting(directory, recorder.state, "study")
    _end(recorder, names, studies.declare, lambda name: events.StudyEnded(study=name, reason=_WHY))
    names = waiting(directory, recorder.state, "run")
    _end(recorder, names, runs.declare, lambda name: events.TrainFailed(run=name, reason=_WHY))
    names = waiting(directory, recorder.state, "job")
    _end(recorder, names, jobs.declare, lambda name: events.JobEnded(job=name, state="failed", reason=_WHY))
    names = waiting(directory, recorder.state, "bag")
    _end(recorder, names, bags.declare, lambda name: BagEnded(bag=name, state="failed", reason=_WHY))
    what = f"The journal of {spec.name} was removed, and what it said is not known any more"
    recorder.note("journal removed", f"{what}: its bill begins with ${dollars:.2f}, the most that it can have cost")


def _end(
    recorder: Recorder, names: Iterable[str], declare: Callable[[str], None], ended: Callable[[str], Event]
) -> None:
    for name in names:
        try:
            declare(name)
        except ClusterError as error:  # it cannot begin either
            log.warning("%s", error)
        else:
            recorder.record(ended(name))
