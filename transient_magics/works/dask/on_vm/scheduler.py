"""The scheduler of a Dask cluster.

It runs on the VM of the first parameter server, under the account that runs users' code.

A worker with a preemption notice receives no new tasks and returns those that it has not started.
For `LEAVE_SECONDS`, results that only it has are copied to other workers, and running tasks may
end. Then it is removed, and lost results are computed again. Dask's own retirement has no time
limit and does not wait for running tasks.
"""

# pyright: basic
# (Dask's own annotations are incomplete.)

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable
from pathlib import Path
from typing import Any

import dask.config
from distributed.active_memory_manager import ActiveMemoryManagerExtension, RetireWorker
from distributed.core import Status
from distributed.protocol.pickle import dumps
from distributed.scheduler import KilledWorker, Scheduler, TaskState, WorkerState

from ....protocol import checks, layout
from ....protocol.vm_events import line_fields
from ....runtime.folder import Lines
from ....runtime.role import separate_children
from ..events import DaskClosed, DaskLeft, DaskServing
from ..spec import LEAVE_SECONDS, DaskSpec
from .task import SETTINGS, DaskTask, security
from .versions import versions

ALONE_SECONDS = 60.0
"""Time without a client after which the scheduler ends, because its VMs are paid for no use."""
FIRST_CLIENT_SECONDS = 300.0
_LOOK_SECONDS = 1.0
_MOVE_SECONDS = 0.1
_NEVER = 2**40
"""Limit that Dask's own count of failures, which includes revocations, never reaches."""

_MOST_REMEMBERED = 1000


# Classify why a worker was lost: preemption or crash. Pure.
#
# When a worker disappears, the scheduler does not know whether its VM was preempted or a task
# crashed it. It remembers the tasks of the worker, and counts them only after the VM reports that
# the process crashed. A preempted VM reports nothing. Dask's own count does not distinguish the two
# cases and is not used.


