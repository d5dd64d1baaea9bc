"""A PyTorch job on two VMs through revocations: steps that are lost, and the gap until the job trains again.

The job is an ordinary DistributedDataParallel script (gloo, a small perceptron). At SIGTERM each rank saves the model
and the optimizer; nothing else saves. The VM of rank 1 is revoked, then the VM of rank 0, with a notice of 30 s each.
Where the machine has an NVIDIA GPU, both emulated VMs share it and the model is on it. Needs PyTorch, else it skips.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path

from _common import card, own_home, say, say_all

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Job

SCRIPT = """
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


def revoke(cluster: Cluster, job: Job, steps: Steps, rank: int) -> tuple[int, float]:
    """Revoke the VM of a rank; return the steps that were lost and the seconds without a step."""
    attempt = job.state.attempt
    steps.wait(attempt, 100)
    cluster.revoke(job.state.vms[rank])
    following = attempt + 1
    steps.wait(following, 1)
    last = steps.of(attempt)[-1]
    first = steps.of(following)[0]
    return last[0] - (first[0] - 1), first[1] - last[1]


def main() -> None:
    """Print lost steps and gaps for revocations of either rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one revocation of each rank (default: three)")
    parser.add_argument("--spare", action="store_true", help="keep a third VM idle, which takes a lost one's place")
    options = parser.parse_args()
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
            source=SCRIPT, cluster=cluster, keep="kept", keep_seconds=3600.0, workers=2, environment={"MADE": str(made)}
        )
        deadline = time.monotonic() + 120
        while not (job.name in cluster.state.jobs and cluster.state.jobs[job.name].vms):
            if time.monotonic() > deadline:
                raise TimeoutError("the job did not start within 120 s")
            time.sleep(0.05)
        for rank in (1, 0):
            found = [revoke(cluster, job, steps, rank) for _ in range(1 if options.quick else 3)]
            say_all(f"{spec}, rank {rank}'s VM revoked: steps lost", [float(lost) for lost, _ in found], "", "0 or 1")
            say_all(f"{spec}, rank {rank}'s VM revoked: seconds without a step", [gap for _, gap in found], "s")
        rows = steps.of(job.state.attempt)
        say("steps in all", rows[-1][0], "", more=f"loss {rows[-1][2]:.3f}, on {rows[-1][3]}")
        job.stop()
        job.wait(120)


if __name__ == "__main__":
    main()
