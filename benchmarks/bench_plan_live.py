"""When a run in published weather was forecast to end, and what it was to cost, against what came.

Paced workers on the emulator are revoked and replaced as VMs were in 2019, an emulated day taking six minutes. Start-
ups and notices take their part of that day, steps and joins their own time. A short run in fair weather comes first,
for the model has been run before. Forecasts are made at a tenth, a third and two thirds of the steps and compared
with the end: the moment as a part of the run's whole time, and the whole bill, which goes by the emulated clock; and
how often each lay within its 90 % interval. The forecasts of one run are not independent of each other: many seeds
tell more than many moments.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from statistics import fmean as mean

from _common import all_in, own_home, say, start

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.planner.forecast import Forecast

WORKERS = 4
PACE = 0.5
MOMENTS = (0.1, 0.33, 0.67)
REHEARSAL = 160
HOURS_PER_MINUTE = 4.0


@dataclass(frozen=True)
class Judged:
    """One forecast beside what came: seconds from its moment until the run was over, and the whole bill in dollars."""

    seed: int
    part: float
    whole_seconds: float
    seconds: float
    seconds_interval: tuple[float, float]
    came_seconds: float
    dollars: float
    dollars_interval: tuple[float, float]
    came_dollars: float

    @property
    def time_error(self) -> float:
        """As a part of the run's whole time."""
        return (self.seconds - self.came_seconds) / self.whole_seconds

    @property
    def bill_error(self) -> float:
        """As a part of the whole bill."""
        return self.dollars / self.came_dollars - 1

    @property
    def time_held(self) -> bool:
        """Whether the end lay within its 90 % interval."""
        return self.seconds_interval[0] <= self.came_seconds <= self.seconds_interval[1]

    @property
    def bill_held(self) -> bool:
        """Whether the bill lay within its 90 % interval."""
        return self.dollars_interval[0] <= self.came_dollars <= self.dollars_interval[1]

    def __str__(self) -> str:
        time_said = _row(self.seconds, self.seconds_interval, self.came_seconds, self.time_error, self.time_held, 0)
        bill_said = _row(self.dollars, self.dollars_interval, self.came_dollars, self.bill_error, self.bill_held, 2)
        return f"{self.seed:4} {self.part:5.0%} {time_said} {bill_said}"


def _row(told: float, interval: tuple[float, float], came: float, error: float, held: bool, digits: int) -> str:
    between = f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"
    return f"{told:9.{digits}f} {between:>17} {came:9.{digits}f} {error:+8.1%} {'in' if held else 'OUT':>4}"


_COLUMNS = f"{'forecast':>9} {'90 %':>17} {'happened':>9} {'error':>8} {'':4}"
HEADER = f"{'':10} {'seconds until the end':52} dollars of the cluster\n{'seed':>4} {'made':>5} {_COLUMNS} {_COLUMNS}"


def once(seed: int, steps: int, hours_per_minute: float) -> list[Judged]:
    """The forecasts of one run, judged."""
    with own_home():
        cluster = client.declare(Declaration(f"k80x{WORKERS}", name="live", max_workers=64, max_hours=90 * 24))
        cluster.wait(120)
        start(cluster, steps=REHEARSAL, pace_seconds=PACE).wait(600)
        run = start(cluster, steps=steps, pace_seconds=PACE)
        all_in(cluster, WORKERS)
        compressed = {"hours_per_minute": hours_per_minute, "notice": "scaled", "boot": "published"}
        cluster.weather(revocations="published", seed=seed, **compressed)
        made: list[tuple[float, Forecast]] = []
        for part in MOMENTS:
            reach(cluster, run, part * steps)
            if not run.state.over:
                made.append((part, run.forecast()))
        run.wait(3600)
        state = run.state
        total = run.cost().total
        print(f"seed {seed}: {cluster.state.revocations} revocations", flush=True)
        return [
            Judged(
                seed, part, state.ended_at - state.started_at, foretold.seconds, foretold.interval("seconds"),
                state.ended_at - foretold.at, foretold.dollars, foretold.interval("dollars"), total,
            ) for part, foretold in made
        ]  # fmt: skip


def reach(cluster: Cluster, run: Run, step: float) -> None:
    """Wait until the run has made so many steps."""
    cluster.follow(lambda state: state.runs[run.name].step >= step or state.runs[run.name].over, 3600)


def main() -> None:
    """Print every forecast beside what happened, and the errors of all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run instead of three")
    parser.add_argument("--seeds", type=int, nargs="+", help="of the weather, one run each (1 2 3)")
    parser.add_argument("--steps", type=int, help="of each run (1800; some four minutes without revocations)")
    asked = parser.parse_args()
    seeds = asked.seeds or ([1] if asked.quick else [1, 2, 3])
    began = time.monotonic()
    judged: list[Judged] = []
    for seed in seeds:
        judged += once(seed, asked.steps or (600 if asked.quick else 1800), HOURS_PER_MINUTE)
    print("\n".join([HEADER, *map(str, judged)]), flush=True)
    for part in MOMENTS:
        those = [each for each in judged if each.part == part]
        if those:
            say(f"forecast at {part:.0%}: error of the run's time", 100 * mean(abs(each.time_error) for each in those),
                "%", "< 10")  # fmt: skip
            say("    error of the bill", 100 * mean(abs(each.bill_error) for each in those), "%")
    if judged:
        say(f"time within its 90 % interval, of {len(judged)}", sum(each.time_held for each in judged), "times")
        say(f"bill within its 90 % interval, of {len(judged)}", sum(each.bill_held for each in judged), "times")
    say("this took", time.monotonic() - began, "s")


if __name__ == "__main__":
    main()
