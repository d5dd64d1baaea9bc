"""What can be changed of a VM that exists: tags, scheduling, machine type, disks, protection, power."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from .. import instances
from ..instances import Record
from ..rest import calls, wire
from ..rest.operations import Operations
from ..vms.fleet import Fleet
from .disks import Disks
from .resources import in_use

_MOST_DISKS = 128
_SETTLED = ("provisioningModel", "preemptible", "terminationTime", "maxRunDuration")
"""What of a VM's scheduling stays as it is while it runs."""


class Changes:
    """The routes below `instances/I` that change it."""

    def __init__(self, fleet: Fleet, operations: Operations, disks: Disks) -> None:
        self._fleet, self._operations, self._disks = fleet, operations, disks

    def routes(self) -> list[calls.Route]:
        """What clients can ask for."""
        instance = f"{calls.BASE}/zones/{{zone}}/instances/{{instance}}"
        changes = {
            "setTags": self._set_tags, "setScheduling": self._set_scheduling, "setMachineType": self._set_machine_type,
            "setDeletionProtection": self._protect, "setDiskAutoDelete": self._set_auto_delete,
            "attachDisk": self._attach, "detachDisk": self._detach,
        }  # fmt: skip

        def changing(kind: str) -> calls.Handler:
            async def change(request: web.Request) -> calls.Answer:
                body, asked = await calls.body(request), calls.request_id(request)
                if known := self._operations.repeated(calls.project(request), asked):
                    return known
                record = self._record(request)
                return self._fleet.change(record, kind, changes[kind](record, body, request), asked)

            return change

        return [
            *(("POST", f"{instance}/{kind}", changing(kind)) for kind in changes),
            ("POST", f"{instance}/reset", self._reset),
            ("POST", f"{instance}/suspend", self._suspend),
            ("POST", f"{instance}/resume", self._resume),
        ]

    def _record(self, request: web.Request) -> Record:
        calls.scope(request)
        return self._fleet.get(calls.project(request), request.match_info["zone"], request.match_info["instance"])

    def _reset(self, request: web.Request) -> calls.Answer:
        asked = calls.request_id(request)
        if known := self._operations.repeated(calls.project(request), asked):
            return known
        return self._fleet.reset(self._record(request), asked)

    def _suspend(self, request: web.Request) -> calls.Answer:
        # As for machines with GPUs on Compute Engine: memory that processes of this machine hold is not written away.
        record = self._record(request)
        kind = wire.last(record.resource["machineType"])
        raise wire.ApiError(
            400, "unsupportedOperation", f"Suspending instances of machine type {kind} is not supported."
        )

    def _resume(self, request: web.Request) -> calls.Answer:
        record = self._record(request)
        why = f"Instance is in state {record.status}; only a SUSPENDED instance can be resumed."
        raise wire.invalid("instance", wire.path_of(record.resource["selfLink"]), why)

    def _set_tags(self, record: Record, body: dict[str, Any], request: web.Request) -> dict[str, Any]:
        calls.check_fingerprint(body.get("fingerprint"), record.resource["tags"]["fingerprint"], "tags")
        return {"tags": instances.check_tags(body)}

    def _set_scheduling(self, record: Record, body: dict[str, Any], request: web.Request) -> dict[str, Any]:
        present = record.resource["scheduling"]
        wanted = {**present, **{name: value for name, value in body.items() if value is not None}}
        changed = [name for name in _SETTLED if wanted.get(name) != present.get(name)]
        if record.status != "TERMINATED" and changed:
            why = "It can only be changed while the instance is stopped."
            raise wire.invalid(f"scheduling.{changed[0]}", wanted.get(changed[0]), why)
        return {"scheduling": instances.check_scheduling(wanted, bool(record.resource.get("guestAccelerators")))}

    def _set_machine_type(self, record: Record, body: dict[str, Any], request: web.Request) -> dict[str, Any]:
        if record.status != "TERMINATED":
            path = wire.path_of(record.resource["selfLink"])
            why = "Machine type cannot be changed while instance is running."
            raise wire.ApiError(400, "resourceNotReady", f"The resource '{path}' is not ready. {why}")
        machine = instances.find_machine(record.project, record.zone, body.get("machineType"))
        attached = [] if machine.get("accelerators") else record.resource.get("guestAccelerators", [])
        accelerators = instances.check_accelerators(record.project, record.zone, attached, machine)
        return {"machineType": machine["selfLink"], "guestAccelerators": accelerators}

    def _protect(self, record: Record, body: dict[str, Any], request: web.Request) -> dict[str, Any]:
        return {"deletionProtection": request.query.get("deletionProtection", "true").lower() == "true"}

    def _set_auto_delete(self, record: Record, body: dict[str, Any], request: web.Request) -> dict[str, Any]:
        wanted = request.query.get("autoDelete", "").lower() == "true"
        index = self._index(record, request)
        attached = record.resource["disks"][index]
        if attached.get("source"):
            scope = f"zones/{record.zone}"
            disk = self._disks.find(record.project, scope, wire.last(attached["source"]))
            if index == 0 and not wanted:
                self._disks.mount(record, disk)
            self._disks.hold(record.project, record.zone, disk, record.resource["selfLink"], wanted)
        disks = [dict(each) for each in record.resource["disks"]]
        disks[index]["autoDelete"] = wanted
        return {"disks": disks}

    def _attach(self, record: Record, body: dict[str, Any], request: web.Request) -> dict[str, Any]:
        scope, present = f"zones/{record.zone}", record.resource["disks"]
        disk = self._disks.referred(body.get("source"), "resource.source", record.project, scope)
        if users := self._disks.users(record.project, disk):
            raise in_use("disk", disk["selfLink"], users[0])
        if len(present) >= _MOST_DISKS:
            raise wire.invalid("resource.disks", len(present), f"An instance has {_MOST_DISKS} disks at most.")
        index = 1 + max((each["index"] for each in present), default=-1)
        attached = instances.attached_disk(body, index, disk["sizeGb"], disk["selfLink"])
        if any(each["deviceName"] == attached["deviceName"] for each in present):
            raise wire.invalid("resource.deviceName", attached["deviceName"], "It is in use already.")
        self._disks.hold(record.project, record.zone, disk, record.resource["selfLink"], attached["autoDelete"])
        return {"disks": [*present, attached]}

    def _detach(self, record: Record, body: dict[str, Any], request: web.Request) -> dict[str, Any]:
        index = self._index(record, request)
        attached = record.resource["disks"][index]
        if attached["boot"]:
            why = "The boot disk of an instance cannot be detached on this emulator."
            raise wire.invalid("deviceName", attached["deviceName"], why)
        if attached.get("source"):
            disk = self._disks.find(record.project, f"zones/{record.zone}", wire.last(attached["source"]))
            self._disks.release(record.project, record.zone, disk)
        return {"disks": [each for at, each in enumerate(record.resource["disks"]) if at != index]}

    def _index(self, record: Record, request: web.Request) -> int:
        """Which disk of the VM a request is about."""
        device = request.query.get("deviceName", "")
        if not device:
            raise wire.required("deviceName")
        for index, each in enumerate(record.resource["disks"]):
            if each["deviceName"] == device:
                return index
        path = wire.path_of(record.resource["selfLink"])
        raise wire.invalid("deviceName", device, f"No disk of that name is attached to '{path}'.")
