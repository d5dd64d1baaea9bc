"""The jobs of a cluster: what `decisions` decides is written down and done, for each VM a part of an attempt at a time.

A VM's part is given to its agent and then followed: what the VM tells goes into the journal, what the command says into
files of the job's folder here, and each archive of the folder that is kept comes here (`archives`). Everything can be
done again from the journal and the files by another controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...errors import ClusterError, ForeignError, RemoteError, RoomError, TrainingError
from ...journal import ClusterState, JobState, events, metrics, now
from ...journal.declared import waiting
from ...protocol import checks, layout
from ...protocol.agent_commands import BeginJob, EndJob, WarnJob
from ...protocol.job import JobSpec
from ...protocol.vm_events import from_job
from ...remote import Allowance, Connection, follow_across, follow_blocks_across
from ...runtime.jobs.archive import newest, path_of
from ...spec import TRAINING
from ..foreign import Refusals
from ..record import Recorder
from ..runs.packages import gather
from ..runs.sending import is_plain
from ..tasks import Tasks
from ..vms.link import Link
from . import archives
from .decisions import Begin, End, Interrupt, StopOn, Stopping, Warn, decide
from .last_words import add_tail

log = logging.getLogger(__name__)

_TRY_AGAIN_SECONDS = 1.0
_ROOM_SECONDS = 5.0
_LINK_SECONDS = 2.0
_LAST_WORDS_SECONDS, _LEAVING_SECONDS = 20.0, 1.0
"""How long all of what a command said may take to come here at its end; where its VM leaves. Then its exit's tail has
to do."""
_MOST_EVENTS, MOST_OUTPUT = 16 * 2**20, 24 * 2**20
"""Bytes that are taken from a VM about an attempt, and of what the command says there."""


class Jobs:
    """The jobs of the cluster in `directory`; `link` gives the link of a VM (None: there is none)."""

    def __init__(self, directory: Path, recorder: Recorder, link: Callable[[str], Link | None]) -> None:
        self._directory, self._recorder, self._link = directory, recorder, link
        self._gathered: set[str] = set()
        self._allowances: dict[tuple[str, int, str], Allowance] = {}
        self._keeping: dict[str, asyncio.Lock] = {}

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    def declare(self, name: str) -> None:
        """Begin the job whose declaration is in the cluster's folder. Raises ClusterError where it cannot be read."""
        if name in self._state.jobs:
            return
        self._state.refuse_taken("job", name)
        self._recorder.record(events.JobDeclared(job=name, spec=self._declared(name).to_dict()))

    def declare_waiting(self) -> None:
        """Begin those whose command reached no controller. One that cannot be read is told of and holds up nobody."""
        for name in waiting(self._directory, self._state, "job"):
            try:
                self.declare(name)
            except ClusterError as error:
                self._recorder.note(f"job {name}", str(error))

    def take_back(self) -> None:
        """After a time in which a VM wrote the journal: end those that it tells otherwise than this machine knows."""
        for job in self._state.active_jobs:
            try:
                known = self._declared(job.name) == job.spec
            except ClusterError as error:
                log.warning("%s", error)
                known = False
            if not known:
                ended = events.JobEnded(job=job.name, state="failed", reason="this machine has not declared it so")
                self._recorder.record(ended)

    async def stop(self, name: str, reason: str = "") -> None:
        """End a job, its folder shipped once more."""
        job = self._state.jobs[name]
        if not job.over and not job.stop:
            self._recorder.record(events.JobStopping(job=name, reason=reason or "stopped by the user"))

    def look(self, tasks: Tasks, at: float) -> None:
        """Write down and do what is due."""
        for name in [job.name for job in self._state.active_jobs]:
            if self._state.jobs[name].spec.pip and name not in self._gathered:
                tasks.do(f"packages of {name}", lambda name=name: self._gather(name))
                if not self._state.jobs[name].stop:
                    continue
            for decision in decide(self._state.jobs[name], self._state, at):
                job = self._state.jobs[name]
                match decision:
                    case Begin():
                        begun = events.JobBegan(job=name, attempt=job.attempt + 1, vms=decision.vms)
                        self._recorder.record(begun)
                    case StopOn():
                        vm = decision.vm
                        tasks.do(f"end {name} on {vm}", lambda job=job, vm=vm: self.end(job, vm))
                    case Warn():
                        tasks.do(f"warn {name} on {decision.vm}", partial(self.warn, job, decision))
                    case Interrupt():
                        over = events.JobInterrupted(
                            job=name, attempt=job.attempt, reason=decision.reason, failed=decision.failed
                        )
                        self._recorder.record(over)
                    case Stopping():
                        told = events.JobStopping(job=name, reason=decision.reason, failed=decision.failed)
                        self._recorder.record(told)
                    case End():
                        ended = events.JobEnded(
                            job=name, state=decision.state, code=decision.code, reason=decision.reason,
                            tail=decision.tail,
                        )  # fmt: skip
                        self._recorder.record(ended)
                        self._recorder.note(f"job {name}", "")
            self._follow(tasks, self._state.jobs[name])

    def _follow(self, tasks: Tasks, job: JobState) -> None:
        """Have somebody with each VM of the attempt that is there and has not ended."""
        for rank, vm in enumerate(job.vms):
            known = self._state.vms.get(vm)
            key = f"job {job.name}, attempt {job.attempt} on {vm}"
            if job.over or vm in job.exits or known is None or not known.living:
                tasks.cancel(key)
            else:
                tasks.do(key, lambda job=job, vm=vm, rank=rank: _Part(self, job, vm, rank).conduct())

    async def _gather(self, name: str) -> None:
        spec, cluster = self._state.jobs[name].spec, self._state.spec
        purpose = cluster.purpose if cluster else TRAINING
        try:
            await gather(spec.pip, self.folder(name) / layout.WHEELS, build=spec.pip_build, purpose=purpose)
        except TrainingError as error:
            self._recorder.record(events.JobEnded(job=name, state="failed", reason=str(error)))
        except OSError as error:
            why = f"The packages could not be gathered: {error}"
            self._recorder.record(events.JobEnded(job=name, state="failed", reason=why))
        self._gathered.add(name)

    async def end(self, job: JobState, vm: str) -> None:
        """Tell it to end. Told once a look until it has: to be told twice is nothing to it."""
        if link := self._link(vm):
            with suppress(RemoteError, TrainingError, OSError):  # decided again at the next look
                await link.ask(EndJob(job=job.name, attempt=job.attempt))
        await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def warn(self, job: JobState, warning: Warn) -> None:
        """Warn a rank that a VM of the job leaves. Sent again at each look: the first warning counts on the VM."""
        if link := self._link(warning.vm):
            with suppress(RemoteError, TrainingError, OSError):  # decided again at the next look
                await link.ask(WarnJob(job=job.name, attempt=job.attempt, seconds=warning.seconds))
        await asyncio.sleep(_TRY_AGAIN_SECONDS)

    # What parts of attempts take of it

    def folder(self, name: str) -> Path:
        """The folder of a job."""
        return self._directory / layout.JOBS / name

    def now(self, name: str) -> JobState:
        """The job as the journal has it."""
        return self._state.jobs[name]

    def allowance(self, job: str, attempt: int, vm: str) -> Allowance:
        """How much is taken of what the VM tells about the attempt, over all who follow it."""
        return self._allowances.setdefault((job, attempt, vm), Allowance(_MOST_EVENTS))

    def keeping(self, job: str) -> asyncio.Lock:
        """The lock under which what a rank packed is laid over what is kept: several may at the same moment."""
        return self._keeping.setdefault(job, asyncio.Lock())

    def addresses(self, job: JobState) -> tuple[str, ...]:
        """Those of its VMs, rank 0 first."""
        return tuple(self._state.vms[vm].address for vm in job.vms)

    def link(self, vm: str) -> Link | None:
        """The link of a VM."""
        return self._link(vm)

    def record(self, event: events.Event) -> None:
        """Have it in the journal."""
        self._recorder.record(event)

    def note(self, name: str, what: str) -> None:
        """Say what is in the way of a job, or nothing any more."""
        self._recorder.note(f"job {name}", what)

    def _declared(self, name: str) -> JobSpec:
        """What this machine's user declared. Raises ClusterError."""
        path = self.folder(name) / layout.JOB
        try:
            return JobSpec.from_dict({**checks.parsed_object(path.read_bytes()), "name": name})
        except (OSError, ValueError) as error:
            raise ClusterError(f"The declaration of {name} cannot be read: {error}", where=str(path)) from error


