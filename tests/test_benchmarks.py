"""Benchmarks can be started as their table says, and leave nothing behind, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import processes

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PROGRAMS = sorted(BENCHMARKS.glob("bench_*.py"))
HELP_OF_ALL = """
import contextlib, io, runpy, sys
for path in sys.argv[1:]:
    sys.argv, said = [path, "--help"], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    print(path, "--quick" in said.getvalue())
"""
WITH_A_CLUSTER = """
import time
from _common import own_home
from transient_magics import client
from transient_magics.client import Declaration
with own_home() as home:
    client.declare(Declaration("cpux1")).wait(100)
    print(home, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_every_benchmark_takes_help_and_quick_and_stands_in_the_table() -> None:
    command = [sys.executable, "-c", HELP_OF_ALL, *map(str, PROGRAMS)]
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    said = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout.splitlines()
    assert said == [f"{path} True" for path in PROGRAMS]
    table = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in PROGRAMS if f"| `{path.name}` |" not in table] == []


@pytest.mark.slow
def test_a_benchmark_that_is_killed_leaves_no_process_and_no_file() -> None:
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    with subprocess.Popen([sys.executable, "-c", WITH_A_CLUSTER], env=environment, stdout=subprocess.PIPE) as program:
        assert program.stdout
        home = Path(program.stdout.readline().decode().strip())
        assert len(processes.bearing(home.name)) > 3, "the guard, the emulator, the controller and the VMs' processes"
        program.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 120
    while home.exists() or processes.bearing(home.name):
        assert time.monotonic() < deadline, processes.bearing(home.name)
        time.sleep(0.1)
