"""Two runs side by side on one cluster: whether each is as fast as alone on as many workers.

First at a pace that leaves the cores idle for most of the time: one run trains all the while, another beside it in
every second span, and the first one's speed in the spans with company is set against that in those without. Then as
fast as they can: one run on both workers and two runs on one each take turns, and the two's speeds are added up.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path

from _common import own_home, say, say_all, start, step_rate

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run

PACE = 0.4
WARM_SECONDS = 8.0


def busy() -> tuple[float, float]:
    """Seconds of all cores so far: at work, and in all."""
    values = [float(each) for each in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    return sum(values) - values[3] - values[4], sum(values)


def trains(cluster: Cluster, run: Run, workers: int) -> None:
    """Wait until the run steps with so many workers, and some seconds more."""
    whole = cluster.follow(lambda state: len(state.runs[run.name].workers) >= workers, 180)
    if whole is None:
        raise SystemExit(f"{run.name} has not got its workers within three minutes")
    time.sleep(WARM_SECONDS)


def rates(runs: list[Run], seconds: float) -> list[float]:
    """Steps per second of each of these runs in the time to come."""
    began = time.time()
    time.sleep(seconds)
    return [step_rate(run, began, time.time()) for run in runs]


def say_ratio(name: str, values: list[float], target: str) -> None:
    """The mean of the ratios with its 95 % interval (Student's t; n of four to twelve: 3.2 to 2.2, taken as 2.5)."""
    spread = 2.5 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    mean = statistics.fmean(values)
    say(name, mean, "", target, more=f"n {len(values)}, 95 % {mean - spread:.3f} to {mean + spread:.3f}")


def paced(cluster: Cluster, spans: int, seconds: float) -> None:
    """The speed of a run with company over that without, span by span; and the company's over that of the first."""
    first = start(cluster, name="first", workers=1, pace_seconds=PACE, checkpoint_seconds=None, checkpoint_steps=None)
    trains(cluster, first, 1)
    own, others, load = [], [], []
    for span in range(spans):
        (alone,) = rates([first], seconds)
        second = start(
            cluster, name=f"beside-{span}", workers=1, pace_seconds=PACE, checkpoint_seconds=None, checkpoint_steps=None
        )
        trains(cluster, second, 1)
        before = busy()
        together = rates([first, second], seconds)
        after = busy()
        load.append((after[0] - before[0]) / (after[1] - before[1]))
        own.append(together[0] / alone)
        others.append(together[1] / alone)
        second.stop()
        second.wait(120)
        time.sleep(3)
    first.stop()
    first.wait(120)
    say_all(f"paced at {PACE} s: cores at work, of 1, with both", load, "", "< 0.6")
    say_ratio("paced: a run beside another, over itself alone", own, "0.97 to 1.03")
    say_ratio("paced: the other, over the first alone", others, "0.97 to 1.03")


def unpaced(cluster: Cluster, spans: int, seconds: float) -> None:
    """The sum of two runs on one worker each, over one run on both."""
    ratios = []
    for span in range(spans):
        both = start(cluster, name=f"both-{span}", workers=2)
        trains(cluster, both, 2)
        (one,) = rates([both], seconds)
        both.stop()
        both.wait(120)
        two = [start(cluster, name=f"{which}-{span}", workers=1) for which in ("left", "right")]
        for run in two:
            trains(cluster, run, 1)
        ratios.append(sum(rates(two, seconds)) / one)
        for run in two:
            run.stop()
        for run in two:
            run.wait(120)
    say_ratio("as fast as they can: two runs together, over one on both", ratios, "0.95 to 1.05")


def main() -> None:
    """Print ratios with their intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter spans")
    spans, seconds = (4, 12.0) if parser.parse_args().quick else (10, 30.0)
    with own_home():
        cluster = client.declare(Declaration("k80x2", name="bench", max_workers=8))
        paced(cluster, spans, seconds)
        unpaced(cluster, spans, seconds)


if __name__ == "__main__":
    main()
