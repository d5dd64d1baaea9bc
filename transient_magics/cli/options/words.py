"""Descriptions, examples and notes of each sub-command, for its help."""

from __future__ import annotations

from ..option import Entry

CLUSTER_VERBS = (
    "list",
    "status",
    "cost",
    "attach",
    "resize",
    "relocate",
    "revoke",
    "move",
    "agree",
    "logs",
    "events",
    "delete",
    "sweep",
)
IMAGE_VERBS = ("build", "list", "delete")
OTHER_VERBS = (
    "work",
    "stop",
    "plan",
    "export",
    "tensorboard",
    "weather",
    "deflate",
    "measure",
    "lifetimes",
    "image",
    "emulator",
    "catalog",
    "doctor",
)
"""Sub-commands of a terminal that neither declare work nor belong to a cluster."""

BEFORE_WORK = (
    Entry(
        "cluster SPEC [options]",
        "%transient_cluster SPEC [options]",
        "Declare a cluster, such as k80x4",
    ),
    Entry(
        "cluster SUB-COMMAND ...",
        "%transient_cluster SUB-COMMAND ...",
        "list, status, cost, attach, resize, relocate, revoke, move, agree, logs, events, delete, sweep",
    ),
    Entry(
        "cluster cost [NAME]",
        "%transient_cluster cost [NAME]",
        "Show what a cluster has cost, line by line",
    ),
)
AFTER_WORK = (
    Entry(
        "work [CLUSTER]",
        "%transient_work [CLUSTER]",
        "List all work: kind, name, cluster, phase, cost",
    ),
    Entry(
        "stop CLUSTER NAME",
        "%transient_stop CLUSTER NAME",
        "End a piece of work; its results so far remain",
    ),
    Entry(
        "plan [SPEC] [options]",
        "%transient_plan [SPEC] [options]",
        "Estimate the time and the cost of a run; without SPEC, find the best clusters",
    ),
    Entry(
        "doctor [options]",
        "%transient_doctor [options]",
        "Check all that training on Google Cloud needs",
    ),
    Entry(
        "catalog [GPU]",
        "",
        "Show GPUs, machines, zones and prices",
    ),
    Entry(
        "image SUB-COMMAND ...",
        "%transient_image SUB-COMMAND ...",
        "Build, list or delete images from which VMs boot sooner",
    ),
    Entry(
        "export RUN FOLDER",
        "",
        "Write the model of a run's last checkpoint as a SavedModel",
    ),
    Entry(
        "tensorboard RUN [FOLDER]",
        "",
        "Write a run's metrics and events for TensorBoard",
    ),
    Entry(
        "emulator [options]",
        "",
        "Run the emulator of Compute Engine alone",
    ),
    Entry(
        "help [COMMAND]",
        "%transient_help [COMMAND]",
        "Show this list, or the options of a command",
    ),
    Entry(
        "version",
        "",
        "Show the version",
    ),
)
RESEARCH_ENTRIES = (
    Entry(
        "weather NAME [options]",
        "%transient_weather NAME [options]",
        "Set what the emulated zones do: revocations, stockouts, faster time, reclaimed workers",
    ),
    Entry(
        "deflate NAME WORKER ...",
        "%transient_deflate NAME WORKER ...",
        "Shrink a VM, emulated while it runs, in a project while it is stopped; or restore it",
    ),
    Entry(
        "measure [GPU] [options]",
        "%transient_measure [GPU] [options]",
        "Measure where Spot VMs are available, within a budget",
    ),
    Entry(
        "lifetimes [options]",
        "%transient_lifetimes [options]",
        "Show how long transient VMs live: your own, published ones, or a file's",
    ),
)
"""The commands of the overview, but for those that declare work, which stand between the first two.
"""


OTHER_CELLS = {
    "plan": ("%transient_plan", "transient plan"),
    "weather": ("%transient_weather", "transient weather"),
}
"""The lines of the sub-commands with the most options, in a cell and in a terminal."""


EXAMPLES = {
    "plan": "k80x4 --workload icac19/resnet-32 --train-steps 64000",
    "bag plan": "cpux8 --bag --jobs 200 --job-time 1h:3h",
}


