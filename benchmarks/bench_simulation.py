"""A year of clusters that train, on a simulated clock: core, chief, workers, network, cloud (tests/simulation).

Exits with 1 where a promise was broken; the seeds that broke it are printed, and how to see their histories.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _common import say, say_never

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.simulation.observer import PROMISES
from tests.simulation.story import whole

HOURS_OF_A_YEAR, HOURS_OF_A_WEEK = 365 * 24.0, 7 * 24.0
_BATCH = 20


def play(seeds: range) -> tuple[float, Counter[str], dict[int, list[str]], Counter[str]]:
    """These histories: their hours, what they met, which broke a promise, and which promises."""
    hours, met, broke, found = 0.0, Counter[str](), dict[int, list[str]](), Counter[str]()
    for seed in seeds:
        story = whole(seed)
        hours += story.hours
        met["asked"] += len(story.observer.seen)
        met["killed"] += story.steering.kills
        met["runs"] += story.runs
        met["events"] += len(story.lines)
        if story.observer.broken:
            broke[seed] = list(story.observer.broken)
            found.update(story.observer.found.keys())
    return hours, met, broke, found


def main() -> int:
    """Print how much was played and what was broken in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a week")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    given = parser.parse_args()
    wanted = HOURS_OF_A_WEEK if given.quick else HOURS_OF_A_YEAR
    began, hours, count = time.perf_counter(), 0.0, 0
    met, broke, found = Counter[str](), dict[int, list[str]](), Counter[str]()
    with ProcessPoolExecutor(given.at_once) as workers:
        starts = itertools.count(given.first, _BATCH)
        while hours < wanted:
            batches = [range(start, start + _BATCH) for start in itertools.islice(starts, given.at_once)]
            for played, seen, broken, kinds in workers.map(play, batches):
                hours, count = hours + played, count + _BATCH
                met, found = met + seen, found + kinds
                broke |= broken
                for seed, what in broken.items():
                    print(
                        f"seed {seed}: {'; '.join(what)} (python -m tests.simulation.story --whole {seed})", flush=True
                    )
    say("hours of cluster time", hours, "h", f"{wanted:.0f}")
    say_never("histories that broke a promise", len(broke), count)
    for sort in PROMISES:
        say_never(f"  {sort}", found[sort], count)
    for name, key in (
        ("VMs asked for", "asked"),
        ("runs", "runs"),
        ("controllers killed", "killed"),
        ("events", "events"),
    ):
        say(name, met[key], "")
    say("took", time.perf_counter() - began, "s")
    return int(bool(broke))


if __name__ == "__main__":
    sys.exit(main())
