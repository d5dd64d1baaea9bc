"""Compute Engine, as far as we use it: insert, list, get, delete, preempt, host keys, endings.

Every call runs in a thread and is awaited (`calls.py`). Mutations carry an identity that stays the
same over all attempts. A cancelled call stops waiting at once; what it asked for may still happen,
and is found again by its labels or by asking for it once more with the same request.
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
"""What operations are called that take a VM out of RUNNING."""
_START = "start"
"""The one that has a VM run that was stopped."""
_LAST_LOOK_SECONDS = 10.0
_MISSING = ("UNREACHABLE", "PARTIAL_SUCCESS", "LIST_OVERHEAD_QUOTA_EXCEED")
"""Warnings of a list that may lack something: a zone that could not be reached, say."""


def preload() -> threading.Thread:
    """Import Google's client in a thread (about a second) while the caller does something else;
    join it or not.
    """
    thread = threading.Thread(target=clients.preload, name="preload-compute", daemon=True)
    thread.start()
    return thread


_NOTICE_FIELD = re.compile(r"preemption_?notice_?duration", re.IGNORECASE)
"""How a refusal names the field of the scheduling that requests a longer notice."""


class ComputeEngine:
    """The VMs of one project. `endpoint` is an emulator's URL; None is Google, with its default
    credentials.
    """

    def __init__(
        self, project: str, endpoint: str | None = None, *, patience: float = 60.0
    ) -> None:
        """`patience` is for how many seconds a request is tried again before its error is raised."""
        self.project = project
        if endpoint:
            self.endpoint = endpoint.rstrip("/")
        else:
            self.endpoint = None
        self.notice_refused = ""
        """Why VMs have no longer preemption notice than usual, one sentence, once Compute Engine
        has refused it.
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
        """Find credentials anew, as after a login; requests under way keep those they have. Raises
        CloudError.
        """
        await self._calls.open()

    @property
    def ahead(self) -> float:
        """By how many seconds this machine's clock is ahead of Compute Engine's (negative: behind),
        by its latest answers; 0 where they may agree, or nothing was asked yet.
        """
        return self._calls.clients.clock.ahead

    async def check(self) -> None:
        """See that the project can be used; the error says what to type if not."""
        await self._described()

    async def _described(self) -> compute_v1.Project:
        """The project as Compute Engine describes it, with what it counts for all regions. Raises
        CloudError.
        """
        projects = self._calls.clients.projects
        try:
            return await self._calls.call(
                self._whole, lambda: projects.get(project=self.project, **PLAIN), patience=10.0
            )
        except GoneError as error:
            what = f"There is no project {self.project}, or the credentials may not see it"
            raise AccessError(
                what, fix="Type `gcloud projects list` to see the projects you have."
            ) from error

    async def principal(self) -> str:
        """Whose credentials are used, an e-mail address mostly; nothing with an emulator. Raises
        CloudError.
        """
        if self.endpoint:
            return ""
        return await self._calls.call("Google's sign-in", principal)

    async def signed_in(self) -> SignedIn | None:
        """Which credentials are used, with a fresh token; None with an emulator. Raises CloudError."""
        if self.endpoint:
            return None
        return await self._calls.call("Google's sign-in", signed_in, patience=5.0)

    async def examine(
        self, requests: Sequence[VmRequest], *, firewall: bool = True, bucket: str = ""
    ) -> list[Finding]:
        """Whether the project could have these VMs, question by question; nothing is made.

        `firewall`: with rules of the cluster's own; `bucket`: the name of its bucket, if it has
        one.
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
        """The zones that have the GPU of `shape`, or its machine type if it has no GPU attached."""
        return await zones_with(self._calls, self.project, shape)

    async def list_prices(self, day: str) -> list[PriceRow]:
        """Google's list prices of today (`day`) in all regions, as rows of the catalog's table.
        Raises CloudError.
        """
        return await list_prices(self._calls, self.project, self.endpoint, day)

    async def insert(self, request: VmRequest, *, timeout: float = 600.0) -> Vm:
        """Make the VM and return it once it is RUNNING.

        The same request again, also by another process, continues the first. A VM of that name with
        other labels, of another machine type or for another key is not ours: AlreadyExistsError.
        Taken away before it ran: GoneError.
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
            f"Compute Engine refuses the preemption notice of {request.notice_seconds} s, so Spot VMs are requested "
            f"without it: {error}"
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
                except GoneError as error:  # not the VM, of course, but its image, network or zone
                    raise CloudError(
                        f"What the VM needs is not there: {error.what}", where=where
                    ) from error
                await self._finish(zone, name, operation)
            except AlreadyExistsError:
                # An attempt whose answer was lost made it, or one of a process that is gone: then
                # it is as we want it.
                found = await self._appeared(zone, name)
                if found is None or not found.made_by(request):
                    raise
            return await self._running(zone, name)

    async def insert_many(
        self, requests: Sequence[VmRequest], *, timeout: float = 600.0
    ) -> dict[str, Vm | CloudError]:
        """Make VMs that differ in nothing but their names with one request; each that runs, or why
        it does not.

        As many as can be had are made. One that is not known to run or not, after `timeout` or
        because nobody answers, takes none of the others along. Raises CloudError where nothing is
        known of any.
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
            with suppress(CloudError):  # the operation may wait for one while the others run
                async with limit(_LAST_LOOK_SECONDS, "They are not listed", where):
                    await bulk.look(requests, outcome)
            if not outcome:
                raise
            return {request.name: outcome.get(request.name, error) for request in requests}
        return outcome

    async def get(self, zone: str, name: str) -> Vm | None:
        """The VM, or None if there is none of that name."""
        instances = self._calls.clients.instances
        whole = {"project": self.project, "zone": zone, "instance": name, **PLAIN}
        try:
            return vm_of(await self._calls.call(_place(zone, name), lambda: instances.get(**whole)))
        except GoneError:
            return None

    async def list(
        self, labels: Mapping[str, str], *, within: Collection[str] | None = None
    ) -> list[Vm]:
        """All VMs of the project, in every zone, that have these labels.

        UnreachableError where a zone does not tell its VMs: one of `within`, or any if that is
        None.
        """
        return [
            vm
            for vm in await self._list(labelled(labels), within)
            if labels.items() <= vm.labels.items()
        ]

    async def named(self, pattern: str, *, within: Collection[str] | None = None) -> list[Vm]:
        """All VMs of the project, in every zone, whose whole name fits a regular expression
        (without quotes).

        UnreachableError as of `list`.
        """
        return [
            vm
            for vm in await self._list(f"name eq '{pattern}'", within)
            if re.fullmatch(pattern, vm.name)
        ]

    async def _list(self, wanted: str, within: Collection[str] | None) -> list[Vm]:
        from google.cloud import compute_v1

        message = compute_v1.AggregatedListInstancesRequest(
            project=self.project, filter=wanted, max_results=500
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
        """Delete the VM that has the name and these labels, with its disk, and return when it is
        gone.

        There being no such VM is success; one of that name without the labels is somebody else's,
        and stays. What is returned is the moment at which Compute Engine began to end it; None
        where that was not our doing.
        """
        from google.cloud import compute_v1

        vm = await self.get(zone, name)
        if vm is None:
            return None
        if not labels.items() <= vm.labels.items():
            log.warning(
                "%s is not deleted: its labels say that it is another's", _place(zone, name)
            )
            return None
        begun: datetime | None = None
        instances = self._calls.clients.instances
        where = _place(zone, name)

        async def delete() -> None:
            nonlocal begun
            # By its id: the name may be another's by the time that the request arrives.
            message = compute_v1.DeleteInstanceRequest(
                project=self.project, zone=zone, instance=vm.id, request_id=str(uuid.uuid4())
            )
            operation = await self._calls.call(
                where, lambda: instances.delete_unary(message, **PLAIN)
            )
            if vm.status in LEAVING:
                begun = None
            else:
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
        """Have the VM preempted as Google would do it (a simulated maintenance event); returns once
        accepted.
        """
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
        """Have the VM let in one more key ("USER:ssh-ed25519 AAAA..."). Raises CloudError."""
        from google.cloud import compute_v1

        instances = self._calls.clients.instances
        where = _place(zone, name)
        whole = {"project": self.project, "zone": zone, "instance": name}

        def add() -> None:
            metadata = instances.get(**whole, **PLAIN).metadata
            items = {item.key: item.value for item in metadata.items}
            items["ssh-keys"] = "\n".join(filter(None, [items.get("ssh-keys", ""), line]))
            changed = compute_v1.Metadata(
                fingerprint=metadata.fingerprint,  # refused where somebody else changed it in between
                items=[compute_v1.Items(key=key, value=value) for key, value in items.items()],
            )
            instances.set_metadata_unary(**whole, metadata_resource=changed, **PLAIN)

        async for attempt in stamina.retry_context(on=ChangedError, attempts=5):
            with attempt:
                await self._calls.call(where, add)

    async def host_keys(self, zone: str, name: str, *, timeout: float = 180.0) -> list[str]:
        """The VM's SSH host keys ("ssh-ed25519 AAAA..."), as the VM itself told Compute Engine
        while it booted.
        """

        async def told() -> list[str] | None:
            found = await self.guest_attributes(zone, name, "hostkeys")
            keys = sorted(f"{key} {value}" for key, value in found.items() if value)
            if any(key.startswith("ssh-ed25519 ") for key in keys):
                return keys
            return None

        async with limit(timeout, f"{name} did not tell its host keys", _place(zone, name)):
            return await until(told)

    async def guest_attributes(self, zone: str, name: str, namespace: str) -> dict[str, str]:
        """What programs in the VM have told Compute Engine, by key. GoneError where there is no
        such VM.
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
        """What the VM wrote to its serial port 1: its kernel, and the output of its start-up
        script.
        """
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
        """When VMs of the zone, by their id, began to end of late: preempted, stopped or deleted,
        by anybody.

        None of one that was stopped and started again.
        """
        return _endings(await self._done(zone, (*_ENDINGS, _START)))

    async def life(self, zone: str, name: str) -> Life | None:
        """The latest life of a VM that may be gone, as the operations of late tell it; None where
        none tells of one.

        One that was taken away before it ran had none.
        """
        done = await self._done(zone, ("insert", *_ENDINGS))
        endings = _endings(done)
        lives: list[Life] = []
        for each in done:
            started = moment_of(each.end_time)  # an insert is done when the VM runs
            if (
                each.operation_type == "insert"
                and each.target_link.rpartition("/")[2] == name
                and started
            ):
                lives.append(Life(str(each.target_id), started, endings.get(str(each.target_id))))
        return max(
            (life for life in lives if life.stopping is None or life.started < life.stopping),
            key=lambda life: life.started,
            default=None,
        )

    async def _done(self, zone: str, kinds: Sequence[str]) -> list[compute_v1.Operation]:
        """The zone's operations of these kinds, of late, but for those that failed."""
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
        return [each for each in found if each.operation_type in kinds and not each.error.errors]

    async def _finish(self, zone: str, name: str, operation: compute_v1.Operation) -> None:
        """Wait until the operation on VM `name` is done, and raise its error if it has one."""
        where = _place(zone, name)
        try:
            done = await self._calls.finished(zone, where, operation)
        except GoneError:
            # Operations get forgotten (by an emulator that was started again, say): the VM tells
            # what became of it.
            if await self.get(zone, name) is None:
                raise
        else:
            if error := self._calls.failure(done, where):
                raise error

    async def _appeared(self, zone: str, name: str) -> Vm | None:
        """A VM that exists by its name may still be unknown to `get` for a while; None if that
        lasts.
        """
        try:
            async with asyncio.timeout(30):
                return await until(lambda: self.get(zone, name))
        except TimeoutError:
            return None

    async def _running(self, zone: str, name: str) -> Vm:
        """Wait until the VM runs. It may be taken away before it ever does."""

        async def runs() -> Vm | None:
            vm = await self.get(zone, name)
            if vm is None or vm.status in LEAVING:
                raise GoneError(f"{name} was taken away before it ran", where=f"zone {zone}")
            return vm if vm.status == "RUNNING" else None

        return await until(runs)

    @property
    def _whole(self) -> str:
        return f"project {self.project}"


