"""How advice on Spot capacity ranks the zones of a GPU, and when it is asked for."""

from __future__ import annotations

from dataclasses import replace

from test_capacity import NOW, SPEC, ZONES, refused

from transient_magics.controller.decisions.capacity import (
    AGAIN_SECONDS,
    Capacity,
    Offer,
    due,
    phrase,
    questions,
    ranked,
)
from transient_magics.journal import ClusterState, events
from transient_magics.spec import PriceLine

HOME, BESIDE, FAR = ZONES
HOURS = 3600.0
# Traffic between the zones of a region costs something, that between regions more.
PRICED = replace(SPEC, transfer_prices={BESIDE: 0.01, FAR: 0.02})


def advice(**zones: tuple[float, float]) -> events.ClusterAdvised:
    given = {zone.replace("_", "-"): chance for zone, chance in zones.items()}
    return events.ClusterAdvised(time=int(NOW * 1e9), accelerator="v100", zones=given)


def test_without_advice_and_with_advice_gone_stale_the_declared_order_holds() -> None:
    given = advice(us_west1_b=(0.1, 0.0), us_west1_a=(0.9, 0.0))
    assert ranked(SPEC, "v100", ZONES, None, NOW) == ZONES
    assert ranked(SPEC, "v100", ZONES, given, NOW + 2 * HOURS) == ZONES
    assert ranked(SPEC, "v100", ZONES, given, NOW + 60) == (BESIDE, FAR, HOME)


def test_advice_breaks_ties_of_price_and_nothing_else() -> None:
    given = advice(us_west1_b=(0.5, 0.0), us_west1_a=(0.7, 0.0), us_east1_c=(0.9, 0.0))
    assert ranked(SPEC, "v100", ZONES, given, NOW) == (FAR, BESIDE, HOME)
    assert ranked(PRICED, "v100", ZONES, given, NOW) == ZONES
    dearer = replace(SPEC, prices={**SPEC.prices, f"v100@{FAR}": PriceLine("n1-standard-8", 2.0, 3.0, "test")})
    assert ranked(dearer, "v100", ZONES, given, NOW) == (BESIDE, HOME, FAR)


def test_of_equally_likely_zones_the_one_where_vms_run_longer_comes_first() -> None:
    given = advice(us_west1_b=(0.71, 4 * HOURS), us_west1_a=(0.69, 20 * HOURS), us_east1_c=(0.7, 9 * HOURS))
    assert ranked(SPEC, "v100", ZONES, given, NOW) == (BESIDE, FAR, HOME)


def test_of_equally_likely_zones_the_one_where_fewer_were_preempted_lately_comes_first() -> None:
    given = advice(us_west1_b=(0.71, 20 * HOURS), us_west1_a=(0.69, 4 * HOURS), us_east1_c=(0.7, 9 * HOURS))
    told = replace(given, preempted={HOME: 0.52, BESIDE: 0.11, FAR: 0.33})
    assert ranked(SPEC, "v100", ZONES, told, NOW) == (BESIDE, FAR, HOME)
    assert ranked(PRICED, "v100", ZONES, told, NOW) == ZONES, "of equally dear ones"
    noise = replace(given, preempted={HOME: 0.31, BESIDE: 0.33, FAR: 0.29})
    assert ranked(SPEC, "v100", ZONES, noise, NOW) == (HOME, FAR, BESIDE), "by how long they run"
    partly = replace(given, preempted={HOME: 0.8, BESIDE: 0.2})
    assert ranked(SPEC, "v100", ZONES, partly, NOW) == (BESIDE, FAR, HOME), "what is not known is as usual"


def test_zones_where_a_vm_is_hardly_to_be_had_come_last_however_cheap() -> None:
    given = advice(us_west1_b=(0.02, 20 * HOURS), us_west1_a=(0.4, HOURS), us_east1_c=(0.9, HOURS))
    assert ranked(PRICED, "v100", ZONES, given, NOW) == (BESIDE, FAR, HOME)


def test_the_next_vm_goes_where_the_ranking_says_on_demand_ones_where_declared() -> None:
    given = {"v100": advice(us_west1_b=(0.02, 0.0), us_west1_a=(0.9, 0.0))}
    capacity = Capacity(SPEC, [], NOW, given)
    assert capacity.offer("worker", 0, "v100", ZONES, "spot") == Offer(BESIDE, "spot")
    assert capacity.offer("worker", 0, "v100", ZONES, "standard") == Offer(HOME, "standard")
    named = Capacity(SPEC, [refused(1, BESIDE, "stockout", hints=(HOME,))], NOW, given)
    assert named.offer("worker", 0, "v100", ZONES, "spot") == Offer(HOME, "spot"), "a stockout's hint is newer"


def test_it_is_asked_for_once_and_again_only_after_a_stockout_and_a_quarter_of_an_hour() -> None:
    state = ClusterState(name="one", spec=SPEC, phase="provisioning")
    assert due(state, {}, NOW) == ["v100"]
    assert due(state, {"v100": NOW}, NOW + 10 * AGAIN_SECONDS) == []
    sold_out = replace(state, vms={"worker-1": refused(1, HOME, "stockout", ago=-5)})
    assert due(sold_out, {"v100": NOW}, NOW + 60) == []
    assert due(sold_out, {"v100": NOW}, NOW + AGAIN_SECONDS) == ["v100"]
    assert due(sold_out, {"v100": NOW + 10}, NOW + 2 * AGAIN_SECONDS) == [], "that stockout was known"
    assert due(replace(state, phase="deleting"), {}, NOW) == []


def test_there_is_nothing_to_ask_about_one_zone_or_about_vms_on_demand() -> None:
    assert questions(SPEC) == {"v100": ZONES}
    assert questions(replace(SPEC, candidates={"v100": (HOME,)})) == {}
    assert questions(replace(SPEC, provisioning_model="standard")) == {}


def test_the_phrase_names_the_likelier_zone_and_the_one_that_is_asked_first() -> None:
    given = advice(us_west1_b=(0.5, 0.0), us_west1_a=(0.9, 12 * HOURS))
    assert phrase(given, (BESIDE, HOME)) == "prefers us-west1-a (90% likely, most run 12 h)"
    told = replace(given, preempted={BESIDE: 0.12})
    assert phrase(told, (BESIDE, HOME)) == "prefers us-west1-a (90% likely, 12% preempted lately, most run 12 h)"
    assert phrase(given, (HOME, BESIDE)).endswith("to us-west1-b (50% likely), which is nearer or cheaper")