class _Part:
    """One VM's part in an attempt of a job."""

    def __init__(self, jobs: Jobs, job: JobState, vm: str, rank: int) -> None:
        self._jobs, self._name, self._attempt, self._vm, self._rank = jobs, job.name, job.attempt, vm, rank
        self._spec = job.spec
        self._addresses = jobs.addresses(job)
        self._there = layout.job_on_vm(job.name)
        self._folder = jobs.folder(job.name)
        self._kept = newest(self._folder, job.kept.number) if job.kept else 0
        """The archive that it goes on from (0: none): the last one that came, unless that was lost with its machine."""
        self._packed = job.kept.number if job.kept else 0
        """The last one that came, be it lost: a later one has a number behind it, or would count for an old one."""
        self._since = int(job.declared_at * 1e9)
        self._heard = 0
        self._refusals = Refusals(f"{vm}, about {job.name}", lambda what: jobs.note(job.name, what))

    async def conduct(self) -> None:
        """Give it to the VM and follow it there until it has ended. Cancelled when the VM is gone."""
        await self._again_and_again(self._give)
        self._output = asyncio.create_task(self._again_and_again(self._follow_output))
        try:
            await self._again_and_again(self._follow_to_its_end)
        finally:
            self._output.cancel()

    async def _give(self) -> None:
        connection = await self._connection()
        if not await connection.exists(f"{self._there}/{layout.job_events(self._attempt)}"):
            await self._bring(connection)
        if link := self._jobs.link(self._vm):
            given = BeginJob(
                job=self._name,
                attempt=self._attempt,
                rank=self._rank,
                addresses=self._addresses,
                kept=self._kept,
                packed=self._packed,
                at=now(),
            )
            await link.ask(given)

    async def _bring(self, connection: Connection) -> None:
        """Its files; the declaration comes last: where that is, they all are."""
        files: dict[str, bytes | Path] = {}
        for name in (layout.INCLUDE, layout.WHEELS):
            below = sorted((self._folder / name).rglob("*"))
            files |= {str(path.relative_to(self._folder)): path for path in below if is_plain(path)}
        if is_plain(cell := self._folder / layout.CELL):
            files[layout.CELL] = cell
        if self._kept:
            archive = path_of(self._folder, self._kept)
            files[f"{layout.KEPT}/{archive.name}"] = archive
        await connection.put_files(files, below=self._there)
        await connection.put_files({layout.JOB: self._folder / layout.JOB}, below=self._there)

    async def _again_and_again(self, follow: Callable[[], Awaitable[None]]) -> None:
        """Until it ends by itself, whatever the network or the disk does to it."""
        while True:
            try:
                return await follow()
            except ForeignError as error:  # more of it than is taken from a VM
                self._jobs.note(self._name, str(error))
                return None
            except (RemoteError, TrainingError, OSError) as error:  # the latter: its agent says no, as under notice
                log.warning("%s on %s: %s", self._name, self._vm, error)
                await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _follow_to_its_end(self) -> None:
        try:
            await self._follow_events()
        except ForeignError:  # nobody would hear of its end
            await self._jobs.end(self._jobs.now(self._name), self._vm)
            why = "its VM has told more of it than is taken from one"
            self._jobs.record(events.JobExited(
                job=self._name, attempt=self._attempt, rank=self._rank, code=None, reason=why
            ))  # fmt: skip

    async def _follow_events(self) -> None:
        path = f"{self._there}/{layout.job_events(self._attempt)}"
        allowance = self._jobs.allowance(self._name, self._attempt, self._vm)
        async for offset, line in follow_across(self._connection, path, self._heard, allowance=allowance):
            if await self._hear(line):
                return
            self._heard = offset

    async def _hear(self, line: bytes) -> bool:
        """Take a line of its VM; whether it is the last one."""
        try:
            event = from_job(line, self._name, self._attempt, self._rank, self._since, int(now() * 1e9))
        except ValueError as error:
            self._refusals.add(line, error)
            return False
        job = self._jobs.now(self._name)
        match event:
            case events.JobStarted() if self._vm not in job.started:
                self._jobs.record(event)
            case events.JobPacked() if event.number > job.packed.get(self._rank, 0):
                await self._take(replace(event, saved=min(event.saved, now())))
            case events.JobUnkept() if event.reason != job.unkept and (self._rank == 0 or event.reason):
                self._jobs.record(event)
            case events.JobGpuUnused() if (event.seconds > 0) != (self._vm in job.gpu_unused):
                self._jobs.record(event)
            case events.JobExited():
                await self._take_rest(event)
                heard = int(now() * 1e9)  # from which on a VM under notice has its time to leave
                self._jobs.record(replace(event, time=heard if event.noticed else min(event.time, heard)))
                return True
            case _:
                pass
        return False

    async def _take(self, told: events.JobPacked) -> None:
        """Bring an archive here, whole and of plain files, or not at all; the VM has those of last time yet."""
        there = f"{self._there}/{layout.KEPT}/{layout.archive(told.number)}"

        async def get(arriving: Path) -> bool:
            connection = await self._connection()
            if not await connection.exists(there):
                return False
            await connection.get(there, arriving, most=archives.MOST_BYTES)
            return True

        arrived = path_of(self._folder, told.number).with_name(f".{told.number}-{self._rank}.tar")
        try:
            while True:
                try:
                    if not await archives.fetch(arrived, told, get):
                        return  # a newer one follows
                    await self._keep(told, arrived)
                    return
                except RoomError as error:  # its end is not heard before: the VM goes with that, and so would the work
                    self._jobs.note(self._name, f"The folder of {self._name} is not here yet: {error}")
                    await asyncio.sleep(_ROOM_SECONDS)
        except (ForeignError, ValueError) as error:
            self._jobs.note(self._name, f"The folder of {self._name} was not taken from {self._vm}: {error}")
        finally:
            arrived.unlink(missing_ok=True)

    async def _keep(self, told: events.JobPacked, arrived: Path) -> None:
        """Keep the archive that arrived, with what other ranks packed in the attempt."""
        async with self._jobs.keeping(self._name):
            job = self._jobs.now(self._name)
            alone = not any(job.packed[rank] for rank in job.packed if rank)
            kept = await archives.combine(self._folder, arrived, told, job.kept, self._rank, alone)
            self._jobs.record(kept)
            self._jobs.note(self._name, "")
            archives.forget_older(self._folder, kept.number)

    async def _follow_output(self) -> None:
        path = self._folder / layout.OUTPUT / layout.output(self._attempt, self._rank)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        there = f"{self._there}/{layout.OUTPUT}/{path.name}"
        offset = path.stat().st_size if path.exists() else 0
        allowance = Allowance(MOST_OUTPUT, offset)
        async for block in follow_blocks_across(self._connection, there, offset, allowance=allowance):
            lines = metrics.joined(block)
            offset += len(lines)
            if offset > MOST_OUTPUT:
                raise ForeignError(f"{self._name} has said more on {self._vm} than is taken from a VM")
            metrics.append(path, lines)

    async def _take_rest(self, exited: events.JobExited) -> None:
        """The last of what it said, which the follower may not have seen yet."""
        self._output.cancel()
        await asyncio.wait([self._output])
        path = self._folder / layout.OUTPUT / layout.output(self._attempt, self._rank)

        async def get() -> None:
            connection, there = await self._connection(), f"{self._there}/{layout.OUTPUT}/{path.name}"
            if await connection.exists(there):  # one that never began has said nothing
                await connection.get(there, path, most=MOST_OUTPUT)

        try:
            # Of one that leaves there is little time to lose: the next attempt waits for this word.
            async with asyncio.timeout(_LEAVING_SECONDS if exited.noticed else _LAST_WORDS_SECONDS):
                await self._again_and_again(get)
        except TimeoutError:
            with suppress(OSError):  # no room: its end is in the journal
                add_tail(path, exited.tail)

    async def _connection(self) -> Connection:
        while True:
            if link := self._jobs.link(self._vm):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LINK_SECONDS):
                        return await link.connection()
            else:
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
