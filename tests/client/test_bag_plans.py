"""Plans for bags: what they say, from Python and in a line, and what is refused in one sentence."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import transient_magics as tm
from transient_magics.cli import arguments
from transient_magics.client import Declaration
from transient_magics.client.declaring.specification import specify
from transient_magics.errors import DeclarationError, PlanError, TransientError
from transient_magics.works.bags.declare import lifetimes
from transient_magics.works.bags.driver.decisions import Lifetimes
from transient_magics.works.bags.plans import BagPlan, parse_job_time

ASKED: dict[str, Any] = {"bag": True, "jobs": 30, "job_time": "1h:3h"}


@pytest.mark.slow
def test_a_bag_is_planned_by_policy_and_type() -> None:
    found = tm.plan("cpux4 + k80x2", **{**ASKED, "job_time": "cpu=2h,k80=20m"}, provisioning_model="preemptible")
    assert isinstance(found, BagPlan)
    assert [(row.kind, row.policy) for row in found.rows] == [
        ("cpux4", "reuse"), ("cpux4", "memoryless"), ("k80x2", "reuse"), ("k80x2", "memoryless"),
    ]  # fmt: skip
    assert found.best.dollars == min(row.dollars for row in found.rows)
    for row in found.rows:
        for what in ("hours", "dollars", "failed"):
            low, high = row.interval(what)
            assert low <= getattr(row, what) * 1.3 + 1
            assert getattr(row, what) <= high * 1.3 + 1
        assert row.dollars < row.on_demand_dollars
    said = str(found)
    condition = "if capacity for preemptible VMs lasts"
    assert f"A bag of 30 jobs, {condition}, lifetimes as published in 2019 for preemptible VMs." in " ".join(
        said.split()
    )
    assert "In brackets where 90% of 200 simulated bags lie." in " ".join(said.split())
    figure = r"\$\d+\.\d\d"
    assert re.search(
        rf"{figure} \({figure} to {figure}\) +\d+(\.\d)? \(\d+(\.\d)? to \d+(\.\d)?\) +{figure}$", said, re.M
    )
    assert sum(line.startswith(">") for line in said.splitlines()) == 1
    assert max(map(len, said.splitlines())) < 110
    with pytest.raises(PlanError, match="An interval needs hours, dollars or failed"):
        found.best.interval("luck")


def test_on_demand_nothing_fails_and_policies_are_one() -> None:
    (row,) = tm.plan("cpux4", **ASKED, provisioning_model="standard").rows  # type: ignore[union-attr]
    assert (row.policy, row.failed) == ("any", 0.0)


@pytest.mark.slow
def test_it_costs_what_a_cluster_for_jobs_does_or_one_whose_scheduler_has_so_many_cores() -> None:
    def hourly(**more: Any) -> float:
        return specify(Declaration("cpux4", name="many", purpose="jobs", **more)).prices["parameter-server"].hourly

    asked = {**ASKED, "policy": "reuse"}
    (usual,), (large,) = (tm.plan("cpux4", **asked, **more).rows for more in ({}, {"ps_cores": 4}))  # type: ignore[union-attr]
    assert hourly() < hourly(ps_cores=4)
    assert large.dollars - usual.dollars == pytest.approx(usual.hours * (hourly(ps_cores=4) - hourly()))


def test_a_line_is_read_as_the_client_takes_it() -> None:
    line = "cpux4 --bag --jobs 30 --job-time 1h:3h --policy memoryless --save-time 20s"
    command = arguments.parse("plan", arguments.split(line))
    (row,) = tm.plan(**command.values).rows  # type: ignore[union-attr]
    assert row.policy == "memoryless"
    for wrong, said in (
        ("cpux4 --bag --jobs 30", "--bag needs --job-time"), ("--bag --jobs 3 --job-time 1h", "--bag needs a SPEC"),
        ("cpux4 --workload w --train-steps 5 --jobs 3", "--jobs needs --bag"),
        ("cpux4 --bag --jobs 0 --job-time 1h", "--jobs must be a whole number of at least 1"),
    ):  # fmt: skip
        with pytest.raises(DeclarationError, match=said):
            arguments.parse("plan", arguments.split(wrong))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"job_time": "3h:1h"}, "The range 3h:1h is empty"), ({"job_time": "soon"}, "Invalid duration 'soon'"),
        ({"job_time": "k80=1h"}, "--job-time has no time for the CPU"), ({"job_time": None}, "needs --job-time"),
        ({"jobs": None}, "needs --jobs"), ({"jobs": 10**9}, "needs --jobs"), ({"spec": ""}, "needs VMs"),
        ({"revocations": 3}, "needs lifetimes, not a number"),
        ({"policy": "hope"}, "Unknown policy 'hope'"),
        ({"spare": 2.0}, "--spare must be from 0 to 1"),
        ({"workload": "icac19/resnet-32"}, "A plan for a bag cannot have a workload"),
        ({"bag": False, "workload": "icac19/resnet-32"}, "--jobs and --job-time need --bag"),
        ({"provisioning_model": "cheap"}, "Unknown provisioning model 'cheap'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(TransientError) as error:
        tm.plan(**{"spec": "cpux4", **ASKED, **asked})
    assert said in str(error.value)


def test_the_time_of_a_job_is_one_a_range_or_one_by_gpu() -> None:
    assert parse_job_time(2) == {"": (2.0, 2.0)}
    assert parse_job_time("90m") == {"": (1.5, 1.5)}
    assert parse_job_time("1h:3h,K80=30m") == {"": (1.0, 3.0), "k80": (0.5, 0.5)}


def test_a_bags_driver_is_told_the_published_lifetimes_of_its_vms_and_the_day_that_preemptible_ones_have() -> None:
    kinds: dict[str, Any] = {}
    for model in ("spot", "preemptible"):
        spec = specify(Declaration("cpux2", name="many", purpose="jobs", provisioning_model=model))
        told = kinds[model] = lifetimes(spec, 360.0, revoked=True).survival
        assert told is not None
        assert told.survival(np.array([0.0, 12.0]))[1] < 1
        assert lifetimes(spec, 360.0, revoked=False) == Lifetimes(None, 0.1, 0.0)
    assert [float(kinds[model].survival(np.array(24.1))) > 0 for model in ("spot", "preemptible")] == [True, False]
