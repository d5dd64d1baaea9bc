"""What may be said of a cluster: in its declaration, and of one that exists."""

from __future__ import annotations

from typing import Any, get_args

from ...errors import DeclarationError
from ...protocol.cluster_commands import GiveUp
from ...spec import PURPOSES, parse_name
from ..option import (
    Option,
    address_ranges,
    bucket,
    disk,
    duration,
    event_kind,
    fallback,
    flag,
    hours,
    one_gpu,
    one_of,
    one_zone,
    positive,
    preemption_notice,
    project,
    whole,
    word,
    zones,
)
from .shared import ANY_CLUSTER, CLUSTER_NAME, OUTPUT, PROJECT, RUN, WAIT, WORKER


def declare() -> tuple[Option, ...]:
    """Of a declaration."""
    return (
        word("spec", "SPEC", "GROUP+GROUP..., each GPU[xCOUNT][@ZONE], as k80x4", many="*", completes="gpu"),
        flag("--name", "the cluster's name, 40 characters at most (short, from SPEC)",
              lambda text: parse_name(text, "--name")),
        flag("--for", "what it is for: training, or jobs, Dask and bags alone, without TensorFlow, so that VMs boot "
              "sooner (training)", name="purpose", **one_of("--for", PURPOSES)),
        flag("--ps", "number of parameter servers, always on demand (1)", whole("--ps"), metavar="N"),
        flag("--ps-cores", "vCPUs of each (4)", whole("--ps-cores"), metavar="N"),
        flag("--ps-machine", "or the machine type of each: n2-standard-4, e2-standard-4, n2-custom-4-16384 (N1 with 4 "
              "GB per vCPU; for jobs e2-standard-2)", str, metavar="TYPE"),
        flag("--ps-zone", "a zone for them alone; traffic with workers in another one is paid (where most workers are)",
              one_zone("--ps-zone"), completes="zone"),
        flag("--machine-type", "the workers' machine: n1-standard-16, or by GPU: t4=n1-standard-16,v100=n1-standard-12 "
              "(the catalog's)", str, metavar="TYPE|GPU=TYPE,..."),
        flag("--disk", "boot disks of workers and parameter servers: 200GB, 200GB:ssd; also balanced, standard (50GB, "
              "or the image's size)", disk, metavar="SIZE[:KIND]"),
        flag("--zone", "for groups without one; several with commas: tried in that order", zones, completes="zone"),
        flag("--provisioning-model", "how workers are rented; Compute Engine ends preemptible ones after 24 hours, "
              "and enforces no shorter limit for them (spot)",
              **one_of("--provisioning-model", ("spot", "preemptible", "standard"))),
        flag("--preemption-notice", "how long Spot VMs run after a preemption notice, before their shutdown of 30 s: "
              "120s or none (120s with --project, none on the emulator)", preemption_notice, metavar="TIME"),
        flag("--max-workers", "no resize goes beyond it (twice the workers); with --finish-by others start beside "
              "those that they take over from; with --max-cost the cluster ends as early as so many workers would have "
              "spent the money", whole("--max-workers"), metavar="N"),
        flag("--replace", "replace revoked workers (on)", negated=True),
        flag("--give-up", "which workers go where a provider wants some back and names their number alone (Compute "
              "Engine names the VMs), and in a resize: those that are slow beside others of their run, that came last, "
              "that are the likeliest to be revoked soon, or that cost the most; ask: the slowest, proposed first "
              "(slowest; in a resize those with the highest places)",
              **one_of("--give-up", (*get_args(GiveUp), "ask"))),
        flag("--fallback", "on-demand[=10m]: workers on demand after that time without Spot capacity", fallback,
              name="fallback_seconds", metavar="on-demand[=TIME]"),
        flag("--chief", "who saves checkpoints: the parameter server's VM, or a worker, and another one when that is "
              "revoked, as published systems do (ps)", **one_of("--chief", ("ps", "worker"))),
        flag("--max-hours", "hard limit, also enforced by Compute Engine: 24h (120d at most; it cannot be moved later)",
              hours("--max-hours"), metavar="TIME"),
        flag("--max-cost", "hard limit in US dollars; a resize is refused for which it would not last until the end",
              positive("--max-cost"), metavar="DOLLARS"),
        flag("--idle", "without a run for so long, workers are deleted: 30m", duration("--idle", "m"), metavar="TIME"),
        flag("--project", "the ID of a Google Cloud project; without one all is emulated and free", project),
        flag("--bucket", "where checkpoints and results live: NAME, gs://NAME/FOLDER, or none: they come to this "
              "machine (with a project one of its own, else none)", bucket),
        flag("--image", "the VMs' image: NAME or family/NAME of the project, or a URL (one that was baked for this "
              "version, else Debian 12)", str, completes="image"),
        flag("--service-account", "of the controller's VM (the others have none): NAME of the project, an address, or "
              "default (Compute Engine's own)", str),
        flag("--network", "the VMs' network", str),
        flag("--subnet", "the VMs' subnet", str),
        flag("--firewall", "rules that close the VMs to others of the project (on)", negated=True),
        flag("--ssh-from", "address ranges that SSH may come from directly, as this machine's 203.0.113.7/32 "
              "(none: it comes through Identity-Aware Proxy, from wherever you are)", address_ranges,
              metavar="RANGE,..."),
        flag("--no-external-ip", "no external address: SSH goes through Identity-Aware Proxy"),
        flag("--controller", "where the controller runs: here, or on a small VM of its own, so that this machine may "
              "be off (with a project, a service account and a bucket: cluster, else local)",
              **one_of("--controller", ("local", "cluster"))),
        flag("--dry-run", "show what would be created and its price; create nothing"),
        flag("--wait", WAIT.format("the cluster is ready")),
        OUTPUT,
    )  # fmt: skip


