"""Ten thousand random sequences of faults against the controller's core, on a simulated clock (tests/simulation).

Each is an hour or a few of stockouts, quotas, refusals, lost answers, notices, hosts and boots that fail, silent VMs,
killed controllers, resizes, runs and idleness; then fair weather, in which the declared cluster must be there within
the longest wait; then a deletion, after which nothing may be left. Exits with 1 where a promise was broken.

With `--healed FILE` it prints what the tests of faults measured instead (TRANSIENT_TESTS_HEALED=FILE, then
`make nightly PART=faults`):
each fault, the moment at which it struck, the seconds until all was as before, and the test that saw it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from _common import say, say_never

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.simulation.observer import PROMISES
from tests.simulation.story import sequence


@dataclass
class Met:
    """What a share of the sequences met, and which of them `broke` a promise."""

    counts: Counter[str] = field(default_factory=Counter)
    hours: float = 0.0
    slowest: float = 0.0
    broke: dict[int, list[str]] = field(default_factory=dict)
    found: Counter[str] = field(default_factory=Counter)


def play(seeds: range) -> Met:
    """These sequences."""
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


def main() -> int:
    """Print how many sequences kept every promise, and what they went through."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two hundred")
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--healed", type=Path, metavar="FILE", help="print what tests measured, and play nothing")
    given = parser.parse_args()
    if given.healed:
        print("\n".join(matrix(given.healed)))
        return 0
    count = 200 if given.quick else given.sequences
    began, all_of_them = time.perf_counter(), Met()
    seeds = range(given.first, given.first + count)
    with ProcessPoolExecutor(given.at_once) as workers:
        for met in workers.map(play, [seeds[number : number + 50] for number in range(0, count, 50)]):
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
    return int(bool(all_of_them.broke))


if __name__ == "__main__":
    sys.exit(main())
