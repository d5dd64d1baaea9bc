"""What a run leaves beside its checkpoints: how it ended, its metrics, events, counts and traces, cell and declaration.

When the run is over the controller writes most of it into the run's place in a bucket, however the run ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from ...cloud import CloudStorage
from ...journal import Event, events, metrics
from ...protocol import layout
from ...runtime.files.manifest import split
from ..artifacts import MOST_COUNTS, MOST_METRICS, MOST_TRACE, Artifact
from .checking import check_counts

log = logging.getLogger(__name__)

_FILES = (layout.CELL, layout.EVENTS, layout.METRICS)
NAMES = frozenset({*_FILES, layout.RUN, "result.json"})
"""All that a run has there."""


def measured(run: str) -> Artifact:
    """The metrics of a run, which grow as long as it trains."""
    return Artifact(f"progress of {run}", (_file(run, layout.METRICS),), MOST_METRICS)


def left(run: str) -> tuple[Artifact, ...]:
    """All files that a run leaves at its end. One without a step has no metrics."""
    what = f"result of {run}"
    return (
        Artifact(what, (_file(run, layout.METRICS),), MOST_METRICS),
        Artifact(what, (_file(run, layout.EVENTS),), MOST_METRICS),
        Artifact(what, (_file(run, layout.MODEL),), MOST_COUNTS, check=check_counts),
    )


def trace(told: events.TrainTraced) -> Artifact:
    """The trace of a step that was made."""
    file = _file(told.run, layout.trace_of(told.worker))
    return Artifact(f"trace of {told.run} on {told.worker}", (file,), MOST_TRACE, version=told.seq)


def _file(run: str, name: str) -> str:
    return f"{layout.RUNS}/{run}/{name}"


async def thin_metrics(folder: Path) -> None:
    """Down-sample the metrics in the folder of a run that is over, where there are many."""
    try:
        await asyncio.to_thread(metrics.compact, folder / layout.METRICS)
    except OSError as error:  # nothing is lost: the file is as it was
        log.warning("%s: its metrics stay as large as they are: %s", folder.name, error)


class Results:
    """The results of one run; `store` is its place in a bucket (`gs://bucket/path`), None if it has none."""

    def __init__(self, store: str | None, storage: Callable[[], CloudStorage | None]) -> None:
        self.store = store
        self.metrics: Mapping[str, float] = {}
        self._storage = storage

    async def keep(self, folder: Path, last: Event) -> None:
        """Upload them from `folder`; `last` is how the run ended. Does nothing without a place. Raises CloudError."""
        storage = self._storage()
        if not self.store or storage is None:
            return
        bucket, path = split(self.store)
        for name in _FILES:
            if (folder / name).exists():
                await storage.upload(bucket, path + name, folder / name)
        declared = json.loads((folder / layout.RUN).read_text(encoding="utf-8"))
        declared.pop("token", None)
        await storage.write_json(bucket, f"{path}{layout.RUN}", declared)
        ended = {key: value for key, value in last.to_dict().items() if key not in ("seq", "time")}
        await storage.write_json(bucket, f"{path}result.json", {**ended, "metrics": dict(self.metrics)})
