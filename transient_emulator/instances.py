"""An instance as a record: what the API shows of it, and what the emulator stores besides.

Pure data and checks.

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
"""Seconds. Compute Engine ends preemptible VMs of the older model after this time."""
_METADATA_KEY = re.compile(r"[a-zA-Z0-9-_]{1,128}")
_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
_LARGEST_VALUE = 262_144
_MODELS = ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND")


@dataclass
class Record:
    """One instance. Its fields are the format of the stored file.

    Attributes
    ----------
    project, zone, name
        Its identity in the API.
    resource
        Its JSON in the API.
    number, address
        Its number among the VMs of this emulator, and the IPv4 address that follows from it.
    folder, home
        Its folder in the state directory, and the path of its home directory.
    first
        Id and start stamp of its first process, while it runs.
    ports
        Ports of its servers on this machine's loopback, where it has no network of its own.
    preempted
        Whether its metadata shows the notice of a preemption.
    guest_attributes
        Values by namespace and key.
    ending
        When and how it ends: {"begins", "until", "then", "preemption"}.
    refusal
        When and how its operation fails, for a VM without capacity: {"at", "error", "http"}.
    operations
        Names of the operations that wait for it.
    asked
        The shares of its CPU and of its network that it was last limited to, from 0 to 1.
    vcpus
        Those of the machine type with which it was created; 0 in the records of earlier versions.
    """

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
    vcpus: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """Project, zone and name, which identify it uniquely."""
        return self.project, self.zone, self.name

    @property
    def identity(self) -> str:
        """The id, which is never reused."""
        return self.resource["id"]

    @property
    def status(self) -> str:
        """PROVISIONING, STAGING, RUNNING, STOPPING or TERMINATED."""
        return self.resource["status"]

    @property
    def transient(self) -> bool:
        """Whether it may be preempted: a Spot VM, or a preemptible VM of the older model."""
        return bool(self.resource["scheduling"]["preemptible"])

    @property
    def requested_notice(self) -> float:
        """Seconds from the notice of a preemption in its metadata to the start of its shutdown."""
        duration = self.resource["scheduling"].get("preemptionNoticeDuration")
        if not duration:
            return 0.0
        return wire.seconds(duration, "scheduling.preemptionNoticeDuration")

    @property
    def then(self) -> str:
        """The effect of a preemption or a time limit: `delete` or `stop`."""
        action = self.resource["scheduling"].get("instanceTerminationAction")
        return "delete" if action == "DELETE" else "stop"

    def attributes(self) -> dict[str, str]:
        """Return its metadata items."""
        items = self.resource["metadata"].get("items", ())
        return {item["key"]: item.get("value", "") for item in items}

    def to_dict(self) -> dict[str, Any]:
        """Return the form for the store."""
        return asdict(self)

    def limit(self, clock: Clock) -> float | None:
        """Return when its time limit ends it.

        Parameters
        ----------
        clock
            The emulated clock, on which limits are declared.

        Returns
        -------
        float or None
            Seconds since 1970 on this machine's clock; None without a limit.
        """
        scheduling = self.resource["scheduling"]
        limits: list[float] = []
        until = scheduling.get("terminationTime")
        if until:
            # The client computed the moment on this machine's clock. The time until then passes on
            # the emulated one.
            created = wire.moment(self.resource["creationTimestamp"], "creationTimestamp")
            duration = wire.moment(until, "terminationTime") - created
            limits.append(clock.at(created) + duration)
        started = self.resource.get("lastStartTimestamp")
        if started:
            begin = clock.at(wire.moment(started, "lastStartTimestamp"))
            longest = scheduling.get("maxRunDuration")
            if longest:
                limits.append(begin + wire.seconds(longest, "maxRunDuration"))
            if self.transient and scheduling["provisioningModel"] == "STANDARD":
                limits.append(begin + DAY)
        if not limits:
            return None
        return clock.when(min(limits))

    def show_end(self, moment: float | None) -> None:
        """Show in the resource when its time limit ends it.

        Compute Engine shows that for running VMs with a declared limit only.

        Parameters
        ----------
        moment
            Seconds since 1970; None without a limit.
        """
        limited = {"terminationTime", "maxRunDuration"} & self.resource["scheduling"].keys()
        if moment is not None and limited and self.status == "RUNNING":
            scheduling = {"terminationTimestamp": wire.now(moment)}
            self.resource["resourceStatus"] = {"scheduling": scheduling}
        else:
            self.resource.pop("resourceStatus", None)


def new_record(
    project: str,
    zone: str,
    body: dict[str, Any],
    number: int,
    address: str,
    folder: str,
    home: Path,
) -> Record:
    """Return the record of a new instance.

    Parameters
    ----------
    project, zone
        Where the instance belongs.
    body
        The body of the insert.
    number, address, folder, home
        See `Record`.

    Raises
    ------
    ApiError
        400 if the request is not legal.
    """
    tables.zone(project, zone)
    name = wire.check_name(body.get("name"))
    machine = find_machine(project, zone, body.get("machineType"))
    given_accelerators = body.get("guestAccelerators") or []
    accelerators = check_accelerators(project, zone, given_accelerators, machine)
    resource: dict[str, Any] = {
        "kind": "compute#instance",
        "id": wire.fresh_id(),
        "creationTimestamp": wire.now(),
        "name": name,
        "description": str(body.get("description", "")),
        "status": "PROVISIONING",
        "zone": wire.link(project, "zones", zone),
        "selfLink": wire.link(project, "zones", zone, "instances", name),
        "machineType": machine["selfLink"],
        "canIpForward": bool(body.get("canIpForward", False)),
        "cpuPlatform": "Intel Skylake",
        "tags": check_tags(body.get("tags") or {}),
        "metadata": check_metadata(body.get("metadata") or {}),
        "networkInterfaces": _interfaces(project, zone, body.get("networkInterfaces"), address),
        "disks": _disks(project, zone, name, body.get("disks")),
        "scheduling": check_scheduling(body.get("scheduling") or {}, bool(accelerators)),
        "serviceAccounts": _service_accounts(project, body.get("serviceAccounts") or []),
        "startRestricted": False,
        "deletionProtection": bool(body.get("deletionProtection", False)),
        "shieldedInstanceConfig": {
            "enableSecureBoot": False,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
        **label_fields(body.get("labels") or {}),
    }
    if accelerators:
        resource["guestAccelerators"] = accelerators
    # Last, since it is a digest of all other fields.
    resource["fingerprint"] = wire.fingerprint(resource)
    vcpus = int(machine["guestCpus"])
    return Record(project, zone, name, resource, number, address, folder, str(home), vcpus=vcpus)


def label_fields(labels: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a resource that hold its labels.

    Raises ApiError 400 for illegal labels.
    """
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(str(value)):
            why = "Only lower case letters, digits, '-' and '_'."
            raise wire.invalid("resource.labels", f"{key}={value}", why)
    fields: dict[str, Any] = {"labelFingerprint": wire.fingerprint(sorted(labels.items()))}
    if labels:
        fields["labels"] = labels
    return fields


