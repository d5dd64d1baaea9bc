"""The declaration of a cluster, and the checks that need no cloud."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ...catalog import ZONES, accelerator, check_zone, continent, living_alternative
from ...errors import DeclarationError, unknown
from ...protocol.run import option as option_of
from ...spec import (
    JOBS,
    MOST_SECONDS,
    PURPOSES,
    TRAINING,
    ClusterSpec,
    parse_groups,
    render_duration,
)
from ...spec.image import FAMILIES, least_boot_seconds
from .. import text

MODELS = ("spot", "preemptible", "standard")
"""Provisioning models of Compute Engine."""

WAYS_IN = (
    "Install the Google Cloud CLI, or name the addresses from which SSH may connect directly: "
    "--ssh-from RANGE (the public address of this machine, as 203.0.113.7/32)."
)


@dataclass(frozen=True)
class Declaration:
    """The declaration of a cluster: the options of `%transient_cluster` by name.

    `tm.declare` takes the same fields. Money is in US dollars.

    Parameters
    ----------
    spec
        The workers: `GROUP+GROUP...`, each `GPU[xCOUNT][@ZONE]`, such as `k80x4`.
    name
        The name of the cluster (default: from `spec`).
    ps
        The number of parameter servers, always on demand.
    ps_cores, ps_machine
        The vCPUs of each parameter server (default: 4), or its machine type.
    ps_zone
        The zone of parameter servers (default: the zone with the most workers).
    machine_type
        The machine type of workers, or `GPU=TYPE,...` (default: from the catalog).
    disk
        The size and kind of boot disks, such as `200GB:ssd` (default: 50 GB).
    zone
        Zones to try in order for groups without one (default: the best of the catalog).
    provisioning_model
        `spot`, `preemptible` or `standard` (on demand).
    preemption_notice
        The seconds of notice that Spot VMs request, 120 or 0 (default: 120 in a project).
    max_workers
        The limit of `resize` (default: twice the workers).
    replace
        Whether to replace revoked workers.
    give_up
        The workers to release first: `slowest`, `youngest`, `riskiest`, `costliest`, or `ask`
        (default: `slowest`).
    fallback_seconds
        The seconds without Spot capacity after which to rent on demand. None: never.
    chief
        The VM that saves checkpoints: `ps` or `worker`.
    max_hours
        The limit of the cluster's life in hours.
    max_cost
        The limit of its cost (default: none).
    idle
        The seconds after which idle workers are deleted.
    project
        The ID of a Google Cloud project (default: the emulator).
    bucket
        The bucket of checkpoints and results, or `none` (default: one for the project).
    image
        The image of the VMs (default: the image baked for this version, else Debian 12).
    service_account
        The service account of the controller's VM.
    network, subnet
        The network of the VMs.
    external_ip
        Whether VMs have external addresses.
    firewall
        Whether to create firewall rules.
    ssh_from
        Address ranges from which SSH may connect directly.
    controller
        Where the controller runs: `local` or `cluster` (default: `cluster` with a project, a
        service account and a bucket).
    purpose
        `training`, or `jobs` without TensorFlow.

    Examples
    --------
    >>> cluster = tm.declare(tm.Declaration("k80x4", name="demo", max_cost=10))
    """

    spec: str
    name: str | None = None
    ps: int = 1
    ps_cores: int | None = None
    ps_machine: str | None = None
    ps_zone: str | None = None
    machine_type: str | None = None
    disk: str | None = None
    zone: tuple[str, ...] = ()
    provisioning_model: str = "spot"
    preemption_notice: int | None = None
    max_workers: int | None = None
    replace: bool = True
    give_up: Literal["slowest", "youngest", "riskiest", "costliest", "ask"] | None = None
    fallback_seconds: float | None = None
    chief: str = "ps"
    max_hours: float = 24.0
    max_cost: float | None = None
    idle: float = 1800.0
    project: str | None = None
    bucket: str | None = None
    image: str | None = None
    service_account: str | None = None
    network: str | None = None
    subnet: str | None = None
    external_ip: bool = True
    firewall: bool = True
    ssh_from: tuple[str, ...] = ()
    controller: str | None = None
    purpose: str = TRAINING


def option_error(
    error: ValueError, names: Mapping[str, str] = MappingProxyType({}), *, prefix: str = "--"
) -> DeclarationError:
    """Convert the error of a field into an error of its option.

    Parameters
    ----------
    error
        The error; its text begins with the field and a colon.
    names
        Options by field, if their names differ.
    prefix
        The text before an option; empty for arguments of a Python function.
    """
    field, _, why = str(error).partition(": ")
    name = field
    if field in names:
        name = f"{prefix}{names[field]}"
    elif prefix:
        name = option_of(field)
    if not why:
        return DeclarationError(str(error))
    return DeclarationError(f"Invalid {name}: {why}")


def refuse_more_workers(cluster: ClusterSpec, workers: int, where: str = "--workers") -> None:
    """Raise DeclarationError if work needs more workers than the cluster has."""
    if workers > cluster.worker_count:
        what = f"{cluster.name} has {text.count(cluster.worker_count, 'worker')}, not {workers}"
        raise DeclarationError(what, where=where, fix="Use fewer, or resize the cluster first.")


def check_declaration(declaration: Declaration, kinds: list[str]) -> None:
    """Check that options do not contradict each other or the catalog.

    Parameters
    ----------
    declaration
        The options.
    kinds
        The GPUs in its SPEC.

    Raises
    ------
    DeclarationError
        They do.
    """
    if declaration.provisioning_model not in MODELS:
        raise unknown(
            "provisioning model",
            declaration.provisioning_model,
            MODELS,
            where="--provisioning-model",
        )
    if declaration.purpose not in PURPOSES:
        raise unknown("purpose", declaration.purpose, PURPOSES, where="--for")
    if declaration.purpose == JOBS:
        _refuse_for_jobs(declaration)
    elif (declaration.image or "").endswith(f"family/{FAMILIES[JOBS]}"):
        raise DeclarationError(
            "This image has no TensorFlow, which runs need",
            where="--image",
            fix="Declare the cluster with --for jobs, or use another image.",
        )
    for zone in (*declaration.zone, *([declaration.ps_zone] if declaration.ps_zone else [])):
        parse_groups(f"cpu@{zone}", ["cpu"], ZONES)
    if not declaration.max_hours > 0:
        raise DeclarationError(
            "--max-hours must be greater than 0", fix="Write 24h, or a number of hours."
        )
    if 3600 * declaration.max_hours > MOST_SECONDS:
        what = f"Compute Engine limits the life of VMs to {MOST_SECONDS / 86400:g} days"
        raise DeclarationError(
            what, where="--max-hours", fix=f"Write {MOST_SECONDS / 86400:g}d or less."
        )
    if declaration.ps < 1 or declaration.ps > 16:
        raise DeclarationError("The number of parameter servers must be from 1 to 16", where="--ps")
    if declaration.ps_cores not in (None, 1, 2, 4, 8, 16, 32):
        raise DeclarationError(
            "The vCPUs of a parameter server must be 1, 2, 4, 8, 16 or 32", where="--ps-cores"
        )
    if declaration.ps_cores and declaration.ps_machine:
        raise DeclarationError(
            "--ps-machine and --ps-cores both set the number of vCPUs", fix="Leave out --ps-cores."
        )
    if declaration.project and (refused := next(filter(None, map(living_alternative, kinds)), "")):
        raise DeclarationError(refused, fix="Without --project, the cluster runs on the emulator.")
    refuse_on_demand(declaration.provisioning_model, declaration.fallback_seconds, kinds)
    if declaration.controller == "cluster" and declaration.bucket == "none":
        what = "Results need a bucket, because this machine may be off when they arrive"
        raise DeclarationError(what, where="--controller cluster", fix="Leave out --bucket none.")
    if (
        declaration.controller == "cluster"
        and declaration.project
        and not declaration.service_account
    ):
        what = "The controller's VM creates and deletes VMs, so it needs a service account"
        fix = "Name one with --service-account; docs/accounts.md has the commands that create one."
        raise DeclarationError(what, where="--controller cluster", fix=fix)


def _refuse_for_jobs(declaration: Declaration) -> None:
    """Raise DeclarationError for options that are for training only."""
    for option, given in (
        ("--ps", declaration.ps != 1),
        ("--ps-zone", declaration.ps_zone),
        ("--chief", declaration.chief != "ps"),
    ):
        if given:
            what = (
                "A cluster for jobs cannot train and has only one on-demand VM besides its workers"
            )
            raise DeclarationError(what, where=option, fix=f"Leave out {option} or --for jobs.")


def refuse_far(here: str, workers: Iterable[str], *, on_n1: bool = True) -> None:
    """Check the zone of parameter servers.

    Parameters
    ----------
    here
        The zone; empty for the default.
    workers
        The zones of the workers.
    on_n1
        Whether the parameter servers need N1 machines.

    Raises
    ------
    DeclarationError
        The zone is on another continent than the workers, or does not have the machines.
    """
    if not here:
        return
    away = next((zone for zone in workers if continent(zone) != continent(here)), "")
    if away:
        what = (
            f"{here} is on another continent than the workers in {away}, which would slow down "
            "every step"
        )
        raise DeclarationError(what, where="--ps-zone", fix="Use a zone on the workers' continent.")
    if on_n1:
        try:
            check_zone(here, "cpu")
        except DeclarationError as error:
            raise DeclarationError(error.what, where="--ps-zone", fix=error.fix) from None


def refuse_short(spec: ClusterSpec) -> None:
    """Raise DeclarationError if the limits end the cluster before its VMs have booted."""
    seconds = spec.ends_at - spec.declared_at
    needed = max(least_boot_seconds(spec, group.accelerator) for group in spec.groups)
    if seconds < needed:
        option = "--max-cost"
        if seconds == spec.max_seconds:
            option = "--max-hours"
        build = "%transient_image build"
        if spec.purpose == JOBS:
            build += " --for jobs"
        raise DeclarationError(
            f"This cluster would end after {render_duration(seconds)}, but its VMs take "
            f"{render_duration(needed)} or "
            "more to boot",
            where=option,
            fix=f"Raise the limit, or build an image from which VMs boot sooner: {build}",
        )


def refuse_on_demand(model: str, fallback_seconds: float | None, kinds: Iterable[str]) -> None:
    """Raise DeclarationError if a GPU would be rented on demand that is sold as Spot only."""
    for kind in kinds:
        if accelerator(kind).spot_only and (model == "standard" or fallback_seconds is not None):
            option = "--fallback"
            if model == "standard":
                option = "--provisioning-model"
            machine = accelerator(kind).machine_type
            what = f"Compute Engine sells machines with one {kind.upper()} ({machine}) as Spot only"
            raise DeclarationError(what, where=option, fix="Leave it out.")


def unreachable_by_ssh(spec: ClusterSpec) -> str:
    """Return why this machine cannot reach the VMs, as a clause; empty if it can."""
    if not spec.through_proxy or shutil.which("gcloud"):
        return ""
    return (
        "SSH goes through Identity-Aware Proxy, which needs the program gcloud, and gcloud is "
        "not installed"
    )


def refuse_unreachable(spec: ClusterSpec) -> None:
    """Raise DeclarationError if this machine cannot reach the VMs."""
    if unreachable := unreachable_by_ssh(spec):
        raise DeclarationError(unreachable, where="--ssh-from", fix=WAYS_IN)
