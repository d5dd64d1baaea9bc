"""A worker's way in, from SSH that answers to its first gradient; and all-ready against ipyparallel's engines.

Beside it a plain script's way from its start to its first gradient (_plain.py), on the same model and data.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipyparallel
from _common import all_in, own_home, process, say, train, vm_home

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run

PACE = 0.8
"""Seconds of a step, so that the two who train leave the cores to the one who comes."""
MODELS = (
    ("resnet", "resnet_cifar_32", "image_digits"),
    ("transformer", "transformer_tiny", "algorithmic_identity_binary40"),
)


def engines(count: int) -> float:
    """Seconds until `Cluster.start_and_connect` has that many engines ready."""
    began = time.perf_counter()
    cluster = ipyparallel.Cluster(n=count, log_level=40, engine_timeout=300)
    client_ = cluster.start_and_connect_sync()
    client_.wait_for_engines(count, interactive=False)
    took = time.perf_counter() - began
    cluster.stop_cluster_sync()
    return took


def cluster_ready(count: int) -> tuple[float, float]:
    """Seconds until a declared cluster of that many workers is ready, and of these from the VMs' boot on."""
    began = time.perf_counter()
    cluster = client.declare(Declaration(f"cpux{count}"))
    state = cluster.wait(120)
    took = time.perf_counter() - began
    first = min(vm.requested_at for vm in state.vms.values())
    cluster.delete()
    return took, state.ready_at - first


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 workers and one model only")
    quick = parser.parse_args().quick
    counts = [4] if quick else [4, 8]
    with own_home():
        for count in counts:
            theirs, (ours, booting) = engines(count), cluster_ready(count)
            say(f"ipyparallel, {count} engines ready", theirs, "s")
            say(f"%transient_cluster, {count} workers and a server ready", ours, "s")
            say("  of these, boot and SSH (emulated boot: 1.5 s)", booting, "s")
            say(f"ratio per worker, {count}", ours / theirs, "", "<= 1")
    for names in MODELS[: 1 if quick else None]:
        way_in(names)


def way_in(names: tuple[str, str, str]) -> None:
    """Print the parts of a worker's start: of one that waited while the cell was checked, of one that is started again
    on its VM (the plain start), and of one on a VM that replaces another."""
    with own_home():
        # It must last: the published rates may diverge here.
        cluster, run = train(2, pace=PACE, names=names, check=True, hparams="learning_rate=0.0001")
        graph = vm_home(cluster, "ps-0") / "transient" / "runs" / run.name / "graphs" / "cpu.graph"
        _when(graph.exists)  # for those who join from now on
        print(f"{names[1]}, a worker that waited for the check: {first_gradient(run, 'worker-0')}", flush=True)
        os.kill(process(cluster, "worker-0", "worker"), signal.SIGKILL)
        _left(cluster, "worker-0")
        all_in(cluster, 2)
        time.sleep(3)
        print(f"{names[1]}, a worker that is started again: {first_gradient(run, 'worker-0')}", flush=True)
        cluster.revoke("worker-1")
        new = vm_home(cluster, "worker-2")
        answers = _when(lambda: (new / "transient").exists())
        _left(cluster, "worker-1")
        all_in(cluster, 2)
        time.sleep(3)
        said = {line["kind"]: line["time"] / 1e9 for line in reversed(_lines(new / "transient" / "agent.jsonl"))}
        ready = next(event.at for event in cluster.events("vm.ready") if getattr(event, "vm", "") == "worker-2")
        joined = next(
            event.at for event in cluster.events("worker.joined") if getattr(event, "worker", "") == "worker-2"
        )
        say(f"{names[1]}, SSH answers to the agent's start on a new VM", said["agent.started"] - answers, "s")
        say("  to the agent's first answer", ready - said["agent.started"], "s")
        say("  to its assignment", said["process.started"] - ready, "s")
        say("  to the first gradient", joined - said["process.started"], "s")
        print(f"  {first_gradient(run, 'worker-2')}", flush=True)
        say(f"{names[1]}, SSH answers to the first gradient on a new VM", joined - answers, "s", "<= 4, transformer 6")
        run.stop()
        run.wait(60)
        folder = vm_home(cluster, "ps-0") / "transient" / "runs" / run.name
        plain = plain_script(folder)
        say(f"{names[1]}, a plain script to its first gradient", plain, "s")
        say("ours over the plain script", (joined - answers) / plain, "", "<= 0.2")


def plain_script(folder: Path) -> float:
    """Seconds from its start to its first gradient, with the declaration and the data of a run."""
    began = time.time()
    script = [sys.executable, str(Path(__file__).with_name("_plain.py")), str(folder)]
    return float(subprocess.run(script, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]) - began


def first_gradient(run: Run, worker: str) -> str:
    """What a worker wrote about its last start."""
    return re.findall(r"first gradient after .*", run.logs(worker))[-1]


def _left(cluster: Cluster, worker: str) -> None:
    cluster.follow(lambda state: bool(state.active_run and worker not in state.active_run.workers), 60)


def _when(condition: Callable[[], bool]) -> float:
    while not condition():
        time.sleep(0.005)
    return time.time()


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
