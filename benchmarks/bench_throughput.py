"""What a step costs: against other systems, with variables elsewhere, over a slow link, while saving, and shrunk.

`digits`: training with agent, metrics and journal on, against a bare between-graph TensorFlow script. Tensor2Tensor's
digits with one worker and one parameter server: ours through the emulator, the bare script as two plain processes with
the classic `tf.train.Server` and no code of ours but the graph's. It runs twice: as one terminal would start it (one
session, loopback, TensorFlow's own number of threads), and placed as ours is (each process in a session and a network
of its own, joined by a bridge, with the emulator's number of threads).

`networks`: three networks that all define alike (_network.py), with one to three workers: ours, the bare script, and
ParameterServerStrategy of TensorFlow 2, whose processes share one loopback.

A shared machine drifts by more than what is looked for. So all are started first, and then take turns of a second in
which the others are stopped (SIGSTOP): all see the same weather.

`one-worker`: one worker with its variables on a parameter server of another process, or on the worker itself. The same
training graph twice in one worker process, with a session each, in turns of a second; no code of ours but the graph's.
The network between them is a loopback, the fastest there is; `--megabit N` shapes it. Then two runs of one worker each,
side by side on one emulated cluster: one declared with `--workers 1`, which keeps its variables itself and sends them
every second, and one that might take more workers and so does not.

`link`: one worker trains a fully connected network whose step is all network, in fp32 and bf16: its bytes are read from
the VM's own interface, against the least that is possible (every parameter and every gradient once), with the link held
at 100 Mbit/s.

`checkpoint`: the workers' step while a checkpoint of 200 MB is written, and otherwise.

`deflate`: a worker keeps 75, 50, then 25 % of its processors: examples per second over those of the whole cluster,
beside what `run.advice` computes (`planner.deflation`, its formula D.4): synchronous steps with equal mini-batches (all
workers wait for the slower one), with dynamic ones, and asynchronous steps. The three take turns, in each turn the
parts in another order; before and after them nothing is taken, and the mean of that is what a figure is divided by.
Intervals are of 95 %, of the mean over turns. Where processors are few, workers share them with the parameter server
and the emulator: a worker that shrinks then leaves the other one more than the formulas assume.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _common import (
    CELL,
    KERAS_CELL,
    all_in,
    median,
    own_home,
    parser_of,
    process,
    rows_between,
    run_measures,
    say,
    say_all,
    say_never,
    start,
    step_rate,
    train,
    vm_home,
)
from _guard import elsewhere
from _peers import PEERS, Coordinator
from scipy import stats

from transient_emulator.vms.machine import OPERATION_THREADS
from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import metrics
from transient_magics.planner.deflation import shrunk
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.vm_events import TrainCheckpoint

TURN = 1.0
NETWORK_NAMES = ("tiny", "large", "resnet32")
"""Of _network.py, which is not imported here: it imports TensorFlow, and a task of `one-worker` prepares that."""
_WARM = 30
"""Steps of each worker before anything counts."""
DIGITS = {"model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits"}
_TOGETHER = "ip link set lo up; {script} ps 0 & {script} worker 0"
_APART = """
ip link set lo up; ip link add br0 type bridge; ip link set br0 up
machine() {
  unshare -n sleep 86400 & machine=$!; sleep 0.5
  ip link add v$1 type veth peer name e$1; ip link set e$1 netns $machine; ip link set v$1 master br0 up
  nsenter -t $machine -n sh -c "ip link set lo up; ip addr add 10.1.0.$1/24 dev e$1; ip link set e$1 up"
}
machine 1; nsenter -t $machine -n setsid -w {script} ps 0 &
"""
_ONE_MORE = """machine {place}; nsenter -t $machine -n setsid -w {{script}} worker {index} &
"""
WIDE = KERAS_CELL.replace("Conv2D(32", "Conv2D(64").replace(
    "layers.Flatten(),", "layers.Flatten(),\n    keras.layers.Dense(512, activation='relu'),"
)
NETWORKS = {"small": KERAS_CELL, "two million variables": WIDE}
PORT = 2222

LINK = 100e6
LINKED = "hidden_size=1024,num_hidden_layers=4,batch_size=32"
LIMITS = {"fp32": "<= 1.05", "bf16": "<= 0.53"}
"""Of the bytes of a step, over every parameter and every gradient once in fp32."""
PARAMETERS = (64 * 1024 + 1024) + 3 * (1024 * 1024 + 1024) + (1024 * 10 + 10)

SAVING_PACE = 0.8
SAVED = "hidden_size=2880,num_hidden_layers=3,batch_size=8,optimizer=Adam"
LEFT = (0.75, 0.5, 0.25)
KINDS = (("sync", "uniform"), ("sync", "dynamic"), ("async", "uniform"))
SHRINKS = "worker-1"
SETTLES = {"uniform": 3.0, "dynamic": 9.0}
"""Seconds until a share is felt, and until mini-batches have followed."""
WITHIN = 0.10


class Side:
    """One of those that take turns. Its processes are known by a mark in their environment."""

    def __init__(self, name: str, mark: str) -> None:
        self.name, self._mark = name, mark.encode()
        self._turns: list[tuple[float, float]] = []

    def signal(self, what: signal.Signals) -> None:
        """Stop, continue or kill all its processes."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # a process that has just ended
                if entry.name.isdigit() and self._mark in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), what)

    def turn(self) -> None:
        """Let it run for a second."""
        began = time.time()
        self.signal(signal.SIGCONT)
        time.sleep(TURN)
        self.signal(signal.SIGSTOP)
        self._turns.append((began, time.time()))

    def ran(self, since: float, until: float) -> float:
        """Seconds that it was let run between two moments."""
        return sum(max(0.0, min(end, until) - max(began, since)) for began, end in self._turns)

    @property
    def rate(self) -> float:
        """Steps per second in its turns."""
        raise NotImplementedError


