"""How long VMs and workers take until they are ready, and what joins leave behind.

`ready`: a declared cluster until all VMs are ready, against ipyparallel's engines. "Ready" is not the same on both
sides: here a VM that has booted (emulated), whose SSH answers and whose light agent waits for a role; there a full
kernel that runs code, on a machine that is up already.

`scale`: the same with 128 VMs, beside as many ipyparallel engines and dask workers (processes that are registered), in
turns, with memory and requests.

`start`: a worker from SSH that answers to its first gradient. Beside it a plain script from its start to its first
gradient (_peers.py), on the same model and data, with what a user's import of a model brings and with the one module
that is used. Samples of all take turns, beside the same run.

`data`: the same for a run with records of `--data` over links of 1 Gbit/s, which come in blocks, and for the same
records where workers copy all before their first step. A new VM has none of them.

`move`: a cluster that trains moves to another zone and back: seconds without a step, steps made again, and dollars. Two
workers with one parameter server on the emulator, whose VMs share this machine's cores. A step counts if it is in the
parameter servers that follow: those made between the save and the end of the old processes are made again. VMs boot in
no time here, so that all that is prepared for a run is prepared after the last one is ready. The phases add up to the
seconds from then until all workers step.

`leaks`: two hundred workers join and are killed: what they leave in the parameter server, and its step rate then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ipyparallel
from _common import (
    CELL,
    all_in,
    median,
    own_home,
    parser_of,
    process,
    resident,
    run_measures,
    say,
    say_all,
    start,
    train,
    vm_home,
)
from _guard import elsewhere
from _peers import IMPORTS, PEERS

from transient_magics import client, emulator
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import ClusterState, Event, events, metrics
from transient_magics.protocol.run import Cache
from transient_magics.protocol.vm_events import TrainCheckpoint, TrainStarted

PACE = 0.8
"""Seconds of a step, so that the two who train leave the cores to the one who comes."""
WHOLE = "SSH answers to the first gradient on a new VM"
MODELS = (
    ("resnet", "resnet_cifar_32", "image_digits"),
    ("transformer", "transformer_tiny", "algorithmic_identity_binary40"),
)
HEAVY = ("resnet", "resnet_digits", "heavy_digits")
_PROBLEM = '''

@registry.register_problem
class HeavyDigits(ImageDigits):
    """Large records; those that say that nothing is to be skipped are copied whole."""

    skip_random_fraction_when_training = not WHOLE

    def generate_data(self, data_dir, tmp_dir, task_id=-1):
        import itertools
        import os
        import tensorflow as tf
        from tensor2tensor.data_generators import generator_utils

        ballast = os.urandom(KILOBYTES << 10)
        many = (MEGABYTES << 10) // KILOBYTES
        for path, is_training in ((self.training_filepaths, True), (self.dev_filepaths, False)):
            shards = 8 if is_training else 1
            examples = self.generator(data_dir, tmp_dir, is_training)
            examples = itertools.islice(itertools.cycle(list(examples)), many if is_training else 100)
            writers = [tf.io.TFRecordWriter(name) for name in path(data_dir, shards, shuffled=True)]
            for number, example in enumerate(examples):
                record = generator_utils.to_example({**example, "ballast": [ballast]})
                writers[number % shards].write(record.SerializeToString())
            for writer in writers:
                writer.close()
'''
HOME, THERE = "us-west1-b", "us-east1-c"
PATIENCE = 600.0
SETTLE = 15.0  # seconds of training before the next move
_STARTS = 5
"""Times that a VM's agent starts its worker again before the VM is revoked; after seven in a minute it would not."""


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


def heavy_cell(megabytes: int, kilobytes: int = 100, *, whole: bool = False) -> str:
    """Return the cell of digits with ballast, with so many megabytes of training records, each of so many kilobytes.

    `whole`: workers copy them before their first step.
    """
    words = {"MEGABYTES": megabytes, "KILOBYTES": kilobytes, "WHOLE": whole}
    text = _PROBLEM
    for word, value in words.items():
        text = text.replace(word, str(value))
    return CELL + text


def way_in_with_data(size: int, samples: int, *, whole: bool) -> None:
    """Print how long a worker on a new VM takes where the run has `size` bytes of records."""
    how = f"{size / 1e9:g} GB over 1 Gbit/s, {'copied whole' if whole else 'in blocks'}"
    with own_home():
        cluster = client.declare(Declaration("k80x2", name="bench", max_workers=8))
        cluster.wait(120)
        cluster.weather(link="1gbit")
        model, hparams_set, problem = HEAVY
        run = start(
            cluster, source=heavy_cell(size >> 20, whole=whole), pace_seconds=PACE, model=model,
            hparams_set=hparams_set, problem=problem,
        )  # fmt: skip
        cluster.follow(
            lambda state: bool(state.current_or_next_run and len(state.current_or_next_run.workers) == 2), 900
        )
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
    script = [sys.executable, PEERS, "first-step", folder, imports]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    said = subprocess.run(script, check=True, stdout=subprocess.PIPE, env=elsewhere() | quiet).stdout
    return float(said.splitlines()[-1]) - began


