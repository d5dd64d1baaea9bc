"""The parts that a VM has in Dask clusters: started, watched, adopted, and begun again where a
worker's process ends.

A worker that crashes (a signal, its memory, a code) is begun again, and what became of the one
before is told to the scheduler by its successor: that alone makes a fault of it. After the notice
of a preemption nothing is begun again and nothing is a fault. A scheduler is never begun again:
what it knew is gone with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ....protocol import checks, layout
from ....protocol.agent_commands import Begin
from ....protocol.vm_events import told
from ....runtime import gpu_use, process_record
from ....runtime.folder import Lines
from ....runtime.parts import LOG, Ended, Part, Restarts
from ..events import DaskCrashed, DaskGpuUnused
from ..spec import DaskSpec
from . import record
from .record import TERMINATE_SHARE, memory_limit
from .task import DaskTask

DRIVER = "transient_magics.works.bags.driver"
"""The program of a scheduler with a bag's driver, which only the whole package has."""
_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
_MOST_STARTS = 100
"""In a row, of a worker that never lasts: by then more than ten minutes have passed."""
_LASTING = 60.0
_LOOK_SECONDS = 0.5
_TAIL = 4000
_MOST_SAID = 400


class DaskPart(Part):
    """The process of a scheduler or a worker."""

    end_seconds = 5.0
    restarts_under_notice = False

    def __init__(self, folder: Path, begin: Begin) -> None:
        super().__init__(folder, begin)
        self.task = DaskTask.from_dict(begin.task)
        self._lines = Lines(folder / layout.DASK_EVENTS)
        self._crashed: list[dict[str, Any]] = []
        """The workers before this one of which the scheduler has not been told."""
        self._unable = False
        """Whether it was reported that a worker does not come up."""

    @property
    def restarts(self) -> Restarts:
        """The pauses between starts of a worker."""
        return Restarts(_PAUSES, _MOST_STARTS, _LASTING)

    @property
    def exclusive(self) -> bool:
        """Whether it is a worker: a scheduler is beside a parameter server."""
        return self.task.part == "worker"

    @cached_property
    def _spec(self) -> DaskSpec:
        return DaskSpec.from_dict(checks.parsed_object((self.folder / layout.DASK).read_bytes()))

    def program(self) -> tuple[str, Sequence[str]]:
        """Return the module of the part, and what became of the workers before."""
        record.clear_time_limit(self.folder)
        drives = bool(self.task.code) and self.task.part == "scheduler"
        if drives:
            module = DRIVER
        else:
            module = __package__ or ""
        return module, ("--crashed", json.dumps(self._crashed))

    def environment(self) -> Mapping[str, str]:
        """Return the mark by which its processes are found, and for a bag the whole package's code."""
        found = {process_record.MARK: str(self.folder), "PYTHONHASHSEED": "0"}
        if self.task.code:
            found["PYTHONPATH"] = str(self.folder.parent.parent / "code" / self.task.code)
        return found

    async def watch(self, pid: int) -> str:
        """Keep a worker within its bounds, and report that no task uses the GPU of its VM."""
        if self.task.part != "worker":
            return ""
        gpu = asyncio.create_task(gpu_use.watch(self._report_unused_gpu))
        try:
            return await self._keep_bounds(pid)
        finally:
            gpu.cancel()

    def ended(self, how: Ended) -> bool:
        """Report a crash. A scheduler is never started again: what it knew is gone, and a bag
        begins another one.
        """
        if reason := self._crash(how):
            crashed = DaskCrashed(dask=self.begin.work, vm=self.task.vm, reason=reason)
            self._lines.write(crashed.kind, told(crashed))
        return self.task.part == "worker"

    def gave_up(self) -> None:
        """Do nothing: each crash is reported."""

    @staticmethod
    def clean(folder: Path) -> None:
        """Delete the keys."""
        for name in (layout.TLS_CA, layout.TLS_CERTIFICATE, layout.TLS_KEY):
            (folder / name).unlink(missing_ok=True)

    def _crash(self, how: Ended) -> str:
        """Return how the process crashed, a clause; empty where it ended in an orderly way."""
        if not how.pid:
            return f"it could not be started: {how.reason}"
        address = record.read_address(self.folder, how.pid)
        if address:  # so the scheduler has heard of those before
            self._crashed = []
        # A task may end the process with code 0, too (`os._exit`): an orderly end is noted by the
        # process itself.
        if record.has_ended_well(self.folder, how.pid) or (how.code == 0 and not address):
            return ""
        reason = how.reason or _said(how.code)
        if address:
            self._crashed = [{"worker": address, "process": how.pid, "cause": reason}]
        elif self.task.part == "worker":  # it never took part, which is reported once
            if how.code and how.code > 0:
                words = f" ({_last_words(self.folder / LOG)})"
            else:
                words = ""
            if self._unable:
                reason = ""
            else:
                reason = f"it does not come up: {reason}{words}"
            self._unable = True
        return reason

    def _report_unused_gpu(self, card: gpu_use.Card, seconds: float) -> None:
        unused = DaskGpuUnused(
            dask=self.begin.work, vm=self.task.vm, gpu=card.name, seconds=round(seconds, 1)
        )
        self._lines.write(unused.kind, told(unused))

    async def _keep_bounds(self, pid: int) -> str:
        """Kill a worker that has more memory than it may have, or a job in it more time, and return
        why.

        Dask itself spills, then pauses, long before its memory is full. What the jobs of a bag
        print is kept short.
        """
        most = TERMINATE_SHARE * memory_limit(self._spec)
        while True:
            if (has := process_record.resident_bytes(pid)) > most:
                _kill(pid)
                return f"memory: it had {has / 2**30:.1f} GB and may have {memory_limit(self._spec) / 2**30:.1f} GB"
            if record.is_over_time(self.folder):
                _kill(pid)
                return "time: a job took longer than it may"
            with suppress(OSError):
                record.shorten_output(self.folder)
            await asyncio.sleep(_LOOK_SECONDS)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


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
    if code < 0:
        return f"signal {-code}"
    return f"exit code {code}"


PART = DaskPart