class Bare(Side):
    """The bare script: all roles as plain processes, `apart` in networks of their own or together in one."""

    def __init__(self, folder: Path, name: str, cell: str, declared: dict[str, str], workers: int, apart: bool) -> None:
        super().__init__(name, f"SIDE={folder}")
        folder.mkdir()
        self._counter = folder / "count"
        self._counter.write_bytes(bytes(8 * workers))
        (folder / "cell.py").write_text(cell, encoding="utf-8")
        (folder / "run.json").write_text(
            json.dumps({"name": "run-1", "train_steps": 10**7, "token": "", **declared}), encoding="utf-8"
        )
        places = [f"10.1.0.{place}" if apart else "127.0.0.1" for place in range(1, workers + 2)]
        more = [_ONE_MORE.format(place=index + 2, index=index) for index in range(workers)]
        line = _APART + "".join(more) + "wait" if apart else _TOGETHER
        line = line.replace("{script}", f"{sys.executable} {PEERS} task {folder} {','.join(places)}")
        environment = {**elsewhere(), "SIDE": str(folder)}
        if apart:
            environment["TF_NUM_INTRAOP_THREADS"] = str(OPERATION_THREADS)
        with (folder / "log").open("wb") as log:
            started = ["unshare", "-Urn", "sh", "-c", line]
            subprocess.Popen(started, stdout=log, stderr=log, start_new_session=True, env=environment)
        deadline = time.monotonic() + 300
        while self._count() < _WARM * workers:
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
                raise SystemExit((folder / "log").read_text(encoding="utf-8")[-2000:])
            time.sleep(0.5)
        self._before = 0

    def _count(self) -> int:
        counts = self._counter.read_bytes()
        return sum(struct.unpack(f"{len(counts) // 8}q", counts))

    def turn(self) -> None:
        if not self._turns:
            self._before = self._count()
        super().turn()

    @property
    def rate(self) -> float:
        return (self._count() - self._before) / self.ran(0.0, time.time())


class Peer(Side):
    """ParameterServerStrategy with its coordinator."""

    def __init__(self, peer: Coordinator) -> None:
        super().__init__("ParameterServerStrategy", f"SIDE={peer.folder}")
        self._peer, self._before = peer, 0

    def turn(self) -> None:
        if not self._turns:
            self._before = self._peer.steps()
        super().turn()

    @property
    def rate(self) -> float:
        return (self._peer.steps() - self._before) / self.ran(0.0, time.time())


