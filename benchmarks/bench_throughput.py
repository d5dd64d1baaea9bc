"""Training with agent, metrics and journal on, against a bare between-graph TensorFlow script with the same model, and
against TensorFlow 2's ParameterServerStrategy with small fully connected ones.

All train the digits with one worker and one parameter server on this machine: ours through the emulator, the bare
script as two plain processes with the classic `tf.train.Server` and no code of ours but the graph's. It runs twice:
as one terminal would start it (one session, loopback, TensorFlow's own number of threads), and placed as ours is
(each process in a session and a network of its own, joined by a bridge, with the emulator's number of threads).

A shared machine drifts by more than what is looked for. So all are started first, and then take turns of a second in
which the others are stopped (SIGSTOP): all see the same weather.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import CELL, all_in, own_home, say, start, train
from _coordinator import BATCH, Coordinator

from transient_magics import client
from transient_magics.client import Declaration, Run
from transient_magics.emulator.machine import OPERATION_THREADS
from transient_magics.journal import metrics

TURN = 1.0
_WARM = 100
_TOGETHER = "ip link set lo up; {script} ps & {script} worker"
_APART = """
ip link set lo up; ip link add br0 type bridge; ip link set br0 up
machine() {
  unshare -n sleep 86400 & machine=$!; sleep 0.5
  ip link add v$1 type veth peer name e$1; ip link set e$1 netns $machine; ip link set v$1 master br0 up
  nsenter -t $machine -n sh -c "ip link set lo up; ip addr add 10.1.0.$1/24 dev e$1; ip link set e$1 up"
}
machine 1; nsenter -t $machine -n setsid -w {script} ps &
machine 2; nsenter -t $machine -n setsid -w {script} worker
"""


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
    """The bare script: both roles placed by a shell `plan`."""

    def __init__(self, folder: Path, name: str, plan: str, addresses: str, threads: str = "") -> None:
        super().__init__(name, f"SIDE={folder}")
        folder.mkdir()
        self._counter = folder / "count"
        self._counter.write_bytes(bytes(8))
        (folder / "cell.py").write_text(CELL)
        declared = {
            "name": "run-1", "model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits",
            "train_steps": 10**7, "token": "",
        }  # fmt: skip
        (folder / "run.json").write_text(json.dumps(declared))
        script = f"{sys.executable} {__file__} --bare {folder} {addresses}"
        line = plan.replace("{script}", script)
        environment = {**os.environ, "SIDE": str(folder)}
        environment.pop("TRANSIENT_MAGICS_HOME", None)
        if threads:
            environment["TF_NUM_INTRAOP_THREADS"] = threads
        with (folder / "log").open("wb") as log:
            started = ["unshare", "-Urn", "sh", "-c", line]
            subprocess.Popen(started, stdout=log, stderr=log, start_new_session=True, env=environment)
        deadline = time.monotonic() + 180
        while self._count() < _WARM:
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
                raise SystemExit((folder / "log").read_text()[-2000:])
            time.sleep(0.5)
        self._before = 0

    def _count(self) -> int:
        return struct.unpack("q", self._counter.read_bytes())[0]

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


def compare(rounds: int) -> dict[str, float]:
    """Start all, let them take turns, end them. Steps per second by name."""
    sides: list[Side] = []
    with tempfile.TemporaryDirectory() as place, own_home() as home:
        try:
            sides.append(Bare(Path(place) / "plain", "bare between-graph script", _TOGETHER, "127.0.0.1 127.0.0.1"))
            sides[-1].signal(signal.SIGSTOP)
            sides.append(
                Bare(Path(place) / "alike", "bare, placed as ours", _APART, "10.1.0.1 10.1.0.2", str(OPERATION_THREADS))
            )
            sides[-1].signal(signal.SIGSTOP)
            _, run = train(1)
            sides.append(Ours(home, run))
            time.sleep(5)  # of training, before it counts
            sides[-1].signal(signal.SIGSTOP)
            for _ in range(rounds):
                for side in sides:
                    side.turn()
            return {side.name: side.rate for side in sides}
        finally:
            for side in sides:
                side.signal(signal.SIGCONT if isinstance(side, Ours) else signal.SIGKILL)


def beside_coordinator(hidden: int, layers: int, workers: int, rounds: int) -> float:
    """Steps per second of ours over the coordinator's, with that network of that many workers."""
    with tempfile.TemporaryDirectory() as place, own_home() as home:
        peer = Coordinator(Path(place) / "peer", workers, hidden, layers, threads=OPERATION_THREADS)
        peer.start()
        sides: list[Side] = [Peer(peer)]
        try:
            sides[0].signal(signal.SIGSTOP)
            cluster = client.declare(Declaration(f"k80x{workers}", name="bench", max_workers=4 * workers))
            network = f"hidden_size={hidden},num_hidden_layers={layers},batch_size={BATCH},optimizer=sgd"
            run = start(cluster, model="basic_fc_relu", hparams_set="basic_fc_small", hparams=network)
            all_in(cluster, workers)
            sides.append(Ours(home, run))
            time.sleep(5)
            sides[1].signal(signal.SIGSTOP)
            for _ in range(rounds):
                for side in sides:
                    side.turn()
            theirs, ours = (side.rate for side in sides)
            say(f"{layers} layers of {hidden}, {workers} workers: ParameterServerStrategy", theirs, "steps/s")
            say("  ours", ours, "steps/s")
            return ours / theirs
        finally:
            for side in sides:
                side.signal(signal.SIGCONT)
            peer.end()


