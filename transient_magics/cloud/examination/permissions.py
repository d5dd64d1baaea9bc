"""Which permissions a declaration takes, by the calls that are made for it (`calling/permissions.py`).

`lacking` asks Google which of them the credentials in use have. Rights on a single bucket count, rights on a single
network or image do not show in the project's answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...errors import CloudError
from ..calling.calls import RESOURCE_MANAGER, STORAGE, Calls, ask
from ..calling.permissions import (
    EXTERNAL_ADDRESS,
    OWN_IMAGE,
    SERVICE_ACCOUNT,
    Purpose,
    permissions_for,
)
from ..values import VmRequest

_MOST = 100  # in one question


ALL = (
    *permissions_for(set(Purpose) - {Purpose.BAKE, Purpose.ADVICE}),
    *EXTERNAL_ADDRESS,
    *SERVICE_ACCOUNT,
    *OWN_IMAGE,
)
"""What a user needs at most who neither builds images nor asks for advice."""

_MAKING = ("storage.buckets.create", "storage.buckets.list")


def needed(requests: Sequence[VmRequest], *, firewall: bool, bucket: str) -> tuple[str, ...]:
    """The permissions in the project that VMs like these take, with or without firewall rules and a bucket."""
    own_image = any(request.image and not _elsewhere(request.image) for request in requests)
    purposes = {Purpose.RUN, Purpose.DECLARE}
    if own_image:
        purposes.add(Purpose.IMAGES)
    if any(not request.external_ip for request in requests):
        purposes.add(Purpose.WAY_OUT)
    if firewall:
        purposes.add(Purpose.RULES)
    if bucket:
        purposes.add(Purpose.BUCKET)
    found = list(permissions_for(purposes))
    found += EXTERNAL_ADDRESS if any(request.external_ip for request in requests) else ()
    found += SERVICE_ACCOUNT if any(request.service_account for request in requests) else ()
    found += OWN_IMAGE if own_image else ()
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
