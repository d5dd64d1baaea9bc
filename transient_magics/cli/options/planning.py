"""The options of what is asked before anything is rented: plans, lifetimes, the catalog."""

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
"""The published workloads of the planner, which is not loaded to complete their names."""


def plan() -> tuple[Option, ...]:
    """Return the options of a plan."""
    return (
        word(
            "spec",
            "[SPEC]",
            "a cluster, such as k80x4; without it the catalog is searched",
            many="*",
            completes="gpu",
        ),
        *group(DATA, *_workload()),
        *group(MACHINES, *_machines()),
        *group(
            REVOCATIONS,
            flag(
                "--revocations",
                "how long VMs live: published: as measured in 2019; own: as your VMs; FILE.csv; "
                "none; or how many workers are lost",
                str,
                default="published",
                choices=("published", "own", "none", "1"),
                metavar="HOW|N",
            ),
            replace(REPLACE, default="on; off where their number is given, as in the papers"),
        ),
        *group(
            COST,
            max_hours("only clusters that take no longer: 3h"),
            max_cost("only clusters that cost no more, in US dollars"),
            flag(
                "--finish-by",
                "what this deadline and others cost, by Spot and on demand in turns: 6h, or 18:00",
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
                "the measured availability on which to simulate --finish-by: FILE.csv, or google-h100-2025",
                str,
                default="a market like AWS's of 2022",
                completes="path",
                metavar="FILE.csv",
            ),
            flag(
                "--what-if",
                "where stalls were measured, change a share of the data in a cache, or the links: cache=0.5,link=2",
                changes,
                metavar="NAME=NUMBER,...",
            ),
        ),
    )


