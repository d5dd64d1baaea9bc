"""The process that looks after one attempt of a job on its VM: prepare, start, watch, pack, end,
tell.

It watches for the preemption notice itself, so that a job is told in time while there is no agent.
`notice` says when the command receives SIGTERM for it; by SIGTERM to this process it receives one
immediately. It then has `GRACE_SECONDS`, or its share of what the notice leaves; then the folder is
packed as it is, and once more if it ends before `LAST_SECONDS` are over. All that the command has
started ends with it.

Rank 0 packs its folder now and then, and at its end. The other ranks pack at their end what changed
in theirs since the attempt began: what the rank that saved last wrote outlives the attempt,
whichever rank that is.
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

from ....errors import TrainingError
from ....protocol import checks, layout
from ....protocol.agent_commands import Begin
from ....protocol.job import NOTICE_SECONDS, JobSpec
from ....protocol.vm_events import JobExited, JobGpuUnused, JobPacked, JobStarted, JobUnkept, told
from ....runtime import gpu_use, process_record
from ....runtime.files.archive import last_change, pack, signature, unpack
from ....runtime.folder import Lines, RunFolder
from ....runtime.metadata import notice_seconds, watch_preemption
from ....runtime.role import separate_children
from ....runtime.training.usercode import provide_packages
from .command import Family, Output, adopt_orphans, in_child, machine_memory
from .task import JobTask

GRACE_SECONDS = 15.0
LAST_SECONDS = 24.0
"""After SIGTERM: until the folder is packed in any case, and until all of the job has ended, of
`NOTICE_SECONDS`. Where less of the notice is left, the same share of it.
"""
MASTER_PORT = 29_500
_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
_NOTICE_LOOK_SECONDS = 0.1
_FREE_SHARE = 0.02
_BLAMED_SHARE = 0.5
"""A VM with less memory left than this share of its own ends a job that has more than that one."""
_RIGHT_SECONDS = 30.0
_TAIL = 2000
_ARCHIVES = 3
_OURS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME")
"""Of the agent's environment: what is for its own Python."""

TOGETHER_SECONDS = 2.0
"""How much longer the rank whose VM leaves waits for the warning that the others receive, too."""
ON_ITS_WAY_SECONDS = 0.5
"""Until a warning has arrived on all VMs: they act on it after that time."""


# When a command receives SIGTERM for a preemption: pure.
#
# A rank has two sources: the notice of its own VM, and the controller's warning that a VM of the job leaves. Both
# give the moment at which a VM ends. The command receives SIGTERM `at_notice` seconds before that, on all VMs at the
# same moment: the first rank to end breaks the collectives of the others, and they could not save any more.


@dataclass
class Notices:
    """What one rank has received, in seconds of its monotonic clock (infinite: nothing).

    `own_end`: the end of its VM, by its own notice. `warned_end`: the end of a VM of the job, by
    the controller's warning. `several`: the job has several ranks.
    """

    at_notice: float
    several: bool
    own_end: float = math.inf
    warned_end: float = math.inf

    @property
    def end(self) -> float:
        """When a VM of the job ends."""
        return min(self.own_end, self.warned_end)

    @property
    def due(self) -> float:
        """When the command receives SIGTERM."""
        alone = self.own_end - self.at_notice
        if not self.several:
            return alone
        if self.warned_end < math.inf:
            arrived = self.warned_end - NOTICE_SECONDS + ON_ITS_WAY_SECONDS
            return min(max(self.warned_end - self.at_notice, arrived), alone + TOGETHER_SECONDS)
        return max(alone, self.own_end - NOTICE_SECONDS + TOGETHER_SECONDS)


