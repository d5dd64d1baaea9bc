"""Organization policies that forbid what VMs like these need: read from the project, before one is violated.

Cloud Resource Manager v1 is asked (`getEffectiveOrgPolicy`): the Organization Policy API v2 takes the same right
(`orgpolicy.policy.get`) and one more API in the project. It knows the managed constraints besides, which are newer and
which v1 does not tell; one of those shows when it refuses (`failures`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...errors import CloudError
from ...protocol import checks
from ..calling.asking import RESOURCE_MANAGER, ask
from ..calling.calls import Calls
from ..calling.mending import lift
from ..translation import IMAGE
from ..values import VmRequest
from .quotas import gpus_of

OS_LOGIN, EXTERNAL_IP = "compute.requireOsLogin", "compute.vmExternalIpAccess"
GUEST_ATTRIBUTES, SHIELDED = "compute.disableGuestAttributesAccess", "compute.requireShieldedVm"
IMAGES, LOCATIONS = "compute.trustedImageProjects", "gcp.resourceLocations"
OWN_KEYS, RETENTION = "gcp.restrictNonCmekServices", "storage.retentionPolicySeconds"


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A policy that stands in the way: its constraint, why it does (a clause), and what mends it (a sentence)."""

    constraint: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be made: VMs in a project, and with `bucket` a bucket."""

    project: str
    requests: Sequence[VmRequest]
    bucket: bool


@dataclass(frozen=True, slots=True)
class _Boolean:
    enforced: bool = False


@dataclass(frozen=True, slots=True)
class _List:
    allValues: str = ""
    allowedValues: tuple[str, ...] = ()
    deniedValues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """What Cloud Resource Manager answers about one constraint, by the names that it gives to the fields."""

    booleanPolicy: _Boolean = field(default_factory=_Boolean)
    listPolicy: _List = field(default_factory=_List)


_Check = Callable[[Policy], Forbidden | None]


async def forbidden(calls: Calls, wanted: Wanted) -> list[Forbidden]:
    """The effective policies that forbid some of it. Raises CloudError where they are not told."""
    questions = _questions(wanted)
    path = f"/v1/projects/{wanted.project}:getEffectiveOrgPolicy"

    async def effective(name: str) -> Policy:
        answer = await ask(calls, wanted.project, RESOURCE_MANAGER, path, {"constraint": f"constraints/{name}"})
        try:
            return checks.built(Policy, answer)
        except ValueError as error:
            raise CloudError(f"The policy {name} has a form that is not known: {error}", where=path) from error

    # The first alone: where nothing is told, that costs one request.
    first, *others = questions
    told = [await effective(first), *await asyncio.gather(*map(effective, others))]
    return [found for policy, check in zip(told, questions.values(), strict=True) if (found := check(policy))]


def _questions(wanted: Wanted) -> dict[str, _Check]:
    project, requests = wanted.project, wanted.requests

    def enforced(name: str, why: str, fix: str = "") -> _Check:
        def check(policy: Policy) -> Forbidden | None:
            return Forbidden(name, why, f"{fix}{lift(name, project)}") if policy.booleanPolicy.enforced else None

        return check

    zones = dict.fromkeys(each.zone for each in requests)
    found: dict[str, _Check] = {
        OS_LOGIN: enforced(OS_LOGIN, "VMs take the cluster's SSH key from their metadata, which OS Login would ignore"),
        GUEST_ATTRIBUTES: enforced(
            GUEST_ATTRIBUTES, "VMs tell their SSH host keys and how their boot goes in guest attributes"
        ),
        SHIELDED: enforced(SHIELDED, _SECURE_BOOT_GPU if any(map(gpus_of, requests)) else _SECURE_BOOT),
        IMAGES: lambda policy: _images(policy, wanted),
        LOCATIONS: lambda policy: _locations(policy, list(zones), project),
        OWN_KEYS: lambda policy: _own_keys(policy, wanted),
    }
    if any(each.external_ip for each in requests):
        found[EXTERNAL_IP] = lambda policy: _external(policy, project)
    if wanted.bucket:
        found[RETENTION] = lambda policy: _retention(policy, project)
    return found


_SECURE_BOOT = "it demands Secure Boot, which these VMs are asked for without"
_SECURE_BOOT_GPU = (
    "it demands Secure Boot, which refuses the GPU's driver: that is built on the VM and signed by nobody"
)


def _listed(policy: Policy) -> tuple[bool, list[str], list[str]]:
    """Whether everything is denied, what alone is allowed (nothing: all that is not denied), and what is denied."""
    rules = policy.listPolicy
    allowed, denied = (
        [each.removeprefix("is:") for each in values] for values in (rules.allowedValues, rules.deniedValues)
    )
    return rules.allValues == "DENY", allowed, denied


def _external(policy: Policy, project: str) -> Forbidden | None:
    denied, allowed, _ = _listed(policy)
    if not denied and (not allowed or any(each.startswith("under:") for each in allowed)):
        return None
    why = "VMs with an external address are not allowed, or single ones by name"
    fix = "Declare with --no-external-ip (that takes Cloud NAT, or a baked image)."
    return Forbidden(EXTERNAL_IP, why, fix)


def _images(policy: Policy, wanted: Wanted) -> Forbidden | None:
    denied, allowed, refused = _listed(policy)
    for image in dict.fromkeys(each.image or IMAGE for each in wanted.requests):
        parts = image.split("/")
        owner = f"projects/{parts[parts.index('projects') + 1] if 'projects' in parts else wanted.project}"
        vague = any(each.startswith("under:") and not each.startswith("under:projects/") for each in allowed)
        fits = not allowed or vague or owner in allowed or f"under:{owner}" in allowed
        if denied or owner in refused or not fits:
            fix = f"{lift(IMAGES, wanted.project, owner)} Or name an image of another project with --image."
            return Forbidden(IMAGES, f"images of {owner.removeprefix('projects/')} are not trusted", fix)
    return None


def _locations(policy: Policy, zones: Sequence[str], project: str) -> Forbidden | None:
    denied, allowed, refused = _listed(policy)
    for zone in zones:
        if not (denied or covers(refused, zone) or (allowed and covers(allowed, zone) is False)):
            continue
        region = zone.rpartition("-")[0]
        where = f"; allowed: {', '.join(allowed)}" if allowed else ""
        fix = f"Name an allowed --zone. {lift(LOCATIONS, project, f'in:{region}-locations')}"
        return Forbidden(LOCATIONS, f"nothing may be in {zone}{where}", fix)
    return None


def covers(values: Sequence[str], zone: str) -> bool | None:
    """Whether a zone is among these locations (zones, regions, groups of them); None where no answer is known."""
    region, unsure = zone.rpartition("-")[0], False
    for value in values:
        if value in (zone, region):
            return True
        group = value.removeprefix("in:").removesuffix("-locations") if value.startswith("in:") else ""
        if group and (region == group or region.startswith(f"{group}-")):
            return True
        # Of the groups that have no region's or continent's name, such as `eu`, only Google knows the members.
        unsure |= bool(group) and "-" not in group and group not in _CONTINENTS
    return None if unsure else False


_CONTINENTS = ("us", "europe", "asia", "northamerica", "southamerica", "australia", "africa", "me")


def _own_keys(policy: Policy, wanted: Wanted) -> Forbidden | None:
    denied, _, refused = _listed(policy)
    services = ["compute.googleapis.com", *(["storage.googleapis.com"] if wanted.bucket else [])]
    hit = [each for each in services if denied or each in refused]
    if not hit:
        return None
    why = f"{' and '.join(hit)} must encrypt with keys of your own (CMEK), which nothing here does"
    return Forbidden(OWN_KEYS, why, "Use another project, or ask the organization's administrator to except this one.")


def _retention(policy: Policy, project: str) -> Forbidden | None:
    denied, allowed, refused = _listed(policy)
    if not (denied or (allowed and "0" not in allowed) or "0" in refused):
        return None
    why = "buckets must keep objects for a time, so checkpoints could not be replaced"
    return Forbidden(RETENTION, why, f"Declare with --bucket none. {lift(RETENTION, project, '0')}")