class Ours(Side):
    """The whole system: controller, emulator, agents and roles."""

    def __init__(self, home: Path, run: Run) -> None:
        super().__init__("with agent, metrics, journal", str(home))
        self._run = run

    @property
    def rate(self) -> float:
        rows = metrics.read(self._run.directory / "metrics.jsonl")
        first = next(row for row in rows if row["time"] / 1e9 > self._turns[0][0])
        last = rows[-1]
        return (last["step"] - first["step"]) / self.ran(first["time"] / 1e9, last["time"] / 1e9)


def train_digits(rounds: int) -> dict[str, float]:
    """Start all that train the digits, let them take turns, end them. Steps per second by name."""
    with tempfile.TemporaryDirectory() as place, own_home() as home, contextlib.ExitStack() as ends:
        sides: list[Side] = []
        for name, apart in (("bare between-graph script", False), ("bare, placed as ours", True)):
            sides.append(Bare(Path(place) / str(apart), name, CELL, DIGITS, 1, apart))
            ends.callback(sides[-1].signal, signal.SIGKILL)
            sides[-1].signal(signal.SIGSTOP)
        cluster, run = train(1)
        sides.append(Ours(home, run))
        graph_written(cluster)
        return turns(sides, rounds, ends)


def alike(network: str, workers: int, rounds: int) -> dict[str, float]:
    """The same for one network that all define in the same way."""
    cell = f"{Path(__file__).with_name('_network.py').read_text(encoding='utf-8')}\nNETWORK = {network!r}\n"
    with tempfile.TemporaryDirectory() as place, own_home() as home, contextlib.ExitStack() as ends:
        peer = Coordinator(Path(place) / "peer", workers, network, threads=OPERATION_THREADS)
        ends.callback(peer.end)
        peer.start()
        sides: list[Side] = [Peer(peer)]
        sides[-1].signal(signal.SIGSTOP)
        sides.append(Bare(Path(place) / "bare", "bare, placed as ours", cell, {}, workers, True))
        ends.callback(sides[-1].signal, signal.SIGKILL)
        sides[-1].signal(signal.SIGSTOP)
        cluster = client.declare(Declaration(f"k80x{workers}", name="bench", max_workers=4 * workers))
        run = client.train(source=cell, cluster=cluster, train_steps=10**7, check=False)
        all_in(cluster, workers)
        sides.append(Ours(home, run))
        graph_written(cluster)
        return turns(sides, rounds, ends)


def graph_written(cluster: Cluster) -> None:
    """Wait until the chief has written the graph for workers that join, which takes a core for seconds, once a run."""
    deadline = time.monotonic() + 300
    while not any(path.is_file() for path in vm_home(cluster, "ps-0").glob("**/graphs/*")):
        if time.monotonic() > deadline:
            raise SystemExit("the chief has not written the workers' graph")
        time.sleep(0.5)


def turns(sides: list[Side], rounds: int, ends: contextlib.ExitStack) -> dict[str, float]:
    """Let the sides, of which the last is still running, take turns. Steps per second by name."""
    ours = sides[-1]
    ends.callback(ours.signal, signal.SIGCONT)  # so that its cluster can be deleted
    time.sleep(5)  # of training, before it counts
    ours.signal(signal.SIGSTOP)
    for _ in range(rounds):
        for side in sides:
            side.turn()
    return {side.name: side.rate for side in sides}


def digits(options: argparse.Namespace) -> None:
    """Print steps per second beside a bare script, and their ratios."""
    rates = train_digits(20 if options.quick else 90)
    for name, rate in rates.items():
        say(name, rate, "steps/s")
    plain, placed, whole = rates.values()
    say("ratio to the bare script", whole / plain, "", ">= 0.98")
    say("ratio to the one placed as ours", whole / placed, "", ">= 0.98")


def networks(options: argparse.Namespace) -> None:
    """Print steps per second of each network beside the peers, and their ratios."""
    for network in options.network or NETWORK_NAMES:
        for workers in options.workers or ((1,) if options.quick else (1, 2, 3)):
            rates = alike(network, workers, 20 if options.quick else 40)
            for name, rate in rates.items():
                say(f"{network}, {workers} workers: {name}", rate, "steps/s")
            peer, placed, whole = rates.values()
            say("  ratio to ParameterServerStrategy", whole / peer, "", ">= 1")
            # Of the smallest steps, most is what a queue of examples and the step's number cost.
            say("  ratio to the bare script", whole / placed, "", ">= 0.98" if network == "resnet32" else "")