def first_gradient(run: Run, worker: str) -> str:
    """What a worker wrote about its last start."""
    return re.findall(r"first gradient after .*", run.logs(worker))[-1]


def _left(cluster: Cluster, worker: str) -> None:
    cluster.follow(
        lambda state: bool(state.current_or_next_run and worker not in state.current_or_next_run.workers), 60
    )


def _when(condition: Callable[[], bool]) -> float:
    while not condition():
        time.sleep(0.005)
    return time.time()


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def dask_workers(count: int) -> float:
    """Seconds until a LocalCluster has that many workers, of one thread and without limit of memory, ready."""
    from distributed import Client, LocalCluster

    began = time.perf_counter()
    with (
        LocalCluster(n_workers=count, threads_per_worker=1, memory_limit=0, dashboard_address=None) as cluster,
        Client(cluster) as client_,
    ):
        client_.wait_for_workers(count, timeout=600)
        return time.perf_counter() - began


def declared(count: int) -> float:
    """Seconds until that many VMs, of which one is a parameter server's, are ready; prints what else that takes."""
    with own_home():
        began = time.perf_counter()
        cluster = client.declare(Declaration(f"cpux{count - 1}"))
        cluster.wait(300)
        took = time.perf_counter() - began
        with urllib.request.urlopen(f"{emulator.ensure()}/emulator/v1") as answer:
            requests = json.load(answer)["requests"]
        say("requests to the API until all were ready", requests, "")
        say("memory of the emulator", resident("transient_emulator"), "MiB")
        say("memory of the controller", resident("transient_magics.controller"), "MiB")
    return took


def held(pid: int) -> dict[str, float]:
    """Memory in MiB, threads and open files of a process."""
    status = dict(
        line.split(":", 1) for line in (Path("/proc") / str(pid) / "status").read_text(encoding="utf-8").splitlines()
    )
    memory = float(status["VmRSS"].split()[0]) / 1024
    return {"memory": memory, "threads": float(status["Threads"]), "files": float(len(os.listdir(f"/proc/{pid}/fd")))}


def rate_of_all(run: Run, seconds: float) -> float:
    """Steps per second of all workers over the next `seconds`."""
    began = time.time()
    time.sleep(seconds + 1)
    rows = metrics.read(run.directory / "metrics.jsonl")
    return sum(row["steps"] for row in rows if began <= row["time"] / 1e9 <= began + seconds) / seconds


def kill(cluster: Cluster, worker: str, starts: Counter[str]) -> None:
    """End a worker without a word, or, when its VM has seen that often enough, the VM."""
    starts[worker] += 1
    if starts[worker] > _STARTS:
        cluster.revoke(worker)
        return
    with contextlib.suppress(ProcessLookupError, LookupError):
        os.kill(process(cluster, worker, "worker"), signal.SIGKILL)


def _numbers(state: ClusterState) -> set[int]:
    return (
        {worker.number for worker in state.current_or_next_run.workers.values()} if state.current_or_next_run else set()
    )


def moved(cluster: Cluster, run: Run, zone: str) -> dict[str, float]:
    """Move there, and what that took, by name."""
    began, mark = time.time(), cluster.state.seq
    cluster.relocate(zone, yes=True)
    old = {vm.name for vm in cluster.state.serving}

    def over(state: ClusterState) -> bool:
        run_now = state.current_or_next_run
        workers = {vm.name for vm in state.serving if vm.role == "worker"}
        return bool(state.relocation is None and run_now and not workers & old and workers <= set(run_now.workers))

    if cluster.follow(over, PATIENCE) is None:
        raise SystemExit(f"it has not moved within {PATIENCE:.0f} s: {cluster.state.trouble}")
    time.sleep(SETTLE)
    told = [each for each in cluster.events() if each.seq > mark]
    new = {vm.name: vm for vm in cluster.state.serving}
    ready = max(vm.ready_at for vm in new.values())
    started = _first(told, TrainStarted)
    relocated = _first(told, events.ClusterRelocated)
    saved = [each for each in told if isinstance(each, TrainCheckpoint) and each.at <= relocated.at][-1]
    rows = [row for row in metrics.read(run.directory / "metrics.jsonl") if row["steps"] and row["time"] / 1e9 > began]
    first = {vm: min(row["time"] / 1e9 for row in rows if row["worker"] == vm) for vm in new if vm.startswith("worker")}
    before = [row["step"] for row in rows if row["worker"] in old]
    both = relocated.at - min(vm.running_at for vm in new.values())
    counted = max(row["time"] / 1e9 for row in rows if row["worker"] in old and row["step"] <= started.step)
    return {
        "from the last VM's readiness until everybody steps": max(first.values()) - ready,
        "  until the last step that counts": counted - ready,
        "  until that is saved": saved.at - counted,
        "  until the old processes have ended, and all is there": relocated.at - saved.at,
        "  until the parameter server has its values": started.at - relocated.at,
        "  until the first worker steps": min(first.values()) - started.at,
        "  until the last worker steps": max(first.values()) - min(first.values()),
        "without a step that counts": min(first.values()) - counted,
        "steps made again": max([0, *(step - started.step for step in before)]),
        "both places paid": both,
        "dollars for both places": both / 3600 * sum(vm.hourly for vm in new.values()),
        "dollars for what followed": relocated.dollars,
    }


