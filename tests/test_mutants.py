"""The list of planted faults fits the sources and the tests that it names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_every_planted_fault_matches_the_sources_once_and_names_tests_that_exist() -> None:
    done = subprocess.run(
        [sys.executable, "tools/mutants.py", "--check"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout
