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
    "Values are Python literals: True, None, 0x10, 1e-3, nan, 'a, b', [64,32]; a word without "
    "quotes is text. Other spellings of these words, such as true and none, need quotes."
)
OWN_CLUSTER = "the one that this notebook declared or attached last, else the only one"
OUTPUT = flag(
    "-o --output", "bind the handle to this name in the notebook", variable, metavar="NAME"
)
CLUSTER_NAME = word("name", "NAME", "the cluster", completes="cluster")
ANY_CLUSTER = word(
    "name", "NAME", "the cluster", completes="cluster", many="?", default=OWN_CLUSTER
)
ON_CLUSTER = flag(
    "--cluster",
    "the cluster to run on",
    str,
    default=OWN_CLUSTER,
    completes="cluster",
    metavar="NAME",
)
RUN = word("run", "RUN", "the name of the run", completes="run")
OF_CLUSTER = flag(
    "--cluster",
    "the cluster on which it ran",
    str,
    default="the notebook's cluster, else the only one with such a run",
    completes="cluster",
    metavar="NAME",
)
PROJECT = flag(
    "--project", "the ID of a Google Cloud project", project, default="none, the emulator"
)
PIP_BUILD = flag(
    "--pip-build",
    "let --pip build packages that have no wheel; their code then runs on the controller's machine",
)
JSON = flag("--json", "print JSON with stable fields, for programs")
WORKER = word("worker", "WORKER", "one of its VMs, such as worker-1 or ps-0", completes="worker")

ZONE = flag(
    "--zone",
    "zones to try, in order, with commas between them; for groups without @ZONE",
    zones,
    completes="zone",
)
MACHINE_TYPE = flag(
    "--machine-type",
    "machine type of workers: n1-standard-16, or by GPU: t4=n1-standard-16,v100=n1-standard-12",
    str,
    default="from the catalog",
    metavar="TYPE|GPU=TYPE,...",
)
DISK = flag(
    "--disk",
    "boot disks of workers and parameter servers: 200GB, 200GB:ssd; also balanced, standard",
    disk,
    default="50GB, or the image's size",
    metavar="SIZE[:KIND]",
)
PS = flag(
    "--ps", "number of parameter servers, always on demand", whole("--ps"), default="1", metavar="N"
)
PS_CORES = flag(
    "--ps-cores", "vCPUs of each parameter server", whole("--ps-cores"), default="4", metavar="N"
)
PS_ZONE = flag(
    "--ps-zone",
    "the zone of parameter servers; traffic with workers in other zones costs money",
    one_zone("--ps-zone"),
    default="the zone with the most workers",
    completes="zone",
)
PROVISIONING_MODEL = flag(
    "--provisioning-model",
    "how to rent workers. Compute Engine ends preemptible VMs after 24 hours, and enforces no "
    "shorter limit for them",
    default="spot",
    **one_of("--provisioning-model", ("spot", "preemptible", "standard")),
)
REPLACE = flag("--replace", "replace revoked workers", negated=True, default="on")
GIVE_UP = flag(
    "--give-up",
    "which workers to release in a resize, or when a provider reclaims a number of them "
    "(Compute Engine names the VMs itself): the slowest of their run, the youngest, those at the "
    "highest risk of revocation, or the most expensive (dearest); ask: propose the slowest ones "
    "and wait for `agree`",
    default="slowest; in a resize the highest numbers",
    **one_of("--give-up", (*get_args(GiveUp), "ask")),
)

