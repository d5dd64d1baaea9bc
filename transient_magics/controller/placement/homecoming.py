"""What the work of a cluster leaves on the VM of its controller, brought into the cluster's folder here.

The journal says what there is. It is brought when it is told of, or when that VM is reached again, and from the bucket
where it is gone; and is checked here as it was there, for that VM is trusted no more than the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from ...errors import ClusterError, ForeignError, RoomError, TransientError
from ...journal import ClusterState, Event, JobState, events, metrics
from ...journal.bags.state import DeclaredBag
from ...journal.declared import declared_study, note_brought, run_folder
from ...protocol import layout
from ...protocol.bag import events as b
from ...protocol.checks import LONGEST_LINE
from ...protocol.measures.trace import MOST_BYTES
from ...remote import Allowance, Connection, follow_blocks_across
from ...runtime.jobs.archive import path_of
from ...spec import ClusterSpec, run_store
from ..bags.arrivals import MOST_SURROGATE, can_read, take_arrays, take_surrogate
from ..dask import certificates
from ..jobs import archives
from ..jobs.conduct import MOST_OUTPUT
from ..runs.checking import take_counts
from ..runs.checkpoint_copy import copy_checkpoints
from ..runs.results import thin_metrics
from ..runs.training import MOST_METRICS
from ..studies.trial_folder import make
from .seat import Seat

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 5.0
_FOLLOWED = (layout.METRICS, layout.EVENTS)
"""Files of a run that grow as long as it trains, and are whole at its end."""


class Source(Protocol):
    """Where a cluster's folder is that is not on this machine."""

    async def get(self, name: str, target: Path, *, most: int) -> bool:
        """Have the file of that name in the folder as `target`; False where there is none."""
        ...

    async def checkpoints(self, run: str, target: Path) -> None:
        """Have the checkpoints of a run in the folder `target` that are in that one, because no bucket took them."""
        ...


class OnVm:
    """The cluster's folder on the VM of its controller."""

    def __init__(self, live: Callable[[], Awaitable[Connection]], cluster: str) -> None:
        self._live, self._folder = live, Seat.folder(cluster)

    async def get(self, name: str, target: Path, *, most: int) -> bool:
        """As `Source` says. Raises RemoteError, ForeignError or OSError."""
        connection, there = await self._live(), f"{self._folder}/{name}"
        if not await connection.exists(there):
            return False
        await connection.get(there, target, most=most)
        return True

    async def checkpoints(self, run: str, target: Path) -> None:
        """As `Source` says. Raises RemoteError, ForeignError or OSError."""
        there = f"{self._folder}/{layout.RUNS}/{run}/{layout.CHECKPOINTS}"
        await copy_checkpoints(await self._live(), there, target)


class Host(Protocol):
    """Who follows the controller: its connection, its copy of the journal as it is now, and its tasks."""

    @property
    def state(self) -> ClusterState: ...

    async def live(self) -> Connection: ...

    def do(self, what: str, work: Callable[[], Awaitable[None]]) -> None: ...

    def cancel(self, what: str) -> None: ...

    def append(self, what: str, path: Path, lines: bytes) -> None: ...


