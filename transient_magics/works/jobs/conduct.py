"""The jobs of a cluster: what `decisions` decides is written down and done, for each VM a part of
an attempt at a time.

A VM's part is given to its agent and then followed: what the VM tells goes into the journal, what
the command says into files of the job's folder here, and each archive of the folder that is kept
comes here (`artifacts`). Everything can be done again from the journal and the files by another
controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...controller import on_vm
from ...controller.artifacts import VmFolder, bring, fetched, follow
from ...controller.on_vm import OnVm, ask, files_below, is_plain
from ...controller.record import Recorder
from ...controller.tasks import Tasks
from ...controller.vms.link import Link
from ...controller.works import Tick, Works
from ...errors import ForeignError, RoomError
from ...journal import Event, now
from ...protocol import agent_commands, layout
from ...remote import Connection
from ...runtime.files.archive import newest, path_of
from . import artifacts
from .decisions import Begin, Decision, End, Interrupt, StopOn, Stopping, Warn, decide
from .events import (
    JobBegan,
    JobExited,
    JobGpuUnused,
    JobInterrupted,
    JobPacked,
    JobStarted,
    JobUnkept,
    from_job,
)
from .on_vm.task import JobTask
from .spec import JobSpec
from .state import JobState

_ROOM_SECONDS = 5.0
_LAST_WORDS_SECONDS = 20.0
_LEAVING_SECONDS = 1.0
"""How long all of what a command said may take to come here at its end; where its VM leaves. Then
its exit's tail has to do.
"""


class Jobs(Works[JobSpec]):
    """The jobs of a cluster."""

    kind = "job"
    spec_class = JobSpec

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        link: Callable[[str], Link | None],
        others: Mapping[str, Works[Any]] | None = None,
    ) -> None:
        super().__init__(directory, recorder, link, others)
        self._keeping: dict[str, asyncio.Lock] = {}

    def tick(self, tick: Tick) -> None:
        """Record and start what is due."""
        for name in [job.name for job in self.state.active(JobState)]:
            job = self.state.of(JobState)[name]
            if not job.stop and not self.has_packages(name, job.spec, tick.tasks):
                continue
            for decision in decide(job, self.state, tick.at):
                self._carry_out(self.state.of(JobState)[name], decision, tick.tasks)
            self._follow(tick.tasks, self.state.of(JobState)[name])

    def _carry_out(self, job: JobState, decision: Decision, tasks: Tasks) -> None:
        name = job.name
        match decision:
            case Begin():
                self.recorder.record(JobBegan(job=name, attempt=job.attempt + 1, vms=decision.vms))
            case StopOn():
                tasks.do(f"end {name} on {decision.vm}", partial(self.end_on, job, decision.vm))
            case Warn():
                tasks.do(f"warn {name} on {decision.vm}", partial(self.warn, job, decision))
            case Interrupt():
                interrupted = JobInterrupted(
                    job=name, attempt=job.attempt, reason=decision.reason, failed=decision.failed
                )
                self.recorder.record(interrupted)
            case Stopping():
                self.end(name, decision.reason, decision.state)
            case End():
                self.ended(name, decision.state, decision.reason)

    def _follow(self, tasks: Tasks, job: JobState) -> None:
        """Conduct the job on each VM of the attempt that exists and has not ended."""
        for rank, vm in enumerate(job.vms):
            known = self.state.vms.get(vm)
            key = f"job {job.name}, attempt {job.attempt} on {vm}"
            if job.over or vm in job.exits or known is None or not known.living:
                tasks.cancel(key)
            else:
                tasks.do(key, _Part(self, job, vm, rank).conduct)

    async def end_on(self, job: JobState, vm: str) -> None:
        """Request the end of the command on a VM. Sent again at each tick until it has ended."""
        await ask(
            self.link(vm), agent_commands.End(kind=self.kind, work=job.name, attempt=job.attempt)
        )
        await asyncio.sleep(on_vm.TRY_AGAIN_SECONDS)

    async def warn(self, job: JobState, warning: Warn) -> None:
        """Warn a rank that a VM of the job leaves. Sent again at each tick: the first warning
        counts on the VM.
        """
        sent = agent_commands.Warn(
            kind=self.kind, work=job.name, attempt=job.attempt, seconds=warning.seconds
        )
        await ask(self.link(warning.vm), sent)
        await asyncio.sleep(on_vm.TRY_AGAIN_SECONDS)

    def keeping(self, job: str) -> asyncio.Lock:
        """The lock under which what a rank packed is laid over what is kept: several may at the
        same moment.
        """
        return self._keeping.setdefault(job, asyncio.Lock())

    def addresses(self, job: JobState) -> tuple[str, ...]:
        """Return the addresses of its VMs, rank 0 first."""
        return tuple(self.state.vms[vm].address for vm in job.vms)


class _Part(OnVm):
    """One VM's part in an attempt of a job."""

    def __init__(self, jobs: Jobs, job: JobState, vm: str, rank: int) -> None:
        super().__init__(job.name, vm, jobs.link, partial(jobs.note, job.name))
        self._jobs = jobs
        self._attempt = job.attempt
        self._rank = rank
        self._addresses = jobs.addresses(job)
        self._there = layout.job_on_vm(job.name)
        self._folder = jobs.folder(job.name)
        self._source = VmFolder(self.connection, self._there, f"{layout.JOBS}/{job.name}")
        self._printed = artifacts.output(job.name, job.attempt, rank)
        if job.kept:
            self._kept = newest(self._folder, job.kept.number)
        else:
            self._kept = 0
        """The archive that it goes on from (0: none): the last one that came, unless that was lost
        with its machine.
        """
        self._packed = job.kept.number if job.kept else 0
        """The last one that came, be it lost: a later one has a number behind it, or would count
        for an old one.
        """
        self._since = int(job.declared_at * 1e9)
        self._output: asyncio.Task[None] | None = None

    async def conduct(self) -> None:
        """Give it to the VM and follow it there until it has ended. Cancelled when the VM is gone."""
        await self._retried_or_noted(self._give)
        async with asyncio.TaskGroup() as group:
            output = self._output = group.create_task(self._retried_or_noted(self._follow_output))
            try:
                await self.retried(self._follow_events)
            except ForeignError:  # no line of its end would be read
                await self._jobs.end_on(self._jobs.state.of(JobState)[self.name], self.vm)
                why = "its VM has told more of it than is taken from one"
                exited = JobExited(
                    job=self.name, attempt=self._attempt, rank=self._rank, code=None, reason=why
                )
                self._jobs.recorder.record(exited)
            finally:
                output.cancel()

    async def _retried_or_noted(self, action: Callable[[], Awaitable[None]]) -> None:
        """Do it until it succeeds, or the VM has more than is taken from one."""
        try:
            await self.retried(action)
        except ForeignError as error:
            self.note(str(error))

    async def _give(self) -> None:
        connection = await self.connection()
        if not await connection.exists(f"{self._there}/{layout.job_events(self._attempt)}"):
            await self._bring(connection)
        if link := self.link(self.vm):
            task = JobTask(self._rank, self._addresses, self._kept, self._packed, at=now())
            given = agent_commands.Begin(
                kind=self._jobs.kind, work=self.name, attempt=self._attempt, task=task.to_dict()
            )
            await link.ask(given)

    async def _bring(self, connection: Connection) -> None:
        """Copy its files to the VM. The declaration comes last: where that is, they all are."""
        files = files_below(self._folder, (layout.INCLUDE, layout.WHEELS))
        if is_plain(cell := self._folder / layout.CELL):
            files[layout.CELL] = cell
        if self._kept:
            archive = path_of(self._folder, self._kept)
            files[f"{layout.KEPT}/{archive.name}"] = archive
        await connection.put_files(files, below=self._there)
        await connection.put_files({layout.JOB: self._folder / layout.JOB}, below=self._there)

    async def _follow_events(self) -> None:
        path = f"{self._there}/{layout.job_events(self._attempt)}"
        allowance = self._jobs.allowance(self.name, self._attempt, self.vm)
        await self.follow(path, self._event, self._take_event, allowance)

    def _event(self, line: bytes) -> Event:
        return from_job(line, self.name, self._attempt, self._rank, self._since, int(now() * 1e9))

    async def _take_event(self, event: Event) -> bool:
        """Take what its VM reports; return whether that is its end."""
        job = self._jobs.state.of(JobState)[self.name]
        record = self._jobs.recorder.record
        match event:
            case JobStarted() if self.vm not in job.started:
                record(event)
            case JobPacked() if event.number > job.packed.get(self._rank, 0):
                await self._take(replace(event, saved=min(event.saved, now())))
            case JobUnkept() if event.reason != job.unkept and (self._rank == 0 or event.reason):
                record(event)
            case JobGpuUnused() if (event.seconds > 0) != (self.vm in job.gpu_unused):
                record(event)
            case JobExited():
                await self._take_rest(event)
                heard = int(now() * 1e9)  # from which on a VM under notice has its time to leave
                record(replace(event, time=heard if event.noticed else min(event.time, heard)))
                return True
            case _:
                pass
        return False

    async def _take(self, told: JobPacked) -> None:
        """Bring an archive here. Where the VM has it no more, a newer one follows."""
        archive = artifacts.archive(told)
        mark = f"-{self._rank}"
        while True:
            try:
                async with fetched(archive, self._jobs.directory, self._source, mark) as arrived:
                    for path in arrived:
                        await self._keep(told, path)
                return
            except (
                RoomError
            ) as error:  # its end is not heard before: the VM goes with that, and so would the work
                self.note(f"The folder of {self.name} is not here yet: {error}")
                await asyncio.sleep(_ROOM_SECONDS)
            except (
                ForeignError,
                ValueError,
            ) as error:  # ValueError: it is too much with those of other ranks
                self.note(f"The folder of {self.name} was not taken from {self.vm}: {error}")
                return

    async def _keep(self, told: JobPacked, arrived: Path) -> None:
        """Keep the archive that arrived, with what other ranks packed in the attempt."""
        async with self._jobs.keeping(self.name):
            job = self._jobs.state.of(JobState)[self.name]
            alone = not any(job.packed[rank] for rank in job.packed if rank)
            kept = await artifacts.combine(self._folder, arrived, told, job.kept, self._rank, alone)
            self._jobs.recorder.record(kept)
            self.note("")
            artifacts.forget_older(self._folder, kept.number)

    async def _follow_output(self) -> None:
        await follow(self._printed, self._jobs.directory, self._source)

    async def _take_rest(self, exited: JobExited) -> None:
        """The last of what it said, which the follower may not have seen yet."""
        if self._output:
            self._output.cancel()
            await asyncio.wait([self._output])

        async def get() -> None:
            await bring(
                self._printed, self._jobs.directory, self._source
            )  # one that never began has said nothing

        try:
            # Of one that leaves there is little time to lose: the next attempt waits for this word.
            async with asyncio.timeout(_LEAVING_SECONDS if exited.noticed else _LAST_WORDS_SECONDS):
                await self._retried_or_noted(get)
        except TimeoutError:
            with suppress(OSError):  # no room: its end is in the journal
                artifacts.add_tail(self._jobs.directory / self._printed.files[0], exited.tail)


WORKS = Jobs
