"""Options that several sub-commands share; a sub-command may replace their help or default."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from ...protocol.cluster_commands import GiveUp
from ...protocol.outputs import Policy
from ...protocol.run import choices
from ..option import (
    Option,
    address_ranges,
    bucket,
    disk,
    duration,
    flag,
    hours,
    new_name,
    one_of,
    one_zone,
    overrides,
    parameter,
    positive,
    project,
    share,
    space,
    variable,
    whole,
    word,
    zones,
)

# Titles of groups in a help. RESEARCH comes last: it has the options of published systems.
CLUSTER = "Cluster"
DATA = "Data and model"
STEPS = "Steps and batches"
EVALUATION = "Evaluation"
CHECKPOINTS = "Checkpoints"
FILES = "Files and packages"
MACHINES = "Machines and zones"
REVOCATIONS = "Revocations"
COST = "Deadlines and cost"
NETWORK = "Network and access"
RESEARCH = "Research"

LITERALS = (
    "Values are Python literals, such as True, None, 0x10, 1e-3, nan, 'a, b' and [64,32]. A word "
    "without quotes is a string. Other spellings of literals, such as true and none, need quotes."
)
OWN_CLUSTER = (
    "the cluster that this notebook declared or attached to last; otherwise the only cluster"
)
OUTPUT = flag(
    "-o --output", "assign the handle to this variable of the notebook", variable, metavar="NAME"
)
CLUSTER_NAME = word("name", "NAME", "the name of the cluster", completes="cluster")
ANY_CLUSTER = word(
    "name", "NAME", "the name of the cluster", completes="cluster", many="?", default=OWN_CLUSTER
)
ON_CLUSTER = flag(
    "--cluster",
    "the cluster on which to run",
    str,
    default=OWN_CLUSTER,
    completes="cluster",
    metavar="NAME",
)
RUN = word("run", "RUN", "the name of the run", completes="run")
OF_CLUSTER = flag(
    "--cluster",
    "the cluster of the run",
    str,
    default="the notebook's cluster; otherwise the only cluster that has a run of this name",
    completes="cluster",
    metavar="NAME",
)
PROJECT = flag("--project", "the ID of a Google Cloud project", project, default="use the emulator")
PIP_BUILD = flag(
    "--pip-build",
    "allow --pip to build packages that have no wheel. Their build code runs on the controller's "
    "machine",
)
JSON = flag("--json", "print JSON for programs, with stable fields")
WORKER = word(
    "worker", "WORKER", "a VM of the cluster, such as worker-1 or ps-0", completes="worker"
)

ZONE = flag(
    "--zone",
    "zones to try, in this order, separated by commas; for groups of SPEC without @ZONE",
    zones,
    completes="zone",
)
MACHINE_TYPE = flag(
    "--machine-type",
    "machine type of the workers, such as n1-standard-16; or one for each GPU: "
    "t4=n1-standard-16,v100=n1-standard-12",
    str,
    default="from the catalog",
    metavar="TYPE|GPU=TYPE,...",
)
DISK = flag(
    "--disk",
    "size and kind of the boot disks of workers and parameter servers, such as 200GB or "
    "200GB:ssd. Kinds: balanced, ssd, standard",
    disk,
    default="50GB for Debian 12, otherwise the size of the image",
    metavar="SIZE[:KIND]",
)
PS = flag(
    "--ps",
    "number of parameter servers, which are always on-demand VMs",
    whole("--ps"),
    default="1",
    metavar="N",
)
PS_CORES = flag(
    "--ps-cores", "vCPUs of each parameter server", whole("--ps-cores"), default="4", metavar="N"
)
PS_ZONE = flag(
    "--ps-zone",
    "zone of the parameter servers. Traffic between them and workers in other zones is billed",
    one_zone("--ps-zone"),
    default="the zone with the most workers",
    completes="zone",
)
PROVISIONING_MODEL = flag(
    "--provisioning-model",
    "how to rent workers. Compute Engine stops preemptible VMs after 24 hours, and cannot enforce "
    "earlier limits for them",
    default="spot",
    **one_of("--provisioning-model", ("spot", "preemptible", "standard")),
)
REPLACE = flag("--replace", "replace revoked workers", negated=True, default="on")
GIVE_UP = flag(
    "--give-up",
    "which workers to release when the cluster shrinks, or when a provider reclaims a number of "
    "workers. (On Compute Engine, the provider chooses the VMs.) slowest: the slowest of their "
    "run; youngest: those that started last; riskiest: those most likely to be revoked; costliest: "
    "the most expensive; ask: propose the slowest, and wait for `agree`",
    default="slowest; in a resize, the highest numbers",
    **one_of("--give-up", (*get_args(GiveUp), "ask")),
)

IMAGE = flag(
    "--image",
    "image of the VMs: NAME or family/NAME of the project, or a URL",
    str,
    default="the image that was built for this version; otherwise Debian 12",
    completes="image",
)
BUCKET = flag(
    "--bucket",
    "bucket for checkpoints and results: NAME or gs://NAME/FOLDER; none: store them on this "
    "machine",
    bucket,
    default="with a project, a bucket that is created for the project; otherwise none",
)
SERVICE_ACCOUNT = flag(
    "--service-account",
    "service account of the controller's VM: a NAME in the project, an e-mail address, or default "
    "for Compute Engine's default account. Other VMs have no service account",
    str,
)
VM_NETWORK = flag("--network", "network of the VMs", str, default="default")
SUBNET = flag("--subnet", "subnet of the VMs", str)
FIREWALL = flag(
    "--firewall",
    "create firewall rules that block access from other VMs of the project",
    negated=True,
    default="on",
)
SSH_FROM = flag(
    "--ssh-from",
    "address ranges that can connect directly by SSH, such as 203.0.113.7/32 for a single address",
    address_ranges,
    default="SSH goes through Identity-Aware Proxy",
    metavar="RANGE,...",
)
NO_EXTERNAL_IP = flag(
    "--no-external-ip",
    "create VMs without external addresses; SSH then goes through Identity-Aware Proxy",
)
NETWORK_OPTIONS = (BUCKET, SERVICE_ACCOUNT, VM_NETWORK, SUBNET, FIREWALL, SSH_FROM, NO_EXTERNAL_IP)
"""Access to the VMs, and the place of results."""

TRAIN_STEPS = flag(
    "--train-steps",
    "number of steps of all workers together",
    whole("--train-steps"),
    metavar="N",
)
MODE = flag(
    "--mode",
    "async: apply each worker's gradient when it arrives; sync: apply the mean of all workers' "
    "gradients in one step",
    default="async",
    **one_of("--mode", choices("mode")),
)
BACKUP_WORKERS = flag(
    "--backup-workers",
    "with --mode sync, do not wait for the N slowest workers of a step",
    whole("--backup-workers", 0),
    default="0",
    metavar="N",
)
MODEL = flag(
    "--model",
    "the name of a Tensor2Tensor model",
    str,
    default="the model that the cell defines",
)
HPARAMS_SET = flag("--hparams-set", "the name of the model's set of hyperparameters", str)
PROBLEM = flag("--problem", "the name of the Tensor2Tensor problem on which the model trains", str)
HPARAMS = flag(
    "--hparams",
    "override hyperparameters: batch_size=64,learning_rate=0.1",
    overrides,
    metavar="NAME=VALUE,...",
)
PARAM = flag(
    "--param",
    "values that the cell reads by their names: lr=0.1 units=64. " + LITERALS,
    parameter,
    name="params",
    many="extend",
    metavar="NAME=VALUE",
)
INCLUDE = flag(
    "--include",
    "send these files and folders to the VMs, at most 200 MB. The code can import and read them. "
    "All files of a folder are sent, including .git and .env; links are replaced by their targets",
    str,
    completes="path",
    many="extend",
    metavar="PATH",
)
PIP = flag(
    "--pip",
    "install these packages on the VMs: names, or files of this machine",
    str,
    completes="path",
    many="extend",
    metavar="PACKAGE",
)

JOBS = flag("--jobs", "number of results to compute", whole("--jobs"), metavar="N")
SPARE = flag(
    "--spare",
    "share of additional jobs to start, so that the bag does not wait for the last jobs",
    share("--spare"),
    default="0.1",
    metavar="SHARE",
)
POLICY = flag(
    "--policy",
    "how to choose the VM of a job. reuse: by the age of the VM; memoryless: any VM",
    default="reuse",
    **one_of("--policy", get_args(Policy)),
)
SAVE_TIME = flag(
    "--save-time",
    "duration of a checkpoint of a job; the interval of checkpoints is planned from it",
    duration("--save-time", "s"),
    metavar="TIME",
)
JOB_TIMEOUT = flag(
    "--job-timeout",
    "end a job when it has run for this time, over all its VMs",
    duration("--job-timeout", "m"),
    default="no limit",
    name="timeout_seconds",
    metavar="TIME",
)
MEMORY = flag(
    "--memory",
    "end a job that uses more memory than this, in GB",
    positive("--memory"),
    default="the memory of the VM",
    metavar="GB",
)
RETRIES = flag(
    "--retries",
    "how often to restart a failed job; revocations do not count",
    whole("--retries", 0),
    metavar="N",
)


def name_of(kind: str, default: str = "") -> Option:
    """Return the option of the name of work of this kind."""
    return flag(
        "--name", f"the name of the {kind}", new_name, default=default or f"{kind}-1, {kind}-2, ..."
    )


def wait_until(moment: str) -> Option:
    """Return the option that makes a command wait."""
    return flag("--wait", f"return only when {moment}")


def when_done(kind: str) -> Option:
    """Return the option that chooses what is deleted when work of this kind ends."""
    return flag(
        "--when-done",
        f"what to delete when the {kind} ends",
        default="keep",
        **one_of("--when-done", choices("when_done")),
    )


def over(meaning: str) -> Option:
    """Return the option for the values to try."""
    return flag(
        "--over",
        f"{meaning}. NAME=A,B,C: one of these values; NAME=LOW:HIGH: a value in this range. "
        f"Append :log for a logarithmic scale, or :int for integers. {LITERALS}",
        space,
        metavar="'NAME=VALUES ...'",
    )


def seed(meaning: str, default: str) -> Option:
    """Return the option of a seed."""
    return flag(
        "--seed", f"the seed of {meaning}", whole("--seed", 0), default=default, metavar="N"
    )


def max_cost(effect: str, default: str = "") -> Option:
    """Return the option of a limit in US dollars."""
    return flag("--max-cost", effect, positive("--max-cost"), default=default, metavar="DOLLARS")


def max_hours(effect: str, default: str = "") -> Option:
    """Return the option of a time limit."""
    return flag("--max-hours", effect, hours("--max-hours"), default=default, metavar="TIME")


def split_paths(values: dict[str, Any]) -> None:
    """Split the values of `--include` and `--pip` at commas, which TOML lists bring along.

    An existing path that has a comma in its name stays whole.
    """
    for key in ("include", "pip"):
        if key not in values:
            continue
        pieces: list[str] = []
        for text in values[key]:
            if Path(text).exists():
                pieces.append(text)
            else:
                pieces += filter(None, text.split(","))
        values[key] = tuple(pieces)
