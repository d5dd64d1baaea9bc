"""Compute Engine as far as we use it: insert, list, get, delete, preempt, host keys, endings.

Every call runs in a thread and is awaited (`calls.py`). Mutations carry a request id that is the
same in all attempts. A cancelled call stops waiting immediately. Its effect may still happen, and
is found by its labels or by repeating the same request.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import stamina

from ..catalog import PriceRow
from ..errors import (
    AccessError,
    AlreadyExistsError,
    ChangedError,
    CloudError,
    GoneError,
    UnreachableError,
)
from .advice import CapacityAdvice, Shape, zones_with
from .calling import clients
from .calling.calls import PLAIN, Calls, limit, until
from .calling.login import SignedIn, principal, signed_in
from .examination.examine import Examination, Finding, bad
from .firewall import Firewall
from .images import Images
from .instances import BulkInsert, Power
from .list_prices import list_prices
from .values import LEAVING, Life, Vm, VmRequest, instance_of, labelled, moment_of, vm_of

if TYPE_CHECKING:
    from google.cloud import compute_v1


log = logging.getLogger(__name__)

_ENDINGS = ("compute.instances.preempted", "delete", "stop")
"""Types of operations that end a VM."""
_START = "start"
"""The type that starts a stopped VM."""
_LAST_LOOK_SECONDS = 10.0
_MISSING = ("UNREACHABLE", "PARTIAL_SUCCESS", "LIST_OVERHEAD_QUOTA_EXCEED")
"""Warnings of an incomplete list, for example with an unreachable zone."""


def preload() -> threading.Thread:
    """Import Google's client in a thread, which takes about a second; return the thread.

    The caller may join it or not.
    """
    thread = threading.Thread(target=clients.preload, name="preload-compute", daemon=True)
    thread.start()
    return thread


_NOTICE_FIELD = re.compile(r"preemption_?notice_?duration", re.IGNORECASE)
"""The field of the scheduling that requests a longer notice, as refusals write it."""


class ComputeEngine:
    """The VMs of one project.

    Parameters
    ----------
    project
        Its ID.
    endpoint
        An emulator's URL; None is Google, with default credentials.
    patience
        Seconds of retries before a request's error is raised.
    """

    def __init__(
        self, project: str, endpoint: str | None = None, *, patience: float = 60.0
    ) -> None:
        self.project = project
        self.endpoint = endpoint.rstrip("/") if endpoint else None
        self.notice_refused = ""
        """Why Compute Engine refuses a longer preemption notice, one sentence; '' if it does not.
        """
        self._calls = Calls(project, self.endpoint, patience)
        self.firewall = Firewall(self._calls, project)
        self.images = Images(self._calls, project)
        self.power = Power(self._calls, project, self.get, self._finish)
        self.advice = CapacityAdvice(self._calls, project)

    async def __aenter__(self) -> Self:
        await self._calls.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._calls.close()

    async def renew(self) -> None:
        """Find new credentials, as after a login; requests in flight keep the old ones.

        Raises CloudError.
        """
        await self._calls.open()

    @property
    def ahead(self) -> float:
        """Seconds by which this machine's clock is ahead of Compute Engine's (negative: behind).

        From its latest answers; 0 if the clocks may agree, or before the first answer.
        """
        return self._calls.clients.clock.ahead

    async def check(self) -> None:
        """Check that the project can be used; the error names the remedy."""
        await self._described()

    async def _described(self) -> compute_v1.Project:
        """Return Compute Engine's description of the project, with its global quotas.

        Raises CloudError.
        """
        projects = self._calls.clients.projects
        try:
            return await self._calls.call(
                self._whole, lambda: projects.get(project=self.project, **PLAIN), patience=10.0
            )
        except GoneError as error:
            what = f"Project {self.project} does not exist, or the credentials may not see it"
            raise AccessError(
                what, fix="Type `gcloud projects list` to see the projects you have."
            ) from error

    async def principal(self) -> str:
        """Return the owner of the credentials, usually an e-mail address; '' with an emulator.

        Raises CloudError.
        """
        if self.endpoint:
            return ""
        return await self._calls.call("Google's sign-in", principal)

    async def signed_in(self) -> SignedIn | None:
        """Return the credentials with a fresh token; None with an emulator. Raises CloudError."""
        if self.endpoint:
            return None
        return await self._calls.call("Google's sign-in", signed_in, patience=5.0)

    async def examine(
        self, requests: Sequence[VmRequest], *, firewall: bool = True, bucket: str = ""
    ) -> list[Finding]:
        """Check whether the project could have these VMs; create nothing.

        Parameters
        ----------
        requests
            The VMs.
        firewall
            Whether the cluster creates firewall rules.
        bucket
            The name of its bucket; '' for none.

        Returns
        -------
        list of Finding
            One or more answers for each question.
        """
        try:
            whole = await self._described()
        except CloudError as error:
            return [bad(self._whole, error)]
        good = Finding(self._whole, True, "can be used, and Compute Engine's API is enabled")
        questions = Examination(
            self._calls, whole, self.project, requests, firewall=firewall, bucket=bucket
        )
        return [good, *await questions.findings()]

    async def zones_with(self, shape: Shape) -> frozenset[str]:
        """Return the zones with the GPU of `shape`, or with its machine type without a GPU."""
        return await zones_with(self._calls, self.project, shape)

    async def list_prices(self, day: str) -> list[PriceRow]:
        """Return Google's list prices of today (`day`) in all regions, for the catalog's table.

        Raises CloudError.
        """
        return await list_prices(self._calls, self.project, self.endpoint, day)

    async def insert(self, request: VmRequest, *, timeout: float = 600.0) -> Vm:
        """Create the VM and return it once it is RUNNING.

        A repeated request, even by another process, continues the first. Raises AlreadyExistsError
        for a VM of that name with other labels, another machine type or another key, which is not
        ours. Raises GoneError if it was preempted before it ran.
        """
        request = self._noticed(request)
        try:
            return await self._insert(request, timeout)
        except CloudError as error:
            if not self._refuses_notice(error, request):
                raise
        return await self._insert(self._noticed(request), timeout)

    def _noticed(self, request: VmRequest) -> VmRequest:
        """Return the request, without a longer notice if Compute Engine has refused one."""
        if self.notice_refused:
            return replace(request, notice_seconds=0)
        return request

    def _refuses_notice(self, error: CloudError, request: VmRequest) -> bool:
        """Return whether the request failed because of its notice, and remember why."""
        if not request.notice_seconds or not _NOTICE_FIELD.search(str(error)):
            return False
        self.notice_refused = (
            f"Compute Engine refuses the preemption notice of {request.notice_seconds} s, so Spot "
            f"VMs are requested without it: {error}"
        )
        return True

    async def _insert(self, request: VmRequest, timeout: float) -> Vm:
        from google.cloud import compute_v1

        zone = request.zone
        name = request.name
        where = _place(request.zone, request.name)
        message = compute_v1.InsertInstanceRequest(
            project=self.project,
            zone=zone,
            request_id=request.request_id or str(uuid.uuid4()),
            instance_resource=compute_v1.Instance(instance_of(request)),
        )
        instances = self._calls.clients.instances
        async with limit(timeout, f"{name} did not start", where):
            try:
                try:
                    operation = await self._calls.call(
                        where, lambda: instances.insert_unary(message, **PLAIN)
                    )
                except GoneError as error:  # not the VM, but its image, network or zone
                    raise CloudError(
                        f"A resource that the VM needs does not exist: {error.what}", where=where
                    ) from error
                await self._finish(zone, name, operation)
            except AlreadyExistsError:
                # An attempt whose answer was lost created it, or a process that died: then it
                # matches the request.
                found = await self._appeared(zone, name)
                if found is None or not found.made_by(request):
                    raise
            return await self._running(zone, name)

    async def insert_many(
        self, requests: Sequence[VmRequest], *, timeout: float = 600.0
    ) -> dict[str, Vm | CloudError]:
        """Create VMs that differ only in their names with one request.

        Creates as many as possible. A VM without a result, after `timeout` or without an answer,
        does not affect the others.

        Returns
        -------
        dict
            By name, the running VM or the reason why it does not run.

        Raises
        ------
        CloudError
            If nothing is known about any of them.
        """
        requests = [self._noticed(request) for request in requests]
        outcome: dict[str, Vm | CloudError]
        try:
            outcome = await self._insert_many(requests, timeout)
        except CloudError as error:
            if not self._refuses_notice(error, requests[0]):
                raise
            outcome = {request.name: error for request in requests}
        again: list[VmRequest] = []
        for request in requests:
            result = outcome[request.name]
            if isinstance(result, CloudError) and self._refuses_notice(result, request):
                again.append(replace(request, notice_seconds=0))
        if again:
            outcome |= await self._insert_many(again, timeout)
        return outcome

    async def _insert_many(
        self, requests: Sequence[VmRequest], timeout: float
    ) -> dict[str, Vm | CloudError]:
        zone = requests[0].zone
        where = f"{len(requests)} VMs in zone {requests[0].zone}"
        bulk = BulkInsert(self._calls, self.project, partial(self.list, within=(zone,)))
        outcome: dict[str, Vm | CloudError] = {}
        try:
            async with limit(timeout, "They did not start", where):
                await bulk.insert(requests, zone, where, outcome)
        except CloudError as error:
            with suppress(CloudError):  # the operation may wait for one VM while the others run
                async with limit(_LAST_LOOK_SECONDS, "They are not listed", where):
                    await bulk.collect(requests, outcome)
            if not outcome:
                raise
            return {request.name: outcome.get(request.name, error) for request in requests}
        return outcome

    async def get(self, zone: str, name: str) -> Vm | None:
        """Return the VM, or None if there is none of that name."""
        instances = self._calls.clients.instances
        whole = {"project": self.project, "zone": zone, "instance": name, **PLAIN}
        try:
            return vm_of(await self._calls.call(_place(zone, name), lambda: instances.get(**whole)))
        except GoneError:
            return None

    async def list(
        self, labels: Mapping[str, str], *, within: Collection[str] | None = None
    ) -> list[Vm]:
        """Return all VMs of the project with these labels, in every zone.

        Raises UnreachableError if a zone does not list its VMs: one of `within`, or any zone if
        that is None.
        """
        return [
            vm
            for vm in await self._list(labelled(labels), within)
            if labels.items() <= vm.labels.items()
        ]

    async def named(self, pattern: str, *, within: Collection[str] | None = None) -> list[Vm]:
        """Return all VMs of the project whose whole name matches a regular expression.

        The expression has no quotes. Raises UnreachableError as `list` does.
        """
        return [
            vm
            for vm in await self._list(f"name eq '{pattern}'", within)
            if re.fullmatch(pattern, vm.name)
        ]

    async def _list(self, query: str, within: Collection[str] | None) -> list[Vm]:
        from google.cloud import compute_v1

        message = compute_v1.AggregatedListInstancesRequest(
            project=self.project, filter=query, max_results=500
        )
        instances = self._calls.clients.instances

        def all_pages() -> list[Vm]:
            pages = instances.aggregated_list(message, **PLAIN).pages
            found = scopes(pages, self._whole, within)
            return [vm_of(instance) for _, scope in found for instance in scope.instances]

        return await self._calls.call(self._whole, all_pages)

    async def delete(
        self, zone: str, name: str, labels: Mapping[str, str], *, timeout: float = 300.0
    ) -> datetime | None:
        """Delete the VM with this name and these labels, with its disk; return when it is gone.

        A missing VM is a success. A VM of that name without the labels is not ours, and stays.

        Returns
        -------
        datetime or None
            When Compute Engine began to end it; None if we did not cause that.
        """
        from google.cloud import compute_v1

        vm = await self.get(zone, name)
        if vm is None:
            return None
        if not labels.items() <= vm.labels.items():
            log.warning("%s is not deleted: it has other labels", _place(zone, name))
            return None
        begun: datetime | None = None
        instances = self._calls.clients.instances
        where = _place(zone, name)

        async def delete() -> None:
            nonlocal begun
            # By its id: the name may belong to another VM when the request arrives.
            message = compute_v1.DeleteInstanceRequest(
                project=self.project, zone=zone, instance=vm.id, request_id=str(uuid.uuid4())
            )
            operation = await self._calls.call(
                where, lambda: instances.delete_unary(message, **PLAIN)
            )
            begun = None
            if vm.status not in LEAVING:
                begun = moment_of(operation.insert_time)
            await self._finish(zone, name, operation)

        async def gone() -> bool | None:
            left = await self.get(zone, name)
            return True if left is None or left.id != vm.id else None

        async with limit(timeout, f"{name} was not deleted", where):
            try:
                await self._calls.settled(delete)
            except GoneError:
                return begun
            await until(gone)
        return begun

    async def preempt(self, zone: str, name: str) -> None:
        """Preempt the VM as Google would (a simulated maintenance event); return once accepted."""
        from google.cloud import compute_v1

        message = compute_v1.SimulateMaintenanceEventInstanceRequest(
            project=self.project, zone=zone, instance=name, request_id=str(uuid.uuid4())
        )
        instances = self._calls.clients.instances
        where = _place(zone, name)
        operation = await self._calls.call(
            where, lambda: instances.simulate_maintenance_event_unary(message, **PLAIN)
        )
        if operation.status == compute_v1.Operation.Status.DONE and (
            error := self._calls.failure(operation, where)
        ):
            raise error

    async def add_ssh_key(self, zone: str, name: str, line: str) -> None:
        """Add an SSH key ("USER:ssh-ed25519 AAAA...") to the VM. Raises CloudError."""
        from google.cloud import compute_v1

        instances = self._calls.clients.instances
        where = _place(zone, name)
        whole = {"project": self.project, "zone": zone, "instance": name}

        def add() -> None:
            metadata = instances.get(**whole, **PLAIN).metadata
            items = {item.key: item.value for item in metadata.items}
            items["ssh-keys"] = "\n".join(filter(None, [items.get("ssh-keys", ""), line]))
            # The fingerprint makes Google refuse the change if the metadata changed in between.
            changed = compute_v1.Metadata(
                fingerprint=metadata.fingerprint,
                items=[compute_v1.Items(key=key, value=value) for key, value in items.items()],
            )
            instances.set_metadata_unary(**whole, metadata_resource=changed, **PLAIN)

        async for attempt in stamina.retry_context(on=ChangedError, attempts=5):
            with attempt:
                await self._calls.call(where, add)

    async def host_keys(self, zone: str, name: str, *, timeout: float = 180.0) -> list[str]:
        """Return the VM's SSH host keys ("ssh-ed25519 AAAA...").

        The VM reports them to Compute Engine while it boots.
        """

        async def reported() -> list[str] | None:
            found = await self.guest_attributes(zone, name, "hostkeys")
            keys = sorted(f"{key} {value}" for key, value in found.items() if value)
            if any(key.startswith("ssh-ed25519 ") for key in keys):
                return keys
            return None

        async with limit(timeout, f"{name} did not report its host keys", _place(zone, name)):
            return await until(reported)

    async def guest_attributes(self, zone: str, name: str, namespace: str) -> dict[str, str]:
        """Return what programs in the VM reported to Compute Engine, by key.

        Raises GoneError for a missing VM.
        """
        from google.cloud import compute_v1

        message = compute_v1.GetGuestAttributesInstanceRequest(
            project=self.project, zone=zone, instance=name, query_path=f"{namespace}/"
        )
        instances = self._calls.clients.instances
        try:
            answer = await self._calls.call(
                _place(zone, name), lambda: instances.get_guest_attributes(message, **PLAIN)
            )
        except GoneError:
            # The same status means "no such VM" and "nothing written yet".
            if await self.get(zone, name) is None:
                raise
            return {}
        return {item.key: item.value for item in answer.query_value.items}

    async def console(self, zone: str, name: str) -> str:
        """Return the output of serial port 1: the kernel's and the start-up script's."""
        from google.cloud import compute_v1

        message = compute_v1.GetSerialPortOutputInstanceRequest(
            project=self.project, zone=zone, instance=name, port=1
        )
        instances = self._calls.clients.instances
        answer = await self._calls.call(
            _place(zone, name), lambda: instances.get_serial_port_output(message, **PLAIN)
        )
        return answer.contents

    async def endings(self, zone: str) -> dict[str, datetime]:
        """Return when VMs of the zone recently began to end, by their id.

        They were preempted, stopped or deleted, by any user. A VM that was started again is
        missing.
        """
        return _endings(await self._done(zone, (*_ENDINGS, _START)))

    async def life(self, zone: str, name: str) -> Life | None:
        """Return the latest life of a VM, which may be gone, from recent operations.

        None without such operations, and for a VM that was preempted before it ran.
        """
        done = await self._done(zone, ("insert", *_ENDINGS))
        endings = _endings(done)
        lives: list[Life] = []
        for operation in done:
            started = moment_of(operation.end_time)  # an insert is done when the VM runs
            if (
                operation.operation_type == "insert"
                and operation.target_link.rpartition("/")[2] == name
                and started
            ):
                lives.append(
                    Life(str(operation.target_id), started, endings.get(str(operation.target_id)))
                )
        return max(
            (life for life in lives if life.stopping is None or life.started < life.stopping),
            key=lambda life: life.started,
            default=None,
        )

    async def _done(self, zone: str, kinds: Sequence[str]) -> list[compute_v1.Operation]:
        """Return recent operations of these types in the zone, without failed ones."""
        from google.cloud import compute_v1

        message = compute_v1.ListZoneOperationsRequest(
            project=self.project,
            zone=zone,
            filter=" OR ".join(f'(operationType = "{kind}")' for kind in kinds),
            max_results=500,
        )
        operations = self._calls.clients.operations
        found = await self._calls.call(
            f"zone {zone}", lambda: list(operations.list(message, **PLAIN))
        )
        return [
            operation
            for operation in found
            if operation.operation_type in kinds and not operation.error.errors
        ]

    async def _finish(self, zone: str, name: str, operation: compute_v1.Operation) -> None:
        """Wait until the operation on VM `name` is done, and raise its error if it has one."""
        where = _place(zone, name)
        try:
            done = await self._calls.finished(zone, where, operation)
        except GoneError:
            # Compute Engine deletes old operations, and a restarted emulator has none: then the
            # VM itself shows the result.
            if await self.get(zone, name) is None:
                raise
        else:
            if error := self._calls.failure(done, where):
                raise error

    async def _appeared(self, zone: str, name: str) -> Vm | None:
        """Return a VM once `get` finds it, which may take a while; None after 30 seconds."""
        try:
            async with asyncio.timeout(30):
                return await until(lambda: self.get(zone, name))
        except TimeoutError:
            return None

    async def _running(self, zone: str, name: str) -> Vm:
        """Wait until the VM runs. It may be preempted before it does."""

        async def runs() -> Vm | None:
            vm = await self.get(zone, name)
            if vm is None or vm.status in LEAVING:
                raise GoneError(f"{name} was preempted before it ran", where=f"zone {zone}")
            return vm if vm.status == "RUNNING" else None

        return await until(runs)

    @property
    def _whole(self) -> str:
        return f"project {self.project}"


def _endings(done: Sequence[compute_v1.Operation]) -> dict[str, datetime]:
    """Return when the first operation that ended a VM since its last start began, by its id."""
    found: dict[str, datetime] = {}
    dated: list[tuple[datetime, compute_v1.Operation]] = []
    for operation in done:
        moment = moment_of(operation.insert_time)
        if moment:
            dated.append((moment, operation))
    for moment, operation in sorted(dated, key=lambda pair: pair[0]):
        number = str(operation.target_id)
        if operation.operation_type == _START:
            found.pop(number, None)
        elif operation.operation_type in _ENDINGS:
            found.setdefault(number, moment)
    return found


def _place(zone: str, name: str) -> str:
    return f"{name} in zone {zone}"


def scopes(
    pages: Iterable[Any], where: str, within: Collection[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the scopes of all pages, such as `zones/ZONE`, with their contents.

    Raises UnreachableError if something may be missing: in a zone of `within`, or in any zone if
    that is None.
    """
    for page in pages:
        items: dict[str, Any] = dict(page.items)
        missing = [_last(unreachable) for unreachable in page.unreachables]
        missing += [
            _last(scope) for scope, listed in items.items() if listed.warning.code in _MISSING
        ]
        if page.warning.code in _MISSING:  # it may name the zones
            missing += (
                [_last(entry.value) for entry in page.warning.data if entry.key == "scope"]
                or missing
                or [""]
            )
        for zone in missing:
            if not zone or within is None or zone in within:
                place = f"zone {zone}" if zone else "every zone"
                what = f"Compute Engine cannot list the resources of {place} now"
                raise UnreachableError(what, where=where, fix="Try again in a moment.")
        yield from items.items()


def _last(path: str) -> str:
    return path.rpartition("/")[2]
