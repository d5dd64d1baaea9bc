"""Where a VM is asked for next, after refusals of every kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.controller.decisions.capacity import Capacity, Offer
from transient_magics.journal import VmState
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup

NOW = 1_000_000.0
ZONES = ("us-west1-b", "us-west1-a", "us-east1-c")
SPEC = ClusterSpec(
    name="one",
    groups=(WorkerGroup("v100", 4),),
    zones=ZONES[:1],
    prices={"v100": PriceLine("n1-standard-8", 1.0, 3.0, "test"), "parameter-server": PriceLine("n1", 1, 1, "test")},
    candidates={"v100": ZONES},
    declared_at=NOW - 9000,
)


def refused(
    number: int, zone: str, cause: str, *, ago: float = 1.0, slot: int = 0, hints: tuple[str, ...] = (),
    model: str = "spot",
) -> VmState:  # fmt: skip
    return VmState(
        f"worker-{number}", "worker", slot, zone, "v100", "n1-standard-8", model, 1.0, 3.0, state="refused",
        cause=cause, hints=hints, requested_at=NOW - ago - 1, ended_at=NOW - ago,
    )  # fmt: skip


def ran(number: int, zone: str, *, slot: int = 0) -> VmState:
    return replace(refused(number, zone, "", slot=slot), state="ready", running_at=NOW - 1)


def offer(*vms: VmState, slot: int = 0, spec: ClusterSpec = SPEC, after: float = 0.0) -> Offer | None:
    return Capacity(spec, vms, NOW + after).offer("worker", slot, "v100", ZONES, "spot")


def test_the_first_zone_is_asked_first() -> None:
    assert offer() == Offer("us-west1-b", "spot")


def test_a_stockout_closes_the_zone_for_everyone_who_wants_that_machine() -> None:
    assert offer(refused(1, "us-west1-b", "stockout", slot=3)) == Offer("us-west1-a", "spot")


def test_a_closed_zone_opens_again_later_and_ever_later() -> None:
    once = refused(1, "us-west1-b", "stockout")
    assert offer(once, after=40) == Offer("us-west1-b", "spot")
    often = [refused(number, "us-west1-b", "stockout", ago=11 - 2 * number) for number in range(6)]
    assert offer(*often, after=40) == Offer("us-west1-a", "spot")
    assert offer(*often, after=1200) == Offer("us-west1-b", "spot")


@pytest.mark.parametrize("cause", ["stockout", "quota"])
def test_vms_that_were_asked_for_together_are_refused_once(cause: str) -> None:
    once, together = (
        [refused(number, zone, cause, slot=number) for zone in ZONES for number in range(count)] for count in (1, 8)
    )
    for after in (30, 60, 300, 600):
        assert offer(*together, after=after) == offer(*once, after=after)


def test_a_vm_that_came_to_run_opens_its_zone() -> None:
    assert offer(refused(1, "us-west1-b", "stockout"), ran(2, "us-west1-b", slot=1)) == Offer("us-west1-b", "spot")


def test_of_two_answers_the_later_one_counts_whichever_was_asked_for_first() -> None:
    came = replace(ran(1, ZONES[0], slot=1), requested_at=NOW - 60, running_at=NOW - 20)
    before, after = (refused(number, ZONES[0], "stockout", ago=ago) for number, ago in ((0, 30.0), (2, 10.0)))
    for asked in ([came, before], [before, came]):
        assert offer(*asked) == Offer(ZONES[0], "spot")
    for asked in ([came, after], [after, came]):
        assert offer(*asked) == Offer(ZONES[1], "spot")


def test_vms_that_got_the_last_of_a_quota_do_not_open_the_zone_for_the_others() -> None:
    """Asked for with one request: two come, the third is refused; the two run somewhat later."""
    beyond = replace(refused(3, ZONES[0], "quota", ago=30.0), requested_at=NOW - 40)
    came = [replace(ran(number, ZONES[0], slot=number), requested_at=NOW - 40) for number in (1, 2)]
    region = ZONES[0].rpartition("-")[0]
    found = offer(*came, beyond)
    assert found
    assert not found.zone.startswith(region)
    later = replace(ran(4, ZONES[0], slot=4), requested_at=NOW - 20)
    assert offer(*came, beyond, later) == Offer(ZONES[0], "spot"), "more quota was given meanwhile"


@pytest.mark.parametrize("cause", ["quota", "quota everywhere"])
def test_a_vm_under_notice_holds_its_quota_and_its_replacement_waits_for_its_end(cause: str) -> None:
    """With a quota of exactly the cluster's size, the replacement is refused until the revoked VM is gone."""
    leaving = replace(ran(1, ZONES[0]), state="leaving", noticed_at=NOW - 60)
    beyond = refused(2, ZONES[0], cause, ago=50.0)
    eager = replace(SPEC, fallback_seconds=10.0)
    assert offer(leaving, beyond, spec=eager) is None, "neither in another region nor on demand"
    gone = replace(leaving, state="revoked", ended_at=NOW + 60)
    assert offer(gone, beyond, spec=eager, after=64) is None
    assert offer(gone, beyond, spec=eager, after=66) == Offer(ZONES[0], "spot"), "not five minutes later"
    again = replace(refused(3, ZONES[0], cause), requested_at=NOW + 66, ended_at=NOW + 67)
    assert offer(gone, beyond, again, after=70) == (
        None if cause == "quota everywhere" else Offer("us-east1-c", "spot")
    ), "a refusal behind its end is one for good"


