"""The processes that a VM has for work of any kind but runs: started, watched, adopted, started
again, warned, ended.

What a kind runs on a VM is its `Part` (`runtime/parts.py`). The agent may come and go: the next one
adopts the processes that it finds (`runtime/process_record.py`).
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
from .supervise import until_it_ends


class Processes:
    """The processes of work below an agent's root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._watched: dict[Path, asyncio.Task[None]] = {}
        self._noticed = False

    def adopt(self) -> None:
        """Go on with the processes of an agent before."""
        for folder, begin in process_record.all_wanted(self._root):
            try:
                self._watch(_part(folder, begin))
            except ValueError as error:
                print(f"{folder}: {error}", file=sys.stderr, flush=True)

    def notice(self) -> None:
        """Note that the VM is under notice. The processes watch for that themselves, also where
        there is no agent.
        """
        self._noticed = True

    def knows(self, begin: Begin) -> bool:
        """Return whether this attempt was begun here, or has ended already."""
        known = process_record.wanted(self._folder(begin))
        return known is not None and known.attempt >= begin.attempt

    def is_exclusive(self, begin: Begin) -> bool:
        """Return whether the VM does nothing else while it has this part. Raises ValueError."""
        return _part(self._folder(begin), begin).exclusive

    async def begin(self, begin: Begin) -> None:
        """Have this attempt run, and none before it.

        Raises TrainingError where the work's files are not here, or the attempt is over, and
        ValueError where its task is invalid.
        """
        part = _part(self._folder(begin), begin)
        declaration = KINDS[begin.kind].file
        if not (part.folder / declaration).is_file():
            raise TrainingError(f"{declaration} of {begin.work} has not been put here yet")
        part.check()
        known = process_record.wanted(part.folder)
        if known and known.attempt > begin.attempt:
            raise TrainingError(f"attempt {begin.attempt} of {begin.work} is over")
        if process_record.has_ended(part.folder, begin.attempt):
            return
        if known is None or known.attempt < begin.attempt:
            await self._drop(part.folder)
            process_record.want(part.folder, begin)
        self._watch(part)

    def warn(self, warning: Warn) -> None:
        """Write down for the process of that attempt that another VM of the work ends. The first
        warning counts.
        """
        folder = self._folder(warning)
        begin = process_record.wanted(folder)
        path = process_record.warning_file(folder, warning.attempt)
        if begin and begin.attempt == warning.attempt and not path.exists():
            process_record.write_end(path, warning.seconds)

    async def end(self, end: End) -> None:
        """Have the process of that attempt end in an orderly way, and all that it has started.

        Where the kind bounds that, it has ended when this returns; else it ends in its own time.
        """
        folder = self._folder(end)
        begin = process_record.wanted(folder)
        if begin is None:
            _refuse_later_begin(folder, end)
            return
        if begin.attempt != end.attempt:
            return
        part = _part(folder, begin)
        found = process_record.running(folder)
        if part.end_seconds is None:
            if found and found.attempt == end.attempt:
                _signal(found.pid, signal.SIGTERM)
            return
        if task := self._watched.pop(folder, None):
            task.cancel()
        process_record.mark_ended(folder, end.attempt)
        if found:
            _signal(found.pid, signal.SIGTERM)
            _signal(found.pid, signal.SIGCONT)  # a stopped process does not end by SIGTERM
            try:
                async with asyncio.timeout(part.end_seconds):
                    await until_it_ends(found.pid, found.started)
            except TimeoutError:
                _signal(found.pid, signal.SIGKILL)
        await asyncio.to_thread(process_record.kill_marked, folder)
        part.clean(folder)

    async def end_others(self, kind: str = "", work: str = "") -> None:
        """End what keeps the VM from other work, but for this work.

        The controller that would end it may have lost its connection, or its place.
        """
        for folder, begin in process_record.all_wanted(self._root):
            if (begin.kind, begin.work) != (kind, work) and _part(folder, begin).exclusive:
                await self.end(End(kind=begin.kind, work=begin.work, attempt=begin.attempt))

    def let_go(self) -> None:
        """Stop watching; a successor will."""
        for task in self._watched.values():
            task.cancel()

    def _folder(self, command: Begin | Warn | End) -> Path:
        return self._root / KINDS[command.kind].folder / command.work

    async def _drop(self, folder: Path) -> None:
        """End what is left of an attempt before."""
        if task := self._watched.pop(folder, None):
            task.cancel()
        if found := process_record.running(folder):
            _signal(found.pid, signal.SIGKILL)
            await until_it_ends(found.pid, found.started)
        await asyncio.to_thread(process_record.kill_marked, folder)

    def _watch(self, part: Part) -> None:
        known = self._watched.get(part.folder)
        if known is None or known.done():
            self._watched[part.folder] = asyncio.create_task(self._keep(part))

    async def _keep(self, part: Part) -> None:
        """Have a process of the part, started again where it ends too early, until the attempt has
        ended.
        """
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
            if part.ended(how):
                pause = restarts.pause(time.monotonic() - began)
            else:
                pause = None
            if pause is None:
                break
            await asyncio.sleep(pause)
        await asyncio.to_thread(process_record.kill_marked, part.folder)
        part.gave_up()
        process_record.mark_ended(part.folder, part.begin.attempt)

    async def _run_once(self, part: Part) -> Ended:
        """Have a process, that of an agent before if it lives, and wait for its end. Raises
        OSError.
        """
        process = None
        found = process_record.running(part.folder)
        if found:
            pid = found.pid
            started = found.started
        else:
            await asyncio.to_thread(process_record.kill_marked, part.folder)
            process = _spawn(part)
            pid = process.pid
            started = start_time(process.pid)
        watching = asyncio.create_task(part.watch(pid))
        try:
            await until_it_ends(pid, started)
        finally:
            watching.cancel()
        (reason,) = await asyncio.gather(watching, return_exceptions=True)
        if process:
            code = process.wait()
        else:
            code = None
        return Ended(pid, code, reason if isinstance(reason, str) else "")


def _part(folder: Path, begin: Begin) -> Part:
    """Return this VM's part. Raises ValueError where such work has none, or its task is invalid."""
    module = find(begin.kind, "on_vm.agent")
    if module is None:
        raise ValueError(f"a VM has no process for a {KINDS[begin.kind]}")
    part: Part = module.PART(folder, begin)
    return part


def _refuse_later_begin(folder: Path, end: End) -> None:
    """Mark work as ended whose files are here and which has not begun: a `Begin` may still arrive.

    Nothing is marked for a kind whose process ends in its own time: it reports its end itself.
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
