"""A declaration of a cluster as the user typed it, and the checks that need no cloud."""

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
"""Provisioning models of Compute Engine: how its VMs are rented."""

WAYS_IN = (
    "Install the Google Cloud CLI, or say from which addresses SSH may come in directly: --ssh-from RANGE "
    "(this machine's own, as the internet sees it, as 203.0.113.7/32)."
)


@dataclass(frozen=True)
class Declaration:
    """What the user typed. Times in seconds where no name says hours, money in US dollars; see the
    options' help.
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
    give_up: Literal["slowest", "youngest", "riskiest", "dearest", "ask"] | None = None
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
    """Return the error of a field as one of the option that sets it.

    Parameters
    ----------
    names
        Options by field, where their names differ.
    prefix
        What stands before an option; empty for arguments of a Python function.
    """
    field, _, why = str(error).partition(": ")
    name = field
    if field in names:
        name = f"{prefix}{names[field]}"
    elif prefix:
        name = option_of(field)
    return DeclarationError(f"Invalid {name}: {why}" if why else str(error))


def refuse_more_workers(cluster: ClusterSpec, workers: int, where: str = "--workers") -> None:
    """Raise DeclarationError where work needs more workers than the cluster has."""
    if workers > cluster.worker_count:
        what = f"{cluster.name} has {text.count(cluster.worker_count, 'worker')}, not {workers}"
        raise DeclarationError(what, where=where, fix="Take fewer, or resize the cluster first.")


def check_declaration(declaration: Declaration, kinds: list[str]) -> None:
    """Raise DeclarationError where options contradict each other or the catalog. `kinds`: the GPUs
    of its SPEC.
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
            "These images have no TensorFlow",
            where="--image",
            fix="Declare the cluster --for jobs.",
        )
    for zone in (*declaration.zone, *([declaration.ps_zone] if declaration.ps_zone else [])):
        parse_groups(f"cpu@{zone}", ["cpu"], ZONES)
    if not declaration.max_hours > 0:
        raise DeclarationError(
            "--max-hours must be above 0", fix="Write 24h, or hours as a number."
        )
    if 3600 * declaration.max_hours > MOST_SECONDS:
        what = f"Compute Engine ends VMs after {MOST_SECONDS / 86400:g} days at most"
        raise DeclarationError(
            what, where="--max-hours", fix=f"Write {MOST_SECONDS / 86400:g}d or less."
        )
    if declaration.ps < 1 or declaration.ps > 16:
        raise DeclarationError("A cluster has 1 to 16 parameter servers", where="--ps")
    if declaration.ps_cores not in (None, 1, 2, 4, 8, 16, 32):
        raise DeclarationError(
            "Parameter servers have 1, 2, 4, 8, 16 or 32 vCPUs", where="--ps-cores"
        )
    if declaration.ps_cores and declaration.ps_machine:
        raise DeclarationError(
            "--ps-machine says how many vCPUs each has", fix="Leave out --ps-cores."
        )
    if declaration.project and (refused := next(filter(None, map(living_alternative, kinds)), "")):
        raise DeclarationError(refused, fix="Without --project it runs on the emulator.")
    refuse_on_demand(declaration.provisioning_model, declaration.fallback_seconds, kinds)
    if declaration.controller == "cluster" and declaration.bucket == "none":
        what = "Results need a bucket, because this machine may be off when they are there"
        raise DeclarationError(what, where="--controller cluster", fix="Leave out --bucket none.")
    if (
        declaration.controller == "cluster"
        and declaration.project
        and not declaration.service_account
    ):
        what = "The VM on which the controller runs makes and deletes VMs, so it has to be said by which account"
        fix = "Name it with --service-account; docs/accounts.md has the commands that make one."
        raise DeclarationError(what, where="--controller cluster", fix=fix)


def _refuse_for_jobs(declaration: Declaration) -> None:
    """Raise DeclarationError for what only training knows."""
    for option, given in (
        ("--ps", declaration.ps != 1),
        ("--ps-zone", declaration.ps_zone),
        ("--chief", declaration.chief != "ps"),
    ):
        if given:
            what = "A cluster for jobs trains nothing, and has one VM on demand beside its workers"
            raise DeclarationError(what, where=option, fix=f"Leave out {option}, or --for jobs.")


def refuse_far(here: str, workers: Iterable[str], *, on_n1: bool = True) -> None:
    """Raise DeclarationError where parameter servers have a zone (empty: none) of no use to them:
    an ocean from their `workers`, or without the machines that they run on.
    """
    if not here:
        return
    away = next((zone for zone in workers if continent(zone) != continent(here)), "")
    if away:
        what = f"{here} is on another continent than workers in {away}: every step would wait for the way there"
        raise DeclarationError(
            what, where="--ps-zone", fix="Take a zone of the workers' continent."
        )
    if on_n1:
        try:
            check_zone(here, "cpu")
        except DeclarationError as error:
            raise DeclarationError(error.what, where="--ps-zone", fix=error.fix) from None


def refuse_short(spec: ClusterSpec) -> None:
    """Raise DeclarationError where the limits end the cluster before its VMs have booted."""
    seconds = spec.ends_at - spec.declared_at
    needed = max(least_boot_seconds(spec, group.accelerator) for group in spec.groups)
    if seconds < needed:
        if seconds == spec.max_seconds:
            option = "--max-hours"
        else:
            option = "--max-cost"
        build = "%transient_image build" + (" --for jobs" if spec.purpose == JOBS else "")
        raise DeclarationError(
            f"This cluster would end after {render_duration(seconds)}, and its VMs take {render_duration(needed)} or "
            "more to boot",
            where=option,
            fix=f"Raise it, or bake an image (`{build}`), from which they boot sooner.",
        )


def refuse_on_demand(model: str, fallback_seconds: float | None, kinds: Iterable[str]) -> None:
    """Raise DeclarationError where that would rent a GPU on demand that is not sold so."""
    for kind in kinds:
        if accelerator(kind).spot_only and (model == "standard" or fallback_seconds is not None):
            if model == "standard":
                option = "--provisioning-model"
            else:
                option = "--fallback"
            machine = accelerator(kind).machine_type
            what = (
                f"Compute Engine sells the machine of one {kind.upper()} ({machine}) as Spot only"
            )
            raise DeclarationError(what, where=option, fix="Leave it out.")


def unreachable_by_ssh(spec: ClusterSpec) -> str:
    """Why this machine could not reach the VMs (a clause), or nothing."""
    if not spec.through_proxy or shutil.which("gcloud"):
        return ""
    return "SSH goes through Identity-Aware Proxy, and the program gcloud, which opens the way, is not on this machine"


def refuse_unreachable(spec: ClusterSpec) -> None:
    """Raise DeclarationError where this machine could not reach the VMs."""
    if unreachable := unreachable_by_ssh(spec):
        raise DeclarationError(unreachable, where="--ssh-from", fix=WAYS_IN)
