"""Clusters on a simulated clock (tests/simulation): random faults, and a year of training. Exits with 1 on failures.

`sequences`: ten thousand random sequences of faults against the controller's core. Each is an hour or a few of
stockouts, quotas, refusals, lost answers, notices, hosts and boots that fail, silent VMs, killed controllers, resizes,
runs and idleness; then fair weather, in which the declared cluster must be running within the longest wait; then a
deletion, after which nothing may be left.

`year`: a year of clusters that train: core, chief, workers, network, cloud.

Printed are the seeds that broke a promise, and how to see their histories. With `--healed FILE` it prints what the
tests of faults measured instead (TRANSIENT_TESTS_HEALED=FILE, then `make nightly PART=faults`): each fault, the moment
at which it struck, the seconds until all was as before, and the test that saw it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from _common import ROOT, parser_of, run_measures, say, say_never

sys.path.insert(0, str(ROOT))

from tests.simulation.observer import PROMISES
from tests.simulation.story import sequence, whole

HOURS_OF_A_YEAR, HOURS_OF_A_WEEK = 365 * 24.0, 7 * 24.0
_BATCH = 20


@dataclass
class Met:
    """What a share of the sequences met, and which of them `broke` a promise."""

    counts: Counter[str] = field(default_factory=Counter)
    hours: float = 0.0
    slowest: float = 0.0
    broke: dict[int, list[str]] = field(default_factory=dict)
    found: Counter[str] = field(default_factory=Counter)


def play_sequences(seeds: range) -> Met:
    """Play the sequences of these seeds."""
    met = Met()
    for seed in seeds:
        story = sequence(seed)
        observer = story.observer
        met.counts["asked"] += len(observer.seen)
        met.counts["refused"] += sum(bool(vm.refused) for vm in observer.seen.values())
        met.counts["gone"] += sum(bool(vm.gone) for vm in observer.seen.values())
        met.counts["on demand"] += sum(
            vm.model == "standard" and vm.kind in "v100 p100" for vm in observer.seen.values()
        )
        met.counts["killed"] += story.steering.kills
        met.hours += story.hours
        met.slowest = max(met.slowest, observer.slowest)
        if observer.broken:
            met.broke[seed] = list(observer.broken)
            met.found.update(observer.found.keys())
    return met


def matrix(path: Path) -> list[str]:
    """The table of faults and moments, in Markdown; of what was measured several times the median and the longest."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        test = row["test"].removeprefix("tests/faults/")
        found.setdefault((row["fault"], row["moment"], test), []).append(row["seconds"])
    lines = ["| fault | moment | seconds to heal | longest of | test |", "|---|---|---|---|---|"]
    for (fault, moment, test), seconds in sorted(found.items()):
        longest = f"{max(seconds):.1f} of {len(seconds)}"
        lines.append(f"| {fault} | {moment} | {statistics.median(seconds):.1f} | {longest} | `{test}` |")
    faults, moments = ({each[number] for each in found} for number in (0, 1))
    return [*lines, "", f"{len(faults)} faults, {len(moments)} moments, {len(found)} cases."]


def sequences(options: argparse.Namespace) -> None:
    """Print how many sequences kept every promise, and what they went through."""
    count = 200 if options.quick else options.sequences
    began, all_of_them = time.perf_counter(), Met()
    seeds = range(options.first, options.first + count)
    with ProcessPoolExecutor(options.at_once) as workers:
        for met in workers.map(play_sequences, [seeds[number : number + 50] for number in range(0, count, 50)]):
            for seed, broken in met.broke.items():
                print(f"sequence {seed}: {'; '.join(broken)} (python -m tests.simulation.story {seed})", flush=True)
            all_of_them.counts += met.counts
            all_of_them.found += met.found
            all_of_them.broke |= met.broke
            all_of_them.hours += met.hours
            all_of_them.slowest = max(all_of_them.slowest, met.slowest)
    say_never("sequences that broke a promise", len(all_of_them.broke), count)
    for sort in PROMISES:
        say_never(f"  {sort}", all_of_them.found[sort], count)
    say("longest that a place waited beyond what it had to", all_of_them.slowest, "s", "< 90")
    for name, key in (
        ("VMs asked for", "asked"), ("VMs refused", "refused"), ("VMs that went, taken or deleted", "gone"),
        ("workers asked for on demand", "on demand"), ("controllers killed", "killed"),
    ):  # fmt: skip
        say(name, all_of_them.counts[key], "")
    say("hours of cluster time", all_of_them.hours, "h")
    say("took", time.perf_counter() - began, "s")
    if all_of_them.broke:
        sys.exit(1)


def play_histories(seeds: range) -> tuple[float, Counter[str], dict[int, list[str]], Counter[str]]:
    """Play the histories of these seeds: hours, what they met, which broke a promise, and which promises."""
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


def year(options: argparse.Namespace) -> None:
    """Print how much was played and what was broken in it."""
    wanted = HOURS_OF_A_WEEK if options.quick else HOURS_OF_A_YEAR
    began, hours, count = time.perf_counter(), 0.0, 0
    met, broke, found = Counter[str](), dict[int, list[str]](), Counter[str]()
    with ProcessPoolExecutor(options.at_once) as workers:
        starts = itertools.count(options.first, _BATCH)
        while hours < wanted:
            batches = [range(start, start + _BATCH) for start in itertools.islice(starts, options.at_once)]
            for played, seen, broken, kinds in workers.map(play_histories, batches):
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
    if broke:
        sys.exit(1)


def main() -> None:
    """Run the chosen measures, or print the table of healed faults."""
    measures = {"sequences": sequences, "year": year}
    parser = parser_of(__doc__, "two hundred sequences, a week", measures)
    parser.add_argument("--sequences", type=int, default=10_000, help="how many (default: 10,000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (default: 0)")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, metavar="N",
                        help="processes (default: as many as cores)")  # fmt: skip
    parser.add_argument("--healed", type=Path, metavar="FILE", help="print what tests measured, and play nothing")
    options = parser.parse_args()
    if options.healed:
        print("\n".join(matrix(options.healed)))
        return
    run_measures(measures, options)


if __name__ == "__main__":
    main()
