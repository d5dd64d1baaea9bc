"""What files and folders are called: of a cluster and a run on this machine, of a run on VMs and in
a bucket.

Names only, so that who writes a file and who reads it, often on another machine, say the same.
Which folder they are in on this machine, `places` knows; what the folder of a run on a VM holds,
`runtime/folder.py`.
"""

from __future__ import annotations

from ..kinds import KINDS

# In the folder of a cluster, here and on the VM of its controller, and of an image's build.
SPEC = "spec.json"
"""What was declared."""
JOURNAL = "journal.jsonl"
KEY = "key"
"""The SSH key of the cluster's VMs; the public one is beside it."""
RUNS = KINDS["run"].folder
STUDIES = KINDS["study"].folder
JOBS = KINDS["job"].folder
DASKS = KINDS["dask"].folder
CONTROLLER_LOG = "controller.log"

# In the folder of a run, wherever that is.
RUN = KINDS["run"].file
"""What was declared. It is written last: where that is, all of the run is."""
CELL = "cell.py"
INCLUDE = "include"
PIP = "pip"
"""Packages from files of this machine, as they were given."""
WHEELS = "wheels"
"""Those packages, and what they need, as the VMs install them."""
MODEL = "model.json"
FIT = "fit.json"
"""What the cell's `model.fit` declares, beside the declaration of the run."""
"""What the check of the cell counted of the model."""
EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
LOGS = "logs"
TRACES = "traces"
HOME = "at-home"
"""Empty, and only where a controller elsewhere is followed: what the run left there is all here."""
STANDBY = "standby"
"""On a VM, as long as the run goes on elsewhere until it is handed over; where its chief is now, if
anybody says so.
"""
TRACE_WANTED = "trace.wanted"
TRACE = "trace.json.gz"
TRACE_REFUSED = "trace.refused"
"""On a worker's VM: asks for a trace of a step, is the trace, or says in how many seconds there may
be one.
"""

# In the folder of a study, which has the cell and what goes with it as that of a run has them.
STUDY = KINDS["study"].file

# In the folder of a job, wherever that is; it has `cell.py`, `include/` and the packages as a run's
# folder has them.
JOB = KINDS["job"].file
"""What was declared, written last."""
KEPT = "kept"
"""The folder that is kept, as it was shipped: an archive a time."""
OUTPUT = "output"
"""What its processes said, a file for each attempt and rank."""

# In the folder of a Dask cluster, wherever that is.
DASK = KINDS["dask"].file
"""What was declared, written last."""
TLS_CA = "tls/ca.pem"
TLS_CERTIFICATE = "tls/own.pem"
TLS_KEY = "tls/own.key"
"""The authority of its certificates, and those of whoever has the folder: here the client's."""
TLS_CA_KEY = "tls/ca.key"
"""On the controller's machine alone."""
DASK_EVENTS = "events.jsonl"

# In the folder of a bag; on a VM, of its Dask cluster.
BAGS = KINDS["bag"].folder
BAG = KINDS["bag"].file
"""What was declared, written last."""
LIFETIMES = "lifetimes.json"
"""What its driver is told of the lifetimes of VMs."""
BAG_KNOWN = "known.jsonl"
BAG_EVENTS = "told.jsonl"
"""What drivers before have told, as the journal has it, and what this one does."""
RESULTS = "results"
"""Arrays that jobs returned: a file for each."""
SURROGATE = "surrogate.json"
SURROGATE_ARRAYS = "surrogate.npz"

# In the home folder of a VM's user.
ON_VM = "transient"
"""The agent's root: the folders of runs are below it, as in a cluster's folder here."""
CODE_ON_VM = f"{ON_VM}/code"

# In the agent's root.
AGENT_SOCKET = "agent.sock"
AGENT_LINES = "agent.jsonl"
AGENT_LOG = "agent.log"
AGENT_PID = "agent.pid"


def run_on_vm(run: str) -> str:
    """The folder of a run on a VM, from the home of its user."""
    return f"{ON_VM}/{RUNS}/{run}"


def shared_input(study: str) -> str:
    """In the place of a run's name on a VM: of what trials of a study that share the VM read
    together.
    """
    return f"{study}-input"


def trace_of(worker: str) -> str:
    """The latest trace of that worker, from the run's folder on this machine."""
    return f"{TRACES}/{worker}.json.gz"


def work_on_vm(kind: str, name: str) -> str:
    """Return the folder of work on a VM, from the home of its user."""
    return f"{ON_VM}/{KINDS[kind].folder}/{name}"


def archive(number: int) -> str:
    """The name of the archive in which the folder of a job was shipped for the `number`-th time."""
    return f"{number}.tar"


def output(attempt: int, rank: int) -> str:
    """The name of the file with what the process of that rank said in that attempt."""
    return f"{attempt}-{rank}.log"


def job_events(attempt: int) -> str:
    """The name of the file in which a VM tells of its part in that attempt."""
    return f"events-{attempt}.jsonl"


def log_on_vm(run: str, vm: str) -> str:
    """What the process of a run on that VM says, from the home of its user."""
    return f"{run_on_vm(run)}/{LOGS}/{vm}.log"


# In the metadata of a VM.
NOTICE_KEY = "preemption-notice-seconds"
"""The seconds between the preemption notice and the start of the VM's shutdown, where they were
requested.
"""