class Homecoming:
    """Brings home what the cluster in `directory` has of its work elsewhere."""

    def __init__(self, directory: Path, spec: ClusterSpec, host: Host) -> None:
        self._directory, self._spec, self._host = directory, spec, host
        self._refused: set[str] = set()
        """Files that were not what was told of them."""
        self._whole: set[str] = set()
        """Files of what jobs have said that are all here."""
        self._learnt: set[str] = set()
        """Bags whose surrogate is to be brought."""
        self._traced: set[tuple[str, str]] = set()
        """Runs with a worker whose trace is to be brought."""

    @property
    def _state(self) -> ClusterState:
        return self._host.state

    def catch_up(self) -> None:
        """Bring what was told of before the VM was reached, and follow what goes on there."""
        for run in self._state.runs.values():
            if run.phase == "running":
                self._follow_metrics(run.name)
            if (told := run.traced) and not (self._folder(run.name) / layout.trace_of(told.worker)).exists():
                self._note_traced(told)
        for job in self._state.active_jobs:
            self._follow_outputs(job.name)
        self._learnt.update(self._state.bags)
        self._host.do("what was left", self._keep_up)

    async def _keep_up(self) -> None:
        """Bring what was left before the VM was reached, and now and then what did not come when it was told of. Until
        cancelled."""
        there = OnVm(self._host.live, self._state.name)
        while True:
            for run in self._state.runs:
                self._have_run(run)
            for what, bring in self._left(there).items():
                self._host.do(what, bring)
            await asyncio.sleep(_AGAIN_SECONDS)

    def react(self, event: Event) -> None:
        """Bring what a line of the journal has just told of."""
        there = OnVm(self._host.live, self._state.name)
        match event:
            case events.TrainDeclared():
                self._have_run(event.run)
            case events.TrainStarted():
                self._follow_metrics(event.run)
            case events.TrainTraced():
                self._note_traced(event)
                what = _trace(event.run, event.worker)
                self._host.do(what, lambda: self._bring_trace(event.run, event.worker, there))
            case events.TrainFinished() | events.TrainFailed():
                self._host.cancel(f"progress of {event.run}")
                if self._has_run(event.run):  # else once its folder is here, which is made or brought as a whole
                    self._host.do(_results(event.run), lambda: self._bring_results(event.run, there))
            case events.JobBegan():
                self._follow_outputs(event.job)
            case events.JobKept():
                self._host.do(f"folder of {event.job}", lambda: self._bring_kept(event.job, there))
            case events.JobInterrupted() | events.JobEnded():
                self._host.do(f"end of {event.job}", lambda: self._bring_outputs(event.job, there))
            case events.DaskEnded():
                certificates.forget(self._directory / layout.DASKS / event.dask)
            case b.BagResult() if event.arrays and can_read():
                self._host.do(f"arrays of {event.bag}", lambda: self._bring_arrays(event.bag, there))
            case b.BagLearnt() if can_read():
                self._learnt.add(event.bag)
                self._host.do(f"surrogate of {event.bag}", lambda: self._bring_surrogate(event.bag, there))
            case _:
                pass

    async def bring_all(self, source: Source) -> None:
        """Bring what was left and is not here, as far as there is room for it. Raises what the source does."""
        for run in self._state.runs:
            if not self._has_run(run):
                try:
                    self._is_own_trial(run)
                except ClusterError as error:
                    log.warning("%s", error)
        self._learnt.update(self._state.bags)
        for what, bring in self._left(source).items():
            try:
                await bring()
            except RoomError as error:
                log.warning("the %s does not come: %s", what, error)

    def _left(self, source: Source) -> dict[str, Callable[[], Awaitable[None]]]:
        """What was left and is not here, each under a name: nobody else brings it meanwhile."""
        left: dict[str, Callable[[], Awaitable[None]]] = {}
        for name, run in self._state.runs.items():
            if run.over and self._has_run(name) and not (self._folder(name) / layout.HOME).exists():
                left[_results(name)] = partial(self._bring_results, name, source)
        for name, worker in self._traced:
            left[_trace(name, worker)] = partial(self._bring_trace, name, worker, source)
        for name, job in self._state.jobs.items():
            if job.kept and not path_of(self._directory / layout.JOBS / name, job.kept.number).exists():
                left[f"folder of {name}"] = partial(self._bring_kept, name, source)
            if _outputs(job) - self._whole:
                left[f"end of {name}"] = partial(self._bring_outputs, name, source)
        for name, bag in self._state.bags.items() if can_read() else ():
            if self._missing(bag):
                left[f"arrays of {name}"] = partial(self._bring_arrays, name, source)
            if name in self._learnt:
                left[f"surrogate of {name}"] = partial(self._bring_surrogate, name, source)
        return left

    # Runs

    def _folder(self, run: str) -> Path:
        return run_folder(self._directory, run)

    def _has_run(self, run: str) -> bool:
        return (self._folder(run) / layout.RUN).exists()

    def _have_run(self, run: str) -> None:
        """The folder of a run that another machine declared."""

        async def bring() -> None:
            if not self._is_own_trial(run):
                note_brought(self._directory, run)
                there, folder = f"{Seat.folder(self._state.name)}/{layout.RUNS}/{run}", self._folder(run)
                connection = await self._host.live()
                await connection.get_tree(there, folder, without=(layout.RUN, layout.HOME, *_FOLLOWED))
                await connection.get(f"{there}/{layout.RUN}", folder / layout.RUN, most=LONGEST_LINE)
            if self._state.runs[run].phase == "running":
                self._follow_metrics(run)

        if not self._has_run(run):
            self._host.do(f"folder of {run}", bring)

    def _is_own_trial(self, run: str) -> bool:
        """Whether it is of a study that this machine declared. Then its folder is made here, as it was made there: no
        code comes from a VM. Values that the study does not try are another machine's word, and so is all of it."""
        for study in self._state.studies.values():
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
        path, what = self._folder(run) / layout.METRICS, f"progress of {run}"

        async def follow() -> None:
            (path.parent / layout.HOME).unlink(missing_ok=True)
            if path.exists():
                cut_torn_line(path)
            size = path.stat().st_size if path.exists() else 0
            there = f"{Seat.folder(self._state.name)}/{layout.RUNS}/{run}/{path.name}"
            allowance = Allowance(MOST_METRICS, size)
            async for block in follow_blocks_across(self._host.live, there, size, allowance=allowance):
                lines = metrics.joined(block)
                end = block[-1][0]
                if end == size + len(lines):  # else it was thinned there, at its end: then it is brought whole
                    self._host.append(what, path, lines)
                    size = end

        if self._has_run(run):  # else once its folder is here
            self._host.do(what, follow)

    def _note_traced(self, told: events.TrainTraced) -> None:
        if not told.reason:
            self._traced.add((told.run, told.worker))

    async def _bring_trace(self, run: str, worker: str, source: Source) -> None:
        relative = layout.trace_of(worker)
        while (run, worker) in self._traced:
            self._traced.discard((run, worker))
            try:
                await source.get(f"{layout.RUNS}/{run}/{relative}", self._folder(run) / relative, most=MOST_BYTES)
            except (TransientError, OSError) as error:
                if not isinstance(error, ForeignError):
                    self._traced.add((run, worker))
                raise

    async def _bring_results(self, run: str, source: Source) -> None:
        """The run's own files as they are at its end, and checkpoints that are not in the bucket."""
        folder, state = self._folder(run), self._state.runs[run]
        try:
            for name in _FOLLOWED:  # a run without a step has no metrics
                await source.get(f"{layout.RUNS}/{run}/{name}", folder / name, most=MOST_METRICS)
            counted = folder / f".{layout.MODEL}.part"
            if await source.get(f"{layout.RUNS}/{run}/{layout.MODEL}", counted, most=LONGEST_LINE):
                take_counts(counted, folder)
            if _step(state.checkpoint_step) > _step(state.shipped_step):
                await source.checkpoints(run, folder / layout.CHECKPOINTS)
        except ForeignError as error:  # as much as came is here
            log.warning("what %s left was not taken: %s", run, error)
        await thin_metrics(folder)
        (folder / layout.HOME).touch(mode=0o600)

    # Jobs

    def _follow_outputs(self, name: str) -> None:
        """Have what the job says now come here as it is said."""
        job = self._state.jobs[name]
        for rank in range(len(job.vms)):
            self._follow_output(name, layout.output(job.attempt, rank))

    def _follow_output(self, job: str, name: str) -> None:
        relative, what = f"{layout.JOBS}/{job}/{layout.OUTPUT}/{name}", _following(job, name)
        path = self._directory / relative

        async def follow() -> None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            size = path.stat().st_size if path.exists() else 0
            there = f"{Seat.folder(self._state.name)}/{relative}"
            allowance = Allowance(MOST_OUTPUT, size)
            async for block in follow_blocks_across(self._host.live, there, size, allowance=allowance):
                self._host.append(what, path, metrics.joined(block))

        self._host.do(what, follow)

    async def _bring_outputs(self, name: str, source: Source) -> None:
        """What its processes have said in attempts that are over, whole."""
        while (job := self._state.jobs[name]) and (left := _outputs(job) - self._whole):
            for relative in sorted(left):
                target = self._directory / relative
                self._host.cancel(_following(name, target.name))
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                try:
                    await source.get(relative, target, most=MOST_OUTPUT)  # a process that never began has said nothing
                except ForeignError as error:  # as much as came is here
                    log.warning("what %s said was not taken: %s", name, error)
                self._whole.add(relative)

    async def _bring_kept(self, name: str, source: Source) -> None:
        """The newest archive of what the job keeps, whole and of plain files, or not at all."""
        folder = self._directory / layout.JOBS / name
        while (told := self._state.jobs[name].kept) and not path_of(folder, told.number).exists():
            relative = str(path_of(folder, told.number).relative_to(self._directory))
            get = partial(source.get, relative, most=archives.MOST_BYTES)
            try:
                if relative in self._refused or not await archives.bring(folder, told, get):
                    if self._state.jobs[name].kept == told:
                        return  # none, or another one by the next word of it
                    continue
            except (ForeignError, ValueError) as error:
                self._refused.add(relative)
                log.warning("the folder of %s was not taken: %s", name, error)
                return
            archives.forget_older(folder, told.number)

    # Bags

    async def _bring_arrays(self, name: str, source: Source) -> None:
        while missing := self._missing(self._state.bags[name]):
            for relative, digest in missing.items():
                target = self._directory / relative
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                fresh = target.with_name(f".{target.name}.part")
                try:
                    if not await source.get(relative, fresh, most=b.MOST_ARRAY_BYTES):
                        self._refused.add(relative)
                        continue
                    await asyncio.to_thread(take_arrays, fresh, target, digest)
                except (ForeignError, ValueError) as error:
                    self._refused.add(relative)
                    log.warning("%s was not taken: %s", relative, error)

    def _missing(self, bag: DeclaredBag) -> dict[str, str]:
        """Files of arrays that were told of and are not here, each with its digest."""
        told = [job.result for job in bag.state.jobs.values() if job.result and job.result.arrays]
        names = {f"{layout.BAGS}/{bag.name}/{layout.RESULTS}/{each.arrays}": each.digest for each in told}
        return {
            name: digest for name, digest in names.items()
            if name not in self._refused and not (self._directory / name).exists()
        }  # fmt: skip

    async def _bring_surrogate(self, name: str, source: Source) -> None:
        folder = self._directory / layout.BAGS / name
        while name in self._learnt:
            self._learnt.discard(name)
            found = list[bytes]()
            for each in (layout.SURROGATE, layout.SURROGATE_ARRAYS):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                fresh = folder / f".{each}.part"
                try:
                    if await source.get(f"{layout.BAGS}/{name}/{each}", fresh, most=MOST_SURROGATE):
                        found.append(fresh.read_bytes())
                except (TransientError, OSError) as error:
                    if not isinstance(error, ForeignError):
                        self._learnt.add(name)
                    raise
                finally:
                    fresh.unlink(missing_ok=True)
            if len(found) == 2:
                try:
                    await asyncio.to_thread(take_surrogate, folder, *found)
                except ValueError as error:  # one that was just being replaced comes with the next word of it
                    log.warning("the surrogate of %s was not taken: %s", name, error)


def cut_torn_line(path: Path) -> None:
    """An earlier mirror may have been killed while it wrote, and a full disk may have taken the begin of a line."""
    with path.open("rb+") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE)
        file.seek(begin)
        file.truncate(begin + file.read().rfind(b"\n") + 1)


def _outputs(job: JobState) -> set[str]:
    """The files of its attempts that are over, from the cluster's folder."""
    over = job.attempt if job.over or not job.vms else job.attempt - 1
    names = (layout.output(attempt, rank) for attempt in range(1, over + 1) for rank in range(job.spec.workers))
    return {f"{layout.JOBS}/{job.name}/{layout.OUTPUT}/{each}" for each in names}


def _step(saved: int | None) -> int:
    return -1 if saved is None else saved


def _results(run: str) -> str:
    return f"result of {run}"


def _trace(run: str, worker: str) -> str:
    return f"trace of {run} on {worker}"


def _following(job: str, name: str) -> str:
    return f"output of {job}, {name}"
