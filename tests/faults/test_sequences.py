"""A few of the random sequences of faults that benchmarks/bench_faults_emulated.py runs two hundred of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.faults.conftest import end, processes

pytestmark = pytest.mark.nightly

MET = (
    "stockout", "quota (403)", "failing API (403, 429, 5xx, dropped)", "slow API", "slow operation", "revocations",
    "preempted in creation", "expired credentials", "controller killed",
)  # fmt: skip
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "bench_faults_emulated.py"


def test_after_any_faults_the_declared_cluster_runs_or_is_refused_and_nothing_is_left() -> None:
    command = [sys.executable, str(PROGRAM), "--sequences", "4", "--at-once", "4", "--first", "1000"]
    place = tempfile.mkdtemp(prefix="tm-")
    own = {**os.environ, "TMPDIR": place, "XDG_RUNTIME_DIR": place}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=600, check=False, env=own, encoding="utf-8"
        )
    finally:
        end(processes(place))  # where it took too long: what it had started
        shutil.rmtree(place, ignore_errors=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4.000 of 4" in ended.stdout
    # Beside the numbers of sequences and of times in which it was drawn: in how many the cluster suffered from it.
    rows = [re.split(r"  +", line) for line in ended.stdout.splitlines() if line.startswith(MET)]
    assert [name for name, *_ in rows] == [*MET]
    assert all(int(suffered) for _, _, _, suffered, *_ in rows), ended.stdout