class Runner:
    """One attempt of the job in `folder`, as `begin` says."""

    def __init__(self, folder: Path, begin: Begin) -> None:
        self._folder = folder
        self._begin = begin
        self._task = JobTask.from_dict(begin.task)
        self._lines = Lines(folder / layout.job_events(begin.attempt))
        self._work = folder / f"work-{begin.attempt}"
        self._family = Family(folder)
        self._told = asyncio.Event()
        self._notices = Notices(NOTICE_SECONDS, several=len(self._task.addresses) > 1)
        self._notice_seconds = NOTICE_SECONDS
        self._told_at = 0.0
        self._end = 0.0
        self._why = ""
        self._packing = asyncio.Lock()
        self._packed: object = None
        self._unkept = ""
        self._number = self._task.kept
        self._since = 0
        self._spec: JobSpec
        self._output: Output

    async def run(self) -> None:
        """Live until the job has ended here, and that was told."""
        separate_children()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._tell)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # a VM that shuts down sends it along
        adopt_orphans()
        duties = [
            asyncio.create_task(each)
            for each in (watch_preemption(self._on_notice), self._follow_notices())
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
            await self._see_through(process)
        finally:
            for duty in duties:
                duty.cancel()

    def _on_notice(self) -> None:
        """This VM is taken back. A process that looked after the job before may have written that
        already.
        """
        left = process_record.seconds_left(_notice_file(self._folder, self._begin.attempt))
        self._notices.own_end = time.monotonic() + min(left, self._notice_seconds)
        self._act_on_notices()

    async def _follow_notices(self) -> None:
        """Take the controller's warning about another rank's VM, and do what is due."""
        warned = process_record.warning_file(self._folder, self._begin.attempt)
        while not self._told.is_set():
            if self._notices.several and self._notices.warned_end == math.inf:
                self._notices.warned_end = time.monotonic() + process_record.seconds_left(warned)
            self._act_on_notices()
            until_due = max(self._notices.due - time.monotonic(), 0.0)
            await asyncio.sleep(min(until_due, _NOTICE_LOOK_SECONDS))

    def _act_on_notices(self) -> None:
        """Write down the end that was announced, for the command to read, and tell it to end once
        that is due.
        """
        moment = time.monotonic()
        if self._notices.end == math.inf:
            return
        path = _notice_file(self._folder, self._begin.attempt)
        if not path.exists():
            try:
                process_record.write_end(path, self._notices.end - moment)
            except OSError as error:  # a full disk: SIGTERM comes all the same
                print(f"the notice cannot be written: {error}", file=sys.stderr, flush=True)
        if moment >= self._notices.due:
            self._tell()

    def _tell(self) -> None:
        if not self._told.is_set():
            self._told_at = time.monotonic()
            self._end = min(self._notices.end, self._told_at + NOTICE_SECONDS)
            self._told.set()

    def _declared(self) -> JobSpec:
        return JobSpec.from_dict(checks.parsed_object((self._folder / layout.JOB).read_bytes()))

    # --- before ------------------------------------------------------------------------------------------------------
    def _prepare(self) -> Mapping[str, str]:
        """The folder in which the command runs, as it was left where this attempt began before; and
        its environment.
        """
        ready = self._folder / f"prepared-{self._begin.attempt}"
        if not ready.exists():
            for old in self._folder.glob("work-*"):
                shutil.rmtree(old)
            self._work.mkdir(mode=0o700)
            if (include := self._folder / layout.INCLUDE).is_dir():
                shutil.copytree(include, self._work, symlinks=True, dirs_exist_ok=True)
            if self._spec.cell:
                shutil.copyfile(self._folder / layout.CELL, self._work / layout.CELL)
            if self._kept and self._task.kept:
                shutil.rmtree(
                    self._kept, ignore_errors=True
                )  # of the same name among what was sent along
                unpack(self._folder / layout.KEPT / layout.archive(self._task.kept), self._kept)
            elif self._kept:
                self._kept.mkdir(parents=True, exist_ok=True, mode=0o700)
            ready.touch()
        if self._task.rank and self._task.kept:
            self._since = ready.stat().st_mtime_ns
        (self._folder / layout.KEPT).mkdir(exist_ok=True, mode=0o700)
        there = [
            int(each.stem)
            for each in (self._folder / layout.KEPT).glob("*.tar")
            if each.stem.isdecimal()
        ]
        self._number = max([self._task.kept, self._task.packed, *there])
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
        """The agent's, with what a program on several VMs wants to know, under the names that
        PyTorch reads.
        """
        begin = self._begin
        task = self._task
        given = {name: value for name, value in os.environ.items() if name not in _OURS}
        here = str(Path(sys.executable).parent)
        found = {
            **given,
            "PATH": f"{here}:{given.get('PATH', os.defpath)}",
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
            known = self._task.kept and not self._task.rank
            if known:
                self._packed = await asyncio.to_thread(signature, self._kept)
            else:
                self._packed = {}
        process = self._spawn(environment)  # here: it is to end with this thread
        self._family.command = process.pid
        about = self._begin
        started = JobStarted(
            job=about.work, attempt=about.attempt, rank=self._task.rank, kept=self._task.kept
        )
        self._lines.write(started.kind, told(started))
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

    # --- meanwhile ---------------------------------------------------------------------------------------------------
    async def _see_through(self, process: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        ended = asyncio.create_task(_readable(os.pidfd_open(process.pid)))
        pump = asyncio.create_task(self._pump(process))
        duties = [
            asyncio.create_task(duty)
            for duty in (
                self._pack_now_and_then(),
                self._watch_memory(),
                gpu_use.watch(self._report_unused_gpu),
            )
        ]
        leaving = asyncio.create_task(self._told.wait())
        await asyncio.wait([ended, leaving], return_when=asyncio.FIRST_COMPLETED)
        for task in (*duties, leaving):
            task.cancel()
        await asyncio.gather(*duties, return_exceptions=True)
        noticed = self._told.is_set() and not ended.done()
        if noticed:
            await self._leave()
        await asyncio.to_thread(self._family.kill)
        await ended
        code = process.wait()
        await asyncio.wait([pump], timeout=_CLOSE_SECONDS)
        pump.cancel()
        await self._pack(finished=code == 0 and not noticed)
        self._output.close()
        self._exited(
            code, time.monotonic() - began, self._why, self._output.tail(_TAIL), noticed=noticed
        )

    async def _leave(self) -> None:
        """Have it end: told once, packed in any case before its VM may be gone."""
        self._family.tell(signal.SIGTERM)
        self._family.tell(signal.SIGCONT)
        last = self._end - (NOTICE_SECONDS - LAST_SECONDS)
        if not await self._gone_by(
            self._told_at + (last - self._told_at) * GRACE_SECONDS / LAST_SECONDS
        ):
            await self._pack()
            await self._gone_by(last)

    async def _gone_by(self, moment: float) -> bool:
        while time.monotonic() < moment:
            if not await asyncio.to_thread(self._family.members):
                return True
            self._family.reap()
            await asyncio.sleep(0.1)
        return False

    async def _pump(self, process: subprocess.Popen[bytes]) -> None:
        """Until nobody can write any more: that is later than the end of the command, where its
        children go on.
        """
        assert process.stdout
        handle = process.stdout.fileno()
        while True:
            await _readable(handle, keep=True)
            if not (block := os.read(handle, 1 << 16)):
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
        self._lines.write(unused.kind, told(unused))

    async def _pack_now_and_then(self) -> None:
        while self._kept and not self._task.rank:
            await asyncio.sleep(self._spec.keep_seconds)
            await asyncio.shield(self._pack())

    async def _pack(self, *, finished: bool = False) -> None:
        """Pack the folder that is kept, if anything in it is new; what stands in the way is told
        once.

        Where the command has `finished`, what other ranks wrote is laid beside the files of rank 0,
        and replaces none.
        """
        if self._kept is None:
            return
        aside = finished and self._task.rank > 0
        async with self._packing:
            try:
                why = await asyncio.to_thread(self._packed_anew, self._kept, aside)
            except ValueError as error:
                why = str(error)
            except OSError as error:
                why = f"it cannot be packed: {error.strerror or error}"
            if why != self._unkept:
                self._unkept = why
                unkept = JobUnkept(job=self._begin.work, attempt=self._begin.attempt, reason=why)
                self._lines.write(unkept.kind, told(unkept))

    def _packed_anew(self, folder: Path, aside: bool) -> str:
        """What of it was left out, a clause. Raises ValueError or OSError where all of it was."""
        if folder.is_symlink():
            raise ValueError("it is a link now")
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
            packed = pack(
                folder, kept / layout.archive(number), self._since
            )  # in the room of those that a newer one follows
        self._number = number
        self._packed = seen
        saved = 0.0
        if not aside:
            arrived = process_record.requested_at(self._folder)
            saved = last_change(folder, self._since) + _clock_behind(self._task, arrived)
        told_of = JobPacked(
            job=self._begin.work,
            attempt=self._begin.attempt,
            number=number,
            files=packed.files,
            bytes=packed.bytes,
            digest=packed.digest,
            saved=max(saved, 0.0),
        )
        self._lines.write(told_of.kind, told(told_of))
        self._drop_archives(number - _ARCHIVES)
        if not packed.left_out:
            return ""
        first, *others = packed.left_out
        return f"not all of it is kept: {first}" + (f" and {len(others)} more" if others else "")

    def _drop_archives(self, until: int) -> bool:
        """Delete the archives up to that number; whether there were any."""
        found = (self._folder / layout.KEPT).glob("*.tar")
        old = [each for each in found if each.stem.isdecimal() and int(each.stem) <= until]
        for each in old:
            each.unlink(missing_ok=True)
        return bool(old)

    async def _watch_memory(self) -> None:
        """End it where it needs more memory than it may have, or than there is."""
        total, _ = machine_memory()
        most = self._spec.memory_bytes or total
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            used = await asyncio.to_thread(self._family.memory, most)
            _, free = machine_memory()
            if used > most or (free < _FREE_SHARE * total and used > _BLAMED_SHARE * total):
                if self._spec.memory_bytes:
                    has = f"it may have {_gb(most)} (--memory)"
                else:
                    has = f"this VM has {_gb(total)}"
                self._why = f"it needs more memory than there is: it had {_gb(used)}, and {has}"
                await asyncio.to_thread(self._family.kill)
                return

    # --- at the end --------------------------------------------------------------------------------------------------
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
        self._lines.write(exited.kind, told(exited))
        while self._lines.waiting:  # a full disk: nobody would ever hear of the end
            time.sleep(_LOOK_SECONDS)
            self._lines.flush()
        process_record.mark_ended(self._folder, about.attempt)


def _notice_file(folder: Path, attempt: int) -> Path:
    """Return the file in which the command reads when a VM of its job ends."""
    return folder / f"notice-{attempt}"


def _clock_behind(task: JobTask, at: float) -> float:
    """Return the seconds by which the clock of this VM is behind the controller's; 0 where it may
    be right.

    `at` is when the task arrived, by this VM's clock. It may have waited on its way, so only more
    than that counts.
    """
    behind = task.at - at
    return behind if task.at and abs(behind) > _RIGHT_SECONDS else 0.0


async def _readable(handle: int, *, keep: bool = False) -> None:
    """Wait until something can be read there, as it can of a process that has ended; then it is
    closed.
    """
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
    """Look after the attempt that is wanted in the folder; a second process that would ends at
    once.
    """
    parser = argparse.ArgumentParser(description="Looks after a job; started by the agent.")
    parser.add_argument("--folder", type=Path, required=True)
    folder: Path = parser.parse_args().folder.absolute()
    begin = process_record.requested(folder)
    if (
        begin is None
        or process_record.has_ended(folder, begin.attempt)
        or not process_record.claim(folder, begin.attempt)
    ):
        return
    asyncio.run(Runner(folder, begin).run())