def check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata with its fingerprint.

    Raises
    ------
    ApiError
        400 for illegal or duplicate keys, or values above 262,144 bytes.
    """
    field = "resource.metadata"
    items = metadata.get("items") or []
    keys = [str(item.get("key", "")) for item in items]
    for item, key in zip(items, keys, strict=True):
        if not _METADATA_KEY.fullmatch(key):
            raise wire.invalid(field, key, "Must be a match of regex '[a-zA-Z0-9-_]{1,128}'")
        if len(str(item.get("value", "")).encode()) > _LARGEST_VALUE:
            raise wire.invalid(field, key, f"The value is larger than {_LARGEST_VALUE} bytes.")
    if len(set(keys)) != len(keys):
        raise wire.invalid(field, ", ".join(keys), "Duplicate keys.")
    fields: dict[str, Any] = {"kind": "compute#metadata", "fingerprint": wire.fingerprint(items)}
    if items:
        fields["items"] = items
    return fields


def find_machine(project: str, zone: str, given: object) -> dict[str, Any]:
    """Return the machine type that a request names. Raises ApiError 400 if the zone has none."""
    if not given or not isinstance(given, str):
        raise wire.required("resource.machineType")
    try:
        return tables.machine_type(project, zone, wire.last(given))
    except wire.ApiError:
        why = "The referenced resource does not exist."
        raise wire.invalid("resource.machineType", given, why) from None


def check_accelerators(
    project: str, zone: str, given: list[dict[str, Any]], machine: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the GPUs of an instance.

    Parameters
    ----------
    project, zone
        Where the instance belongs.
    given
        The GPUs of the request.
    machine
        The resource of the instance's machine type.

    Raises
    ------
    ApiError
        400 if the machine type does not take these GPUs.
    """
    name = machine["name"]
    built_in = machine.get("accelerators")
    if built_in:
        kind = built_in[0]["guestAcceleratorType"]
        count = built_in[0]["guestAcceleratorCount"]
        for accelerator in given:
            given_kind = wire.last(accelerator["acceleratorType"])
            if given_kind != kind or int(accelerator.get("acceleratorCount", 0)) != count:
                why = f"{name} comes with {count} {kind}."
                raise wire.invalid("resource.guestAccelerators", accelerator, why)
        # The request may leave them out. The resource shows them.
        given = [{"acceleratorType": kind, "acceleratorCount": count}]
    result: list[dict[str, Any]] = []
    for accelerator in given:
        kind = wire.last(str(accelerator.get("acceleratorType", "")))
        count = int(accelerator.get("acceleratorCount", 0))
        try:
            offered = tables.accelerator_type(project, zone, kind)
        except wire.ApiError:
            field = "resource.guestAccelerators[0].acceleratorType"
            why = "The referenced resource does not exist."
            raise wire.invalid(field, accelerator.get("acceleratorType"), why) from None
        if not built_in:
            tables.check_attachment(zone, name, kind, count)
        result.append({"acceleratorType": offered["selfLink"], "acceleratorCount": count})
    return result