IMAGE = flag(
    "--image",
    "image of the VMs: NAME or family/NAME of the project, or a URL",
    str,
    default="the image baked for this version, else Debian 12",
    completes="image",
)
BUCKET = flag(
    "--bucket",
    "bucket for checkpoints and results: NAME, gs://NAME/FOLDER, or none for this machine",
    bucket,
    default="with a project, a bucket that is created for it; else none",
)
SERVICE_ACCOUNT = flag(
    "--service-account",
    "service account of the controller's VM (other VMs have none): NAME in the "
    "project, an address, or default for Compute Engine's own",
    str,
)
VM_NETWORK = flag("--network", "network of the VMs", str, default="default")
SUBNET = flag("--subnet", "subnet of the VMs", str)
FIREWALL = flag(
    "--firewall",
    "create firewall rules that close the VMs to other VMs of the project",
    negated=True,
    default="on",
)
SSH_FROM = flag(
    "--ssh-from",
    "address ranges from which SSH may connect directly, such as 203.0.113.7/32 for this machine",
    address_ranges,
    default="none, SSH goes through Identity-Aware Proxy",
    metavar="RANGE,...",
)
NO_EXTERNAL_IP = flag(
    "--no-external-ip", "use no external addresses: SSH goes through Identity-Aware Proxy"
)
NETWORK_OPTIONS = (BUCKET, SERVICE_ACCOUNT, VM_NETWORK, SUBNET, FIREWALL, SSH_FROM, NO_EXTERNAL_IP)
"""Access to the VMs, and the place of results."""

TRAIN_STEPS = flag(
    "--train-steps", "number of steps of all workers together", whole("--train-steps"), metavar="N"
)
MODE = flag(
    "--mode",
    "async: apply each worker's gradient when it arrives; sync: one step applies the mean of all",
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
    "a Tensor2Tensor model by its name in the registry",
    str,
    default="the cell's own model",
)
HPARAMS_SET = flag("--hparams-set", "the hyper-parameter set of that model", str)
PROBLEM = flag("--problem", "the problem on which that model trains", str)
HPARAMS = flag(
    "--hparams",
    "override hyper-parameters: batch_size=64,learning_rate=0.1",
    overrides,
    metavar="NAME=VALUE,...",
)
PARAM = flag(
    "--param",
    "parameters that a cell with a model of its own reads by name: lr=0.1 units=64. " + LITERALS,
    parameter,
    name="params",
    many="extend",
    metavar="NAME=VALUE",
)
INCLUDE = flag(
    "--include",
    "send files and folders along, 200 MB at most; the code can import and read them. A folder is "
    "sent with all its files, such as .git and .env, and with the targets of its links",
    str,
    completes="path",
    many="extend",
    metavar="PATH",
)
PIP = flag(
    "--pip",
    "install packages on the VMs for this work, by name or file",
    str,
    completes="path",
    many="extend",
    metavar="PACKAGE",
)

JOBS = flag("--jobs", "how many results to compute", whole("--jobs"), metavar="N")
SPARE = flag(
    "--spare",
    "share of additional jobs to start; the bag does not wait for them",
    share("--spare"),
    default="0.1",
    metavar="SHARE",
)
POLICY = flag(
    "--policy",
    "how to choose the VM of a job: reuse (by age of the VM) or memoryless (any)",
    default="reuse",
    **one_of("--policy", get_args(Policy)),
)
SAVE_TIME = flag(
    "--save-time",
    "how long a checkpoint of a job takes; with it checkpoints are planned",
    duration("--save-time", "s"),
    metavar="TIME",
)
JOB_TIMEOUT = flag(
    "--job-timeout",
    "end a job after this running time, on all its VMs together",
    duration("--job-timeout", "m"),
    default="no limit",
    name="timeout_seconds",
    metavar="TIME",
)
MEMORY = flag(
    "--memory",
    "end a job that has more than this many GB in memory",
    positive("--memory"),
    default="the VM's memory",
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
        f"what is deleted when the {kind} ends",
        default="keep",
        **one_of("--when-done", choices("when_done")),
    )


def over(meaning: str) -> Option:
    """Return the option for the values to try."""
    return flag(
        "--over",
        f"{meaning}: NAME=A,B,C is a choice, NAME=LOW:HIGH a range; add :log for a logarithmic "
        f"scale, :int for whole numbers. {LITERALS}",
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
