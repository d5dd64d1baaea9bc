"""What a study makes of its workers' time, what sharing a preparation saves, and what revocations cost a search.

`time`: the same trials (a small convolutional network on the digits, each with a learning rate of its own) four times:
as a study; as runs that are declared together and wait for each other, on a cluster of their own, so that they do not
find what was checked and imported for the study; and as scripts that Optuna and joblib start, as many simultaneously as
the cluster has workers: bare between-graph TensorFlow of two processes, a parameter server and a worker, and plain
Keras in one process (_peers.py). Scripts have no checkpoints and no supervision, plain ones no parameter server: the
difference shows what that costs. Printed of the study is which share of its workers' time, from the first trial's lease
to the last one's end, passed between the first and the last step of a trial.

`share`: K trials of a study on one VM (`--per-vm K`), with one preparation for all (`--share-input`) and without.
Seconds in which as many trials see as many examples: one after the other, K simultaneously, and K simultaneously on the
same mini-batches. From the first step of the first to the last step of the last, with what lies between two trials and
the time in which each fills the buffer that it shuffles in: so it may be more than K times as long. Of decoding that
takes the VM's cores (it sorts numbers), as photographs do, and of decoding that takes next to none, where sharing has
little to bring. Published for CoorDL: up to 5 times on eight GPUs. Steps take as long as an emulated GPU says, which
trials do not share here; the cores they do.

`regret`: the best point found with 60 revocations an hour and with none, for as much worker time. No cluster is
declared and no model is trained: the controller's decisions, the journal's fold and Optuna's sampler are the real ones,
and a trial's value is looked up in a table: 576 points of three parameters, smooth, with a ridge where two of them
depend on each other, and a roughness of each point's own. A trial takes `TRIAL` seconds of a worker. A revocation takes
one of the workers: what its trial made since the last checkpoint is made again, by whichever place is free next, and
the place is empty until the next VM has booted and joined. The regret is the distance from the table's best value, as a
share of the distance between its best value and its median. Both courses of a seed see the same table and are cut off
after the same number of worker-seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from _common import CELL, KERAS_CELL, own_home, parser_of, run_measures, say, say_all
from _peers import PEERS

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import ClusterState, Event, RunState, events, fold, metrics
from transient_magics.protocol.run import RunSpec, Value
from transient_magics.protocol.space import parse_space
from transient_magics.protocol.vm_events import TrainEvaluated, TrainFinished, TrainProgress, TrainStarted
from transient_magics.works.studies.decisions import DeclareRun, EndStudy, FinishTrial, StartTrial, StopRun, decide
from transient_magics.works.studies.declare import declare_study
from transient_magics.works.studies.events import StudyAsked, StudyTold
from transient_magics.works.studies.sampling import OptunaSampler, point
from transient_magics.works.studies.spec import StudySpec
from transient_magics.works.studies.state import StudyState

BATCH, PACE = 32, 0.05
SLOW, QUICK = 100_000, 10
"""Numbers that are sorted for an example: some 6 ms of a core, and none to speak of."""
ALONE, TOGETHER, SHARED = "one after the other", "--per-vm", "--per-vm --share-input"
PROBLEM = (
    CELL
    + """

@registry.register_problem
class SortedDigits(ImageDigits):
    def preprocess_example(self, example, mode, hparams):
        import tensorflow as tf
        least = tf.sort(tf.random.uniform([NUMBERS]))[0]
        example["inputs"] += tf.cast(0.0 * least, example["inputs"].dtype)
        return super().preprocess_example(example, mode, hparams)
"""
)
WORKERS = 4
TRIAL, SAVED_EVERY, ANEW = 120, 20, 60
"""Seconds: of a trial's steps, between two checkpoints, and from a revocation to the first step in its place."""
TURN = 10
"""Seconds of the clock between two looks."""
SPACE = "lr=0.0001:1:log units=16,32,48,64,96,128 depth=1:4:int"
RATES = 24


def rates(trials: int) -> list[float]:
    """A learning rate for each trial, evenly in their logarithm from 0.005 to 0.5."""
    return [round(0.005 * 100 ** (number / max(trials - 1, 1)), 5) for number in range(trials)]


def in_steps(run: Run) -> float:
    """Seconds from the run's first step to its last."""
    rows = metrics.read(run.directory / "metrics.jsonl")
    first = rows[0]["time"] / 1e9 - rows[0]["compute_seconds"] - rows[0]["wait_seconds"]
    return rows[-1]["time"] / 1e9 - first


