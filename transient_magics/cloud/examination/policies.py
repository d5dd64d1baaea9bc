"""What an organization's policies and a project's quotas leave to a request.

The Organization Policy API v2 is asked first (`policies.getEffectivePolicy`). It alone knows the
managed constraints (`compute.managed.*`), which organizations made since 2025 get ("Managed
constraints", docs.cloud.google.com/compute/docs/access/managed-constraints, read 2026-11-27). Where
that API is not enabled, Cloud Resource Manager v1 is asked (`getEffectiveOrgPolicy`), which takes
the same right (`orgpolicy.policy.get`); the managed constraints are then not asked, and the answer
says so. One of those shows when it refuses (`failures`).
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
from ..values import IMAGE, VmRequest

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
"""The managed constraint that replaces an older one; all of them are enforced or not."""
SERVICE = "orgpolicy.googleapis.com"

_SHARED_CORE = ("e2-micro", "e2-small", "e2-medium")
_BAKED_GB = 50  # of an image whose size nobody asked for
_GPUS = (
    "K80",
    "P100",
    "V100",
    "P4",
    "T4",
    "L4",
    "A100",
    "A100_80GB",
)  # and H100, as preemptible only
_FAMILIES = ("A2", "C2", "C2D", "C3", "M1", "M2", "M3", "N2", "N2D", "T2A", "T2D")
_IN_CPUS = ("n1", "e2")
EVERYWHERE = ("GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS")

Metrics = tuple[str, ...]
"""Of the quotas that may count, the preemptible one first. One without a metric has `no quota of
...` in its place.
"""


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A policy that stands in the way: its constraint, why it does (a clause), and what mends it (a
    sentence).
    """

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
    """What Cloud Resource Manager answers about one constraint, by the names that it gives to the
    fields.
    """

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
    """What the Organization Policy API v2 answers about one constraint, by the names that it gives
    to the fields.
    """

    spec: _Spec = field(default_factory=_Spec)

    def as_before(self) -> Policy:
        """Return the same as Cloud Resource Manager v1 writes it. An effective policy has no
        conditions.
        """
        rules = self.spec.rules
        allowed = tuple(value for rule in rules for value in rule.values.allowedValues)
        denied = tuple(value for rule in rules for value in rule.values.deniedValues)
        every = "DENY" if any(rule.denyAll for rule in rules) else ""
        enforced = any(rule.enforce for rule in rules)
        return Policy(_Boolean(enforced), _List(every, allowed, denied))


_Check = Callable[[Policy], Forbidden | None]

_Ask = Callable[[str], Awaitable[Policy]]


async def forbidden(calls: Calls, wanted: Wanted) -> tuple[list[Forbidden], list[str]]:
    """Return the effective policies that forbid some of it, and the constraints that could not be
    asked.

    Raises CloudError where no policy is told.
    """
    older = _questions(wanted)
    managed = _managed_questions(wanted)
    # The first alone: where nothing is told, that costs one request of each API.
    first, *others = older
    effective: _Ask = _Newer(calls, wanted.project).effective
    newer = True
    try:
        answers = [await effective(first)]
    except (ConsumerError, GoneError):
        newer = False
        effective = _Older(calls, wanted.project).effective
        answers = [await effective(first)]
    answers += await asyncio.gather(*map(effective, others))
    found = [check(policy) for policy, check in zip(answers, older.values(), strict=True)]
    unasked: list[str] = []
    if newer:
        told = await asyncio.gather(*(_or_none(effective, name) for name in managed))
        for (name, check), policy in zip(managed.items(), told, strict=True):
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
        path = f"/v2/projects/{self._project}/policies/{name}:getEffectivePolicy"
        answer = await ask(self._calls, self._project, ORGANIZATION_POLICY, path)
        return _read(EvaluatedPolicy, answer, name).as_before()


