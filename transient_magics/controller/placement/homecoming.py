"""Artifacts of a cluster whose controller is on a VM, brought from that VM into the cluster's folder here.

The journal says what there is. An artifact is brought when the journal tells of it, or when the VM is reached again,
and from the bucket where the VM is gone. It is checked here as it was there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from ...errors import ClusterError, ForeignError, RoomError
from ...journal import ClusterState, DeclaredBag, Event, JobState, RunState, StudyState, events
from ...journal.declared import declared_study, note_brought, run_folder
from ...kinds import load
from ...protocol import layout
from ...protocol.bag import events as b
from ...remote import Connection
from ...runtime.jobs.archive import newest
from ...spec import ClusterSpec, run_store
from ..artifacts import MOST_COUNTS, Artifact, Source, VmFolder, bring, follow
from ..bags import arrivals
from ..dask import certificates
from ..runs import results
from ..runs.checkpoint_copy import copy_checkpoints
from ..studies.trial_folder import make
from .seat import Seat

log = logging.getLogger(__name__)

_ARCHIVES = load("job", "archives")

_AGAIN_SECONDS = 5.0
_FOLLOWED = (layout.METRICS, layout.EVENTS)
"""Files of a run that grow as long as it trains, and are whole at its end."""


class Host(Protocol):
    """The program that follows the controller: its connection, its copy of the journal as it is now, its tasks."""

    @property
    def state(self) -> ClusterState: ...

    async def live(self) -> Connection: ...

    def do(self, what: str, work: Callable[[], Awaitable[None]]) -> None: ...

    def cancel(self, what: str) -> None: ...

    def append(self, what: str, path: Path, lines: bytes) -> None: ...


class Homecoming:
    """Brings the artifacts of the cluster in `directory` from elsewhere."""

    def __init__(self, directory: Path, spec: ClusterSpec, host: Host) -> None:
        self._directory, self._spec, self._host = directory, spec, host
        self._seat = VmFolder(host.live, Seat.folder(spec.name))
        self._done: set[Artifact] = set()
        """Artifacts that came since this program began, or were refused."""
        self._traces: dict[tuple[str, str], Artifact] = {}
        """The latest trace that was told of, by run and worker."""

    @property
    def _state(self) -> ClusterState:
        return self._host.state

    def catch_up(self) -> None:
        """Bring what was told of before the VM was reached, and follow what grows there."""
        for run in self._state.of(RunState).values():
            if run.phase == "running":
                self._follow_metrics(run.name)
            if run.traced:
                self._note_trace(run.traced, again=False)
        for job in self._state.active_jobs:
            self._follow_outputs(job)
        self._host.do("what was left", self._keep_up)

    async def _keep_up(self) -> None:
        """Bring what was left before the VM was reached, and now and then what did not come when it was told of. Until
        cancelled."""
        while True:
            for run in self._state.of(RunState):
                self._have_run(run)
            for name in self._names:
                self._begin(name)
            await asyncio.sleep(_AGAIN_SECONDS)

    def react(self, event: Event) -> None:
        """Bring what a line of the journal has just told of."""
        match event:
            case events.TrainDeclared():
                self._have_run(event.run)
            case events.TrainStarted():
                self._follow_metrics(event.run)
            case events.TrainTraced():
                self._note_trace(event, again=True)
                self._begin(event.run)
            case events.TrainFinished() | events.TrainFailed():
                self._host.cancel(results.measured(event.run).what)
                self._begin(event.run)
            case events.JobBegan():
                self._follow_outputs(self._state.of(JobState)[event.job])
            case events.JobKept() | events.JobInterrupted() | events.JobEnded():
                self._begin(event.job)
            case events.DaskEnded():
                certificates.forget(self._directory / layout.DASKS / event.dask)
            case b.BagResult() if event.arrays:
                self._begin(event.bag)
            case b.BagLearnt():
                self._begin(event.bag)
            case _:
                pass

    async def bring_all(self, source: Source) -> None:
        """Bring what was left and is not here, as far as there is room for it. Raises what the source does."""
        for run in self._state.of(RunState):
            if not self._has_run(run):
                try:
                    self._is_own_trial(run)
                except ClusterError as error:
                    log.warning("%s", error)
        for name in self._names:
            for what, work in self._left(name, source).items():
                try:
                    await work()
                except RoomError as error:
                    log.warning("the %s does not come: %s", what, error)

    @property
    def _names(self) -> list[str]:
        """All work that leaves something."""
        return [*self._state.of(RunState), *self._state.of(JobState), *self._state.of(DeclaredBag)]

    def _begin(self, name: str) -> None:
        """Bring what a piece of work left and is not here, from the VM, unless that is under way."""
        for what, work in self._left(name, self._seat).items():
            self._host.do(what, work)

    def _left(self, name: str, source: Source) -> dict[str, Callable[[], Awaitable[None]]]:
        """What a piece of work left and is not here, and how to bring it."""
        found = dict.fromkeys(artifact.what for artifact in self._missing(name))
        left: dict[str, Callable[[], Awaitable[None]]] = {
            what: partial(self._bring, name, what, source) for what in found
        }
        run = self._state.of(RunState).get(name)
        # Without its folder it comes later: that is made or brought as a whole.
        if run and run.over and self._has_run(name) and not (self._folder(name) / layout.HOME).exists():
            left[f"result of {name}"] = partial(self._bring_results, run, source)
        return left

    def _missing(self, name: str) -> list[Artifact]:
        return [artifact for artifact in self._artifacts(name) if not self._is_here(artifact)]

    def _artifacts(self, name: str) -> Iterator[Artifact]:
        """All that a piece of work left so far, but the results of a run, which count together."""
        if job := self._state.of(JobState).get(name):
            yield from _ARCHIVES.left(job)
        if bag := self._state.of(DeclaredBag).get(name):
            yield from arrivals.left(bag)
        yield from (made for (run, _), made in self._traces.items() if run == name)

    def _is_here(self, artifact: Artifact) -> bool:
        if artifact in self._done:
            return True
        return artifact.version is None and all((self._directory / name).exists() for name in artifact.files)

    async def _bring(self, name: str, what: str, source: Source) -> None:
        """Bring the artifacts of a piece of work that are called so; one that the source lacks is tried again later."""
        absent: set[Artifact] = set()
        while missing := [
            artifact for artifact in self._missing(name) if artifact.what == what and artifact not in absent
        ]:
            for artifact in missing:
                for file in artifact.files:
                    self._host.cancel(_following(file))
                if await self._take(artifact, source):
                    self._done.add(artifact)
                else:
                    absent.add(artifact)
        if job := self._state.of(JobState).get(name):
            folder = self._directory / layout.JOBS / name
            _ARCHIVES.forget_older(folder, newest(folder, job.kept.number if job.kept else 0))

    async def _take(self, artifact: Artifact, source: Source) -> bool:
        """Bring an artifact. Return False where the source lacks it; one that is refused is not asked for again."""
        try:
            return await bring(artifact, self._directory, source)
        except ForeignError as error:
            log.warning("the %s was not taken: %s", artifact.what, error)
            return True

    # Runs

    def _folder(self, run: str) -> Path:
        return run_folder(self._directory, run)

    def _has_run(self, run: str) -> bool:
        return (self._folder(run) / layout.RUN).exists()

    def _have_run(self, run: str) -> None:
        """Bring the folder of a run that another machine declared."""

        async def copy() -> None:
            if not self._is_own_trial(run):
                note_brought(self._directory, run)
                there, folder = self._seat.path(f"{layout.RUNS}/{run}"), self._folder(run)
                connection = await self._host.live()
                await connection.get_tree(there, folder, without=(layout.RUN, layout.HOME, *_FOLLOWED))
                await connection.get(f"{there}/{layout.RUN}", folder / layout.RUN, most=MOST_COUNTS)
            if self._state.of(RunState)[run].phase == "running":
                self._follow_metrics(run)

        if not self._has_run(run):
            self._host.do(f"folder of {run}", copy)

    def _is_own_trial(self, run: str) -> bool:
        """Whether it is of a study that this machine declared. Then its folder is made here, as it was made there: no
        code comes from a VM. Values that the study does not try are another machine's word, and so is all of it."""
        for study in self._state.of(StudyState).values():
            for trial in study.trials.values():
                if run not in trial.runs or not (self._directory / layout.STUDIES / study.name).is_dir():
                    continue
                spec = declared_study(self._directory, study.name)
                if run in spec.run_names(trial.number) and spec.tries(trial.params):
                    repeat = spec.run_names(trial.number).index(run)
                    store = run_store(self._spec, run)
                    make(self._directory, study.name, trial.number, repeat, trial.params, store)
                    return True
        return False

    def _follow_metrics(self, run: str) -> None:
        if not self._has_run(run):  # once its folder is here
            return
        (self._folder(run) / layout.HOME).unlink(missing_ok=True)
        measured = results.measured(run)
        self._follow(measured.what, measured, rows=True)

    def _note_trace(self, told: events.TrainTraced, *, again: bool) -> None:
        """Know of a trace. Unless `again`, one that is here of that worker is the one."""
        made = results.trace(told)
        if not told.reason and (again or not (self._directory / made.files[0]).exists()):
            self._traces[told.run, told.worker] = made

    async def _bring_results(self, run: RunState, source: Source) -> None:
        """Bring the run's own files as they are at its end, and checkpoints that are not in the bucket."""
        folder = self._folder(run.name)
        for artifact in results.left(run.name):
            await self._take(artifact, source)
        if source is self._seat and _step(run.checkpoint_step) > _step(run.shipped_step):  # no bucket took them
            there = self._seat.path(f"{layout.RUNS}/{run.name}/{layout.CHECKPOINTS}")
            try:
                await copy_checkpoints(await self._host.live(), there, folder / layout.CHECKPOINTS)
            except ForeignError as error:
                log.warning("checkpoints of %s were not taken: %s", run.name, error)
        await results.thin_metrics(folder)
        (folder / layout.HOME).touch(mode=0o600)

    # What grows

    def _follow_outputs(self, job: JobState) -> None:
        """Have what the job says now come here as it is said."""
        for rank in range(len(job.vms)):
            output = _ARCHIVES.output(job.name, job.attempt, rank)
            self._follow(_following(output.files[0]), output)

    def _follow(self, what: str, artifact: Artifact, *, rows: bool = False) -> None:
        """Have the lines of a file come here as they are written."""
        append = partial(self._host.append, what)
        self._host.do(what, lambda: follow(artifact, self._directory, self._seat, append, rows=rows))


def _step(saved: int | None) -> int:
    return -1 if saved is None else saved


def _following(file: str) -> str:
    return f"output in {file}"
