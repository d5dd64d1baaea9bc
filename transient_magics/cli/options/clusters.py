"""The options of a cluster: of its declaration, and of its sub-commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from ...errors import DeclarationError
from ...protocol.cluster_commands import GiveUp
from ...spec import PURPOSES
from ..option import (
    Option,
    duration,
    event_kind,
    fallback,
    flag,
    group,
    new_name,
    one_gpu,
    one_of,
    one_zone,
    preemption_notice,
    whole,
    word,
)
from .shared import (
    ANY_CLUSTER,
    CLUSTER,
    CLUSTER_NAME,
    COST,
    DISK,
    GIVE_UP,
    IMAGE,
    JSON,
    MACHINE_TYPE,
    MACHINES,
    NETWORK,
    NETWORK_OPTIONS,
    OUTPUT,
    PROJECT,
    PROVISIONING_MODEL,
    PS,
    PS_CORES,
    PS_ZONE,
    REPLACE,
    RESEARCH,
    REVOCATIONS,
    RUN,
    WORKER,
    ZONE,
    max_cost,
    max_hours,
    wait_until,
)


def declare() -> tuple[Option, ...]:
    """Return the options of a declaration."""
    return (
        word(
            "spec",
            "SPEC",
            "GROUP+GROUP..., each GPU[xCOUNT][@ZONE], such as k80x4",
            many="*",
            completes="gpu",
        ),
        *group(CLUSTER, *_cluster()),
        *group(MACHINES, *_machines()),
        *group(REVOCATIONS, *_revocations()),
        *group(COST, *_limits()),
        *group(NETWORK, *NETWORK_OPTIONS),
        *group(
            RESEARCH,
            flag(
                "--chief",
                "who saves checkpoints: the parameter server's VM; or a worker, and another worker once "
                "that one is revoked, as in published systems",
                default="ps",
                **one_of("--chief", ("ps", "worker")),
            ),
        ),
    )


def _cluster() -> tuple[Option, ...]:
    return (
        flag(
            "--name",
            "the cluster's name, 40 characters at most",
            new_name,
            default="short, from SPEC",
        ),
        flag(
            "--for",
            "what it is for: training; or jobs, Dask and bags without TensorFlow, so that VMs boot sooner",
            default="training",
            name="purpose",
            **one_of("--for", PURPOSES),
        ),
        replace(PROJECT, default="none, all is emulated and free"),
        flag(
            "--controller",
            "where the controller runs: here, or on a small VM of its own, so that this machine may be off",
            default="cluster with a project, a service account and a bucket, else local",
            **one_of("--controller", ("local", "cluster")),
        ),
        flag("--dry-run", "show what would be created and its price; create nothing"),
        wait_until("the cluster is ready"),
        OUTPUT,
    )


def _machines() -> tuple[Option, ...]:
    return (
        ZONE,
        MACHINE_TYPE,
        PS,
        PS_CORES,
        flag(
            "--ps-machine",
            "instead of --ps-cores, their machine type: n2-standard-4, e2-standard-4, n2-custom-4-16384",
            str,
            default="N1 with 4 GB per vCPU; for jobs e2-standard-2",
            metavar="TYPE",
        ),
        PS_ZONE,
        DISK,
        IMAGE,
        PROVISIONING_MODEL,
        flag(
            "--max-workers",
            "the most workers that a resize may request. With --finish-by, new workers run beside "
            "those that they replace. With --max-cost, the cluster ends when this number of workers would have spent "
            "the money",
            whole("--max-workers"),
            default="twice the workers",
            metavar="N",
        ),
    )


def _revocations() -> tuple[Option, ...]:
    return (
        flag(
            "--preemption-notice",
            "how long Spot VMs run after a preemption notice, before their shutdown of 30 s: 120s or none",
            preemption_notice,
            default="120s with --project, none on the emulator",
            metavar="TIME",
        ),
        REPLACE,
        GIVE_UP,
        flag(
            "--fallback",
            "on-demand[=10m]: rent workers on demand after this time without Spot capacity",
            fallback,
            default="none",
            name="fallback_seconds",
            metavar="on-demand[=TIME]",
        ),
    )


def _limits() -> tuple[Option, ...]:
    return (
        max_hours(
            "the cluster's longest life, also enforced by Compute Engine: 24h (120d at most; it cannot be "
            "changed later)"
        ),
        max_cost(
            "the most that the cluster may cost, in US dollars; resizes that would exceed it are refused"
        ),
        flag(
            "--idle",
            "delete idle workers after this time: 30m",
            duration("--idle", "m"),
            metavar="TIME",
        ),
    )


def verbs() -> dict[str, tuple[Option, ...]]:
    """Return the options of what is done with clusters that exist, by sub-command."""
    return {
        "list": (flag("--all", "deleted ones too"), JSON),
        "status": (ANY_CLUSTER, JSON),
        "cost": (ANY_CLUSTER,),
        "attach": (ANY_CLUSTER, PROJECT, OUTPUT),
        "resize": (
            CLUSTER_NAME,
            word("spec", "SPEC", "the workers after the resize", many="*", completes="gpu"),
            replace(
                PS,
                help="instead of SPEC, the number of parameter servers; runs continue from a checkpoint",
                default="",
            ),
            replace(
                GIVE_UP,
                help="which workers to release: those that are slow beside others of their run, that came "
                "last, that are most likely to be revoked soon, or that cost the most",
                default="as the cluster was declared, else the highest places",
                **one_of("--give-up", get_args(GiveUp)),
            ),
        ),
        "relocate": (
            CLUSTER_NAME,
            flag("--zone", "the new zone", one_zone("--zone"), completes="zone", metavar="ZONE"),
            flag("--gpus", "the new GPU of its workers", one_gpu, completes="gpu", metavar="GPU"),
            flag("--yes", "relocate; without it only the price is shown"),
        ),
        "revoke": (
            CLUSTER_NAME,
            WORKER,
            flag(
                "--in",
                "when the notice comes: 30s, 2m",
                duration("--in", "s"),
                default="now",
                name="seconds",
                metavar="TIME",
            ),
        ),
        "move": (
            CLUSTER_NAME,
            RUN,
            flag(
                "--before",
                "before this one that waits",
                str,
                default="before all of them",
                completes="run",
                metavar="RUN",
            ),
        ),
        "agree": (
            CLUSTER_NAME,
            word(
                "run",
                "RUN",
                "the run that has a deadline",
                many="?",
                completes="run",
                default="the workers that are proposed for release",
            ),
        ),
        "logs": (
            CLUSTER_NAME,
            WORKER,
            flag("--lines", "how many of the last lines", whole("--lines"), default="200"),
        ),
        "events": (
            ANY_CLUSTER,
            flag(
                "--kind",
                "only this kind, such as vm.revoked, or a group of kinds, such as vm",
                event_kind,
            ),
            flag("--follow", "continue until interrupted"),
            JSON,
        ),
        "delete": (
            word("name", "NAME", "the cluster", completes="cluster", many="?"),
            flag("--all", "every cluster"),
        ),
        "sweep": (
            PROJECT,
            flag("--yes", "delete them; without it they are only shown"),
            flag(
                "--all-machines",
                "also those that you made from other machines, an hour after they were made",
            ),
        ),
    }


def work() -> dict[str, tuple[Option, ...]]:
    """Return the options of what is done with work of any kind, by sub-command."""
    every_cluster = "all that are not deleted"
    return {
        "work": (
            word(
                "name",
                "CLUSTER",
                "the cluster",
                completes="cluster",
                many="?",
                default=every_cluster,
            ),
            JSON,
        ),
        "stop": (
            word("cluster", "CLUSTER", "the cluster", completes="cluster"),
            word(
                "name",
                "NAME",
                "the run, study, job, bag, Dask cluster or measurement of stalls",
                completes="work",
            ),
        ),
    }


def check_declare(values: dict[str, Any], called: str) -> None:
    """Groups of workers that the catalog has; what `spec` was said in pieces is one text then."""
    from ...catalog import ACCELERATORS, ZONES
    from ...spec import parse_groups

    values["spec"] = " ".join(values.get("spec", ()))
    parse_groups(values["spec"], ACCELERATORS, ZONES)


def check_resize(values: dict[str, Any], called: str) -> None:
    """Other workers, or other parameter servers."""
    if bool(values.get("spec")) == bool(values.get("ps")):
        raise DeclarationError(
            f"{called} takes SPEC or --ps N", fix=f"For example: {called} k80x4 k80x6"
        )
    if values.get("spec"):
        check_declare(values, called)
    elif values.get("give_up"):
        raise DeclarationError(
            f"{called} --give-up says which workers go", fix=f"For example: {called} k80x4 k80x2"
        )


def check_relocate(values: dict[str, Any], called: str) -> None:
    """Somewhere else, or something else."""
    if not (values.get("zone") or values.get("gpus")):
        raise DeclarationError(
            f"{called} needs --zone or --gpus", fix=f"For example: {called} k80x4 --zone us-east1-c"
        )


def check_delete(values: dict[str, Any], called: str) -> None:
    """A name, or all."""
    if bool(values.get("name")) == bool(values.get("all")):
        raise DeclarationError(
            f"{called} needs the cluster's name, or --all", fix=f"For example: {called} k80x4"
        )
