"""Conduct the jobs of a cluster, from the controller.

`decisions.decide` returns what is due for a job; `Jobs` records that or sends it to the agents of the
job's VMs. Several of these decisions have the name of the command that carries them out, so both
are written with their module: `decisions.Begin` and `agent_commands.Begin`. While an attempt is
under way, one `_Rank` for each of its VMs

1. copies the job's files to the VM and asks its agent to begin the command (`_begin`),
2. follows the file of events that the VM writes, and records them in the journal (`_handle`),
3. copies what the command prints, while it prints it (`_follow_output`),
4. copies each archive of the folder that the job keeps (`_fetch_archive`), and
5. copies the rest of the output once the command has ended (`_fetch_rest_of_output`).

Nothing here is lost with the controller: a new one continues from the journal and from the files in
the job's folder. Each step may therefore be repeated. The agent begins an attempt once, events that
the state already has are skipped, and files replace older ones.

What a VM writes is not trusted, because it runs user code: lines are checked and their number is
limited (`OnVm.follow`), and so are archives and output (`artifacts`).
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
from ...errors import ConnectionLostError, ForeignError, RoomError
from ...journal import Event, now
from ...protocol import agent_commands, layout
from ...remote import Connection
from ...runtime.files.archive import newest, path_of
from . import artifacts, decisions
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
"""Time between attempts to copy an archive while this machine's disk is full."""
_OUTPUT_SECONDS = 20.0
"""Limit on copying the rest of the output once a command has ended."""
_OUTPUT_SECONDS_AT_NOTICE = 1.0
"""This limit on a VM with a preemption notice: the next attempt begins only after the copy."""


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
        self._archive_locks: dict[str, asyncio.Lock] = {}

    def tick(self, tick: Tick) -> None:
        """Apply what is due for each job, and conduct its command on its VMs."""
        for name in [job.name for job in self.state.active(JobState)]:
            job = self._job(name)
            if not job.stop and not self.has_packages(name, job.spec, tick.tasks):
                continue  # a task gathers them; no attempt has begun before
            # Before a decision ends the attempt: a rank on a VM that is gone would wait for it.
            self._conduct_ranks(job, tick.tasks)
            for decision in decisions.decide(job, self.state, tick.at):
                self._apply(decision, self._job(name), tick.tasks)
            self._conduct_ranks(self._job(name), tick.tasks)

    def _job(self, name: str) -> JobState:
        """Return a job as it is now: each recorded event replaces its state."""
        return self.state.of(JobState)[name]

    def _apply(self, decision: decisions.Decision, job: JobState, tasks: Tasks) -> None:
        """Record a decision, or start the task that sends it to a VM.

        A task whose key is running already is not started again.
        """
        name = job.name
        match decision:
            case decisions.Begin(vms):
                began = JobBegan(job=name, attempt=job.attempt + 1, vms=vms)
                self.recorder.record(began)
            case decisions.StopOn(vm):
                tasks.do(f"end {name} on {vm}", partial(self.end_on, name, job.attempt, vm))
            case decisions.Warn(vm, seconds):
                tasks.do(f"warn {name} on {vm}", partial(self._warn, job, vm, seconds))
            case decisions.Interrupt(reason, failed):
                interrupted = JobInterrupted(
                    job=name, attempt=job.attempt, reason=reason, failed=failed
                )
                self.recorder.record(interrupted)
            case decisions.Stopping(reason, state):
                self.request_end(name, reason=reason, state=state)
            case decisions.End(state, reason):
                self.record_end(name, state=state, reason=reason)

    def _conduct_ranks(self, job: JobState, tasks: Tasks) -> None:
        """Keep one task for each rank of the attempt while its VM lives and its command runs."""
        for rank, vm in enumerate(job.vms):
            key = f"job {job.name}, attempt {job.attempt} on {vm}"
            vm_state = self.state.vms.get(vm)
            vm_lives = vm_state is not None and vm_state.living
            if vm_lives and not job.over and vm not in job.exits:
                tasks.do(key, partial(self._conduct_rank, job, vm, rank))
            else:
                tasks.cancel(key)

    async def _conduct_rank(self, job: JobState, vm: str, rank: int) -> None:
        # Made here, not in `_conduct_ranks`, which runs at each tick: it reads the job's folder.
        await _Rank(self, job, vm, rank).conduct()

    async def end_on(self, job: str, attempt: int, vm: str) -> bool:
        """Ask the agent of a VM to end the command of an attempt; return whether it agreed.

        Waits `TRY_AGAIN_SECONDS` in any case: its task keeps its key until then, so the control
        loop asks no sooner. It asks again until the VM has reported the end.
        """
        command = agent_commands.End(kind=self.kind, work=job, attempt=attempt)
        agreed = await ask(self.link(vm), command)
        await asyncio.sleep(on_vm.TRY_AGAIN_SECONDS)
        return agreed

    async def _warn(self, job: JobState, vm: str, seconds: float) -> None:
        """Warn the command on a VM that one of the job's VMs, maybe another, ends in `seconds`.

        The control loop sends it again after `TRY_AGAIN_SECONDS`. On the VM the first warning
        counts.
        """
        warning = agent_commands.Warn(
            kind=self.kind, work=job.name, attempt=job.attempt, seconds=seconds
        )
        await ask(self.link(vm), warning)
        await asyncio.sleep(on_vm.TRY_AGAIN_SECONDS)

    def archive_lock(self, job: str) -> asyncio.Lock:
        """Return the lock of a job's archives: those of several ranks may arrive simultaneously."""
        return self._archive_locks.setdefault(job, asyncio.Lock())

    def addresses(self, job: JobState) -> tuple[str, ...]:
        """Return the addresses of a job's VMs, rank 0 first."""
        return tuple(self.state.vms[vm].address for vm in job.vms)