def test_a_vm_under_notice_elsewhere_holds_no_quota_of_this_region() -> None:
    leaving = replace(ran(1, "us-east1-c", slot=1), state="leaving", noticed_at=NOW - 60)
    assert offer(leaving, refused(2, ZONES[0], "quota", ago=50.0)) == Offer("us-east1-c", "spot")


def test_a_place_that_has_another_gpu_since_a_resize_begins_anew() -> None:
    other = [replace(refused(number, ZONES[0], "other"), accelerator="k80") for number in range(9)]
    assert offer(*other) == Offer(ZONES[0], "spot")
    spec = replace(SPEC, fallback_seconds=600.0)
    short = [refused(number, zone, "stockout", ago=650) for number, zone in enumerate(ZONES)]
    k80 = replace(ran(9, ZONES[0]), accelerator="k80")
    assert offer(*short, k80, spec=spec) == Offer(ZONES[0], "standard")


def test_zones_that_google_names_are_asked_first() -> None:
    named = refused(1, "us-west1-b", "stockout", hints=("europe-west4-a", "us-east1-c"))
    assert offer(named) == Offer("us-east1-c", "spot")
    assert offer(named, after=400) == Offer("us-west1-b", "spot")


def test_a_used_up_quota_closes_the_region() -> None:
    assert offer(refused(1, "us-west1-b", "quota")) == Offer("us-east1-c", "spot")


def test_a_used_up_quota_of_all_regions_closes_them_all_on_whatever_terms() -> None:
    everywhere = refused(1, "us-west1-b", "quota everywhere")
    assert offer(everywhere) is None
    assert offer(everywhere, slot=1) is None, "for every place that wants that machine"
    assert offer(everywhere, spec=replace(SPEC, fallback_seconds=0.5)) is None
    assert Capacity(SPEC, [everywhere], NOW).offer("ps", 0, "", ZONES, "standard"), "other machines are asked for"
    assert offer(everywhere, after=400) == Offer("us-west1-b", "spot")


def test_a_missing_right_is_waited_for_longer_than_a_passing_failure() -> None:
    for cause, first, later in (("other", 3, 330), ("access", 40, 1130)):
        once, often = [refused(1, ZONES[0], cause)], [refused(number, ZONES[0], cause) for number in range(12)]
        assert offer(*once) is None
        assert offer(*once, after=first) == Offer("us-west1-b", "spot")
        assert offer(*often, after=later * 0.6) is None
        assert offer(*often, after=later) == Offer("us-west1-b", "spot")


def test_without_any_capacity_the_place_waits() -> None:
    assert offer(*(refused(number, zone, "stockout") for number, zone in enumerate(ZONES))) is None


def test_after_the_fallbacks_time_workers_are_asked_for_on_demand() -> None:
    spec = replace(SPEC, fallback_seconds=600.0)
    nowhere = [refused(number, zone, "stockout", ago=100) for number, zone in enumerate(ZONES)]
    early = [*nowhere, *(refused(9 + number, zone, "stockout") for number, zone in enumerate(ZONES))]
    assert offer(*early, spec=spec) is None
    late = [refused(1, "us-west1-b", "stockout", ago=650), *early]
    assert offer(*late, spec=spec) == Offer("us-west1-b", "standard")
    assert offer(*late, spec=SPEC) is None
    dear = [*late, *(refused(20 + n, zone, "stockout", model="standard") for n, zone in enumerate(ZONES))]
    assert offer(*dear, spec=spec, after=120) == Offer("us-west1-b", "standard")


