"""Workers that begin anew see all of the data: what benchmarks/bench_order.py finds on a few thousand records."""

from __future__ import annotations

import re

import pytest

from tests.runtime import programs

pytestmark = [pytest.mark.training, pytest.mark.nightly]

PROGRAM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import bench_order
bench_order.main()
"""


def test_workers_do_not_read_the_same_and_short_lives_reach_every_record() -> None:
    printed = programs.run(PROGRAM, programs.PROJECT / "benchmarks", "--quick")
    figures = {name: float(value) for name, value in re.findall(r"^(.+?)  +(\d\.\d+)", printed, re.MULTILINE)}
    assert figures["a cluster's epoch, 10 files: seen"] > 0.5, "0.68 in the mean; they all began at one place"
    assert figures["20 lives of 18 steps, 10 files: seen"] > 0.95, "0.99 in the mean"
