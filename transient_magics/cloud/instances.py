"""Changes of VMs: create many with one request; stop, resize or start one.

Compute Engine answers a bulk request with one operation. Sibling operations of the same group
report VMs that it could not create. So the number of requests depends on time and zones, and not on
the number of VMs.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ..errors import AccessError, AlreadyExistsError, CloudError, CredentialsError, GoneError
from .calling.calls import PLAIN, Calls, limit, until
from .values import LEAVING, STOPPED, Vm, VmRequest, moment_text, properties_of, request_id

if TYPE_CHECKING:
    from google.cloud import compute_v1

Lister = Callable[[Mapping[str, str]], Awaitable[list[Vm]]]
_log = logging.getLogger(__name__)
# Lists without a VM after the end of its operation before it counts as missing: lists lag behind.
_SIGHTINGS = 3

_LOCAL_SSD = "SCRATCH"
Get = Callable[[str, str], Awaitable[Vm | None]]
Finish = Callable[[str, str, "compute_v1.Operation"], Awaitable[None]]


class BulkInsert:
    """Bulk requests of one project; `list_vms` finds VMs by labels."""

    def __init__(self, calls: Calls, project: str, list_vms: Lister) -> None:
        self._calls = calls
        self._project = project
        self._list = list_vms

    async def insert(
        self,
        requests: Sequence[VmRequest],
        zone: str,
        where: str,
        outcome: dict[str, Vm | CloudError],
    ) -> None:
        """Create VMs as `ComputeEngine.insert_many` does.

        Each result is added to `outcome` as soon as it is known.
        """
        from google.cloud import compute_v1

        message = compute_v1.BulkInsertInstanceRequest(
            project=self._project,
            zone=zone,
            request_id=request_id(
                "bulk", *sorted(request.request_id or request.name for request in requests)
            ),
            bulk_insert_instance_resource_resource=compute_v1.BulkInsertInstanceResource(
                count=len(requests),
                min_count=1,
                per_instance_properties={request.name: {} for request in requests},
                instance_properties=compute_v1.InstanceProperties(properties_of(requests[0])),
            ),
        )
        instances = self._calls.clients.instances
        whole: CloudError | None = None
        denied: AccessError | None = None
        try:
            operation = await self._calls.call(
                where, lambda: instances.bulk_insert_unary(message, **PLAIN)
            )
            operation = await self._calls.finished(zone, where, operation)
            whole = self._calls.failure(operation, where)
            try:
                outcome.update(await self._failures(zone, where, operation))
            except CredentialsError:
                raise
            except AccessError as error:
                # Without the right to list operations, the reason of the whole request and the
                # existing VMs are still available.
                _log.warning("%s: the reasons for missing VMs cannot be read: %s", where, error)
                denied = error
        except AlreadyExistsError as error:
            # An attempt whose answer was lost created them (they have our labels), or they are not
            # ours.
            whole = error
        except GoneError as error:
            what = f"A resource that the VMs need does not exist: {error.what}"
            whole = CloudError(what, where=where)
        await self._settled(requests, whole, _reason_unknown(denied), outcome)

    async def _failures(
        self, zone: str, where: str, operation: compute_v1.Operation
    ) -> dict[str, CloudError]:
        """Return, by name, why VMs of this operation's group were not created."""
        from google.cloud import compute_v1

        group = operation.operation_group_id
        if not group:
            return {}
        message = compute_v1.ListZoneOperationsRequest(
            project=self._project, zone=zone, filter=f'operationGroupId="{group}"', max_results=500
        )
        operations = self._calls.clients.operations
        siblings = await self._calls.call(where, lambda: list(operations.list(message, **PLAIN)))
        failed: dict[str, CloudError] = {}
        for sibling in siblings:
            name = sibling.target_link.rsplit("/", 1)[-1]
            ours = sibling.operation_group_id == group and sibling.operation_type == "insert"
            if ours and (error := self._calls.failure(sibling, f"{name} in zone {zone}")):
                failed[name] = error
        return failed

    async def _settled(
        self,
        requests: Sequence[VmRequest],
        whole: CloudError | None,
        unexplained: CloudError | None,
        outcome: dict[str, Vm | CloudError],
    ) -> None:
        """Wait until each VM runs or has failed.

        `unexplained` is the error of a VM without a readable reason.
        """
        absent: dict[str, int] = {}

        async def settled() -> bool | None:
            found = await self.collect(requests, outcome)
            for request in requests:
                name = request.name
                vm = found.get(request.name)
                if name in outcome or (vm and vm.status not in LEAVING):
                    continue
                if vm is None and absent.setdefault(name, 0) < _SIGHTINGS and whole is None:
                    absent[name] += 1
                    continue
                gone = GoneError(
                    f"{name} was preempted before it ran", where=f"zone {request.zone}"
                )
                if vm:
                    outcome[name] = gone
                else:
                    outcome[name] = whole or unexplained or gone
            return True if len(outcome) == len(requests) else None

        await until(settled)

    async def collect(
        self, requests: Sequence[VmRequest], outcome: dict[str, Vm | CloudError]
    ) -> dict[str, Vm]:
        """Return the existing VMs by name, and add the running ones to `outcome`."""
        found = {vm.name: vm for vm in await self._list(requests[0].labels)}
        for request in requests:
            name = request.name
            vm = found.get(request.name)
            if vm and vm.status == "RUNNING" and name not in outcome:
                if vm.made_by(request):
                    outcome[name] = vm
                else:
                    what = f"The name is in use: {name} runs and differs from the request"
                    outcome[name] = AlreadyExistsError(what, where=f"zone {vm.zone}")
        return found


