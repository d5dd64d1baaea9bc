"""Unequal GPUs in synchronous steps: mini-batches that follow their speed, against equal ones."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

from _common import all_in, own_home, rows_between, say, start, step_rate

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import events

PACE = 0.6
"""Seconds of a K80's step; the others' are in the published proportion."""


def imbalance(run: Run, since: float, until: float) -> float:
    """The longest time of a worker's step over the mean of all workers'."""
    seconds: dict[str, float] = defaultdict(float)
    steps: dict[str, int] = defaultdict(int)
    for row in rows_between(run, since, until):
        seconds[row["worker"]] += row["compute_seconds"]
        steps[row["worker"]] += row["steps"]
    times = [seconds[worker] / steps[worker] for worker in seconds if steps[worker]]
    return max(times) / (sum(times) / len(times))


def adjustments(cluster: Cluster, run: Run) -> list[float]:
    """When mini-batches changed: those that follow each other within a second are one adjustment."""
    moments: list[float] = []
    for event in cluster.events("worker.batch_resized"):
        if isinstance(event, events.WorkerBatchResized) and event.run == run.name:
            at = event.time / 1e9
            if not moments or at - moments[-1] > 1.0:
                moments.append(at)
    return moments


def observe(cluster: Cluster, batching: str, seconds: float, pace: float = PACE) -> tuple[Run, float, float]:
    """A run of two workers: steps per second and imbalance once it has settled."""
    run = start(cluster, mode="sync", batching=batching, pace_seconds=pace)
    all_in(cluster, 2)
    time.sleep(20)
    began = time.time()
    time.sleep(seconds)
    ended = time.time()
    rate, uneven = step_rate(run, began, ended), imbalance(run, began, ended)
    run.stop()
    run.wait(60)
    return run, rate, uneven


def main() -> None:
    """Print step rates, imbalance and the number of adjustments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one pair of GPUs, shorter observation")
    quick = parser.parse_args().quick
    seconds = 20 if quick else 40
    for fast in ("v100",) if quick else ("p100", "v100"):
        with own_home():
            cluster = client.declare(Declaration(f"k80+{fast}", name="bench", zone=("us-west1-b",)))
            cluster.wait(60)
            cluster.weather(gpu_speed="published")
            _, uniform, uneven = observe(cluster, "uniform", seconds)
            say(f"k80+{fast}, equal mini-batches", uniform, "steps/s")
            say("  longest over mean time of a step", uneven, "")
            run, dynamic, even = observe(cluster, "dynamic", seconds)
            say(f"k80+{fast}, dynamic mini-batches", dynamic, "steps/s")
            say("  longest over mean time of a step", even, "", "< 1.1")
            say("  adjustments", len(adjustments(cluster, run)), "", "<= 3")
            say(f"k80+{fast}, dynamic over equal", dynamic / uniform, "", ">= 1.4")
    with own_home():
        cluster = client.declare(Declaration("k80x2", name="bench"))
        run, rate, _ = observe(cluster, "dynamic", 40, pace=0.15)
        say("two equal GPUs, 200 steps and more: adjustments", len(adjustments(cluster, run)), "", "0")
        say("  at", rate, "steps/s")


if __name__ == "__main__":
    main()
