"""What the emulated Compute Engine offers: zones, machine types, GPUs, images, quotas (of 2026).

GPUs, their zones, the machines that have them and their limits per VM are the catalog's; E2, N2 and the smallest
machines, which the catalog does without, are here. The K80, which Google has withdrawn, is kept with its zones of 2022:
published results are replayed with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from transient_magics import catalog
from transient_magics.errors import DeclarationError

from . import wire

_WRITTEN = "2026-01-15T00:00:00.000-08:00"
_ALWAYS = {
    "us-central1": "abcf", "us-east1": "bcd", "us-west1": "ab",
    "europe-west1": "bcd", "europe-west4": "abc", "asia-east1": "abc",
}  # fmt: skip
ZONES: tuple[str, ...] = tuple(
    sorted({*(f"{region}-{letter}" for region, letters in _ALWAYS.items() for letter in letters), *catalog.ZONES})
)
REGIONS: tuple[str, ...] = tuple(sorted({catalog.region(zone) for zone in ZONES}))

# Family: sizes in vCPUs, GB of memory for each.
_FAMILIES: dict[str, tuple[tuple[int, ...], float]] = {
    "e2-standard": ((2, 4, 8, 16, 32), 4),
    "e2-highmem": ((2, 4, 8, 16), 8),
    "e2-highcpu": ((2, 4, 8, 16, 32), 1),
    "n2-standard": ((2, 4, 8, 16, 32, 48, 64, 80, 96, 128), 4),
    "n2-highmem": ((2, 4, 8, 16, 32, 48, 64, 80, 96, 128), 8),
    "n2-highcpu": ((2, 4, 8, 16, 32, 48, 64, 80, 96), 1),
}
_SHARED = {"e2-micro": 1, "e2-small": 2, "e2-medium": 4, "f1-micro": 0.6, "g1-small": 1.7}
_MACHINES: dict[str, catalog.MachineType] = {
    **catalog.MACHINE_TYPES,
    **{f"{family}-{size}": catalog.MachineType(f"{family}-{size}", size, size * memory)
       for family, (sizes, memory) in _FAMILIES.items() for size in sizes},
    **{name: catalog.MachineType(name, 1 if name[1] == "1" else 2, memory) for name, memory in _SHARED.items()},
}  # fmt: skip
_CUSTOM = re.compile(r"(?:(n2|e2)-custom|(?:n1-)?custom)-(\d+)-(\d+)(-ext)?")
_GPUS = {each.compute_engine_name: name for name, each in catalog.ACCELERATORS.items() if each.compute_engine_name}
_DESCRIPTIONS = {
    "nvidia-tesla-k80": "NVIDIA Tesla K80", "nvidia-tesla-p100": "NVIDIA Tesla P100",
    "nvidia-tesla-v100": "NVIDIA Tesla V100", "nvidia-tesla-p4": "NVIDIA Tesla P4", "nvidia-tesla-t4": "NVIDIA T4",
    "nvidia-l4": "NVIDIA L4", "nvidia-tesla-a100": "NVIDIA A100 40GB", "nvidia-a100-80gb": "NVIDIA A100 80GB",
    "nvidia-h100-80gb": "NVIDIA H100 80GB",
}  # fmt: skip
_IMAGES = {
    "debian-cloud": ("debian-11", "debian-12", "debian-13"),
    "ubuntu-os-cloud": ("ubuntu-2204-lts", "ubuntu-2404-lts-amd64"),
    "cos-cloud": ("cos-stable",),
    "rocky-linux-cloud": ("rocky-linux-9",),
    "deeplearning-platform-release": ("common-cpu", "common-cu128-ubuntu-2204-nvidia-570", "tf-latest-gpu"),
}
# Kind of disk: what it is, and the sizes (GB) that it can have.
DISK_TYPES = {
    "pd-standard": ("Standard Persistent Disk", "10GB-65536GB"),
    "pd-balanced": ("Balanced Persistent Disk", "10GB-65536GB"),
    "pd-ssd": ("SSD Persistent Disk", "10GB-65536GB"), "local-ssd": ("Local SSD", "375GB-375GB"),
}  # fmt: skip
_LIMIT = 5000.0
_GPU_QUOTAS = ("K80", "P100", "V100", "P4", "T4", "L4", "A100", "A100_80GB")
_CPU_FAMILIES = ("a2", "c2", "n2")  # of those here: E2 and N1 share a quota, newer ones have quotas of another kind


def zone(project: str, name: str) -> dict[str, Any]:
    """A zone. ApiError 404 where there is none."""
    if name not in ZONES:
        raise wire.not_found(f"projects/{project}/zones/{name}")
    return {
        "kind": "compute#zone", "id": wire.fixed_id("zones", name), "creationTimestamp": _WRITTEN, "name": name,
        "description": name, "status": "UP", "region": wire.link(project, "regions", catalog.region(name)),
        "selfLink": wire.link(project, "zones", name), "availableCpuPlatforms": ["Intel Cascade Lake", "Intel Skylake"],
    }  # fmt: skip


def region(project: str, name: str, instances: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A region with its quotas, used by `instances`. ApiError 404 where there is none."""
    if name not in REGIONS:
        raise wire.not_found(f"projects/{project}/regions/{name}")
    usage = _usage([each for each in instances if catalog.region(wire.last(each["zone"])) == name])
    return {
        "kind": "compute#region", "id": wire.fixed_id("regions", name), "creationTimestamp": _WRITTEN, "name": name,
        "description": name, "status": "UP", "selfLink": wire.link(project, "regions", name),
        "zones": [wire.link(project, "zones", each) for each in ZONES if catalog.region(each) == name],
        "quotas": [{"metric": metric, "limit": _LIMIT, "usage": used} for metric, used in usage.items()],
    }  # fmt: skip


