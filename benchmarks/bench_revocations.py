"""What revocations and faults cost a run: steps, seconds, and accuracy.

`share`: three paced workers, one of them revoked every minute: steps made, as a share of what the living workers could
have made. Ours continues with the others and adds the replacement. Its peers: TensorFlow 2's ParameterServerStrategy,
whose worker is killed and started again at the same address as soon as a replacement would have its VM; ours as a
system would use it that restarts the job from a checkpoint at every change of workers, saved just before: when a VM is
gone, and when its replacement is ready (once, where that is ready before); and a plain between-graph script on the same
model that is restarted as often. It builds its graph as TensorFlow does by default, and imports the one module that is
used or what the package of models brings (`_peers.py`); its checkpoints cost nothing.

A VM lives 30 s longer than its notice, unpaid, and all contenders train in them: ours until shortly before the end, the
peers until it. The share is printed twice: of what VMs could have made until their ends, and until their notices (in
which the steps under notice count, but not their time). Beside it stand the steps per minute. What a living worker
could make is what it made before the first revocation, so that no contender gains from a fast pace. The contenders take
turns, a few revocations each time. VMs take longer to boot than the notice lasts; on Compute Engine they take longer
still. All processes share this machine's cores, where VMs would have their own: starting several simultaneously is
slower here. The more a model takes to build, the more restarting costs: the published systems' is ResNet-32 (`--model
resnet-32`).

`gap`: one of three paced workers is killed, frozen, or cut off from the network; the others' step times are compared
with those of all in the undisturbed time before. Then the parameter server is killed: seconds until every worker steps
again, and steps lost.

`accuracy`: whether revocations or a narrow wire cost accuracy: the digits with none, one and three of them, and with
bf16.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

from _common import (
    CELL,
    all_in,
    own_home,
    parser_of,
    process,
    quantile,
    revoke_one,
    rows_between,
    run_measures,
    say,
    say_all,
    start,
)
from _guard import elsewhere
from _peers import IMPORTS, PEERS, Coordinator

from transient_magics import client, emulator
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import ClusterState, metrics
from transient_magics.protocol.vm_events import TrainCheckpoint, TrainStarted

WORKERS = 3
EVERY = 60.0
NOTICE = 30.0
BOOT = 36.0
"""Seconds until a VM that is asked for at the notice is there."""
AWAY = max(0.0, BOOT - NOTICE)
OURS = "ours, the others go on"
HERE = "127.0.0.1"

HURT = "worker-1"
CHECKPOINT_STEPS = 300
LASTING = 62
"""Seconds that a parameter server runs before it is killed: one that ends again and again within a minute is started
later each time, and at last not at all.
"""

Fault = Callable[[Cluster], AbstractContextManager[None]]

ACCURACY_STEPS = 600
ACCURACY_PACE = 0.15
"""Seconds of a step, so that a run lasts while VMs boot, and does not only lose workers."""


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


@dataclass(frozen=True)
class Score:
    """What a contender made in its turns, and what its workers' VMs could have made."""

    steps: int = 0
    seconds: float = 0.0
    until_end: float = 0.0
    """Steps that all workers could have made in the seconds in which their VMs lived."""
    until_notice: float = 0.0

    def __add__(self, other: Score) -> Score:
        return Score(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def of(cls, steps: int, seconds: float, rate: float, lived: float, noticed: float) -> Score:
        """Of `lived` worker-seconds at `rate` steps per second, of which `noticed` under notice."""
        return cls(steps, seconds, rate * lived, rate * (lived - noticed))


def alive(cluster: Cluster, since: float, until: float) -> tuple[float, float]:
    """Worker-seconds between two moments, from SSH-ready to the VM's end, and of these those under notice."""
    notices = {getattr(event, "vm", ""): event.at for event in cluster.events("vm.preemption_notice")}
    lived = noticed = 0.0
    for name, vm in cluster.state.vms.items():
        if vm.role == "worker" and vm.ready_at:
            ended = min(notices.get(name, until) + NOTICE, until)  # the controller hears of it seconds later
            lived += max(0.0, ended - max(vm.ready_at, since))
            noticed += max(0.0, ended - max(notices.get(name, until), since))
    return lived, noticed


def elastic(model: Model, minutes: int) -> Score:
    """Ours."""
    with own_home():
        cluster, run = declared(model)
        rate, began, first = undisturbed(run)
        for _ in range(minutes):
            at = time.time()
            revoke_one(cluster)
            time.sleep(max(0.0, at + EVERY - time.time()))
        ended, last = time.time(), steps_of(run)
        return Score.of(last - first, ended - began, rate, *alive(cluster, began, ended))


def restarting(model: Model, minutes: int) -> Score:
    """The job is stopped with a checkpoint when a VM goes or comes, and continued with those who are left."""
    with own_home():
        cluster, run = declared(model)
        rate, began, first = undisturbed(run)
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
        return Score.of(last - first, ended - began, rate, *alive(cluster, began, ended))


def continued(model: Model, cluster: Cluster, run: Run) -> Run:
    """The run stopped with a checkpoint, and started again from there."""
    run.stop()
    run.wait(60)
    return start(cluster, pace_seconds=model.pace, resume=run.name, **model.names)


def ready(state: ClusterState) -> int:
    """How many workers' VMs could train."""
    return sum(vm.role == "worker" and vm.state == "ready" for vm in state.living)


def coordinator(model: Model, minutes: int) -> Score:
    """ParameterServerStrategy: the worker is gone at the end of its notice, and back when a VM would be."""
    with own_home() as home:
        peer = Coordinator(home / "peer", WORKERS, "tiny", pace=model.pace)
        peer.start()
        time.sleep(10)
        began, first = time.time(), peer.steps()
        time.sleep(30)
        rate = (peer.steps() - first) / (time.time() - began) / WORKERS
        began, first = time.time(), peer.steps()
        for number in range(minutes):
            time.sleep(NOTICE)
            peer.kill(f"worker-{number % WORKERS}")
            time.sleep(AWAY)
            peer.start_process(f"worker-{number % WORKERS}")
            time.sleep(EVERY - NOTICE - AWAY)
        ended = time.time()
        score = Score.of(peer.steps() - first, ended - began, rate, lived(ended - began, minutes), minutes * NOTICE)
        peer.end()
        return score


def lived(seconds: float, minutes: int) -> float:
    """Worker-seconds of a peer of which one worker is away once a minute."""
    return WORKERS * seconds - minutes * AWAY


class Script:
    """The plain script: a parameter server and workers, as processes that are all ended and started again."""

    def __init__(self, folder: Path, model: Model, imports: str) -> None:
        self._folder, self._imports, self._counter, self._before = folder, imports, folder / "count", 0
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        (folder / "cell.py").write_text(CELL, encoding="utf-8")
        declared = {"name": "run-1", "train_steps": 10**7, "token": "", "pace_seconds": model.pace, **model.names}
        (folder / "run.json").write_text(json.dumps(declared), encoding="utf-8")
        self._counter.write_bytes(bytes(8 * WORKERS))

    def start(self, workers: int) -> None:
        """End whatever runs, and start with that many workers."""
        self._before = self.steps()
        self.end()
        self._counter.write_bytes(bytes(8 * WORKERS))
        places = ",".join([HERE] * (workers + 1))
        script = [sys.executable, PEERS, "task", self._folder, places]
        roles = [("ps", 0), *(("worker", index) for index in range(workers))]
        with (self._folder / "log").open("ab") as log:
            self._processes = [
                subprocess.Popen([*script, role, str(index), self._imports], stdout=log, stderr=log, env=elsewhere())
                for role, index in roles
            ]

    def steps(self) -> int:
        """Steps of all workers so far."""
        return self._before + sum(struct.unpack(f"{WORKERS}q", self._counter.read_bytes()))

    def end(self) -> None:
        """End every process."""
        for task in self._processes:
            task.kill()
            task.wait()


def plain(imports: str, model: Model, minutes: int) -> Score:
    """The plain script, restarted when a worker is gone at the end of its notice, and when a VM would have come."""
    with own_home() as home:
        script = Script(home / "script", model, imports)
        script.start(WORKERS)
        while script.steps() < 20 * WORKERS:
            time.sleep(1)
        began, first = time.time(), script.steps()
        time.sleep(30)
        rate = (script.steps() - first) / (time.time() - began) / WORKERS
        began, first = time.time(), script.steps()
        for _ in range(minutes):
            time.sleep(NOTICE)
            if AWAY:
                script.start(WORKERS - 1)
                time.sleep(AWAY)
            script.start(WORKERS)
            time.sleep(EVERY - NOTICE - AWAY)
        ended = time.time()
        score = Score.of(script.steps() - first, ended - began, rate, lived(ended - began, minutes), minutes * NOTICE)
        script.end()
        return score


def declared(model: Model) -> tuple[Cluster, Run]:
    """A cluster whose workers all train."""
    cluster = client.declare(Declaration(f"k80x{WORKERS}", name="bench", max_workers=64))
    cluster.wait(120)
    cluster.weather(boot=f"{BOOT:.0f}s")
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


def share(options: argparse.Namespace) -> None:
    """Print each contender's steps and shares, and ours over theirs."""
    minutes, rounds = (2, 1) if options.quick else (options.minutes, options.rounds)
    contenders: dict[str, Callable[[Model, int], Score]] = {
        OURS: elastic,
        "ours, restarted at every change": restarting,
    }
    if options.model == "digits":  # the strategy's own network is about as small
        contenders["ParameterServerStrategy, workers started again"] = coordinator
    contenders |= {f"a plain script that imports the {name}, restarted": partial(plain, name) for name in IMPORTS}
    scores = {name: Score() for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            scores[name] += contender(MODELS[options.model], minutes)
    print(f"{options.model}, {rounds * minutes} revocations of each contender")
    ours = scores[OURS]
    for name, score in scores.items():
        say(name, 60 * score.steps / score.seconds, "steps/min")
        for until, could, made in (
            ("end", score.until_end, ours.until_end), ("notice", score.until_notice, ours.until_notice),
        ):  # fmt: skip
            goal = ">= 0.97" if name == OURS else ""
            say(f"  share of what VMs could make until their {until}", score.steps / could, "", goal)
            if name != OURS:
                say(
                    "  ours over this",
                    ours.steps / made / (score.steps / could),
                    "",
                    ">= 1.5" if "plain" in name else "",
                )


def step_times(run: Run, since: float, until: float, without: str = "") -> list[float]:
    """Seconds of each step. Of a second's steps the longest is known; the others count as equally long."""
    found: list[float] = []
    for row in rows_between(run, since, until):
        if row["worker"] != without:
            longest, others = row["gap_seconds"], row["steps"] - 1
            rest = row["compute_seconds"] + row["wait_seconds"] - longest
            found += [longest, *[min(longest, max(0.0, rest) / others)] * others] if others else [longest]
    return found


@contextlib.contextmanager
def killed(cluster: Cluster) -> Iterator[None]:
    """The worker's process gets kill -9, once; its agent starts another."""
    os.kill(process(cluster, HURT, "worker"), signal.SIGKILL)
    yield


@contextlib.contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    """The worker's process stands still."""
    number = process(cluster, HURT, "worker")
    os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGCONT)


def cut_off(cluster: Cluster) -> AbstractContextManager[None]:
    """The worker's VM has a black hole for a network."""
    return black_hole(cluster, HURT, "worker")


def hurt_a_worker(
    cluster: Cluster, run: Run, name: str, fault: Fault, usual: list[float], quiet: float, watch: float
) -> None:
    """Print the others' 99th percentile; `usual` are the undisturbed times up to now, and grow by `quiet` seconds."""
    began = time.time()
    time.sleep(quiet)
    usual += step_times(run, began, time.time())
    at = time.time()
    try:
        with fault(cluster):
            time.sleep(watch)
            ended = time.time()
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        print(f"one worker {name}: cannot be done on this machine ({error})", flush=True)
        return
    others = step_times(run, at, ended, without=HURT)
    before, now = quantile(usual, 0.99), quantile(others, 0.99)
    say("undisturbed: 99th percentile of the step time", before, "s")
    say(f"one worker {name}: the others' 99th percentile", now, "s")
    say(f"one worker {name}: ratio to the undisturbed", now / before, "", "<= 1.2")
    say(f"one worker {name}: the others' longest step", max(others), "s")
    all_in(cluster, WORKERS)
    gone, back = (
        next(event.at for event in cluster.events(kind) if event.at > at) for kind in ("worker.left", "worker.joined")
    )
    say(f"one worker {name}: counted as gone after", gone - at, "s")
    healed, since = (at, "its death") if fault is killed else (ended, "its recovery")
    say(f"one worker {name}: trains again, seconds from {since}", back - healed, "s")
    time.sleep(5)


@dataclass(frozen=True)
class Restart:
    """Of the parameter server: seconds from its death until it serves and until every worker steps; steps."""

    serves: float
    all_step: float
    unsaved: int
    lost: int


def kill_the_server(cluster: Cluster, run: Run) -> Restart:
    """Kill it some seconds after a checkpoint, and wait until every worker steps again."""
    time.sleep(max(0.0, cluster.events("train.started")[-1].at + LASTING - time.time()))
    seen = len(cluster.events("train.checkpoint"))
    cluster.follow(lambda _: len(cluster.events("train.checkpoint")) > seen, 60)
    time.sleep(5)
    starts, at = len(cluster.events("train.started")), time.time()
    os.kill(process(cluster, "ps-0", "parameter_server"), signal.SIGKILL)
    cluster.follow(lambda _: len(cluster.events("train.started")) > starts, 120)
    started = cluster.events("train.started")[-1]
    assert isinstance(started, TrainStarted)
    first: dict[str, float] = {}
    while len(first) < WORKERS:
        if time.time() > at + 120:
            raise SystemExit(f"of {WORKERS} workers {len(first)} step again")
        time.sleep(0.2)
        for row in rows_between(run, started.at, time.time()):
            first.setdefault(row["worker"], row["time"] / 1e9)
    made = max(row["step"] for row in rows_between(run, 0, at))
    saved = [event.step for event in cluster.events("train.checkpoint")
             if isinstance(event, TrainCheckpoint) and event.at < at][-1]  # fmt: skip
    return Restart(started.at - at, max(first.values()) - at, made - saved, made - started.step)


def kill_the_server_often(cluster: Cluster, run: Run, times: int) -> None:
    """Print how long it takes until every worker steps again, and what is lost."""
    restarts = [kill_the_server(cluster, run) for _ in range(times)]
    name = "parameter server killed:"
    say_all(f"{name} it serves again after", [each.serves for each in restarts], "s")
    say_all(f"{name} all workers step again after", [each.all_step for each in restarts], "s", "< 3")
    unsaved = max(each.unsaved for each in restarts)
    say(f"{name} steps since the last checkpoint, at most", unsaved, "", f"<= {CHECKPOINT_STEPS} + some")
    say(f"{name} steps lost, at most", max(each.lost for each in restarts), "", "the same")


@contextlib.contextmanager
def black_hole(cluster: Cluster, vm: str, role: str) -> Iterator[None]:
    """As long as it lasts, nothing passes between the others and `vm`, on which `role` runs.

    Raises OSError or CalledProcessError where this machine has no means for that.
    """
    home = int(emulator.about(emulator.running())["pid"])
    # "2: eth0@if7: <...": the number of the cable's other end; then "7: vm3@if2: <..." at the emulator's.
    (other,) = re.findall(r"eth0@if(\d+):", _ip(process(cluster, vm, role), "-o", "link", "show", "eth0"))
    (cable,) = re.findall(rf"^{other}: (\w+)@", _ip(home, "-o", "link"), re.MULTILINE)
    _ip(home, "link", "set", cable, "down")
    try:
        yield
    finally:
        _ip(home, "link", "set", cable, "up")


def _ip(inside: int, *arguments: str) -> str:
    """What `ip` says in the network namespace of a process."""
    enter = ["nsenter", "--preserve-credentials", "--user", "--net", "-t", str(inside), "--"]
    return subprocess.run(
        [*enter, "ip", *arguments], check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout


def gap(options: argparse.Namespace) -> None:
    """Print seconds and ratios of faults of a worker and of the parameter server."""
    quiet, watch, kills = (12, 12, 3) if options.quick else (40, 20, 8)
    with own_home():
        cluster = client.declare(Declaration(f"k80x{WORKERS}", name="bench", max_workers=4 * WORKERS))
        run = start(cluster, pace_seconds=0.15, checkpoint_steps=CHECKPOINT_STEPS, checkpoint_seconds=None)
        all_in(cluster, WORKERS)
        time.sleep(15)
        usual: list[float] = []
        for name, fault in (("killed", killed), ("frozen", frozen), ("cut off", cut_off)):
            hurt_a_worker(cluster, run, name, fault, usual, quiet, watch)
        kill_the_server_often(cluster, run, kills)


def accuracy_of(cluster: Cluster, revocations: int, wire: str) -> float:
    """One run's accuracy on the held-out digits; workers are revoked at equal distances."""
    run = start(cluster, steps=ACCURACY_STEPS, pace_seconds=ACCURACY_PACE, wire=wire)
    for number in range(revocations):
        run.reach(ACCURACY_STEPS * (number + 1) // (revocations + 1), 180)
        revoke_one(cluster)
    return run.wait(300).metrics["accuracy"]


def whole(cluster: Cluster) -> None:
    """Wait until every declared VM is ready."""
    cluster.follow(lambda state: sum(vm.state == "ready" for vm in state.living) > WORKERS, 120)


def accuracy(options: argparse.Namespace) -> None:
    """Print mean and spread for each kind of run, and how far it is from the plain one."""
    times = 2 if options.quick else 5
    with own_home():
        cluster = client.declare(Declaration(f"k80x{WORKERS}", name="bench", max_workers=64))
        found: dict[tuple[int, str], list[float]] = {(0, "fp32"): [], (1, "fp32"): [], (3, "fp32"): [], (0, "bf16"): []}
        for _ in range(times):
            for (revocations, wire), values in found.items():
                whole(cluster)
                values.append(accuracy_of(cluster, revocations, wire))
                say(f"a run with {revocations} revocations, {wire}", values[-1], "")
    plain = found[0, "fp32"]
    for (revocations, wire), values in found.items():
        say(f"accuracy with {revocations} revocations, {wire}, mean of {times}", statistics.mean(values), "")
        say("  standard deviation between runs", statistics.stdev(values), "")
        if values is not plain:
            error = ((statistics.variance(values) + statistics.variance(plain)) / times) ** 0.5
            apart = statistics.mean(values) - statistics.mean(plain)
            say("  difference to the plain runs, in its standard errors", apart / error, "", "> -2")


def main() -> None:
    """Run the chosen measures."""
    measures = {"share": share, "gap": gap, "accuracy": accuracy}
    parser = parser_of(
        __doc__, "one turn of two revocations each; shorter observation; two runs of each kind", measures
    )
    parser.add_argument("--model", choices=MODELS, default="digits", help="what `share` trains (default: digits)")
    parser.add_argument("--minutes", type=int, default=5, help="of a contender's turn, a revocation each (default: 5)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each contender (default: 2)")
    options = parser.parse_args()
    run_measures(measures, options)


if __name__ == "__main__":
    main()