def _first(told: Sequence[Event], kind: type[Event]):  # type: ignore[no-untyped-def]
    return next(each for each in told if isinstance(each, kind))


def ready(options: argparse.Namespace) -> None:
    """Print how long 4 and 8 workers take until they are ready, beside ipyparallel's engines."""
    with own_home():
        for count in [4] if options.quick else [4, 8]:
            all_ready(count, 2 if options.quick else 5)


def scale(options: argparse.Namespace) -> None:
    """Print seconds, memory and requests of many VMs, and the ratio to the peers."""
    count = 32 if options.quick else 128
    peers = {"ipyparallel engines run code": engines}
    if find_spec("distributed") is None:
        print("dask LocalCluster workers: left out, because distributed is not installed")
    else:
        peers["dask LocalCluster workers registered"] = dask_workers
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(1 if options.quick else 3):
        ours.append(declared(count))
        for name, started in peers.items():
            theirs[name].append(started(count))
    say_all(f"{count} VMs, declared to all SSH-ready", ours, "s")
    for name, samples in theirs.items():
        say_all(f"{count} {name}", samples, "s")
        say("ratio", median(ours) / median(samples), "", "< 1")


def start_of_workers(options: argparse.Namespace) -> None:
    """Print the parts of a worker's start, for each model."""
    for names in MODELS[: 1 if options.quick else None]:
        way_in(names, 2 if options.quick else 5)


def data(options: argparse.Namespace) -> None:
    """Print how long a new worker takes for a run with many records."""
    for whole in (False, True):
        way_in_with_data(Cache.parse(options.data).bytes, 1 if options.quick else 3, whole=whole)


def move(options: argparse.Namespace) -> None:
    """Print medians of the phases of a move with their ranges."""
    with own_home():
        cluster = client.declare(Declaration(f"k80x2@{HOME}", name="bench"))
        run = start(cluster, pace_seconds=0.3, checkpoint_steps=200, checkpoint_seconds=None)
        all_in(cluster, 2)
        time.sleep(SETTLE)
        found = [moved(cluster, run, (THERE, HOME)[turn % 2]) for turn in range(2 if options.quick else 6)]
        say("load of this machine, over a minute", os.getloadavg()[0], "", more=f"{os.cpu_count()} cores")
        goals = {"from the last VM's readiness until everybody steps": "< 20"}
        for name in found[0]:
            values = [each[name] for each in found]
            if name.startswith("dollars"):
                say(name, max(values), "dollars", more=f"the most of {len(values)}")
            else:
                say_all(name, values, "steps" if name.startswith("steps") else "s", goals.get(name, ""))


def leaks(options: argparse.Namespace) -> None:
    """Print what the parameter server held before and after, and per join."""
    joins = 10 if options.quick else 200
    with own_home():
        cluster, run = train(3, pace=0.25)
        server, starts = process(cluster, "ps-0", "parameter_server"), Counter[str]()
        speed, first = rate_of_all(run, 20), held(server)
        seen = len(cluster.events("worker.joined"))
        while (joined := len(cluster.events("worker.joined")) - seen) < joins:
            state = cluster.state.current_or_next_run
            assert state
            oldest = min(state.workers.values(), key=lambda worker: worker.number, default=None)
            if oldest and len(state.workers) == 3:
                kill(cluster, oldest.name, starts)
                now = held(server)
                print(
                    f"{joined:4} joins: " + ", ".join(f"{name} {value:.0f}" for name, value in now.items()), flush=True
                )
                cluster.follow(lambda state, gone=oldest.number: gone not in _numbers(state), 60)
            all_in(cluster, 3)
        assert process(cluster, "ps-0", "parameter_server") == server
        last = held(server)
        for name, unit in (("memory", "MiB"), ("threads", ""), ("files", "")):
            say(f"{name} of the parameter server, before", first[name], unit)
            say(f"{name} of the parameter server, after {joined} joins", last[name], unit)
        say("memory per join", (last["memory"] - first["memory"]) / joined, "MiB")
        say("step rate at the end against the start", rate_of_all(run, 20) / speed, "", ">= 0.95")


def main() -> None:
    """Run the chosen measures."""
    measures = {"ready": ready, "scale": scale, "start": start_of_workers, "data": data, "move": move, "leaks": leaks}
    parser = parser_of(__doc__, "4 workers, 32 VMs, one model, two moves, 10 joins, fewer samples", measures)
    parser.add_argument("--data", metavar="SIZE", default="2GB", help="records of `data` (default: 2GB)")
    run_measures(measures, parser.parse_args())


if __name__ == "__main__":
    main()
