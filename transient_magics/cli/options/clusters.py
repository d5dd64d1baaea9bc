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
                "which VM saves checkpoints: ps: the first parameter server; worker: a worker, and "
                "another one after its revocation, as in published systems",
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
            "the purpose of the cluster: training; or jobs (with Dask and bags), without "
            "TensorFlow, so that VMs boot sooner",
            default="training",
            name="purpose",
            **one_of("--for", PURPOSES),
        ),
        replace(PROJECT, default="none, the free emulator"),
        flag(
            "--controller",
            "where the controller runs: local: on this machine; cluster: on a small VM of its "
            "own, so that this machine may be off",
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
            "machine type of parameter servers, instead of --ps-cores: n2-standard-4, "
            "e2-standard-4, n2-custom-4-16384",
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
            "upper limit for resize. With --finish-by, replacements count beside the workers that "
            "they replace. With --max-cost, the cluster ends when this number of workers would "
            "have spent the money",
            whole("--max-workers"),
            default="twice the workers",
            metavar="N",
        ),
    )


def _revocations() -> tuple[Option, ...]:
    return (
        flag(
            "--preemption-notice",
            "how long Spot VMs run after a preemption notice until their 30 s shutdown begins: "
            "120s or none",
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
            "end the cluster after this time, 120d at most. Compute Engine enforces it too; it "
            "cannot be changed later",
            default="24h",
        ),
        max_cost(
            "end the cluster when it has cost this much in US dollars; resizes that would exceed "
            "it are refused",
            default="no limit",
        ),
        flag(
            "--idle",
            "delete idle workers after this time",
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
                help="number of parameter servers, instead of SPEC; runs continue from a "
                "checkpoint",
                default="",
            ),
            replace(
                GIVE_UP,
                help="which workers to release: the slowest of their run, the youngest, those at "
                "the highest risk of revocation, or the most expensive (dearest)",
                default="as the cluster was declared, else the highest numbers",
                **one_of("--give-up", get_args(GiveUp)),
            ),
        ),
        "relocate": (
            CLUSTER_NAME,
            flag("--zone", "the new zone", one_zone("--zone"), completes="zone", metavar="ZONE"),
            flag("--gpus", "the new GPU of its workers", one_gpu, completes="gpu", metavar="GPU"),
            flag("--yes", "relocate the cluster; without it, show only the price"),
        ),
        "revoke": (
            CLUSTER_NAME,
            WORKER,
            flag(
                "--in",
                "send the notice after this time: 30s, 2m",
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
                "start it before this waiting run",
                str,
                default="before all others",
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
                "--lines", "how many lines to show, from the end", whole("--lines"), default="200"
            ),
        ),
        "events": (
            ANY_CLUSTER,
            flag(
                "--kind",
                "show only this kind, such as vm.revoked, or a group of kinds, such as vm",
                event_kind,
            ),
            flag("--follow", "show new events until interrupted"),
            JSON,
        ),
        "delete": (
            word("name", "NAME", "the cluster", completes="cluster", many="?"),
            flag("--all", "delete all clusters"),
        ),
        "sweep": (
            PROJECT,
            flag("--yes", "delete what was found; without it, only show it"),
            flag(
                "--all-machines",
                "include what you created from other machines, an hour after its creation",
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
                "the run, study, job, bag, Dask cluster or measurement of stalls",
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
