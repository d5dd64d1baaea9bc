"""Unequal GPUs in synchronous steps: mini-batches that follow their speed, against equal ones.

The second worker's step takes a half, then 0.3 of the first one's. Every figure stands beside its goal.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass

from _common import ROOT, all_in, own_home, rows_between, say, start, step_rate

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import events

PACE = 1.0
"""Seconds of the slow worker's step with the declared mini-batch."""
EVEN = 1.1
"""The longest step over the mean one, from which on steps count as equally long."""
SETTLING = 30.0
EQUAL_STEPS = 200


@dataclass(frozen=True)
class Seen:
    """Steps per second and imbalance once a run has settled; the imbalance from each adjustment to the next."""

    rate: float
    imbalance: float
    after: list[float]

    @property
    def adjustments(self) -> int:
        """How many it took until steps were equally long; all that there were if they never were."""
        return next((number for number, value in enumerate(self.after) if value < EVEN), len(self.after) - 1)


def imbalance(run: Run, since: float, until: float) -> float:
    """The longest time of a worker's step over the mean of all workers'."""
    seconds: dict[str, float] = defaultdict(float)
    steps: dict[str, int] = defaultdict(int)
    for row in rows_between(run, since, until):
        seconds[row["worker"]] += row["compute_seconds"]
        steps[row["worker"]] += row["steps"]
    times = [seconds[worker] / steps[worker] for worker in seconds if steps[worker]]
    return max(times) / (sum(times) / len(times)) if times else float("nan")


def adjustments(cluster: Cluster, run: Run) -> list[float]:
    """When mini-batches changed: those that follow each other within a second are one adjustment."""
    moments: list[float] = []
    for event in cluster.events("worker.batch_resized"):
        if isinstance(event, events.WorkerBatchResized) and event.run == run.name:
            at = event.time / 1e9
            if not moments or at - moments[-1] > 1.0:
                moments.append(at)
    return moments


def observe(cluster: Cluster, batching: str, seconds: float) -> Seen:
    """A synchronous run of two workers, `seconds` long once it has settled."""
    run = start(cluster, mode="sync", batching=batching, pace_seconds=PACE)
    all_in(cluster, 2)
    together = time.time()
    time.sleep(SETTLING)
    began = time.time()
    time.sleep(seconds)
    ended = time.time()
    moments = [together, *adjustments(cluster, run), ended]
    # The first second of a size has steps of the one before.
    after = [imbalance(run, since + 1.0, until) for since, until in itertools.pairwise(moments)]
    seen = Seen(step_rate(run, began, ended), imbalance(run, began, ended), after)
    run.stop()
    run.wait(60)
    return seen


def unequal(fast: float, seconds: float) -> None:
    """A worker, and one whose step takes the part `fast` of its step."""
    with own_home():
        cluster = client.declare(Declaration("k80+p100", name="bench", zone=("us-west1-b",)))
        cluster.wait(60)
        cluster.weather(gpu_speed=f"k80=1,p100={1 / fast:g}")
        uniform = observe(cluster, "uniform", seconds)
        dynamic = observe(cluster, "dynamic", seconds)
    say(f"workers paced 1 : {fast:g}, equal mini-batches", uniform.rate, "steps/s")
    say("  longest over mean time of a step", uniform.imbalance, "")
    say(f"workers paced 1 : {fast:g}, dynamic mini-batches", dynamic.rate, "steps/s")
    say("  longest over mean time of a step", dynamic.imbalance, "", f"< {EVEN}")
    say(f"  adjustments until below {EVEN}", dynamic.adjustments, "", "<= 3")
    say("  adjustments in all", len(dynamic.after) - 1, "")
    allowed = (1 + 1 / fast) / 2  # the same examples, all workers busy all the time
    say("  dynamic over equal", dynamic.rate / uniform.rate, "", f">= 1.4, these paces allow {allowed:.2f}")


def equal(steps: int) -> None:
    """Two equal workers, which are to be left alone."""
    with own_home():
        cluster = client.declare(Declaration("k80x2", name="bench"))
        run = start(cluster, mode="sync", batching="dynamic", pace_seconds=0.15)
        all_in(cluster, 2)
        cluster.follow(lambda state: bool(state.active_run and state.active_run.step >= steps), 600)
        made = max((row["step"] for row in rows_between(run, 0, time.time())), default=0)
        changed = len(adjustments(cluster, run))
        run.stop()
        run.wait(60)
    say("workers paced 1 : 1, steps", made, "", f">= {steps}")
    say("  adjustments", changed, "", "0")


def gradients() -> None:
    """Synchronous steps on uneven mini-batches beside those of one process on all of them."""
    for what, program in (("a small model", "synchronous_step"), ("a transformer on text", "text_step")):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", f"tests.runtime.{program}", folder]
            said = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=True, encoding="utf-8"
            ).stdout
        apart = max(json.loads(said.splitlines()[-1])["differences"])
        say(f"weighted gradient of {what} from one process's", apart * 1e6, "1e-6", "< 1")


def main() -> None:
    """Print step rates, imbalance, the number of adjustments, and how exact the weighted gradient is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter observation")
    quick = parser.parse_args().quick
    gradients()
    for fast in (0.5, 0.3):
        unequal(fast, 20 if quick else 60)
    equal(EQUAL_STEPS if quick else 5 * EQUAL_STEPS)


if __name__ == "__main__":
    main()
