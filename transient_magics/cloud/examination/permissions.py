"""Which permissions a declaration takes: the table that docs/accounts.md prints.

`lacking` asks Google which of them the credentials in use have. Rights on a single bucket count, rights on a single
network or image do not show in the project's answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...errors import CloudError
from ..calling.asking import RESOURCE_MANAGER, STORAGE, ask
from ..calling.calls import Calls
from ..values import VmRequest

_MOST = 100  # in one question


def _compute(text: str) -> tuple[str, ...]:
    return tuple(f"compute.{each}" for each in text.split())


ALWAYS = _compute(
    "instances.create instances.delete instances.get instances.list instances.getGuestAttributes instances.setLabels "
    "instances.setMetadata instances.setTags instances.simulateMaintenanceEvent instances.stop instances.start "
    "instances.setMachineType instances.setScheduling disks.create disks.setLabels "
    "subnetworks.use networks.get zones.get regions.get machineTypes.get machineTypes.list acceleratorTypes.get "
    "acceleratorTypes.list zoneOperations.get projects.get"
)
OUTSIDE = _compute("subnetworks.useExternalIp")
"""VMs with external addresses."""
ACCOUNT = _compute("instances.setServiceAccount")
"""A VM with a service account (besides the right to use that account)."""
IMAGE = _compute("images.get images.getFromFamily images.list images.useReadOnly")
"""An image of the project."""
RULES = _compute(
    "networks.updatePolicy firewalls.create firewalls.delete firewalls.get firewalls.list firewalls.update "
    "globalOperations.get"
)
"""Firewall rules."""
BUCKET = (
    *(f"storage.buckets.{verb}" for verb in ("create", "get", "list")),
    *(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list")),
)
"""Checkpoints and results in a bucket."""
ALL = (*ALWAYS, *OUTSIDE, *ACCOUNT, *IMAGE, *RULES, *BUCKET)

_MAKING = ("storage.buckets.create", "storage.buckets.list")


def needed(requests: Sequence[VmRequest], *, firewall: bool, bucket: str) -> tuple[str, ...]:
    """The permissions in the project that VMs like these take, with or without firewall rules and a bucket."""
    found = list(ALWAYS)
    found += OUTSIDE if any(each.external_ip for each in requests) else ()
    found += ACCOUNT if any(each.service_account for each in requests) else ()
    found += IMAGE if any(each.image and not _elsewhere(each.image) for each in requests) else ()
    found += RULES if firewall else ()
    found += BUCKET if bucket else ()
    return tuple(found)


async def lacking(calls: Calls, project: str, wanted: Sequence[str], bucket: str) -> list[str]:
    """Those of the `wanted` permissions that the credentials do not have. Raises CloudError."""
    path = f"/v1/projects/{project}:testIamPermissions"
    granted: set[str] = set()
    for at in range(0, len(wanted), _MOST):
        answer = await ask(calls, project, RESOURCE_MANAGER, path, {"permissions": list(wanted[at : at + _MOST])})
        granted.update(answer.get("permissions", ()))
    missing = [each for each in wanted if each not in granted]
    if bucket and (stored := [each for each in missing if each.startswith("storage.")]):
        granted |= await _of_bucket(calls, project, bucket, stored)
    return [each for each in missing if each not in granted]


async def _of_bucket(calls: Calls, project: str, bucket: str, wanted: Iterable[str]) -> set[str]:
    """What of this the credentials have in the bucket itself; one that is there needs not be made."""
    query = [("permissions", each) for each in wanted if each not in _MAKING]
    try:
        answer = await ask(calls, project, STORAGE, f"/storage/v1/b/{bucket}/iam/testPermissions", query=query)
    except CloudError:  # there is none, or nothing is told of it: what the project says holds
        return set()
    return {*answer.get("permissions", ()), *_MAKING}


def _elsewhere(image: str) -> bool:
    return "projects/" in image
