"""Intervals hold what comes: some rows of benchmarks/bench_calibration.py, with the error of few trials."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def calibration() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("_calibration")
    finally:
        sys.path.remove(str(BENCHMARKS))


def misses(calibration: ModuleType, name: str, trials: int, *, count: int) -> dict[str, float]:
    """The rows whose name begins so, of which there are `count`, that hold less often than chance explains."""
    rows = [row for *_, row in calibration.rows() if row.name.startswith(name) and row.target]
    assert len(rows) == count
    found = {row.name: calibration.run(row, trials) for row in rows}
    shown = {name: result for name, result in found.items() if result.shown}
    return {name: result.coverage for name, result in shown.items() if result.coverage < _least(result.shown)}


def _least(trials: int) -> float:
    """Three standard errors below 90 %."""
    return 0.9 - 3 * math.sqrt(0.9 * 0.1 / trials)


@pytest.mark.slow
def test_plans_of_other_clusters_keep_within_their_interval(calibration: ModuleType) -> None:
    """Also where the servers limit the speed that no run was limited by, and with two GPUs."""
    assert misses(calibration, "plan hours of ", 10, count=8) == {}


@pytest.mark.slow
def test_hours_of_the_next_run_keep_within_their_interval_after_revocations(calibration: ModuleType) -> None:
    assert misses(calibration, "plan hours: 1 run, 12 revocations", 20, count=1) == {}
    assert misses(calibration, "forecast seconds: at 30%", 20, count=2) == {}


@pytest.mark.slow
def test_lines_over_batches_keep_within_their_interval(calibration: ModuleType) -> None:
    assert misses(calibration, "examples to a target", 100, count=12) == {}


@pytest.mark.slow
def test_the_accuracy_of_one_more_run_keeps_within_its_interval(calibration: ModuleType) -> None:
    assert misses(calibration, "accuracy", 50, count=12) == {}


@pytest.mark.slow
def test_steps_to_a_target_keep_within_their_interval(calibration: ModuleType) -> None:
    assert misses(calibration, "steps to a target", 50, count=3) == {}
    assert misses(calibration, "seconds of a step of an unseen network", 200, count=1) == {}


def test_means_of_noise_over_stretches_have_the_variance_of_the_process(calibration: ModuleType) -> None:
    """Short against the correlation they are its values, long ones average it away; neighbours are correlated."""
    short = calibration.mean_correlation([0.0, 1.0], [0.001, 1.001], 1.0)
    assert short == pytest.approx(np.array([[1.0, math.exp(-1)], [math.exp(-1), 1.0]]), abs=2e-3)
    assert calibration.mean_correlation([0.0], [100.0], 1.0)[0, 0] == pytest.approx(2 / 100, rel=0.02)


def test_the_best_interval_of_one_more_run_is_that_of_random_effects(calibration: ModuleType) -> None:
    """The mean of n measured runs with the variance v, one more run: v (1 + 1/n), whatever the world."""
    measured, design = [np.array([0.1]), np.array([0.3])], [np.ones((1, 1))] * 2
    found = calibration.predictive(
        measured, design, lambda world: [np.array([[0.04]])] * 2, lambda world: (np.ones(1), 0.04, [np.zeros(1)] * 2)
    )
    low, high = found.quantile(0.05), found.quantile(0.95)
    assert (low + high) / 2 == pytest.approx(0.2, abs=1e-3)
    assert high - low == pytest.approx(2 * 1.645 * math.sqrt(0.04 * 1.5), rel=1e-3)
