"""The jobs of one VM: what looks after each is started, watched, adopted, and started again where it is killed.

The command itself is no child of the agent but of that process (`runtime.jobs`), so the agent may come and go.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from ....errors import TrainingError
from ....protocol import layout
from ....protocol.agent_commands import BeginJob
from ....protocol.vm_events import JobExited, told
from ....runtime import process_record
from ....runtime.agent.supervise import until_it_ends
from ....runtime.folder import Lines
from ....runtime.role import RUNTIME

_PAUSES = (0.0, 1.0, 5.0)


class AgentJobs:
    """The jobs below an agent's root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._watched: dict[str, asyncio.Task[None]] = {}

    def adopt(self) -> None:
        """Go on with those of an agent before."""
        for folder, begin in process_record.all_wanted(self._root):
            self._watch(folder, begin)

    async def begin(self, begin: BeginJob) -> None:
        """Have this attempt run, and none before it. Raises TrainingError where the job's files are not here."""
        folder = self._root / layout.JOBS / begin.job
        if not (folder / layout.JOB).is_file():
            raise TrainingError(f"{layout.JOB} of {begin.job} has not been put here yet")
        if not begin.addresses:
            raise TrainingError(f"{begin.job} has no VM")
        known = process_record.wanted(folder)
        if known and known.attempt > begin.attempt:
            raise TrainingError(f"attempt {begin.attempt} of {begin.job} is over")
        if process_record.has_exited(folder, begin.attempt):
            return
        if known is None or known.attempt < begin.attempt:
            await self._drop(begin.job, folder)
            process_record.want(folder, begin)
        self._watch(folder, begin)

    def knows(self, begin: BeginJob) -> bool:
        """Whether this attempt was begun here, or has ended already."""
        folder = self._root / layout.JOBS / begin.job
        known = process_record.wanted(folder)
        return known is not None and known.attempt >= begin.attempt

    def end_others(self, job: str = "") -> None:
        """End what runs here but for this job: nobody may have been left to say that it is over."""
        for folder, begin in process_record.all_wanted(self._root):
            if begin.job != job:
                self.end(folder.name, begin.attempt)

    def warn(self, job: str, attempt: int, seconds: float) -> None:
        """Write down for what looks after that attempt that a VM of the job ends in `seconds`. The first one counts."""
        folder = self._root / layout.JOBS / job
        begin = process_record.wanted(folder)
        path = process_record.warning_file(folder, attempt)
        if begin and begin.attempt == attempt and not path.exists():
            process_record.write_end(path, seconds)

    def end(self, job: str, attempt: int) -> None:
        """Have what looks after that attempt end it in an orderly way."""
        found = process_record.runner(self._root / layout.JOBS / job)
        if found and found[2] == attempt:
            with suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGTERM)

    def let_go(self) -> None:
        """Stop watching; a successor will."""
        for task in self._watched.values():
            task.cancel()

    async def _drop(self, job: str, folder: Path) -> None:
        """End what is left of an attempt before."""
        if task := self._watched.pop(job, None):
            task.cancel()
        if found := process_record.runner(folder):
            with suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
            await until_it_ends(found[0], found[1])
        await asyncio.to_thread(process_record.kill_marked, folder)

    def _watch(self, folder: Path, begin: BeginJob) -> None:
        known = self._watched.get(begin.job)
        if known is None or known.done():
            self._watched[begin.job] = asyncio.create_task(self._keep(folder, begin))

    async def _keep(self, folder: Path, begin: BeginJob) -> None:
        """Until the attempt has ended. What was killed is started again: the command then begins in its folder as that
        was left."""
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            process = None
            try:
                if (found := process_record.runner(folder)) is None:
                    await asyncio.to_thread(process_record.kill_marked, folder)
                    process = _spawn(folder)
                    found = process.pid, process_record.start_time(process.pid), begin.attempt
            except OSError as error:
                print(f"{begin.job} could not be started: {error}", file=sys.stderr, flush=True)
                continue
            await until_it_ends(found[0], found[1])
            if process:
                process.wait()
            if process_record.has_exited(folder, begin.attempt):
                return
        await asyncio.to_thread(process_record.kill_marked, folder)
        ended = JobExited(
            job=begin.job, attempt=begin.attempt, rank=begin.rank, code=None,
            reason="what looks after its command on the VM keeps ending",
        )  # fmt: skip
        Lines(folder / layout.job_events(begin.attempt)).write(ended.kind, told(ended))
        process_record.mark_exited(folder, begin.attempt)


def _spawn(folder: Path) -> subprocess.Popen[bytes]:
    with open(folder / "runner.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", f"{RUNTIME}.jobs", "--folder", str(folder)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder,
        )  # fmt: skip
