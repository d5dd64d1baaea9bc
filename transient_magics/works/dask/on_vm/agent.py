"""The parts that a VM has in Dask clusters: started, watched, adopted, and begun again where a worker's process ends.

A worker that crashes (a signal, its memory, a code) is begun again, and what became of the one before is told to the
scheduler by its successor: that alone makes a fault of it. After the notice of a preemption nothing is begun again and
nothing is a fault. A scheduler is never begun again: what it knew is gone with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....errors import TrainingError
from ....protocol import checks, layout
from ....protocol.agent_commands import BeginDask
from ....protocol.dask.spec import DaskSpec
from ....protocol.vm_events import DaskCrashed, DaskGpuUnused, told
from ....runtime import gpu_use, process_record
from ....runtime.agent.supervise import until_it_ends
from ....runtime.folder import Lines
from ....runtime.role import RUNTIME
from . import record, said
from .memory import TERMINATE_SHARE, limit, resident

DRIVER = "transient_magics.works.bags.driver"
"""The program of a scheduler with a bag's driver, which is above this floor."""
_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
_MOST_STARTS = 100
"""In a row, of a worker that never lasts: by then more than ten minutes have passed."""
_LASTING, _LOOK_SECONDS, _END_SECONDS = 60.0, 0.5, 5.0
_LOG, _TAIL, _MOST_SAID = "process.log", 4000, 400


