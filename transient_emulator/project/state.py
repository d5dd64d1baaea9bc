"""Which steps a project still has to take, kept across kill -9: the one set that everything else here asks.

A step is called what Google calls the thing: an API (`compute.googleapis.com`), a role, a constraint of an organization
policy, the metric of a quota. All projects of an emulator lack the same.

Beside that, the users of this machine may have one custom role of docs/accounts.md and no other
(`transient emulator project role NAME`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transient_magics.errors import DeclarationError, unknown
from transient_magics.files import write_atomically
from transient_magics.spec.project import BUCKET_ROLE
from transient_magics.spec.project import ROLES as CUSTOM_ROLES

_LOG = logging.getLogger(__name__)

COMPUTE, RESOURCE_MANAGER, IAM = "compute.googleapis.com", "cloudresourcemanager.googleapis.com", "iam.googleapis.com"
ORGANIZATION_POLICY, STORAGE = "orgpolicy.googleapis.com", "storage.googleapis.com"
CONSUMER = "roles/serviceusage.serviceUsageConsumer"
BILLING, QUOTA_PROJECT = "billing", "quota-project"
INSTANCES, SECURITY, IMAGES = (
    "roles/compute.instanceAdmin.v1",
    "roles/compute.securityAdmin",
    "roles/compute.storageAdmin",
)
BUCKETS, ACT_AS, POLICY_VIEWER = "roles/storage.admin", "roles/iam.serviceAccountUser", "roles/orgpolicy.policyViewer"
NAT, GOOGLE_ACCESS = "nat", "private-google-access"

SERVICES: dict[str, str] = {
    COMPUTE: "the Compute Engine API",
    RESOURCE_MANAGER: "the Cloud Resource Manager API",
    IAM: "the Identity and Access Management API",
    ORGANIZATION_POLICY: "the Organization Policy API",
}
CHARGES: dict[str, str] = {
    BILLING: "a billing account that pays for the project",
    QUOTA_PROJECT: "the APIs of the quota project of a login, where that is another project",
}
ROLES: dict[str, str] = {
    INSTANCES: "Compute Instance Admin (v1): VMs",
    SECURITY: "Compute Security Admin: firewall rules",
    IMAGES: "Compute Storage Admin: images",
    BUCKETS: "Storage Admin: buckets and objects",
    ACT_AS: "Service Account User: VMs that have a service account",
    POLICY_VIEWER: "Organization Policy Viewer: to be told the policies",
    CONSUMER: "Service Usage Consumer: requests that name the project to be charged",
}
POLICIES: dict[str, dict[str, Any]] = {
    "compute.requireOsLogin": {"booleanPolicy": {"enforced": True}},
    "compute.vmExternalIpAccess": {"listPolicy": {"allValues": "DENY"}},
    "compute.disableGuestAttributesAccess": {"booleanPolicy": {"enforced": True}},
    "compute.requireShieldedVm": {"booleanPolicy": {"enforced": True}},
    "compute.trustedImageProjects": {"listPolicy": {"allowedValues": ["projects/cos-cloud"]}},
    "gcp.resourceLocations": {"listPolicy": {"allowedValues": ["in:europe-locations"]}},
}
"""Each as Cloud Resource Manager describes it where it is on."""
MANAGED = (
    "compute.managed.requireOsLogin",
    "compute.managed.vmExternalIpAccess",
    "compute.managed.disableGuestAttributesAccess",
)
"""Managed constraints, which only the Organization Policy API knows ("Managed constraints",
docs.cloud.google.com/compute/docs/access/managed-constraints, read 2026-11-27)."""
_GPUS = ("K80", "P100", "V100", "P4", "T4", "L4", "A100", "A100_80GB")
QUOTAS: dict[str, float] = {
    "GPUS_ALL_REGIONS": 0.0,
    "CPUS_ALL_REGIONS": 12.0,
    "CPUS": 8.0,
    "IN_USE_ADDRESSES": 4.0,
    **{f"NVIDIA_{kind}_GPUS": 1.0 for kind in _GPUS},
    "PREEMPTIBLE_CPUS": 0.0,
    **{f"PREEMPTIBLE_NVIDIA_{kind}_GPUS": 0.0 for kind in (*_GPUS, "H100")},
}
"""The limits of a new project, as seen on free trials; that of GPUs in a region is a guess."""
NETWORK: dict[str, str] = {
    NAT: "Cloud NAT, the way out of VMs without an external address",
    GOOGLE_ACCESS: "Private Google Access of the subnetworks",
}
STEPS: dict[str, str] = {
    **CHARGES,
    **SERVICES,
    **ROLES,
    **dict.fromkeys((*POLICIES, *MANAGED), "an organization policy that is on"),
    **{name: f"a quota, {limit:g} in new projects" for name, limit in QUOTAS.items()},
    **NETWORK,
}
"""Every step by its name, in the order in which their refusals show, and what it is about."""


class Project:
    """What is lacking."""

    def __init__(self, state: Path, *, fresh: bool = False) -> None:
        self._path = state / "project.json"
        self._role = ""
        self._lacks = frozenset(STEPS) if fresh else self._load()
        if fresh:
            self._save()

    @property
    def whole(self) -> bool:
        """Whether it lacks nothing, and users have every right."""
        return not self._lacks and not self._role

    @property
    def permissions(self) -> frozenset[str] | None:
        """The permissions of the one custom role that users have; None: no custom role limits them."""
        if not self._role:
            return None
        role = CUSTOM_ROLES[self._role]
        storage = () if any(name.startswith("storage.") for name in role) else BUCKET_ROLE
        return frozenset((*role, *storage))

    def lacks(self, step: str) -> bool:
        """Whether this step has still to be taken."""
        return step in self._lacks

    def lacking(self, steps: Iterable[str]) -> list[str]:
        """Those of `steps` that have still to be taken."""
        return [step for step in steps if step in self._lacks]

    def change(self, given: Mapping[str, Any]) -> None:
        """Do one thing: `fresh` or `whole` (true), `mend` or `lack` (lists of steps), `role` (a custom role's name, or
        nothing for every right). Raises DeclarationError.
        """
        match dict(given):
            case {"fresh": True, **rest} if not rest:
                self._lacks = frozenset(STEPS)
            case {"whole": True, **rest} if not rest:
                self._lacks = frozenset()
                self._role = ""
            case {"role": str(name), **rest} if not rest:
                if name and name not in CUSTOM_ROLES:
                    raise unknown("custom role", name, CUSTOM_ROLES)
                self._role = name
            case {"mend": list(steps), **rest} if not rest:
                self._lacks -= _known(steps)
            case {"lack": list(steps), **rest} if not rest:
                self._lacks |= _known(steps)
            case _:
                fix = 'Say {"fresh": true}, {"whole": true}, {"mend": [STEP]}, {"lack": [STEP]} or {"role": NAME}.'
                raise DeclarationError("That is nothing to be done to a project", fix=fix)
        self._save()

    def to_json(self) -> dict[str, Any]:
        """What it lacks, in order, and all steps that there are."""
        return {"lacks": self.lacking(STEPS), "steps": STEPS, "role": self._role}

    def _save(self) -> None:
        state = {"lacks": self.lacking(STEPS), "role": self._role}
        write_atomically(self._path, json.dumps(state), durable=False)

    def _load(self) -> frozenset[str]:
        try:
            state = json.loads(self._path.read_text(encoding="utf-8"))
            self._role = state["role"] if state["role"] in CUSTOM_ROLES else ""
            return frozenset(state["lacks"]) & frozenset(STEPS)
        except FileNotFoundError:
            return frozenset()
        except (ValueError, KeyError, TypeError):
            _LOG.exception("%s cannot be read; the project lacks nothing", self._path)
            return frozenset()


def _known(steps: Iterable[Any]) -> frozenset[str]:
    found: set[str] = set()
    for step in steps:
        name = str(step).strip().removeprefix("constraints/")
        if name not in STEPS:
            raise unknown("step of setting up a project", name, STEPS)
        found.add(name)
    return frozenset(found)
