"""The IAM permissions that each call of Compute Engine and Cloud Storage needs, by method.

Source: Google's reference of each method ("Authorization requires the following IAM permissions",
cloud.google.com/compute/docs/reference/rest/v1, and "IAM permissions for JSON methods",
cloud.google.com/storage/docs/access-control/iam-json, read 2026-11-27). `instances.bulkInsert`
needs those of `instances.insert`; waiting for an operation needs `get`.

`tests/cloud/test_permissions.py` visits all uses of the clients in this package, and fails for a
use without a row here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum


class Purpose(Enum):
    """The purpose of a call, which determines who makes it."""

    RUN = "running a cluster"
    DECLARE = "declaring a cluster and checking whether it can be created"
    RULES = "firewall rules"
    WAY_OUT = "finding the internet access of VMs without an external address"
    IMAGES = "reading images"
    BAKE = "building images"
    BUCKET = "the bucket"
    ADVICE = "advice on capacity"


@dataclass(frozen=True, slots=True)
class Call:
    """One method of a client, its purpose, and the permissions that it needs."""

    purpose: Purpose
    permissions: tuple[str, ...]


def _compute(purpose: Purpose, text: str) -> Call:
    return Call(purpose, tuple(f"compute.{name}" for name in text.split()))


def _storage(text: str) -> Call:
    return Call(Purpose.BUCKET, tuple(f"storage.{name}" for name in text.split()))


_MAKING = (
    "instances.create instances.setLabels instances.setMetadata instances.setTags disks.create disks.setLabels "
    "subnetworks.use"
)
"""Permissions for every VM; `EXTERNAL_ADDRESS` and the like are added."""
_RULE = "networks.updatePolicy"
COMPUTE: Mapping[str, Call] = {
    "instances.insert_unary": _compute(Purpose.RUN, _MAKING),
    "instances.bulk_insert_unary": _compute(Purpose.RUN, _MAKING),
    "instances.get": _compute(Purpose.RUN, "instances.get"),
    "instances.aggregated_list": _compute(Purpose.RUN, "instances.list"),
    "instances.delete_unary": _compute(Purpose.RUN, "instances.delete"),
    "instances.simulate_maintenance_event_unary": _compute(
        Purpose.RUN, "instances.simulateMaintenanceEvent"
    ),
    "instances.set_metadata_unary": _compute(Purpose.RUN, "instances.setMetadata"),
    "instances.get_guest_attributes": _compute(Purpose.RUN, "instances.getGuestAttributes"),
    "instances.get_serial_port_output": _compute(Purpose.RUN, "instances.getSerialPortOutput"),
    "instances.stop_unary": _compute(Purpose.RUN, "instances.stop"),
    "instances.start_unary": _compute(Purpose.RUN, "instances.start"),
    "instances.set_machine_type_unary": _compute(Purpose.RUN, "instances.setMachineType"),
    "instances.set_scheduling_unary": _compute(Purpose.RUN, "instances.setScheduling"),
    "operations.wait": _compute(Purpose.RUN, "zoneOperations.get"),
    "operations.list": _compute(Purpose.RUN, "zoneOperations.list"),
    "projects.get": _compute(Purpose.RUN, "projects.get"),
    "zones.get": _compute(Purpose.DECLARE, "zones.get"),
    "regions.get": _compute(Purpose.DECLARE, "regions.get"),
    "machine_types.get": _compute(Purpose.DECLARE, "machineTypes.get"),
    "machine_types.aggregated_list": _compute(Purpose.DECLARE, "machineTypes.list"),
    "accelerator_types.get": _compute(Purpose.DECLARE, "acceleratorTypes.get"),
    "accelerator_types.aggregated_list": _compute(Purpose.DECLARE, "acceleratorTypes.list"),
    "networks.get": _compute(Purpose.DECLARE, "networks.get"),
    "subnetworks.get": _compute(Purpose.WAY_OUT, "subnetworks.get"),
    "routers.list": _compute(Purpose.WAY_OUT, "routers.list"),
    "images.get": _compute(Purpose.IMAGES, "images.get"),
    "images.get_from_family": _compute(Purpose.IMAGES, "images.getFromFamily"),
    "images.list": _compute(Purpose.IMAGES, "images.list"),
    "images.insert_unary": _compute(
        Purpose.BAKE, "images.create images.setLabels disks.useReadOnly"
    ),
    "images.delete_unary": _compute(Purpose.BAKE, "images.delete"),
    "firewalls.insert_unary": _compute(Purpose.RULES, f"firewalls.create {_RULE}"),
    "firewalls.update_unary": _compute(Purpose.RULES, f"firewalls.update {_RULE}"),
    "firewalls.delete_unary": _compute(Purpose.RULES, f"firewalls.delete {_RULE}"),
    "firewalls.get": _compute(Purpose.RULES, "firewalls.get"),
    "firewalls.list": _compute(Purpose.RULES, "firewalls.list"),
    "global_operations.wait": _compute(Purpose.RULES, "globalOperations.get"),
}
"""Calls by service and method of `Clients`."""
ADVICE: Mapping[str, Call] = {
    "capacity": _compute(Purpose.ADVICE, "advice.capacity"),
    "capacityHistory": _compute(Purpose.ADVICE, "advice.capacityHistory"),
}
"""Calls by the last part of their path; these are plain requests."""
STORAGE: Mapping[str, Call] = {
    "get_bucket": _storage("buckets.get"),
    "create_bucket": _storage("buckets.create"),
    "list_buckets": _storage("buckets.list"),
    "list_blobs": _storage("objects.list"),
    "reload": _storage("objects.get"),
    "download_as_bytes": _storage("objects.get"),
    "download_to_filename": _storage("objects.get"),
    # An object that is replaced is deleted.
    "upload_from_filename": _storage("objects.create objects.delete"),
    "upload_from_string": _storage("objects.create objects.delete"),
    "delete": _storage("objects.delete"),
}
"""Calls by method of Cloud Storage's client and of its objects."""

EXTERNAL_ADDRESS = ("compute.subnetworks.useExternalIp",)
"""Permissions that a VM with an external address also needs."""
SERVICE_ACCOUNT = ("compute.instances.setServiceAccount",)
"""Permissions that a VM with a service account also needs (besides the right to use that account)."""
OWN_IMAGE = ("compute.images.useReadOnly",)
"""Permissions that a VM from an image of the project also needs."""


def permissions_for(purposes: Collection[Purpose]) -> tuple[str, ...]:
    """Return the permissions that all calls of these purposes need, in the order of the table."""
    calls = (*COMPUTE.values(), *ADVICE.values(), *STORAGE.values())
    found = [name for call in calls if call.purpose in purposes for name in call.permissions]
    return tuple(dict.fromkeys(found))
