"""The processes that an agent runs for Dask clusters: a scheduler or a worker.

A worker that crashes (by a signal, its memory or an exit code) is started again. The new worker
reports to the scheduler how the one before ended; only then does that count as a fault. After a
preemption notice no worker is started again, and nothing is a fault. A scheduler is never started
again, because its state is lost with it.
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
from ....protocol.vm_events import line_fields
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
"""Starts in a row of a worker that does not last. They take more than ten minutes."""
_LASTING = 60.0
_LOOK_SECONDS = 0.5
_TAIL = 4000
_MOST_LINE = 400


class DaskPart(Part):
    """The process of a scheduler or a worker."""

    end_seconds = 5.0
    restarts_under_notice = False

    def __init__(self, folder: Path, begin: Begin) -> None:
        super().__init__(folder, begin)
        self.task = DaskTask.from_dict(begin.task)
        self._lines = Lines(folder / layout.DASK_EVENTS)
        self._crashed: list[dict[str, Any]] = []
        """Earlier workers whose ends have not been reported to the scheduler."""
        self._unable = False
        """Whether it was reported that the worker does not start."""

    @property
    def restarts(self) -> Restarts:
        """The pauses between starts of a worker."""
        return Restarts(_PAUSES, _MOST_STARTS, _LASTING)

    @property
    def exclusive(self) -> bool:
        """Whether it is a worker; a scheduler shares its VM with a parameter server."""
        return self.task.part == "worker"

    @cached_property
    def _spec(self) -> DaskSpec:
        return DaskSpec.from_dict(checks.parsed_object((self.folder / layout.DASK).read_bytes()))

    def program(self) -> tuple[str, Sequence[str]]:
        """Return the module of the part, and how earlier workers ended."""
        record.clear_time_limit(self.folder)
        module = __package__ or ""
        if self.task.code and self.task.part == "scheduler":
            module = DRIVER
        return module, ("--crashed", json.dumps(self._crashed))

    def environment(self) -> Mapping[str, str]:
        """Return the mark of its processes, and for a bag the path of the whole package's code."""
        found = {process_record.MARK: str(self.folder), "PYTHONHASHSEED": "0"}
        if self.task.code:
            found["PYTHONPATH"] = str(self.folder.parent.parent / "code" / self.task.code)
        return found

    async def watch(self, pid: int) -> str:
        """Enforce the limits of a worker, and report when no task uses the GPU of its VM."""
        if self.task.part != "worker":
            return ""
        gpu = asyncio.create_task(gpu_use.watch(self._report_unused_gpu))
        try:
            return await self._keep_bounds(pid)
        finally:
            gpu.cancel()

    def ended(self, how: Ended) -> bool:
        """Report a crash, and return whether to start the process again.

        A bag whose scheduler is lost begins another Dask cluster.
        """
        reason = self._crash(how)
        if reason:
            crashed = DaskCrashed(dask=self.begin.work, vm=self.task.vm, reason=reason)
            self._lines.write(crashed.kind, line_fields(crashed))
        return self.task.part == "worker"

    def gave_up(self) -> None:
        """Do nothing: each crash is reported."""

    @staticmethod
    def clean(folder: Path) -> None:
        """Delete the keys."""
        for name in (layout.TLS_CA, layout.TLS_CERTIFICATE, layout.TLS_KEY):
            (folder / name).unlink(missing_ok=True)

    def _crash(self, how: Ended) -> str:
        """Return how the process crashed, a clause; empty if it ended in an orderly way."""
        if not how.pid:
            return f"it could not be started: {how.reason}"
        address = record.read_address(self.folder, how.pid)
        if address:  # it took part, so it has reported the earlier ones
            self._crashed = []
        # A task may end the process with code 0, too (`os._exit`), so the process itself records an
        # orderly end.
        if record.has_ended_well(self.folder, how.pid) or (how.code == 0 and not address):
            return ""
        reason = how.reason or _exit_words(how.code)
        if address:
            self._crashed = [{"worker": address, "process": how.pid, "cause": reason}]
        elif self.task.part == "worker":  # it never took part, which is reported once
            if self._unable:
                return ""
            self._unable = True
            log = f" ({_last_line(self.folder / LOG)})" if how.code and how.code > 0 else ""
            return f"it does not start: {reason}{log}"
        return reason

    def _report_unused_gpu(self, card: gpu_use.Card, seconds: float) -> None:
        unused = DaskGpuUnused(
            dask=self.begin.work, vm=self.task.vm, gpu=card.name, seconds=round(seconds, 1)
        )
        self._lines.write(unused.kind, line_fields(unused))

    async def _keep_bounds(self, pid: int) -> str:
        """Kill a worker that exceeds its memory limit or the time limit of a job, and return why.

        Dask itself spills to disk and then pauses long before that. This also shortens the file
        with the output of a bag's jobs.
        """
        limit = memory_limit(self._spec)
        while True:
            used = process_record.resident_bytes(pid)
            if used > TERMINATE_SHARE * limit:
                _kill(pid)
                return f"memory: it used {used / 2**30:.1f} of {limit / 2**30:.1f} GB"
            if record.is_over_time(self.folder):
                _kill(pid)
                return "time: a job exceeded its limit"
            with suppress(OSError):
                record.shorten_output(self.folder)
            await asyncio.sleep(_LOOK_SECONDS)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    """Return the last line of a process' output, shortened."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return "".join(filter(str.isprintable, last))[:_MOST_LINE]


def _exit_words(code: int | None) -> str:
    if code is None:
        return "its exit code is unknown"
    if code < 0:
        return f"signal {-code}"
    return f"exit code {code}"


PART = DaskPart