def as_study(cluster: Cluster, trials: int, steps: int, workers: int) -> float:
    """Its seconds, from the declaration to the last trial's end; prints what its workers did meanwhile."""
    began = time.monotonic()
    study = declare_study(
        source=KERAS_CELL, cluster=cluster, train_steps=steps, over=f"lr={','.join(map(str, rates(trials)))}",
        sampler="grid", objective="max accuracy", name="swept",
    )  # fmt: skip
    best = study.wait(3600)
    took = time.monotonic() - began
    known = study.state.trials
    leased = next(each.at for each in cluster.events("cluster.leased") if isinstance(each, events.ClusterLeased))
    ended = max(trial.ended_at for trial in known.values())
    stepping = sum(in_steps(run) for number in known for run in study.trial(number).runs)
    say("study: share of its workers' time within trials' steps", stepping / workers / (ended - leased), "", ">= 0.85")
    say("study: seconds of steps of a trial, mean", stepping / trials, "s")
    say("study: best accuracy", best.value if best and best.value is not None else 0.0, "")
    return took


def as_queue(cluster: Cluster, trials: int, steps: int) -> float:
    """Seconds of as many runs, declared at once."""
    began = time.monotonic()
    runs = [
        client.train(
            source=KERAS_CELL, cluster=cluster, train_steps=steps, workers=1, params={"lr": rate}, name=f"run-{at}"
        )
        for at, rate in enumerate(rates(trials))
    ]
    for run in runs:
        run.wait(3600)
    return time.monotonic() - began


def bare(folder: Path, steps: int, number: int, rate: float) -> list[str]:
    """The command of a trial of two processes, in a network of their own: TensorFlow's servers listen to everybody."""
    mine = folder / f"bare-{number}"
    mine.mkdir()
    (mine / "cell.py").write_text(KERAS_CELL, encoding="utf-8")
    (mine / "run.json").write_text(json.dumps(RunSpec("bare", steps, params={"lr": rate}).to_dict()), encoding="utf-8")
    line = f"ip link set lo up; exec {sys.executable} {PEERS} bare-trial {mine} 2222"
    return ["unshare", "-Urn", "sh", "-c", line]


def plain(folder: Path, steps: int, number: int, rate: float) -> list[str]:
    """The command of a trial of one process."""
    cell = folder / f"plain-{number}.py"
    cell.write_text(KERAS_CELL, encoding="utf-8")
    return [sys.executable, str(PEERS), "keras-trial", str(cell), str(steps), str(rate)]


def as_scripts(command: Callable[[int, float], list[str]], trials: int, at_once: int) -> float:
    """Seconds of scripts that Optuna asks for and joblib starts; each prints its accuracy last."""
    import joblib
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for rate in rates(trials):
        study.enqueue_trial({"lr": rate})
    began = time.monotonic()

    def trial(_: int) -> None:
        asked = study.ask()
        rate = asked.suggest_float("lr", 0.0, 1.0)
        done = subprocess.run(command(asked.number, rate), capture_output=True, text=True, check=True, encoding="utf-8")
        study.tell(asked, float(done.stdout.split()[-1]))

    joblib.Parallel(at_once, prefer="threads")(joblib.delayed(trial)(number) for number in range(trials))
    took = time.monotonic() - began
    say("scripts: best accuracy", study.best_value, "")
    return took


def worker_time(options: argparse.Namespace) -> None:
    """Print the shares, the seconds and their ratios."""
    trials, steps, workers = (6, 400, 2) if options.quick else (40, 1000, 4)
    trials, steps = options.trials or trials, options.steps or steps
    with own_home() as home:
        took = dict[str, float]()
        for name, work in (("study", partial(as_study, workers=workers)), ("runs in a queue", as_queue)):
            cluster = client.declare(Declaration(f"cpux{workers}", name="bench"))
            cluster.wait()
            took[name] = work(cluster, trials, steps)
            cluster.delete(120)
        study = took["study"]
        for name, command in (("bare scripts of two processes", bare), ("plain scripts", plain)):
            took[name] = as_scripts(partial(command, home, steps), trials, workers)
        for name, seconds in took.items():
            say(f"{name}: {trials} trials of {steps:,} steps", seconds, "s")
        for name, goal in (
            ("runs in a queue", "< 1"),
            ("bare scripts of two processes", "<= 1.15"),
            ("plain scripts", ""),
        ):
            say(f"study over {name}", study / took[name], "", goal)


