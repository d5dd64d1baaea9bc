"""Where a VM is asked for next, after refusals of every kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.controller.capacity import Capacity, Offer
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
