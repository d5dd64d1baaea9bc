"""Derive the package's table of Spot capacity from published counts: how often a zone's number of VMs changed to which.

    .venv/bin/python tools/derive_capacity.py AVAILABILITY.csv

AVAILABILITY.csv has how many Spot VMs each zone gave, as `catalog/traces.py` reads it, looked at every ten minutes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import pairwise
from pathlib import Path

from transient_magics.catalog import traces
from transient_magics.catalog.traces import read_traces

HEADER = """\
# Spot capacity for a3-highgpu-1g (one H100) in nine zones of Google Cloud, 14 days from 3 October 2025: how often,
# within ten minutes, a zone that gave about `vms` of 16 requested VMs gave `then`. Derived by tools/derive_capacity.py
# from github.com/andylizf/skynomad-artifact @62b9aaa, data/h100_16_runs (SkyNomad, arXiv 2601.06520), Apache-2.0,
# copyright 2026 The SkyNomad Authors. Requests that succeeded were counted; how long VMs live was not.
zone,vms,then,rounds
"""


def level(number: int) -> int:
    """The level of the table that is nearest to so many VMs; only none is the level of none."""
    levels = traces.LEVELS[1:] if number else traces.LEVELS
    return min(levels, key=lambda each: abs(each - number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the counts")
    options = parser.parse_args()
    rows: list[str] = []
    for trace in read_traces(options.file.read_text(encoding="utf-8"), options.file.name):
        moments = range(0, int(trace.end), int(traces.ROUND))
        counts = Counter(pairwise(level(trace.at(moment)) for moment in moments))
        rows += [f"{trace.zone},{before},{then},{rounds}" for (before, then), rounds in sorted(counts.items())]
    traces.table().write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