def verbs() -> dict[str, tuple[Option, ...]]:
    """Of what is done with clusters that exist, by sub-command."""
    return {
        "list": (flag("--all", "deleted ones too"),),
        "status": (ANY_CLUSTER,),
        "attach": (ANY_CLUSTER, PROJECT, OUTPUT),
        "resize": (
            CLUSTER_NAME,
            word("spec", "SPEC", "the workers that it is to have", many="*", completes="gpu"),
            flag("--ps", "or how many parameter servers; runs go on from a save", whole("--ps"), metavar="N"),
            flag("--give-up", "which workers go where there are to be fewer: those that are slow beside others of "
                  "their run, that came last, that are the likeliest to be revoked soon, or that cost the most (as the "
                  "cluster was declared, else those with the highest places)",
                  **one_of("--give-up", get_args(GiveUp))),
        ),
        "relocate": (
            CLUSTER_NAME,
            flag("--zone", "where it is to be", one_zone("--zone"), completes="zone", metavar="ZONE"),
            flag("--gpus", "the GPU that its workers are to have", one_gpu, completes="gpu", metavar="GPU"),
            flag("--yes", "move; without it only the price is told"),
        ),
        "revoke": (
            CLUSTER_NAME,
            WORKER,
            flag("--in", "when the notice comes: 30s, 2m (default: now)", duration("--in", "s"), name="seconds",
                  metavar="TIME"),
        ),
        "move": (
            CLUSTER_NAME,
            RUN,
            flag("--before", "before this one that waits (default: before all of them)", str, completes="run",
                  metavar="RUN"),
        ),
        "agree": (
            CLUSTER_NAME,
            word("run", "RUN", "the run that has a deadline (default: what is proposed to be given up)", many="?",
                 completes="run"),
        ),
        "stop": (CLUSTER_NAME, RUN),
        "logs": (CLUSTER_NAME, WORKER, flag("--lines", "how many of the last lines (200)", whole("--lines"))),
        "events": (
            ANY_CLUSTER,
            flag("--kind", "only this kind, as vm.revoked, or a group of kinds, as vm", event_kind),
            flag("--follow", "go on until interrupted"),
        ),
        "delete": (
            word("name", "NAME", "the cluster", completes="cluster", many="?"),
            flag("--all", "every cluster"),
            flag("--by-name", "also what an earlier version declared, whose VMs are known by name and owner alone"),
        ),
        "sweep": (
            PROJECT,
            flag("--yes", "delete them; without it they are only shown"),
            flag("--all-machines", "also those that you made from other machines, an hour after they were made"),
        ),
    }  # fmt: skip


def check_declare(values: dict[str, Any], called: str) -> None:
    """Groups of workers that the catalog has; what `spec` was said in pieces is one text then."""
    from ...catalog import ACCELERATORS, ZONES
    from ...spec import parse_groups

    values["spec"] = " ".join(values.get("spec", ()))
    parse_groups(values["spec"], ACCELERATORS, ZONES)


def check_resize(values: dict[str, Any], called: str) -> None:
    """Other workers, or other parameter servers."""
    if bool(values.get("spec")) == bool(values.get("ps")):
        raise DeclarationError(f"{called} takes SPEC or --ps N", fix=f"For example: {called} k80x4 k80x6")
    if values.get("spec"):
        check_declare(values, called)
    elif values.get("give_up"):
        raise DeclarationError(f"{called} --give-up says which workers go", fix=f"For example: {called} k80x4 k80x2")


def check_relocate(values: dict[str, Any], called: str) -> None:
    """Somewhere else, or something else."""
    if not (values.get("zone") or values.get("gpus")):
        raise DeclarationError(f"{called} needs --zone or --gpus", fix=f"For example: {called} k80x4 --zone us-east1-c")


def check_delete(values: dict[str, Any], called: str) -> None:
    """A name, or all."""
    if bool(values.get("name")) == bool(values.get("all")):
        raise DeclarationError(f"{called} needs the cluster's name, or --all", fix=f"For example: {called} k80x4")
