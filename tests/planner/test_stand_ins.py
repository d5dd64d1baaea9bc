"""Where nobody published a GPU's lifetimes, plans say what stands in, and are as unsure as regions differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import transient_magics as tm
from tests.panels import stories
from tests.planner.test_learning import BEGAN, story
from transient_magics.catalog import ACCELERATORS, ZONES
from transient_magics.catalog.published import LAST_HOUR, lifetimes, stand_in_tables, stand_in_words, tables
from transient_magics.client.declaring.dry_run import Preview
from transient_magics.journal import RunState, events, replay
from transient_magics.panels.offer import _risk
from transient_magics.planner.choices import Choice
from transient_magics.planner.forecast import ending_words, forecast
from transient_magics.planner.lifetimes.kaplan_meier import BLOCKS, Capped, resampled
from transient_magics.planner.lifetimes.sources import emulated_lifetimes, published_lifetimes, stand_in
from transient_magics.planner.plan import Plan, make_plan
from transient_magics.planner.run_records import record
from transient_magics.planner.speeds.workloads import PUBLISHED
from transient_magics.spec import parse_groups

T4 = (
    "No lifetimes of the T4 were published. Of 396 preemptible VMs with K80, P100 or V100 were revoked: 23% within 1 h "
    "(0% to 67% by region)"
)
CONDITIONS = {"spot": ", if Spot capacity lasts", "preemptible": ", if capacity for preemptible VMs lasts"}
SHORT = "no lifetimes of the T4 were published: those of 396 preemptible VMs with K80, P100 or V100 stand in"


def planned(spec: str, provisioning: str = "spot") -> Plan:
    choice = Choice(parse_groups(spec, ACCELERATORS, ZONES), provisioning=provisioning)
    return make_plan(choice, PUBLISHED["icac19/resnet-32"], 1_000_000, published_lifetimes, runs=1000)


def test_every_region_of_a_gpu_that_nobody_published_has_the_same_lifetimes() -> None:
    ages = np.array([1.0, 8.0, 24.0, 60.0])
    here, there = published_lifetimes("t4", "us-east4"), published_lifetimes("l4", "asia-east1")
    assert here.survival(ages) == pytest.approx(there.survival(ages))
    assert here.survival(ages[2:3]) == pytest.approx(
        [1 - sum(each.revoked[-1] for each in tables() if each.gpu != "cpu") / 396]
    )
    assert stand_in_tables("k80", "us-west1") == []
    assert len(stand_in_tables("k80", "us-east4")) == len(stand_in_tables("t4", "us-west1")) == 12


@pytest.mark.parametrize(("gpu", "region", "least"), [("t4", "us-east1", 0.4), ("cpu", "us-central1", 0.1)])
def test_courses_are_drawn_with_the_lifetimes_of_one_table_or_another(gpu: str, region: str, least: float) -> None:
    model = resampled(published_lifetimes(gpu, region), 3)
    share = np.repeat(np.linspace(0.005, 0.995, 100)[np.newaxis], BLOCKS, axis=0)
    lost = (model.quantile(share) <= LAST_HOUR).mean(axis=1)
    low, high = np.quantile(lost, [0.05, 0.95])
    assert high - low > least, "tables differ from 23% to 73%; of the one table without a GPU by as much in the hazard"
    assert lost.mean() == pytest.approx(1 - float(published_lifetimes(gpu, region).survival(np.array(24.0))), abs=0.04)


def test_a_plan_names_what_stands_in_and_gives_a_range_of_workers_lost() -> None:
    for plan in (planned("t4x4"), planned("t4x4", "preemptible")):
        said = str(plan)
        assert said.count(T4) == 1
        low, high = plan.interval("revocations")
        assert high - low > 0.5 * plan.revocations
        assert f"{plan.revocations:.2g} ({low:.0f} to {high:.0f}) workers lost" in said
    assert "No lifetimes" not in str(planned("k80x4@us-west1-b"))
    assert "of the P100 in asia-east1 were published" in str(planned("p100x4@asia-east1-a"))


@pytest.mark.parametrize(("gpu", "region"), [("t4", "us-central1"), ("k80", "us-east4"), ("cpu", "us-west1")])
def test_the_emulators_vms_are_planned_as_its_weather_takes_them(gpu: str, region: str) -> None:
    ages = np.array([1.0, 2.0, 12.0, 24.0])
    model, used = emulated_lifetimes(gpu, region), lifetimes(gpu, region)
    assert model.survival(ages) == pytest.approx([1 - used.fraction(3600 * age) for age in ages], abs=1e-6)
    assert (1 - model.survival(np.array(40.0)) / model.survival(np.array(30.0))) == pytest.approx(
        used.risk(30 * 3600, 40 * 3600), rel=0.05
    )
    assert stand_in(model) == ""


def test_dry_runs_the_declare_panel_and_bag_plans_name_it_too() -> None:
    assert _risk("t4", "us-central1").startswith(T4)
    assert _risk("k80", "us-west1").startswith("Revoked of 48 preemptible K80 VMs in us-west1")
    spec = replace(stories.declaration(project="my-project", give_up="riskiest"), zones=("asia-east1-a",))
    assert stand_in_words("k80", "asia-east1") in Preview(spec).doubts
    assert not [each for each in Preview(stories.declaration(project="my-project")).doubts if "lifetimes" in each]
    bag = tm.plan("cpux2", bag=True, jobs=4, job_time="1h", zone=("us-central1-a",))
    assert "No lifetimes of VMs without a GPU in us-central1 were published." in " ".join(str(bag).split())
    assert stand_in(None) == stand_in(Capped(published_lifetimes("cpu", "us-east1"), 24.0)) == ""


@pytest.mark.parametrize(("gpu", "provisioning", "said"), [
    ("t4", "spot", f"; {SHORT}"),
    ("t4", "standard", ""), ("k80", "spot", ""), ("k80", "preemptible", ""),
])  # fmt: skip
def test_the_forecast_of_a_run_names_it_in_a_clause(gpu: str, provisioning: str, said: str) -> None:
    history, rows = story(revoked=False)
    now = BEGAN + 110
    past = [
        replace(event, accelerator=gpu, provisioning_model=provisioning)
        if isinstance(event, events.VmRequested) and event.role == "worker"
        else event
        for event in history
        if event.at <= now
    ]
    state = replay(past)
    seen = record(past, [row for row in rows if row["time"] / 1e9 <= now], "run-1")
    found = forecast(state, now, state.of(RunState)["run-1"], seen, published_lifetimes)
    for words in (str(found), ending_words(found)):
        assert [model for model in CONDITIONS if f"{CONDITIONS[model]}; this run" in words] == [
            model for model in CONDITIONS if model == provisioning
        ]
        assert words.count("lifetimes") == bool(said)
        assert said in words