def _reason_unknown(denied: AccessError | None) -> CloudError | None:
    """Return the error of VMs that were not created for an unreadable reason.

    None if reasons can be read. It is not an AccessError: another zone or a later attempt may
    succeed, and a right would only reveal the reason.
    """
    if denied is None:
        return None
    what = f"The VM was not created, and the reason cannot be read: {denied.what}"
    return CloudError(what, where=denied.where, fix=denied.fix)


# Changes of stopped VMs.
#
# Compute Engine changes machine type and time limit only of stopped VMs (TERMINATED; "Edit the
# machine type of a compute instance", "Limit the run time of a VM"). A start is a new request for
# capacity, which may be refused. A time limit that is a moment stays the same after the start.


class Power:
    """Stops, starts and changes of one project's VMs.

    All methods raise CloudError, and GoneError for a missing VM. `get` finds a VM by zone and name;
    `finish` waits for an operation on it and raises its error.
    """

    def __init__(self, calls: Calls, project: str, get: Get, finish: Finish) -> None:
        self._calls = calls
        self._project = project
        self._get = get
        self._finish = finish

    async def stop(self, zone: str, name: str, *, timeout: float = 300.0) -> None:
        """Stop the VM and return when it has stopped; its boot disk stays.

        Local SSDs, which some machine types include (a2-ultragpu, a3-highgpu), are discarded:
        Compute Engine refuses a stop without that option (reference of `instances.stop`, discovery
        revision 20261106: "required if the instance has any attached Local SSD disks").

        Raises CloudError; GoneError if the VM is gone.
        """
        from google.cloud import compute_v1

        where = _place(zone, name)
        whole = self._whole(zone, name)
        instances = self._calls.clients.instances

        def stop() -> compute_v1.Operation:
            vm = {key: whole[key] for key in ("project", "zone", "instance")}
            disks = instances.get(**vm, **PLAIN).disks
            message = compute_v1.StopInstanceRequest(whole)
            if any(disk.type_ == _LOCAL_SSD for disk in disks):
                message.discard_local_ssd = True
            return instances.stop_unary(message, **PLAIN)

        async def stopped() -> bool | None:
            vm = await self._get(zone, name)
            if vm is None:
                raise GoneError(f"{name} was preempted", where=where)
            return True if vm.status in STOPPED else None

        async with limit(timeout, f"{name} did not stop", where):
            await self._done(zone, name, stop)
            await until(stopped)

    async def start(self, zone: str, name: str, *, timeout: float = 600.0) -> None:
        """Start a stopped VM. A running one is left alone.

        Raises CloudError, such as StockoutError and QuotaError.
        """
        from google.cloud import compute_v1

        async with limit(timeout, f"{name} did not start", _place(zone, name)):
            message = compute_v1.StartInstanceRequest(self._whole(zone, name))
            instances = self._calls.clients.instances
            await self._done(zone, name, lambda: instances.start_unary(message, **PLAIN))

    async def set_machine_type(
        self, zone: str, name: str, machine_type: str, *, timeout: float = 300.0
    ) -> None:
        """Change the machine type of a stopped VM. Its GPUs stay attached."""
        from google.cloud import compute_v1

        message = compute_v1.SetMachineTypeInstanceRequest(
            {
                **self._whole(zone, name),
                "instances_set_machine_type_request_resource": {
                    "machine_type": f"zones/{zone}/machineTypes/{machine_type}"
                },
            }
        )
        instances = self._calls.clients.instances
        async with limit(timeout, f"{name} did not become {machine_type}", _place(zone, name)):
            await self._done(zone, name, lambda: instances.set_machine_type_unary(message, **PLAIN))

    async def set_end(
        self, zone: str, name: str, moment: datetime, *, timeout: float = 300.0
    ) -> None:
        """Set when Compute Engine deletes a stopped VM that is started again.

        The rest of its scheduling stays.
        """
        from google.cloud import compute_v1

        whole = self._whole(zone, name)
        instances = self._calls.clients.instances

        def set_end() -> compute_v1.Operation:
            where = {key: whole[key] for key in ("project", "zone", "instance")}
            scheduling = instances.get(**where, **PLAIN).scheduling
            scheduling.termination_time = moment_text(moment)
            scheduling.instance_termination_action = "DELETE"
            message = compute_v1.SetSchedulingInstanceRequest(
                {**whole, "scheduling_resource": scheduling}
            )
            return instances.set_scheduling_unary(message, **PLAIN)

        async with limit(timeout, f"The end of {name} was not set", _place(zone, name)):
            await self._done(zone, name, set_end)

    def _whole(self, zone: str, name: str) -> dict[str, str]:
        return {
            "project": self._project,
            "zone": zone,
            "instance": name,
            "request_id": str(uuid.uuid4()),
        }

    async def _done(
        self, zone: str, name: str, request: Callable[[], compute_v1.Operation]
    ) -> None:
        await self._finish(zone, name, await self._calls.call(_place(zone, name), request))


def _place(zone: str, name: str) -> str:
    return f"{name} in zone {zone}"
