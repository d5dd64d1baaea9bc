"""Training with agent, metrics and journal on, against a bare between-graph TensorFlow script and against
ParameterServerStrategy of TensorFlow 2.

First Tensor2Tensor's digits with one worker and one parameter server: ours through the emulator, the bare script as two
plain processes with the classic `tf.train.Server` and no code of ours but the graph's. It runs twice: as one terminal
would start it (one session, loopback, TensorFlow's own number of threads), and placed as ours is (each process in a
session and a network of its own, joined by a bridge, with the emulator's number of threads). Then three networks that
all three define alike (_network.py), with one to three workers; the strategy's processes share one loopback.

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

import _bare
import _network
from _common import CELL, all_in, own_home, say, train, vm_home
from _coordinator import Coordinator
from _guard import elsewhere

from transient_emulator.vms.machine import OPERATION_THREADS
from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import metrics

TURN = 1.0
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
        line = line.replace("{script}", f"{sys.executable} {_bare.__file__} {folder} {','.join(places)}")
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


def digits(rounds: int) -> dict[str, float]:
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
    cell = f"{Path(_network.__file__).read_text(encoding='utf-8')}\nNETWORK = {network!r}\n"
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


def main() -> None:
    """Print steps per second and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="twenty turns each instead of ninety, one worker")
    parser.add_argument("--network", choices=_network.SIZES, action="append", help="only these, without the digits")
    parser.add_argument("--workers", type=int, nargs="+", help="of these networks; one to three by default")
    arguments = parser.parse_args()
    if not arguments.network:
        rates = digits(20 if arguments.quick else 90)
        for name, rate in rates.items():
            say(name, rate, "steps/s")
        plain, placed, whole = rates.values()
        say("ratio to the bare script", whole / plain, "", ">= 0.98")
        say("ratio to the one placed as ours", whole / placed, "", ">= 0.98")
    for network in arguments.network or _network.SIZES:
        for workers in arguments.workers or ((1,) if arguments.quick else (1, 2, 3)):
            rates = alike(network, workers, 20 if arguments.quick else 40)
            for name, rate in rates.items():
                say(f"{network}, {workers} workers: {name}", rate, "steps/s")
            peer, placed, whole = rates.values()
            say("  ratio to ParameterServerStrategy", whole / peer, "", ">= 1")
            # Of the smallest steps, most is what a queue of examples and the step's number cost.
            say("  ratio to the bare script", whole / placed, "", ">= 0.98" if network == "resnet32" else "")


if __name__ == "__main__":
    main()
