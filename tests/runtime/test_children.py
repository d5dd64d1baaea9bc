"""Signals to processes that user code starts stay theirs: none arrives in the event loop of a process of ours."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_pools_and_processes_of_user_code_work_beside_an_event_loop_with_signal_handlers() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.forking_steps"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "fork pool": [2, 4], "spawn pool": [1], "executor": [6, 8], "exit codes": [-15], "subprocess": -15,
        "grandchild": 7, "signals here": False,
    }  # fmt: skip
