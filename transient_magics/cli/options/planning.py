"""What may be said before anything is rented: plans, lifetimes, the catalog."""

from __future__ import annotations

from typing import Any

from ...errors import DeclarationError
from ...spec.grammar import nearest
from ..option import (
    Option,
    changes,
    disk,
    duration,
    flag,
    gpu,
    gpus,
    hours,
    known_region,
    one_of,
    one_zone,
    overrides,
    parameter,
    positive,
    project,
    share,
    whole,
    word,
    zones,
)
from .shared import LITERALS, OUTPUT
from .words import EXAMPLES

WORKLOADS = (
    "icac19/resnet-32", "cmdare/resnet-15", "cmdare/resnet-32", "cmdare/shake-shake-small", "cmdare/shake-shake-big",
)  # fmt: skip
"""The published workloads of the planner, which is not loaded to complete their names."""


def plan() -> tuple[Option, ...]:
    """Of a plan."""
    return (
        word("spec", "[SPEC]", "a cluster, as k80x4; without one the catalog is searched", many="*", completes="gpu"),
        flag("--workload", "what is trained: a run by its name, or a published one, as icac19/resnet-32", str,
              choices=WORKLOADS, completes="workload", metavar="NAME"),
        flag("--project", "plan for VMs of this project: what was measured on the emulator does not count (default: "
              "VMs like those of the run that is named)", project),
        flag("--model", "or all runs of this Tensor2Tensor model ...", str),
        flag("--hparams-set", "... with this hyper-parameter set ...", str),
        flag("--problem", "... on this problem", str),
        flag("--cell", "or of the model that this file's code defines, as the body of %%train would (what never ran is "
              "counted, where TensorFlow is here)", str, completes="path", metavar="FILE.py"),
        flag("--hparams", "overrides of a model that never ran: batch_size=64", overrides, metavar="NAME=VALUE,..."),
        flag("--param", f"values that the cell's model reads by their names: units=64. {LITERALS}", parameter,
              name="params", many="extend", metavar="NAME=VALUE"),
        flag("--include", "local modules or folders that it imports", str, completes="path", many="extend",
              metavar="PATH"),
        flag("--train-steps", "how many steps, over all workers", whole("--train-steps"), metavar="N"),
        flag("--target", 'instead of --train-steps: as many as runs of the workload took to get there, '
              'as "accuracy>=0.9"', str, metavar="METRIC>=VALUE"),
        flag("--revocations", "published: lifetimes as measured in 2019 (default); own: those of your VMs; FILE.csv; "
              "none; or how many workers are lost",
              str, choices=("published", "own", "none", "1"), metavar="HOW|N"),
        flag("--replace", "replace revoked workers (on; off where their number is given, as the papers count)",
              negated=True),
        flag("--mode", "async: each worker steps by itself; sync: one step takes a mini-batch of every worker (async)",
              **one_of("--mode", ("async", "sync"))),
        flag("--backup-workers", "the slowest that a synchronous step does not wait for (0)",
              whole("--backup-workers", 0), metavar="N"),
        flag("--ps", "number of parameter servers; 0: one worker without any (1; searched without a SPEC)",
              whole("--ps", 0), metavar="N"),
        flag("--ps-cores", "vCPUs of each (4; with --bag of the scheduler, else an e2-standard-2)", whole("--ps-cores"),
             metavar="N"),
        flag("--ps-zone", "a zone for them alone, of a SPEC", one_zone("--ps-zone"), completes="zone"),
        flag("--machine-type", "the workers' machine, or GPU=TYPE,... (the catalog's; a search looks at larger ones if "
              "measured steps wait for mini-batches)", str, metavar="TYPE"),
        flag("--disk", "boot disks of workers and parameter servers, as 200GB:ssd (50GB)", disk, metavar="SIZE[:KIND]"),
        flag("--what-if", "where stalls were measured: a share of the data in a cache, other links: cache=0.5,link=2",
              changes, metavar="NAME=NUMBER,..."),
        flag("--zone", "for groups without one; of a search: all that it may look at", zones, completes="zone"),
        flag("--gpus", "of a search: these, each alone and two together: k80,p100 (all whose speed is known)", gpus,
              completes="gpu", metavar="GPU,GPU"),
        flag("--provisioning-model", "how workers are rented (spot; searched without a SPEC)",
              **one_of("--provisioning-model", ("spot", "preemptible", "standard"))),
        flag("--batch-size", "examples of a worker's step (as the workload was measured)", whole("--batch-size"),
              metavar="N"),
        flag("--max-hours", "only what takes no longer: 3h", hours("--max-hours"), metavar="TIME"),
        flag("--max-cost", "only what costs no more, in US dollars", positive("--max-cost"), metavar="DOLLARS"),
        flag("--finish-by", "what a deadline costs, and others, by Spot and on demand in turns: 6h, or 18:00", str,
              metavar="TIME|CLOCK"),
        flag("--availability", "measured availability to simulate that on: FILE.csv, or google-h100-2025 (a market "
              "like AWS's of 2022)", str, completes="path", metavar="FILE.csv"),
        flag("--bag", "instead of a run: a bag of jobs, on each group of SPEC by itself"),
        flag("--jobs", "how many results of the bag are wanted", whole("--jobs"), metavar="N"),
        flag("--job-time", "what one of its jobs takes: 2h, 1h:3h, or cpu=2h,k80=20m", str, metavar="TIME"),
        flag("--spare", "so many more jobs are begun, and none is waited for (0.1)", share("--spare"), metavar="SHARE"),
        flag("--policy", "which VMs a job goes to (both are planned)", **one_of("--policy", ("reuse", "memoryless"))),
        flag("--save-time", "what a checkpoint of a job takes (without: it cannot be saved)",
              duration("--save-time", "s"), metavar="TIME"),
        flag("--objective", "which of the best clusters is marked (knee)",
              **one_of("--objective", ("knee", "time", "cost"))),
        OUTPUT,
    )  # fmt: skip


