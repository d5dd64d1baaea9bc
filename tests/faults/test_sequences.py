"""A few of the random sequences of faults that benchmarks/bench_faults_emulated.py runs two hundred of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "bench_faults_emulated.py"


def test_after_any_faults_the_declared_cluster_runs_or_is_refused_and_nothing_is_left() -> None:
    command = [sys.executable, str(PROGRAM), "--sequences", "4", "--at-once", "4", "--first", "1000"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4.000 of 4" in ended.stdout
