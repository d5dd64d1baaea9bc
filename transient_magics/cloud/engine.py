"""Compute Engine, as far as we use it: insert, list, get, delete, preempt, host keys, preemptions.

Google's client blocks, so every call runs in a thread of our own pool and is awaited; its retries are off, and ours
(limited, jittered, through stamina) are on. Mutations carry an identity that stays the same over all attempts.
Operations are awaited by our own operations client: the ones that Google's client awaits by itself always poll
Google's host, even when everything else goes to an emulator. A cancelled call stops waiting at once; what it asked for
may still happen, and is found again by its labels or by asking for it once more with the same request.
"""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import stamina

from ..errors import AccessError, AlreadyExistsError, CloudError, GoneError
from . import failures
from .clients import Clients
from .translation import instance_of, vm_of
from .values import Vm, VmRequest

if TYPE_CHECKING:
    from google.cloud import compute_v1

T = TypeVar("T")

_THREADS = 64
_WAITERS = 48  # of the threads, so that short calls never queue behind long waits
_WAIT_SECONDS = 15.0  # how long a thread stays in one wait, and so the longest that leaving can take
_PLAIN: dict[str, Any] = {"retry": None, "timeout": 30.0}  # Google's own retries off, and no call without an end
_LEAVING = ("STOPPING", "STOPPED", "TERMINATED", "SUSPENDING", "SUSPENDED")


def preload() -> threading.Thread:
    """Import Google's client in a thread (some 2.8 seconds) while the caller does something else; join it or not."""

    def imports() -> None:
        import google.auth
        import google.cloud.compute_v1  # noqa: F401

    thread = threading.Thread(target=imports, name="preload-compute", daemon=True)
    thread.start()
    return thread