def task(folder: Path, role: str, count: int) -> None:
    """Be this task; the worker prints the steps per second of each turn, elsewhere and here."""
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.training.graph.step import training_graph
    from transient_magics.runtime.training.loading import import_tensorflow, load_model

    spec = RunFolder(folder).spec()
    tf = import_tensorflow(spec)
    addresses = {"ps": [f"127.0.0.1:{PORT}"], "worker": [f"127.0.0.1:{PORT + 1}"]}
    server = tf.train.Server(addresses, job_name=role, task_index=0)
    if role == "ps":
        server.join()
    trainable = load_model(RunFolder(folder), spec, str(folder))
    worker = "/job:worker/task:0"
    places = [tf.train.replica_device_setter(cluster=addresses, worker_device=worker), f"{worker}/cpu:0"]
    sessions: list[tuple[Any, Any, Any]] = []
    for place in places:
        with tf.Graph().as_default():
            with tf.device(f"{worker}/cpu:0"):
                pipeline = trainable.training_pipeline()
                iterator = tf.data.make_initializable_iterator(pipeline.dataset.batch(trainable.batch).prefetch(4))
            with tf.device(place):
                built = training_graph(trainable, dict(iterator.get_next()))
                start = tf.global_variables_initializer()
            if not sessions:
                print(json.dumps({"variables": sum(each.shape.num_elements() for each in tf.trainable_variables())}))
            session = tf.Session(server.target)
            session.run([iterator.initializer, start], pipeline.feeds)
            sessions.append((session, [built.objective.loss, built.step], {built.divisor: 1.0}))
    for number in range(2 * count + 2):
        session, fetches, feeds = sessions[number % 2]
        began, steps = time.monotonic(), 0
        while time.monotonic() - began < 1.0:
            session.run(fetches, feeds)
            steps += 1
        if number > 1:
            print(json.dumps({"turn": number % 2, "rate": steps / (time.monotonic() - began)}), flush=True)


def in_turns(cell: str, count: int, megabit: int) -> tuple[int, list[list[float]]]:
    """Number of variables; steps per second elsewhere, and here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cell.py").write_text(cell, encoding="utf-8")
        (folder / "run.json").write_text(
            json.dumps(RunSpec("bare", 10, params={"lr": 0.01}).to_dict()), encoding="utf-8"
        )
        shaped = f"tc qdisc add dev lo root tbf rate {megabit}mbit burst 256kb latency 200ms;" if megabit else ""
        task = f"{sys.executable} {__file__} --task {folder}"
        line = f"ip link set lo up; {shaped} {task} ps {count} & {task} worker {count}; kill $!"
        done = subprocess.run(
            ["unshare", "-Urn", "sh", "-c", line], stdout=subprocess.PIPE, text=True, check=False, encoding="utf-8"
        )
    lines = [json.loads(each) for each in done.stdout.splitlines() if each.startswith("{")]
    rates = [[each["rate"] for each in lines if each.get("turn") == turn] for turn in (0, 1)]
    return lines[0]["variables"], rates


def two_runs(count: int) -> list[tuple[float, float]]:
    """Steps per second of the two runs, in spans of five seconds."""
    with own_home():
        cluster = client.declare(client.Declaration("cpux2", name="bench"))
        cluster.wait()
        given = {"source": KERAS_CELL, "cluster": cluster, "train_steps": 10**7, "params": {"lr": 0.01}, "check": False}
        runs = [client.train(least_workers=1, most_workers=most, **given) for most in (1, 2)]
        for run in runs:
            run.reach(50, 600)
        all_in(cluster, 2)
        began, found = time.time(), []
        time.sleep(5 * count)
        for number in range(count):
            span = began + 5 * number, began + 5 * (number + 1)
            alone, shared = (step_rate(run, *span) for run in runs)
            found.append((alone, shared))
        cluster.delete(120)
        return found


def one_worker(options: argparse.Namespace) -> None:
    """Print steps per second with variables elsewhere and on the worker, and their ratio."""
    for name, cell in NETWORKS.items():
        variables, (elsewhere, here) = in_turns(cell, 10 if options.quick else 40, options.megabit)
        say(f"{name}: variables", variables, "")
        say(f"{name}: steps per second, variables on a parameter server", median(elsewhere), "/s")
        say(f"{name}: steps per second, variables on the worker", median(here), "/s")
        say_all(
            f"{name}: on the worker over on a parameter server",
            [b / a for a, b in zip(elsewhere, here, strict=True)],
            "",
        )

    rates = two_runs(6 if options.quick else 24)
    say("runs on a cluster: steps per second with --workers 1", median([alone for alone, _ in rates]), "/s")
    say("runs on a cluster: steps per second with --workers 1:2", median([shared for _, shared in rates]), "/s")
    say_all("runs on a cluster: --workers 1 over --workers 1:2", [alone / shared for alone, shared in rates], "")


def crossed(cluster: Cluster) -> int:
    """Bytes that went in and out of the worker's VM."""
    text = Path(f"/proc/{process(cluster, 'worker-0', 'worker')}/net/dev").read_text(encoding="utf-8")
    counters = [line.split(":")[1].split() for line in text.splitlines() if ":" in line and "lo:" not in line]
    return sum(int(each[0]) + int(each[8]) for each in counters)


