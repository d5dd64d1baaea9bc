"""The offer of the emulated Compute Engine: zones, machine types, GPUs, images, quotas (of 2026).

GPUs with their zones, machines and limits per VM come from the catalog. E2, N2 and the smallest
machines, which the catalog leaves out, are here. The K80, which Google has withdrawn, keeps its
zones of 2022, because published results are replayed with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from transient_magics import catalog
from transient_magics.errors import DeclarationError

from . import wire

_WRITTEN = "2026-01-15T00:00:00.000-08:00"
# Regions that exist whatever the catalog has, with the letters of their zones.
_REGION_ZONES = {
    "us-central1": "abcf",
    "us-east1": "bcd",
    "us-west1": "ab",
    "europe-west1": "bcd",
    "europe-west4": "abc",
    "asia-east1": "abc",
}


def _all_zones() -> tuple[str, ...]:
    zones = set(catalog.ZONES)
    for region_name, letters in _REGION_ZONES.items():
        zones.update(f"{region_name}-{letter}" for letter in letters)
    return tuple(sorted(zones))


ZONES: tuple[str, ...] = _all_zones()
REGIONS: tuple[str, ...] = tuple(sorted({catalog.region(zone) for zone in ZONES}))

# Family: sizes in vCPUs, and GB of memory for each vCPU.
_FAMILIES: dict[str, tuple[tuple[int, ...], float]] = {
    "e2-standard": ((2, 4, 8, 16, 32), 4),
    "e2-highmem": ((2, 4, 8, 16), 8),
    "e2-highcpu": ((2, 4, 8, 16, 32), 1),
    "n2-standard": ((2, 4, 8, 16, 32, 48, 64, 80, 96, 128), 4),
    "n2-highmem": ((2, 4, 8, 16, 32, 48, 64, 80, 96, 128), 8),
    "n2-highcpu": ((2, 4, 8, 16, 32, 48, 64, 80, 96), 1),
}
# Machines with a part of a core: vCPUs that the guest sees, and GB of memory.
_SHARED = {
    "e2-micro": (2, 1),
    "e2-small": (2, 2),
    "e2-medium": (2, 4),
    "f1-micro": (1, 0.6),
    "g1-small": (1, 1.7),
}


def _all_machines() -> dict[str, catalog.MachineType]:
    machines = dict(catalog.MACHINE_TYPES)
    for family, (sizes, memory) in _FAMILIES.items():
        for size in sizes:
            name = f"{family}-{size}"
            machines[name] = catalog.MachineType(name, size, size * memory)
    for name, (vcpus, memory) in _SHARED.items():
        machines[name] = catalog.MachineType(name, vcpus, memory)
    return machines


_MACHINES = _all_machines()
_CUSTOM = re.compile(r"(?:(n2|e2)-custom|(?:n1-)?custom)-(\d+)-(\d+)(-ext)?")
# The catalog's names of GPUs by Compute Engine's names.
_GPUS = {
    gpu.compute_engine_name: name
    for name, gpu in catalog.ACCELERATORS.items()
    if gpu.compute_engine_name
}
_DESCRIPTIONS = {
    "nvidia-tesla-k80": "NVIDIA Tesla K80",
    "nvidia-tesla-p100": "NVIDIA Tesla P100",
    "nvidia-tesla-v100": "NVIDIA Tesla V100",
    "nvidia-tesla-p4": "NVIDIA Tesla P4",
    "nvidia-tesla-t4": "NVIDIA T4",
    "nvidia-l4": "NVIDIA L4",
    "nvidia-tesla-a100": "NVIDIA A100 40GB",
    "nvidia-a100-80gb": "NVIDIA A100 80GB",
    "nvidia-h100-80gb": "NVIDIA H100 80GB",
}
_IMAGES = {
    "debian-cloud": ("debian-11", "debian-12", "debian-13"),
    "ubuntu-os-cloud": ("ubuntu-2204-lts", "ubuntu-2404-lts-amd64"),
    "cos-cloud": ("cos-stable",),
    "rocky-linux-cloud": ("rocky-linux-9",),
    "deeplearning-platform-release": (
        "common-cpu",
        "common-cu128-ubuntu-2204-nvidia-570",
        "tf-latest-gpu",
    ),
}
DISK_TYPES = {
    "pd-standard": ("Standard Persistent Disk", "10GB-65536GB", "500"),
    "pd-balanced": ("Balanced Persistent Disk", "10GB-65536GB", "100"),
    "pd-ssd": ("SSD Persistent Disk", "10GB-65536GB", "100"),
    "local-ssd": ("Local SSD", "375GB-375GB", "375"),
}
"""Types of disks: description, valid sizes, and the default size in GB."""
_LIMIT = 5000.0
_GPU_QUOTAS = ("K80", "P100", "V100", "P4", "T4", "L4", "A100", "A100_80GB")
# Families with a quota of their own. E2 and N1 share one, and newer families have quotas of another
# kind.
_CPU_FAMILIES = ("a2", "c2", "n2")
_SHARED_QUOTA_FAMILIES = ("n1", "e2", "f1", "g1", "custom")


def _resource(kind: str, collection: str, name: str) -> dict[str, Any]:
    """Return the fields that every resource of these tables has."""
    return {
        "kind": f"compute#{kind}",
        "id": wire.fixed_id(collection, name),
        "creationTimestamp": _WRITTEN,
        "name": name,
    }


def zone(project: str, name: str) -> dict[str, Any]:
    """Return a zone. Raises ApiError 404 if it does not exist."""
    if name not in ZONES:
        raise wire.not_found(f"projects/{project}/zones/{name}")
    return {
        **_resource("zone", "zones", name),
        "description": name,
        "status": "UP",
        "region": wire.link(project, "regions", catalog.region(name)),
        "selfLink": wire.link(project, "zones", name),
        "availableCpuPlatforms": ["Intel Cascade Lake", "Intel Skylake"],
    }


def region(project: str, name: str, instances: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return a region with its quotas.

    Parameters
    ----------
    project, name
        The project and the region.
    instances
        The VMs of the project, of which those in the region use its quotas.

    Raises
    ------
    ApiError
        404 if the region does not exist.
    """
    if name not in REGIONS:
        raise wire.not_found(f"projects/{project}/regions/{name}")
    here = [vm for vm in instances if catalog.region(wire.last(vm["zone"])) == name]
    zones = [zone_name for zone_name in ZONES if catalog.region(zone_name) == name]
    quotas = [
        {"metric": metric, "limit": _LIMIT, "usage": used} for metric, used in _usage(here).items()
    ]
    return {
        **_resource("region", "regions", name),
        "description": name,
        "status": "UP",
        "selfLink": wire.link(project, "regions", name),
        "zones": [wire.link(project, "zones", zone_name) for zone_name in zones],
        "quotas": quotas,
    }


