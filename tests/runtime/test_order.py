"""Workers that begin anew see all of the data: what benchmarks/bench_order.py finds on a few thousand records."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.runtime.machine_room import PROJECT

pytestmark = pytest.mark.training


def test_workers_do_not_read_the_same_and_short_lives_reach_every_record() -> None:
    command = [sys.executable, "benchmarks/bench_order.py", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    figures = {
        name.strip(): float(value) for name, value in re.findall(r"^(.+?)  +(\d\.\d+)", done.stdout, re.MULTILINE)
    }
    assert figures["a cluster's epoch, 10 files: seen"] > 0.5, "0.68 in the mean; they all began at one place"
    assert figures["20 lives of 18 steps, 10 files: seen"] > 0.95, "0.99 in the mean"
