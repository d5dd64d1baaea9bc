"""The steps that a project still has to take, kept across a kill -9.

All other modules here ask this one.

A step has the name that Google gives the thing: an API (`compute.googleapis.com`), a role, a
constraint of an organization policy, the metric of a quota. All projects of an emulator lack the
same.

In addition, the users of this machine may be limited to one custom role of docs/accounts.md
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

COMPUTE = "compute.googleapis.com"
RESOURCE_MANAGER = "cloudresourcemanager.googleapis.com"
IAM = "iam.googleapis.com"
ORGANIZATION_POLICY = "orgpolicy.googleapis.com"
STORAGE = "storage.googleapis.com"
BILLING = "billing"
QUOTA_PROJECT = "quota-project"
CONSUMER = "roles/serviceusage.serviceUsageConsumer"
INSTANCES = "roles/compute.instanceAdmin.v1"
SECURITY = "roles/compute.securityAdmin"
IMAGES = "roles/compute.storageAdmin"
BUCKETS = "roles/storage.admin"
ACT_AS = "roles/iam.serviceAccountUser"
POLICY_VIEWER = "roles/orgpolicy.policyViewer"
NAT = "nat"
GOOGLE_ACCESS = "private-google-access"

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
    POLICY_VIEWER: "Organization Policy Viewer: reading the policies",
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
"""Active policies, as Cloud Resource Manager describes them."""
# "Managed constraints", docs.cloud.google.com/compute/docs/access/managed-constraints, read
# 2026-11-27.
MANAGED = (
    "compute.managed.requireOsLogin",
    "compute.managed.vmExternalIpAccess",
    "compute.managed.disableGuestAttributesAccess",
)
"""Managed constraints, which only the Organization Policy API knows."""
_GPUS = ("K80", "P100", "V100", "P4", "T4", "L4", "A100", "A100_80GB")
# As seen on free trials. The limits of GPUs in a region are a guess.
QUOTAS: dict[str, float] = {
    "GPUS_ALL_REGIONS": 0.0,
    "CPUS_ALL_REGIONS": 12.0,
    "CPUS": 8.0,
    "IN_USE_ADDRESSES": 4.0,
    **{f"NVIDIA_{kind}_GPUS": 1.0 for kind in _GPUS},
    "PREEMPTIBLE_CPUS": 0.0,
    **{f"PREEMPTIBLE_NVIDIA_{kind}_GPUS": 0.0 for kind in (*_GPUS, "H100")},
}
"""The limits of a new project."""
NETWORK: dict[str, str] = {
    NAT: "Cloud NAT, the way out of VMs without an external address",
    GOOGLE_ACCESS: "Private Google Access of the subnetworks",
}
STEPS: dict[str, str] = {
    **CHARGES,
    **SERVICES,
    **ROLES,
    **dict.fromkeys((*POLICIES, *MANAGED), "an organization policy that is active"),
    **{name: f"a quota, {limit:g} in new projects" for name, limit in QUOTAS.items()},
    **NETWORK,
}
"""All steps with what they are about, in the order in which their refusals appear."""


class Project:
    """The state of the emulated project.

    Parameters
    ----------
    state
        The emulator's directory.
    fresh
        Whether to lack everything, instead of what an earlier emulator stored.
    """

    def __init__(self, state: Path, *, fresh: bool = False) -> None:
        self._path = state / "project.json"
        self._role = ""
        self._lacks = frozenset(STEPS)
        if fresh:
            self._save()
        else:
            self._load()

    @property
    def complete(self) -> bool:
        """Whether it lacks nothing, and users have every permission."""
        return not self._lacks and not self._role

    @property
    def permissions(self) -> frozenset[str] | None:
        """The permissions of the users' only custom role; None without such a limit."""
        if not self._role:
            return None
        role = CUSTOM_ROLES[self._role]
        if any(name.startswith("storage.") for name in role):
            return frozenset(role)
        # A role without permissions for buckets is granted together with the role for them.
        return frozenset((*role, *BUCKET_ROLE))

    def lacks(self, step: str) -> bool:
        """Return whether this step is still missing."""
        return step in self._lacks

    def lacking(self, steps: Iterable[str]) -> list[str]:
        """Return those of `steps` that are still missing."""
        return [step for step in steps if step in self._lacks]

    def change(self, change: Mapping[str, Any]) -> None:
        """Make one change and store it.

        Parameters ----------
        change
            One of `{"fresh": True}` (lack everything), `{"whole": True}` (lack nothing), `{"mend":
            [STEP]}`, `{"lack": [STEP]}` and `{"role": NAME}` (a custom role, or an empty name for
            every permission).

        Raises
        ------
        DeclarationError
            If the change, a step or the role is unknown.
        """
        if len(change) != 1:
            raise _unknown_change()
        match dict(change):
            case {"fresh": True}:
                self._lacks = frozenset(STEPS)
            case {"whole": True}:
                self._lacks = frozenset()
                self._role = ""
            case {"role": str(name)}:
                if name and name not in CUSTOM_ROLES:
                    raise unknown("custom role", name, CUSTOM_ROLES)
                self._role = name
            case {"mend": list(steps)}:
                self._lacks -= _check_steps(steps)
            case {"lack": list(steps)}:
                self._lacks |= _check_steps(steps)
            case _:
                raise _unknown_change()
        self._save()

    def to_json(self) -> dict[str, Any]:
        """Return what it lacks, in order, all steps that exist, and the users' custom role."""
        return {"lacks": self.lacking(STEPS), "steps": STEPS, "role": self._role}

    def _save(self) -> None:
        state = {"lacks": self.lacking(STEPS), "role": self._role}
        write_atomically(self._path, json.dumps(state), durable=False)

    def _load(self) -> None:
        self._lacks = frozenset()
        try:
            state = json.loads(self._path.read_text(encoding="utf-8"))
            # Another version may have stored roles and steps that this one does not have.
            if state["role"] in CUSTOM_ROLES:
                self._role = state["role"]
            self._lacks = frozenset(state["lacks"]) & frozenset(STEPS)
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError):
            _LOG.exception("cannot read %s: the project lacks nothing", self._path)


def _unknown_change() -> DeclarationError:
    fix = (
        'Send {"fresh": true}, {"whole": true}, {"mend": [STEP]}, {"lack": [STEP]} '
        'or {"role": NAME}.'
    )
    return DeclarationError("Unknown change of a project", fix=fix)


def _check_steps(steps: Iterable[Any]) -> frozenset[str]:
    """Return the steps without the prefix that constraints may have. Raises DeclarationError."""
    found: set[str] = set()
    for step in steps:
        name = str(step).strip().removeprefix("constraints/")
        if name not in STEPS:
            raise unknown("step of setting up a project", name, STEPS)
        found.add(name)
    return frozenset(found)