def project(name: str, instances: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the project itself. `instances` are its VMs, which use its quota of GPUs."""
    gpus = 0
    for vm in instances:
        gpus += sum(gpu["acceleratorCount"] for gpu in vm.get("guestAccelerators", ()))
    number = wire.fixed_id("projects", name)
    return {
        **_resource("project", "projects", name),
        "selfLink": wire.link(name),
        "defaultNetworkTier": "PREMIUM",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
        "defaultServiceAccount": f"{number}-compute@developer.gserviceaccount.com",
        "commonInstanceMetadata": {
            "kind": "compute#metadata",
            "fingerprint": wire.fingerprint(name),
        },
        "quotas": [
            {"metric": "GPUS_ALL_REGIONS", "limit": _LIMIT, "usage": float(gpus)},
            {"metric": "CPUS_ALL_REGIONS", "limit": _LIMIT, "usage": 0.0},
        ],
    }


def machine_types(project: str, zone: str) -> list[dict[str, Any]]:
    """Return the predefined machine types of a zone."""
    names = [name for name in sorted(_MACHINES) if _is_in(zone, _MACHINES[name])]
    return [machine_type(project, zone, name) for name in names]


def machine_type(project: str, zone: str, name: str) -> dict[str, Any]:
    """Return a predefined or custom machine type. Raises ApiError 404 if the zone has none."""
    machine = _MACHINES.get(name) or _custom(name)
    if machine is None or not _is_in(zone, machine):
        raise wire.not_found(f"projects/{project}/zones/{zone}/machineTypes/{name}")
    resource: dict[str, Any] = {
        **_resource("machineType", "machineTypes", name),
        "description": f"{machine.vcpus} vCPUs, {machine.memory_gb:g} GB RAM",
        "guestCpus": machine.vcpus,
        "memoryMb": int(machine.memory_gb * 1024),
        "imageSpaceGb": 0,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "zone": zone,
        "isSharedCpu": name in _SHARED,
        "architecture": "X86_64",
        "selfLink": wire.link(project, "zones", zone, "machineTypes", name),
    }
    if machine.gpu:
        gpu = catalog.accelerator(machine.gpu).compute_engine_name
        resource["accelerators"] = [
            {"guestAcceleratorType": gpu, "guestAcceleratorCount": machine.gpu_count}
        ]
    return resource


def _is_in(zone: str, machine: catalog.MachineType) -> bool:
    # Machines without GPUs are everywhere.
    return not machine.gpu or catalog.has_gpu(zone, machine.gpu)


def _custom(name: str) -> catalog.MachineType | None:
    """Return the custom machine type of this name; None if it is not a legal one."""
    match = _CUSTOM.fullmatch(name)
    if match is None:
        return None
    family = match[1] or "n1"
    vcpus = int(match[2])
    megabytes = int(match[3])
    if family == "n1" and not match[4]:
        # The catalog knows the rules of N1, but not its extended memory (`-ext`).
        try:
            return catalog.machine_type(name)
        except DeclarationError:
            return None
    if not _custom_is_legal(vcpus, megabytes, family):
        return None
    return catalog.MachineType(name, vcpus, megabytes / 1024)


def _custom_is_legal(vcpus: int, megabytes: int, family: str) -> bool:
    most = {"n1": 96, "n2": 128, "e2": 32}[family]
    legal_vcpus = vcpus == 1 or (vcpus % 2 == 0 and 1 <= vcpus <= most)
    return legal_vcpus and megabytes > 0 and megabytes % 256 == 0


def accelerator_types(project: str, zone: str) -> list[dict[str, Any]]:
    """Return the GPUs of a zone."""
    names = [name for name in sorted(_GPUS) if catalog.has_gpu(zone, _GPUS[name])]
    return [accelerator_type(project, zone, name) for name in names]


def accelerator_type(project: str, zone: str, name: str) -> dict[str, Any]:
    """Return a GPU of a zone by Compute Engine's name. Raises ApiError 404 if the zone has none."""
    if name not in _GPUS or not catalog.has_gpu(zone, _GPUS[name]):
        raise wire.not_found(f"projects/{project}/zones/{zone}/acceleratorTypes/{name}")
    gpu = _GPUS[name]
    # GPUs that cannot be attached have no limits. They come in the numbers of their machine types.
    counts = catalog.limits(gpu) or [machine.gpu_count for machine in catalog.machines_with(gpu)]
    return {
        **_resource("acceleratorType", "acceleratorTypes", name),
        "description": _DESCRIPTIONS[name],
        "zone": wire.link(project, "zones", zone),
        "maximumCardsPerInstance": max(counts),
        "selfLink": wire.link(project, "zones", zone, "acceleratorTypes", name),
    }


def check_attachment(zone: str, machine: str, accelerator: str, count: int) -> None:
    """Check that GPUs may be attached to a machine type.

    Parameters
    ----------
    zone
        The zone of the VM.
    machine
        The name of its machine type.
    accelerator
        Compute Engine's name of the GPU.
    count
        The number of GPUs.

    Raises
    ------
    ApiError
        400 if they may not.
    """
    field = "resource.guestAccelerators"
    gpu = _GPUS.get(accelerator, "")
    if not catalog.limits(gpu):
        why = f"It comes with machine types of its own, not with {machine}."
        raise wire.invalid(field, accelerator, why)
    if not machine.startswith(("n1-", "custom-")):
        why = f"It cannot be attached to machine type {machine}, only to N1."
        raise wire.invalid(field, accelerator, why)
    try:
        catalog.check_machine(machine, gpu, count, zone)
    except DeclarationError as error:
        raise wire.invalid(field, accelerator, str(error)) from None


def disk_types(project: str, zone: str) -> list[dict[str, Any]]:
    """Return the types of disks of a zone."""
    return [disk_type(project, zone, name) for name in DISK_TYPES]


def disk_type(project: str, zone: str, name: str) -> dict[str, Any]:
    """Return a type of disks. Raises ApiError 404 if it does not exist."""
    if name not in DISK_TYPES:
        raise wire.not_found(f"projects/{project}/zones/{zone}/diskTypes/{name}")
    description, sizes, default_size = DISK_TYPES[name]
    return {
        **_resource("diskType", "diskTypes", name),
        "description": description,
        "validDiskSize": sizes,
        "zone": wire.link(project, "zones", zone),
        "defaultDiskSizeGb": default_size,
        "selfLink": wire.link(project, "zones", zone, "diskTypes", name),
    }


def images(project: str) -> list[dict[str, Any]]:
    """Return the public images that a project publishes."""
    return [_image(project, family) for family in _IMAGES.get(project, ())]


def _image(project: str, family: str) -> dict[str, Any]:
    name = f"{family}-v20260101"
    return {
        **_resource("image", "images", name),
        "description": f"Emulated {family}",
        "sourceType": "RAW",
        "status": "READY",
        "archiveSizeBytes": "1000000000",
        "diskSizeGb": "10",
        "family": family,
        "architecture": "X86_64",
        "labelFingerprint": wire.fingerprint(()),
        "storageLocations": ["us"],
        "selfLink": wire.link(project, "global", "images", name),
    }


def cpu_metric(machine: str) -> str:
    """Return the regional quota that the vCPUs of a machine type count against.

    A region may not list it: newer families have quotas of another kind.
    """
    family = machine.partition("-")[0]
    if family in _SHARED_QUOTA_FAMILIES:
        return "CPUS"
    return f"{family.upper()}_CPUS"


def gpu_metric(accelerator: str) -> str:
    """Return the regional quota that GPUs of this kind count against. A region may not list it."""
    kind = accelerator.removeprefix("nvidia-").removeprefix("tesla-").replace("-", "_").upper()
    if kind == "H100_80GB":
        kind = "H100"
    return f"NVIDIA_{kind}_GPUS"


def _usage(instances: list[dict[str, Any]]) -> dict[str, float]:
    """Return what VMs use of each quota of their region, by metric."""
    usage = {
        "INSTANCES": 0.0,
        "CPUS": 0.0,
        "PREEMPTIBLE_CPUS": 0.0,
        "IN_USE_ADDRESSES": 0.0,
        "DISKS_TOTAL_GB": 0.0,
    }
    for family in _CPU_FAMILIES:
        usage[f"{family.upper()}_CPUS"] = 0.0
    for kind in _GPU_QUOTAS:
        usage[f"NVIDIA_{kind}_GPUS"] = 0.0
        usage[f"PREEMPTIBLE_NVIDIA_{kind}_GPUS"] = 0.0
    # H100s have a regional quota for Spot VMs only.
    usage["PREEMPTIBLE_NVIDIA_H100_GPUS"] = 0.0
    for vm in instances:
        if vm["status"] == "TERMINATED":
            continue
        usage["INSTANCES"] += 1
        preemptible = vm["scheduling"]["preemptible"]
        machine = machine_type("any", wire.last(vm["zone"]), wire.last(vm["machineType"]))
        metric = "PREEMPTIBLE_CPUS" if preemptible else cpu_metric(machine["name"])
        if metric in usage:
            usage[metric] += machine["guestCpus"]
        for accelerator in vm.get("guestAccelerators", ()):
            metric = gpu_metric(wire.last(accelerator["acceleratorType"]))
            if preemptible:
                metric = f"PREEMPTIBLE_{metric}"
            if metric in usage:
                usage[metric] += accelerator["acceleratorCount"]
    return usage
