"""Options of plans, lifetimes and the catalog, which rent nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import DeclarationError, unknown
from ..option import (
    Option,
    changes,
    duration,
    flag,
    gpu,
    gpus,
    group,
    known_region,
    one_of,
    project,
    whole,
    word,
)
from .shared import (
    BACKUP_WORKERS,
    COST,
    DATA,
    DISK,
    HPARAMS,
    HPARAMS_SET,
    INCLUDE,
    JOBS,
    MACHINE_TYPE,
    MACHINES,
    MODE,
    MODEL,
    OUTPUT,
    PARAM,
    POLICY,
    PROBLEM,
    PROJECT,
    PROVISIONING_MODEL,
    PS_CORES,
    PS_ZONE,
    REPLACE,
    RESEARCH,
    REVOCATIONS,
    SAVE_TIME,
    SPARE,
    TRAIN_STEPS,
    ZONE,
    max_cost,
    max_hours,
)
from .words import EXAMPLES

WORKLOADS = (
    "icac19/resnet-32",
    "cmdare/resnet-15",
    "cmdare/resnet-32",
    "cmdare/shake-shake-small",
    "cmdare/shake-shake-big",
)
"""Published workloads of the planner. Completion of their names does not load the planner."""


def plan() -> tuple[Option, ...]:
    """Return the options of `plan`."""
    return (
        word(
            "spec",
            "[SPEC]",
            "the workers, such as k80x4; without it, search the catalog",
            many="*",
            completes="gpu",
        ),
        *group(DATA, *_workload()),
        *group(MACHINES, *_machines()),
        *group(
            REVOCATIONS,
            flag(
                "--revocations",
                "lifetimes of VMs: published: as measured in 2019; own: of your VMs; FILE.csv; "
                "none; or the number of workers that are lost",
                str,
                default="published",
                choices=("published", "own", "none", "1"),
                metavar="HOW|N",
            ),
            replace(REPLACE, default="on; off if their number is given, as in the papers"),
        ),
        *group(
            COST,
            max_hours("consider only clusters that take no longer, such as 3h"),
            max_cost("consider only clusters that cost no more, in US dollars"),
            flag(
                "--finish-by",
                "show the cost of this deadline and of others, with Spot and on-demand VMs: 6h, "
                "or 18:00",
                str,
                metavar="TIME|CLOCK",
            ),
            flag(
                "--objective",
                "which of the best clusters to mark",
                default="knee",
                **one_of("--objective", ("knee", "time", "cost")),
            ),
        ),
        *group("Bags of jobs", *_bag()),
        *group("Output", OUTPUT),
        *group(
            RESEARCH,
            flag(
                "--availability",
                "the measured availability on which to simulate --finish-by: FILE.csv, or "
                "google-h100-2025",
                str,
                default="a market like AWS's of 2022",
                completes="path",
                metavar="FILE.csv",
            ),
            flag(
                "--what-if",
                "change the cached share of the data, or the speed of the links, if stalls were "
                "measured: cache=0.5,link=2",
                changes,
                metavar="NAME=NUMBER,...",
            ),
        ),
    )


def _workload() -> tuple[Option, ...]:
    return (
        flag(
            "--workload",
            "the name of a run, or a published workload, such as icac19/resnet-32",
            str,
            choices=WORKLOADS,
            completes="workload",
            metavar="NAME",
        ),
        TRAIN_STEPS,
        flag(
            "--target",
            "train for the steps that runs of the workload took to reach this, instead of "
            '--train-steps: "accuracy>=0.9"',
            str,
            metavar="METRIC>=VALUE",
        ),
        replace(
            MODEL,
            help="plan with all runs of this Tensor2Tensor model, instead of --workload ...",
            default="",
        ),
        replace(HPARAMS_SET, help="... with this hyper-parameter set ..."),
        replace(PROBLEM, help="... on this problem"),
        flag(
            "--cell",
            "plan with the model that this file defines, as the body of %%train, instead of "
            "--workload; operations of a model that never ran are counted if TensorFlow is "
            "installed",
            str,
            completes="path",
            metavar="FILE.py",
        ),
        replace(HPARAMS, help="override hyper-parameters of a model that never ran: batch_size=64"),
        PARAM,
        replace(INCLUDE, help="local modules or folders that the code imports"),
        flag(
            "--batch-size",
            "examples in a step of one worker",
            whole("--batch-size"),
            default="as measured",
            metavar="N",
        ),
        MODE,
        BACKUP_WORKERS,
    )


def _machines() -> tuple[Option, ...]:
    return (
        replace(
            PROJECT,
            help="plan for VMs of this project, without measurements of the emulator",
            default="VMs like those of the named run",
        ),
        replace(ZONE, help="the zone of groups without one; in a search, the zones to consider"),
        flag(
            "--gpus",
            "GPUs to search, alone and in pairs: k80,p100",
            gpus,
            default="all that Google sells and whose speed is published or measured, at list "
            "prices",
            completes="gpu",
            metavar="GPU,GPU",
        ),
        replace(PROVISIONING_MODEL, default="spot; searched without a SPEC"),
        replace(
            MACHINE_TYPE,
            default="from the catalog; a search tries larger ones if measured steps wait for "
            "mini-batches",
        ),
        replace(DISK, default="50GB"),
        flag(
            "--ps",
            "number of parameter servers; 0: one worker alone",
            whole("--ps", 0),
            default="1; searched without a SPEC",
            metavar="N",
        ),
        replace(
            PS_CORES,
            help="vCPUs of each parameter server; with --bag, of the scheduler",
            default="4; with --bag an e2-standard-2",
        ),
        replace(PS_ZONE, help="the zone of parameter servers, with a SPEC", default=""),
    )


def _bag() -> tuple[Option, ...]:
    return (
        flag("--bag", "plan a bag of jobs instead of a run, on each group of SPEC alone"),
        replace(JOBS, help="number of results that the bag computes"),
        flag(
            "--job-time",
            "duration of one job: 2h, 1h:3h, or cpu=2h,k80=20m",
            str,
            metavar="TIME",
        ),
        SPARE,
        replace(POLICY, default="plan both"),
        replace(SAVE_TIME, default="no checkpoints"),
    )


def lifetimes() -> tuple[Option, ...]:
    """Return the options of `lifetimes`."""
    formulas = ("exponential", "weibull", "early", "bathtub4", "bathtub5")
    return (
        *group(
            "Lifetimes",
            flag("--gpu", "VMs with this GPU, or cpu", gpu, default="all GPUs", completes="gpu"),
            flag("--region", "VMs in this region", known_region, default="all", completes="region"),
            flag(
                "--source",
                "source of the lifetimes: own: your VMs on Compute Engine; emulated: those on the "
                "emulator; published: preemptible VMs of 2018 and 2019; or a CSV file with "
                "lifetime_hours, and optionally revoked (1 or 0), gpu, zone",
                str,
                default="own if there are enough, else published",
                choices=("own", "emulated", "published"),
                metavar="SOURCE|FILE.csv",
            ),
            flag(
                "--provisioning-model",
                "include VMs of this model: spot: without a time limit; preemptible: 24 h at most",
                default="spot",
                **one_of("--provisioning-model", ("spot", "preemptible")),
            ),
            flag(
                "--fit",
                f"formulas to fit: {', '.join(formulas)}; bathtub formulas are for preemptible "
                "VMs only",
                default="all",
                many="extend",
                **{**one_of("--fit", formulas), "metavar": "FORMULA"},
            ),
        ),
        *group(
            "Checkpoints of a job",
            flag(
                "--job",
                "plan a job of this duration that is lost with its VM: when to save, which VM to "
                "use",
                duration("--job", "h"),
                metavar="TIME",
            ),
            flag(
                "--age",
                "age of the VM on which the job starts",
                duration("--age", "h"),
                default="0, a new VM",
                metavar="TIME",
            ),
            flag(
                "--checkpoint-cost",
                "duration of a checkpoint of the job",
                duration("--checkpoint-cost", "m"),
                default="1m",
                metavar="TIME",
            ),
        ),
    )


def catalog() -> tuple[Option, ...]:
    """Return the options of `catalog`."""
    return (
        word(
            "gpu",
            "GPU",
            "show zones, prices and limits of this GPU",
            many="?",
            completes="gpu",
        ),
        flag(
            "--project",
            "fetch today's prices from Google first, with the permissions of this project",
            project,
        ),
    )


def check_plan(values: dict[str, Any], called: str) -> None:
    """Check that the values define one workload and one number of steps."""
    from ...catalog import ACCELERATORS, ZONES
    from ...spec import parse_groups

    values["spec"] = " ".join(values.get("spec", ()))
    if values["spec"]:
        parse_groups(values["spec"], ACCELERATORS, ZONES)
    if values.get("bag"):
        _check_bag(values, called)
        return
    for name in ("jobs", "job_time", "spare", "policy", "save_time"):
        if name in values:
            raise DeclarationError(f"--{name.replace('_', '-')} needs --bag", fix="Add --bag.")
    if bool(values.get("workload")) == bool(values.get("model") or values.get("cell")):
        raise DeclarationError(
            f"{called} needs --workload, or --model and --problem, or code",
            fix=f"For example: {called} {EXAMPLES['plan']}",
        )
    if "params" in values:
        values["params"] = dict(values["params"])
    if "include" in values:
        values["include"] = tuple(values["include"])
    if ("train_steps" in values) == ("target" in values):
        raise DeclarationError(
            f"{called} needs --train-steps or --target",
            fix=f"For example: {called} {EXAMPLES['plan']}",
        )


def _check_bag(values: dict[str, Any], called: str) -> None:
    """Check that the plan of a bag has workers, jobs and their duration."""
    example = f"For example: {called} {EXAMPLES['bag plan']}"
    if not values.get("spec"):
        raise DeclarationError(f"{called} --bag needs a SPEC", fix=example)
    for name in ("jobs", "job_time"):
        if not values.get(name):
            raise DeclarationError(f"{called} --bag needs --{name.replace('_', '-')}", fix=example)


def check_lifetimes(values: dict[str, Any], called: str) -> None:
    """Check that options of a job come with `--job`."""
    if "job" in values:
        return
    for key in ("age", "checkpoint_cost"):
        if key in values:
            raise DeclarationError(
                f"--{key.replace('_', '-')} needs --job", fix=f"For example: {called} --job 4h"
            )


def check_catalog(values: dict[str, Any], called: str) -> None:
    """Check that the catalog has the GPU."""
    from ...catalog import ACCELERATORS

    if gpu := values.get("gpu"):
        values["gpu"] = gpu.lower()
        if values["gpu"] not in ACCELERATORS:
            raise unknown("GPU", values["gpu"], ACCELERATORS)