def observe(cluster: Cluster, wire: str, seconds: float) -> tuple[float, float]:
    """Bytes per step and steps per second of a run with this wire."""
    run = start(
        cluster, model="basic_fc_relu", hparams_set="basic_fc_small", hparams=LINKED, wire=wire, checkpoint_steps=None,
        checkpoint_seconds=None,
    )  # fmt: skip
    all_in(cluster, 1)
    time.sleep(10)
    began, before = time.time(), crossed(cluster)
    time.sleep(seconds)
    ended, after = time.time(), crossed(cluster)
    steps = sum(row["steps"] for row in rows_between(run, began, ended))
    run.stop()
    run.wait(60)
    return (after - before) / steps, steps / (ended - began)


def link(options: argparse.Namespace) -> None:
    """Print bytes per step, steps per second and their ratios."""
    seconds = 30 if options.quick else 90
    least = {"fp32": 2 * 4 * PARAMETERS, "bf16": 2 * 2 * PARAMETERS}
    with own_home():
        cluster = client.declare(Declaration("k80", name="bench"))
        cluster.wait(60)
        cluster.weather(link="100mbit")
        rates = {}
        for wire, floor in least.items():
            moved, rates[wire] = observe(cluster, wire, seconds)
            say(f"{wire}: bytes per step", moved / 1e6, "MB")
            say(f"{wire}: over 2 x 4 bytes x parameters", moved / least["fp32"], "", LIMITS[wire])
            say(f"{wire}: over the least possible", moved / floor, "", "1.01 to 1.05")
            say(f"{wire}: steps at 100 Mbit/s", rates[wire], "steps/s")
            say(f"{wire}: over what the link allows", rates[wire] * floor * 8 / LINK, "", "towards 1")
        say("bf16 over fp32, steps/s", rates["bf16"] / rates["fp32"], "", "towards 2")


def checkpoint(options: argparse.Namespace) -> None:
    """Print the size of a checkpoint, the seconds that it takes, and the two step rates."""
    seconds = 60 if options.quick else 150
    with own_home():
        cluster = client.declare(Declaration("k80x2", name="bench"))
        run = start(
            cluster, model="basic_fc_relu", hparams_set="basic_fc_small", hparams=SAVED, pace_seconds=SAVING_PACE,
            checkpoint_steps=None, checkpoint_seconds=12.0,
        )  # fmt: skip
        all_in(cluster, 2)
        time.sleep(20)
        began = time.time()
        time.sleep(seconds)
        ended = time.time()
        saves = [
            event for event in cluster.events("train.checkpoint")
            if isinstance(event, TrainCheckpoint) and began < event.time / 1e9 < ended
        ]  # fmt: skip
        rows = rows_between(run, began, ended)
        saving, quiet = [], []
        for row in rows:
            until = row["time"] / 1e9
            beside = any(until - 1 < each.time / 1e9 and each.time / 1e9 - each.seconds < until for each in saves)
            (saving if beside else quiet).append(row)
        times = [sum(row["compute_seconds"] for row in part) / sum(row["steps"] for row in part)
                 for part in (saving, quiet)]  # fmt: skip
        say("checkpoint", max(each.bytes for each in saves) / 1e6, "MB")
        say("  saved in", sum(each.seconds for each in saves) / len(saves), "s")
        say(f"{len(saves)} saves: a step while one is written", times[0], "s")
        say("a step otherwise", times[1], "s")
        say("dip of the workers' rate while saving", 1 - times[1] / times[0], "", "< 0.1")


