"""What dead workers leave on the parameter servers goes; variables and other workers stay."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.runtime.machine_room import PROJECT, apart

pytestmark = pytest.mark.training


def test_the_sessions_of_one_worker_are_dropped_and_nothing_else() -> None:
    done = subprocess.run(
        apart("tests.runtime.dead_session"), capture_output=True, text=True, check=True, cwd=PROJECT, encoding="utf-8"
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["before"] == [1, 2, 3]
    assert found["released"] == ["lost", 4, "lost"], "both of its sessions, not the other worker's"
    assert found["it lives after all"] == [5, 6], "the variables are as they were"
    assert "could not close the session of worker number 0" in found["nobody there"]
    assert found["released again"] == ["lost", 7]
