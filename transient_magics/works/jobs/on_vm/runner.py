"""Run one attempt of a job on its VM: prepare, start and watch the command, pack its folder.

This is a process of its own beside the agent, so that the command is served while the agent is
restarted. It watches for the preemption notice itself.

The command receives SIGTERM at `Notices.due`, or immediately when this process receives one. It
then has `GRACE_SECONDS`, or its share of what is left of the notice. After that the
folder is packed as it is, and once more if the command ends before `LAST_SECONDS` are over. Then all
processes that the command has started are killed.

Rank 0 packs its folder every few minutes and at its end. Other ranks pack at their end what has
changed since the attempt began. So what the last saving rank wrote is kept, whichever rank it is.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import math
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ....errors import TrainingError, reason_of
from ....protocol import checks, layout
from ....protocol.agent_commands import Begin
from ....protocol.machines import NOTICE_SECONDS
from ....protocol.vm_events import line_fields
from ....runtime import gpu_use, process_record
from ....runtime.files.archive import last_change, pack, signature, unpack
from ....runtime.folder import Lines, RunFolder
from ....runtime.metadata import notice_seconds, watch_preemption
from ....runtime.role import separate_children
from ....runtime.training.usercode import provide_packages
from ..events import JobExited, JobGpuUnused, JobPacked, JobStarted, JobUnkept
from ..spec import JobSpec
from .command import CommandProcesses, Output, adopt_orphans, in_child, machine_memory
from .task import JobTask

GRACE_SECONDS = 15.0
LAST_SECONDS = 24.0
"""Times after SIGTERM until the folder is packed (`GRACE_SECONDS`) and all processes are killed.

They refer to `NOTICE_SECONDS`. If less time is left, they are scaled in proportion.
"""
MASTER_PORT = 29_500
_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
_NOTICE_LOOK_SECONDS = 0.1
_FREE_SHARE = 0.02
"""A VM with less available memory than this share is out of memory."""
_BLAMED_SHARE = 0.5
"""A job with more than this share of the memory is ended when the VM is out of memory."""
_RIGHT_SECONDS = 30.0
"""Differences between clocks up to this one may be delays of messages."""
_TAIL = 2000
_ARCHIVES = 3
_OURS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME")
"""Variables of the agent's environment that are for its own Python."""

TOGETHER_SECONDS = 2.0
"""How much longer the rank on the leaving VM waits for the warning that all ranks receive."""
ON_ITS_WAY_SECONDS = 0.5
"""Time in which a warning reaches all VMs. They act on it after that."""


@dataclass
class Notices:
    """The notices that a rank has received, and the time at which its command gets SIGTERM. Pure.

    A rank has two sources: the notice of its own VM, and the controller's warning that a VM of the
    job leaves. The command receives SIGTERM `at_notice` seconds before that VM ends, on all VMs at
    the same moment: when the first rank ends, the collectives of the others fail, and they could not
    save any more. Times are seconds of the monotonic clock, infinite before there is a notice.
    """

    at_notice: float
    several: bool
    """Whether the job has several ranks."""
    own_end: float = math.inf
    """The end of this VM, by its own notice."""
    warned_end: float = math.inf
    """The end of a VM of the job, by the controller's warning."""

    @property
    def end(self) -> float:
        """The time at which the first VM of the job ends."""
        return min(self.own_end, self.warned_end)

    @property
    def due(self) -> float:
        """The time at which the command receives SIGTERM."""
        alone = self.own_end - self.at_notice
        if not self.several:
            return alone
        if self.warned_end < math.inf:
            arrived = self.warned_end - NOTICE_SECONDS + ON_ITS_WAY_SECONDS
            return min(max(self.warned_end - self.at_notice, arrived), alone + TOGETHER_SECONDS)
        return max(alone, self.own_end - NOTICE_SECONDS + TOGETHER_SECONDS)