class ComputeEngine:
    """The VMs of one project. `endpoint` is an emulator's URL; None is Google, with its default credentials."""

    def __init__(self, project: str, endpoint: str | None = None, *, patience: float = 60.0) -> None:
        """`patience` is for how many seconds a request is tried again before its error is raised."""
        self.project = project
        self.endpoint = endpoint.rstrip("/") if endpoint else None
        self._patience = patience
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="compute")
        self._waiters = asyncio.Semaphore(_WAITERS)
        self._opened: Clients | None = None

    async def __aenter__(self) -> Self:
        async with self._explaining(self._whole):
            self._opened = await self._threaded(lambda: Clients(self.endpoint, connections=_THREADS))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._clients.close()

    async def check(self) -> None:
        """See that the project can be used; the error says what to type if not."""
        projects = self._clients.projects
        try:
            await self._call(self._whole, lambda: projects.get(project=self.project, **_PLAIN), patience=10.0)
        except GoneError as error:
            what = f"There is no project {self.project}, or the credentials may not see it"
            raise AccessError(what, fix="Type `gcloud projects list` to see the projects you have.") from error

    async def insert(self, request: VmRequest, *, timeout: float = 600.0) -> Vm:
        """Make the VM and return it once it is RUNNING.

        The same request again, also by another process, continues the first. A VM of that name with other labels is not
        ours: AlreadyExistsError. A VM that is taken away before it ran: GoneError.
        """
        from google.cloud import compute_v1

        zone, name, where = request.zone, request.name, _place(request.zone, request.name)
        message = compute_v1.InsertInstanceRequest(
            project=self.project,
            zone=zone,
            request_id=request.request_id or str(uuid.uuid4()),
            instance_resource=compute_v1.Instance(instance_of(request)),
        )
        instances = self._clients.instances
        async with _limit(timeout, f"{name} did not start", where):
            try:
                operation = await self._call(where, lambda: instances.insert_unary(message, **_PLAIN))
                await self._finish(zone, name, operation)
            except AlreadyExistsError:
                # An attempt whose answer was lost made it, or one of a process that is gone: then it has our labels.
                found = await self._appeared(zone, name)
                if found is None or not request.labels.items() <= found.labels.items():
                    raise
            return await self._running(zone, name)

    async def get(self, zone: str, name: str) -> Vm | None:
        """The VM, or None if there is none of that name."""
        instances = self._clients.instances
        whole = {"project": self.project, "zone": zone, "instance": name, **_PLAIN}
        try:
            return vm_of(await self._call(_place(zone, name), lambda: instances.get(**whole)))
        except GoneError:
            return None

    async def list(self, labels: Mapping[str, str]) -> list[Vm]:
        """All VMs of the project, in every zone, that have these labels."""
        from google.cloud import compute_v1

        wanted = " AND ".join(f"(labels.{key} = {value})" for key, value in sorted(labels.items()))
        message = compute_v1.AggregatedListInstancesRequest(project=self.project, filter=wanted, max_results=500)
        instances = self._clients.instances

        def all_pages() -> list[Vm]:
            scopes = instances.aggregated_list(message, **_PLAIN)
            return [vm_of(instance) for _, scope in scopes for instance in scope.instances]

        vms = await self._call(self._whole, all_pages)
        return [vm for vm in vms if labels.items() <= vm.labels.items()]

    async def delete(self, zone: str, name: str, *, timeout: float = 300.0) -> None:
        """Delete the VM with its disk and return when it is gone. There being no such VM is success."""
        from google.cloud import compute_v1

        message = compute_v1.DeleteInstanceRequest(
            project=self.project, zone=zone, instance=name, request_id=str(uuid.uuid4())
        )
        instances, where = self._clients.instances, _place(zone, name)

        async def gone() -> bool | None:
            return True if await self.get(zone, name) is None else None

        async with _limit(timeout, f"{name} was not deleted", where):
            try:
                operation = await self._call(where, lambda: instances.delete_unary(message, **_PLAIN))
                await self._finish(zone, name, operation)
            except GoneError:
                return
            await _until(gone)

    async def preempt(self, zone: str, name: str) -> None:
        """Have the VM preempted as Google would do it (a simulated maintenance event); returns once accepted."""
        from google.cloud import compute_v1

        message = compute_v1.SimulateMaintenanceEventInstanceRequest(
            project=self.project, zone=zone, instance=name, request_id=str(uuid.uuid4())
        )
        instances, where = self._clients.instances, _place(zone, name)
        operation = await self._call(where, lambda: instances.simulate_maintenance_event_unary(message, **_PLAIN))
        if operation.status == compute_v1.Operation.Status.DONE:
            self._raise_if_failed(operation, where)

    async def host_keys(self, zone: str, name: str, *, timeout: float = 180.0) -> list[str]:
        """The VM's SSH host keys ("ssh-ed25519 AAAA..."), as the VM itself told Compute Engine while it booted."""
        from google.cloud import compute_v1

        message = compute_v1.GetGuestAttributesInstanceRequest(
            project=self.project, zone=zone, instance=name, query_path="hostkeys/"
        )
        instances, where = self._clients.instances, _place(zone, name)

        async def told() -> list[str] | None:
            try:
                answer = await self._call(where, lambda: instances.get_guest_attributes(message, **_PLAIN))
            except GoneError:
                # The same status means "no such VM" and "nothing written yet".
                if await self.get(zone, name) is None:
                    raise
                return None
            keys = sorted(f"{item.key} {item.value}" for item in answer.query_value.items if item.value)
            return keys if any(key.startswith("ssh-ed25519 ") for key in keys) else None

        async with _limit(timeout, f"{name} did not tell its host keys", where):
            return await _until(told)

    async def preemptions(self, zone: str) -> set[str]:
        """The names of VMs of the zone that Google has taken away lately, deleted ones included."""
        from google.cloud import compute_v1

        kind = "compute.instances.preempted"
        message = compute_v1.ListZoneOperationsRequest(
            project=self.project, zone=zone, filter=f'operationType="{kind}"', max_results=500
        )
        operations = self._clients.operations

        def names() -> set[str]:
            found = operations.list(message, **_PLAIN)
            return {each.target_link.rsplit("/", 1)[-1] for each in found if each.operation_type == kind}

        return await self._call(f"zone {zone}", names)

    async def _finish(self, zone: str, name: str, operation: compute_v1.Operation) -> None:
        """Wait until the operation on VM `name` is done, and raise its error if it has one."""
        from google.cloud import compute_v1
        from requests.exceptions import Timeout

        where, operations = _place(zone, name), self._clients.operations
        whole: dict[str, Any] = {"project": self.project, "zone": zone, "operation": operation.name}

        def wait() -> compute_v1.Operation | None:
            try:
                return operations.wait(**whole, retry=None, timeout=_WAIT_SECONDS)
            except Timeout:  # the server may hold a wait for two minutes; our thread does not
                return None

        async def done() -> compute_v1.Operation | None:
            async with self._waiters:
                state = await self._call(where, wait)
            return state if state is not None and state.status == compute_v1.Operation.Status.DONE else None

        try:
            self._raise_if_failed(await _until(done), where)
        except GoneError:
            # Operations get forgotten (by an emulator that was started again, say): the VM tells what became of it.
            if await self.get(zone, name) is None:
                raise

    async def _appeared(self, zone: str, name: str) -> Vm | None:
        """A VM that exists by its name may still be unknown to `get` for a while; None if that lasts."""
        try:
            async with asyncio.timeout(30):
                return await _until(lambda: self.get(zone, name))
        except TimeoutError:
            return None

    async def _running(self, zone: str, name: str) -> Vm:
        """Wait until the VM runs. It may be taken away before it ever does."""

        async def runs() -> Vm | None:
            vm = await self.get(zone, name)
            if vm is None or vm.status in _LEAVING:
                raise GoneError(f"{name} was taken away before it ran", where=f"zone {zone}")
            return vm if vm.status == "RUNNING" else None

        return await _until(runs)

    async def _call(self, where: str, function: Callable[[], T], *, patience: float | None = None) -> T:
        """Run one blocking request in a thread, several times if it fails for a passing reason; errors become ours."""
        attempts = stamina.retry_context(
            failures.is_transient,
            attempts=10,
            timeout=self._patience if patience is None else patience,
            wait_initial=0.2,
            wait_max=15.0,
            wait_jitter=0.5,
        )
        async with self._explaining(where):
            async for attempt in attempts:
                with attempt:
                    return await self._threaded(function)
        raise AssertionError("stamina ends with a result or an error")

    async def _threaded(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    @asynccontextmanager
    async def _explaining(self, where: str) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:  # Google's clients raise errors of three libraries; unknown ones pass unchanged
            ours = failures.explain(error, where=where, project=self.project, endpoint=self.endpoint or "")
            if ours is None:
                raise
            raise ours from error

    def _raise_if_failed(self, operation: compute_v1.Operation, where: str) -> None:
        if error := failures.explain_operation(operation, where=where, project=self.project):
            raise error

    @property
    def _clients(self) -> Clients:
        if self._opened is None:
            raise RuntimeError("use it as `async with ComputeEngine(...) as engine`")
        return self._opened

    @property
    def _whole(self) -> str:
        return f"project {self.project}"


def _place(zone: str, name: str) -> str:
    return f"{name} in zone {zone}"


async def _until(check: Callable[[], Awaitable[T | None]]) -> T:
    """Ask until the answer is not None, at growing intervals; the caller limits how long. The API offers no event."""
    interval = 0.1
    while (answer := await check()) is None:
        await asyncio.sleep(interval * random.uniform(0.8, 1.2))
        interval = min(interval * 1.5, 2.0)
    return answer


@asynccontextmanager
async def _limit(seconds: float, what: str, where: str) -> AsyncIterator[None]:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise CloudError(f"{what} within {seconds:g} s", where=where, fix="Try again, or in another zone.") from error
