"""Plans with a deadline, as they are asked for: what it costs, what others cost, and what cannot be met."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path

import pytest

import transient_magics as tm
from transient_magics.cli import arguments
from transient_magics.deadlines import simulation
from transient_magics.deadlines.decisions import Verdict, decide
from transient_magics.deadlines.situation import Situation
from transient_magics.errors import DeclarationError, PlanError
from transient_magics.panels import plan_html
from transient_magics.planner.deadlines.cost import drawn
from transient_magics.planner.plan import Plan
from transient_magics.spec.units import parse_deadline

WORK = {"workload": "icac19/resnet-32", "train_steps": 640_000}
HEADER = "zone,gpu,gpus_per_vm,seconds,available\n"


def planned(finish_by: float | str, **options: str) -> Plan:
    found = tm.plan("k80x4", **WORK, finish_by=finish_by, **options)
    assert isinstance(found, Plan)
    assert found.deadline is not None
    return found


@pytest.fixture(scope="module")
def within_20h() -> Plan:
    """One plan for all who only read it: it simulates hundreds of courses."""
    return planned("20h")


@pytest.mark.slow
def test_a_later_deadline_costs_less_and_courses_are_in_time(within_20h: Plan) -> None:
    told = within_20h.deadline
    assert told is not None
    assert [point.hours for point in told.curve] == sorted(point.hours for point in told.curve)
    dollars = [point.dollars for point in told.curve]
    assert all(later <= 1.03 * earlier for earlier, later in pairwise(dollars))
    assert dollars[-1] < 0.9 * dollars[0]
    assert told.requested.hours == 20
    for point in told.curve:
        assert point.low <= point.dollars <= point.high
        assert point.done_low <= point.done <= point.done_high
        assert point.chance >= 0.95, "5 % of speeds are below the lower end"


@pytest.mark.slow
def test_what_it_simulates_are_the_decisions_of_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Situation] = []

    def watched(sight: Situation) -> Verdict:
        seen.append(sight)
        return decide(sight)

    monkeypatch.setattr(simulation, "decide", watched)
    planned("20h")
    assert {each.most for each in seen} == {4}
    assert {len(each.kinds) for each in seen} == {1}
    assert len({tuple(sorted(each.workers.items())) for each in seen}) > 3, "clusters of several sizes"


@pytest.mark.slow
def test_text_and_html_say_what_it_costs_and_that_it_forecasts_no_zone(within_20h: Plan) -> None:
    plan = within_20h
    assert re.search(r"Done within 20 h: \$[\d.]+ \(\$[\d.]+ to \$[\d.]+\), after [\d.]+ h \(.* in time\.", str(plan))
    assert "Deadlines: 10." in str(plan)
    assert "not a forecast of a zone" in str(plan)
    assert "as many VMs at once as Google's zones had" in str(plan)
    assert "aria-label='Dollars over deadlines'" in plan_html(plan)
    assert "the band is the range of simulated runs" in plan_html(plan)


@pytest.mark.slow
def test_a_deadline_that_on_demand_would_miss_is_refused_with_the_nearest_which_then_is_met() -> None:
    with pytest.raises(PlanError, match=r"k80x4 cannot end in 5 h: on demand, .* it needs up to 1") as refused:
        planned(5)
    nearest = re.search(r"Use --finish-by (\d+m) or later", str(refused.value))
    assert nearest
    assert planned(nearest[1]).deadline


def test_drawn_markets_may_have_a_part_of_the_workers_and_one_worker_is_there_or_not() -> None:
    seen = {int(market(720.0 * place)) for market in drawn(4, 1e5, 60) for place in range(130)}
    assert seen == {0, 2, 4}
    assert {int(market(720.0 * place)) for market in drawn(1, 1e5, 20) for place in range(130)} == {0, 1}
    assert {int(market(0.0)) for market in drawn(40, 1.0, 100)} >= {0, 40}, "where all 16 were there"


@pytest.mark.nightly
@pytest.mark.slow
def test_it_is_simulated_on_measured_availability_that_is_named(tmp_path: Path) -> None:
    scarce, plenty = tmp_path / "scarce.csv", tmp_path / "plenty.csv"
    scarce.write_text(HEADER + "a,k80,1,0,0\na,k80,1,9000,4\na,k80,1,9600,0\na,k80,1,900000,\n", encoding="utf-8")
    plenty.write_text(HEADER + "a,k80,1,0,4\na,k80,1,900000,\n", encoding="utf-8")
    none, all_of_it = (planned("20h", availability=str(file)) for file in (scarce, plenty))
    assert none.deadline
    assert all_of_it.deadline
    assert none.deadline.requested.dollars > 1.5 * all_of_it.deadline.requested.dollars
    assert "plenty.csv says of 4 VMs: an example" in str(all_of_it)
    scarce.write_text(HEADER + "a,k80,1,0,1\na,k80,1,900000,\n", encoding="utf-8")
    few = planned("20h", availability=str(scarce))
    assert "scarce.csv says of 4 VMs (all of them or none, where it never counts as many)" in str(few)
    scarce.write_text(HEADER.replace("gpu,", "card,"), encoding="utf-8")
    with pytest.raises(DeclarationError, match=r"scarce\.csv: unknown column 'card'"):
        planned("20h", availability=str(scarce))


@pytest.mark.nightly
@pytest.mark.slow
def test_it_is_simulated_on_capacity_like_googles_of_2025() -> None:
    plan = planned("20h", availability="google-h100-2025")
    assert plan.deadline
    assert plan.deadline.runs >= 150
    assert "google-h100-2025 says of 4 VMs" in str(plan)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"finish_by": "soon"}, "Invalid deadline 'soon'"),
        ({"finish_by": "25:00"}, "Invalid deadline '25:00'"),
        ({"finish_by": 0.0}, "The deadline has already passed"),
        ({"finish_by": "20h", "provisioning_model": "standard"}, "on demand only"),
        ({"finish_by": "20h", "spec": ""}, "--finish-by needs a SPEC"),
        ({"availability": "f.csv"}, "needs --finish-by"),
        ({"finish_by": "20h", "availability": "/no/such.csv"}, "cannot be read"),
        ({"finish_by": "20h", "mode": "sync"}, "needs --mode async"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises((DeclarationError, PlanError), match=re.escape(said)):
        tm.plan(**{"spec": "k80x4", **WORK, **options})


def test_a_clock_is_its_next_such_moment_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        morning = 1_711_800_000.0  # 2024-03-30 13:00 there; that night clocks go forward
        assert parse_deadline("18:00", "--finish-by", morning) == 5 * 3600
        assert parse_deadline("12:00", "--finish-by", morning) == 22 * 3600, "an hour of it is left out"
        assert parse_deadline("13:00", "--finish-by", morning) == 23 * 3600, "now is not next"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_line_says_it_too() -> None:
    line = "k80x4 --workload icac19/resnet-32 --train-steps 640000 --finish-by 20h"
    assert arguments.parse("plan", line.split()).values["finish_by"] == "20h"
