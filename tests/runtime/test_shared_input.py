"""Trials of a study on one VM take the same mini-batches from one server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.runtime.machine_room import PROJECT, apart


@pytest.mark.training
def test_each_trial_has_each_mini_batch_once_and_nobody_waits_for_one_that_takes_none(tmp_path: Path) -> None:
    command = apart(f"tests.runtime.shared_input {tmp_path / 's-input'}")
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=PROJECT, timeout=300, encoding="utf-8"
    )
    had = json.loads(done.stdout.splitlines()[-1])
    assert had["first"] == list(range(80))
    assert had["second"] == list(range(40))
    assert had["third"] == list(range(had["third"][0], had["third"][0] + 40)), "it begins with what is kept"
    assert had["again"][0] >= 80, "a process that is started again goes on where it was"