def _endings(done: Sequence[compute_v1.Operation]) -> dict[str, datetime]:
    """By the VM's id, when the first of what ended it was asked for, since it was started last."""
    found: dict[str, datetime] = {}
    told = [(moment, each) for each in done if (moment := moment_of(each.insert_time))]
    for moment, each in sorted(told, key=lambda one: one[0]):
        number = str(each.target_id)
        if each.operation_type == _START:
            found.pop(number, None)
        elif each.operation_type in _ENDINGS:
            found.setdefault(number, moment)
    return found


def _place(zone: str, name: str) -> str:
    return f"{name} in zone {zone}"


def scopes(
    pages: Iterable[Any], where: str, within: Collection[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """The scopes of all pages, as `zones/ZONE`, and what each has.

    Raises UnreachableError where something may be missing: in a zone of `within`, or in any zone if
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
                [_last(each.value) for each in page.warning.data if each.key == "scope"]
                or missing
                or [""]
            )
        for zone in missing:
            if not zone or within is None or zone in within:
                what = f"Compute Engine does not tell what is in {f'zone {zone}' if zone else 'every zone'} now"
                raise UnreachableError(what, where=where, fix="Try again in a moment.")
        yield from items.items()


def _last(path: str) -> str:
    return path.rpartition("/")[2]
