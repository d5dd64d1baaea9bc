"""Names of files and folders: of clusters and runs on this machine, on VMs and in a bucket.

The module holds names only, so that writers and readers of a file, often on different machines,
agree. `places` knows the folders on this machine. `runtime/folder.py` knows the contents of a run's
folder on a VM.
"""

from __future__ import annotations

from ..kinds import KINDS

# In the folder of a cluster, here and on the controller's VM, and of an image's build.
SPEC = "spec.json"
"""The declaration."""
JOURNAL = "journal.jsonl"
KEY = "key"
"""The SSH key of the cluster's VMs; the public key is beside it."""
RUNS = KINDS["run"].folder
STUDIES = KINDS["study"].folder
JOBS = KINDS["job"].folder
DASKS = KINDS["dask"].folder
CONTROLLER_LOG = "controller.log"

# In the folder of a run, on every machine.
RUN = KINDS["run"].file
"""The declaration. It is written last, so its presence means that the run's folder is complete."""
CELL = "cell.py"
INCLUDE = "include"
PIP = "pip"
"""Packages from files of this machine, as the user named them."""
WHEELS = "wheels"
"""Packages of the run and their dependencies, as the VMs install them."""
MODEL = "model.json"
"""Counts of the model from the check of the cell."""
FIT = "fit.json"
"""The declaration of the cell's `model.fit`, beside that of the run."""
EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
FILES = "files"
"""The folder of files that callbacks write, in the folder of their run."""
FILES_ARCHIVE = "files.tar"
"""Its archive at the end of the training."""
MOST_FILES_BYTES = 256 * 2**20
CHECKPOINTS = "checkpoints"
LOGS = "logs"
TRACES = "traces"
HOME = "at-home"
"""An empty marker, written when this machine follows a remote controller.

It means that all files of the run have arrived here.
"""
STANDBY = "standby"
"""A marker on a VM while the run trains elsewhere, until the handover.

It holds the address of the current chief, if there is one.
"""
TRACE_WANTED = "trace.wanted"
TRACE = "trace.json.gz"
TRACE_REFUSED = "trace.refused"
"""Files on a worker's VM for tracing a step.

`TRACE_WANTED` requests a trace, `TRACE` is the trace, and `TRACE_REFUSED` holds the seconds until a
trace is possible.
"""

# In the folder of a study; the cell and its files are laid out as in the folder of a run.
STUDY = KINDS["study"].file

# In the folder of a job, on every machine. `cell.py`, `include/` and the packages are laid out as
# in the folder of a run.
JOB = KINDS["job"].file
"""The declaration, written last."""
KEPT = "kept"
"""The kept folder, as shipped: one archive each time."""
OUTPUT = "output"
"""The output of the job's processes: a file for each attempt and rank."""

# In the folder of a Dask cluster, on every machine.
DASK = KINDS["dask"].file
"""The declaration, written last."""
TLS_CA = "tls/ca.pem"
TLS_CERTIFICATE = "tls/own.pem"
TLS_KEY = "tls/own.key"
"""The certificate authority, and the certificate and key of the folder's owner: here the client."""
TLS_CA_KEY = "tls/ca.key"
"""The key of the authority, which exists only on the controller's machine."""
DASK_EVENTS = "events.jsonl"

# In the folder of a bag; on a VM, in that of its Dask cluster.
BAGS = KINDS["bag"].folder
BAG = KINDS["bag"].file
"""The declaration, written last."""
LIFETIMES = "lifetimes.json"
"""The lifetimes of VMs that the driver receives."""
BAG_KNOWN = "known.jsonl"
BAG_EVENTS = "told.jsonl"
"""Results of earlier drivers, as in the journal, and events of the current driver."""
RESULTS = "results"
"""Arrays that jobs returned: a file for each job."""
SURROGATE = "surrogate.json"
SURROGATE_ARRAYS = "surrogate.npz"

# In the home folder of a VM's user.
ON_VM = "transient"
"""The agent's root, which contains the folders of runs, as a cluster's folder does here."""
CODE_ON_VM = f"{ON_VM}/code"

# In the agent's root.
AGENT_SOCKET = "agent.sock"
AGENT_LINES = "agent.jsonl"
AGENT_LOG = "agent.log"
AGENT_PID = "agent.pid"


def run_on_vm(run: str) -> str:
    """Return the folder of a run on a VM, relative to the home of its user."""
    return f"{ON_VM}/{RUNS}/{run}"


def shared_input(study: str) -> str:
    """Return the name of the folder with the shared input of a study's trials on one VM.

    It stands where the name of a run stands.
    """
    return f"{study}-input"


def trace_of(worker: str) -> str:
    """Return the path of the worker's latest trace, relative to the run's folder here."""
    return f"{TRACES}/{worker}.json.gz"


def work_on_vm(kind: str, name: str) -> str:
    """Return the folder of work on a VM, relative to the home of its user."""
    return f"{ON_VM}/{KINDS[kind].folder}/{name}"


def archive(number: int) -> str:
    """Return the name of the archive that shipped the folder of a job for the `number`-th time."""
    return f"{number}.tar"


def output(attempt: int, rank: int) -> str:
    """Return the name of the file with the output of the process of a rank in an attempt."""
    return f"{attempt}-{rank}.log"


def job_events(attempt: int) -> str:
    """Return the name of the file in which a VM reports its part in an attempt."""
    return f"events-{attempt}.jsonl"


def log_on_vm(run: str, vm: str) -> str:
    """Return the log of a run's process on that VM, relative to the home of its user."""
    return f"{run_on_vm(run)}/{LOGS}/{vm}.log"


# In the metadata of a VM.
NOTICE_KEY = "preemption-notice-seconds"
"""Seconds between the preemption notice and the VM's shutdown, if a notice was requested."""
