"""Intervals that users see, against what comes: how often they hold it, and how wide they are.

Each row is an interval of the product by what was measured before: `plan hours: 1 run, 4 revocations`. A trial draws a
world whose laws the estimator does not know (`_calibration.World`): runs differ by 2 to 6 %, VMs by 1 to 5 %, and the
speed varies in time by 1 to 5 %, correlated over 30 s, 10 min, 30 min or 2 h. The goals: a nominal 90 % holds 85 to
95 %, and the median width is at most 1.5 times that of the best interval, which knows these laws and has the same
measurements. Rows of one noise level have no goal. `ratio -`: the best interval is not computed. `shown`: the share of
trials in which there is an interval at all. The error is the standard error of so many trials.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _calibration import Result, drawn_of, rows, summary
from _common import say

PART = 50
"""Trials that one process makes at a time."""


def main() -> None:
    """Print the table, or the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", default="", help="rows whose name contains this text (default: all)")
    parser.add_argument("--trials", type=int, metavar="N", help="trials of each row (default: the row's own, 400)")
    parser.add_argument("--quick", action="store_true", help="40 trials of each row, errors of five points")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per processor)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    asked = parser.parse_args()
    trials = 40 if asked.quick else asked.trials
    chosen = [(module, place, row) for module, place, row in rows() if asked.only in row.name]
    results = list[Result]()
    began = time.perf_counter()
    with ProcessPoolExecutor(asked.jobs or os.cpu_count()) as pool:
        parts = [
            [
                pool.submit(drawn_of, module, place, first, min(first + PART, trials or row.trials))
                for first in range(0, trials or row.trials, PART)
            ]
            for module, place, row in chosen
        ]
        for (_, _, row), part in zip(chosen, parts, strict=True):
            results.append(summary(row, [trial for future in part for trial in future.result()]))
            print(results[-1], flush=True)
    asserted = [result.holds for result in results if result.holds is not None]
    say("rows that hold, of those with a goal", sum(asserted), f"of {len(asserted)}")
    say("seconds", time.perf_counter() - began, "s")
    if asked.json:
        asked.json.write_text(json.dumps([result.to_dict() for result in results], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
