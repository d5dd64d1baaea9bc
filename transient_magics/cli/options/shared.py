"""Options and groups of options that several sub-commands have."""

from __future__ import annotations

from ..option import flag, project, variable, word

# Titles of groups in a help. RESEARCH is listed last: its options are those of published systems.
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
    "Values are Python literals: True, None, 0x10, 1e-3, nan, 'a, b', [64,32]; a word without quotes is a text. Other "
    "spellings of these words, such as true and none, need quotes."
)
WAIT = "return only when {}"
OWN_CLUSTER = "the one that this notebook declared or attached last, else the only one"
OUTPUT = flag("-o --output", "bind the handle to this name in the notebook", variable, metavar="NAME")
CLUSTER_NAME = word("name", "NAME", "the cluster", completes="cluster")
ANY_CLUSTER = word("name", "NAME", "the cluster", completes="cluster", many="?", default=OWN_CLUSTER)
ON_CLUSTER = flag("--cluster", "the cluster to run on", str, default=OWN_CLUSTER, completes="cluster", metavar="NAME")
RUN = word("run", "RUN", "the run, by its name", completes="run")
OF_CLUSTER = flag(
    "--cluster",
    "the cluster on which it ran",
    str,
    default="this notebook's, else the only one with such a run",
    completes="cluster",
    metavar="NAME",
)
PROJECT = flag("--project", "the ID of a Google Cloud project", project, default="none, the emulator")
PIP_BUILD = flag(
    "--pip-build", "let --pip build packages without a wheel; their code then runs where the controller runs"
)
JSON = flag("--json", "print JSON with stable fields, for programs")
WORKER = word("worker", "WORKER", "one of its VMs, such as worker-1 or ps-0", completes="worker")
