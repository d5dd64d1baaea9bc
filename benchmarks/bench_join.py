"""A worker's way in, from SSH that answers to its first gradient; and all-ready against ipyparallel's engines.

Beside it a plain script's way from its start to its first gradient (_plain.py), on the same model and data, with what a
user's import of a model brings and with the one module that is used. Samples of all take turns, beside the same run.

With `--data 2GB` only this: the same way in for a run with so many records over links of 1 Gbit/s, which come in
blocks, and for the same records where workers copy all before their first step. A new VM has none of them.

"Ready" is not the same on both sides: here a VM that has booted (emulated), whose SSH answers and whose light agent
waits for a role; there a full kernel that runs code at once, on a machine that is there already.
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

import _heavy as heavy
import ipyparallel
from _common import all_in, median, own_home, process, say, say_all, start, train, vm_home
from _guard import elsewhere
from _plain import IMPORTS

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.protocol.cache import Cache

PACE = 0.8
"""Seconds of a step, so that the two who train leave the cores to the one who comes."""
WHOLE = "SSH answers to the first gradient on a new VM"
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
    parser.add_argument("--quick", action="store_true", help="4 workers, one model, two samples of each")
    parser.add_argument("--data", metavar="SIZE", help="join a run with so many records: 2GB")
    given = parser.parse_args()
    quick = given.quick
    samples = 2 if quick else 5
    if given.data:
        for whole in (False, True):
            way_in_with_data(Cache.parse(given.data).bytes, 1 if quick else 3, whole=whole)
        return
    with own_home():
        for count in [4] if quick else [4, 8]:
            all_ready(count, samples)
    for names in MODELS[: 1 if quick else None]:
        way_in(names, samples)


def all_ready(count: int, samples: int) -> None:
    """Print how long that many are on their way on either side."""
    theirs: list[float] = []
    ours: list[tuple[float, float]] = []
    for _ in range(samples):
        theirs.append(engines(count))
        ours.append(cluster_ready(count))
    say_all(f"ipyparallel, {count} engines run code", theirs, "s")
    say_all(f"%transient_cluster, SSH and agents of {count} workers, a server", [whole for whole, _ in ours], "s")
    say_all("  of these, boot and SSH (emulated boot: 1.5 s)", [booting for _, booting in ours], "s")
    say(f"ratio per worker, {count}", median([whole for whole, _ in ours]) / median(theirs), "", "<= 1")


def way_in(names: tuple[str, str, str], samples: int) -> None:
    """Print the parts of a worker's start: of one that waited while the cell was checked, of one that is started again
    on its VM (the plain start), and of those on VMs that replace others, beside plain scripts."""
    with own_home():
        # It must last: the published rates may diverge here.
        cluster, run = train(2, pace=PACE, names=names, check=True, hparams="learning_rate=0.0001")
        graph = vm_home(cluster, "ps-0") / "transient" / "runs" / run.name / "graphs" / "cpu-1.graph"
        _when(graph.exists)  # for those who join from now on
        print(f"{names[1]}, a worker that waited for the check: {first_gradient(run, 'worker-0')}", flush=True)
        os.kill(process(cluster, "worker-0", "worker"), signal.SIGKILL)
        _left(cluster, "worker-0")
        all_in(cluster, 2)
        time.sleep(3)
        print(f"{names[1]}, a worker that is started again: {first_gradient(run, 'worker-0')}", flush=True)
        folder = vm_home(cluster, "ps-0") / "transient" / "runs" / run.name
        ways: list[dict[str, float]] = []
        plain: dict[str, list[float]] = {imports: [] for imports in IMPORTS}
        for number in range(samples):
            ways.append(replaced(cluster, lost=f"worker-{number + 1}", new=f"worker-{number + 2}"))
            for imports in IMPORTS:
                plain[imports].append(plain_script(folder, imports))
        for part in ways[0]:
            target = "<= 4, transformer 6" if part == WHOLE else ""
            say_all(f"{names[1]}, {part}", [way[part] for way in ways], "s", target)
        print(f"  the last: {first_gradient(run, f'worker-{samples + 1}')}", flush=True)
        for imports in IMPORTS:
            say_all(f"{names[1]}, a plain script that imports the {imports}", plain[imports], "s")
            ratio = median([way[WHOLE] for way in ways]) / median(plain[imports])
            say(f"ours over the plain script that imports the {imports}", ratio, "", "<= 0.2")
        run.stop()
        run.wait(60)


def way_in_with_data(size: int, samples: int, *, whole: bool) -> None:
    """Print how long a worker on a new VM takes where the run has `size` bytes of records."""
    how = f"{size / 1e9:g} GB over 1 Gbit/s, {'copied whole' if whole else 'in blocks'}"
    with own_home():
        cluster = client.declare(Declaration("k80x2", name="bench", max_workers=8))
        cluster.wait(120)
        cluster.weather(link="1gbit")
        model, hparams_set, problem = heavy.NAMES
        run = start(
            cluster, source=heavy.cell(size >> 20, whole=whole), pace_seconds=PACE, model=model,
            hparams_set=hparams_set, problem=problem,
        )  # fmt: skip
        cluster.follow(lambda state: bool(state.active_run and len(state.active_run.workers) == 2), 900)
        graphs = vm_home(cluster, "ps-0") / "transient" / "runs" / run.name / "graphs"
        _when(lambda: bool(list(graphs.glob("cpu*.graph"))))
        ways = [replaced(cluster, f"worker-{number}", f"worker-{number + 2}") for number in range(samples)]
        say_all(f"{how}: {WHOLE}", [way[WHOLE] for way in ways], "s", "" if whole else "<= 6")
        print(f"  the last: {first_gradient(run, f'worker-{samples + 1}')}", flush=True)
        run.stop()
        run.wait(60)


def replaced(cluster: Cluster, lost: str, new: str) -> dict[str, float]:
    """Seconds of each part of a new worker's way in, which comes for one that is revoked."""
    cluster.revoke(lost)
    home = vm_home(cluster, new)
    answers = _when(lambda: (home / "transient").exists())
    _left(cluster, lost)
    all_in(cluster, 2)
    time.sleep(3)
    said = {line["kind"]: line["time"] / 1e9 for line in reversed(_lines(home / "transient" / "agent.jsonl"))}
    ready = next(event.at for event in cluster.events("vm.ready") if getattr(event, "vm", "") == new)
    joined = next(event.at for event in cluster.events("worker.joined") if getattr(event, "worker", "") == new)
    return {
        "of the way below, to the agent's start": said["agent.started"] - answers,
        "of these, to the agent's first answer": ready - said["agent.started"],
        "of these, to its assignment": said["process.started"] - ready,
        "of these, to the first gradient": joined - said["process.started"],
        WHOLE: joined - answers,
    }


def plain_script(folder: Path, imports: str) -> float:
    """Seconds from its start to its first gradient, with the declaration and the data of a run."""
    began = time.time()
    script = [sys.executable, str(Path(__file__).with_name("_plain.py")), str(folder), imports]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    said = subprocess.run(script, check=True, stdout=subprocess.PIPE, env=elsewhere() | quiet).stdout
    return float(said.splitlines()[-1]) - began


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
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
