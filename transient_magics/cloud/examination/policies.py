"""Limits that an organization's policies and a project's quotas set to a request.

The Organization Policy API v2 is asked first (`policies.getEffectivePolicy`). Only it has the
managed constraints (`compute.managed.*`), which organizations created since 2025 get ("Managed
constraints", docs.cloud.google.com/compute/docs/access/managed-constraints, read 2026-11-27). Where
that API is not enabled, Cloud Resource Manager v1 is asked (`getEffectiveOrgPolicy`), which needs
the same right (`orgpolicy.policy.get`). The managed constraints then remain unchecked, and the
answer states that. Such a constraint shows when it refuses a request (`failures`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...catalog import ACCELERATORS, MACHINE_TYPES
from ...errors import CloudError, ConsumerError, GoneError
from ...protocol import checks
from ..calling.calls import ORGANIZATION_POLICY, RESOURCE_MANAGER, Calls, ask
from ..calling.failures import lift, lift_managed
from ..values import IMAGE, VmRequest, place_of

log = logging.getLogger(__name__)

OS_LOGIN = "compute.requireOsLogin"
EXTERNAL_IP = "compute.vmExternalIpAccess"
GUEST_ATTRIBUTES = "compute.disableGuestAttributesAccess"
SHIELDED = "compute.requireShieldedVm"
IMAGES = "compute.trustedImageProjects"
LOCATIONS = "gcp.resourceLocations"
OWN_KEYS = "gcp.restrictNonCmekServices"
RETENTION = "storage.retentionPolicySeconds"
MANAGED = {
    OS_LOGIN: "compute.managed.requireOsLogin",
    EXTERNAL_IP: "compute.managed.vmExternalIpAccess",
    GUEST_ATTRIBUTES: "compute.managed.disableGuestAttributesAccess",
}
"""The managed constraint that replaces an older one; all of them are boolean."""
SERVICE = "orgpolicy.googleapis.com"

_SHARED_CORE = ("e2-micro", "e2-small", "e2-medium")
_BAKED_GB = 50  # the usual size of a baked image
# The H100 has a quota for preemptible GPUs only.
_GPUS = ("K80", "P100", "V100", "P4", "T4", "L4", "A100", "A100_80GB")
_FAMILIES = ("A2", "C2", "C2D", "C3", "M1", "M2", "M3", "N2", "N2D", "T2A", "T2D")
_IN_CPUS = ("n1", "e2")
EVERYWHERE = ("GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS")

Metrics = tuple[str, ...]
"""The quotas that may apply, the preemptible one first.

For hardware without a metric the text `the quota of ...` stands instead.
"""


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A policy that forbids a request.

    Attributes
    ----------
    constraint
        Its name.
    why
        The reason, a clause.
    fix
        The remedy, a sentence.
    """

    constraint: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class PlannedResources:
    """The planned resources: VMs in a project, and a bucket if `bucket` is true."""

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
    """One constraint as Cloud Resource Manager v1 answers, with its names of fields."""

    booleanPolicy: _Boolean = field(default_factory=_Boolean)
    listPolicy: _List = field(default_factory=_List)


@dataclass(frozen=True, slots=True)
class _Values:
    allowedValues: tuple[str, ...] = ()
    deniedValues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rule:
    enforce: bool = False
    allowAll: bool = False
    denyAll: bool = False
    values: _Values = field(default_factory=_Values)