def _interfaces(
    project: str, zone: str, given: list[dict[str, Any]] | None, address: str
) -> list[dict[str, Any]]:
    if not given:
        why = "At least one network interface is required."
        raise wire.invalid("resource.networkInterfaces", "", why)
    first = given[0]
    network = wire.last(first.get("network") or "default")
    subnet = wire.last(first.get("subnetwork") or network)
    region = catalog.region(zone)
    interface: dict[str, Any] = {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "networkIP": address,
        "stackType": "IPV4_ONLY",
        "network": wire.link(project, "global", "networks", network),
        "subnetwork": wire.link(project, "regions", region, "subnetworks", subnet),
        "fingerprint": wire.fingerprint((network, address)),
    }
    if first.get("accessConfigs"):
        interface["accessConfigs"] = [_access(config) for config in first["accessConfigs"]]
    return [interface]


def _access(given: dict[str, Any]) -> dict[str, Any]:
    # There is no natIP: an emulated VM has no external address, and must not pretend to have one.
    return {
        "kind": "compute#accessConfig",
        "type": "ONE_TO_ONE_NAT",
        "name": given.get("name") or "External NAT",
        "networkTier": "PREMIUM",
    }


def _disks(
    project: str, zone: str, name: str, given: list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    if not given:
        raise wire.invalid("resource.disks", "", "No disks are specified.")
    disks: list[dict[str, Any]] = []
    for index, disk in enumerate(given):
        parameters = disk.get("initializeParams") or {}
        size = str(disk.get("diskSizeGb") or parameters.get("diskSizeGb") or 10)
        if not size.isdigit():
            raise wire.invalid("resource.disks[0].diskSizeGb", size, "Must be a number.")
        source = ""
        if disk.get("type") != "SCRATCH":
            # Compute Engine names a boot disk after its VM.
            default_name = name if index == 0 else f"{name}-{index}"
            disk_name = parameters.get("diskName") or default_name
            disk_name = wire.last(disk.get("source") or disk_name)
            source = wire.link(project, "zones", zone, "disks", disk_name)
        disks.append(attached_disk(disk, index, size, source))
    return disks


def attached_disk(given: dict[str, Any], index: int, size: str, source: str) -> dict[str, Any]:
    """Return a disk as an instance shows it.

    Parameters
    ----------
    given
        The disk in the request.
    index
        Its position; the disk at 0 is the boot disk.
    size
        In GB.
    source
        The URL of its resource; empty for local scratch disks.
    """
    resource: dict[str, Any] = {
        "kind": "compute#attachedDisk",
        "type": given.get("type") or "PERSISTENT",
        "mode": "READ_WRITE",
        "index": index,
        "deviceName": given.get("deviceName") or f"persistent-disk-{index}",
        "boot": index == 0,
        "interface": given.get("interface") or "SCSI",
        "autoDelete": bool(given.get("autoDelete", False)),
        "diskSizeGb": size,
        "architecture": "X86_64",
    }
    if source:
        resource["source"] = source
    return resource


def check_scheduling(given: dict[str, Any], accelerated: bool) -> dict[str, Any]:
    """Return the scheduling of an instance with Compute Engine's defaults.

    Parameters
    ----------
    given
        The scheduling in the request.
    accelerated
        Whether the instance has GPUs.

    Raises
    ------
    ApiError
        400 for fields that contradict each other.
    """
    spot = given.get("provisioningModel") == "SPOT"
    transient = spot or bool(given.get("preemptible"))
    default_maintenance = "TERMINATE" if transient else "MIGRATE"
    scheduling: dict[str, Any] = {
        "provisioningModel": given.get("provisioningModel") or "STANDARD",
        "preemptible": transient,
        "automaticRestart": bool(given.get("automaticRestart", not transient)),
        "onHostMaintenance": given.get("onHostMaintenance") or default_maintenance,
    }
    prefix = "resource.scheduling"
    if scheduling["provisioningModel"] not in _MODELS:
        model = scheduling["provisioningModel"]
        raise wire.invalid(f"{prefix}.provisioningModel", model, "Unknown value.")
    if transient and scheduling["automaticRestart"]:
        why = "Scheduling must have preemptible be false when AutomaticRestart is true."
        raise wire.invalid(f"{prefix}.automaticRestart", True, why)
    if (transient or accelerated) and scheduling["onHostMaintenance"] != "TERMINATE":
        why = (
            "Instances that are preemptible or have guest accelerators do not support live "
            "migration."
        )
        raise wire.invalid(f"{prefix}.onHostMaintenance", scheduling["onHostMaintenance"], why)
    limit = _check_time_limit(given, transient and not spot)
    scheduling.update(limit)
    notice = given.get("preemptionNoticeDuration")
    if notice:
        field = f"{prefix}.preemptionNoticeDuration"
        if not spot:
            why = "Only instances of the Spot provisioning model may have it."
            raise wire.invalid(field, notice, why)
        if wire.seconds(notice, field) not in (0.0, 120.0):
            raise wire.invalid(field, notice, "Must be 0 or 120 seconds.")
        scheduling["preemptionNoticeDuration"] = notice
    field = f"{prefix}.instanceTerminationAction"
    action = given.get("instanceTerminationAction")
    if action not in (None, "", "STOP", "DELETE"):
        raise wire.invalid(field, action, "Must be STOP or DELETE.")
    if limit and not action:
        raise wire.invalid(field, "", "A time limit needs STOP or DELETE.")
    if spot or action:
        scheduling["instanceTerminationAction"] = action or "STOP"
    return scheduling


def _check_time_limit(given: dict[str, Any], older_model: bool) -> dict[str, Any]:
    """Return the field of the time limit; empty without one. Raises ApiError 400."""
    names = [name for name in ("maxRunDuration", "terminationTime") if given.get(name)]
    if not names:
        return {}
    if len(names) == 2:
        why = "Only one of maxRunDuration and terminationTime can be given."
        raise wire.invalid("resource.scheduling", given, why)
    name = names[0]
    value = given[name]
    field = f"resource.scheduling.{name}"
    if older_model:
        raise wire.invalid(field, value, "Not for the preemptible model.")
    # Only the form is checked here. `Record.limit` computes the moment.
    if name == "maxRunDuration":
        wire.seconds(value, field)
    else:
        wire.moment(str(value), field)
    return {name: value}


def check_tags(given: dict[str, Any]) -> dict[str, Any]:
    """Return tags with their fingerprint. Raises ApiError 400 for illegal tags."""
    items = given.get("items") or []
    for item in items:
        wire.check_name(item, "resource.tags.items")
    fields: dict[str, Any] = {"fingerprint": wire.fingerprint(items)}
    if items:
        fields["items"] = items
    return fields


def _service_accounts(project: str, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    default = f"{wire.fixed_id('projects', project)}-compute@developer.gserviceaccount.com"
    accounts: list[dict[str, Any]] = []
    for account in given:
        email = account.get("email")
        if email in (None, "", "default"):
            email = default
        accounts.append({"email": email, "scopes": account.get("scopes") or []})
    return accounts
