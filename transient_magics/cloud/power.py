"""VMs that exist, stopped, changed while they are, and started again.

Compute Engine changes the machine type and the time limit of VMs that are stopped (TERMINATED), and of no others
("Edit the machine type of a compute instance", "Limit the run time of a VM"). A start is a new request for capacity,
which may be refused; where the limit is a moment, it is the same one after the start.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING

from ..errors import GoneError
from .calling.calls import PLAIN, Calls, limit, until
from .translation import moment_text
from .values import STOPPED, Vm

if TYPE_CHECKING:
    from google.cloud import compute_v1

_LOCAL_SSD = "SCRATCH"
Get = Callable[[str, str], Awaitable[Vm | None]]
Finish = Callable[[str, str, "compute_v1.Operation"], Awaitable[None]]


class Power:
    """The power of one project's VMs, and what stands still without it. All of it raises CloudError, GoneError of a VM
    that is not there. `get` finds a VM by zone and name, `finish` waits for an operation on it and raises its error."""

    def __init__(self, calls: Calls, project: str, get: Get, finish: Finish) -> None:
        self._calls, self._project = calls, project
        self._get, self._finish = get, finish

    async def stop(self, zone: str, name: str, *, timeout: float = 300.0) -> None:
        """Stop the VM, its boot disk whole, and return when it has stopped. Raises CloudError; GoneError if it is gone.

        Local SSDs, which some machine types bring along (a2-ultragpu, a3-highgpu), are discarded: Compute Engine
        refuses a stop that says nothing about them (reference of `instances.stop`, discovery revision 20261106:
        "required if the instance has any attached Local SSD disks").
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
                raise GoneError(f"{name} was taken away", where=where)
            return True if vm.status in STOPPED else None

        async with limit(timeout, f"{name} did not stop", where):
            await self._done(zone, name, stop)
            await until(stopped)

    async def start(self, zone: str, name: str, *, timeout: float = 600.0) -> None:
        """Have a stopped VM run again; StockoutError and QuotaError as for a new one. One that runs already is left."""
        from google.cloud import compute_v1

        async with limit(timeout, f"{name} did not start", _place(zone, name)):
            message = compute_v1.StartInstanceRequest(self._whole(zone, name))
            instances = self._calls.clients.instances
            await self._done(zone, name, lambda: instances.start_unary(message, **PLAIN))

    async def set_machine_type(self, zone: str, name: str, machine_type: str, *, timeout: float = 300.0) -> None:
        """Have a stopped VM be one of this type when it is started; its GPUs stay attached."""
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

    async def set_end(self, zone: str, name: str, moment: datetime, *, timeout: float = 300.0) -> None:
        """Have Compute Engine delete a stopped VM at this moment, once it runs again; its scheduling stays else."""
        from google.cloud import compute_v1

        whole = self._whole(zone, name)
        instances = self._calls.clients.instances

        def set_end() -> compute_v1.Operation:
            where = {each: whole[each] for each in ("project", "zone", "instance")}
            scheduling = instances.get(**where, **PLAIN).scheduling
            scheduling.termination_time = moment_text(moment)
            scheduling.instance_termination_action = "DELETE"
            message = compute_v1.SetSchedulingInstanceRequest({**whole, "scheduling_resource": scheduling})
            return instances.set_scheduling_unary(message, **PLAIN)

        async with limit(timeout, f"{name} did not take its end", _place(zone, name)):
            await self._done(zone, name, set_end)

    def _whole(self, zone: str, name: str) -> dict[str, str]:
        return {"project": self._project, "zone": zone, "instance": name, "request_id": str(uuid.uuid4())}

    async def _done(self, zone: str, name: str, request: Callable[[], compute_v1.Operation]) -> None:
        await self._finish(zone, name, await self._calls.call(_place(zone, name), request))


def _place(zone: str, name: str) -> str:
    return f"{name} in zone {zone}"
