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
        "Show the bill of a cluster",
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
        "Stop work and keep its results so far",
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
        "Build, list or delete images from which VMs boot faster",
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
        "Run only the emulator of Compute Engine",
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
        "Shrink an emulated VM while it runs, or a VM of a project while it is stopped; restore it",
    ),
    Entry(
        "measure [GPU] [options]",
        "%transient_measure [GPU] [options]",
        "Measure where Spot VMs are available, within a budget",
    ),
    Entry(
        "lifetimes [options]",
        "%transient_lifetimes [options]",
        "Show the lifetimes of transient VMs: of your own VMs, from publications, or from a file",
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
    "declare": "Declare a cluster of transient VMs with GPUs. The VMs start in the background.",
    "list": "List the clusters of this machine.",
    "status": "Show the state of a cluster.",
    "cost": "Show the bill of a cluster: the cost of each run and job, of idle VMs, and the total "
    "at on-demand prices.",
    "attach": "Show the panel of a cluster that another notebook declared, and return its handle. "
    "With --controller cluster, this also works from another machine.",
    "resize": "Change the workers of a cluster, or the number of its parameter servers.",
    "relocate": "Move a cluster to another zone or another GPU. The controller rents new VMs, "
    "saves the runs, continues them on the new VMs, and deletes the old VMs. Without "
    "--yes, show only the price.",
    "revoke": "Revoke a worker as Compute Engine does: it stops 30 seconds after its notice.",
    "move": "Start a waiting run next, or before another waiting run. `status` shows their order.",
    "agree": "Accept the workers that are proposed for a run with a deadline (--adapt ask), or "
    "the proposed release of workers (--give-up ask). `status` shows the proposals.",
    "work": "List all work: runs, studies, jobs, bags, Dask clusters and stall measurements, with "
    "phase and cost. Runs that belong to a study, and Dask clusters that belong to a bag, "
    "are not listed separately.",
    "stop": "Stop work of any kind and keep its results so far. Runs and trials save a final "
    "checkpoint. A job receives SIGTERM, and its folder is copied to this machine once "
    "more. A bag starts no further jobs. Waiting work leaves the queue.",
    "logs": "Show the last lines of the log of a VM.",
    "events": "Show the events of a cluster, one per line.",
    "delete": "Delete a cluster with its VMs, disks and addresses. Its results are kept.",
    "sweep": "Find your VMs and firewall rules that belong to no cluster of this machine. With "
    "--yes, delete them.",
    "doctor": "Check the requirements of training on Google Cloud, and show the command that "
    "fixes each missing one. This creates nothing.",
    "catalog": "Show the GPUs of the catalog with their machines, zones and dated prices.",
    "image": "Build, list or delete images with the NVIDIA driver and TensorFlow. VMs boot faster "
    "from such an image.",
    "image "
    "build": "Build an image: a VM installs the NVIDIA driver, TensorFlow and Tensor2Tensor, and "
    "its disk becomes the image.",
    "image list": "List the images of the project that were built from this machine, and builds in "
    "progress.",
    "image delete": "Delete an image. VMs that booted from it continue to run.",
    "export": "Write the model of a run's last checkpoint as a SavedModel, even after its cluster "
    "is deleted.",
    "tensorboard": "Write a run's metrics and events for TensorBoard. A second call appends new "
    "ones.",
    "measure": "Measure the capacity of zones within a budget: request VMs at intervals and "
    "delete them immediately. Without GPU, show earlier measurements. The results do "
    "not predict other zones, hours or clouds.",
    "lifetimes": "Show the lifetimes of transient VMs: the observed survival, formulas that are "
    "fitted to it, and the range in which each formula is reliable.",
    "plan": "Estimate the time and the cost of a run on a cluster, including revocations. Without "
    "SPEC, find the best clusters. This creates nothing.",
    "weather": "Set the weather of the emulator for all its clusters: revocations, capacity, "
    "network, and the speed of time.",
    "deflate": "Shrink an emulated VM while it runs, or all workers together, as a provider does "
    "when capacity is short. Nothing restarts; with --batching dynamic, mini-batches "
    "adapt. Compute Engine does not shrink running VMs. There, --machine-type stops a "
    "worker, changes its machine type and starts it again. --restore reverts the "
    "change in the same way.",
}


EPILOGS = {
    "plan": "Published workloads use the speeds and prices of 2019, and start at the first "
    "step.\nA run uses the measured speeds of all runs of its model. Speeds of GPUs "
    "without such a run are estimates.\nWith --bag, the plan estimates the hours, dollars "
    "and failed jobs of a bag, by policy and type of VM.",
    "image": "Sub-commands: {verbs}. `{{called}} SUB-COMMAND -h` explains each.".format(
        verbs=", ".join(IMAGE_VERBS)
    ),
    "declare": "Sub-commands follow {{called}}, as in `{{called}} revoke NAME WORKER`:\n  {verbs}\n"
    "`{{called}} SUB-COMMAND -h` explains each.".format(verbs=", ".join(CLUSTER_VERBS)),
}
