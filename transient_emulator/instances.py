"""An instance as a record: what the API shows of it, and what the emulator remembers besides. Pure data and checks.

`new_record` turns the body of an insert into a record, or refuses it as Compute Engine does.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transient_magics import catalog
from transient_magics.clock import Clock

from .rest import tables, wire

DAY = 86_400.0
_METADATA_KEY = re.compile(r"[a-zA-Z0-9-_]{1,128}")


@dataclass
class Record:
    """One instance. `resource` is its JSON; `ending` says when and how it ends: {"begins", "until", "then",
    "preemption"}; `refusal` when and how its operation fails, for one without capacity: {"at", "error", "http"}."""

    project: str
    zone: str
    name: str
    resource: dict[str, Any]
    number: int
    address: str
    folder: str
    home: str
    first: list[Any] | None = None
    ports: dict[str, int] = field(default_factory=dict)
    preempted: bool = False
    guest_attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    ending: dict[str, Any] | None = None
    refusal: dict[str, Any] | None = None
    operations: list[str] = field(default_factory=list)
    asked: list[float] = field(default_factory=lambda: [1.0, 1.0])
    """The part of its CPU and of its network that it was asked to do with."""
    vcpus: int = 0
    """Of the machine type with which it was made; 0 in the records of earlier versions."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it uniquely."""
        return self.project, self.zone, self.name

    @property
    def identity(self) -> str:
        """The id, never used twice."""
        return self.resource["id"]

    @property
    def status(self) -> str:
        """PROVISIONING, STAGING, RUNNING, STOPPING or TERMINATED."""
        return self.resource["status"]

    @property
    def transient(self) -> bool:
        """Whether it may be preempted: Spot, or preemptible as it was before."""
        return bool(self.resource["scheduling"]["preemptible"])

    @property
    def requested_notice(self) -> float:
        """Seconds between the notice of a preemption in its metadata and the start of its shutdown."""
        duration = self.resource["scheduling"].get("preemptionNoticeDuration")
        return wire.seconds(duration, "scheduling.preemptionNoticeDuration") if duration else 0.0

    @property
    def then(self) -> str:
        """What a preemption or a time limit makes of it."""
        return "delete" if self.resource["scheduling"].get("instanceTerminationAction") == "DELETE" else "stop"

    def attributes(self) -> dict[str, str]:
        """The metadata items."""
        return {item["key"]: item.get("value", "") for item in self.resource["metadata"].get("items", ())}

    def to_dict(self) -> dict[str, Any]:
        """For the store."""
        return asdict(self)

    def limit(self, clock: Clock) -> float | None:
        """When (seconds since 1970, this machine's clock) its time is up on the emulated clock, or None."""
        scheduling = self.resource["scheduling"]
        limits: list[float] = []
        if until := scheduling.get("terminationTime"):
            created = wire.moment(self.resource["creationTimestamp"], "creationTimestamp")
            limits.append(clock.at(created) + wire.moment(until, "terminationTime") - created)
        if started := self.resource.get("lastStartTimestamp"):
            begin = clock.at(wire.moment(started, "lastStartTimestamp"))
            if longest := scheduling.get("maxRunDuration"):
                limits.append(begin + wire.seconds(longest, "maxRunDuration"))
            if self.transient and scheduling["provisioningModel"] == "STANDARD":
                limits.append(begin + DAY)
        return clock.when(min(limits)) if limits else None

    def show_end(self, moment: float | None) -> None:
        """Have the resource say when its time limit ends it, as it does of VMs that run and were given one."""
        limited = {"terminationTime", "maxRunDuration"} & self.resource["scheduling"].keys()
        if moment is not None and limited and self.status == "RUNNING":
            self.resource["resourceStatus"] = {"scheduling": {"terminationTimestamp": wire.now(moment)}}
        else:
            self.resource.pop("resourceStatus", None)


def new_record(
    project: str, zone: str, body: dict[str, Any], number: int, address: str, folder: str, home: Path
) -> Record:
    """The record of a new instance. ApiError 400 where the request is not a legal one."""
    tables.zone(project, zone)
    name = wire.check_name(body.get("name"))
    machine = machine_named(project, zone, body.get("machineType"))
    accelerators = checked_accelerators(project, zone, body.get("guestAccelerators") or [], machine)
    moment = wire.now()
    own = wire.link(project, "zones", zone, "instances", name)
    resource: dict[str, Any] = {
        "kind": "compute#instance", "id": wire.fresh_id(), "creationTimestamp": moment, "name": name,
        "description": str(body.get("description", "")), "status": "PROVISIONING",
        "zone": wire.link(project, "zones", zone), "selfLink": own, "machineType": machine["selfLink"],
        "canIpForward": bool(body.get("canIpForward", False)), "cpuPlatform": "Intel Skylake",
        "tags": checked_tags(body.get("tags") or {}), "metadata": checked_metadata(body.get("metadata") or {}),
        "networkInterfaces": _interfaces(project, zone, body.get("networkInterfaces"), address),
        "disks": _disks(project, zone, name, body.get("disks")),
        "scheduling": checked_scheduling(body.get("scheduling") or {}, bool(accelerators)),
        "serviceAccounts": _service_accounts(project, body.get("serviceAccounts") or []),
        "startRestricted": False, "deletionProtection": bool(body.get("deletionProtection", False)),
        "shieldedInstanceConfig": {"enableSecureBoot": False, "enableVtpm": True, "enableIntegrityMonitoring": True},
        **labelled(body.get("labels") or {}),
    }  # fmt: skip
    if accelerators:
        resource["guestAccelerators"] = accelerators
    resource["fingerprint"] = wire.fingerprint(resource)
    return Record(project, zone, name, resource, number, address, folder, str(home), vcpus=int(machine["guestCpus"]))


