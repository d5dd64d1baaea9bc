"""The processes that a VM runs for work of any kind but runs.

They are started, watched, adopted, restarted, warned and ended. What a kind runs on a VM is its
`Part` (`runtime/parts.py`). The agent may restart: the next one adopts the processes that run
(`runtime/process_record.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ...errors import TrainingError
from ...kinds import KINDS, find
from ...protocol.agent_commands import Begin, End, Warn
from .. import process_record
from ..parts import LOG, Ended, Part
from ..process_record import start_time
from .supervise import wait_for_end


class Processes:
    """The processes of work below an agent's root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._watched: dict[Path, asyncio.Task[None]] = {}
        self._noticed = False

    def adopt(self) -> None:
        """Adopt the processes that an earlier agent started."""
        for folder, begin in process_record.all_requested(self._root):
            try:
                self._watch(_part(folder, begin))
            except ValueError as error:
                print(f"{folder}: {error}", file=sys.stderr, flush=True)

    def notice(self) -> None:
        """Record that the VM is under notice.

        Processes are not signalled: they watch for the notice, even without an agent.
        """
        self._noticed = True

    def has_begun(self, begin: Begin) -> bool:
        """Return whether this attempt, or a later one, has begun or ended here."""
        request = process_record.requested(self._folder(begin))
        return request is not None and request.attempt >= begin.attempt

    def is_exclusive(self, begin: Begin) -> bool:
        """Return whether the VM runs nothing else while it has this part. Raises ValueError."""
        return _part(self._folder(begin), begin).exclusive

    async def begin(self, begin: Begin) -> None:
        """Run this attempt, and end any earlier one.

        Raises
        ------
        TrainingError
            The work's files are missing, or the attempt is over.
        ValueError
            The task is invalid.
        """
        part = _part(self._folder(begin), begin)
        declaration = KINDS[begin.kind].file
        if not (part.folder / declaration).is_file():
            raise TrainingError(f"{declaration} of {begin.work} has not been copied to this VM yet")
        part.check()
        request = process_record.requested(part.folder)
        if request and request.attempt > begin.attempt:
            raise TrainingError(f"attempt {begin.attempt} of {begin.work} has already ended")
        if process_record.has_ended(part.folder, begin.attempt):
            return
        if request is None or request.attempt < begin.attempt:
            await self._drop(part.folder)
            process_record.request(part.folder, begin)
        self._watch(part)

    def warn(self, warning: Warn) -> None:
        """Record for the process of that attempt when another VM of the work ends.

        The first warning counts.
        """
        folder = self._folder(warning)
        begin = process_record.requested(folder)
        path = process_record.warning_file(folder, warning.attempt)
        if begin and begin.attempt == warning.attempt and not path.exists():
            process_record.write_end(path, warning.seconds)

    async def end(self, end: End) -> None:
        """Ask the process of that attempt to end, and kill what it has started.

        If the kind has a time limit, the process has ended when this returns. Otherwise it ends in
        its own time.
        """
        folder = self._folder(end)
        begin = process_record.requested(folder)
        if begin is None:
            _refuse_later_begin(folder, end)
            return
        if begin.attempt != end.attempt:
            return
        part = _part(folder, begin)
        process = process_record.running(folder)
        if part.end_seconds is None:
            if process and process.attempt == end.attempt:
                _signal(process.pid, signal.SIGTERM)
            return
        if task := self._watched.pop(folder, None):
            task.cancel()
        process_record.mark_ended(folder, end.attempt)
        if process:
            _signal(process.pid, signal.SIGTERM)
            _signal(process.pid, signal.SIGCONT)  # a stopped process does not end by SIGTERM
            try:
                async with asyncio.timeout(part.end_seconds):
                    await wait_for_end(process.pid, process.started)
            except TimeoutError:
                _signal(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process_record.kill_marked, folder)
        part.clean(folder)

    async def end_others(self, kind: str = "", work: str = "") -> None:
        """End all exclusive work except this one.

        The controller that should have ended it may have lost its connection, or be replaced.
        """
        for folder, begin in process_record.all_requested(self._root):
            if (begin.kind, begin.work) != (kind, work) and _part(folder, begin).exclusive:
                await self.end(End(kind=begin.kind, work=begin.work, attempt=begin.attempt))

    def detach(self) -> None:
        """Stop watching; the next agent adopts the processes."""
        for task in self._watched.values():
            task.cancel()

    def _folder(self, command: Begin | Warn | End) -> Path:
        return self._root / KINDS[command.kind].folder / command.work

    async def _drop(self, folder: Path) -> None:
        """Kill what is left of an earlier attempt."""
        if task := self._watched.pop(folder, None):
            task.cancel()
        if process := process_record.running(folder):
            _signal(process.pid, signal.SIGKILL)
            await wait_for_end(process.pid, process.started)
        await asyncio.to_thread(process_record.kill_marked, folder)

    def _watch(self, part: Part) -> None:
        task = self._watched.get(part.folder)
        if task is None or task.done():
            self._watched[part.folder] = asyncio.create_task(self._keep_running(part))

    async def _keep_running(self, part: Part) -> None:
        """Run the process of the part, restarted if it ends too early, until the attempt ends."""
        restarts = part.restarts
        while True:
            began = time.monotonic()
            try:
                how = await self._run_once(part)
            except OSError as error:  # a full disk, or no memory for another process
                how = Ended(reason=str(error))
            if process_record.has_ended(part.folder, part.begin.attempt):
                return
            if self._noticed and not part.restarts_under_notice:
                return
            if not part.ended(how):
                break
            pause = restarts.pause(time.monotonic() - began)
            if pause is None:
                break
            await asyncio.sleep(pause)
        await asyncio.to_thread(process_record.kill_marked, part.folder)
        part.gave_up()
        process_record.mark_ended(part.folder, part.begin.attempt)

    async def _run_once(self, part: Part) -> Ended:
        """Start the process, or adopt the one that runs, and wait for its end. Raises OSError."""
        child = None
        running = process_record.running(part.folder)
        if running:
            pid = running.pid
            started = running.started
        else:
            await asyncio.to_thread(process_record.kill_marked, part.folder)
            child = _spawn(part)
            pid = child.pid
            started = start_time(child.pid)
        watching = asyncio.create_task(part.watch(pid))
        try:
            await wait_for_end(pid, started)
        finally:
            watching.cancel()
        (reason,) = await asyncio.gather(watching, return_exceptions=True)
        code = child.wait() if child else None
        return Ended(pid, code, reason if isinstance(reason, str) else "")


def _part(folder: Path, begin: Begin) -> Part:
    """Return this VM's part. Raises ValueError if the kind has none, or the task is invalid."""
    module = find(begin.kind, "on_vm.agent")
    if module is None:
        raise ValueError(f"a {KINDS[begin.kind]} has no process on VMs")
    part: Part = module.PART(folder, begin)
    return part


def _refuse_later_begin(folder: Path, end: End) -> None:
    """Record the end of work that has not begun: its `Begin` may still arrive, and is refused then.

    Not for a kind whose process ends in its own time, because that reports its end.
    """
    module = find(end.kind, "on_vm.agent")
    if module is None or module.PART.end_seconds is None or not folder.is_dir():
        return
    process_record.mark_ended(folder, end.attempt)
    module.PART.clean(folder)


def _spawn(part: Part) -> subprocess.Popen[bytes]:
    module, arguments = part.program()
    with open(part.folder / LOG, "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, "--folder", str(part.folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=part.folder,
            env={**os.environ, **part.environment()},
        )


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
