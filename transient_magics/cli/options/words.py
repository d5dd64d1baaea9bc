"""Descriptions, examples and notes of each sub-command, for its help."""

from __future__ import annotations

from dataclasses import dataclass

CLUSTER_VERBS = (
    "list", "status", "cost", "attach", "resize", "relocate", "revoke", "move", "agree", "logs", "events",
    "delete", "sweep",
)  # fmt: skip
IMAGE_VERBS = ("build", "list", "delete")
PROGRAM_VERBS = (
    "cluster", "train", "study", "job", "bag", "stalls", "work", "stop", "plan", "export", "tensorboard", "weather",
    "deflate", "measure", "lifetimes", "image", "emulator", "catalog", "doctor",
)  # fmt: skip
ALIASES = {"sweep": "study"}
"""Other names of sub-commands in a terminal."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the overview: what is typed in a terminal (`line`) and in a cell (`magic`), where it exists there."""

    line: str
    magic: str
    summary: str


TIERS = {
    "Core commands": (
        Entry("cluster SPEC [options]", "%transient_cluster SPEC [options]", "Declare a cluster, such as k80x4"),
        Entry("cluster SUB-COMMAND ...", "%transient_cluster SUB-COMMAND ...", ", ".join(CLUSTER_VERBS)),
        Entry("cluster cost [NAME]", "%transient_cluster cost [NAME]", "Show what a cluster has cost, line by line"),
        Entry("train FILE.py [options]", "%%train [options]", "Train a Tensor2Tensor or Keras model on a cluster"),
        Entry("sweep FILE.py [options]", "%%sweep [options]",
              "Train many times with different parameters, to find the best ones"),
        Entry('job "COMMAND" [options]', '%job "COMMAND" [options]',
              "Run any command on VMs, with a folder that outlives them"),
        Entry("", "%%job [options]", "Run the cell on VMs"),
        Entry("bag FILE.py [options]", "%%bag [options]",
              "Compute a function at many points, and learn a surrogate of the results"),
        Entry("work [CLUSTER]", "%transient_work [CLUSTER]", "List all work: kind, name, cluster, phase, cost"),
        Entry("stop CLUSTER NAME", "%transient_stop CLUSTER NAME", "End a piece of work; its results so far remain"),
        Entry("plan [SPEC] [options]", "%transient_plan [SPEC] [options]",
              "Estimate the time and the cost of a run; without SPEC, find the best clusters"),
        Entry("doctor [options]", "%transient_doctor [options]",
              "Check all that training on Google Cloud needs"),
        Entry("catalog [GPU]", "", "Show GPUs, machines, zones and prices"),
        Entry("image SUB-COMMAND ...", "%transient_image SUB-COMMAND ...",
              "Build, list or delete images from which VMs boot sooner"),
        Entry("export RUN FOLDER", "", "Write the model of a run's last checkpoint as a SavedModel"),
        Entry("tensorboard RUN [FOLDER]", "", "Write a run's metrics and events for TensorBoard"),
        Entry("emulator [options]", "", "Run the emulator of Compute Engine alone"),
        Entry("help [COMMAND]", "%transient_help [COMMAND]", "Show this list, or the options of a command"),
        Entry("version", "", "Show the version"),
    ),
    "Research": (
        Entry("weather NAME [options]", "%transient_weather NAME [options]",
              "Set what the emulated zones do: revocations, stockouts, faster time, reclaimed workers"),
        Entry("deflate NAME WORKER ...", "%transient_deflate NAME WORKER ...",
              "Shrink a VM, emulated while it runs, in a project while it is stopped; or restore it"),
        Entry("stalls [RUN] [options]", "%transient_stalls [RUN] [options]",
              "Measure where the time of a step goes, and what would help"),
        Entry("measure [GPU] [options]", "%transient_measure [GPU] [options]",
              "Measure where Spot VMs are available, within a budget"),
        Entry("lifetimes [options]", "%transient_lifetimes [options]",
              "Show how long transient VMs live: your own, published ones, or a file's"),
    ),
}  # fmt: skip
"""The commands of the overview, those that most people need first."""


CELLS = {
    "declare": ("%transient_cluster", "transient cluster"), "train": ("%%train", "transient train"),
    "study": ("%%sweep", "transient sweep"), "job": ("%%job", "transient job"), "bag": ("%%bag", "transient bag"),
    "plan": ("%transient_plan", "transient plan"), "weather": ("%transient_weather", "transient weather"),
}  # fmt: skip
"""The lines of the sub-commands with the most options, in a cell and in a terminal."""


