"""Many VMs of one shape in one zone by one request, and what became of each of them.

Compute Engine answers with one operation for all. VMs that it could not make are told by sibling operations of the
same group, so the number of requests depends on time and on zones, not on the number of VMs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import AccessError, AlreadyExistsError, CloudError, CredentialsError, GoneError
from .calling.calls import PLAIN, Calls, until
from .translation import properties_of
from .values import LEAVING, Vm, VmRequest, request_id

if TYPE_CHECKING:
    from google.cloud import compute_v1

Lister = Callable[[Mapping[str, str]], Awaitable[list[Vm]]]
_log = logging.getLogger(__name__)
_SIGHTINGS = 3  # lists without a VM after the operation's end, before it counts as missing: lists lag behind


class BulkInsert:
    """`list_vms` finds VMs by labels."""

    def __init__(self, calls: Calls, project: str, list_vms: Lister) -> None:
        self._calls, self._project, self._list = calls, project, list_vms

    async def insert(
        self, requests: Sequence[VmRequest], zone: str, where: str, outcome: dict[str, Vm | CloudError]
    ) -> None:
        """As `ComputeEngine.insert_many`; what is known of each is in `outcome` as soon as it is known."""
        from google.cloud import compute_v1

        message = compute_v1.BulkInsertInstanceRequest(
            project=self._project,
            zone=zone,
            request_id=request_id("bulk", *sorted(each.request_id or each.name for each in requests)),
            bulk_insert_instance_resource_resource=compute_v1.BulkInsertInstanceResource(
                count=len(requests),
                min_count=1,
                per_instance_properties={each.name: {} for each in requests},
                instance_properties=compute_v1.InstanceProperties(properties_of(requests[0])),
            ),
        )
        instances = self._calls.clients.instances
        whole: CloudError | None = None
        unknown: AccessError | None = None
        try:
            operation = await self._calls.call(where, lambda: instances.bulk_insert_unary(message, **PLAIN))
            operation = await self._calls.finished(zone, where, operation)
            whole = self._calls.failure(operation, where)
            try:
                outcome.update(await self._failures(zone, where, operation))
            except CredentialsError:
                raise
            except AccessError as denied:
                # Who may not list operations still learns the reason of the whole, and which VMs there are.
                _log.warning("%s: why some VMs were not made may not be asked: %s", where, denied)
                unknown = denied
        except AlreadyExistsError as error:
            whole = error  # an attempt whose answer was lost made them, and they have our labels; or they are not ours
        except GoneError as error:
            whole = CloudError(f"What the VMs need is not there: {error.what}", where=where)
        await self._settled(requests, whole, _reason_unknown(unknown), outcome)

    async def _failures(self, zone: str, where: str, operation: compute_v1.Operation) -> dict[str, CloudError]:
        """By name, why VMs of this operation's group were not made."""
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
        unknown: CloudError | None,
        outcome: dict[str, Vm | CloudError],
    ) -> None:
        """Wait until each VM runs or is known not to. `unknown`: the error of one without a reason that is told."""
        absent: dict[str, int] = {}

        async def settled() -> bool | None:
            found = await self.look(requests, outcome)
            for request in requests:
                name, vm = request.name, found.get(request.name)
                if name in outcome or (vm and vm.status not in LEAVING):
                    continue
                if vm is None and absent.setdefault(name, 0) < _SIGHTINGS and whole is None:
                    absent[name] += 1
                else:
                    gone = GoneError(f"{name} was taken away before it ran", where=f"zone {request.zone}")
                    outcome[name] = gone if vm else whole or unknown or gone
            return True if len(outcome) == len(requests) else None

        await until(settled)

    async def look(self, requests: Sequence[VmRequest], outcome: dict[str, Vm | CloudError]) -> dict[str, Vm]:
        """The VMs that there are, by name; those that run are an `outcome`."""
        found = {vm.name: vm for vm in await self._list(requests[0].labels)}
        for request in requests:
            name, vm = request.name, found.get(request.name)
            if vm and vm.status == "RUNNING" and name not in outcome:
                taken = f"The name is taken: {name} runs and is not what was asked for"
                outcome[name] = vm if vm.made_by(request) else AlreadyExistsError(taken, where=f"zone {vm.zone}")
        return found


def _reason_unknown(denied: AccessError | None) -> CloudError | None:
    """Return the error of VMs that were not made for a reason that may not be asked; None where it was told.

    It is no AccessError: the VMs may be had in another zone or later, and a right would only tell why.
    """
    if denied is None:
        return None
    what = f"It was not made, and the reason may not be asked: {denied.what}"
    return CloudError(what, where=denied.where, fix=denied.fix)