def seconds_of(cluster: Cluster, name: str, how: str, trials: int, steps: int, numbers: int) -> float:
    """From the first step to the last, of a study of so many trials."""
    rates = ",".join(str(round(0.05 + 0.01 * number, 2)) for number in range(trials))
    study = declare_study(
        source=PROBLEM.replace("NUMBERS", str(numbers)), cluster=cluster, name=name, train_steps=steps,
        over=f"learning_rate={rates}", objective="max "
                                                 "accuracy", per_vm=1 if how == ALONE else trials,
        share_input=how == SHARED, model="resnet", hparams_set="resnet_digits", problem="sorted_digits",
        hparams=f"batch_size={BATCH}", pace_seconds=PACE, prep_threads=2, check=False,
        eval_batches=1,
    )  # fmt: skip
    study.wait(1800)
    runs = [run for number in study.state.trials for run in study.trial(number).runs]
    made = [metrics.read(run.directory / "metrics.jsonl") for run in runs]
    if any(run.state.step < steps for run in runs):
        raise SystemExit(f"{how}: not all trials have their steps")
    first = min(rows[0]["time"] / 1e9 - rows[0]["compute_seconds"] - rows[0]["wait_seconds"] for rows in made)
    return max(rows[-1]["time"] for rows in made) / 1e9 - first


def compared(cluster: Cluster, counts: Sequence[int], steps: int, repeats: int) -> None:
    """Print each way, interleaved, and what sharing brings."""
    number = 0
    for numbers, decoding in ((SLOW, "slow decoding"), (QUICK, "quick decoding")):
        for trials in counts if numbers == SLOW else counts[-1:]:
            took: dict[str, list[float]] = {ALONE: [], TOGETHER: [], SHARED: []}
            for _ in range(repeats):
                for how, found in took.items():
                    number += 1
                    found.append(seconds_of(cluster, f"share-{number}", how, trials, steps, numbers))
            for how, found in took.items():
                say_all(f"{decoding}, {trials} trials, {how}", found, "s")
            for how in (ALONE, TOGETHER):
                ratios = [other / own for other, own in zip(took[how], took[SHARED], strict=True)]
                goal = "> 1" if numbers == SLOW else ""
                say_all(f"{decoding}, {trials} trials: {how} over shared", ratios, "x", goal)


def share(options: argparse.Namespace) -> None:
    """Print the seconds of each way, and what sharing brings."""
    with own_home():
        cluster = client.declare(Declaration("k80", name="bench"))
        cluster.wait()
        began = time.monotonic()
        compared(cluster, (2, 4), 100 if options.quick else 400, 1 if options.quick else 3)
        print(f"{time.monotonic() - began:.0f} s in all")
        cluster.delete(120)


