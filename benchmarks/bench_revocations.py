"""Three paced workers, one of them revoked every minute: steps made, as a share of what the living could have made.

Ours goes on with the others and takes the replacement in. The two peers: TensorFlow 2's ParameterServerStrategy, whose
worker is killed and started again at the same address as soon as our replacement had its VM; and ours as a system would
use it that restarts the job from a checkpoint at every change of workers, saved just before: when a VM is gone, and
when its replacement is there (once, where that is there before). Starting is fast then, because it is ours; so a plain
between-graph script on the same model is restarted too, which imports what Tensor2Tensor imports and builds its graph
as TensorFlow would have it; its checkpoints are taken to cost nothing. The more a model takes to build, the more
restarting costs: the published systems' is ResNet-32 (`--model resnet-32`).

VMs take longer to boot than the notice lasts; on Compute Engine they take longer still. What a living worker could
make is what it made before the first revocation, so that nobody's pace favours him.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import bench_throughput
from _common import CELL, all_in, own_home, revoke_one, say, start
from _coordinator import Coordinator

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import ClusterState, metrics

WORKERS = 3
EVERY = 60.0
NOTICE = 30.0
BOOT = "36s"
HERE = "127.0.0.1"


@dataclass(frozen=True)
class Model:
    """What is trained, and the seconds of a step that leave the cores to who starts."""

    pace: float
    hparams_set: str
    hparams: str = ""

    @property
    def names(self) -> dict[str, str]:
        """As a run declares them."""
        return {
            "model": "resnet", "hparams_set": self.hparams_set, "problem": "image_digits", "hparams": self.hparams,
        }  # fmt: skip


MODELS = {
    "digits": Model(0.25, "resnet_digits"),
    "resnet-32": Model(1.0, "resnet_cifar_32", "batch_size=32,learning_rate=0.001"),
}


def steps_of(run: Run) -> int:
    """The global step as last told."""
    rows = metrics.read(run.directory / "metrics.jsonl")
    return max((row["step"] for row in rows), default=0)


def alive(cluster: Cluster, since: float, until: float) -> float:
    """Seconds of living workers between two moments: VMs from SSH-ready to their notice, upon which a worker leaves."""
    noticed = {getattr(event, "vm", ""): event.at for event in cluster.events("vm.preemption_notice")}
    total = 0.0
    for name, vm in cluster.state.vms.items():
        if vm.role == "worker" and vm.ready_at:
            ended = noticed.get(name) or vm.ended_at or until
            total += max(0.0, min(ended, until) - max(vm.ready_at, since))
    return total


def elastic(model: Model, minutes: int) -> tuple[float, float]:
    """Ours: the share, and how long a replacement took from its request to SSH-ready."""
    with own_home():
        cluster, run = declared(model)
        rate, began, first = undisturbed(run)
        for _ in range(minutes):
            at = time.time()
            revoke_one(cluster)
            time.sleep(max(0.0, at + EVERY - time.time()))
        ended, last = time.time(), steps_of(run)
        share = (last - first) / (rate * alive(cluster, began, ended))
        booted = [vm.ready_at - vm.requested_at for vm in cluster.state.vms.values() if vm.ready_at > began]
        return share, sum(booted) / len(booted)


def restarting(model: Model, minutes: int) -> float:
    """The job is stopped with a checkpoint when a VM goes or comes, and continued with those who are left."""
    with own_home():
        cluster, run = declared(model)
        rate, began, _ = undisturbed(run)
        first = steps_of(run)
        for _ in range(minutes):
            at = time.time()
            lost = revoke_one(cluster)
            cluster.follow(lambda state, lost=lost: state.vms[lost].ended_at > 0, NOTICE + 30)
            run = continued(model, cluster, run)
            if ready(cluster.state) < WORKERS:
                cluster.follow(lambda state: ready(state) == WORKERS, 60)
                run = continued(model, cluster, run)
            time.sleep(max(0.0, at + EVERY - time.time()))
        ended = time.time()
        last = max(steps_of(run), run.state.step)  # it may not have made a step since it was started again
        return (last - first) / (rate * alive(cluster, began, ended))


def continued(model: Model, cluster: Cluster, run: Run) -> Run:
    """The run stopped with a checkpoint, and started again from there."""
    run.stop()
    run.wait(60)
    return start(cluster, pace_seconds=model.pace, resume=run.name, **model.names)


def ready(state: ClusterState) -> int:
    """How many workers' VMs could train."""
    return sum(vm.role == "worker" and vm.state == "ready" for vm in state.living)


