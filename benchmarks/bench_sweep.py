"""What a study makes of its workers' time, and how long it takes.

The same trials (a small convolutional network on the digits, each with a learning rate of its own) four times: as a
study; as runs that are declared at once and wait for each other, on a cluster of their own, so that they do not find
what was checked and imported for the study; and as scripts that Optuna and joblib start, as many at a time as the
cluster has workers: bare between-graph TensorFlow of two processes, a parameter server and a worker, and plain Keras in
one process. Scripts have no checkpoints and nobody who watches them, plain ones no parameter server: what that costs is
seen here.

Of the study it is told which share of its workers' time, from the first trial's lease to the last one's end, went by
between the first and the last step of a trial.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import _between
import _swept
from _common import own_home, say

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.client.studying import declare_study
from transient_magics.journal import events, metrics
from transient_magics.protocol.run import RunSpec

CELL = """
import keras
from sklearn.datasets import load_digits

model = keras.Sequential([
    keras.layers.Reshape((8, 8, 1)),
    keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
    keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
    keras.layers.Flatten(),
    keras.layers.Dense(10, "softmax"),
])
model.compile(keras.optimizers.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])

def input_fn(mode):
    images, digits = load_digits(return_X_y=True)
    part = slice(360, None) if mode == "train" else slice(360)
    return images[part].astype("float32") / 16, digits[part]
"""


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
        source=CELL, cluster=cluster, train_steps=steps, over=f"lr={','.join(map(str, rates(trials)))}",
        sampler="grid", objective="max accuracy", name="swept",
    )  # fmt: skip
    best = study.wait(3600)
    took = time.monotonic() - began
    known = study.state.trials
    leased = next(each.at for each in cluster.events("cluster.leased") if isinstance(each, events.ClusterLeased))
    ended = max(trial.told_at for trial in known.values())
    stepping = sum(in_steps(run) for number in known for run in study.trial(number).runs)
    say("study: share of its workers' time within trials' steps", stepping / workers / (ended - leased), "", ">= 0.85")
    say("study: seconds of steps of a trial, mean", stepping / trials, "s")
    say("study: best accuracy", best.value if best and best.value is not None else 0.0, "")
    return took


def as_queue(cluster: Cluster, trials: int, steps: int) -> float:
    """Seconds of as many runs, declared at once."""
    began = time.monotonic()
    runs = [
        client.train(source=CELL, cluster=cluster, train_steps=steps, workers=1, params={"lr": rate}, name=f"run-{at}")
        for at, rate in enumerate(rates(trials))
    ]
    for run in runs:
        run.wait(3600)
    return time.monotonic() - began


def bare(folder: Path, steps: int, number: int, rate: float) -> list[str]:
    """The command of a trial of two processes, in a network of their own: TensorFlow's servers listen to everybody."""
    mine = folder / f"bare-{number}"
    mine.mkdir()
    (mine / "cell.py").write_text(CELL, encoding="utf-8")
    (mine / "run.json").write_text(json.dumps(RunSpec("bare", steps, params={"lr": rate}).to_dict()), encoding="utf-8")
    line = f"ip link set lo up; exec {sys.executable} {_between.__file__} {mine} 2222"
    return ["unshare", "-Urn", "sh", "-c", line]


def plain(folder: Path, steps: int, number: int, rate: float) -> list[str]:
    """The command of a trial of one process."""
    cell = folder / f"plain-{number}.py"
    cell.write_text(CELL, encoding="utf-8")
    return [sys.executable, _swept.__file__, str(cell), str(steps), str(rate)]


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


def main() -> None:
    """Print the shares, the seconds and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="6 trials of 400 steps on two workers, not 40 of 1,000 on four"
    )
    parser.add_argument("--trials", type=int, help="fewer or more trials")
    parser.add_argument("--steps", type=int, help="more or fewer steps of each")
    given = parser.parse_args()
    trials, steps, workers = (6, 400, 2) if given.quick else (40, 1000, 4)
    trials, steps = given.trials or trials, given.steps or steps
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


if __name__ == "__main__":
    main()
