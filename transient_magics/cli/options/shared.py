"""Options that several sub-commands have."""

from __future__ import annotations

from ..option import flag, project, variable, word

LITERALS = (
    "Values are Python literals: True, None, 0x10, 1e-3, nan, 'a, b', [64,32]; a word without quotes is a text. Other "
    "spellings of these words, as true and none, are refused, but for in quotes."
)
WAIT = "return only when {}"
OUTPUT = flag("-o --output", "bind the handle to this name in the notebook", variable, metavar="NAME")
CLUSTER_NAME = word("name", "NAME", "the cluster", completes="cluster")
OWN_CLUSTER = "(default: the one that this notebook declared or attached last, else the only one)"
ANY_CLUSTER = word("name", "NAME", f"the cluster {OWN_CLUSTER}", completes="cluster", many="?")
RUN = word("run", "RUN", "the run, by its name", completes="run")
OF_CLUSTER = flag(
    "--cluster",
    "the cluster that it ran on (default: this notebook's, else the only one with such a run)",
    str,
    completes="cluster",
    metavar="NAME",
)
PROJECT = flag("--project", "the ID of a Google Cloud project; without one it is about the emulator", project)
WORKER = word("worker", "WORKER", "one of its VMs, as worker-1 or ps-0", completes="worker")
