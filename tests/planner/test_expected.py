"""A run is compared with what earlier runs lead to expect, and only where these say how far off that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.planner.choices import Choice
from transient_magics.planner.forecast import behind, expected
from transient_magics.planner.speeds.workloads import Estimate, Workload
from transient_magics.protocol.step_parts import StepParts
from transient_magics.spec import WorkerGroup

ZONE = "us-central1-a"
MEASURED = Workload("run-1", {"k80": Estimate(0.5, 0.0, "measured in 2 runs")}, speed_error=0.05)
FOUR = Choice((WorkerGroup("k80", 4, ZONE),))

speeds = st.floats(0.0, 20.0)
shares = st.floats(0.05, 0.99)
errors = st.floats(0.0, 0.5)
counts = st.integers(1, 8)


def of(count: int, gpu: str = "k80", servers: int = 1) -> Choice:
    return Choice((WorkerGroup(gpu, count, ZONE),), servers)


@given(speeds, shares, errors, counts)
def test_it_is_behind_where_it_is_outside_of_the_interval_and_below_the_share(
    speed: float, below: float, error: float, count: int
) -> None:
    workload, choice = replace(MEASURED, speed_error=error), of(count)
    wanted = expected(workload, choice)
    assert wanted
    assert wanted.speed == pytest.approx(2 * count)
    assert wanted.low <= wanted.speed <= wanted.high
    told = behind(workload, choice, speed, below)
    assert (told is not None) == (speed < wanted.low and speed < below * wanted.speed)
    if told:
        assert behind(workload, choice, speed / 2, below), "slower is no better"
        assert behind(replace(workload, speed_error=error + 1), choice, wanted.low, below) is None


@given(
    speeds, shares, counts,
    st.sampled_from([
        {"guess": "it has not trained for long"},
        {"compute": {"k80": Estimate(0.5, 0.3, "from clusters with other GPUs, by peak TFLOPS")}},
        {"compute": {"p100": Estimate(0.2, 0.0, "measured in 2 runs")}},
        {"synchronous": True},
        {"limit_measured": False, "service_seconds": 0.7},
    ]),
)  # fmt: skip
def test_a_guess_says_nothing_however_slow_the_run_is(
    speed: float, below: float, count: int, unknown: dict[str, Any]
) -> None:
    assert behind(replace(MEASURED, **unknown), of(count), speed, below) is None


def test_servers_whose_limit_nobody_saw_do_not_matter_far_below_it() -> None:
    known = replace(MEASURED, limit_measured=False, service_seconds=0.05)
    assert behind(known, of(1), 1.0, 0.8)
    assert behind(known, of(8), 1.0, 0.8) is None


@pytest.mark.parametrize(
    ("parts", "share", "why"),
    [
        (StepParts(pull=0.5, push=0.2, compute=0.3), 0.97,
         "the parameter server has no CPU to spare; --ps 2 would help"),
        (StepParts(input=0.5, compute=0.5), 0.2, "workers wait for their examples for 50% of their time"),
        (StepParts(pull=0.5, push=0.2, compute=0.3), 0.2, "variables and gradients are on their way for 70% of a step"),
        (StepParts(pull=0.1, compute=0.9), 0.2, "its workers compute slower than those did"),
        (StepParts(), 0.2, "its workers compute slower than those did"),
    ],
)  # fmt: skip
def test_it_says_what_takes_so_much_of_a_step_that_the_run_is_slow(parts: StepParts, share: float, why: str) -> None:
    rows = [{"split": parts.rounded, "server_share": share}, {"split": "torn"}]
    told = behind(MEASURED, FOUR, 4.0, 0.8, rows)
    assert str(told) == f"it makes 4 steps/s where earlier runs lead to expect 8 (7.37 to 8.69): {why}"
