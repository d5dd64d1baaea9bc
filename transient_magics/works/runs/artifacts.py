"""The results of a run beside its checkpoints: its end, metrics, events, counts, traces and code.

When a run is over, the controller uploads most of them to the run's place in a bucket, however the
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
"""The most bytes of the metrics of a run, and of its events. A worker writes some 17 MB a day."""
MOST_COUNTS = LONGEST_LINE
"""The most bytes of the counts of a model, and of the declaration of a run."""
_FILES = (layout.CELL, layout.EVENTS, layout.METRICS)
_FOLLOWED = (layout.METRICS, layout.EVENTS)
"""Files that grow while a run trains, and are complete at its end."""
NAMES = frozenset({*_FILES, layout.RUN, "result.json"})
"""All files of a run in a bucket."""


def measured(run: str) -> Artifact:
    """Return the metrics of a run, which grow while it trains."""
    return Artifact(f"progress of {run}", (_file(run, layout.METRICS),), MOST_METRICS)


def results(run: str) -> tuple[Artifact, ...]:
    """Return all files of a run at its end. A run without a step has no metrics."""
    what = f"result of {run}"
    return (
        Artifact(what, (_file(run, layout.METRICS),), MOST_METRICS),
        Artifact(what, (_file(run, layout.EVENTS),), MOST_METRICS),
        Artifact(what, (_file(run, layout.MODEL),), MOST_COUNTS, check=check_counts),
        Artifact(what, (_file(run, layout.FILES_ARCHIVE),), layout.MOST_FILES_BYTES),
    )


def trace(event: events.TrainTraced) -> Artifact:
    """Return the trace of a step."""
    file = _file(event.run, layout.trace_of(event.worker))
    what = f"trace of {event.run} on {event.worker}"
    return Artifact(what, (file,), MOST_BYTES, version=event.seq)


def _file(run: str, name: str) -> str:
    return f"{layout.RUNS}/{run}/{name}"


async def thin_metrics(folder: Path) -> None:
    """Down-sample the metrics of a run that is over, if there are many."""
    try:
        await asyncio.to_thread(metrics.compact, folder / layout.METRICS)
    except OSError as error:
        # Nothing is lost: the file is as it was.
        log.warning("%s: its metrics stay as large as they are: %s", folder.name, error)


class Results:
    """The results of one run. `store`: its place in a bucket (`gs://bucket/path`), or None."""

    def __init__(self, store: str | None, storage: Callable[[], CloudStorage | None]) -> None:
        self.store = store
        self.metrics: Mapping[str, float] = {}
        self._storage = storage

    async def keep(self, folder: Path, last: Event) -> None:
        """Upload the results to the run's place in a bucket, if it has one. Raises CloudError.

        Parameters
        ----------
        folder
            The run's folder on this machine.
        last
            The event that ended the run.
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
        end = {key: value for key, value in last.to_dict().items() if key not in ("seq", "time")}
        await storage.write_json(
            bucket, f"{path}result.json", {**end, "metrics": dict(self.metrics)}
        )


class RunSync(Sync[RunState]):
    """Copies folders of runs that another machine declared, growing metrics, traces and results."""

    kind = "run"

    def __init__(self, home: ResultSync) -> None:
        super().__init__(home)
        # The latest reported trace, by run and worker.
        self._traces: dict[tuple[str, str], Artifact] = {}

    def catch_up(self) -> None:
        """Follow the metrics of runs that train, and note their traces."""
        for run in self.works.values():
            if run.phase == "running":
                self._follow_metrics(run.name)
            if run.traced:
                self._note_trace(run.traced, again=False)

    def keep_up(self) -> None:
        """Copy what is not here, folders first."""
        for run in self.works:
            self._have_run(run)
        super().keep_up()

    def react(self, event: Event) -> None:
        """Copy what an event of the journal reports."""
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
        """Copy results, and make the folders of trials that this machine can continue."""
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
        """Return what is missing here of a run, and how to copy it."""
        actions = super().pending(name, source, due=due)
        run = self.works[name]
        # Without its folder it comes later: that is made or brought as a whole.
        if run.over and self._has_run(name) and not (self.folder(name) / layout.HOME).exists():
            actions[f"result of {name}"] = partial(self._bring_results, run, source)
        return actions

    def _has_run(self, run: str) -> bool:
        return (self.folder(run) / layout.RUN).exists()

    def _have_run(self, run: str) -> None:
        """Copy the folder of a run that another machine declared."""
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
        # Without its folder it is followed later.
        if not self._has_run(run):
            return
        (self.folder(run) / layout.HOME).unlink(missing_ok=True)
        growing = measured(run)
        self.home.follow(growing.what, growing, rows=True)

    def _note_trace(self, event: events.TrainTraced, *, again: bool) -> None:
        """Note a trace to copy, unless one of that worker is here already and `again` is False."""
        made = trace(event)
        if not event.reason and (again or not (self.home.directory / made.files[0]).exists()):
            self._traces[event.run, event.worker] = made

    async def _bring_results(self, run: RunState, source: Source) -> None:
        """Copy the run's files at its end, and checkpoints that are not in the bucket."""
        folder = self.folder(run.name)
        for artifact in results(run.name):
            await self.home.take(artifact, source)
        # The bucket does not have the last checkpoint.
        if source is self.home.seat and _step(run.checkpoint_step) > _step(run.shipped_step):
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
