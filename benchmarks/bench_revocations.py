"""Three paced workers, one of them revoked every minute: steps made, as a share of what the living could have made.

Ours goes on with the others and takes the replacement in. Its peers: TensorFlow 2's ParameterServerStrategy, whose
worker is killed and started again at the same address as soon as a replacement would have its VM; ours as a system
would use it that restarts the job from a checkpoint at every change of workers, saved just before: when a VM is gone,
and when its replacement is there (once, where that is there before); and a plain between-graph script on the same model
that is restarted as often. It builds its graph as TensorFlow would have it, and imports the one module that is used or
what the package of models brings (`_plain.py`); its checkpoints are taken to cost nothing.

A VM lives 30 s longer than its notice, unpaid, and everybody trains on in them: ours until shortly before the end, the
peers until it. The share is told twice, for everyone alike: of what VMs could have made until their ends, and until
their notices (in which the steps under notice count, but not their time). Beside it stand the steps per minute. What a
living worker could make is what it made before the first revocation, so that nobody's pace favours him.

The contenders take turns, a few revocations each time. VMs take longer to boot than the notice lasts; on Compute Engine
they take longer still. All processes share this machine's cores, where VMs would have their own: starting several at
once is slower here. The more a model takes to build, the more restarting costs: the published systems' is ResNet-32
(`--model resnet-32`).
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import _bare
from _common import CELL, all_in, own_home, revoke_one, say, start
from _coordinator import Coordinator
from _guard import elsewhere
from _plain import IMPORTS

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import ClusterState, metrics

WORKERS = 3
EVERY = 60.0
NOTICE = 30.0
BOOT = 36.0
"""Seconds until a VM that is asked for at the notice is there."""
AWAY = max(0.0, BOOT - NOTICE)
OURS = "ours, the others go on"
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
        script = [sys.executable, _bare.__file__, self._folder, places]
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
        for process in self._processes:
            process.kill()
            process.wait()


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


def main() -> None:
    """Print each contender's steps and shares, and what ours makes of theirs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="digits")
    parser.add_argument("--minutes", type=int, default=5, help="of a contender's turn, one revocation in each (5)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each contender (2)")
    parser.add_argument("--quick", action="store_true", help="one turn of two revocations each")
    given = parser.parse_args()
    minutes, rounds = (2, 1) if given.quick else (given.minutes, given.rounds)
    contenders: dict[str, Callable[[Model, int], Score]] = {
        OURS: elastic,
        "ours, restarted at every change": restarting,
    }
    if given.model == "digits":  # the strategy's own network is about as small
        contenders["ParameterServerStrategy, workers started again"] = coordinator
    contenders |= {f"a plain script that imports the {name}, restarted": partial(plain, name) for name in IMPORTS}
    scores = {name: Score() for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            scores[name] += contender(MODELS[given.model], minutes)
    print(f"{given.model}, {rounds * minutes} revocations of each contender")
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


if __name__ == "__main__":
    main()
