"""Three paced workers, one of them revoked every minute: steps made, as a share of what the living could have made.

Ours goes on with the others and takes the replacement in. The two peers: TensorFlow 2's ParameterServerStrategy, whose
worker is killed and started again at the same address as soon as our replacement had its VM; and ours as a system would
use it that restarts the job from a checkpoint at every change of workers, saved just before: when a VM is gone, and
when its replacement is there (once, where that is there before). Starting is fast then, because it is ours; so a plain
between-graph script on the same model is restarted too, whose checkpoints are taken to cost nothing.

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
from pathlib import Path

import bench_throughput
from _common import CELL, all_in, own_home, revoke_one, say, start
from _coordinator import Coordinator
from bench_throughput import DIGITS

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import ClusterState, metrics

WORKERS = 3
PACE = 0.25
EVERY = 60.0
NOTICE = 30.0
BOOT = "36s"
HERE = "127.0.0.1"


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


def elastic(minutes: int) -> tuple[float, float]:
    """Ours: the share, and how long a replacement took from its request to SSH-ready."""
    with own_home():
        cluster, run = declared()
        rate, began, first = undisturbed(run)
        for _ in range(minutes):
            at = time.time()
            revoke_one(cluster)
            time.sleep(max(0.0, at + EVERY - time.time()))
        ended, last = time.time(), steps_of(run)
        share = (last - first) / (rate * alive(cluster, began, ended))
        booted = [vm.ready_at - vm.requested_at for vm in cluster.state.vms.values() if vm.ready_at > began]
        return share, sum(booted) / len(booted)


def restarting(minutes: int) -> float:
    """The job is stopped with a checkpoint when a VM goes or comes, and continued with those who are left."""
    with own_home():
        cluster, run = declared()
        rate, began, _ = undisturbed(run)
        first = steps_of(run)
        for _ in range(minutes):
            at = time.time()
            lost = revoke_one(cluster)
            cluster.follow(lambda state, lost=lost: state.vms[lost].ended_at > 0, NOTICE + 30)
            run = continued(cluster, run)
            if ready(cluster.state) < WORKERS:
                cluster.follow(lambda state: ready(state) == WORKERS, 60)
                run = continued(cluster, run)
            time.sleep(max(0.0, at + EVERY - time.time()))
        ended = time.time()
        last = max(steps_of(run), run.state.step)  # it may not have made a step since it was started again
        return (last - first) / (rate * alive(cluster, began, ended))


def continued(cluster: Cluster, run: Run) -> Run:
    """The run stopped with a checkpoint, and started again from there."""
    run.stop()
    run.wait(60)
    return start(cluster, pace_seconds=PACE, resume=run.name)


def ready(state: ClusterState) -> int:
    """How many workers' VMs could train."""
    return sum(vm.role == "worker" and vm.state == "ready" for vm in state.living)


def coordinator(minutes: int, boot: float) -> float:
    """ParameterServerStrategy: the worker is gone at the end of its notice, and back when a VM would be."""
    with tempfile.TemporaryDirectory() as folder:
        peer = Coordinator(Path(folder), WORKERS, "tiny", pace=PACE)
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

    def __init__(self, folder: Path) -> None:
        self._folder, self._counter, self._before = folder, folder / "count", 0
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "cell.py").write_text(CELL)
        declared = {"name": "run-1", "train_steps": 10**7, "token": "", "pace_seconds": PACE, **DIGITS}
        (folder / "run.json").write_text(json.dumps(declared))
        self._counter.write_bytes(bytes(8 * WORKERS))

    def start(self, workers: int) -> None:
        """End whatever runs, and start with that many workers."""
        self._before = self.steps()
        self.end()
        self._counter.write_bytes(bytes(8 * WORKERS))
        script = [sys.executable, bench_throughput.__file__, "--bare", self._folder, ",".join([HERE] * (workers + 1))]
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


def plain(minutes: int, boot: float) -> float:
    """The plain script, restarted when a worker is gone at the end of its notice, and when a VM would have come."""
    with tempfile.TemporaryDirectory() as folder:
        script = Script(Path(folder))
        try:
            script.start(WORKERS)
            while script.steps() < 100:
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


def declared() -> tuple[Cluster, Run]:
    """A cluster whose workers all train."""
    cluster = client.declare(Declaration(f"k80x{WORKERS}", name="bench", max_workers=64))
    cluster.wait(120)
    cluster.weather(boot=BOOT)
    run = start(cluster, pace_seconds=PACE)
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
    parser.add_argument("--quick", action="store_true", help="three revocations instead of ten")
    minutes = 3 if parser.parse_args().quick else 10
    share, boot = elastic(minutes)
    say(f"{minutes} revocations, ours: share of the ideal", share, "", "> 0.95")
    peer = coordinator(minutes, boot)
    say("ParameterServerStrategy, workers started again", peer, "")
    other = restarting(minutes)
    say("the job restarted from a checkpoint at every change", other, "")
    say("ours over ParameterServerStrategy", share / peer, "")
    script = plain(minutes, boot)
    say("a plain script restarted at every change", script, "")
    say("ours over restarting ours", share / other, "")
    say("ours over restarting a plain script", share / script, "", ">= 1.5")


if __name__ == "__main__":
    main()
