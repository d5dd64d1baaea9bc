"""What a run leaves beside its checkpoints: how it ended, its metrics, events, counts and traces,
cell and declaration.

When the run is over the controller writes most of it into the run's place in a bucket, however the
run ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from ...cloud import CloudStorage
from ...controller.artifacts import Artifact, Source
from ...controller.remote_controller.result_sync import Action, ResultSync, Sync
from ...errors import ClusterError, ForeignError
from ...journal import Event, RunState, events, metrics
from ...journal.declared import note_brought
from ...protocol import layout
from ...protocol.checks import LONGEST_LINE
from ...protocol.step_parts import MOST_BYTES
from ...protocol.vm_events import TrainFailed, TrainFinished, TrainStarted
from ...runtime.files.manifest import split
from .checking import check_counts
from .checkpoint_copy import copy_checkpoints

log = logging.getLogger(__name__)

MOST_METRICS = 4 * 2**30
"""Bytes of the metrics of a run, of which a worker writes some 17 MB a day, and of its events."""
MOST_COUNTS = LONGEST_LINE
"""Bytes of what was counted of a model, and of the declaration of a run."""
_FILES = (layout.CELL, layout.EVENTS, layout.METRICS)
_FOLLOWED = (layout.METRICS, layout.EVENTS)
"""Files of a run that grow as long as it trains, and are whole at its end."""
NAMES = frozenset({*_FILES, layout.RUN, "result.json"})
"""All that a run has there."""


def measured(run: str) -> Artifact:
    """The metrics of a run, which grow as long as it trains."""
    return Artifact(f"progress of {run}", (_file(run, layout.METRICS),), MOST_METRICS)


def results(run: str) -> tuple[Artifact, ...]:
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
    return Artifact(f"trace of {told.run} on {told.worker}", (file,), MOST_BYTES, version=told.seq)


def _file(run: str, name: str) -> str:
    return f"{layout.RUNS}/{run}/{name}"


async def thin_metrics(folder: Path) -> None:
    """Down-sample the metrics in the folder of a run that is over, where there are many."""
    try:
        await asyncio.to_thread(metrics.compact, folder / layout.METRICS)
    except OSError as error:  # nothing is lost: the file is as it was
        log.warning("%s: its metrics stay as large as they are: %s", folder.name, error)


class Results:
    """The results of one run; `store` is its place in a bucket (`gs://bucket/path`), None if it has
    none.
    """

    def __init__(self, store: str | None, storage: Callable[[], CloudStorage | None]) -> None:
        self.store = store
        self.metrics: Mapping[str, float] = {}
        self._storage = storage

    async def keep(self, folder: Path, last: Event) -> None:
        """Upload them from `folder`; `last` is how the run ended. Does nothing without a place.
        Raises CloudError.
        """
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
        await storage.write_json(
            bucket, f"{path}result.json", {**ended, "metrics": dict(self.metrics)}
        )


class RunSync(Sync[RunState]):
    """Brings the folders of runs that another machine declared, metrics as they grow, traces, and
    results.
    """

    kind = "run"

    def __init__(self, home: ResultSync) -> None:
        super().__init__(home)
        self._traces: dict[tuple[str, str], Artifact] = {}
        """The latest trace that was reported, by run and worker."""

    def catch_up(self) -> None:
        """Follow the metrics of runs that train, and note the traces that were made."""
        for run in self.works.values():
            if run.phase == "running":
                self._follow_metrics(run.name)
            if run.traced:
                self._note_trace(run.traced, again=False)

    def keep_up(self) -> None:
        """Bring what is not here, folders first."""
        for run in self.works:
            self._have_run(run)
        super().keep_up()

    def react(self, event: Event) -> None:
        """Bring what a line of the journal has just told of."""
        match event:
            case events.WorkDeclared(of="run"):
                self._have_run(event.work)
            case TrainStarted():
                self._follow_metrics(event.run)
            case events.TrainTraced():
                self._note_trace(event, again=True)
                self.begin(event.run)
            case TrainFinished() | TrainFailed():
                self.home.cancel(measured(event.run).what)
                self.begin(event.run)
            case _:
                pass

    async def bring_all(self, source: Source) -> None:
        """Bring what runs left, and make the folders of trials that this machine can continue."""
        for run in self.works:
            if not self._has_run(run):
                try:
                    self.home.makes(run)
                except ClusterError as error:
                    log.warning("%s", error)
        await super().bring_all(source)

    def left(self, work: RunState) -> Iterator[Artifact]:
        """Yield the traces of a run. Its results count together."""
        yield from (made for (run, _), made in self._traces.items() if run == work.name)

    def pending(self, name: str, source: Source, *, due: bool = False) -> dict[str, Action]:
        """Return what a run left and is not here, and how to bring it."""
        found = super().pending(name, source, due=due)
        run = self.works[name]
        # Without its folder it comes later: that is made or brought as a whole.
        if run.over and self._has_run(name) and not (self.folder(name) / layout.HOME).exists():
            found[f"result of {name}"] = partial(self._bring_results, run, source)
        return found

    def _has_run(self, run: str) -> bool:
        return (self.folder(run) / layout.RUN).exists()

    def _have_run(self, run: str) -> None:
        """Bring the folder of a run that another machine declared."""
        if not self._has_run(run):
            self.home.do(f"folder of {run}", partial(self._copy_run, run))

    async def _copy_run(self, run: str) -> None:
        if not self.home.makes(run):
            folder = self.folder(run)
            note_brought(self.home.directory, run)
            there = self.home.seat.path(f"{layout.RUNS}/{run}")
            connection = await self.home.live()
            await connection.get_tree(there, folder, without=(layout.RUN, layout.HOME, *_FOLLOWED))
            await connection.get(f"{there}/{layout.RUN}", folder / layout.RUN, most=MOST_COUNTS)
        if self.works[run].phase == "running":
            self._follow_metrics(run)

    def _follow_metrics(self, run: str) -> None:
        if not self._has_run(run):  # once its folder is here
            return
        (self.folder(run) / layout.HOME).unlink(missing_ok=True)
        growing = measured(run)
        self.home.follow(growing.what, growing, rows=True)

    def _note_trace(self, told: events.TrainTraced, *, again: bool) -> None:
        """Know of a trace. Unless `again`, one that is here of that worker is the one."""
        made = trace(told)
        if not told.reason and (again or not (self.home.directory / made.files[0]).exists()):
            self._traces[told.run, told.worker] = made

    async def _bring_results(self, run: RunState, source: Source) -> None:
        """Bring the run's own files as they are at its end, and checkpoints that are not in the
        bucket.
        """
        folder = self.folder(run.name)
        for artifact in results(run.name):
            await self.home.take(artifact, source)
        if source is self.home.seat and _step(run.checkpoint_step) > _step(
            run.shipped_step
        ):  # no bucket took them
            there = self.home.seat.path(f"{layout.RUNS}/{run.name}/{layout.CHECKPOINTS}")
            try:
                await copy_checkpoints(await self.home.live(), there, folder / layout.CHECKPOINTS)
            except ForeignError as error:
                log.warning("checkpoints of %s were not taken: %s", run.name, error)
        await thin_metrics(folder)
        (folder / layout.HOME).touch(mode=0o600)


def _step(saved: int | None) -> int:
    return -1 if saved is None else saved


SYNC = RunSync
