"""Conversion of a Declaration into a ClusterSpec, with zones, machine types and prices."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from dataclasses import replace

from ... import places
from ...catalog import (
    ACCELERATORS,
    DISK_TYPE,
    ZONES,
    continent,
    default_zone,
    has_gpu,
    home_first,
    living_alternative,
    parse_disk,
    price_list,
    region,
    server_machine,
    worker_machines,
    zones_with,
)
from ...errors import DeclarationError
from ...protocol.machines import CPU
from ...spec import (
    EMULATED_PROJECT,
    IAP_RANGE,
    JOBS,
    TRAINING,
    ClusterSpec,
    WorkerGroup,
    own_bucket,
    parse_bucket,
    parse_groups,
    parse_name,
    parse_project,
)
from ...spec.cluster import lines_of, with_home, worker_prices
from .declaration import Declaration, check_declaration, refuse_far, refuse_on_demand, refuse_short

_SCHEDULER = "e2-standard-2"
"""The machine type of the on-demand VM of a cluster for jobs, which holds no variables."""
_NOTICE_SECONDS = 120
"""The longer preemption notice of Compute Engine."""


def specify(declaration: Declaration) -> ClusterSpec:
    """Return the complete specification: fill in names, zones, machine types and prices.

    Parameters
    ----------
    declaration
        The declaration.

    Raises
    ------
    DeclarationError
        The declaration is invalid.
    """
    groups = parse_groups(declaration.spec, ACCELERATORS, ZONES)
    kinds = [group.accelerator for group in groups]
    check_declaration(declaration, kinds)
    if declaration.name:
        name = parse_name(declaration.name, "--name")
    else:
        name = _free_name(groups)
    workers = sum(group.count for group in groups)
    if declaration.max_workers is not None:
        most = declaration.max_workers
    else:
        most = 2 * workers
    if most < workers:
        raise DeclarationError(
            f"{workers} workers exceed the limit of {most}",
            where="--max-workers",
            fix="Declare fewer.",
        )
    zones = declaration.zone or (_default_zone(groups),)
    candidates = _candidates(groups, zones, fixed=bool(declaration.zone))
    machines = worker_machines(declaration.machine_type or "", kinds)
    if declaration.disk:
        disk_gb, disk_type = parse_disk(declaration.disk)
    else:
        disk_gb = 0
        disk_type = DISK_TYPE
    lines = price_list(
        kinds,
        external_ip=declaration.external_ip,
        machines=machines,
        disk_gb=disk_gb,
        disk_type=disk_type,
    )
    spec = ClusterSpec(
        name=name,
        groups=groups,
        zones=zones,
        candidates=candidates,
        prices=worker_prices(lines, groups, candidates, declaration.provisioning_model),
        id=secrets.token_hex(4),
        declared_at=time.time(),
        parameter_servers=declaration.ps,
        parameter_server_cores=_server_cores(declaration),
        parameter_server_machine=_server_machine(declaration),
        parameter_server_zone=declaration.ps_zone or "",
        worker_machines=machines,
        disk_gb=disk_gb,
        disk_type=disk_type,
        provisioning_model=declaration.provisioning_model,
        max_workers=most,
        replace=declaration.replace,
        give_up=declaration.give_up,
        notice_seconds=_notice(declaration),
        fallback_seconds=declaration.fallback_seconds,
        chief=declaration.chief,
        max_seconds=3600 * declaration.max_hours,
        max_cost=declaration.max_cost,
        reserved_workers=declaration.max_workers or 0,
        idle_seconds=declaration.idle,
        project=declaration.project and parse_project(declaration.project),
        image=declaration.image,
        service_account=_account(declaration),
        network=declaration.network,
        subnet=declaration.subnet,
        external_ip=declaration.external_ip,
        firewall=declaration.firewall,
        ssh_from=declaration.ssh_from or ((IAP_RANGE,) if declaration.firewall else ()),
        controller=declaration.controller or _default_controller(declaration),
        purpose=JOBS if declaration.purpose == JOBS else TRAINING,
    )
    spec = with_home(spec, lines).with_end()
    refuse_far(spec.parameter_server_zone, spec.all_zones, on_n1=not spec.parameter_server_machine)
    refuse_short(spec)
    # Parsed here as the controller will parse it, so that a value of a wrong type is refused now.
    return ClusterSpec.from_dict(
        replace(spec, bucket=_bucket(declaration, spec.home_zone)).to_dict()
    )


def _notice(declaration: Declaration) -> int:
    """Return the seconds of preemption notice that VMs request; 0: they request none.

    By default, Spot VMs of a project request 120 s, the only other value that Compute Engine offers.
    """
    if declaration.preemption_notice is None:
        if declaration.project and declaration.provisioning_model == "spot":
            return _NOTICE_SECONDS
        return 0
    if declaration.preemption_notice and declaration.provisioning_model != "spot":
        what = (
            "Only Spot VMs can have a longer preemption notice, not "
            f"{declaration.provisioning_model} VMs"
        )
        raise DeclarationError(
            what, where="--preemption-notice", fix="Leave it out, or use Spot VMs."
        )
    return _NOTICE_SECONDS if declaration.preemption_notice else 0


def resized(spec: ClusterSpec, text: str) -> ClusterSpec:
    """Return a specification with other workers. Raises DeclarationError.

    Parameters
    ----------
    spec
        The present specification.
    text
        The SPEC of the new workers.
    """
    groups = parse_groups(text, ACCELERATORS, ZONES)
    workers = sum(group.count for group in groups)
    if workers > spec.max_workers:
        what = f"{workers} workers exceed the limit of {spec.max_workers} for {spec.name}"
        raise DeclarationError(
            what, fix="To have more, declare another cluster with a larger --max-workers."
        )
    fixed = bool(spec.candidates) and all(
        set(zones) <= set(spec.zones) for zones in spec.candidates.values()
    )
    candidates = {**_candidates(groups, spec.zones, fixed=fixed), **spec.candidates}
    return _priced(replace(spec, groups=groups, candidates=candidates))


def relocated(
    spec: ClusterSpec, zone: str = "", gpu: str = "", servers: int | None = None
) -> ClusterSpec:
    """Return a specification with another zone, GPU or number of parameter servers.

    Parameters
    ----------
    spec
        The present specification.
    zone
        The zone of all VMs.
    gpu
        The GPU of all workers.
    servers
        The number of parameter servers.

    Raises
    ------
    DeclarationError
        The zone or the GPU is unknown, or the zone does not have the GPU.
    """
    new = replace(spec, parameter_servers=servers or spec.parameter_servers)
    if not (zone or gpu):
        return new
    new = replace(new, parameter_server_zone="" if zone else spec.parameter_server_zone)
    there = zone or replace(spec, parameter_server_zone="").home_zone
    parse_groups(f"{gpu or 'cpu'}@{there}", ACCELERATORS, ZONES)
    workers = Counter(gpu or group.accelerator for group in spec.groups for _ in range(group.count))
    if missing := next((kind for kind in workers if not has_gpu(there, kind)), ""):
        possible = zones_with(missing)
        near = [zone for zone in possible if continent(zone) == continent(there)] or possible
        what = f"{missing.upper()} is not available in {there}"
        raise DeclarationError(
            what, where="--zone", fix=f"Use one of these: {', '.join(near[:4])}."
        )
    groups = tuple(WorkerGroup(kind, count) for kind, count in workers.items())
    return _priced(
        replace(new, groups=groups, zones=(there,), candidates=dict.fromkeys(workers, (there,)))
    )


def _priced(spec: ClusterSpec) -> ClusterSpec:
    """Update the prices of a changed specification. Raises DeclarationError for unsold GPUs."""
    kinds = [group.accelerator for group in spec.groups]
    if not spec.emulated and (refused := next(filter(None, map(living_alternative, kinds)), "")):
        raise DeclarationError(refused)
    refuse_on_demand(spec.provisioning_model, spec.fallback_seconds, kinds)
    priced = kinds
    if "k80" in spec.prices:
        priced = [*spec.prices, *kinds]
    lines = lines_of(spec, priced)
    prices = worker_prices(lines, spec.groups, spec.candidates, spec.provisioning_model)
    return with_home(replace(spec, prices={**spec.prices, **prices}), lines)


def widened(spec: ClusterSpec, gpus: tuple[str, ...]) -> ClusterSpec:
    """Add prices and zones of GPUs that workers may get later. Raises DeclarationError."""
    wider = resized(replace(spec, max_workers=max(spec.max_workers, len(gpus))), "+".join(gpus))
    prices = {**wider.prices, **spec.prices}
    candidates = {**wider.candidates, **spec.candidates}
    return replace(spec, prices=prices, candidates=candidates)


def with_preparation(spec: ClusterSpec, vms: int) -> ClusterSpec:
    """Add VMs that prepare mini-batches, with their price. Raises DeclarationError."""
    return replace(widened(spec, (CPU,)), preparation=max(spec.preparation, vms))


def _server_machine(declaration: Declaration) -> str:
    """Return the machine type of parameter servers; empty if the number of vCPUs determines it."""
    if declaration.ps_machine:
        return declaration.ps_machine
    if declaration.purpose == JOBS and not declaration.ps_cores:
        return _SCHEDULER
    return ""


def _server_cores(declaration: Declaration) -> int:
    """Return the vCPUs of each parameter server. Raises DeclarationError for an invalid machine."""
    if machine := _server_machine(declaration):
        return server_machine(machine).vcpus
    return declaration.ps_cores or 4


def _default_controller(declaration: Declaration) -> str:
    """Return `cluster` if a VM can have the controller, so that this machine may be off.

    That needs a project, a service account and a bucket.
    """
    if declaration.project and declaration.service_account and declaration.bucket != "none":
        return "cluster"
    return "local"


def _account(declaration: Declaration) -> str | None:
    """Return the address of the service account; a name without a domain is in the project."""
    account = declaration.service_account
    project = declaration.project
    if not account or not project or "@" in account or account == "default":
        return account
    domain = ".".join(reversed(project.split(":")))  # for `example.com:project` too
    return f"{account}@{domain}.iam.gserviceaccount.com"


def _bucket(declaration: Declaration, home_zone: str) -> str | None:
    if declaration.bucket:
        if declaration.bucket == "none":
            return None
        return parse_bucket(declaration.bucket, "--bucket")
    on_a_vm = (declaration.controller or _default_controller(declaration)) == "cluster"
    if declaration.purpose == JOBS and not on_a_vm:  # jobs copy their results to this machine
        return None
    if declaration.project or on_a_vm:
        return own_bucket(declaration.project or EMULATED_PROJECT, region(home_zone))
    return None


def _default_zone(groups: tuple[WorkerGroup, ...]) -> str:
    """Return the zone of groups without one: that of other groups with the GPUs, or the best."""
    kinds = [group.accelerator for group in groups if not group.zone]
    named = [group.zone for group in groups if group.zone]
    beside = (zone for zone in named if all(has_gpu(zone, kind) for kind in kinds))
    return next(beside, None) or default_zone(kinds)


def _candidates(
    groups: tuple[WorkerGroup, ...], zones: tuple[str, ...], *, fixed: bool = False
) -> dict[str, tuple[str, ...]]:
    """Return the possible zones of groups without one, by GPU.

    They are `zones` if `fixed`, else all zones of the continent. The cluster's zone comes first,
    then those of its region, whose traffic is the cheapest, then the others by price.
    """
    home = zones[0]
    found = {}
    for kind in dict.fromkeys(group.accelerator for group in groups if not group.zone):
        if fixed:
            found[kind] = tuple(zone for zone in zones if has_gpu(zone, kind)) or zones
        else:
            near = [zone for zone in zones_with(kind) if continent(zone) == continent(home)]
            found[kind] = home_first(near, home) or zones
    return found


def _free_name(groups: tuple[WorkerGroup, ...]) -> str:
    """Return the first free name such as `k80x4`, `k80x4-2`, ..."""
    parts: list[str] = []
    for group in groups:
        if group.count > 1:
            parts.append(f"{group.accelerator}x{group.count}")
        else:
            parts.append(group.accelerator)
    base = "-".join(parts)[:30].strip("-")
    name = base
    number = 1
    while places.cluster(name).exists():
        number += 1
        name = f"{base}-{number}"
    return name