@dataclass(frozen=True, slots=True)
class _Spec:
    rules: tuple[_Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluatedPolicy:
    """One constraint as the Organization Policy API v2 answers, with its names of fields."""

    spec: _Spec = field(default_factory=_Spec)

    def as_before(self) -> Policy:
        """Return the policy in the form of Cloud Resource Manager v1.

        An effective policy has no conditions.
        """
        rules = self.spec.rules
        allowed = tuple(value for rule in rules for value in rule.values.allowedValues)
        denied = tuple(value for rule in rules for value in rule.values.deniedValues)
        every = "DENY" if any(rule.denyAll for rule in rules) else ""
        enforced = any(rule.enforce for rule in rules)
        return Policy(_Boolean(enforced), _List(every, allowed, denied))


_Check = Callable[[Policy], Forbidden | None]

_Ask = Callable[[str], Awaitable[Policy]]


async def forbidden(calls: Calls, planned: PlannedResources) -> tuple[list[Forbidden], list[str]]:
    """Return the effective policies that forbid planned resources, and the unchecked constraints.

    Raises
    ------
    CloudError
        If the credentials may read no policy.
    """
    older = _questions(planned)
    managed = _managed_questions(planned)
    # The first alone: without the right to read policies, this costs one request of each API.
    first, *others = older
    effective: _Ask = _Newer(calls, planned.project).effective
    newer = True
    try:
        answers = [await effective(first)]
    except (ConsumerError, GoneError):
        newer = False
        effective = _Older(calls, planned.project).effective
        answers = [await effective(first)]
    answers += await asyncio.gather(*map(effective, others))
    found = [check(policy) for policy, check in zip(answers, older.values(), strict=True)]
    unasked: list[str] = []
    if newer:
        managed_policies = await asyncio.gather(*(_or_none(effective, name) for name in managed))
        for (name, check), policy in zip(managed.items(), managed_policies, strict=True):
            if policy is None:
                unasked.append(name)
            else:
                found.append(check(policy))
    else:
        unasked = list(managed)
    return [policy for policy in found if policy is not None], unasked


class _Newer:
    """Questions to the Organization Policy API v2."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls = calls
        self._project = project

    async def effective(self, name: str) -> Policy:
        """Return the effective policy of a constraint."""
        path = f"/v2/projects/{self._project}/policies/{name}:getEffectivePolicy"
        answer = await ask(self._calls, self._project, ORGANIZATION_POLICY, path)
        return _read(EvaluatedPolicy, answer, name).as_before()


class _Older:
    """Questions to Cloud Resource Manager v1."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls = calls
        self._project = project

    async def effective(self, name: str) -> Policy:
        """Return the effective policy of a constraint."""
        path = f"/v1/projects/{self._project}:getEffectiveOrgPolicy"
        question = {"constraint": f"constraints/{name}"}
        answer = await ask(self._calls, self._project, RESOURCE_MANAGER, path, question)
        return _read(Policy, answer, name)


async def _or_none(effective: _Ask, name: str) -> Policy | None:
    """Return the policy of a constraint; None if it cannot be read or Google has removed it."""
    try:
        return await effective(name)
    except CloudError as error:
        log.info("the policy of %s is unknown: %s", name, error)
        return None


_Kind = TypeVar("_Kind", Policy, EvaluatedPolicy)


def _read(kind: type[_Kind], answer: dict[str, Any], name: str) -> _Kind:
    try:
        return checks.built(kind, answer)
    except ValueError as error:
        raise CloudError(f"The policy {name} has an unknown form: {error}") from error


def _managed_questions(planned: PlannedResources) -> dict[str, _Check]:
    """Return the checks of the managed constraints, which replace older ones."""
    reasons = {OS_LOGIN: (_NO_KEYS, ""), GUEST_ATTRIBUTES: (_NO_GUEST_ATTRIBUTES, "")}
    if any(request.external_ip for request in planned.requests):
        reasons[EXTERNAL_IP] = (_NO_ADDRESSES, f"{_WITHOUT_ADDRESS} ")
    found: dict[str, _Check] = {}
    for older, (why, fix) in reasons.items():
        name = MANAGED[older]
        found[name] = _enforced(name, why, f"{fix}{lift_managed(name, planned.project)}")
    return found


def _enforced(name: str, why: str, fix: str) -> _Check:
    def check(policy: Policy) -> Forbidden | None:
        if policy.booleanPolicy.enforced:
            return Forbidden(name, why, fix)
        return None

    return check


def _questions(planned: PlannedResources) -> dict[str, _Check]:
    project = planned.project
    requests = planned.requests

    def enforced(name: str, why: str) -> _Check:
        return _enforced(name, why, lift(name, project))

    zones = dict.fromkeys(request.zone for request in requests)
    secure_boot = _SECURE_BOOT_GPU if any(map(gpus_of, requests)) else _SECURE_BOOT
    found: dict[str, _Check] = {
        OS_LOGIN: enforced(OS_LOGIN, _NO_KEYS),
        GUEST_ATTRIBUTES: enforced(GUEST_ATTRIBUTES, _NO_GUEST_ATTRIBUTES),
        SHIELDED: enforced(SHIELDED, secure_boot),
        IMAGES: lambda policy: _images(policy, planned),
        LOCATIONS: lambda policy: _locations(policy, list(zones), project),
        OWN_KEYS: lambda policy: _own_keys(policy, planned),
    }
    if any(request.external_ip for request in requests):
        found[EXTERNAL_IP] = _external
    if planned.bucket:
        found[RETENTION] = lambda policy: _retention(policy, project)
    return found


_NO_KEYS = "VMs need the cluster's SSH key in their metadata, which OS Login ignores"

_NO_GUEST_ATTRIBUTES = (
    "VMs report their SSH host keys and the steps of their boot in guest attributes"
)

_NO_ADDRESSES = "VMs with an external address are forbidden, or allowed one by one by name"

_WITHOUT_ADDRESS = "Declare with --no-external-ip (it needs Cloud NAT or a baked image)."

_SECURE_BOOT = "it requires Secure Boot, which these VMs do not use"

_SECURE_BOOT_GPU = (
    "it requires Secure Boot, which rejects the GPU's driver: the VM builds it, without a signature"
)


def _listed(policy: Policy) -> tuple[bool, list[str], list[str]]:
    """Return whether all is denied, the allowed values (none: all but denied), the denied ones."""
    rules = policy.listPolicy
    allowed, denied = (
        [value.removeprefix("is:") for value in values]
        for values in (rules.allowedValues, rules.deniedValues)
    )
    return rules.allValues == "DENY", allowed, denied


def _external(policy: Policy) -> Forbidden | None:
    denied, allowed, _ = _listed(policy)
    if not denied and (not allowed or any(value.startswith("under:") for value in allowed)):
        return None
    return Forbidden(EXTERNAL_IP, _NO_ADDRESSES, _WITHOUT_ADDRESS)


def _images(policy: Policy, planned: PlannedResources) -> Forbidden | None:
    denied, allowed, refused = _listed(policy)
    for image in dict.fromkeys(request.image or IMAGE for request in planned.requests):
        owner = f"projects/{place_of(image, planned.project)[0]}"
        vague = any(
            value.startswith("under:") and not value.startswith("under:projects/")
            for value in allowed
        )
        fits = not allowed or vague or owner in allowed or f"under:{owner}" in allowed
        if denied or owner in refused or not fits:
            fix = (
                f"{lift(IMAGES, planned.project, owner)} Or name an image of another project "
                "with --image."
            )
            return Forbidden(
                IMAGES, f"images of {owner.removeprefix('projects/')} are not trusted", fix
            )
    return None


def _locations(policy: Policy, zones: Sequence[str], project: str) -> Forbidden | None:
    denied, allowed, refused = _listed(policy)
    for zone in zones:
        if not (denied or covers(refused, zone) or (allowed and covers(allowed, zone) is False)):
            continue
        region = zone.rpartition("-")[0]
        where = ""
        if allowed:
            where = f"; allowed: {', '.join(allowed)}"
        fix = f"Name an allowed --zone. {lift(LOCATIONS, project, f'in:{region}-locations')}"
        return Forbidden(LOCATIONS, f"resources in {zone} are forbidden{where}", fix)
    return None


def covers(values: Sequence[str], zone: str) -> bool | None:
    """Return whether locations (zones, regions, groups of them) include a zone; None if unknown."""
    region = zone.rpartition("-")[0]
    unsure = False
    for value in values:
        if value in (zone, region):
            return True
        if value.startswith("in:"):
            group = value.removeprefix("in:").removesuffix("-locations")
        else:
            group = ""
        if group and (region == group or region.startswith(f"{group}-")):
            return True
        # Only Google knows the members of groups that have neither a region's nor a continent's
        # name, such as `eu`.
        unsure |= bool(group) and "-" not in group and group not in _CONTINENTS
    return None if unsure else False


_CONTINENTS = ("us", "europe", "asia", "northamerica", "southamerica", "australia", "africa", "me")


def _own_keys(policy: Policy, planned: PlannedResources) -> Forbidden | None:
    denied, _, refused = _listed(policy)
    services = ["compute.googleapis.com"]
    if planned.bucket:
        services.append("storage.googleapis.com")
    hit = [service for service in services if denied or service in refused]
    if not hit:
        return None
    why = (
        f"{' and '.join(hit)} must encrypt with customer-managed keys (CMEK), which are not "
        "supported"
    )
    fix = "Use another project, or ask the organization's administrator for an exception."
    return Forbidden(OWN_KEYS, why, fix)


def _retention(policy: Policy, project: str) -> Forbidden | None:
    denied, allowed, refused = _listed(policy)
    if not (denied or (allowed and "0" not in allowed) or "0" in refused):
        return None
    why = "buckets must retain objects, so checkpoints could not be replaced"
    return Forbidden(RETENTION, why, f"Declare with --bucket none. {lift(RETENTION, project, '0')}")


# The quotas that VMs use, and whether a region or a project has enough left.
#
# The metrics are those of Compute Engine's enumeration. A Spot VM uses the preemptible quota if the
# project has one (its limit is above 0), otherwise the ordinary one. GPUs and vCPUs also count for
# the whole project. Quotas of newer machine families are listed neither for a region nor for the
# project.


def needs(requests: Sequence[VmRequest]) -> dict[Metrics, float]:
    """Return the amount of each regional quota that these VMs use."""
    counts: Counter[Metrics] = Counter()
    for request in requests:
        transient = request.provisioning_model != "standard"
        if gpus := gpus_of(request):
            gpu, gpu_count = gpus
            metrics = _metrics(_gpu_metric(gpu), f"PREEMPTIBLE_NVIDIA_{gpu}_GPUS", transient)
            counts[metrics] += gpu_count
        if cores := vcpus(request.machine_type):
            metrics = _metrics(_cpu_metric(request.machine_type), "PREEMPTIBLE_CPUS", transient)
            counts[metrics] += cores
        if request.external_ip:
            counts["IN_USE_ADDRESSES",] += 1
        counts[_disk_metric(request.disk_type),] += request.disk_gb or _BAKED_GB
        counts["INSTANCES",] += 1
    return {metrics: float(count) for metrics, count in counts.items()}


def needs_everywhere(requests: Sequence[VmRequest]) -> dict[Metrics, float]:
    """Return the amount of the project's own quotas that these VMs use."""
    gpus = sum(found[1] for found in map(gpus_of, requests) if found)
    cores = sum(vcpus(request.machine_type) for request in requests)
    counts = zip(EVERYWHERE, (gpus, cores), strict=True)
    return {(metric,): float(count) for metric, count in counts if count}


def compare(
    listed: Iterable[Any], required: Mapping[Metrics, float], place: str, project: str
) -> str:
    """Return a line with the free part of each quota.

    Parameters
    ----------
    listed
        The quotas of a region or project, as Compute Engine lists them.
    required
        The required amount, by quotas that may apply.
    place
        The region or project in words.
    project
        The project, for the page on which to ask for more.

    Raises
    ------
    CloudError
        If a quota is too small.
    """
    quotas = {quota.metric: quota for quota in listed}
    counts: dict[str, float] = {}
    unlisted: list[str] = []
    for metrics, count in required.items():
        applicable = [metric for metric in metrics if metric in quotas]
        if not applicable:
            unlisted.append(f"{metrics[-1]} is not listed, so unknown ({count:g} needed)")
            continue
        # Spot VMs and others may use the same quota.
        metric = next((metric for metric in applicable if quotas[metric].limit > 0), applicable[-1])
        counts[metric] = counts.get(metric, 0.0) + count
    left = {metric: quotas[metric].limit - quotas[metric].usage for metric in counts}
    short = [
        f"quota {metric} {place} has {left[metric]:g} of {quotas[metric].limit:g} left; "
        f"required: {count:g}"
        for metric, count in counts.items()
        if left[metric] < count
    ]
    if short:
        page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
        elsewhere = "choose another region, "
        if counts.keys() <= set(EVERYWHERE):
            elsewhere = ""
        raise CloudError(
            f"The {'; the '.join(short)}",
            fix=f"Declare fewer, {elsewhere}or ask for more at {page} (quotas of a free trial are "
            "not raised: upgrade the billing account first).",
        )
    free = [f"{metric} {left[metric]:g} free, {count:g} needed" for metric, count in counts.items()]
    return "; ".join([*free, *unlisted]) or "no listed quota applies"


def gpus_of(request: VmRequest) -> tuple[str, int] | None:
    """Return the GPU of a VM by its name in quotas (`T4`, `A100_80GB`), and the number of GPUs.

    GPUs may be attached or part of the machine type.
    """
    if request.accelerator:
        return _kind(request.accelerator), request.accelerator_count or 1
    machine = MACHINE_TYPES.get(request.machine_type)
    if machine is None or not machine.gpu:
        return None
    return _kind(ACCELERATORS[machine.gpu].compute_engine_name), machine.gpu_count


def vcpus(machine_type: str) -> int:
    """Return the vCPUs of a machine type; 0 if its name does not show them.

    `n1-standard-4` has 4, `n1-custom-4-16384` has 4, `e2-small` has 2.
    """
    if machine_type in _SHARED_CORE:
        return 2
    if machine := MACHINE_TYPES.get(machine_type):
        return machine.vcpus
    parts = machine_type.split("-")
    if len(parts) > 2 and parts[2].isdigit():
        return int(parts[2])
    return 0


def _kind(name: str) -> str:
    kind = name.removeprefix("nvidia-").removeprefix("tesla-").replace("-", "_").upper()
    return "H100" if kind == "H100_80GB" else kind


def _gpu_metric(kind: str) -> str:
    if kind in _GPUS:
        return f"NVIDIA_{kind}_GPUS"
    return f"the quota of {kind} on demand"


def _disk_metric(disk_type: str) -> str:
    if disk_type == "pd-standard":
        return "DISKS_TOTAL_GB"
    return "SSD_TOTAL_GB"


def _cpu_metric(machine_type: str) -> str:
    family = machine_type.partition("-")[0]
    if family in _IN_CPUS:
        return "CPUS"
    if family.upper() in _FAMILIES:
        return f"{family.upper()}_CPUS"
    return f"the quota of {family.upper()} vCPUs"


def _metrics(metric: str, preemptible: str, transient: bool) -> Metrics:
    if transient:
        return (preemptible, metric)
    return (metric,)