DESCRIPTIONS = {
    "declare": "Declare a cluster of transient GPU servers. It is provisioned in the background.",
    "list": "List the clusters of this machine.",
    "status": "Show the state of a cluster once.",
    "cost": "Show what a cluster has cost so far: each run and job, idle VMs, and on-demand prices.",
    "attach": "Show the live panel of a cluster that another notebook declared (with --controller cluster, on another "
    "machine too), and return its handle.",
    "resize": "Change the workers of a cluster, or the number of its parameter servers.",
    "relocate": "Move a cluster to another zone or another GPU: VMs are rented there, its runs are saved and continue "
    "there, then the old VMs are deleted. Without --yes it only shows what that costs.",
    "revoke": "Revoke a worker as Compute Engine does: a notice, then 30 seconds.",
    "move": "Start a waiting run next, or before another one that waits. `status` shows their order.",
    "agree": "Accept the workers that are proposed for a run with a deadline (--adapt ask), or release those that are "
    "proposed for release (--give-up ask). `status` shows proposals.",
    "work": "List all work: runs, studies, jobs, bags, Dask clusters and measurements of stalls, with their phase and "
    "cost. Runs of a study and Dask clusters of a bag are parts of these.",
    "stop": "End a piece of work of any kind; its results so far remain. A run and the trials of a study save a last "
    "checkpoint. A job receives SIGTERM, and its folder is copied here once more. A bag starts no further job. Work "
    "that waits leaves the queue.",
    "logs": "Show the last lines that a VM logged.",
    "events": "Show what happened to a cluster, line by line.",
    "delete": "Delete a cluster: its VMs, disks and addresses. Results stay where they are.",
    "sweep": "Find VMs and firewall rules of yours that no cluster of this machine has; with --yes, delete them.",
    "doctor": "Check all that training on Google Cloud needs, line by line, with the command that fixes what is "
    "missing. Nothing is created.",
    "catalog": "Show the GPUs that clusters can have: their machines, zones and dated prices.",
    "image": "Build, list or delete images with the training stack. VMs that boot from one are ready sooner.",
    "image build": "Build an image: a VM installs the driver, TensorFlow and Tensor2Tensor, and its disk is the image.",
    "image list": "List the images of the project that were built here, and builds in progress.",
    "image delete": "Delete an image. VMs that booted from it continue.",
    "export": "Write the model of a run's last checkpoint as a SavedModel. The cluster may be deleted.",
    "tensorboard": "Write a run's metrics and events for TensorBoard; a second call adds what is new.",
    "measure": "Request VMs in some zones at intervals and delete them immediately, within a budget, to see where "
    "there is capacity; or show what was measured. It forecasts no other zone, hour or cloud.",
    "lifetimes": "Show how long transient VMs live: observed survival, formulas fitted to it, and how far each is "
    "reliable.",
    "plan": "Estimate the time and the cost of a run on a cluster, revocations included; without a SPEC, find the best "
    "clusters. Nothing is created.",
    "weather": "Set what the emulator does to VMs, and how fast its time passes, for all clusters.",
    "deflate": "Shrink an emulated VM while it runs, or all workers together, as a provider does under pressure. "
    "Nothing restarts; with --batching dynamic mini-batches follow. Compute Engine shrinks no VM that runs; with "
    "--machine-type, in a project too, a worker is stopped, made a smaller machine and started again. --restore "
    "restores what was rented, in the same way.",
}


EPILOGS = {
    "plan": "A published workload has its own speeds and prices of 2019 and is counted from the first step.\n"
    "A run has the measured speeds of its model's runs; those of GPUs that it never ran on are estimates.\n"
    "With --bag: hours, dollars and failed jobs of a bag of jobs, by policy and type of VM.",
    "image": "Sub-commands: {verbs}. `{{called}} SUB-COMMAND -h` explains each.".format(
        verbs=", ".join(IMAGE_VERBS)
    ),
    "declare": "Sub-commands follow {{called}}, as in `{{called}} revoke NAME WORKER`:\n  {verbs}\n"
    "`{{called}} SUB-COMMAND -h` explains each.".format(verbs=", ".join(CLUSTER_VERBS)),
}
