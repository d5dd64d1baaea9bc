"""Jobs, ranks of a job and Dask through revocations: work that is lost, and seconds until it continues.

`job`: a NumPy script saves at every tenth of its steps, and at SIGTERM; its folder is copied here at intervals. Its VM
is revoked several times, with a notice of 30 s and without any. The script writes each step into a file of this
machine, on which the emulated VMs run, so that steps that were never copied are counted too. Beside it stands what a
script would lose whose VM takes its files along, and which starts from the beginning.

`ranks`: an ordinary DistributedDataParallel script of PyTorch on two VMs (gloo, a small perceptron). At SIGTERM each
rank saves the model and the optimizer; nothing else saves. The VM of rank 1 is revoked, then the VM of rank 0, with a
notice of 30 s each. Where the machine has an NVIDIA GPU, both emulated VMs share it and the model is on it. Needs
PyTorch, else it is skipped.

`dask`: the same empty task, one at a time, on a plain `LocalCluster` of this machine and on a VM's worker by SSH and
TLS, in turns, so that both meet the same machine: the median of what each task takes longer. Then many short tasks,
each with a result of 100 kB, while VMs are revoked one after the other, with a notice of 30 s and without any. Each
task writes into a file of this machine, so that what was executed twice is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import card, own_home, parser_of, run_measures, say, say_all

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Job
from transient_magics.works.dask.events import DaskLeft
from transient_magics.works.jobs.state import JobState

STEP_SECONDS = 0.1
SCRIPT = f"""
import os, pathlib, signal, sys, time
import numpy as np

kept, made = pathlib.Path(os.environ["TRANSIENT_KEEP"]), open(os.environ["MADE"], "a")
state = kept / "state.npz"
step = int(np.load(state)["step"]) if state.exists() else 0

def save():
    np.savez(kept / "new.npz", step=step, weights=np.zeros(100_000))
    (kept / "new.npz").replace(state)

def leave(*_):
    save()
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
while True:
    print(os.environ["TRANSIENT_ATTEMPT"], step, time.time(), file=made, flush=True)
    time.sleep({STEP_SECONDS})
    step += 1
    if step % 10 == 0:
        save()
"""
RANKS_SCRIPT = """
import datetime, os, pathlib, signal, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
rank = int(os.environ["RANK"])
attempt = os.environ["TRANSIENT_ATTEMPT"]
kept = pathlib.Path(os.environ["TRANSIENT_KEEP"])
state = kept / "state.pt"
made = open(os.environ["MADE"] + f"-{rank}", "a")
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
model = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
step = 0
if state.exists():
    stored = torch.load(state, map_location=device)
    network.load_state_dict(stored["network"])
    optimizer.load_state_dict(stored["optimizer"])
    step = stored["step"]
print(f"rank {rank} starts at step {step} on {next(network.parameters()).device}", flush=True)


def leave(*_):
    torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, kept / "new.pt")
    (kept / "new.pt").replace(state)
    os._exit(0)