def _workload() -> tuple[Option, ...]:
    return (
        flag(
            "--workload",
            "what is trained: a run by its name, or a published one, such as icac19/resnet-32",
            str,
            choices=WORKLOADS,
            completes="workload",
            metavar="NAME",
        ),
        TRAIN_STEPS,
        flag(
            "--target",
            'instead of --train-steps, the steps that runs of the workload took to reach this: "accuracy>=0.9"',
            str,
            metavar="METRIC>=VALUE",
        ),
        replace(
            MODEL,
            help="instead of --workload, all runs of this Tensor2Tensor model ...",
            default="",
        ),
        replace(HPARAMS_SET, help="... with this hyper-parameter set ..."),
        replace(PROBLEM, help="... on this problem"),
        flag(
            "--cell",
            "instead of --workload, the model that this file's code defines, as the body of %%train; "
            "operations of a model that never ran are counted, where TensorFlow is installed",
            str,
            completes="path",
            metavar="FILE.py",
        ),
        replace(HPARAMS, help="override hyper-parameters of a model that never ran: batch_size=64"),
        PARAM,
        replace(INCLUDE, help="local modules or folders that the code imports"),
        flag(
            "--batch-size",
            "examples of a worker's step",
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
            help="plan for VMs of this project: measurements of the emulator do not count",
            default="VMs like those of the run that is named",
        ),
        replace(ZONE, help="the zone of groups without one; of a search, all zones to consider"),
        flag(
            "--gpus",
            "GPUs for a search, each alone and two together: k80,p100",
            gpus,
            default="all with a known speed that Google sells, at list prices",
            completes="gpu",
            metavar="GPU,GPU",
        ),
        replace(PROVISIONING_MODEL, default="spot; searched without a SPEC"),
        replace(
            MACHINE_TYPE,
            default="the catalog's; a search tries larger ones if measured steps wait for mini-batches",
        ),
        replace(DISK, default="50GB"),
        flag(
            "--ps",
            "number of parameter servers; 0: one worker without any",
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
        flag("--bag", "instead of a run, plan a bag of jobs, on each group of SPEC alone"),
        replace(JOBS, help="how many results of the bag to compute"),
        flag(
            "--job-time",
            "how long one job takes: 2h, 1h:3h, or cpu=2h,k80=20m",
            str,
            metavar="TIME",
        ),
        SPARE,
        replace(POLICY, default="both are planned"),
        replace(SAVE_TIME, default="jobs save no checkpoints"),
    )


def lifetimes() -> tuple[Option, ...]:
    """Return the options of lifetimes."""
    formulas = ("exponential", "weibull", "early", "bathtub4", "bathtub5")
    return (
        *group(
            "Lifetimes",
            flag("--gpu", "VMs with this GPU, or cpu", gpu, default="all GPUs", completes="gpu"),
            flag("--region", "VMs in this region", known_region, default="all", completes="region"),
            flag(
                "--source",
                "own: your VMs on Compute Engine; emulated: those on the emulator; published: preemptible "
                "VMs of 2018 and 2019; or a CSV file with lifetime_hours, and optionally revoked (1 or 0), gpu, zone",
                str,
                default="own where there are enough, else published",
                choices=("own", "emulated", "published"),
                metavar="SOURCE|FILE.csv",
            ),
            flag(
                "--provisioning-model",
                "spot: without a time limit; preemptible: 24 h at most",
                default="spot",
                **one_of("--provisioning-model", ("spot", "preemptible")),
            ),
            flag(
                "--fit",
                f"formulas to fit: {', '.join(formulas)}; bathtubs fit preemptible VMs only",
                default="all",
                many="extend",
                **{**one_of("--fit", formulas), "metavar": "FORMULA"},
            ),
        ),
        *group(
            "Checkpoints of a job",
            flag(
                "--job",
                "plan a job of this length that is lost with its VM: when to save, which VM to use",
                duration("--job", "h"),
                metavar="TIME",
            ),
            flag(
                "--age",
                "the age of the VM on which the job starts",
                duration("--age", "h"),
                default="0, a new VM",
                metavar="TIME",
            ),
            flag(
                "--checkpoint-cost",
                "how long a checkpoint of the job takes",
                duration("--checkpoint-cost", "m"),
                default="1m",
                metavar="TIME",
            ),
        ),
    )


def catalog() -> tuple[Option, ...]:
    """Return the options of the catalog."""
    return (
        word(
            "gpu",
            "GPU",
            "show all about this GPU: zones, prices, limits",
            many="?",
            completes="gpu",
        ),
        flag(
            "--project",
            "request today's prices from Google first, with the permission of this project",
            project,
        ),
    )


def check_plan(values: dict[str, Any], called: str) -> None:
    """What is planned, and how far."""
    from ...catalog import ACCELERATORS, ZONES
    from ...spec import parse_groups

    values["spec"] = " ".join(values.get("spec", ()))
    if values["spec"]:
        parse_groups(values["spec"], ACCELERATORS, ZONES)
    of_bag = [
        name for name in ("jobs", "job_time", "spare", "policy", "save_time") if name in values
    ]
    if values.get("bag"):
        if missing := next(
            (name for name in ("spec", "jobs", "job_time") if not values.get(name)), ""
        ):
            if missing == "spec":
                what = "a SPEC"
            else:
                what = f"--{missing.replace('_', '-')}"
            raise DeclarationError(
                f"{called} --bag needs {what}", fix=f"For example: {called} {EXAMPLES['bag plan']}"
            )
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
            f"{called} needs --train-steps or --target",
            fix=f"For example: {called} {EXAMPLES['plan']}",
        )


def check_lifetimes(values: dict[str, Any], called: str) -> None:
    """Options of a job, with a job."""
    if "job" not in values and (
        lonely := next((key for key in ("age", "checkpoint_cost") if key in values), "")
    ):
        raise DeclarationError(
            f"--{lonely.replace('_', '-')} is about a job", fix=f"For example: {called} --job 4h"
        )


def check_catalog(values: dict[str, Any], called: str) -> None:
    """A GPU that the catalog has."""
    from ...catalog import ACCELERATORS

    if gpu := values.get("gpu"):
        values["gpu"] = gpu.lower()
        if values["gpu"] not in ACCELERATORS:
            raise unknown("GPU", values["gpu"], ACCELERATORS)