def test_what_is_sold_as_spot_only_is_never_asked_for_on_demand() -> None:
    spec = replace(SPEC, fallback_seconds=600.0)
    tried = [
        refused(1, "us-west1-b", "stockout", ago=650),
        *(refused(n, zone, "stockout") for n, zone in enumerate(ZONES)),
    ]
    for gpu, model in (("v100", "standard"), ("cpu", "standard"), ("h100", "spot")):
        same = [replace(vm, accelerator=gpu) for vm in tried]
        offered = Capacity(spec, same, NOW + 120).offer("worker", 0, gpu, ZONES, "spot")
        assert offered
        assert offered.provisioning_model == model


causes = st.sampled_from(["stockout", "quota", "quota everywhere", "access", "other"])


@given(st.lists(st.tuples(st.sampled_from(ZONES), causes, st.integers(0, 3)), max_size=40))
def test_whatever_was_refused_it_is_asked_for_again_within_the_hour(refusals: list[tuple[str, str, int]]) -> None:
    vms = [refused(number, zone, cause, slot=slot) for number, (zone, cause, slot) in enumerate(refusals)]
    for slot in range(4):
        assert offer(*vms, slot=slot, after=3600 * 1.25) is not None


def wait(*vms: VmState, zone: str = ZONES[0], slot: int = 9, model: str = "spot", spec: ClusterSpec = SPEC) -> float:
    """How many seconds from now on a VM in this zone alone is not asked for."""
    low, high = 0.0, 8000.0
    for _ in range(40):
        middle = (low + high) / 2
        offered = Capacity(spec, vms, NOW + middle).offer("worker", slot, "v100", (zone,), model)
        low, high = (low, middle) if offered else (middle, high)
    return round(high, 6)


def in_a_row(count: int, cause: str) -> list[VmState]:
    """Each asked for at the moment at which the one before was refused, the last one now."""
    return [
        replace(refused(1, ZONES[0], cause), requested_at=NOW + 1 - count + nth, ended_at=NOW + 2 - count + nth)
        for nth in range(count)
    ]


@pytest.mark.parametrize(
    ("cause", "first", "longest"),
    [
        ("stockout", 30, 900), ("quota", 300, 3600), ("quota everywhere", 300, 3600), ("access", 30, 900),
        ("other", 2, 300),
    ],
)  # fmt: skip
def test_each_further_refusal_makes_the_wait_twice_as_long_up_to_the_longest(
    cause: str, first: float, longest: float
) -> None:
    spread = (wait(*in_a_row(1, cause), slot=0) - 1) / first
    assert 0.75 <= spread <= 1.25
    for count in range(2, 13):
        expected = 1 + spread * min(first * 2 ** (count - 1), longest)
        assert wait(*in_a_row(count, cause), slot=0) == pytest.approx(expected, abs=1e-3)
    many = Capacity(SPEC, in_a_row(1100, cause), NOW + 1.001 + spread * longest)
    assert many.offer("worker", 0, "v100", ZONES[:1], "spot")


def test_waits_are_spread_evenly_by_a_quarter_either_way() -> None:
    waits = [wait(replace(refused(number, ZONES[0], "other"), ended_at=NOW), slot=0) / 2 for number in range(200)]
    assert 0.75 <= min(waits) < 0.77
    assert 1.23 < max(waits) <= 1.25
    assert sum(waits) / len(waits) == pytest.approx(1, abs=0.03)
    zones = [f"us-central1-{letter}" for letter in "abcdefgh"]
    closed = [wait(replace(refused(1, zone, "stockout"), ended_at=NOW), zone=zone) / 30 for zone in zones]
    assert len({round(each, 2) for each in closed}) > 4, "zones open one after another"


