"""Prices have a day: old ones come with a warning, and widen what is computed with them."""

from __future__ import annotations

import calendar
from dataclasses import replace

import numpy as np
import pytest

from tests.panels import stories
from transient_magics.catalog import ACCELERATORS, ICAC19, ZONES, age_days, item_price, price_list, worker_price
from transient_magics.catalog.prices import REFRESH, VmPrice, drift
from transient_magics.client.declaring.dry_run import Preview
from transient_magics.planner.choices import Choice
from transient_magics.planner.plan import Plan, make_plan
from transient_magics.planner.speeds.workloads import PUBLISHED
from transient_magics.spec import parse_groups
from transient_magics.spec.cluster import age_words
from transient_magics.works.bags.policy.simulate import Bag, simulate

NOW = calendar.timegm((2026, 11, 27, 0, 0, 0))


@pytest.mark.parametrize(
    ("as_of", "days"),
    [("2026-09-26", 62), ("~2026-09-01 of us-east1", 87), ("2026-11", 26), ("2025", 514), ("2027-01-01", 0)],
)
def test_an_age_is_counted_from_the_day_of_a_price(as_of: str, days: int) -> None:
    assert age_days(as_of, NOW) == days
    assert drift(as_of, NOW) == pytest.approx(min(0.08 * days / 30.44, 0.3), rel=1e-3)


def test_an_old_price_says_so_and_how_to_get_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transient_magics.catalog.prices.time.time", lambda: NOW)
    young, old = (VmPrice(1.0, 0.5, "list", as_of, as_of).age_words for as_of in ("2026-11-20", "2026-09-26"))
    assert young == "Spot prices are of 2026-11-20, 7 days old."
    assert old == f"Spot prices are of 2026-09-26, 62 days old. {REFRESH}"
    assert ICAC19.worker_price("k80").age_words == "", "a publication's prices stand for themselves"


def planned(spec: str, provisioning: str = "spot") -> Plan:
    choice = Choice(parse_groups(spec, ACCELERATORS, ZONES), provisioning=provisioning)
    workload = replace(PUBLISHED["icac19/resnet-32"], speed_error=0.0, limit_error=0.0, scaling_error=0.0)
    return make_plan(choice, replace(workload, prices=replace(workload.prices, servers={})), 64_000, runs=2000)


def test_old_spot_prices_widen_the_dollars_of_plans_and_bags_and_keep_their_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh, old = VmPrice(2.48, 1.0, "list", "2026-11-27", "2026-11-27"), VmPrice(2.48, 1.0, "list", "2022", "2022")
    monkeypatch.setattr("transient_magics.catalog.prices.time.time", lambda: NOW)
    plans = []
    for price in (fresh, old):
        monkeypatch.setattr(Choice, "worker_price", lambda self, workload, group, price=price: price)
        plans.append(planned("v100x8@us-central1-a"))
    (low, high), (least, most) = (plan.interval("dollars") for plan in plans)
    assert most / least > 2 > 1.05 * high / low
    assert plans[1].dollars == pytest.approx(plans[0].dollars, rel=0.03)
    assert plans[1].interval("hours") == plans[0].interval("hours")
    assert "Spot prices are of 2022" in str(plans[1])
    assert "Spot prices" not in str(planned("v100x8@us-central1-a", "standard"))
    bag = Bag(20, 1.0, 1.0, 4, 1.0, None, price_error=0.3)
    dollars = simulate(bag, "reuse", courses=400).dollars
    assert np.log(dollars).std() == pytest.approx(0.3, rel=0.2)


def test_the_local_ssds_that_come_with_a_machine_are_paid_for() -> None:
    """As listed on 1 September 2026: $5.06879789 an hour for an a2-ultragpu-1g; an a3-highgpu-1g costs $11.0612."""
    for gpu, gb, whole in (("a100-80gb", 375, 5.06879789), ("h100", 750, 11.0612)):
        price, bare = (
            price_list([gpu], external_ip=False).worker_price(gpu, "us-central1-a"),
            worker_price(gpu, "us-central1"),
        )
        ssd, disk = gb * 0.08 / 730, 50 * item_price("pd-balanced", "us-central1")[0] / 730
        assert price.on_demand == pytest.approx(whole + disk, abs=2e-4)
        assert price.transient == pytest.approx(bare.transient + ssd + disk)
        assert price.transient_extras == pytest.approx(ssd + disk)
    assert worker_price("h100", "us-central1").transient == pytest.approx(6.571)
    assert worker_price("a100", "us-central1").transient == pytest.approx(2.12081)


def test_the_age_of_prices_is_in_dry_runs_and_an_unconfirmed_price_has_two_digits() -> None:
    spec = stories.declaration()
    assert age_words(spec) == "", "ICAC'19's"
    t4 = replace(spec, groups=tuple(parse_groups("t4x2@us-central1-a", ACCELERATORS, ZONES)))
    assert age_words(t4).startswith("Spot prices are of ")
    assert age_words(t4) in Preview(t4).doubts
    assert age_words(replace(t4, provisioning_model="standard")) == ""
    said = str(planned("v100x2@us-central1-a+v100@us-east1-c"))
    assert "per million steps, by an unconfirmed price." in said
    assert "costs about $2" in said