class _Rank(OnVm):
    """One rank of an attempt: the command on one VM."""

    def __init__(self, jobs: Jobs, job: JobState, vm: str, rank: int) -> None:
        super().__init__(job.name, vm, jobs.link, partial(jobs.note, job.name))
        self._jobs = jobs
        self._attempt = job.attempt
        self._rank = rank
        self._addresses = jobs.addresses(job)
        self._folder = jobs.folder(job.name)
        self._folder_on_vm = layout.work_on_vm(jobs.kind, job.name)
        self._source = VmFolder(self.connection, self._folder_on_vm, f"{layout.JOBS}/{job.name}")
        self._output = artifacts.output(job.name, job.attempt, rank)
        self._following_output: asyncio.Task[None] | None = None
        # No event of the job is older than its declaration; `from_job` refuses others.
        self._declared_ns = int(job.declared_at * 1e9)
        # The attempt begins with the newest archive in the job's folder. The journal may name a
        # newer one that was lost with an earlier controller's machine. New archives get higher
        # numbers than that one, or they would count as old ones.
        self._restore_from = 0
        self._number_after = 0
        if job.kept:
            self._restore_from = newest(self._folder, job.kept.number)
            self._number_after = job.kept.number

    async def conduct(self) -> None:
        """Begin the command on the VM and follow it until it has ended.

        The control loop cancels this when the VM is gone.
        """
        await self._retry_or_note(self._begin)
        async with asyncio.TaskGroup() as group:
            following_output = group.create_task(self._retry_or_note(self._follow_output))
            self._following_output = following_output
            try:
                await self.retried(self._follow_events)
            except ForeignError:
                # The VM has written more events than are read, so its exit would not be read.
                await self._end_unread()
            finally:
                following_output.cancel()

    async def _retry_or_note(self, action: Callable[[], Awaitable[None]]) -> None:
        """Retry until it succeeds. A VM that exceeds a limit is noted; a retry would not help."""
        try:
            await self.retried(action)
        except ForeignError as error:
            self.note(str(error))

    # Beginning

    async def _begin(self) -> None:
        connection = await self.connection()
        # A VM writes events of an attempt only after it has the files.
        if not await connection.exists(self._path(layout.job_events(self._attempt))):
            await self._copy_files(connection)
        link = self.link(self.vm)
        if link is None:
            # Usually the VM is being deleted, and this task is cancelled. Else it is retried.
            raise ConnectionLostError(f"{self.vm} is not connected; the controller reconnects")
        task = JobTask(
            self._rank, self._addresses, self._restore_from, self._number_after, at=now()
        )
        command = agent_commands.Begin(
            kind=self._jobs.kind, work=self.name, attempt=self._attempt, task=task.to_dict()
        )
        await link.ask(command)

    async def _copy_files(self, connection: Connection) -> None:
        files = files_below(self._folder, (layout.INCLUDE, layout.WHEELS))
        cell = self._folder / layout.CELL
        if is_plain(cell):
            files[layout.CELL] = cell
        if self._restore_from:
            archive = path_of(self._folder, self._restore_from)
            files[f"{layout.KEPT}/{archive.name}"] = archive
        await connection.put_files(files, below=self._folder_on_vm)
        # The declaration last: a folder that has it is complete.
        declaration: dict[str, bytes | Path] = {layout.JOB: self._folder / layout.JOB}
        await connection.put_files(declaration, below=self._folder_on_vm)

    def _path(self, name: str) -> str:
        return f"{self._folder_on_vm}/{name}"

    # Events of the VM

    async def _follow_events(self) -> None:
        path = self._path(layout.job_events(self._attempt))
        allowance = self._jobs.allowance(self.name, self._attempt, self.vm)
        await self.follow(path, self._parse, self._handle, allowance)

    def _parse(self, line: bytes) -> Event:
        latest_ns = int(now() * 1e9)
        return from_job(line, self.name, self._attempt, self._rank, self._declared_ns, latest_ns)

    async def _handle(self, event: Event) -> bool:
        """Handle an event of the VM, and return whether it is the end of the command.

        A new controller reads the file from its beginning, so events that the state has are
        skipped.
        """
        job = self._job
        record = self._jobs.recorder.record
        match event:
            case JobStarted() if self.vm not in job.started:
                record(event)
            case JobPacked() if event.number > job.packed.get(self._rank, 0):
                # Of two ranks that saved the same file, the later save is kept. A VM may report a
                # false time, so one in the future counts as now: else it would win over all others.
                await self._fetch_archive(replace(event, saved=min(event.saved, now())))
            case JobUnkept() if event.reason != job.unkept:
                # An empty reason reports that the folder is kept again. Only rank 0 packs while the
                # command runs. An archive that another rank packs at its end does not mean that
                # rank 0 can pack again, so only rank 0 clears the reason.
                if event.reason or self._rank == 0:
                    record(event)
            case JobGpuUnused():
                is_unused = event.seconds > 0
                if is_unused != (self.vm in job.gpu_unused):
                    record(event)
            case JobExited():
                await self._fetch_rest_of_output(event)
                record(self._timed(event))
                return True
            case _:
                pass
        return False

    def _timed(self, exited: JobExited) -> JobExited:
        """Return the event with the time that `decide` compares.

        After a notice the VM has a limited time to leave. That time begins now, when a controller
        reads the event: perhaps none was running when the VM wrote it.
        """
        here_ns = int(now() * 1e9)
        if exited.noticed:
            return replace(exited, time=here_ns)
        return replace(exited, time=min(exited.time, here_ns))

    async def _end_unread(self) -> None:
        """End the command of a VM whose events are not read any more, and record its end."""
        # Nothing asks again once the end is recorded, so it is recorded only after the agent has
        # the command. If the VM does not answer any more, it is deleted and this is cancelled.
        # The job may have a later attempt by now, whose command continues.
        while not await self._jobs.end_on(self.name, self._attempt, self.vm):
            pass
        exited = JobExited(
            job=self.name,
            attempt=self._attempt,
            rank=self._rank,
            code=None,
            reason="its VM has reported more about it than is read from a VM",
        )
        self._jobs.recorder.record(exited)

    @property
    def _job(self) -> JobState:
        return self._jobs.state.of(JobState)[self.name]

    # Archives of the folder that the job keeps

    async def _fetch_archive(self, packed: JobPacked) -> None:
        """Copy an archive here.

        If the VM no longer has it, `fetched` yields no paths: the VM has packed a newer one, and
        reports that next.
        """
        archive = artifacts.archive(packed)
        part_suffix = f"-{self._rank}"
        while True:
            try:
                fetching = fetched(archive, self._jobs.directory, self._source, part_suffix)
                async with fetching as paths:
                    for path in paths:
                        await self._keep(packed, path)
                return
            except RoomError as error:
                # Wait for room. The command's exit, which the VM reports later, stays unread until
                # then. So the job keeps the VM, which has the only copy.
                self.note(f"Cannot copy the folder of {self.name} yet: {error}")
                await asyncio.sleep(_ROOM_SECONDS)
            except (ForeignError, ValueError) as error:
                # ValueError: it is too large together with the files of other ranks.
                self.note(f"Refused the folder of {self.name} from {self.vm}: {error}")
                return

    async def _keep(self, packed: JobPacked, path: Path) -> None:
        """Put an archive into the job's folder, combined with what other ranks packed."""
        async with self._jobs.archive_lock(self.name):
            job = self._job
            # If no other rank ever packed, the archive is the whole folder.
            beyond_rank_0 = any(number for rank, number in job.packed.items() if rank > 0)
            kept = await artifacts.combine(
                self._folder, path, packed, job.kept, self._rank, alone=not beyond_rank_0
            )
            self._jobs.recorder.record(kept)
            self.note("")
            artifacts.forget_older(self._folder, kept.number)

    # Output of the command

    async def _follow_output(self) -> None:
        await follow(self._output, self._jobs.directory, self._source)

    async def _fetch_rest_of_output(self, exited: JobExited) -> None:
        """Copy the output that has not arrived yet, within a time limit.

        After that, the output ends with the last lines that came with the exit.
        """
        if self._following_output:
            self._following_output.cancel()
            await asyncio.wait([self._following_output])
        limit = _OUTPUT_SECONDS_AT_NOTICE if exited.noticed else _OUTPUT_SECONDS
        try:
            async with asyncio.timeout(limit):
                await self._retry_or_note(self._fetch_output)
        except TimeoutError:
            path = self._jobs.directory / self._output.files[0]
            with suppress(OSError):  # no room: the journal has these lines, too
                artifacts.add_tail(path, exited.tail)

    async def _fetch_output(self) -> None:
        """Copy all of the output. A command that never began has none."""
        await bring(self._output, self._jobs.directory, self._source)


WORKS = Jobs
