"""Clusters that train, from the core to the chief, on one simulated clock: promises hold, and a seed is a history."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.seeds import WHOLE
from tests.simulation.story import whole

DAY, MORNING = 24.0, 9.0
"""Hours; `make nightly` simulates a day."""
_HASHED = (
    "import hashlib; from tests.simulation.story import whole;"
    "print(hashlib.sha256('\\n'.join(whole({seed}).lines).encode()).hexdigest())"
)


@pytest.mark.slow
def test_whatever_fails_no_promise_is_broken(pytestconfig: pytest.Config) -> None:
    """benchmarks/bench_simulation.py plays a year."""
    whole_time = DAY if pytestconfig.getoption("--nightly") else MORNING
    hours, trained, seed = 0.0, 0, 0
    broken = {seed: story.observer.broken for seed in WHOLE.values() if (story := whole(seed)).observer.broken}
    while hours < whole_time:
        story = whole(seed)
        hours, trained = hours + story.hours, trained + bool(story.training and story.training.home.saved)
        if story.observer.broken:
            broken[seed] = story.observer.broken
        seed += 1
    assert not broken
    assert trained > seed / 3, "hardly anything was trained"


@pytest.mark.slow
def test_the_same_seed_is_the_same_history_in_any_process() -> None:
    here = "\n".join(whole(3).lines)
    command = [sys.executable, "-c", _HASHED.format(seed=3)]
    other = {**os.environ, "PYTHONHASHSEED": "12345"}
    told = subprocess.check_output(command, cwd=Path(__file__).parents[2], text=True, env=other, encoding="utf-8")
    assert told.strip() == hashlib.sha256(here.encode()).hexdigest()
    assert here != "\n".join(whole(4).lines)
