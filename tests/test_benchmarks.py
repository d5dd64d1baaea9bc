"""Benchmarks can be started as their table says, and leave nothing behind, however they end."""

from __future__ import annotations

import json
import os
import re
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
import contextlib, io, json, runpy, sys
for path in sys.argv[1:]:
    sys.argv, said = [path, "--help"], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    print(json.dumps(" ".join(said.getvalue().split())))
"""
ONLY = re.compile(r"measure only these \(default: all\): ((?:[\w-]+, )*[\w-]+)")
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
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS), "COLUMNS": "1000"}  # no word is hyphenated
    said = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout.splitlines()
    helps = {path.name: json.loads(text) for path, text in zip(PROGRAMS, said, strict=True)}
    assert [name for name, text in helps.items() if "--quick" not in text] == []
    table = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(bench_\w+\.py)` \|(.*?)\|", table, re.MULTILINE))
    measures = {name: " ".join(ONLY.findall(text)).replace(",", "") for name, text in helps.items()}
    assert {name: row.replace("`", "").replace("(rows)", "").strip() for name, row in rows.items()} == measures
    evidence = (BENCHMARKS.parent / "docs" / "evidence.md").read_text(encoding="utf-8")
    chosen = re.findall(r"`(bench_\w+\.py) --only ([\w-]+)", evidence)
    assert len(chosen) > 5
    assert [(name, only) for name, only in chosen if only not in measures[name].split()] == []


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
