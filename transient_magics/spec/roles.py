"""The custom roles of docs/accounts.md, permission by permission.

`tests/cloud/test_permissions.py` compares them with the calls that the package makes
(`cloud/calling/permissions.py`) and with the page. The emulator enforces them
(`transient emulator project role NAME`).
"""

from __future__ import annotations


def _named(collection: str, verbs: str) -> tuple[str, ...]:
    return tuple(f"{collection}.{verb}" for verb in verbs.split())


CONTROLLER_ROLE = "transientController"
USER_ROLE = "transientUser"
_CONTROLLER = (
    *_named(
        "compute.instances",
        "create delete get list getGuestAttributes getSerialPortOutput setLabels setMachineType setMetadata "
        "setScheduling setTags simulateMaintenanceEvent start stop",
    ),
    *_named("compute.disks", "create setLabels"),
    *_named("compute.images", "useReadOnly"),
    *_named("compute.subnetworks", "use useExternalIp"),
    *_named("compute.zoneOperations", "get list"),
    *_named("compute.projects", "get"),
)
_USER = (
    *_CONTROLLER,
    *_named("compute.instances", "setServiceAccount"),
    *_named("compute.images", "get getFromFamily list"),
    *_named("compute.networks", "get updatePolicy"),
    *_named("compute.subnetworks", "get"),
    *_named("compute.routers", "list"),
    *_named("compute.firewalls", "create delete get list update"),
    *_named("compute.globalOperations", "get"),
    *_named("compute.zones", "get"),
    *_named("compute.regions", "get"),
    *_named("compute.machineTypes", "get list"),
    *_named("compute.acceleratorTypes", "get list"),
    *_named("storage.buckets", "create get list"),
    *_named("storage.objects", "create delete get list"),
)
ROLES: dict[str, tuple[str, ...]] = {CONTROLLER_ROLE: _CONTROLLER, USER_ROLE: _USER}
"""The permissions of each role, by its name."""
BUCKET_ROLE: tuple[str, ...] = _named("storage.objects", "create delete get list update")
"""What `roles/storage.objectAdmin` on the bucket gives the controller's account beside its role."""