class _Older:
    """Questions to Cloud Resource Manager v1."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls = calls
        self._project = project

    async def effective(self, name: str) -> Policy:
        path = f"/v1/projects/{self._project}:getEffectiveOrgPolicy"
        question = {"constraint": f"constraints/{name}"}
        answer = await ask(self._calls, self._project, RESOURCE_MANAGER, path, question)
        return _read(Policy, answer, name)


async def _or_none(effective: _Ask, name: str) -> Policy | None:
    """Return the policy of a constraint, or None where it cannot be asked, or is no longer one of
    Google's.
    """
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
        raise CloudError(f"The policy {name} has a form that is not known: {error}") from error


def _managed_questions(wanted: Wanted) -> dict[str, _Check]:
    """What is asked of the managed constraints: each is about the same as an older one."""
    reasons = {OS_LOGIN: (_NO_KEYS, ""), GUEST_ATTRIBUTES: (_NO_GUEST_ATTRIBUTES, "")}
    if any(request.external_ip for request in wanted.requests):
        reasons[EXTERNAL_IP] = (_NO_ADDRESSES, f"{_WITHOUT_ADDRESS} ")
    found: dict[str, _Check] = {}
    for older, (why, fix) in reasons.items():
        name = MANAGED[older]
        found[name] = _enforced(name, why, f"{fix}{lift_managed(name, wanted.project)}")
    return found


def _enforced(name: str, why: str, fix: str) -> _Check:
    def check(policy: Policy) -> Forbidden | None:
        if policy.booleanPolicy.enforced:
            return Forbidden(name, why, fix)
        return None

    return check


def _questions(wanted: Wanted) -> dict[str, _Check]:
    project = wanted.project
    requests = wanted.requests

    def enforced(name: str, why: str) -> _Check:
        return _enforced(name, why, lift(name, project))

    zones = dict.fromkeys(request.zone for request in requests)
    found: dict[str, _Check] = {
        OS_LOGIN: enforced(OS_LOGIN, _NO_KEYS),
        GUEST_ATTRIBUTES: enforced(GUEST_ATTRIBUTES, _NO_GUEST_ATTRIBUTES),
        SHIELDED: enforced(
            SHIELDED, _SECURE_BOOT_GPU if any(map(gpus_of, requests)) else _SECURE_BOOT
        ),
        IMAGES: lambda policy: _images(policy, wanted),
        LOCATIONS: lambda policy: _locations(policy, list(zones), project),
        OWN_KEYS: lambda policy: _own_keys(policy, wanted),
    }
    if any(each.external_ip for each in requests):
        found[EXTERNAL_IP] = _external
    if wanted.bucket:
        found[RETENTION] = lambda policy: _retention(policy, project)
    return found


_NO_KEYS = "VMs take the cluster's SSH key from their metadata, which OS Login would ignore"

_NO_GUEST_ATTRIBUTES = (
    "VMs report their SSH host keys and the steps of their boot in guest attributes"
)

_NO_ADDRESSES = "VMs with an external address are not allowed, or single ones by name"

_WITHOUT_ADDRESS = "Declare with --no-external-ip (that takes Cloud NAT, or a baked image)."

_SECURE_BOOT = "it demands Secure Boot, which these VMs are asked for without"

_SECURE_BOOT_GPU = "it demands Secure Boot, which refuses the GPU's driver: that is built on the VM and signed by nobody"


def _listed(policy: Policy) -> tuple[bool, list[str], list[str]]:
    """Whether everything is denied, what alone is allowed (nothing: all that is not denied), and
    what is denied.
    """
    rules = policy.listPolicy
    allowed, denied = (
        [value.removeprefix("is:") for value in values]
        for values in (rules.allowedValues, rules.deniedValues)
    )
    return rules.allValues == "DENY", allowed, denied


def _external(policy: Policy) -> Forbidden | None:
    denied, allowed, _ = _listed(policy)
    if not denied and (not allowed or any(each.startswith("under:") for each in allowed)):
        return None
    return Forbidden(EXTERNAL_IP, _NO_ADDRESSES, _WITHOUT_ADDRESS)


def _images(policy: Policy, wanted: Wanted) -> Forbidden | None:
    denied, allowed, refused = _listed(policy)
    for image in dict.fromkeys(request.image or IMAGE for request in wanted.requests):
        parts = image.split("/")
        owner = f"projects/{parts[parts.index('projects') + 1] if 'projects' in parts else wanted.project}"
        vague = any(
            each.startswith("under:") and not each.startswith("under:projects/") for each in allowed
        )
        fits = not allowed or vague or owner in allowed or f"under:{owner}" in allowed
        if denied or owner in refused or not fits:
            fix = f"{lift(IMAGES, wanted.project, owner)} Or name an image of another project with --image."
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
        if allowed:
            where = f"; allowed: {', '.join(allowed)}"
        else:
            where = ""
        fix = f"Name an allowed --zone. {lift(LOCATIONS, project, f'in:{region}-locations')}"
        return Forbidden(LOCATIONS, f"nothing may be in {zone}{where}", fix)
    return None


def covers(values: Sequence[str], zone: str) -> bool | None:
    """Whether a zone is among these locations (zones, regions, groups of them); None where no
    answer is known.
    """
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
        # Of the groups that have no region's or continent's name, such as `eu`, only Google knows
        # the members.
        unsure |= bool(group) and "-" not in group and group not in _CONTINENTS
    return None if unsure else False


_CONTINENTS = ("us", "europe", "asia", "northamerica", "southamerica", "australia", "africa", "me")


def _own_keys(policy: Policy, wanted: Wanted) -> Forbidden | None:
    denied, _, refused = _listed(policy)
    services = ["compute.googleapis.com", *(["storage.googleapis.com"] if wanted.bucket else [])]
    hit = [service for service in services if denied or service in refused]
    if not hit:
        return None
    why = f"{' and '.join(hit)} must encrypt with keys of your own (CMEK), which nothing here does"
    return Forbidden(
        OWN_KEYS,
        why,
        "Use another project, or ask the organization's administrator to except this one.",
    )


def _retention(policy: Policy, project: str) -> Forbidden | None:
    denied, allowed, refused = _listed(policy)
    if not (denied or (allowed and "0" not in allowed) or "0" in refused):
        return None
    why = "buckets must keep objects for a time, so checkpoints could not be replaced"
    return Forbidden(RETENTION, why, f"Declare with --bucket none. {lift(RETENTION, project, '0')}")


# How much of which quota VMs take, and whether a region or a project has that much left.
#
# The metrics are those of Compute Engine's own enumeration. A Spot VM takes the preemptible quota
# where the project has been given one (its limit is above 0), and the ordinary one else. GPUs and
# vCPUs count once more for the whole project. Newer machine families have quotas that neither a
# region nor the project lists.


def needs(requests: Sequence[VmRequest]) -> dict[Metrics, float]:
    """How much of which quota of a region these VMs take."""
    wanted: Counter[Metrics] = Counter()
    for request in requests:
        transient = request.provisioning_model != "standard"
        if gpus := gpus_of(request):
            wanted[
                _metrics(_gpu_metric(gpus[0]), f"PREEMPTIBLE_NVIDIA_{gpus[0]}_GPUS", transient)
            ] += gpus[1]
        if cores := vcpus(request.machine_type):
            wanted[_metrics(_cpu_metric(request.machine_type), "PREEMPTIBLE_CPUS", transient)] += (
                cores
            )
        if request.external_ip:
            wanted["IN_USE_ADDRESSES",] += 1
        wanted[_disk_metric(request.disk_type),] += request.disk_gb or _BAKED_GB
        wanted["INSTANCES",] += 1
    return {metrics: float(count) for metrics, count in wanted.items()}


def needs_everywhere(requests: Sequence[VmRequest]) -> dict[Metrics, float]:
    """How much of the project's own quotas these VMs take."""
    gpus = sum(found[1] for request in requests if (found := gpus_of(request)))
    cores = sum(vcpus(each.machine_type) for each in requests)
    counts = zip(EVERYWHERE, (gpus, cores), strict=True)
    return {(metric,): float(count) for metric, count in counts if count}


