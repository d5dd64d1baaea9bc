"""What a help says of each sub-command, beside its options."""

from __future__ import annotations

CLUSTER_VERBS = (
    "list", "status", "attach", "resize", "relocate", "revoke", "move", "agree", "stop", "logs", "events",
    "delete", "sweep",
)  # fmt: skip
IMAGE_VERBS = ("build", "list", "delete")
PROGRAM_VERBS = (
    "cluster", "train", "study", "job", "bag", "stalls", "plan", "export", "tensorboard", "weather", "deflate",
    "inflate", "measure", "lifetimes", "image", "emulator", "catalog", "doctor",
)  # fmt: skip


CELLS = {
    "declare": ("%transient_cluster", "transient cluster"), "train": ("%%train", "transient train"),
    "study": ("%%sweep", "transient study"), "job": ("%%job", "transient job"), "bag": ("%%bag", "transient bag"),
    "plan": ("%transient_plan", "transient plan"), "weather": ("%transient_weather", "transient weather"),
}  # fmt: skip
"""What is typed for the sub-commands with the most options, in a cell and in a terminal."""


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
    "declare": "Declare a cluster of transient GPU servers. It is provisioned while you go on.",
    "train": "Train a model on a cluster: one of Tensor2Tensor, or the one that the code defines. "
    "The code runs on the VMs: it must import what it uses.",
    "study": "Train a model many times with different parameters, to find the best ones. Options of a run hold for all "
    "of its runs. Each trial begins as soon as workers are free; runs that wait already begin before it.",
    "job": "Run any command, or the Python code of a cell, on VMs of a cluster, with a folder that outlives them.",
    "bag": "Compute a function at many points on VMs of a cluster, and learn a surrogate of its results. No job is "
    "waited for; one that is lost with its VM is begun again on another.",
    "stalls": "Measure on a cluster where the time of a step goes: computing, serialisation, network, contention of "
    "workers, preparation of examples, their fetching. Of a run's model and data, of one of Tensor2Tensor, or of what "
    "the code below defines. Nothing is trained.",
    "list": "The clusters of this machine.",
    "status": "How a cluster is doing, once.",
    "attach": "Show the live panel of a cluster that another notebook declared (with --controller cluster: on another "
    "machine, too), and give its handle.",
    "resize": "Give a cluster other workers, or another number of parameter servers.",
    "relocate": "Move a cluster to another zone or another GPU: VMs are rented there, its runs are saved and go on "
    "there, then the old VMs go. Without --yes it only tells what that costs.",
    "revoke": "Have a worker taken back, as Compute Engine does it: a notice, then 30 seconds.",
    "move": "Have a run that waits begin next, or before another one that waits. `status` shows their order.",
    "agree": "Have the workers that are proposed for a run with a deadline (--adapt ask), or give up those that are "
    "proposed where a provider wants some back (--give-up ask). `status` shows what is.",
    "stop": "End a run where it stands, with a last checkpoint; one that waits is taken out of the queue. "
    "Of a study, by its name: all of its trials; of a job: what it keeps is brought here once more; "
    "a bag begins no further job.",
    "logs": "The last lines that a VM logged.",
    "events": "What happened to a cluster, line by line.",
    "delete": "Delete a cluster: its VMs, disks and addresses. Results stay where they are.",
    "sweep": "Find VMs and firewall rules of yours that no cluster of this machine knows; with --yes, delete them.",
    "doctor": "See whether all is here that training on Google Cloud needs, line by line, with the command that mends "
    "what is not. Nothing is made, unless --spend says so.",
    "catalog": "GPUs that can be declared: their machines, zones and dated prices.",
    "image": "Build, list or delete images that have the training stack: VMs that boot from one are ready sooner.",
    "image build": "Bake an image: a VM installs the driver, TensorFlow and Tensor2Tensor, and its disk is the image.",
    "image list": "The images of the project that were baked here, and builds under way.",
    "image delete": "Delete an image. VMs that booted from it are left alone.",
    "export": "Write the model of a run's last checkpoint as a SavedModel. The cluster may be gone.",
    "tensorboard": "Write a run's metrics and events for TensorBoard; again: what is new.",
    "measure": "Ask for VMs in some zones again and again and give them back at once, within a budget, to see "
    "where there are any; or tell what was seen. It forecasts no other zone, hour or cloud.",
    "lifetimes": "How long transient VMs live: survival as observed, formulas fitted to it, which to trust how long.",
    "plan": "What a cluster would take and cost for a run, revocations included; without a SPEC, which clusters are "
    "best. Creates nothing.",
    "weather": "What the emulator does to VMs, and how fast its time passes; what is given is set, for all clusters.",
    "deflate": "Have the emulator shrink a VM that runs, or all workers together, as a provider does under pressure. "
    "Nothing restarts; with --batching dynamic mini-batches follow. Compute Engine shrinks no VM that runs; with "
    "--machine-type, in a project too, a worker is stopped, made a smaller machine and started again.",
    "inflate": "Give back what was taken from VMs that were deflated. One that became a smaller machine is stopped, "
    "made what it was and started again.",
}


EPILOGS = {
    "plan": "A published workload has its own speeds and prices of 2019 and is counted from the first step.\n"
    "A run's are what it and other runs of its model were measured at; GPUs that it never ran on are estimated.\n"
    "With --bag: hours, dollars and failed jobs of a bag of jobs, by policy and type of VM.",
    "train": "Without --model, --hparams-set and --problem the code defines:\n"
    '  input_fn(mode)   (features, labels) for "train" or "eval": arrays, or a tf.data.Dataset of single examples\n'
    "                   (of batches for a model that begins with keras.Input); a Keras model takes weights as third;\n"
    "                   each is one value or a structure of several, with any names; arrays are shuffled, a dataset\n"
    "                   shuffles itself; every worker begins somewhere else in them, each time that it begins\n"
    "  model            a compiled Keras model, or model_fn(features, labels, mode), which returns a dict with\n"
    "                   loss, optimizer (makes one of a learning rate), learning_rate, predictions, eval_metric_ops\n"
    "  batch_size       examples of a worker's step (32)",
    "stalls": "It takes workers as a run does, about --repeats x --seconds x (3 for each worker, and 5) in all.",
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
    "declare": "Sub-commands stand behind {{called}}, as in `{{called}} revoke NAME WORKER`:\n  {verbs}\n"
    "`{{called}} SUB-COMMAND -h` explains each.".format(verbs=", ".join(CLUSTER_VERBS)),
}