def coordinator(minutes: int, boot: float) -> float:
    """ParameterServerStrategy: the worker is gone at the end of its notice, and back when a VM would be."""
    with tempfile.TemporaryDirectory() as folder:
        peer = Coordinator(Path(folder), WORKERS, "tiny", pace=MODELS["digits"].pace)
        peer.start()
        try:
            time.sleep(10)
            began, first = time.time(), peer.steps()
            time.sleep(30)
            rate = (peer.steps() - first) / (time.time() - began) / WORKERS
            began, first = time.time(), peer.steps()
            for number in range(minutes):
                time.sleep(NOTICE)
                peer.kill(f"worker-{number % WORKERS}")
                time.sleep(away := max(0.0, boot - NOTICE))
                peer.start_process(f"worker-{number % WORKERS}")
                time.sleep(EVERY - NOTICE - away)
            lived = WORKERS * (time.time() - began) - minutes * away
            return (peer.steps() - first) / (rate * lived)
        finally:
            peer.end()


class Script:
    """The plain script: a parameter server and workers, as processes that are all ended and started again."""

    def __init__(self, folder: Path, model: Model) -> None:
        self._folder, self._counter, self._before = folder, folder / "count", 0
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "cell.py").write_text(CELL)
        declared = {"name": "run-1", "train_steps": 10**7, "token": "", "pace_seconds": model.pace, **model.names}
        (folder / "run.json").write_text(json.dumps(declared))
        self._counter.write_bytes(bytes(8 * WORKERS))

    def start(self, workers: int) -> None:
        """End whatever runs, and start with that many workers."""
        self._before = self.steps()
        self.end()
        self._counter.write_bytes(bytes(8 * WORKERS))
        places = ",".join([HERE] * (workers + 1))
        script = [sys.executable, bench_throughput.__file__, "--as-written", "--bare", self._folder, places]
        roles = [("ps", 0), *(("worker", index) for index in range(workers))]
        with (self._folder / "log").open("ab") as log:
            self._processes = [
                subprocess.Popen([*script, role, str(index)], stdout=log, stderr=log) for role, index in roles
            ]

    def steps(self) -> int:
        """Steps of all workers so far."""
        return self._before + sum(struct.unpack(f"{WORKERS}q", self._counter.read_bytes()))

    def end(self) -> None:
        """End every process."""
        for process in self._processes:
            process.kill()
            process.wait()


def plain(model: Model, minutes: int, boot: float) -> float:
    """The plain script, restarted when a worker is gone at the end of its notice, and when a VM would have come."""
    with tempfile.TemporaryDirectory() as folder:
        script = Script(Path(folder), model)
        try:
            script.start(WORKERS)
            while script.steps() < 20 * WORKERS:
                time.sleep(1)
            began, first = time.time(), script.steps()
            time.sleep(30)
            rate = (script.steps() - first) / (time.time() - began) / WORKERS
            began, first = time.time(), script.steps()
            away = max(0.0, boot - NOTICE)
            for _ in range(minutes):
                time.sleep(NOTICE)
                script.start(WORKERS - 1)
                time.sleep(away)
                script.start(WORKERS)
                time.sleep(EVERY - NOTICE - away)
            lived = WORKERS * (time.time() - began) - minutes * away
            return (script.steps() - first) / (rate * lived)
        finally:
            script.end()


def declared(model: Model) -> tuple[Cluster, Run]:
    """A cluster whose workers all train."""
    cluster = client.declare(Declaration(f"k80x{WORKERS}", name="bench", max_workers=64))
    cluster.wait(120)
    cluster.weather(boot=BOOT)
    run = start(cluster, pace_seconds=model.pace, **model.names)
    all_in(cluster, WORKERS)
    time.sleep(10)
    return cluster, run


def undisturbed(run: Run) -> tuple[float, float, int]:
    """Steps per second of one worker, the moment from which it counts, and the step then."""
    began, first = time.time(), steps_of(run)
    time.sleep(30)
    now, step = time.time(), steps_of(run)
    return (step - first) / (now - began) / WORKERS, now, step


def main() -> None:
    """Print the three shares and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="digits")
    parser.add_argument("--minutes", type=int, default=10, help="one revocation in each (10)")
    parser.add_argument("--quick", action="store_true", help="three revocations")
    given = parser.parse_args()
    model, minutes = MODELS[given.model], 3 if given.quick else given.minutes
    share, boot = elastic(model, minutes)
    say(f"{given.model}, {minutes} revocations, ours: share of the ideal", share, "", "> 0.95")
    if given.model == "digits":  # the strategy's own network is about as small
        peer = coordinator(minutes, boot)
        say("ParameterServerStrategy, workers started again", peer, "")
        say("ours over ParameterServerStrategy", share / peer, "")
    other = restarting(model, minutes)
    say("the job restarted from a checkpoint at every change", other, "")
    say("ours over restarting ours", share / other, "")
    script = plain(model, minutes, boot)
    say("a plain script restarted at every change", script, "")
    say("ours over restarting a plain script", share / script, "", ">= 1.5")


if __name__ == "__main__":
    main()