class Runner:
    """One attempt of the job in `folder`, begun by the command `begin`."""

    def __init__(self, folder: Path, begin: Begin) -> None:
        self._folder = folder
        self._begin = begin
        self._task = JobTask.from_dict(begin.task)
        self._lines = Lines(folder / layout.job_events(begin.attempt))
        self._work = folder / f"work-{begin.attempt}"
        self._processes = CommandProcesses(folder)
        self._ending = asyncio.Event()
        self._notices = Notices(NOTICE_SECONDS, several=len(self._task.addresses) > 1)
        self._notice_seconds = NOTICE_SECONDS
        self._sigterm_at = 0.0
        self._last_moment = 0.0
        self._reason = ""
        self._packing = asyncio.Lock()
        self._packed: object = None
        self._unkept = ""
        self._number = self._task.kept
        self._since = 0
        self._spec: JobSpec
        self._output: Output

    async def run(self) -> None:
        """Return once the command has ended and that was reported."""
        separate_children()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end_command)
        # A VM that shuts down sends it with SIGTERM.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        adopt_orphans()
        duties = [
            asyncio.create_task(watch_preemption(self._on_notice)),
            asyncio.create_task(self._follow_notices()),
        ]
        try:
            try:
                self._spec = self._declared()
                self._notices.at_notice = self._spec.at_notice_seconds
                self._notice_seconds = await asyncio.to_thread(notice_seconds)
                environment = await asyncio.to_thread(self._prepare)
                process = await self._start(environment)
            except (OSError, ValueError, TrainingError, subprocess.SubprocessError) as error:
                self._exited(None, 0.0, f"it could not be started: {error}", "")
                return
            await self._supervise(process)
        finally:
            for duty in duties:
                duty.cancel()

    def _on_notice(self) -> None:
        """Note the end of this VM; an earlier process of this attempt may have written it down."""
        left = process_record.seconds_left(_notice_file(self._folder, self._begin.attempt))
        self._notices.own_end = time.monotonic() + min(left, self._notice_seconds)
        self._act_on_notices()

    async def _follow_notices(self) -> None:
        """Watch for the controller's warning, and send SIGTERM when it is due."""
        warned = process_record.warning_file(self._folder, self._begin.attempt)
        while not self._ending.is_set():
            if self._notices.several and self._notices.warned_end == math.inf:
                self._notices.warned_end = time.monotonic() + process_record.seconds_left(warned)
            self._act_on_notices()
            until_due = max(self._notices.due - time.monotonic(), 0.0)
            await asyncio.sleep(min(until_due, _NOTICE_LOOK_SECONDS))

    def _act_on_notices(self) -> None:
        """Write the announced end to the file that the command reads; send SIGTERM once due."""
        moment = time.monotonic()
        if self._notices.end == math.inf:
            return
        path = _notice_file(self._folder, self._begin.attempt)
        if not path.exists():
            try:
                process_record.write_end(path, self._notices.end - moment)
            except OSError as error:  # a full disk: SIGTERM is sent nevertheless
                print(f"the notice cannot be written: {error}", file=sys.stderr, flush=True)
        if moment >= self._notices.due:
            self._end_command()

    def _end_command(self) -> None:
        if not self._ending.is_set():
            self._sigterm_at = time.monotonic()
            self._last_moment = min(self._notices.end, self._sigterm_at + NOTICE_SECONDS)
            self._ending.set()

    def _declared(self) -> JobSpec:
        return JobSpec.from_dict(checks.parsed_object((self._folder / layout.JOB).read_bytes()))

    # Before the command

    def _prepare(self) -> Mapping[str, str]:
        """Create the working directory of the command, and return its environment.

        If this attempt began before, in a process that was killed, the directory stays as it is.
        """
        ready = self._folder / f"prepared-{self._begin.attempt}"
        if not ready.exists():
            for old in self._folder.glob("work-*"):
                shutil.rmtree(old)
            self._work.mkdir(mode=0o700)
            include = self._folder / layout.INCLUDE
            if include.is_dir():
                shutil.copytree(include, self._work, symlinks=True, dirs_exist_ok=True)
            if self._spec.cell:
                shutil.copyfile(self._folder / layout.CELL, self._work / layout.CELL)
            if self._kept and self._task.kept:
                # The included files may have a folder of the same name.
                shutil.rmtree(self._kept, ignore_errors=True)
                unpack(self._folder / layout.KEPT / layout.archive(self._task.kept), self._kept)
            elif self._kept:
                self._kept.mkdir(parents=True, exist_ok=True, mode=0o700)
            ready.touch()
        if self._task.rank and self._task.kept:
            self._since = ready.stat().st_mtime_ns
        (self._folder / layout.KEPT).mkdir(exist_ok=True, mode=0o700)
        self._number = max([self._task.kept, self._task.packed, *self._archives()])
        packages = RunFolder(self._folder)
        provide_packages(packages)
        gpu_use.insist(packages.packages)
        return self._environment(packages.packages)

    @property
    def _kept(self) -> Path | None:
        if self._spec.keep:
            return self._work / self._spec.keep
        return None

    def _environment(self, packages: Path) -> dict[str, str]:
        """Return the command's environment: the agent's, and variables of its rank for PyTorch."""
        begin = self._begin
        task = self._task
        inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
        here = str(Path(sys.executable).parent)
        found = {
            **inherited,
            "PATH": f"{here}:{inherited.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "RANK": str(task.rank),
            "WORLD_SIZE": str(len(task.addresses)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": task.addresses[0],
            "MASTER_PORT": str(MASTER_PORT),
            "TRANSIENT_ADDRESSES": ",".join(task.addresses),
            "TRANSIENT_JOB": begin.work,
            "TRANSIENT_ATTEMPT": str(begin.attempt),
            "TRANSIENT_KEEP": str(self._kept or ""),
            "TRANSIENT_NOTICE": str(_notice_file(self._folder, begin.attempt)),
        }
        if packages.exists():
            found["PYTHONPATH"] = sysconfig.get_path("purelib", vars={"base": str(packages)})
            found["PATH"] = f"{packages / 'bin'}:{found['PATH']}"
        return {**found, **self._spec.environment, process_record.MARK: str(self._folder)}

    async def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        self._output = Output(
            self._folder / layout.OUTPUT / layout.output(self._begin.attempt, self._task.rank)
        )
        if self._kept:
            self._packed = {}
            if self._task.kept and not self._task.rank:  # what it begins with is packed already
                self._packed = await asyncio.to_thread(signature, self._kept)
        process = self._spawn(environment)  # in this thread: the process ends with it
        self._processes.command = process.pid
        about = self._begin
        started = JobStarted(
            job=about.work, attempt=about.attempt, rank=self._task.rank, kept=self._task.kept
        )
        self._lines.write(started.kind, line_fields(started))
        return process

    def _spawn(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", self._spec.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._work,
            env=environment,
            start_new_session=True,
            preexec_fn=in_child(),
        )

    # While the command runs

    async def _supervise(self, process: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        ended = asyncio.create_task(_readable(os.pidfd_open(process.pid)))
        pump = asyncio.create_task(self._pump(process))
        duties = [
            asyncio.create_task(duty)
            for duty in (
                self._pack_regularly(),
                self._watch_memory(),
                gpu_use.watch(self._report_unused_gpu),
            )
        ]
        leaving = asyncio.create_task(self._ending.wait())
        await asyncio.wait([ended, leaving], return_when=asyncio.FIRST_COMPLETED)
        for task in (*duties, leaving):
            task.cancel()
        await asyncio.gather(*duties, return_exceptions=True)
        noticed = self._ending.is_set() and not ended.done()
        if noticed:
            await self._leave()
        await asyncio.to_thread(self._processes.kill)
        await ended
        code = process.wait()
        await asyncio.wait([pump], timeout=_CLOSE_SECONDS)
        pump.cancel()
        await self._pack(finished=code == 0 and not noticed)
        self._output.close()
        self._exited(
            code, time.monotonic() - began, self._reason, self._output.tail(_TAIL), noticed=noticed
        )

    async def _leave(self) -> None:
        """Send SIGTERM and wait for the end; pack in any case while the VM exists."""
        self._processes.send(signal.SIGTERM)
        self._processes.send(signal.SIGCONT)
        last = self._last_moment - (NOTICE_SECONDS - LAST_SECONDS)
        grace = (last - self._sigterm_at) * GRACE_SECONDS / LAST_SECONDS
        if not await self._gone_by(self._sigterm_at + grace):
            await self._pack()
            await self._gone_by(last)

    async def _gone_by(self, moment: float) -> bool:
        while time.monotonic() < moment:
            if not await asyncio.to_thread(self._processes.members):
                return True
            self._processes.reap()
            await asyncio.sleep(0.1)
        return False

    async def _pump(self, process: subprocess.Popen[bytes]) -> None:
        """Copy output until no process can write any more.

        Children of the command may write after its end.
        """
        assert process.stdout
        handle = process.stdout.fileno()
        while True:
            await _readable(handle, keep=True)
            block = os.read(handle, 1 << 16)
            if not block:
                return
            self._output.write(block)

    def _report_unused_gpu(self, card: gpu_use.Card, seconds: float) -> None:
        begin = self._begin
        unused = JobGpuUnused(
            job=begin.work,
            attempt=begin.attempt,
            rank=self._task.rank,
            gpu=card.name,
            seconds=round(seconds, 1),
        )
        self._lines.write(unused.kind, line_fields(unused))

    async def _pack_regularly(self) -> None:
        while self._kept and not self._task.rank:
            await asyncio.sleep(self._spec.keep_seconds)
            await asyncio.shield(self._pack())

    async def _pack(self, *, finished: bool = False) -> None:
        """Pack the folder that is kept if anything in it is new; report once why it cannot be.

        If the command has `finished`, files of other ranks are added to those of rank 0 and replace
        none.
        """
        if self._kept is None:
            return
        adds_only = finished and self._task.rank > 0
        async with self._packing:
            try:
                why = await asyncio.to_thread(self._pack_changes, self._kept, adds_only)
            except ValueError as error:
                why = str(error)
            except OSError as error:
                why = f"it cannot be packed: {reason_of(error)}"
            if why != self._unkept:
                self._unkept = why
                unkept = JobUnkept(job=self._begin.work, attempt=self._begin.attempt, reason=why)
                self._lines.write(unkept.kind, line_fields(unkept))

    def _pack_changes(self, folder: Path, adds_only: bool) -> str:
        """Return what was left out, a clause. Raises ValueError or OSError if all of it was."""
        if folder.is_symlink():
            raise ValueError("it was replaced by a link")
        seen = signature(folder, self._since)
        if seen == self._packed or (not seen and not self._packed):
            return self._unkept
        kept = self._folder / layout.KEPT
        number = self._number + 1
        try:
            packed = pack(folder, kept / layout.archive(number), self._since)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self._drop_archives(self._number - 1):
                raise
            # Older archives have made room: a newer one follows them.
            packed = pack(folder, kept / layout.archive(number), self._since)
        self._number = number
        self._packed = seen
        saved = 0.0
        if not adds_only:
            arrived = process_record.requested_at(self._folder)
            saved = last_change(folder, self._since) + _clock_behind(self._task, arrived)
        event = JobPacked(
            job=self._begin.work,
            attempt=self._begin.attempt,
            number=number,
            files=packed.files,
            bytes=packed.bytes,
            digest=packed.digest,
            saved=max(saved, 0.0),
        )
        self._lines.write(event.kind, line_fields(event))
        self._drop_archives(number - _ARCHIVES)
        if not packed.left_out:
            return ""
        first, *others = packed.left_out
        more = f" and {len(others)} more" if others else ""
        return f"not all of it is kept: {first}{more}"

    def _archives(self) -> list[int]:
        """Return the numbers of the archives on this VM."""
        paths = (self._folder / layout.KEPT).glob("*.tar")
        return [int(path.stem) for path in paths if path.stem.isdecimal()]

    def _drop_archives(self, until: int) -> bool:
        """Delete the archives up to that number, and return whether there were any."""
        old = [number for number in self._archives() if number <= until]
        for number in old:
            (self._folder / layout.KEPT / layout.archive(number)).unlink(missing_ok=True)
        return bool(old)

    async def _watch_memory(self) -> None:
        """Kill the command if it exceeds its memory limit, or the VM is out of memory."""
        total, _ = machine_memory()
        most = self._spec.memory_bytes or total
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            used = await asyncio.to_thread(self._processes.memory, most)
            _, free = machine_memory()
            if used > most or (free < _FREE_SHARE * total and used > _BLAMED_SHARE * total):
                limit = f"this VM has {_gb(total)}"
                if self._spec.memory_bytes:
                    limit = f"its limit is {_gb(most)} (--memory)"
                self._reason = f"it needs more memory than there is: it used {_gb(used)}, {limit}"
                await asyncio.to_thread(self._processes.kill)
                return

    # After the command

    def _exited(
        self, code: int | None, seconds: float, reason: str, tail: str, *, noticed: bool = False
    ) -> None:
        about = self._begin
        exited = JobExited(
            job=about.work,
            attempt=about.attempt,
            rank=self._task.rank,
            code=code,
            seconds=seconds,
            noticed=noticed,
            preempted=self._notices.own_end < math.inf,
            reason=reason,
            tail=tail,
        )
        self._lines.write(exited.kind, line_fields(exited))
        while self._lines.waiting:  # a full disk: the controller would never learn of the end
            time.sleep(_LOOK_SECONDS)
            self._lines.flush()
        process_record.mark_ended(self._folder, about.attempt)


def _notice_file(folder: Path, attempt: int) -> Path:
    """Return the file in which the command reads when a VM of its job ends."""
    return folder / f"notice-{attempt}"


def _clock_behind(task: JobTask, at: float) -> float:
    """Return the seconds by which the clock of this VM is behind the controller's.

    `at` is when the task arrived, by this VM's clock. A small difference may be a delay on its way,
    and counts as 0.
    """
    behind = task.at - at
    return behind if task.at and abs(behind) > _RIGHT_SECONDS else 0.0


async def _readable(handle: int, *, keep: bool = False) -> None:
    """Wait until a file is readable, as that of an ended process is; then close it."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(handle, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(handle)
        if not keep:
            os.close(handle)


def _gb(count: int) -> str:
    return f"{count / 2**30:.1f} GB"


def main() -> None:
    """Run the requested attempt of a job; a second process for it ends immediately."""
    parser = argparse.ArgumentParser(description="Run a job's command; started by the agent.")
    parser.add_argument("--folder", type=Path, required=True)
    folder: Path = parser.parse_args().folder.absolute()
    begin = process_record.claim_requested(folder)
    if begin is None:
        return
    asyncio.run(Runner(folder, begin).run())
