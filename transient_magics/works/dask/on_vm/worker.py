"""The worker of a Dask cluster on one VM: one process, which the VM's agent restarts after a crash.

The agent replaces Dask's nanny. It lives as long as the VM. As a separate process, it detects
growing memory while the interpreter is locked. Only the agent distinguishes a crash from the end of
the VM.
"""

# pyright: basic
# (Dask's own annotations are incomplete.)

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask.config
from distributed.core import rpc
from distributed.worker import Worker

from ....protocol import checks, layout
from ....protocol.machines import NOTICE_SECONDS
from ....runtime import gpu_use
from ....runtime.folder import RunFolder
from ....runtime.metadata import notice_seconds, watch_preemption
from ....runtime.role import separate_children
from ....runtime.training.usercode import provide_packages
from ..spec import LEAVE_SECONDS, DaskSpec
from . import record
from .record import memory_limit
from .task import SETTINGS, DaskTask, security

PREEMPTED = "transient-preempted"
"""Name of the worker's extension with the event that is set at a preemption notice."""
_NICE = 5
_OOM_SCORE = "500"
_REGISTER_SECONDS = 60.0
_TELL_SECONDS = 20.0


async def work(folder: Path, task: DaskTask, crashed: Sequence[dict[str, Any]]) -> bool:
    """Run the worker until its VM is preempted or the scheduler ends it; False after SIGTERM.

    `crashed` are the previous workers on this VM that crashed. They are reported to the scheduler
    before this worker registers, or tasks that crash workers would never be identified.
    """
    dask.config.set(SETTINGS)
    separate_children()  # tasks may have pools of processes
    os.nice(_NICE)
    with contextlib.suppress(OSError):  # if memory runs out, the worker is killed before the agent
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="utf-8")
    spec = DaskSpec.from_dict(checks.parsed_object((folder / layout.DASK).read_bytes()))
    if spec.bag:
        run = RunFolder(folder)
        # Output is captured after this, so its errors are not part of a job's output.
        await asyncio.to_thread(provide_packages, run)
        await asyncio.to_thread(gpu_use.insist, run.packages)
        record.capture_output(folder)
    own = security(folder)
    noticed = asyncio.Event()
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    preempted = threading.Event()
    """Thread-safe copy of `noticed`, for tasks."""

    def notice() -> None:
        preempted.set()
        noticed.set()

    watching = asyncio.create_task(watch_preemption(notice))
    scheduler = f"tls://{task.scheduler}"
    async with asyncio.timeout(_TELL_SECONDS):
        await _tell(scheduler, own, task, crashed, record.last_output(folder))
    (folder / "space").mkdir(exist_ok=True, mode=0o700)
    worker = Worker(
        scheduler,
        name=task.vm,
        host=task.address,
        protocol="tls",
        security=own,
        dashboard=False,
        nthreads=spec.threads or os.cpu_count() or 1,
        memory_limit=memory_limit(spec),
        local_directory=str(folder / "space"),
        death_timeout=_REGISTER_SECONDS,
    )
    worker.extensions[PREEMPTED] = preempted
    async with worker:
        record.write_address(folder, os.getpid(), worker.address)
        waits = [
            asyncio.ensure_future(wait) for wait in (noticed.wait(), over.wait(), worker.finished())
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if noticed.is_set() and not over.is_set():
            await _leave(worker)
        for waiting in (*waits, watching):
            waiting.cancel()
        await asyncio.gather(*waits, watching, return_exceptions=True)
    return noticed.is_set() or not over.is_set()


async def _tell(
    scheduler: str, own: Any, task: DaskTask, crashed: Sequence[dict[str, Any]], printed: str
) -> None:
    async with rpc(scheduler, connection_args=own.get_connection_args("worker")) as say:
        await say.transient_here(vm=task.vm, born=task.born)
        for crash in crashed:
            if printed:  # by the job of a bag
                await say.transient_printed(worker=crash["worker"], output=printed)
            await say.transient_crashed(
                worker=crash["worker"], process=crash["process"], cause=crash["cause"]
            )


async def _leave(worker: Worker) -> None:
    """Request copies of the results that only this worker has.

    The scheduler limits the time. The timeout here covers a scheduler that does not respond.
    """
    seconds = await asyncio.to_thread(notice_seconds) - NOTICE_SECONDS + LEAVE_SECONDS
    executing = [ts.key for ts in (*worker.state.executing, *worker.state.long_running)]
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(seconds + 2):
            await worker.scheduler.transient_leave(
                worker=worker.address, executing=executing, seconds=seconds
            )