def labelled(labels: dict[str, str]) -> dict[str, Any]:
    """The fields of a resource that hold its labels."""
    for key, value in labels.items():
        if not re.fullmatch(r"[a-z][-_a-z0-9]{0,62}", key) or not re.fullmatch(r"[-_a-z0-9]{0,63}", str(value)):
            raise wire.invalid("resource.labels", f"{key}={value}", "Only lower case letters, digits, '-' and '_'.")
    fields: dict[str, Any] = {"labelFingerprint": wire.fingerprint(sorted(labels.items()))}
    return {**fields, "labels": labels} if labels else fields


def checked_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata with its fingerprint. ApiError 400 for illegal keys or too large values."""
    items = metadata.get("items") or []
    keys = [str(item.get("key", "")) for item in items]
    for item, key in zip(items, keys, strict=True):
        if not _METADATA_KEY.fullmatch(key):
            raise wire.invalid("resource.metadata", key, "Must be a match of regex '[a-zA-Z0-9-_]{1,128}'")
        if len(str(item.get("value", "")).encode()) > 262_144:
            raise wire.invalid("resource.metadata", key, "The value is larger than 262144 bytes.")
    if len(set(keys)) != len(keys):
        raise wire.invalid("resource.metadata", ", ".join(keys), "Duplicate keys.")
    fields: dict[str, Any] = {"kind": "compute#metadata", "fingerprint": wire.fingerprint(items)}
    return {**fields, "items": items} if items else fields


def machine_named(project: str, zone: str, given: object) -> dict[str, Any]:
    """The machine type that a request names. ApiError 400 where there is none."""
    if not given or not isinstance(given, str):
        raise wire.required("resource.machineType")
    try:
        return tables.machine_type(project, zone, wire.last(given))
    except wire.ApiError:
        raise wire.invalid("resource.machineType", given, "The referenced resource does not exist.") from None


def checked_accelerators(
    project: str, zone: str, given: list[dict[str, Any]], machine: dict[str, Any]
) -> list[dict[str, Any]]:
    """The GPUs of an instance of this machine type. ApiError 400 where they do not go together."""
    name = machine["name"]
    if built_in := machine.get("accelerators"):
        kind, count = built_in[0]["guestAcceleratorType"], built_in[0]["guestAcceleratorCount"]
        for each in given:
            if wire.last(each["acceleratorType"]) != kind or int(each.get("acceleratorCount", 0)) != count:
                raise wire.invalid("resource.guestAccelerators", each, f"{name} comes with {count} {kind}.")
        given = [{"acceleratorType": kind, "acceleratorCount": count}]
    result: list[dict[str, Any]] = []
    for each in given:
        kind, count = wire.last(str(each.get("acceleratorType", ""))), int(each.get("acceleratorCount", 0))
        try:
            offered = tables.accelerator_type(project, zone, kind)
        except wire.ApiError:
            field, why = "resource.guestAccelerators[0].acceleratorType", "The referenced resource does not exist."
            raise wire.invalid(field, each.get("acceleratorType"), why) from None
        if not built_in:
            tables.check_attachment(zone, name, kind, count)
        result.append({"acceleratorType": offered["selfLink"], "acceleratorCount": count})
    return result


def _interfaces(project: str, zone: str, given: list[dict[str, Any]] | None, address: str) -> list[dict[str, Any]]:
    if not given:
        raise wire.invalid("resource.networkInterfaces", "", "At least one network interface is required.")
    asked = given[0]
    network = wire.last(asked.get("network") or "default")
    subnet = wire.last(asked.get("subnetwork") or network)
    interface: dict[str, Any] = {
        "kind": "compute#networkInterface", "name": "nic0", "networkIP": address, "stackType": "IPV4_ONLY",
        "network": wire.link(project, "global", "networks", network),
        "subnetwork": wire.link(project, "regions", catalog.region(zone), "subnetworks", subnet),
        "fingerprint": wire.fingerprint((network, address)),
    }  # fmt: skip
    if asked.get("accessConfigs"):
        # No natIP: an emulated VM has no address outside, and must not pretend to.
        interface["accessConfigs"] = [
            {"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "name": each.get("name") or "External NAT",
             "networkTier": "PREMIUM"} for each in asked["accessConfigs"]
        ]  # fmt: skip
    return [interface]


def _disks(project: str, zone: str, name: str, given: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    if not given:
        raise wire.invalid("resource.disks", "", "No disks are specified.")
    disks: list[dict[str, Any]] = []
    for index, each in enumerate(given):
        made = each.get("initializeParams") or {}
        label = made.get("diskName") or (name if index == 0 else f"{name}-{index}")
        size = str(each.get("diskSizeGb") or made.get("diskSizeGb") or 10)
        if not size.isdigit():
            raise wire.invalid("resource.disks[0].diskSizeGb", size, "Must be a number.")
        source = wire.link(project, "zones", zone, "disks", wire.last(each.get("source") or label))
        disks.append(attached_disk(each, index, size, "" if each.get("type") == "SCRATCH" else source))
    return disks


def attached_disk(given: dict[str, Any], index: int, size: str, source: str) -> dict[str, Any]:
    """A disk as an instance shows it: `size` in GB, `source` the URL of its resource (none for local scratch disks)."""
    resource = {
        "kind": "compute#attachedDisk", "type": given.get("type") or "PERSISTENT", "mode": "READ_WRITE",
        "index": index, "deviceName": given.get("deviceName") or f"persistent-disk-{index}", "boot": index == 0,
        "interface": given.get("interface") or "SCSI", "autoDelete": bool(given.get("autoDelete", False)),
        "diskSizeGb": size, "architecture": "X86_64",
    }  # fmt: skip
    return resource | ({"source": source} if source else {})


def checked_scheduling(given: dict[str, Any], accelerated: bool) -> dict[str, Any]:
    """The scheduling of an instance. ApiError 400 for what contradicts itself."""
    spot = given.get("provisioningModel") == "SPOT"
    transient = spot or bool(given.get("preemptible"))
    scheduling: dict[str, Any] = {
        "provisioningModel": given.get("provisioningModel") or "STANDARD", "preemptible": transient,
        "automaticRestart": bool(given.get("automaticRestart", not transient)),
        "onHostMaintenance": given.get("onHostMaintenance") or ("TERMINATE" if transient else "MIGRATE"),
    }  # fmt: skip
    if scheduling["provisioningModel"] not in ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"):
        raise wire.invalid("resource.scheduling.provisioningModel", scheduling["provisioningModel"], "Unknown value.")
    if transient and scheduling["automaticRestart"]:
        why = "Scheduling must have preemptible be false when AutomaticRestart is true."
        raise wire.invalid("resource.scheduling.automaticRestart", True, why)
    if (transient or accelerated) and scheduling["onHostMaintenance"] != "TERMINATE":
        why = "Instances that are preemptible or have guest accelerators do not support live migration."
        raise wire.invalid("resource.scheduling.onHostMaintenance", scheduling["onHostMaintenance"], why)
    limited = [name for name in ("maxRunDuration", "terminationTime") if given.get(name)]
    if len(limited) == 2:
        raise wire.invalid("resource.scheduling", given, "Only one of maxRunDuration and terminationTime can be given.")
    if limited and transient and not spot:
        raise wire.invalid(f"resource.scheduling.{limited[0]}", given[limited[0]], "Not for the preemptible model.")
    for name in limited:
        if name == "maxRunDuration":
            wire.seconds(given[name], f"resource.scheduling.{name}")
        else:
            wire.moment(str(given[name]), f"resource.scheduling.{name}")
        scheduling[name] = given[name]
    if notice := given.get("preemptionNoticeDuration"):
        field = "resource.scheduling.preemptionNoticeDuration"
        if not spot:
            raise wire.invalid(field, notice, "Only instances of the Spot provisioning model may have it.")
        if wire.seconds(notice, field) not in (0.0, 120.0):
            raise wire.invalid(field, notice, "Must be 0 or 120 seconds.")
        scheduling["preemptionNoticeDuration"] = notice
    action = given.get("instanceTerminationAction")
    if action not in (None, "", "STOP", "DELETE"):
        raise wire.invalid("resource.scheduling.instanceTerminationAction", action, "Must be STOP or DELETE.")
    if limited and not action:
        raise wire.invalid("resource.scheduling.instanceTerminationAction", "", "A time limit needs STOP or DELETE.")
    if spot or action:
        scheduling["instanceTerminationAction"] = action or "STOP"
    return scheduling


def checked_tags(given: dict[str, Any]) -> dict[str, Any]:
    """Tags with their fingerprint. ApiError 400 for illegal ones."""
    items = given.get("items") or []
    for item in items:
        wire.check_name(item, "resource.tags.items")
    fields: dict[str, Any] = {"fingerprint": wire.fingerprint(items)}
    return {**fields, "items": items} if items else fields


def _service_accounts(project: str, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    default = f"{wire.fixed_id('projects', project)}-compute@developer.gserviceaccount.com"
    return [
        {
            "email": default if each.get("email") in (None, "", "default") else each["email"],
            "scopes": each.get("scopes") or [],
        }
        for each in given
    ]
