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
            "the workers, such as k80x4; without it, find the best clusters in the catalog",
            many="*",
            completes="gpu",
        ),
        *group(DATA, *_workload()),
        *group(MACHINES, *_machines()),
        *group(
            REVOCATIONS,
            flag(
                "--revocations",
                "lifetimes of VMs. published: as measured in 2019; own: those of your VMs; "
                "FILE.csv: from a file; none: no revocations; a number: this number of workers is "
                "lost",
                str,
                default="published",
                choices=("published", "own", "none", "1"),
                metavar="HOW|N",
            ),
            replace(REPLACE, default="on; off if --revocations is a number, as in the papers"),
        ),
        *group(
            COST,
            max_hours("consider only clusters that finish within this time, such as 3h"),
            max_cost("consider only clusters that cost at most this amount in US dollars"),
            flag(
                "--finish-by",
                "show the cost of this deadline and of other deadlines, with Spot and on-demand "
                "VMs: 6h, or 18:00",
                str,
                metavar="TIME|CLOCK",
            ),
            flag(
                "--objective",
                "which of the best clusters to mark. knee: a compromise; time: the fastest; cost: "
                "the cheapest",
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
                "measured availability with which to simulate --finish-by: FILE.csv, or "
                "google-h100-2025",
                str,
                default="a market like that of AWS in 2022",
                completes="path",
                metavar="FILE.csv",
            ),
            flag(
                "--what-if",
                "if stalls were measured: change the share of the data that is cached, or the "
                "speed of the links: cache=0.5,link=2",
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
            "plan for the steps in which earlier runs of the workload reached this value, instead "
            'of --train-steps: "accuracy>=0.9"',
            str,
            metavar="METRIC>=VALUE",
        ),
        replace(
            MODEL,
            help="plan with all runs of this Tensor2Tensor model, instead of --workload",
            default="",
        ),
        replace(HPARAMS_SET, help="with --model, the name of its set of hyperparameters"),
        replace(PROBLEM, help="with --model, the name of its problem"),
        flag(
            "--cell",
            "plan for the model that this file defines, as the body of %%train, instead of "
            "--workload. If the model never ran and TensorFlow is installed, its operations are "
            "counted",
            str,
            completes="path",
            metavar="FILE.py",
        ),
        replace(HPARAMS, help="override hyperparameters of a model that never ran: batch_size=64"),
        PARAM,
        replace(INCLUDE, help="modules or folders of this machine that the code imports"),
        flag(
            "--batch-size",
            "number of examples in a step of one worker",
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
            help="plan for VMs of this project, and ignore measurements on the emulator",
            default="VMs like those of the run in --workload",
        ),
        replace(ZONE, help="zone of the groups without @ZONE; without SPEC, the zones to consider"),
        flag(
            "--gpus",
            "GPUs to search, alone and in pairs: k80,p100",
            gpus,
            default="all GPUs that Google rents and whose speed is published or measured, at list "
            "prices",
            completes="gpu",
            metavar="GPU,GPU",
        ),
        replace(PROVISIONING_MODEL, default="spot; without SPEC, all are searched"),
        replace(
            MACHINE_TYPE,
            default="from the catalog; without SPEC, larger types are also tried if measured "
            "steps wait for mini-batches",
        ),
        replace(DISK, default="50GB"),
        flag(
            "--ps",
            "number of parameter servers; 0: train with one worker only",
            whole("--ps", 0),
            default="1; without SPEC, several are tried",
            metavar="N",
        ),
        replace(
            PS_CORES,
            help="vCPUs of each parameter server; with --bag, of the scheduler",
            default="4; with --bag, an e2-standard-2",
        ),
        replace(PS_ZONE, help="with SPEC, the zone of the parameter servers", default=""),
    )


def _bag() -> tuple[Option, ...]:
    return (
        flag("--bag", "plan a bag instead of a run, separately for each group of SPEC"),
        replace(JOBS, help="number of results that the bag computes"),
        flag(
            "--job-time",
            "duration of one job: 2h; a range: 1h:3h; or by machine: cpu=2h,k80=20m",
            str,
            metavar="TIME",
        ),
        SPARE,
        replace(POLICY, default="both are planned"),
        replace(SAVE_TIME, default="no checkpoints"),
    )


def lifetimes() -> tuple[Option, ...]:
    """Return the options of `lifetimes`."""
    formulas = ("exponential", "weibull", "early", "bathtub4", "bathtub5")
    return (
        *group(
            "Lifetimes",
            flag(
                "--gpu",
                "only VMs with this GPU; cpu: without a GPU",
                gpu,
                default="all GPUs",
                completes="gpu",
            ),
            flag(
                "--region",
                "only VMs in this region",
                known_region,
                default="all",
                completes="region",
            ),
            flag(
                "--source",
                "source of the lifetimes. own: your VMs on Compute Engine; emulated: your VMs on "
                "the emulator; published: preemptible VMs of 2018 and 2019; FILE.csv: a file with "
                "the column lifetime_hours, and optionally revoked (1 or 0), gpu and zone",
                str,
                default="own if there are enough, otherwise published",
                choices=("own", "emulated", "published"),
                metavar="SOURCE|FILE.csv",
            ),
            flag(
                "--provisioning-model",
                "only VMs of this model. spot: without a maximum lifetime; preemptible: at most "
                "24 h",
                default="spot",
                **one_of("--provisioning-model", ("spot", "preemptible")),
            ),
            flag(
                "--fit",
                f"formulas to fit: {', '.join(formulas)}. The bathtub formulas are only for "
                "preemptible VMs",
                default="all",
                many="extend",
                **{**one_of("--fit", formulas), "metavar": "FORMULA"},
            ),
        ),
        *group(
            "Checkpoints of a job",
            flag(
                "--job",
                "plan a job of this duration that runs on one VM: when to save checkpoints, and "
                "which VM to use",
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
                "duration of one checkpoint of the job",
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
            "show the zones, prices and limits of this GPU",
            many="?",
            completes="gpu",
        ),
        flag(
            "--project",
            "first fetch the current prices from Google, with the permissions of this project",
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
