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
"""Sub-commands of the program `transient` that neither declare work nor belong to a cluster."""

BEFORE_WORK = (
    Entry(
        "cluster SPEC [options]",
        "%transient_cluster SPEC [options]",
        "Declare a cluster, such as k80x4",
    ),
    Entry(
        "cluster SUB-COMMAND ...",
        "%transient_cluster SUB-COMMAND ...",
        "list, status, cost, attach, resize, relocate, revoke, move, agree, logs, events, delete, "
        "sweep",
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
        "Stop a piece of work and keep its results so far",
    ),
    Entry(
        "plan [SPEC] [options]",
        "%transient_plan [SPEC] [options]",
        "Estimate the time and the cost of a run; without SPEC, find the best clusters",
    ),
    Entry(
        "doctor [options]",
        "%transient_doctor [options]",
        "Check the requirements of training on Google Cloud",
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
        "Set the emulator's weather: revocations, stockouts, faster time, reclaimed workers",
    ),
    Entry(
        "deflate NAME WORKER ...",
        "%transient_deflate NAME WORKER ...",
        "Shrink an emulated VM while it runs, or a VM of a project while it is stopped; or "
        "restore it",
    ),
    Entry(
        "measure [GPU] [options]",
        "%transient_measure [GPU] [options]",
        "Measure where Spot VMs are available, within a budget",
    ),
    Entry(
        "lifetimes [options]",
        "%transient_lifetimes [options]",
        "Show lifetimes of transient VMs: your own, published ones, or those of a file",
    ),
)
"""Commands of the overview under Research, after those that declare work."""


OTHER_CELLS = {
    "plan": ("%transient_plan", "transient plan"),
    "weather": ("%transient_weather", "transient weather"),
}
"""First words of further commands that have many options, in a cell and in a terminal."""


EXAMPLES = {
    "plan": "k80x4 --workload icac19/resnet-32 --train-steps 64000",
    "bag plan": "cpux8 --bag --jobs 200 --job-time 1h:3h",
}


DESCRIPTIONS = {
    "declare": "Declare a cluster of transient GPU servers. It is provisioned in the background.",
    "list": "List the clusters of this machine.",
    "status": "Show the state of a cluster.",
    "cost": "Show the cost of a cluster so far: by run and job, of idle VMs, and at on-demand "
    "prices.",
    "attach": "Show the live panel of a cluster that another notebook declared (with --controller "
    "cluster, on another machine too), and return its handle.",
    "resize": "Change the workers of a cluster, or the number of its parameter servers.",
    "relocate": "Move a cluster to another zone or another GPU: rent VMs there, save its runs and "
    "continue them there, then delete the old VMs. Without --yes, show only the price.",
    "revoke": "Revoke a worker as Compute Engine does: it stops 30 seconds after its notice.",
    "move": "Start a waiting run next, or before another waiting run. `status` shows their order.",
    "agree": "Accept the workers that are proposed for a run with a deadline (--adapt ask), or "
    "the proposed release of workers (--give-up ask). `status` shows proposals.",
    "work": "List all work: runs, studies, jobs, bags, Dask clusters and measurements of stalls, "
    "with phase and cost. Runs of a study and Dask clusters of a bag are not listed separately.",
    "stop": "Stop a piece of work of any kind and keep its results so far. A run and the trials "
    "of a study save a final checkpoint. A job receives SIGTERM, and its folder is copied here "
    "once more. A bag starts no further jobs. Waiting work leaves the queue.",
    "logs": "Show the last lines that a VM logged.",
    "events": "Show the events of a cluster, one per line.",
    "delete": "Delete a cluster: its VMs, disks and addresses. Results stay where they are.",
    "sweep": "Find your VMs and firewall rules that belong to no cluster of this machine; with "
    "--yes, delete them.",
    "doctor": "Check the requirements of training on Google Cloud, and show the command that "
    "fixes each missing one. Nothing is created.",
    "catalog": "Show the GPUs of the catalog with their machines, zones and dated prices.",
    "image": "Build, list or delete images with the training stack. VMs boot sooner from such an "
    "image.",
    "image "
    "build": "Build an image: a VM installs the driver, TensorFlow and Tensor2Tensor, and its "
    "disk becomes the image.",
    "image "
    "list": "List images of the project that were built from this machine, and builds in progress.",
    "image delete": "Delete an image. VMs that booted from it continue.",
    "export": "Write the model of a run's last checkpoint as a SavedModel, even after its cluster "
    "is deleted.",
    "tensorboard": "Write a run's metrics and events for TensorBoard; a second call appends new "
    "ones.",
    "measure": "Measure capacity within a budget: request VMs in some zones at intervals and "
    "delete them immediately. Without GPU, show the measurements. They do not predict other "
    "zones, hours or clouds.",
    "lifetimes": "Show lifetimes of transient VMs: the observed survival, formulas fitted to it, "
    "and the range in which each is reliable.",
    "plan": "Estimate the time and the cost of a run on a cluster, revocations included; without "
    "a SPEC, find the best clusters. Nothing is created.",
    "weather": "Set the weather of the emulator for all its clusters: revocations, capacity, "
    "network, speed of time.",
    "deflate": "Shrink an emulated VM while it runs, or all workers together, as a provider does "
    "under pressure. Nothing restarts; with --batching dynamic, mini-batches adapt. Compute "
    "Engine does not shrink running VMs: with --machine-type, a worker is stopped, gets another "
    "machine type and is started again, in a project too. --restore reverts this in the same way.",
}


EPILOGS = {
    "plan": "A published workload has speeds and prices of 2019 and starts at the first step.\n"
    "A run has the measured speeds of all runs of its model; speeds of GPUs without a run are "
    "estimates.\nWith --bag: hours, dollars and failed jobs of a bag of jobs, by policy and type "
    "of VM.",
    "image": "Sub-commands: {verbs}. `{{called}} SUB-COMMAND -h` explains each.".format(
        verbs=", ".join(IMAGE_VERBS)
    ),
    "declare": "Sub-commands follow {{called}}, as in `{{called}} revoke NAME WORKER`:\n  {verbs}\n"
    "`{{called}} SUB-COMMAND -h` explains each.".format(verbs=", ".join(CLUSTER_VERBS)),
}
