"""How much of which quota VMs take, and whether a region or a project has that much left.

The metrics are those of Compute Engine's own enumeration. A Spot VM takes the preemptible quota where the project has
been given one (its limit is above 0), and the ordinary one else. GPUs and vCPUs count once more for the whole project.
Newer machine families have quotas that neither a region nor the project lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...catalog import ACCELERATORS, MACHINE_TYPES
from ...errors import CloudError
from ..values import VmRequest

_SHARED_CORE = ("e2-micro", "e2-small", "e2-medium")
_BAKED_GB = 50  # of an image whose size nobody asked for
_GPUS = ("K80", "P100", "V100", "P4", "T4", "L4", "A100", "A100_80GB")  # and H100, as preemptible only
_FAMILIES = ("A2", "C2", "C2D", "C3", "M1", "M2", "M3", "N2", "N2D", "T2A", "T2D")
_IN_CPUS = ("n1", "e2")
EVERYWHERE = ("GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS")

Metrics = tuple[str, ...]
"""Of the quotas that may count, the preemptible one first. One without a metric has `no quota of ...` in its place."""


def needs(requests: Sequence[VmRequest]) -> dict[Metrics, float]:
    """How much of which quota of a region these VMs take."""
    wanted: Counter[Metrics] = Counter()
    for each in requests:
        transient = each.provisioning_model != "standard"
        if gpus := gpus_of(each):
            wanted[_metrics(_gpu_metric(gpus[0]), f"PREEMPTIBLE_NVIDIA_{gpus[0]}_GPUS", transient)] += gpus[1]
        if cores := vcpus(each.machine_type):
            wanted[_metrics(_cpu_metric(each.machine_type), "PREEMPTIBLE_CPUS", transient)] += cores
        if each.external_ip:
            wanted["IN_USE_ADDRESSES",] += 1
        wanted[_disk_metric(each.disk_type),] += each.disk_gb or _BAKED_GB
        wanted["INSTANCES",] += 1
    return {metrics: float(count) for metrics, count in wanted.items()}


def needs_everywhere(requests: Sequence[VmRequest]) -> dict[Metrics, float]:
    """How much of the project's own quotas these VMs take."""
    gpus = sum(found[1] for each in requests if (found := gpus_of(each)))
    cores = sum(vcpus(each.machine_type) for each in requests)
    counts = zip(EVERYWHERE, (gpus, cores), strict=True)
    return {(metric,): float(count) for metric, count in counts if count}


def compare(listed: Iterable[Any], wanted: Mapping[Metrics, float], place: str, project: str) -> str:
    """What is left of each quota beside what is wanted, in one line. CloudError for those that have too little.

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
        elsewhere = "" if counts.keys() <= set(EVERYWHERE) else "choose another region, "
        raise CloudError(
            f"The {'; the '.join(short)}",
            fix=f"Declare fewer, {elsewhere}or ask for more at {page} (a free trial's are not raised: upgrade the "
            "billing account first).",
        )
    said = [f"{metric} {left[metric]:g} free, {count:g} wanted" for metric, count in counts.items()]
    return "; ".join([*said, *unknown]) or "no known quota applies"


def gpus_of(request: VmRequest) -> tuple[str, int] | None:
    """The kind of a VM's GPUs as quotas call it (`T4`, `A100_80GB`), attached or part of its machine, and how many."""
    if request.accelerator:
        return _kind(request.accelerator), request.accelerator_count or 1
    machine = MACHINE_TYPES.get(request.machine_type)
    if machine is None or not machine.gpu:
        return None
    return _kind(ACCELERATORS[machine.gpu].compute_engine_name), machine.gpu_count


def vcpus(machine_type: str) -> int:
    """vCPUs of `n1-standard-4` (4), `n1-custom-4-16384` (4), `e2-small` (2); 0 where the name does not tell."""
    if machine_type in _SHARED_CORE:
        return 2
    if known := MACHINE_TYPES.get(machine_type):
        return known.vcpus
    parts = machine_type.split("-")
    number = parts[2] if len(parts) > 2 else ""
    return int(number) if number.isdigit() else 0


def _kind(name: str) -> str:
    kind = name.removeprefix("nvidia-").removeprefix("tesla-").replace("-", "_").upper()
    return "H100" if kind == "H100_80GB" else kind


def _gpu_metric(kind: str) -> str:
    return f"NVIDIA_{kind}_GPUS" if kind in _GPUS else f"the quota of {kind} on demand"


def _disk_metric(disk_type: str) -> str:
    return "DISKS_TOTAL_GB" if disk_type == "pd-standard" else "SSD_TOTAL_GB"


def _cpu_metric(machine_type: str) -> str:
    family = machine_type.partition("-")[0]
    if family in _IN_CPUS:
        return "CPUS"
    return f"{family.upper()}_CPUS" if family.upper() in _FAMILIES else f"the quota of {family.upper()} vCPUs"


def _metrics(metric: str, preemptible: str, transient: bool) -> Metrics:
    return (preemptible, metric) if transient else (metric,)
