"""Jobs on a real cluster: their VMs are revoked, what looks after them is killed, and they go on with what was kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import PATIENCE, Patient
from transient_magics import client
from transient_magics.cli import verbs
from transient_magics.cli.arguments import parse, split
from transient_magics.cli.options import Code
from transient_magics.client import text
from transient_magics.errors import CellError, ClusterError, DeclarationError, TrainingError
from transient_magics.journal import bill, events, now
from transient_magics.works.jobs.state import JobState

RESUMES = """
import os, pathlib, signal, sys, time
import numpy as np

kept = pathlib.Path(os.environ["TRANSIENT_KEEP"])
state = kept / "state.npz"
done = int(np.load(state)["done"]) if state.exists() else 0
print("begins at", done, flush=True)

def save(*_):
    np.savez(kept / "new.npz", done=done)
    (kept / "new.npz").replace(state)

def leave(*_):
    save()
    print("leaves at", done, flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
while not os.path.exists(os.environ["ENOUGH"]):
    time.sleep(0.25)
    done += 1
    if done % 4 == 0:
        save()
save()
print("done at", done, flush=True)
"""


KERNEL = """
from transient_magics import client

job = client.cluster("jb").run("echo begun; sleep 600", name="other")
for said in job.stream():
    print(said, flush=True)
"""


def declared_by_a_kernel_that_dies() -> client.Job:
    """A job whose declaring process was killed (-9) while it showed what the command says."""
    with subprocess.Popen(
        [sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as kernel:
        assert kernel.stdout
        assert kernel.stdout.readline() == "begun\n"
        kernel.kill()
    return client.job("other")


def test_a_job_goes_on_where_it_was_though_all_that_can_die_dies(home: Path, tmp_path: Path) -> None:
    cluster = client.declare(client.Declaration("cpux2", name="jb", max_hours=2.0))
    patient = Patient(cluster)
    try:
        with pytest.raises(CellError, match="line 1: invalid syntax"):
            verbs.begin(parse("job", split("--cluster jb")), Code("a b c"))
        with pytest.raises(DeclarationError, match="jb has 2 workers, not 3"):
            cluster.run("true", workers=3)
        with pytest.raises(DeclarationError, match="Invalid --keep: '/etc' is not a folder below"):
            cluster.run("true", keep="/etc")
        enough = tmp_path / "enough"  # VMs of the emulator see this machine's files
        line = f"--keep kept/ --keep-every 5s --cluster jb --env ENOUGH={enough}"
        job = verbs.begin(parse("job", split(line)), Code(RESUMES)).work
        other = declared_by_a_kernel_that_dies()
        failing = cluster.run("echo why; exit 5", name="failing")
        patient.until(
            lambda state: (
                (known := state.of(JobState).get("job-1")) and known.kept and "other" in state.leases.values()
            ),
            "a job whose folder is here, and one beside it",
        )
        with pytest.raises(ClusterError, match="jb has a job job-1 already"):
            cluster.run("true", name="job-1")

        # The agent, what looks after the job, and the controller; then the VM, with a notice.
        [vm] = job.state.vms
        patient.another_agent(vm)
        patient.kill(vm, "jobs")
        os.kill(patient.controller(), signal.SIGKILL)
        patient.until(lambda state: job.output().count("begins at") == 2, "its command again")
        cluster.revoke(vm)
        state = patient.until(lambda state: state.of(JobState)["job-1"].attempt == 2, "the next attempt", 2 * PATIENCE)
        assert state.of(JobState)["job-1"].interruptions == 1
        other.stop()
        enough.touch()
        said = str(job.wait(2 * PATIENCE) and job.output())
        begun = [int(line.split()[-1]) for line in said.splitlines() if line.startswith("begins at")]
        left = [int(line.split()[-1]) for line in said.splitlines() if line.startswith("leaves at")]
        assert begun[0] == 0
        assert begun[-1] == left[-1], "nothing that it had done at the notice was lost"
        assert int(said.split()[-1]) >= begun[-1]
        assert job.state.failures == 0
        assert [path.name for path in job.fetch(tmp_path / "got").iterdir()] == ["state.npz"]

        with pytest.raises(TrainingError, match="failing failed: its command ended with code 5") as failed:
            failing.wait(PATIENCE)
        assert "Its last output:\nwhy" in str(failed.value)
        patient.until(lambda state: other.is_over(state), "the end of the one that was stopped")
        assert (other.state.phase, other.state.reason) == ("stopped", "stopped by the user")
        moment = now()
        account = bill(cluster.state, moment)
        assert {"job-1", "other", "failing"} <= set(account.lines)
        assert sum(account.lines.values()) == pytest.approx(account.total)
        assert "failing  failed: its command ended with code 5" in text.status(cluster.state, cluster.cost(), moment)
    finally:
        cluster.delete(PATIENCE)


COLLECTIVE = """
import os, pathlib, signal, socket, struct, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
kept = pathlib.Path(os.environ["TRANSIENT_KEEP"])
state = kept / "step"
step = int(state.read_text()) if state.exists() else 0
print("rank", rank, "of", size, "begins at", step, flush=True)

def leave(*_):
    (kept / "new").write_text(str(step))
    (kept / "new").replace(state)
    os._exit(0)

# Rank 0 is in a collective that heeds no signal, as those in compiled code.
signal.signal(signal.SIGTERM, leave if rank == 1 else lambda *_: None)
store = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(store) as server:
        told, _ = server.accept()
    name, port = told.makefile().readline().split()
    peer = socket.create_connection((name, int(port)), 60)
else:  # a rank listens where its own name leads, and is found by that name, as with gloo
    server = socket.create_server((socket.gethostbyname(socket.gethostname()), 0))
    while True:
        try:
            told = socket.create_connection(store, 60)
            break
        except OSError:
            time.sleep(0.1)
    told.sendall(f"{socket.gethostname()} {server.getsockname()[1]}\\n".encode())
    peer, _ = server.accept()
peer.settimeout(None)

def all_reduce(value):
    peer.sendall(struct.pack("d", value))
    received = b""
    while len(received) < 8:
        block = peer.recv(8 - len(received))
        if not block:
            raise ConnectionError("connection closed by peer")
        received += block
    return value + struct.unpack("d", received)[0]

while True:
    assert all_reduce(step) == size * step
    time.sleep(0.05)
    step += 1
    if step % 10 == 0:
        print("step", step, flush=True)
"""


def test_ranks_of_a_collective_go_on_from_the_last_save_on_an_idle_worker_until_a_limit_ends_them(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpux3", name="jc", max_hours=2.0))
    patient = Patient(cluster)
    try:
        cluster.wait(PATIENCE)
        job = client.declare_job(source=COLLECTIVE, cluster=cluster, keep="kept", workers=2, timeout_seconds=45.0)
        patient.sees(lambda: "step 20" in job.output(), "steps of both ranks together")
        # Rank 1 has a notice, and saves; the collective of rank 0 breaks, and it saves nothing.
        before = job.state.vms
        [idle] = {"worker-0", "worker-1", "worker-2"} - set(before)
        cluster.revoke(before[1])
        state = patient.until(lambda state: state.of(JobState)["job-1"].attempt == 2, "the next attempt", 2 * PATIENCE)
        assert set(state.of(JobState)["job-1"].vms) == {before[0], idle}, "no VM had to boot"
        patient.sees(lambda: job.output().count("begins at") == 2, "the command again")
        begun, *_, stopped, again = [line for line in job.output().splitlines() if line.split()[0] in ("rank", "step")]
        resumed = int(again.split()[-1])
        assert begun == "rank 0 of 2 begins at 0"
        assert resumed >= int(stopped.split()[-1]) >= 20, "what rank 1 saved at its notice was there for both"
        saved = state.of(JobState)["job-1"].kept
        assert (saved and saved.rank, saved and saved.files) == (1, 1)

        # All VMs go at once, without a notice.
        patient.sees(lambda: job.output().splitlines()[-1].startswith("step"), "its steps")
        vms = job.state.vms
        cluster.weather(notice="0s")
        for vm in vms:
            cluster.revoke(vm)
        state = patient.until(lambda state: state.of(JobState)["job-1"].attempt == 3, "the next attempt", 2 * PATIENCE)
        assert not set(vms) & set(state.of(JobState)["job-1"].vms)
        with pytest.raises(TrainingError, match="--job-timeout"):
            job.wait(2 * PATIENCE)
        begun = [line for line in job.output().splitlines() if line.startswith("rank")]
        assert int(begun[2].split()[-1]) == resumed, "what was kept was there again"
        assert (job.state.failures, job.state.interruptions) == (0, 2)
        assert not [event for event in cluster.events("job.interrupted") if getattr(event, "failed", True)]
        assert isinstance(cluster.events("work.ended")[-1], events.WorkEnded)
    finally:
        cluster.delete(PATIENCE)


@pytest.mark.nightly
def test_before_its_money_is_spent_a_job_saves_and_that_comes_home(home: Path, tmp_path: Path) -> None:
    hourly = client.preview(client.Declaration("cpu", name="jm")).spec.hourly
    cluster = client.declare(client.Declaration("cpu", name="jm", max_cost=hourly * 120 / 3600))
    try:
        command = "trap 'echo last >> kept/log; exit 0' TERM; while :; do sleep 0.5; echo x >> kept/log; done"
        job = cluster.run(command, keep="kept", keep_seconds=3600.0)
        assert cluster.follow(lambda state: state.over, PATIENCE), "the limit ends it"
        assert (job.state.phase, job.wait(1.0).failures) == ("stopped", 0)
        assert "its cluster's limits end it" in job.state.reason
        assert (job.fetch(tmp_path / "got") / "log").read_text(encoding="utf-8").split()[-1] == "last"
    finally:
        cluster.delete(PATIENCE)


TORCH = """
import os, pathlib, signal, sys, time
import torch

kept = pathlib.Path(os.environ["TRANSIENT_KEEP"])
state = kept / "state.pt"
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
step = 0
if state.exists():
    known = torch.load(state)
    model.load_state_dict(known["model"])
    optimizer.load_state_dict(known["optimizer"])
    step = known["step"]
print("begins at", step, flush=True)

def save(*_):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, kept / "new.pt")
    (kept / "new.pt").replace(state)

signal.signal(signal.SIGTERM, lambda *_: (save(), sys.exit(0)))
while step < 200:
    inputs = torch.randn(32, 4)
    loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    time.sleep(0.1)
    if step % 10 == 0:
        save()
print("done at", step, loss.item())
"""


def test_a_model_of_pytorch_goes_on_with_its_optimizer(home: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed here: its wheel brings some 3 GB")
    cluster = client.declare(client.Declaration("cpu", name="jt", max_hours=2.0))
    patient = Patient(cluster)
    try:
        job = client.declare_job(source=TORCH, cluster=cluster, keep="kept", keep_seconds=5.0)
        state = patient.until(lambda state: (known := state.of(JobState).get("job-1")) and known.kept, "what it keeps")
        cluster.revoke(state.of(JobState)["job-1"].vms[0])
        job.wait(2 * PATIENCE)
        begun = [int(line.split()[-1]) for line in job.output().splitlines() if line.startswith("begins at")]
        assert begun[0] == 0
        assert begun[1] > 0
    finally:
        cluster.delete(PATIENCE)