signal.signal(signal.SIGTERM, leave)
draw = torch.Generator().manual_seed(rank + 1)
while True:
    inputs = torch.randn(32, 20, generator=draw)
    labels = (inputs[:, :1] > 0).float().to(device)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(inputs.to(device)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    print(attempt, step, time.time(), loss.item(), device, file=made, flush=True)
    time.sleep(0.05)
"""
TASK_SECONDS, RESULT_BYTES = 0.2, 100_000


def steps(made: Path) -> dict[int, list[tuple[int, float]]]:
    """By attempt: the steps that were begun, and when."""
    found: dict[int, list[tuple[int, float]]] = {}
    for line in made.read_text(encoding="utf-8").splitlines() if made.exists() else ():
        attempt, step, at = line.split()
        found.setdefault(int(attempt), []).append((int(step), float(at)))
    return found


def revoked(cluster: Cluster, job: Job, made: Path, after: float) -> tuple[float, float, float]:
    """Revoke the job's VM `after` seconds of an attempt: seconds of work lost, seconds until it goes on elsewhere, and
    seconds of work that starting anew would have lost."""
    before = job.state.attempt
    until(lambda: before in steps(made), "the attempt")
    begin = steps(made)[before][0][1]
    time.sleep(max(0.0, begin + after - time.time()))
    [vm] = job.state.vms
    at = time.time()
    cluster.revoke(vm)
    until(lambda: before + 1 in steps(made), "the next attempt")
    found = steps(made)
    last, first = found[before][-1][0], found[before + 1][0]
    return max(0, last - first[0]) * STEP_SECONDS, first[1] - at, last * STEP_SECONDS


def until(reached: Callable[[], object], what: str) -> None:
    """Wait for something that a file tells."""
    deadline = time.monotonic() + 240
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {what} within 240 s")
        time.sleep(0.05)


def story(notice: str, times: int, every: float) -> list[tuple[float, float, float]]:
    """What `revoked` says of so many revocations, each at another moment between two packings."""
    with own_home(), tempfile.TemporaryDirectory() as place:
        made = Path(place) / "made"
        cluster = client.declare(Declaration("cpu", name="job"))
        cluster.wait(120)
        cluster.weather(notice=notice)
        told = {"MADE": str(made)}
        job = client.declare_job(source=SCRIPT, cluster=cluster, keep="kept", keep_seconds=every, environment=told)
        until(lambda: job.name in cluster.state.of(JobState) and cluster.state.of(JobState)[job.name].vms, "the job")
        found = [revoked(cluster, job, made, every * (1 + turn / times) + 2) for turn in range(times)]
        job.stop()
        job.wait(120)
        return found


def job_alone(options: argparse.Namespace) -> None:
    """Print seconds lost, and until the job continues: each revocation, with and without a notice."""
    for name, notice, target in (("notice", "30s", "< 1"), ("none", "0s", f"< {options.keep_every + 2:.0f}")):
        found = story(notice, 2 if options.quick else 10, options.keep_every)
        lost, seconds, plain = ([each[column] for each in found] for column in range(3))
        say_all(f"{name}: seconds of work lost", lost, "s")
        say(f"{name}: longest", max(lost), "s", target)
        say_all(f"{name}: lost by starting anew", plain, "s")
        say_all(f"{name}: revocation to going on elsewhere", seconds, "s")


class Steps:
    """The steps that a rank made, read from the file that it writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, attempt: int) -> list[tuple[int, float, float, str]]:
        """Return number, time, loss and device of each step of an attempt."""
        if not self.path.exists():
            return []
        rows = [line.split() for line in self.path.read_text(encoding="utf-8").splitlines()]
        return [
            (int(row[1]), float(row[2]), float(row[3]), row[4])
            for row in rows
            if len(row) == 5 and int(row[0]) == attempt
        ]

    def wait(self, attempt: int, count: int, seconds: float = 240.0) -> None:
        """Wait for a number of steps of an attempt."""
        deadline = time.monotonic() + seconds
        while len(self.of(attempt)) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"attempt {attempt} made {len(self.of(attempt))} steps in {seconds:.0f} s")
            time.sleep(0.05)


def revoke_rank(cluster: Cluster, job: Job, steps: Steps, rank: int) -> tuple[int, float]:
    """Revoke the VM of a rank; return the steps that were lost and the seconds without a step."""
    attempt = job.state.attempt
    steps.wait(attempt, 100)
    cluster.revoke(job.state.vms[rank])
    following = attempt + 1
    steps.wait(following, 1)
    last = steps.of(attempt)[-1]
    first = steps.of(following)[0]
    return last[0] - (first[0] - 1), first[1] - last[1]


def ranks(options: argparse.Namespace) -> None:
    """Print lost steps and gaps for revocations of either rank."""
    if importlib.util.find_spec("torch") is None:
        print("skipped: PyTorch is not installed")
        return
    gpu = "h100" if card() else "cpu"
    with own_home(), tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        steps = Steps(Path(folder) / "made-0")
        spec = f"{gpu}x{3 if options.spare else 2}"
        cluster = client.declare(Declaration(spec, name="ranks", purpose="jobs", max_workers=16))
        cluster.wait(300)
        job = client.declare_job(
            source=RANKS_SCRIPT,
            cluster=cluster,
            keep="kept",
            keep_seconds=3600.0,
            workers=2,
            environment={"MADE": str(made)},
        )
        deadline = time.monotonic() + 120
        while not (job.name in cluster.state.of(JobState) and cluster.state.of(JobState)[job.name].vms):
            if time.monotonic() > deadline:
                raise TimeoutError("the job did not start within 120 s")
            time.sleep(0.05)
        for rank in (1, 0):
            found = [revoke_rank(cluster, job, steps, rank) for _ in range(1 if options.quick else 3)]
            say_all(f"{spec}, rank {rank}'s VM revoked: steps lost", [float(lost) for lost, _ in found], "", "0 or 1")
            say_all(f"{spec}, rank {rank}'s VM revoked: seconds without a step", [gap for _, gap in found], "s")
        rows = steps.of(job.state.attempt)
        say("steps in all", rows[-1][0], "", more=f"loss {rows[-1][2]:.3f}, on {rows[-1][3]}")
        job.stop()
        job.wait(120)


