"""Intervals hold what comes: a small form of benchmarks/bench_calibration.py, with the error of few trials."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def calibration() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("bench_calibration")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def trials(pytestconfig: pytest.Config) -> int:
    return 20 if pytestconfig.getoption("--quick") else 40


def lost(trials: int) -> float:
    """As far below 90 % as so many trials may show of one that holds: three standard errors."""
    return 3 * math.sqrt(0.9 * 0.1 / trials)


def share(row: object) -> float:
    held: list[float] = row.held  # type: ignore[attr-defined]
    return sum(held) / len(held)


@pytest.mark.slow
def test_hours_that_are_left_keep_within_their_interval(calibration: ModuleType, trials: int) -> None:
    """Also where the servers limit the speed, with two GPUs, and with more noise than is usual."""
    rows = calibration.foretold(trials, 300, lambda _: None)
    assert len(rows) == 32
    assert {name: share(row) for name, row in rows.items() if share(row) < 0.9 - lost(trials)} == {}


@pytest.mark.slow
def test_plans_of_other_clusters_keep_within_their_interval(calibration: ModuleType, trials: int) -> None:
    """Than those that trained: also where servers limit them that nobody saw at their limit, and with two GPUs."""
    few = trials // 4
    rows = calibration.others(few, 300, lambda _: None)
    assert len(rows) == 14
    assert {name: share(row) for name, row in rows.items() if share(row) < 0.9 - lost(few)} == {}


@pytest.mark.slow
def test_lines_over_batches_keep_within_their_interval_or_say_that_it_is_a_guess(
    calibration: ModuleType, trials: int
) -> None:
    rows = calibration.lines(trials, lambda _: None)
    told = {name: share(row) for name, row in rows.items() if not name.endswith("a guess")}
    assert len(rows) - len(told) == 4
    few = [len(row.held) for row in rows.values()]
    assert {name: held for name, held in told.items() if held < 0.9 - lost(min(few))} == {}


def test_the_accuracy_of_one_more_run_keeps_within_its_interval(calibration: ModuleType) -> None:
    rows = calibration.accuracies(200, lambda _: None)
    assert {name: share(row) for name, row in rows.items() if share(row) < 0.9 - lost(200)} == {}


def test_hours_to_a_target_keep_within_their_interval(calibration: ModuleType, trials: int) -> None:
    rows = calibration.targets(trials, 300, lambda _: None)
    assert {name: share(row) for name, row in rows.items() if share(row) < 0.9 - lost(trials) - 0.05} == {}
    assert share(calibration.unseen(lambda _: None)) == pytest.approx(0.9, abs=0.05)