EXAMPLES = {
    "train": "--model resnet --hparams-set resnet_cifar_32 --problem image_digits --train-steps 2000",
    "plan": "k80x4 --workload icac19/resnet-32 --train-steps 64000",
    "bag plan": "cpux8 --bag --jobs 200 --job-time 1h:3h",
    "job": '"python train.py" --include train.py --keep checkpoints',
    "stalls": "run-1",
    "bag": "--over 'density=0.3:0.9 temperature=0.8:1.6' --jobs 200 --until 0.01",
    "study": "--over 'lr=1e-3:1e-1:log' --trials 20 --objective 'max accuracy' --train-steps 2000",
}


DESCRIPTIONS = {
    "declare": "Declare a cluster of transient GPU servers. It is provisioned in the background.",
    "train": "Train a model on a cluster: one of Tensor2Tensor, or the one that the code defines. "
    "The code runs on the VMs, so it must import what it uses.",
    "study": "Train a model many times with different parameters, to find the best ones. Options of a run apply to all "
    "of its runs. Each trial starts as soon as workers are free; runs that wait already start before it.",
    "job": "Run any command, or the Python code of a cell, on VMs of a cluster, with a folder that outlives them.",
    "bag": "Compute a function at many points on VMs of a cluster, and learn a surrogate of its results. The bag waits "
    "for no single job; a job that is lost with its VM restarts on another one.",
    "stalls": "Measure on a cluster where the time of a step goes: computing, serialisation, network, contention of "
    "workers, preparation of examples, their fetching. It measures the model and data of a run, of Tensor2Tensor, or "
    "of the code below. Nothing is trained.",
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
    "train": "Without --model, --hparams-set and --problem the code defines:\n"
    '  input_fn(mode)   (features, labels) for "train" or "eval": arrays, or a tf.data.Dataset of single examples\n'
    "                   (of batches for a model that begins with keras.Input); a Keras model takes weights as third;\n"
    "                   each is one value or a structure of several, with any names; arrays are shuffled, a dataset\n"
    "                   shuffles itself; every worker begins somewhere else in them, each time that it begins\n"
    "  model            a compiled Keras model, or model_fn(features, labels, mode), which returns a dict with\n"
    "                   loss, optimizer (makes one of a learning rate), learning_rate, predictions, eval_metric_ops\n"
    "  batch_size       examples of a worker's step (32)",
    "stalls": "It uses workers like a run, for about --repeats x --seconds x (3 for each worker, and 5) in all.",
    "job": "Its environment has TRANSIENT_KEEP (the folder that is kept), TRANSIENT_ATTEMPT (1, 2, ...), RANK,\n"
    "WORLD_SIZE, MASTER_ADDR, MASTER_PORT and TRANSIENT_ADDRESSES (of all its VMs, rank 0 first).\n"
    "At the notice of a preemption the file TRANSIENT_NOTICE appears, with the moment at which a VM of the job ends,\n"
    "in seconds since 1970. --at-notice before that the command receives SIGTERM on all its VMs, and has 15 seconds\n"
    "(of --at-notice 20s: 9) to write what it wants to keep.",
    "bag": "The code defines job(NAME, ..., seed, checkpoint), which returns a dict of numbers:\n"
    "  {{'pressure': p, 'pressure_error': e}}   the standard error of pressure counts as its noise\n"
    "  seed             a whole number of the job's own, where job takes it\n"
    "  checkpoint       where job takes it: checkpoint.load() gives the arrays that were saved last, or None;\n"
    "                   checkpoint.save(arrays) saves them where that is due, and at the notice of a preemption",
    "study": "The code is that of a run: see %%train -h. A model of its own reads the values by their names, "
    "as in keras.optimizers.Adam(lr).",
    "image": "Sub-commands: {verbs}. `{{called}} SUB-COMMAND -h` explains each.".format(verbs=", ".join(IMAGE_VERBS)),
    "declare": "Sub-commands follow {{called}}, as in `{{called}} revoke NAME WORKER`:\n  {verbs}\n"
    "`{{called}} SUB-COMMAND -h` explains each.".format(verbs=", ".join(CLUSTER_VERBS)),
}