def compare(
    listed: Iterable[Any], wanted: Mapping[Metrics, float], place: str, project: str
) -> str:
    """What is left of each quota beside what is wanted, in one line. CloudError for those that have
    too little.

    `listed`: the quotas of a region or project, as Compute Engine tells them.
    """
    known = {quota.metric: quota for quota in listed}
    counts: dict[str, float] = {}
    unknown: list[str] = []
    for metrics, count in wanted.items():
        if told := [metric for metric in metrics if metric in known]:
            # Spot VMs and others may take the same quota.
            metric = next((each for each in told if known[each].limit > 0), told[-1])
            counts[metric] = counts.get(metric, 0.0) + count
        else:
            unknown.append(f"{metrics[-1]} is not listed, so not told ({count:g} wanted)")
    left = {metric: known[metric].limit - known[metric].usage for metric in counts}
    short = [
        f"quota {metric} {place} has {left[metric]:g} of {known[metric].limit:g} left, and {count:g} are wanted"
        for metric, count in counts.items()
        if left[metric] < count
    ]
    if short:
        page = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
        if counts.keys() <= set(EVERYWHERE):
            elsewhere = ""
        else:
            elsewhere = "choose another region, "
        raise CloudError(
            f"The {'; the '.join(short)}",
            fix=f"Declare fewer, {elsewhere}or ask for more at {page} (a free trial's are not raised: upgrade the "
            "billing account first).",
        )
    said = [f"{metric} {left[metric]:g} free, {count:g} wanted" for metric, count in counts.items()]
    return "; ".join([*said, *unknown]) or "no known quota applies"


def gpus_of(request: VmRequest) -> tuple[str, int] | None:
    """The kind of a VM's GPUs as quotas call it (`T4`, `A100_80GB`), attached or part of its
    machine, and how many.
    """
    if request.accelerator:
        return _kind(request.accelerator), request.accelerator_count or 1
    machine = MACHINE_TYPES.get(request.machine_type)
    if machine is None or not machine.gpu:
        return None
    return _kind(ACCELERATORS[machine.gpu].compute_engine_name), machine.gpu_count


def vcpus(machine_type: str) -> int:
    """vCPUs of `n1-standard-4` (4), `n1-custom-4-16384` (4), `e2-small` (2); 0 where the name does
    not tell.
    """
    if machine_type in _SHARED_CORE:
        return 2
    if known := MACHINE_TYPES.get(machine_type):
        return known.vcpus
    parts = machine_type.split("-")
    if len(parts) > 2:
        number = parts[2]
    else:
        number = ""
    if number.isdigit():
        return int(number)
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
