"""Options of a cluster: of its declaration, and of its sub-commands."""

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
    """Return the options that declare a cluster."""
    return (
        word(
            "spec",
            "SPEC",
            "the workers: groups GPU[xCOUNT][@ZONE], joined by +, such as k80x4 or "
            "k80x2@us-west1-b+p100",
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
                "which VM saves checkpoints. ps: the first parameter server; worker: a worker, "
                "and another worker after its revocation, as in published systems",
                default="ps",
                **one_of("--chief", ("ps", "worker")),
            ),
        ),
    )


def _cluster() -> tuple[Option, ...]:
    return (
        flag(
            "--name",
            "name of the cluster, at most 40 characters",
            new_name,
            default="derived from SPEC",
        ),
        flag(
            "--for",
            "purpose of the cluster. training: everything; jobs: only jobs, bags and Dask, "
            "without TensorFlow, so that VMs boot faster",
            default="training",
            name="purpose",
            **one_of("--for", PURPOSES),
        ),
        replace(PROJECT, default="use the emulator, which costs nothing"),
        flag(
            "--controller",
            "where the controller runs. local: on this machine; cluster: on its own small VM, so "
            "that this machine can be off",
            default="cluster with a project, a service account and a bucket; otherwise local",
            **one_of("--controller", ("local", "cluster")),
        ),
        flag("--dry-run", "show what would be created and its price, and create nothing"),
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
            "machine type of the parameter servers, instead of --ps-cores: n2-standard-4, "
            "e2-standard-4, n2-custom-4-16384",
            str,
            default="N1 with 4 GB per vCPU; with --for jobs, e2-standard-2",
            metavar="TYPE",
        ),
        PS_ZONE,
        DISK,
        IMAGE,
        PROVISIONING_MODEL,
        flag(
            "--max-workers",
            "the highest number of workers for resize. With --finish-by, VMs that start to "
            "replace workers are additional. With --max-cost, the cluster ends when this number "
            "of workers would have spent the money",
            whole("--max-workers"),
            default="twice the number of workers",
            metavar="N",
        ),
    )


def _revocations() -> tuple[Option, ...]:
    return (
        flag(
            "--preemption-notice",
            "time from the preemption notice of a Spot VM to its 30 s shutdown: 120s or none",
            preemption_notice,
            default="120s with --project; none on the emulator",
            metavar="TIME",
        ),
        REPLACE,
        GIVE_UP,
        flag(
            "--fallback",
            "rent on-demand workers after this time without Spot capacity: on-demand=10m",
            fallback,
            default="none",
            name="fallback_seconds",
            metavar="on-demand[=TIME]",
        ),
    )


def _limits() -> tuple[Option, ...]:
    return (
        max_hours(
            "end the cluster after this time, at most 120d. Compute Engine also enforces this "
            "limit. It cannot be changed later",
            default="24h",
        ),
        max_cost(
            "end the cluster when it has cost this amount in US dollars. A resize that would "
            "exceed it is rejected",
            default="no limit",
        ),
        flag(
            "--idle",
            "delete workers that are idle for this time",
            duration("--idle", "m"),
            default="30m",
            metavar="TIME",
        ),
    )


def verbs() -> dict[str, tuple[Option, ...]]:
    """Return the options of the sub-commands for existing clusters."""
    return {
        "list": (flag("--all", "include deleted clusters"), JSON),
        "status": (ANY_CLUSTER, JSON),
        "cost": (ANY_CLUSTER,),
        "attach": (ANY_CLUSTER, PROJECT, OUTPUT),
        "resize": (
            CLUSTER_NAME,
            word("spec", "SPEC", "the workers after the resize", many="*", completes="gpu"),
            replace(
                PS,
                help="the new number of parameter servers, instead of SPEC. Runs continue from a "
                "checkpoint",
                default="",
            ),
            replace(
                GIVE_UP,
                help="which workers to release. slowest: the slowest of their run; youngest: "
                "those that started last; riskiest: those most likely to be revoked; "
                "costliest: the most expensive",
                default="as declared for the cluster; otherwise the highest numbers",
                **one_of("--give-up", get_args(GiveUp)),
            ),
        ),
        "relocate": (
            CLUSTER_NAME,
            flag("--zone", "the new zone", one_zone("--zone"), completes="zone", metavar="ZONE"),
            flag("--gpus", "the new GPU of the workers", one_gpu, completes="gpu", metavar="GPU"),
            flag("--yes", "move the cluster; without it, show only the price"),
        ),
        "revoke": (
            CLUSTER_NAME,
            WORKER,
            flag(
                "--in",
                "wait this time before the notice: 30s, 2m",
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
                "start RUN before this waiting run",
                str,
                default="before all other waiting runs",
                completes="run",
                metavar="RUN",
            ),
        ),
        "agree": (
            CLUSTER_NAME,
            word(
                "run",
                "RUN",
                "the run with a deadline",
                many="?",
                completes="run",
                default="accept the proposed release of workers",
            ),
        ),
        "logs": (
            CLUSTER_NAME,
            WORKER,
            flag(
                "--lines",
                "number of lines to show, from the end of the log",
                whole("--lines"),
                default="200",
            ),
        ),
        "events": (
            ANY_CLUSTER,
            flag(
                "--kind",
                "show only events of this kind, such as vm.revoked, or of a group of kinds, such "
                "as vm",
                event_kind,
            ),
            flag("--follow", "also show new events, until interrupted"),
            JSON,
        ),
        "delete": (
            word("name", "NAME", "the name of the cluster", completes="cluster", many="?"),
            flag("--all", "delete all clusters"),
        ),
        "sweep": (
            PROJECT,
            flag("--yes", "delete the resources that were found; without it, only show them"),
            flag(
                "--all-machines",
                "include resources that you created from other machines more than an hour ago",
            ),
        ),
    }


def work() -> dict[str, tuple[Option, ...]]:
    """Return the options of the sub-commands for work of any kind."""
    every_cluster = "all clusters that are not deleted"
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
                "the run, study, job, bag, Dask cluster or stall measurement",
                completes="work",
            ),
        ),
    }


def check_declare(values: dict[str, Any], called: str) -> None:
    """Join the words of SPEC to one text, and check it against the catalog."""
    from ...catalog import ACCELERATORS, ZONES
    from ...spec import parse_groups

    values["spec"] = " ".join(values.get("spec", ()))
    parse_groups(values["spec"], ACCELERATORS, ZONES)


def check_resize(values: dict[str, Any], called: str) -> None:
    """Check that a resize changes either workers or parameter servers."""
    if bool(values.get("spec")) == bool(values.get("ps")):
        raise DeclarationError(
            f"{called} needs SPEC or --ps N, not both", fix=f"For example: {called} k80x4 k80x6"
        )
    if values.get("spec"):
        check_declare(values, called)
    elif values.get("give_up"):
        raise DeclarationError(
            f"{called} --give-up needs SPEC: it chooses which workers to release",
            fix=f"For example: {called} k80x4 k80x2",
        )


def check_relocate(values: dict[str, Any], called: str) -> None:
    """Check that a relocation changes the zone or the GPU."""
    if not (values.get("zone") or values.get("gpus")):
        raise DeclarationError(
            f"{called} needs --zone or --gpus", fix=f"For example: {called} k80x4 --zone us-east1-c"
        )


def check_delete(values: dict[str, Any], called: str) -> None:
    """Check that a deletion has either a name or `--all`."""
    if bool(values.get("name")) == bool(values.get("all")):
        raise DeclarationError(
            f"{called} needs the cluster's name, or --all", fix=f"For example: {called} k80x4"
        )