def test_once_a_vm_ran_refusals_count_from_the_first_again_and_on_other_terms_on_their_own() -> None:
    often = [
        replace(vm, requested_at=vm.requested_at - 90, ended_at=vm.ended_at - 90) for vm in in_a_row(5, "stockout")
    ]
    (again,) = in_a_row(1, "stockout")
    once = wait(again)
    assert wait(*often, again) > 10 * once
    came = replace(ran(7, ZONES[0]), running_at=NOW - 30)
    assert wait(*often, came, again) == once
    assert wait(*often, replace(came, zone=ZONES[1]), again) > 10 * once, "it ran elsewhere"
    assert wait(*often, replace(came, provisioning_model="standard"), again) > 10 * once, "and on other terms"
    assert wait(*often, replace(again, provisioning_model="standard"), model="standard") == once
    assert wait(*(replace(vm, role="ps", accelerator="") for vm in often), again) == once, "another machine"
    server = {"role": "ps", "accelerator": "", "provisioning_model": "standard"}
    servers = [replace(vm, **server) for vm in (*often, came)]
    assert Capacity(SPEC, servers[:-1], NOW - 30).offer("ps", 0, "", ZONES[:1], "standard") is None
    assert Capacity(SPEC, servers, NOW - 30).offer("ps", 0, "", ZONES[:1], "standard"), "one ran there"
    later = replace(again, ended_at=NOW + 700)
    assert wait(*in_a_row(1, "quota"), again) == wait(*in_a_row(1, "quota")), "the longest of several closings counts"
    assert wait(later) == pytest.approx(once + 699)


def test_of_refusals_of_several_kinds_the_last_says_how_long_a_place_waits() -> None:
    (access,), (other,) = in_a_row(1, "access"), in_a_row(1, "other")
    early = {"requested_at": NOW - 9, "ended_at": NOW - 8}
    assert wait(replace(other, **early), access, slot=0) == wait(*in_a_row(2, "access"), slot=0)
    assert wait(replace(access, **early), other, slot=0) == wait(*in_a_row(2, "other"), slot=0)
    assert wait(other, slot=1) == 0, "another place does not wait"
    assert wait(*in_a_row(1, "stockout"), slot=0) == wait(*in_a_row(1, "stockout"), slot=1)


def test_a_quota_closes_its_region_on_its_terms_and_one_of_all_regions_every_zone() -> None:
    (quota,), (everywhere,) = in_a_row(1, "quota"), in_a_row(1, "quota everywhere")
    assert [wait(quota, zone=zone) > 200 for zone in ZONES] == [True, True, False]
    assert wait(quota, model="standard") == 0
    assert {wait(everywhere, zone=zone, model=model) > 200 for zone in ZONES for model in ("spot", "preemptible")} == {
        True
    }
    gone = replace(everywhere, zone="us-west4-a")
    assert wait(gone, zone="us-west4-a") > 200, "be it one that is no longer declared"
    assert wait(replace(quota, zone="us-west4-a"), zone="us-west4-a") > 200


def test_what_a_stockout_names_is_asked_first_for_five_minutes() -> None:
    named = replace(refused(1, ZONES[0], "stockout", hints=("asia-east1-a", ZONES[2])), ended_at=NOW)
    assert offer(named, after=299.9) == Offer(ZONES[2], "spot")
    assert offer(named, after=300) == Offer(ZONES[0], "spot")
    assert offer(named, replace(named, hints=(), ended_at=NOW + 1), after=1) == Offer(ZONES[2], "spot"), "and goes on"
    other = replace(named, role="ps", accelerator="")
    assert offer(other) == Offer(ZONES[0], "spot"), "for that machine"
    assert Capacity(SPEC, [other], NOW).offer("ps", 0, "", ZONES, "standard") == Offer(ZONES[2], "standard")
    quota = replace(named, cause="quota")
    assert offer(quota) == Offer(ZONES[2], "spot")
    assert offer(replace(named, cause="other", slot=3)) == Offer(ZONES[0], "spot")


def test_the_fallback_counts_from_the_first_request_and_spot_comes_second() -> None:
    spec = replace(SPEC, fallback_seconds=600.0)
    first, last = (replace(refused(n, ZONES[0], "stockout"), requested_at=NOW - ago) for n, ago in ((1, 600), (2, 5)))
    assert offer(first, last, spec=spec) == Offer(ZONES[0], "standard")
    assert offer(first, last, spec=spec, after=-0.1) == Offer(ZONES[1], "spot")
    assert offer(first, last, spec=spec, slot=1) == Offer(ZONES[1], "spot"), "that place has not waited"
    assert offer(replace(first, cause="other"), last, spec=spec, after=10) == Offer(ZONES[1], "spot")
    dear = [replace(refused(n, zone, "stockout", model="standard"), slot=5) for n, zone in enumerate(ZONES)]
    assert offer(first, last, *dear, spec=spec) == Offer(ZONES[1], "spot")
    assert offer(first, last, spec=replace(spec, fallback_seconds=0.0)) == Offer(ZONES[0], "standard")
