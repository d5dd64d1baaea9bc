"""Changes of an existing VM: tags, scheduling, machine type, disks, protection, power."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from .. import instances
from ..instances import Record
from ..rest import calls, wire
from ..rest.operations import Operations
from ..vms.fleet import Fleet
from .disks import Disks
from .resources import in_use

# Compute Engine's limit of one instance.
_MOST_DISKS = 128
# Fields of a VM's scheduling that cannot change while it runs.
_SETTLED = ("provisioningModel", "preemptible", "terminationTime", "maxRunDuration")
_Change = Callable[[Record, dict[str, Any], web.Request], dict[str, Any]]
"""Returns the changed fields of a VM for the body of a request."""


class Changes:
    """The routes below `instances/I` that change the instance."""

    def __init__(self, fleet: Fleet, operations: Operations, disks: Disks) -> None:
        self._fleet = fleet
        self._operations = operations
        self._disks = disks

    def routes(self) -> list[calls.Route]:
        """Return the routes."""
        instance = f"{calls.BASE}/zones/{{zone}}/instances/{{instance}}"
        changes: dict[str, _Change] = {
            "setTags": self._set_tags,
            "setScheduling": self._set_scheduling,
            "setMachineType": self._set_machine_type,
            "setDeletionProtection": self._protect,
            "setDiskAutoDelete": self._set_auto_delete,
            "attachDisk": self._attach,
            "detachDisk": self._detach,
        }
        routes: list[calls.Route] = []
        for kind, change in changes.items():
            routes.append(("POST", f"{instance}/{kind}", self._changing(kind, change)))
        routes.append(("POST", f"{instance}/reset", self._reset))
        routes.append(("POST", f"{instance}/suspend", self._suspend))
        routes.append(("POST", f"{instance}/resume", self._resume))
        return routes

    def _changing(self, kind: str, change: _Change) -> calls.Handler:
        """Return the handler that makes a change as an operation of type `kind`."""

        async def handle(request: web.Request) -> calls.Answer:
            body = await calls.body(request)
            request_id = calls.request_id(request)
            earlier = self._operations.repeated(calls.project(request), request_id)
            if earlier:
                return earlier
            record = self._record(request)
            return self._fleet.change(record, kind, change(record, body, request), request_id)

        return handle

    def _record(self, request: web.Request) -> Record:
        # Raises 404 for an unknown zone, as for an unknown instance.
        calls.scope(request)
        parts = request.match_info
        return self._fleet.get(calls.project(request), parts["zone"], parts["instance"])

    def _reset(self, request: web.Request) -> calls.Answer:
        request_id = calls.request_id(request)
        earlier = self._operations.repeated(calls.project(request), request_id)
        if earlier:
            return earlier
        return self._fleet.reset(self._record(request), request_id)

    def _suspend(self, request: web.Request) -> calls.Answer:
        # The answer for machines with GPUs on Compute Engine: the emulator cannot write away the
        # memory of processes.
        record = self._record(request)
        kind = wire.last(record.resource["machineType"])
        why = f"Suspending instances of machine type {kind} is not supported."
        raise wire.ApiError(400, "unsupportedOperation", why)

    def _resume(self, request: web.Request) -> calls.Answer:
        record = self._record(request)
        why = f"Instance is in state {record.status}; only a SUSPENDED instance can be resumed."
        raise wire.invalid("instance", wire.path_of(record.resource["selfLink"]), why)

    def _set_tags(
        self, record: Record, body: dict[str, Any], request: web.Request
    ) -> dict[str, Any]:
        fingerprint = record.resource["tags"]["fingerprint"]
        calls.check_fingerprint(body.get("fingerprint"), fingerprint, "tags")
        return {"tags": instances.check_tags(body)}

    def _set_scheduling(
        self, record: Record, body: dict[str, Any], request: web.Request
    ) -> dict[str, Any]:
        present = record.resource["scheduling"]
        given = {name: value for name, value in body.items() if value is not None}
        scheduling = {**present, **given}
        changed = [name for name in _SETTLED if scheduling.get(name) != present.get(name)]
        if record.status != "TERMINATED" and changed:
            name = changed[0]
            why = "It can only be changed while the instance is stopped."
            raise wire.invalid(f"scheduling.{name}", scheduling.get(name), why)
        accelerated = bool(record.resource.get("guestAccelerators"))
        return {"scheduling": instances.check_scheduling(scheduling, accelerated)}

    def _set_machine_type(
        self, record: Record, body: dict[str, Any], request: web.Request
    ) -> dict[str, Any]:
        if record.status != "TERMINATED":
            path = wire.path_of(record.resource["selfLink"])
            why = "Machine type cannot be changed while instance is running."
            message = f"The resource '{path}' is not ready. {why}"
            raise wire.ApiError(400, "resourceNotReady", message)
        machine = instances.find_machine(record.project, record.zone, body.get("machineType"))
        attached = record.resource.get("guestAccelerators", [])
        if machine.get("accelerators"):
            # A machine type with GPUs of its own replaces those that were attached.
            attached = []
        accelerators = instances.check_accelerators(record.project, record.zone, attached, machine)
        return {"machineType": machine["selfLink"], "guestAccelerators": accelerators}

    def _protect(
        self, record: Record, body: dict[str, Any], request: web.Request
    ) -> dict[str, Any]:
        protected = request.query.get("deletionProtection", "true").lower() == "true"
        return {"deletionProtection": protected}

    def _set_auto_delete(
        self, record: Record, body: dict[str, Any], request: web.Request
    ) -> dict[str, Any]:
        auto_delete = request.query.get("autoDelete", "").lower() == "true"
        index = self._index(record, request)
        attached = record.resource["disks"][index]
        if attached.get("source"):
            scope = f"zones/{record.zone}"
            disk = self._disks.find(record.project, scope, wire.last(attached["source"]))
            if index == 0 and not auto_delete:
                # The boot disk will outlive the VM, so its contents have to be on it.
                self._disks.mount(record, disk)
            instance = record.resource["selfLink"]
            self._disks.attach(record.project, record.zone, disk, instance, auto_delete)
        disks = [dict(disk) for disk in record.resource["disks"]]
        disks[index]["autoDelete"] = auto_delete
        return {"disks": disks}

    def _attach(self, record: Record, body: dict[str, Any], request: web.Request) -> dict[str, Any]:
        scope = f"zones/{record.zone}"
        present = record.resource["disks"]
        disk = self._disks.resolve(body.get("source"), "resource.source", record.project, scope)
        users = self._disks.users(record.project, disk)
        if users:
            raise in_use("disk", disk["selfLink"], users[0])
        if len(present) >= _MOST_DISKS:
            why = f"An instance has {_MOST_DISKS} disks at most."
            raise wire.invalid("resource.disks", len(present), why)
        index = 1 + max((attached["index"] for attached in present), default=-1)
        new = instances.attached_disk(body, index, disk["sizeGb"], disk["selfLink"])
        if any(attached["deviceName"] == new["deviceName"] for attached in present):
            raise wire.invalid("resource.deviceName", new["deviceName"], "It is in use already.")
        instance = record.resource["selfLink"]
        self._disks.attach(record.project, record.zone, disk, instance, new["autoDelete"])
        return {"disks": [*present, new]}

    def _detach(self, record: Record, body: dict[str, Any], request: web.Request) -> dict[str, Any]:
        index = self._index(record, request)
        attached = record.resource["disks"][index]
        if attached["boot"]:
            why = "The boot disk of an instance cannot be detached on this emulator."
            raise wire.invalid("deviceName", attached["deviceName"], why)
        if attached.get("source"):
            name = wire.last(attached["source"])
            disk = self._disks.find(record.project, f"zones/{record.zone}", name)
            self._disks.detach(record.project, record.zone, disk)
        disks = list(record.resource["disks"])
        del disks[index]
        return {"disks": disks}

    def _index(self, record: Record, request: web.Request) -> int:
        """Return the position of the disk that a request is about. Raises ApiError 400."""
        device = request.query.get("deviceName", "")
        if not device:
            raise wire.required("deviceName")
        for index, disk in enumerate(record.resource["disks"]):
            if disk["deviceName"] == device:
                return index
        path = wire.path_of(record.resource["selfLink"])
        raise wire.invalid("deviceName", device, f"No disk of that name is attached to '{path}'.")
