"""The reckoning keeps Google's rules: its documentation's own examples, and what must hold of all bills."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples

from .reckoning import GIB, HOUR_S, Charges, Disk, Prices, Run, Vm, charges, reckon

ZONE = "us-central1-a"
PRICES = Prices(
    hourly={
        (item, region, spot): price * (0.4 if spot else 1.0)
        for item, price in {
            "n1-vcpu": 0.031611,
            "n1-gib": 0.004237,
            "nvidia-tesla-t4": 0.35,
            "e2-small": 0.016751,
        }.items()
        for region in ("us-central1", "europe-west1")
        for spot in (False, True)
    },
    disk_month={("pd-standard", "us-central1"): 0.04, ("pd-ssd", "us-central1"): 0.17},
    between_regions={
        ("asia", "europe"): 0.08,
        ("northamerica", "europe"): 0.05,
        ("northamerica", "northamerica"): 0.02,
    },
)
TERMINATED = replace(PRICES, uptime_ends="TERMINATED")


def cost(vm: Vm, at: float = 1e9, prices: Prices = PRICES) -> Charges:
    return charges(vm, at, prices)


def n1(*runs: Run, spot: bool = False, disks: tuple[Disk, ...] = ()) -> Vm:
    return Vm("vm", ZONE, "n1-standard-8", spot, (("nvidia-tesla-t4", 2),), runs, disks)


# Worked examples of Google's documentation.


def test_an_n1_standard_8_costs_what_its_vcpus_and_memory_do() -> None:
    """ "Disk and image pricing" gives $0.379998 per hour, and $0.49 with an image of $0.11."""
    hour = cost(Vm("vm", ZONE, "n1-standard-8", runs=(Run(0, HOUR_S, HOUR_S),)))
    assert hour.total == pytest.approx(0.379998)


def test_thirty_seconds_are_billed_as_a_minute_and_then_by_the_second() -> None:
    """ "VM instance pricing", "Billing model"."""
    assert cost(n1(Run(0, 30, 30))) == cost(n1(Run(0, 60, 60)))
    assert cost(n1(Run(0, 61, 61))).total == pytest.approx(cost(n1(Run(0, 60, 60))).total * 61 / 60)


@pytest.mark.parametrize(("kind", "month"), [("pd-standard", 8.0), ("pd-ssd", 34.0)])
def test_a_disk_of_200_gb_for_a_month_and_for_half_of_one(kind: str, month: float) -> None:
    """ "Disk and image pricing": $8 and $4 of standard, $34 and $17 of SSD."""
    for part in (1.0, 0.5):
        disk = Disk(kind, 200, 0, PRICES.month_s * part)
        assert cost(Vm("vm", ZONE, "e2-small", disks=(disk,))) == Charges(disks=pytest.approx(month * part))


def test_20_tib_between_asia_and_europe_each_way() -> None:
    """ "Cloud VPN pricing" reckons 20,480 GiB x $0.08 = $1,638.40, and nothing for what comes in."""
    there = Vm("there", "asia-northeast1-a", "e2-small", sent={"europe-west6-b": 20480 * GIB})
    here = Vm("here", "europe-west6-b", "e2-small")
    bill = reckon([there, here], 0, PRICES)
    assert bill["there"].transfer == pytest.approx(1638.40)
    assert bill["here"] == Charges()


def test_a_spot_vm_that_is_preempted_within_its_first_minute_is_free_but_not_its_disk() -> None:
    """ "Spot VMs", "Preemption process"."""
    disk = Disk("pd-standard", 50, 0, 3600)
    assert cost(n1(Run(10, 69, 99, preempted=True), spot=True, disks=(disk,))) == Charges(
        disks=pytest.approx(50 * 0.04 / 730)
    )
    assert cost(n1(Run(10, 71, 99, preempted=True), spot=True)).total > 0


def test_one_who_stops_a_spot_vm_within_the_minute_pays_it() -> None:
    assert cost(n1(Run(0, 59, 60), spot=True)) == cost(n1(Run(0, 60, 60), spot=True))


def test_the_notice_is_free_by_the_page_of_today_and_was_not_by_older_ones() -> None:
    run = Run(0, 600, 630, preempted=True)
    by_now, before = cost(n1(run, spot=True)), cost(n1(run, spot=True), prices=TERMINATED)
    assert before.total / by_now.total == pytest.approx(630 / 600)


def test_a_stopped_vm_costs_its_disk_alone() -> None:
    """ "Spot VMs", "Pricing": no VM hours in TERMINATED, storage until the disks are deleted."""
    vm = n1(Run(0, 600, 630), disks=(Disk("pd-standard", 50, 0),))
    early, late = cost(vm, 700), cost(vm, 700 + HOUR_S)
    assert late.total - early.total == pytest.approx(50 * 0.04 / 730)
    assert late.disks - early.disks == pytest.approx(late.total - early.total)


def test_gpus_are_billed_while_their_vm_runs_and_no_longer() -> None:
    assert cost(n1(Run(0, HOUR_S, HOUR_S + 30))).accelerators == pytest.approx(2 * 0.35)


def test_a_custom_machine_costs_five_hundredths_more_than_its_resources() -> None:
    hour = (Run(0, HOUR_S, HOUR_S),)
    assert cost(Vm("vm", ZONE, "custom-8-30720", runs=hour)).machine == pytest.approx(1.05 * 0.379998)


def test_an_address_costs_half_on_spot_and_nothing_where_there_is_none() -> None:
    vm = replace(n1(Run(0, HOUR_S, HOUR_S)), external_address=True)
    assert cost(vm).address == pytest.approx(0.005)
    assert cost(replace(vm, spot=True)).address == pytest.approx(0.0025)
    assert cost(replace(vm, external_address=False)).address == 0


def test_bytes_are_free_in_a_zone_a_cent_per_gib_in_a_region_and_dearer_over_the_sea() -> None:
    for zone, price in {ZONE: 0, "us-central1-b": 0.01, "us-east1-b": 0.02, "europe-west1-b": 0.05}.items():
        assert cost(Vm("vm", ZONE, "e2-small", sent={zone: 3 * GIB})).transfer == pytest.approx(3 * price)


def test_what_has_no_price_is_an_error_and_not_free() -> None:
    for vm in (
        Vm("vm", "asia-east1-a", "n1-standard-8", runs=(Run(0),)),
        Vm("vm", ZONE, "n9-standard-8", runs=(Run(0),)),
        Vm("vm", ZONE, "e2-small", sent={"me-west1-a": 1.0}),
        Vm("vm", ZONE, "e2-small", disks=(Disk("pd-extreme", 10, 0),)),
    ):
        with pytest.raises(KeyError):
            cost(vm)


# What must hold of every bill.

seconds = st.integers(0, 4 * 3600)


@st.composite
def runs(draw: st.DrawFn, preempted: bool | None = None) -> tuple[Run, ...]:
    """One to four stretches, one after the other; the last may go on."""
    times = sorted(draw(st.lists(seconds, min_size=3, max_size=12, unique=True)))
    taken = st.booleans() if preempted is None else st.just(preempted)
    lives = [Run(*times[i : i + 3], preempted=draw(taken)) for i in range(0, len(times) - 2, 3)]
    if draw(st.booleans()):
        lives[-1] = Run(lives[-1].running)
    return tuple(lives)


@st.composite
def vms(draw: st.DrawFn, preempted: bool | None = None) -> Vm:
    created = draw(seconds)
    return Vm(
        name=draw(st.sampled_from(["ps-0", "worker-0", "worker-1"])),
        zone=ZONE,
        machine_type=draw(st.sampled_from(["n1-standard-4", "n1-highmem-2", "custom-6-20480", "e2-small"])),
        spot=draw(st.booleans()),
        accelerators=draw(st.sampled_from([(), (("nvidia-tesla-t4", 1),), (("nvidia-tesla-t4", 4),)])),
        runs=draw(runs(preempted)),
        disks=(Disk("pd-standard", draw(st.integers(10, 500)), created, created + draw(seconds)),),
        external_address=draw(st.booleans()),
        sent={"us-central1-b": draw(st.integers(0, 10 * GIB))},
    )


few = examples(60)


def total(bill: dict[str, Charges]) -> float:
    return sum(line.total for line in bill.values())


@few
@given(st.lists(vms(), max_size=4), st.lists(vms(), max_size=4), seconds)
def test_the_bill_of_all_is_the_sum_of_the_bills_of_each(some: list[Vm], others: list[Vm], at: int) -> None:
    together = total(reckon([*some, *others], at, PRICES))
    assert together == pytest.approx(total(reckon(some, at, PRICES)) + total(reckon(others, at, PRICES)))


@few
@given(vms(preempted=False), seconds, seconds)
def test_time_takes_nothing_off_a_bill(vm: Vm, one: int, other: int) -> None:
    assert cost(vm, min(one, other)).total <= cost(vm, max(one, other)).total + 1e-12


@few
@given(vms(preempted=True), seconds, seconds)
def test_only_a_preemption_in_the_first_minute_takes_something_off(vm: Vm, one: int, other: int) -> None:
    early, late = sorted((one, other))
    before, after = cost(vm, early), cost(vm, late)
    minute = charges(replace(vm, runs=(Run(0, 60, 60),), disks=(), sent={}, external_address=False), 60, PRICES).total
    assert after.total >= before.total - minute - 1e-12
    if not vm.spot:
        assert after.total >= before.total - 1e-12


@few
@given(vms(), seconds)
def test_no_start_costs_less_than_a_minute_unless_it_was_preempted(vm: Vm, at: int) -> None:
    started = [run for run in vm.runs if run.running <= at and not (vm.spot and run.preempted)]
    minute = charges(replace(vm, runs=(Run(0, 60, 60),)), 60, PRICES)
    assert cost(vm, at).machine >= len(started) * minute.machine - 1e-12


@few
@given(vms(preempted=False), st.integers(60, 7200), st.integers(1, 7200))
def test_after_its_first_minute_a_vm_costs_the_same_each_second(vm: Vm, first: int, more: int) -> None:
    vm = replace(vm, runs=(Run(0),), disks=(), sent={})
    rate = cost(vm, HOUR_S).total / HOUR_S
    assert cost(vm, first + more).total - cost(vm, first).total == pytest.approx(rate * more)


@few
@given(vms(preempted=False), st.integers(1, 7200), st.integers(1, 7200))
def test_a_stop_in_between_saves_nothing_and_costs_nothing_after_the_minute(vm: Vm, first: int, second: int) -> None:
    whole = cost(replace(vm, runs=(Run(0, first + second, first + second),))).machine
    halves = cost(replace(vm, runs=(Run(0, first, first), Run(9000, 9000 + second, 9000 + second)))).machine
    assert halves >= whole - 1e-12
    if min(first, second) >= 60:
        assert halves == pytest.approx(whole)


@few
@given(vms())
def test_the_older_rule_never_charges_less(vm: Vm) -> None:
    """Unless a notice that outlasts the first minute makes a VM be paid for that is free today; never the other way."""
    assert cost(vm, prices=TERMINATED).total >= cost(vm).total - 1e-12