class AgentDask:
    """The parts below an agent's root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._preempted = False

    def adopt(self) -> None:
        """Go on with those of an agent before."""
        for folder, begin in record.all_wanted(self._root):
            self._watch(folder, begin)

    def notice(self) -> None:
        """The VM will be taken: nothing is begun again. Its worker knows by itself, also where there is no agent."""
        self._preempted = True

    async def begin(self, begin: BeginDask) -> None:
        """Be this part. Raises TrainingError where its files are not here, or it was begun and has ended for good."""
        folder = self._root / layout.DASKS / begin.dask
        if not (folder / layout.DASK).is_file():
            raise TrainingError(f"{layout.DASK} of {begin.dask} has not been put here yet")
        if (folder / "ended").exists():
            return
        if record.wanted(folder) is None:
            record.want(folder, begin)
        self._watch(folder, begin)

    def knows(self, dask: str) -> bool:
        """Whether it was begun here."""
        return (self._root / layout.DASKS / dask / "wanted.json").exists()

    async def end(self, dask: str) -> None:
        """End this part, and all that its tasks have started, and have its keys gone."""
        folder = self._root / layout.DASKS / dask
        if task := self._watched.pop(dask, None):
            task.cancel()
        if not folder.is_dir():
            return
        (folder / "ended").touch()
        record.want(folder, None)
        if found := record.runner(folder):
            for number in (signal.SIGTERM, signal.SIGCONT):
                with suppress(ProcessLookupError):
                    os.kill(found[0], number)
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await until_it_ends(found[0], found[1])
            except TimeoutError:
                with suppress(ProcessLookupError):
                    os.kill(found[0], signal.SIGKILL)
        await asyncio.to_thread(record.kill_marked, folder)
        for name in (layout.TLS_CA, layout.TLS_CERTIFICATE, layout.TLS_KEY):
            (folder / name).unlink(missing_ok=True)

    async def end_workers(self, but: str = "") -> None:
        """End what works here for others: nobody may have been left to say that it is over. A scheduler stays."""
        for _, begin in list(record.all_wanted(self._root)):
            if begin.part == "worker" and begin.dask != but:
                await self.end(begin.dask)

    def let_go(self) -> None:
        """Stop watching; a successor will."""
        for task in self._watched.values():
            task.cancel()

    def _watch(self, folder: Path, begin: BeginDask) -> None:
        known = self._watched.get(begin.dask)
        if known is None or known.done():
            self._watched[begin.dask] = asyncio.create_task(_Part(folder, begin, self).keep())

    @property
    def preempted(self) -> bool:
        """Whether the VM is under notice."""
        return self._preempted


class _Part:
    """One part, for as long as it is wanted."""

    def __init__(self, folder: Path, begin: BeginDask, agent: AgentDask) -> None:
        self._folder, self._begin, self._agent = folder, begin, agent
        self._root = folder.parent.parent
        self._lines = Lines(folder / layout.DASK_EVENTS)
        self._spec = DaskSpec.from_dict(checks.parsed_object((folder / layout.DASK).read_bytes()))
        self._crashed: list[dict[str, Any]] = []
        self._unable = False

    async def keep(self) -> None:
        """Until it is not wanted any more, or cannot be."""
        soon = 0
        for _ in range(_MOST_STARTS):
            began = time.monotonic()
            how = await self._once()
            if self._agent.preempted:
                return
            if how:
                crashed = DaskCrashed(dask=self._begin.dask, vm=self._begin.vm, reason=how)
                self._lines.write(crashed.kind, told(crashed))
            if self._begin.part == "scheduler":  # of a bag, the controller has another one begin
                break
            soon = 0 if time.monotonic() - began > _LASTING else soon + 1
            await asyncio.sleep(_PAUSES[min(soon, len(_PAUSES) - 1)])
        (self._folder / "ended").touch()
        record.want(self._folder, None)

    async def _once(self) -> str:
        """Have its process, and wait for its end. How it ended, a clause; empty: in an orderly way."""
        process = None
        found = record.runner(self._folder)
        if found is None:
            await asyncio.to_thread(record.kill_marked, self._folder)
            try:
                process = self._spawn()
            except OSError as error:
                return f"it could not be started: {error}"
            pid, started = process.pid, process_record.start_time(process.pid)
        else:
            pid, started, _ = found
        watching = asyncio.create_task(self._keep_bounds(pid))
        gpu = asyncio.create_task(self._watch_gpu())
        await until_it_ends(pid, started)
        watching.cancel()
        gpu.cancel()
        why = (await asyncio.gather(watching, return_exceptions=True))[0]
        code = process.wait() if process else None
        address = record.address(self._folder, pid)
        if address:  # so the scheduler has heard of those before
            self._crashed = []
        # A task may end the process with code 0, too (`os._exit`): an orderly end is noted by the process itself.
        if record.has_ended_well(self._folder, pid) or (code == 0 and not address):
            return ""
        how = why if isinstance(why, str) and why else _said(code)
        if address:
            self._crashed = [{"worker": address, "process": pid, "cause": how}]
        elif self._begin.part == "worker":  # it never took part, and is not told of again and again
            said = f" ({_last_words(self._folder / _LOG)})" if code and code > 0 else ""
            how, self._unable = "" if self._unable else f"it does not come up: {how}{said}", True
        return how

    async def _watch_gpu(self) -> None:
        """Report that no task uses the GPU of a worker's VM."""

        def report(card: gpu_use.Card, seconds: float) -> None:
            begin = self._begin
            unused = DaskGpuUnused(dask=begin.dask, vm=begin.vm, gpu=card.name, seconds=round(seconds, 1))
            self._lines.write(unused.kind, told(unused))

        if self._begin.part == "worker":
            await gpu_use.watch(report)

    async def _keep_bounds(self, pid: int) -> str:
        """Kill it where it has more memory than it may have, or a job in it more time, and return why.

        Dask itself spills, then pauses, long before its memory is full.

        And keep short what the jobs of a bag print.
        """
        most = TERMINATE_SHARE * limit(self._spec)
        while self._begin.part == "worker":
            if (has := resident(pid)) > most:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                return f"memory: it had {has / 2**30:.1f} GB and may have {limit(self._spec) / 2**30:.1f} GB"
            if record.is_over_time(self._folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                return "time: a job took longer than it may"
            with suppress(OSError):
                said.shorten(self._folder)
            await asyncio.sleep(_LOOK_SECONDS)
        return ""

    def _spawn(self) -> subprocess.Popen[bytes]:
        record.clear_time_limit(self._folder)
        environment = {**os.environ, record.MARK: str(self._folder), "PYTHONHASHSEED": "0"}
        module = f"{RUNTIME}.dask"
        if self._begin.code:  # more than VMs have otherwise
            module = DRIVER if self._begin.part == "scheduler" else module
            environment["PYTHONPATH"] = str(self._root / "code" / self._begin.code)
        with open(self._folder / _LOG, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, "--folder", str(self._folder),
                 "--crashed", json.dumps(self._crashed)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self._folder,
                env=environment,
            )  # fmt: skip


def _last_words(log: Path) -> str:
    """The last line that the process wrote, or a part of it."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it says nothing")
    return "".join(each for each in last if each.isprintable())[:_MOST_SAID]


def _said(code: int | None) -> str:
    if code is None:
        return "nobody knows how it ended"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