def examples_rate(run: Run, seconds: float) -> float:
    """Examples a second, of all workers, from now on."""
    began = time.time()
    time.sleep(seconds)
    return sum(row.get("samples") or 0 for row in rows_between(run, began, time.time())) / (time.time() - began)


def shrunk_turn(cluster: Cluster, kind: tuple[str, str], parts: Sequence[float], seconds: float) -> dict[float, float]:
    """By the part that is left: examples per second over those of the whole cluster."""
    mode, batching = kind
    run = start(cluster, mode=mode, batching=batching, hparams="batch_size=128")
    all_in(cluster, 2)
    time.sleep(SETTLES[batching])
    found, whole = dict[float, float](), [examples_rate(run, seconds)]
    for part in parts:
        cluster.deflate(SHRINKS, cpu=part)
        time.sleep(SETTLES[batching])
        found[part] = examples_rate(run, seconds)
    cluster.deflate(SHRINKS, restore=True)
    time.sleep(SETTLES[batching])
    whole.append(examples_rate(run, seconds))
    run.stop()
    run.wait(60)
    say(f"{mode}, {batching}: the whole cluster", statistics.mean(whole), "ex/s",
        more=f"{min(whole):.0f} to {max(whole):.0f}")  # fmt: skip
    return {part: value / statistics.mean(whole) for part, value in found.items()}


def interval(values: Sequence[float]) -> str:
    """Of the mean, 95 %."""
    if len(values) < 2:
        return "n 1"
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"n {len(values)}, ± {half:.3f}"


def deflate(options: argparse.Namespace) -> None:
    """Print what is left of the throughput beside what D.4 predicts, and whether anything was started again."""
    turns, parts, seconds = (1, (0.5,), 5.0) if options.quick else (options.turns, LEFT, 5.0)
    found: dict[tuple[tuple[str, str], float], list[float]] = defaultdict(list)
    with own_home():
        cluster = client.declare(Declaration("cpux2", name="bench"))
        cluster.wait(60)
        orders = itertools.cycle(itertools.permutations(parts))
        for _ in range(turns):
            order = next(orders)
            for kind in KINDS:
                for part, value in shrunk_turn(cluster, kind, order, seconds).items():
                    found[kind, part].append(value)
        runs = len(cluster.events("train.started"))
        left = [each for each in cluster.events("worker.left") if getattr(each, "reason", "") != "finished"]
    for (mode, batching), part in itertools.product(KINDS, parts):
        values = found[(mode, batching), part]
        predicted = 1 / shrunk(1.0, [1 - part, 0.0], mode=mode, balanced=batching == "dynamic")
        goal = f"{predicted:.3f} (D.4), within {WITHIN:.0%}"
        off = statistics.mean(values) / predicted - 1
        what = f"{mode}, {batching}: one keeps {part:.0%}, of the throughput"
        say(what, statistics.mean(values), "", goal, more=f"{off:+.1%}, {interval(values)}")
    changes = turns * len(KINDS) * (len(parts) + 1)
    say_never("runs or workers started again", runs - turns * len(KINDS) + len(left), changes)


def main() -> None:
    """Run the chosen measures."""
    measures = {
        "digits": digits, "networks": networks, "one-worker": one_worker, "link": link, "checkpoint": checkpoint,
        "deflate": deflate,
    }  # fmt: skip
    parser = parser_of(__doc__, "fewer turns, one worker, shorter observation", measures)
    parser.add_argument("--network", choices=NETWORK_NAMES, action="append", help="only these networks (default: all)")
    parser.add_argument("--workers", type=int, nargs="+", help="of these networks (default: 1 2 3)")
    parser.add_argument("--megabit", type=int, default=0, help="link of `one-worker`, in Mbit/s (default: loopback)")
    parser.add_argument("--turns", type=int, default=3, help="of each kind of run of `deflate` (default: 3, 9 minutes)")
    parser.add_argument("--task", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        folder, role, count = options.task
        task(Path(folder), role, int(count))
        return
    run_measures(measures, options)


if __name__ == "__main__":
    main()