def nothing(value: int) -> int:
    """A task that computes nothing: what it takes is the way."""
    return value


def work(made: str, number: int) -> bytes:
    """A short task that says on this machine that it was executed."""
    time.sleep(TASK_SECONDS)
    with open(made, "a", encoding="utf-8") as file:
        file.write(f"{number}\n")
    return number.to_bytes(4, "big") + bytes(RESULT_BYTES)


def added(ours: Any, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a task on a plain local cluster, and on ours, in turns."""
    import distributed

    plain_times: list[float] = []
    own_times: list[float] = []
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as plain,
    ):
        for who in (plain, ours):  # what is first is slower
            who.gather([who.submit(nothing, each, pure=False) for each in range(20)])
        for each in range(rounds):
            for who, times in ((plain, plain_times), (ours, own_times))[:: 1 if each % 2 else -1]:
                began = time.perf_counter()
                who.submit(nothing, each, pure=False).result()
                times.append(1000 * (time.perf_counter() - began))
    return plain_times, own_times


def revoked_tasks(cluster: Cluster, dask: Any, tasks: int, times: int) -> tuple[int, int, list[DaskLeft]]:
    """Tasks that were lost, executions more than there are tasks, and how workers left, with so many revocations."""
    mark = cluster.state.seq
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "made"
        made.touch()
        futures = dask.map(lambda number: work(str(made), number), range(tasks), pure=False)
        for turn in range(times):
            share = (turn + 1) / (times + 1)
            while len(made.read_text(encoding="utf-8").splitlines()) < share * tasks:
                time.sleep(0.05)
            ready = sorted(vm.name for vm in cluster.state.living if vm.role == "worker" and vm.state == "ready")
            if ready:
                cluster.revoke(ready[0])
        results = dask.gather(futures, errors="skip")
        right = sum(int.from_bytes(each[:4], "big") in range(tasks) for each in results)
        done = len(made.read_text(encoding="utf-8").splitlines())
        time.sleep(3.0)  # until the last of what VMs tell is here
    left = [each for each in cluster.events("dask") if each.seq > mark and isinstance(each, DaskLeft)]
    return tasks - right, done - tasks, left


def dask_tasks(options: argparse.Namespace) -> None:
    """Print what a task costs more, and what revocations cost, with and without a notice."""
    tasks = options.tasks or (120 if options.quick else 10_000)
    with own_home(), contextlib.ExitStack() as stack:
        cluster = client.declare(Declaration("cpux3", name="dask"))
        cluster.wait(300)
        dask = stack.enter_context(cluster.dask(threads=1)).client
        dask.wait_for_workers(3, timeout=300)
        plain, own = added(dask, 40 if options.quick else 500)
        say_all("a task on a local cluster", plain, "ms")
        say_all("a task on a VM", own, "ms")
        more = [theirs - mine for mine, theirs in zip(plain, own, strict=True)]
        say("added for each task, median", statistics.median(more), "ms", "<= 10", more=f"n = {len(more)}")
        for name, notice in (("notice", "30s"), ("none", "0s")):
            cluster.weather(notice=notice)
            dask.wait_for_workers(3, timeout=300)
            lost, again, left = revoked_tasks(cluster, dask, tasks, 2 if options.quick else 10)
            say(f"{name}: tasks lost", lost, "", "0", more=f"of {tasks:,}")
            say(f"{name}: executed twice", again, "")
            say(f"{name}: results moved", sum(each.moved_bytes for each in left) / 1e6, "MB")
            say(f"{name}: longest departure", max((each.seconds for each in left), default=0.0), "s", "<= 22")


def main() -> None:
    """Run the chosen measures."""
    measures = {"job": job_alone, "ranks": ranks, "dask": dask_tasks}
    parser = parser_of(__doc__, "few revocations and tasks", measures)
    parser.add_argument("--keep-every", type=float, default=10.0, help="seconds between copies of `job` (default: 10)")
    parser.add_argument("--spare", action="store_true", help="`ranks` with an idle third VM, which replaces a lost one")
    parser.add_argument("--tasks", type=int, help="of `dask`, while VMs are revoked (default: 10,000)")
    run_measures(measures, parser.parse_args())


if __name__ == "__main__":
    main()