def lifetimes() -> tuple[Option, ...]:
    """Of lifetimes."""
    formulas = ("exponential", "weibull", "early", "bathtub4", "bathtub5")
    return (
        flag("--gpu", "VMs with this GPU, or cpu (all GPUs)", gpu, completes="gpu"),
        flag("--region", "VMs in this region (all)", known_region, completes="region"),
        flag("--source", "own: your VMs on Compute Engine; emulated: those on the emulator; published: preemptible "
              "VMs of 2018 and 2019; or a CSV file with lifetime_hours, and perhaps revoked (1 or 0), gpu, zone (own "
              "where they are enough, else published)", str, choices=("own", "emulated", "published"),
              metavar="SOURCE|FILE.csv"),
        flag("--provisioning-model", "spot: without a time limit; preemptible: 24 h at most (spot)",
              **one_of("--provisioning-model", ("spot", "preemptible"))),
        flag("--fit", f"which formulas to fit: {', '.join(formulas)}; bathtubs to preemptible VMs only (all)",
              many="extend", **{**one_of("--fit", formulas), "metavar": "FORMULA"}),
        flag("--job", "plan work of that length that is lost with its VM: when to save, which VM to trust",
              duration("--job", "h"), metavar="TIME"),
        flag("--age", "how old the VM is on which the job begins (0: new)", duration("--age", "h"),
              metavar="TIME"),
        flag("--checkpoint-cost", "what a checkpoint of the job takes (1m)", duration("--checkpoint-cost", "m"),
              metavar="TIME"),
        flag("--restart", "what passes until a lost job goes on from its last checkpoint (5m)",
              duration("--restart", "m"), metavar="TIME"),
    )  # fmt: skip


def catalog() -> tuple[Option, ...]:
    """Of the catalog."""
    return (
            word("gpu", "GPU", "all about this one: zones, prices, limits", many="?", completes="gpu"),
            flag("--project", "ask Google for today's prices first, with the right of the project of this ID", project),
        )  # fmt: skip


def check_plan(values: dict[str, Any], called: str) -> None:
    """What is planned, and how far."""
    from ...catalog import ACCELERATORS, ZONES
    from ...spec import parse_groups

    values["spec"] = " ".join(values.get("spec", ()))
    if values["spec"]:
        parse_groups(values["spec"], ACCELERATORS, ZONES)
    of_bag = [name for name in ("jobs", "job_time", "spare", "policy", "save_time") if name in values]
    if values.get("bag"):
        if missing := next((name for name in ("spec", "jobs", "job_time") if not values.get(name)), ""):
            what = "a SPEC" if missing == "spec" else f"--{missing.replace('_', '-')}"
            raise DeclarationError(f"{called} --bag needs {what}", fix=f"For example: {called} {EXAMPLES['bag plan']}")
        return
    if of_bag:
        raise DeclarationError(f"--{of_bag[0].replace('_', '-')} is about a bag", fix="Add --bag.")
    if bool(values.get("workload")) == bool(values.get("model") or values.get("cell")):
        raise DeclarationError(
            f"{called} needs a --workload, or --model and --problem, or code",
            fix=f"For example: {called} {EXAMPLES['plan']}",
        )
    if "params" in values:
        values["params"] = dict(values["params"])
    if "include" in values:
        values["include"] = tuple(values["include"])
    if ("train_steps" in values) == ("target" in values):
        raise DeclarationError(
            f"{called} needs --train-steps or --target", fix=f"For example: {called} {EXAMPLES['plan']}"
        )


def check_lifetimes(values: dict[str, Any], called: str) -> None:
    """Options of a job, with a job."""
    if "job" not in values and (
        lonely := next((key for key in ("age", "checkpoint_cost", "restart") if key in values), "")
    ):
        raise DeclarationError(f"--{lonely.replace('_', '-')} is about a job", fix=f"For example: {called} --job 4h")


def check_catalog(values: dict[str, Any], called: str) -> None:
    """A GPU that the catalog has."""
    from ...catalog import ACCELERATORS

    if gpu := values.get("gpu"):
        values["gpu"] = gpu.lower()
        if values["gpu"] not in ACCELERATORS:
            raise DeclarationError(f"Unknown GPU '{gpu}'", fix=nearest(values["gpu"], ACCELERATORS))