def bare_process(folder: Path, server: str, worker: str, role: str) -> None:
    """The bare script: one role of a declared cluster, for ever."""
    from transient_magics.runtime.folder import RunFolder, RunSpec
    from transient_magics.runtime.graph.training import training_graph
    from transient_magics.runtime.trainable import define, import_tensorflow

    spec = RunSpec.from_dict(json.loads((folder / "run.json").read_text()))
    tf = import_tensorflow(spec)
    addresses = {"ps": [f"{server}:2222"], "worker": [f"{worker}:2223"]}
    target = tf.train.Server(addresses, job_name=role, task_index=0)
    if role == "ps":
        target.join()
    trainable = define(RunFolder(folder), spec, str(folder / "data"))
    trainable.generate(str(folder / "data"), str(folder / "tmp"))
    with tf.Graph().as_default():
        trainable.prepare()
        with tf.device("/job:worker/task:0/cpu:0"):
            batches = trainable.training_pipeline(0).dataset.batch(trainable.batch).prefetch(4)
            iterator = tf.data.make_initializable_iterator(batches)
        with tf.device(tf.train.replica_device_setter(cluster=addresses, worker_device="/job:worker/task:0")):
            built = training_graph(trainable, dict(iterator.get_next()))
        with tf.Session(target.target) as session, (folder / "count").open("r+b", buffering=0) as counter:
            session.run([tf.global_variables_initializer(), iterator.initializer])
            for step in range(10**9):
                session.run([built.objective.loss, built.step], {built.divisor: 1.0})
                os.pwrite(counter.fileno(), struct.pack("q", step + 1), 0)


def main() -> None:
    """Print steps per second and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="twenty turns each instead of ninety")
    parser.add_argument("--bare", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        folder, server, worker, role = arguments.bare
        bare_process(Path(folder), server, worker, role)
        return
    rates = compare(20 if arguments.quick else 90)
    for name, rate in rates.items():
        say(name, rate, "steps/s")
    plain, alike, whole = rates.values()
    say("ratio to the bare script", whole / plain, "", ">= 0.97")
    say("ratio to the one placed as ours", whole / alike, "", ">= 0.97")
    for hidden, layers in ((64, 2), (1024, 5)):  # 0.01 and 4.3 million parameters
        for workers in (1,) if arguments.quick else (1, 2, 3):
            ratio = beside_coordinator(hidden, layers, workers, 15 if arguments.quick else 30)
            say("  ratio", ratio, "", ">= 1")


if __name__ == "__main__":
    main()