class Table:
    """Values by point, drawn by `seed`."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        best = chance.uniform(-3.0, -1.0), chance.uniform(0.3, 0.7), chance.uniform(1.5, 3.5)
        self._values = {
            (rate, units, depth): self._smooth(rate, units, depth, best) + chance.gauss(0.0, 0.01)
            for rate in range(RATES) for units in (16, 32, 48, 64, 96, 128) for depth in range(1, 5)
        }  # fmt: skip
        self.best, self.median = max(self._values.values()), statistics.median(self._values.values())

    def _smooth(self, rate: int, units: int, depth: int, best: tuple[float, float, float]) -> float:
        size = units / 128
        ridge = -4 + 4 * rate / (RATES - 1) - best[0] + (size - best[1])  # wider layers want a smaller rate
        return 0.97 - 0.2 * math.tanh(ridge**2) - 0.1 * (size - best[1]) ** 2 - 0.02 * (depth - best[2]) ** 2

    def value(self, params: Mapping[str, Value]) -> float:
        """Of the point that is nearest in the table."""
        place = round((math.log10(float(params["lr"])) + 4) / 4 * (RATES - 1))
        return self._values[place, int(params["units"]), int(params["depth"])]

    def regret(self, found: float) -> float:
        """A share of the distance from the best value to the median."""
        return (self.best - found) / (self.best - self.median)


class Course:
    """A study in `sampler`'s way, on workers of which so many are revoked an hour."""

    def __init__(self, table: Table, seed: int, sampler: Literal["random", "tpe"], revoked_per_hour: float) -> None:
        run = RunSpec("s", TRIAL)
        self._spec = StudySpec(
            "s", run, "max accuracy", space=parse_space(SPACE), trials=1000, sampler=sampler, seed=seed
        )
        self._table, self._chance, self._rate = table, random.Random(seed), revoked_per_hour / 3600
        self._state, self._time, self._number = ClusterState(phase="ready"), 0, 0
        self._empty_until = [0] * WORKERS
        self._made: dict[str, int] = {}
        self.revoked = self.again = 0
        self.worked = 0
        """Seconds of workers that were there."""
        self._record(events.WorkDeclared(of="study", work="s", spec=self._spec.to_dict()))
        self._twin = OptunaSampler(self._spec)

    def until(self, worker_seconds: int) -> float:
        """The best value that was found by then."""
        while self.worked < worker_seconds:
            if not self._look():
                self._turn()
        values = [trial.value for trial in self._study.trials.values() if trial.value is not None]
        return max(values)

    @property
    def trials(self) -> int:
        """How many have ended."""
        return sum(trial.value is not None for trial in self._study.trials.values())

    @property
    def _study(self) -> StudyState:
        return self._state.of(StudyState)["s"]

    def _record(self, event: Event) -> None:
        self._number += 1
        self._state = fold(self._state, replace(event, seq=self._number, time=(1000 + self._time) * 10**9))

    def _look(self) -> bool:
        self._twin.catch_up(self._study, self._state.of(RunState))
        there = {place: "k80" for place, until in enumerate(self._empty_until) if until <= self._time}
        decisions = decide(self._study, self._state, there, 1000 + self._time)
        for decision in decisions:
            match decision:
                case FinishTrial(trial, state, value, reason):
                    self._record(StudyTold(study="s", trial=trial, state=state, value=value, reason=reason))
                case EndStudy(reason):
                    self._record(events.WorkStopping(work="s", of="study", reason=reason))
                case StartTrial(trial):
                    names = self._spec.run_names(trial)
                    self._record(StudyAsked(study="s", trial=trial, params=self._point(trial), runs=names))
                case DeclareRun(trial, repeat):
                    spec = self._spec.run_of(trial, repeat, self._study.trials[trial].params)
                    self._record(events.WorkDeclared(of="run", work=spec.name, spec=spec.without_token()))
                case StopRun():
                    raise AssertionError("nothing is pruned here")
        return bool(decisions)

    def _point(self, trial: int) -> Mapping[str, Value]:
        known = point(self._spec, trial)
        return self._twin.propose() if known is None else known

    def _turn(self) -> None:
        self._time += TURN
        there = [place for place, until in enumerate(self._empty_until) if until <= self._time]
        turns = dict(zip((run.name for run in self._state.turns), there, strict=False))
        self._record(events.ClusterLeased(ports=turns, workers={str(place): name for name, place in turns.items()}))
        self.worked += TURN * len(there)
        for name, place in turns.items():
            if not self._made.get(name):
                self._record(TrainStarted(run=name, step=0))
            if self._chance.random() < self._rate / WORKERS * TURN:
                self._revoke(name, place)
                continue
            self._made[name] = made = self._made.get(name, 0) + TURN
            if made >= TRIAL:
                value = self._table.value(self._study.trials[self._state.of(RunState)[name].spec.trial].params)
                self._record(TrainProgress(run=name, step=TRIAL, loss=1.0))
                self._record(TrainEvaluated(run=name, step=TRIAL, metrics={"accuracy": value}))
                self._record(TrainFinished(run=name, step=TRIAL))

    def _revoke(self, name: str, place: int) -> None:
        kept = self._made.get(name, 0) // SAVED_EVERY * SAVED_EVERY
        self.revoked += 1
        self.again += self._made.get(name, 0) - kept + TURN
        self._made[name] = kept
        self._empty_until[place] = self._time + ANEW


def regret(options: argparse.Namespace) -> None:
    """Print both regrets and their ratio."""
    seeds, seconds = range(5 if options.quick else options.seeds), 40 * TRIAL
    samplers: tuple[Literal["random", "tpe"], ...] = ("random", "tpe")
    for sampler in samplers:
        quiet, revoked, lost = list[float](), list[float](), list[float]()
        for seed in seeds:
            table = Table(seed)
            for rate, regrets in ((0.0, quiet), (60.0, revoked)):
                course = Course(table, seed, sampler, rate)
                regrets.append(table.regret(course.until(seconds)))
                if rate:
                    lost.append(course.again / seconds)
        apart = [with_ - without for with_, without in zip(revoked, quiet, strict=True)]
        interval = 1.96 * statistics.stdev(apart) / math.sqrt(len(apart))
        say(f"{sampler}: regret with no revocation, mean", statistics.fmean(quiet), "", more=f"n {len(quiet)}")
        say(f"{sampler}: with 60 an hour on {WORKERS} workers", statistics.fmean(revoked), "")
        say(
            f"{sampler}: that over the regret without",
            statistics.fmean(revoked) / statistics.fmean(quiet),
            "",
            "<= 1.05",
        )
        say(f"{sampler}: difference", statistics.fmean(apart), "", more=f"± {interval:.3f}")
        say(f"{sampler}: worker time made again", statistics.fmean(lost), "")


def main() -> None:
    """Run the chosen measures."""
    measures = {"time": worker_time, "share": share, "regret": regret}
    parser = parser_of(__doc__, "6 trials of 400 steps on two workers; 100 steps a trial, once; 5 seeds", measures)
    parser.add_argument("--trials", type=int, help="of `time` (default: 40)")
    parser.add_argument("--steps", type=int, help="of each trial of `time` (default: 1,000)")
    parser.add_argument("--seeds", type=int, default=30, help="courses of each kind of `regret` (default: 30)")
    run_measures(measures, parser.parse_args())


if __name__ == "__main__":
    main()
