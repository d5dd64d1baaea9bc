"""When a run in published weather was forecast to end, and what it was to cost, against what came.

Paced workers on the emulator are revoked and replaced as VMs were in 2019, an emulated day taking six minutes; a short
run in fair weather comes first, for the model has been run before. Forecasts are made at a tenth, a third and two
thirds of the steps and compared with the end: the moment as a part of the run's whole time, and the whole bill, which
goes by the emulated clock.
"""

from __future__ import annotations

import argparse
import statistics
import time

from _common import all_in, own_home, say, start

from transient_magics import client
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import bill
from transient_magics.planner.forecast import Forecast

WORKERS = 4
PACE = 0.5
MOMENTS = (0.1, 0.33, 0.67)
REHEARSAL = 160


def once(seed: int, steps: int, hours_per_minute: float) -> list[tuple[float, float, float, bool]]:
    """Of each forecast: the share of the steps made, the errors of time and bill, whether the interval held."""
    with own_home():
        cluster = client.declare(Declaration(f"k80x{WORKERS}", name="live", max_workers=64, max_hours=90 * 24 * 3600.0))
        cluster.wait(120)
        start(cluster, steps=REHEARSAL, pace_seconds=PACE).wait(600)
        run = start(cluster, steps=steps, pace_seconds=PACE)
        all_in(cluster, WORKERS)
        cluster.weather(revocations="published", hours_per_minute=hours_per_minute, seed=seed)
        made: list[tuple[float, Forecast]] = []
        for part in MOMENTS:
            reach(cluster, run, part * steps)
            if not run.state.over:
                made.append((part, run.forecast()))
        result = run.wait(3600)
        state = run.state
        total = bill(cluster.state, state.finished_at).total
        revoked = cluster.state.revocations
        print(f"seed {seed}: {result.seconds:.0f} s, ${total:.2f}, {revoked} revocations", flush=True)
        return [judge(part, foretold, state.started_at, state.finished_at, total) for part, foretold in made]


def reach(cluster: Cluster, run: Run, step: float) -> None:
    """Wait until the run has made so many steps."""
    cluster.follow(lambda state: state.runs[run.name].step >= step or state.runs[run.name].over, 3600)


def judge(part: float, foretold: Forecast, began: float, ended: float, cost: float) -> tuple[float, float, float, bool]:
    """Errors relative to the whole run's time and to the whole bill."""
    low, high = foretold.interval("seconds")
    error = (foretold.finishes_at - ended) / (ended - began)
    print(
        f"  at {part:.0%}: {foretold}; it took {ended - foretold.at:.0f} s instead of {foretold.seconds:.0f} s "
        f"({low:.0f} to {high:.0f}), ${cost:.2f} instead of ${foretold.dollars:.2f}",
        flush=True,
    )
    return part, error, foretold.dollars / cost - 1, low <= ended - foretold.at <= high


def main() -> None:
    """Print the errors of all forecasts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run instead of three")
    seeds = (1,) if parser.parse_args().quick else (1, 2, 3)
    began = time.monotonic()
    judged = [each for seed in seeds for each in once(seed, steps=1800, hours_per_minute=4)]
    for part in MOMENTS:
        errors = [abs(error) for at, error, _, _ in judged if at == part]
        bills = [abs(error) for at, _, error, _ in judged if at == part]
        if errors:
            say(f"forecast at {part:.0%}: error of the run's time", 100 * statistics.fmean(errors), "%", "< 10")
            say("    error of the bill", 100 * statistics.fmean(bills), "%")
    say("within the 90 % interval", 100 * statistics.fmean(inside for *_, inside in judged), "%", "90")
    say("this took", time.monotonic() - began, "s")


if __name__ == "__main__":
    main()
