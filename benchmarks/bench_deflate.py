"""A worker keeps 75, 50, then 25 % of its processors: examples per second over those of the whole cluster, beside D.4.

Two unpaced workers, one of which shrinks; what is measured stands beside what `run.advice` computes
(`planner.deflation`): synchronous steps with equal mini-batches (everybody waits for the slower one), with dynamic
ones, and asynchronous steps. The three take turns, in each turn the parts in another order; before and after them
nothing is taken, and the mean of that is what a figure is divided by. Intervals are of 95 %, of the mean over turns.

Where processors are few, workers share them with the parameter server and the emulator: a worker that shrinks then
leaves the other one more than the formulas know of.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence

from _common import all_in, own_home, rows_between, say, say_never, start
from scipy import stats

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.planner.deflation import shrunk

LEFT = (0.75, 0.5, 0.25)
KINDS = (("sync", "uniform"), ("sync", "dynamic"), ("async", "uniform"))
SHRINKS = "worker-1"
SETTLES = {"uniform": 3.0, "dynamic": 9.0}
"""Seconds until a share is felt, and until mini-batches have followed."""
WITHIN = 0.10


def rate(run: Run, seconds: float) -> float:
    """Examples a second, of all workers, from now on."""
    began = time.time()
    time.sleep(seconds)
    return sum(row.get("samples") or 0 for row in rows_between(run, began, time.time())) / (time.time() - began)


def turn(cluster: Cluster, kind: tuple[str, str], parts: Sequence[float], seconds: float) -> dict[float, float]:
    """By the part that is left: examples per second over those of the whole cluster."""
    mode, batching = kind
    run = start(cluster, mode=mode, batching=batching, hparams="batch_size=128")
    all_in(cluster, 2)
    time.sleep(SETTLES[batching])
    found, whole = dict[float, float](), [rate(run, seconds)]
    for part in parts:
        cluster.deflate(SHRINKS, cpu=part)
        time.sleep(SETTLES[batching])
        found[part] = rate(run, seconds)
    cluster.deflate(SHRINKS, restore=True)
    time.sleep(SETTLES[batching])
    whole.append(rate(run, seconds))
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


def main() -> None:
    """Print what is left of the throughput beside what D.4 predicts, and whether anything was started again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="half of the processors alone, once")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="of each kind of run (3: nine minutes)")
    given = parser.parse_args()
    turns, parts, seconds = (1, (0.5,), 5.0) if given.quick else (given.turns, LEFT, 5.0)
    found: dict[tuple[tuple[str, str], float], list[float]] = defaultdict(list)
    with own_home():
        cluster = client.declare(Declaration("cpux2", name="bench"))
        cluster.wait(60)
        orders = itertools.cycle(itertools.permutations(parts))
        for _ in range(turns):
            order = next(orders)
            for kind in KINDS:
                for part, value in turn(cluster, kind, order, seconds).items():
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


if __name__ == "__main__":
    main()