class Faults:
    """The number of worker crashes for each task; a task with more than `allowed` fails."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self._in_hand: dict[str, frozenset[Hashable]] = {}
        self._reported: set[tuple[str, int]] = set()
        self._causes: dict[Hashable, Counter[str]] = {}

    def gone(self, worker: str, in_hand: Collection[Hashable]) -> None:
        """Remember the tasks of a worker that disappeared without a notice."""
        self._in_hand[worker] = frozenset(in_hand)
        while len(self._in_hand) > _MOST_REMEMBERED:
            del self._in_hand[next(iter(self._in_hand))]

    def crashed(self, worker: str, process: int, cause: str) -> dict[Hashable, str]:
        """Count a crash that the worker's VM reported.

        Return the tasks that have failed, each with the causes of all its crashes. Duplicate
        reports of a process count once.
        """
        if (worker, process) in self._reported:
            return {}
        self._reported.add((worker, process))
        failed: dict[Hashable, str] = {}
        for task in self._in_hand.pop(worker, ()):
            causes = self._causes.setdefault(task, Counter())
            causes[cause] += 1
            if causes.total() > self.allowed:
                failed[task] = ", ".join(
                    f"{count} x {why}" for why, count in sorted(causes.items())
                )
        return failed

    def failed(self, task: Hashable) -> None:
        """Forget the crashes of a task that failed, so a retry starts from zero."""
        self._causes.pop(task, None)


class VmScheduler(Scheduler):
    """A Dask scheduler that also receives notices and crashes, which connections do not show."""

    def __init__(self, lines: Lines, spec: DaskSpec, **options: Any) -> None:
        super().__init__(**options)
        self.allowed_failures = _NEVER
        self._lines = lines
        self._name = spec.name
        self._faults = Faults(spec.allowed_failures)
        self._left: set[str] = set()
        self.born: dict[str, float] = {}
        """Start times of VMs, in seconds since 1970."""
        self.handlers["transient_here"] = self.here
        self.handlers["transient_leave"] = self.leave
        self.handlers["transient_crashed"] = self.crashed

    async def remove_worker(
        self, address: str, *, stimulus_id: str, expected: bool = False, close: bool = True
    ) -> Any:
        """Remove a worker as Dask does, and remember its tasks."""
        ws = self.workers.get(address)
        if ws is not None and not expected:
            self._faults.gone(ws.address, [ts.key for ts in ws.processing])
        return await super().remove_worker(
            address, stimulus_id=stimulus_id, expected=expected, close=close
        )

    async def here(self, vm: str, born: float) -> None:
        """Store the start time of a VM, which its worker sends before it registers."""
        self.born[vm] = born

    async def crashed(self, worker: str, process: int, cause: str) -> None:
        """Count a crash of a worker, and fail the tasks with too many crashes.

        The next worker of the same VM reports the crash before it registers.
        """
        stimulus = f"transient-crashed-{time.time()}"
        # The connection of the worker may not be closed yet.
        await self.remove_worker(worker, stimulus_id=stimulus)
        failed = self._faults.crashed(worker, process, cause)
        self.log_event(
            "transient",
            {"action": "crashed", "worker": worker, "cause": cause, "failed": list(failed)},
        )
        for key, causes in failed.items():
            self._fail(key, worker, causes, stimulus)

    def _fail(self, key: Any, worker: str, causes: str, stimulus: str) -> None:
        ts = self.tasks.get(key)
        if ts is None or ts.state not in ("processing", "queued", "no-worker"):
            return  # it waits for dependencies or is done: the next crash decides
        gone = WorkerState(
            address=worker,
            status=Status.closed,
            pid=0,
            name=worker,
            memory_limit=0,
            local_directory="",
            nanny=None,
            server_id="",
        )
        error = KilledWorker(task=key, last_worker=gone, allowed_failures=self._faults.allowed)
        error.add_note(f"Its workers ended so: {causes}. VMs that were revoked are not among them.")
        recommended = self.transition(
            key,
            "erred",
            exception=dumps(error),
            exception_text=f"{error} {causes}",
            cause=key,
            stimulus_id=stimulus,
        )
        self._faults.failed(key)
        self.transitions(recommended, stimulus_id=stimulus)

    async def leave(
        self, worker: str, executing: Collection[Any] = (), seconds: float = LEAVE_SECONDS
    ) -> None:
        """Copy the results that only this worker has, within `seconds`, and remove the worker.

        `executing` are the tasks that it computes now.
        """
        ws = self.workers.get(worker)
        if ws is None or worker in self._left:
            return
        self._left.add(worker)
        began = time.monotonic()
        stimulus = f"transient-leave-{time.time()}"
        self.handle_worker_status_change(Status.closing_gracefully, ws, stimulus)
        told_it = {"op": "worker-status-change", "status": ws.status.name, "stimulus_id": stimulus}
        self.stream_comms[worker].send(told_it)
        back: Any = {ts.key: "released" for ts in ws.processing if ts.key not in executing}
        self.transitions(back, stimulus_id=stimulus)
        seen = await self._move(ws, began + seconds)
        if worker in self.workers:
            here = {ts.key for ts in _only_there(ws)}
        else:
            here = set(seen)
        moved = {key: size for key, size in seen.items() if key not in here and self._is_kept(key)}
        interrupted = sum(ts.run_spec is not None for ts in ws.processing)
        await self.remove_worker(worker, stimulus_id=stimulus, expected=True, close=False)
        event = DaskLeft(
            dask=self._name,
            worker=str(ws.name),
            seconds=time.monotonic() - began,
            moved=len(moved),
            moved_bytes=sum(moved.values()),
            lost=len(here),
            interrupted=interrupted,
        )
        self._lines.write(event.kind, line_fields(event))
        self.log_event("transient", {"action": "left", **line_fields(event)})
        self._left.discard(worker)

    async def _move(self, ws: WorkerState, deadline: float) -> dict[Any, int]:
        """Copy the results that only this worker has, and return their sizes in bytes.

        It returns when none is left, the worker is gone, or the deadline has passed.
        """
        manager: ActiveMemoryManagerExtension = self.extensions["amm"]
        seen: dict[Any, int] = {}
        policy: RetireWorker | None = None
        while ws.address in self.workers and time.monotonic() < deadline:
            unique = _only_there(ws)
            seen |= {ts.key: ts.get_nbytes() for ts in unique}
            if not unique and not ws.processing:
                break
            # The policy removes itself when it is done.
            if unique and (policy is None or policy not in manager.policies):
                policy = RetireWorker(ws.address)
                manager.add_policy(policy)
                manager.run_once()
            await asyncio.sleep(_MOVE_SECONDS)
        if policy is not None:
            manager.policies.discard(policy)
        return seen

    def _is_kept(self, key: Any) -> bool:
        ts = self.tasks.get(key)
        return ts is not None and bool(ts.who_has)

    @property
    def has_clients(self) -> bool:
        """Whether a client is connected."""
        return bool(self.client_comms)


def _only_there(ws: WorkerState) -> list[TaskState]:
    return [
        ts for ts in ws.has_what if ts.who_has is not None and len(ts.who_has) == 1 and not ts.actor
    ]


Until = Callable[[Any, asyncio.Event], Awaitable[str]]
"""Function that waits until a running scheduler ends and returns the reason, a clause."""


async def serve(
    folder: Path, task: DaskTask, kind: type[VmScheduler] = VmScheduler, until: Until | None = None
) -> None:
    """Run the scheduler until SIGTERM, until a client ends it, or until it has no client.

    A given `until` replaces the conditions on clients.
    """
    dask.config.set(SETTINGS)
    separate_children()  # a client may run functions here, too
    lines = Lines(folder / layout.DASK_EVENTS)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    spec = DaskSpec.from_dict(checks.parsed_object((folder / layout.DASK).read_bytes()))
    with_dashboard = _has_bokeh()
    scheduler = kind(
        lines,
        spec,
        host=task.address,
        port=0,
        protocol="tls",
        security=security(folder),
        dashboard=with_dashboard,
        dashboard_address="127.0.0.1:0",
    )
    async with scheduler:
        if with_dashboard:
            dashboard = scheduler.services.get("dashboard")
        else:
            dashboard = None
        port = int(scheduler.address.rpartition(":")[2])
        seen = dashboard.port if dashboard else 0
        serving = DaskServing(dask=spec.name, port=port, dashboard=seen, versions=versions())
        lines.write(serving.kind, line_fields(serving))
        reason = await (until or _until_over)(scheduler, over)
    closed = DaskClosed(dask=spec.name, reason=reason)
    lines.write(closed.kind, line_fields(closed))


async def _until_over(scheduler: VmScheduler, over: asyncio.Event) -> str:
    """Wait until the scheduler is over and return the reason, a clause."""
    alone_since = time.monotonic()
    patience = FIRST_CLIENT_SECONDS
    while not over.is_set():
        if scheduler.status == Status.closed:
            return "a client shut it down"
        if scheduler.has_clients:
            alone_since = time.monotonic()
            patience = ALONE_SECONDS
        elif time.monotonic() - alone_since > patience:
            if patience == ALONE_SECONDS:
                return "its client has disconnected"
            return "no client connected"
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await over.wait()
        except TimeoutError:
            continue
    return "it was requested to end"


def _has_bokeh() -> bool:
    from importlib.util import find_spec

    return find_spec("bokeh") is not None