def project(name: str, instances: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The project itself."""
    gpus = sum(gpu["acceleratorCount"] for each in instances for gpu in each.get("guestAccelerators", ()))
    return {
        "kind": "compute#project", "id": wire.fixed_id("projects", name), "creationTimestamp": _WRITTEN, "name": name,
        "selfLink": wire.link(name), "defaultNetworkTier": "PREMIUM",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
        "defaultServiceAccount": f"{wire.fixed_id('projects', name)}-compute@developer.gserviceaccount.com",
        "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": wire.fingerprint(name)},
        "quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": _LIMIT, "usage": float(gpus)},
                   {"metric": "CPUS_ALL_REGIONS", "limit": _LIMIT, "usage": 0.0}],
    }  # fmt: skip


def machine_types(project: str, zone: str) -> list[dict[str, Any]]:
    """The predefined machine types of a zone."""
    return [machine_type(project, zone, name) for name in sorted(_MACHINES) if _is_in(zone, _MACHINES[name])]


def machine_type(project: str, zone: str, name: str) -> dict[str, Any]:
    """A predefined or custom machine type. ApiError 404 where there is none."""
    made = _MACHINES.get(name) or _custom(name)
    if made is None or not _is_in(zone, made):
        raise wire.not_found(f"projects/{project}/zones/{zone}/machineTypes/{name}")
    resource: dict[str, Any] = {
        "kind": "compute#machineType", "id": wire.fixed_id("machineTypes", name), "creationTimestamp": _WRITTEN,
        "name": name, "description": f"{made.vcpus} vCPUs, {made.memory_gb:g} GB RAM", "guestCpus": made.vcpus,
        "memoryMb": int(made.memory_gb * 1024), "imageSpaceGb": 0, "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168", "zone": zone, "isSharedCpu": name in _SHARED,
        "architecture": "X86_64", "selfLink": wire.link(project, "zones", zone, "machineTypes", name),
    }  # fmt: skip
    if not made.gpu:
        return resource
    gpu = catalog.accelerator(made.gpu).compute_engine_name
    return resource | {"accelerators": [{"guestAcceleratorType": gpu, "guestAcceleratorCount": made.gpu_count}]}


def _is_in(zone: str, machine: catalog.MachineType) -> bool:
    return not machine.gpu or catalog.has_gpu(zone, machine.gpu)


def _custom(name: str) -> catalog.MachineType | None:
    """The custom machine type of this name, if it is a legal one."""
    match = _CUSTOM.fullmatch(name)
    if match is None:
        return None
    family, cpus, megabytes = match[1] or "n1", int(match[2]), int(match[3])
    if family == "n1" and not match[4]:
        try:
            return catalog.machine_type(name)
        except DeclarationError:
            return None
    return catalog.MachineType(name, cpus, megabytes / 1024) if _custom_is_legal(cpus, megabytes, family) else None


def _custom_is_legal(cpus: int, megabytes: int, family: str) -> bool:
    most = {"n1": 96, "n2": 128, "e2": 32}[family]
    return 1 <= cpus <= most and (cpus == 1 or cpus % 2 == 0) and megabytes > 0 and megabytes % 256 == 0


def accelerator_types(project: str, zone: str) -> list[dict[str, Any]]:
    """The GPUs of a zone."""
    return [accelerator_type(project, zone, name) for name in sorted(_GPUS) if catalog.has_gpu(zone, _GPUS[name])]


def accelerator_type(project: str, zone: str, name: str) -> dict[str, Any]:
    """A GPU of a zone. ApiError 404 where there is none."""
    if name not in _GPUS or not catalog.has_gpu(zone, _GPUS[name]):
        raise wire.not_found(f"projects/{project}/zones/{zone}/acceleratorTypes/{name}")
    gpu = _GPUS[name]
    return {
        "kind": "compute#acceleratorType", "id": wire.fixed_id("acceleratorTypes", name), "creationTimestamp": _WRITTEN,
        "name": name, "description": _DESCRIPTIONS[name], "zone": wire.link(project, "zones", zone),
        "maximumCardsPerInstance": max(catalog.limits(gpu) or [each.gpu_count for each in catalog.machines_with(gpu)]),
        "selfLink": wire.link(project, "zones", zone, "acceleratorTypes", name),
    }  # fmt: skip


def check_attachment(zone: str, machine: str, accelerator: str, count: int) -> None:
    """ApiError 400 unless this many of this GPU may be attached to this machine type in this zone."""
    field = "resource.guestAccelerators"
    gpu = _GPUS.get(accelerator, "")
    if not catalog.limits(gpu):
        raise wire.invalid(field, accelerator, f"It comes with machine types of its own, not with {machine}.")
    if not machine.startswith(("n1-", "custom-")):
        raise wire.invalid(field, accelerator, f"It cannot be attached to machine type {machine}, only to N1.")
    try:
        catalog.check_machine(machine, gpu, count, zone)
    except DeclarationError as error:
        raise wire.invalid(field, accelerator, str(error)) from None


def disk_types(project: str, zone: str) -> list[dict[str, Any]]:
    """The kinds of disks of a zone."""
    return [disk_type(project, zone, name) for name in DISK_TYPES]


def disk_type(project: str, zone: str, name: str) -> dict[str, Any]:
    """A kind of disk. ApiError 404 where there is none."""
    if name not in DISK_TYPES:
        raise wire.not_found(f"projects/{project}/zones/{zone}/diskTypes/{name}")
    description, sizes = DISK_TYPES[name]
    return {
        "kind": "compute#diskType", "id": wire.fixed_id("diskTypes", name), "creationTimestamp": _WRITTEN, "name": name,
        "description": description, "validDiskSize": sizes, "zone": wire.link(project, "zones", zone),
        "defaultDiskSizeGb": "500" if name == "pd-standard" else "100" if name != "local-ssd" else "375",
        "selfLink": wire.link(project, "zones", zone, "diskTypes", name),
    }  # fmt: skip


def images(project: str) -> list[dict[str, Any]]:
    """The public images that a project publishes."""
    return [_image(project, family) for family in _IMAGES.get(project, ())]


def _image(project: str, family: str) -> dict[str, Any]:
    name = f"{family}-v20260101"
    return {
        "kind": "compute#image", "id": wire.fixed_id("images", name), "creationTimestamp": _WRITTEN, "name": name,
        "description": f"Emulated {family}", "sourceType": "RAW", "status": "READY", "archiveSizeBytes": "1000000000",
        "diskSizeGb": "10", "family": family, "architecture": "X86_64",
        "labelFingerprint": wire.fingerprint(()), "storageLocations": ["us"],
        "selfLink": wire.link(project, "global", "images", name),
    }  # fmt: skip


def cpu_metric(machine: str) -> str:
    """The quota of a region that the vCPUs of a machine type count against, if it has one that is told."""
    family = machine.partition("-")[0]
    return "CPUS" if family in ("n1", "e2", "f1", "g1", "custom") else f"{family.upper()}_CPUS"


def gpu_metric(accelerator: str) -> str:
    """The quota of a region that GPUs of this kind count against, if it has one that is told."""
    kind = accelerator.removeprefix("nvidia-").removeprefix("tesla-").replace("-", "_").upper()
    return f"NVIDIA_{'H100' if kind == 'H100_80GB' else kind}_GPUS"


def _usage(instances: list[dict[str, Any]]) -> dict[str, float]:
    usage = dict.fromkeys(["INSTANCES", "CPUS", "PREEMPTIBLE_CPUS", "IN_USE_ADDRESSES", "DISKS_TOTAL_GB"], 0.0)
    usage |= {f"{family.upper()}_CPUS": 0.0 for family in _CPU_FAMILIES}
    usage |= {f"{prefix}NVIDIA_{kind}_GPUS": 0.0 for kind in _GPU_QUOTAS for prefix in ("", "PREEMPTIBLE_")}
    usage["PREEMPTIBLE_NVIDIA_H100_GPUS"] = 0.0
    for each in instances:
        if each["status"] == "TERMINATED":
            continue
        prefix = "PREEMPTIBLE_" if each["scheduling"]["preemptible"] else ""
        usage["INSTANCES"] += 1
        machine = machine_type("any", wire.last(each["zone"]), wire.last(each["machineType"]))
        if (metric := "PREEMPTIBLE_CPUS" if prefix else cpu_metric(machine["name"])) in usage:
            usage[metric] += machine["guestCpus"]
        for accelerator in each.get("guestAccelerators", ()):
            metric = f"{prefix}{gpu_metric(wire.last(accelerator['acceleratorType']))}"
            if metric in usage:
                usage[metric] += accelerator["acceleratorCount"]
    return usage
