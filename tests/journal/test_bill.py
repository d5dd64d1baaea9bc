"""Bills to the last figure: what a VM adds to them at each moment of its life, and what a cluster comes to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transient_magics.clock import Clock
from transient_magics.journal import ClusterState, VmState, at_the_end, bill
from transient_magics.journal.power import Stretch
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup

START = 1_000_000.0
HOUR = 3600.0
NOW = START + 10 * HOUR
HOME, FAR = "us-west1-b", "europe-west4-a"
GIB = 2**30
SPEC = ClusterSpec(
    name="one",
    groups=(WorkerGroup("k80", 2),),
    zones=(HOME, FAR),
    prices={
        "k80": PriceLine("n1-standard-4", 0.25, 0.75, "a table"),
        f"k80@{FAR}": PriceLine("n1-standard-4", 0.5, 1.0, "Google, today"),
        "parameter-server": PriceLine("custom-4-16384", 0.125, 0.125, "a list"),
    },
    transfer_prices={FAR: 0.0625},
    declared_at=START,
    max_seconds=100 * HOUR,
)
FAST = Clock(((0.0, 0.0, 1.0), (START, START, 4.0)))


def vm(name: str = "worker-0", **more: object) -> VmState:
    """A Spot VM that ran for two hours until now, and runs on."""
    fields = {
        "role": "worker", "slot": 0, "zone": HOME, "accelerator": "k80", "machine_type": "n1-standard-4",
        "provisioning_model": "spot", "hourly": 0.25, "on_demand_hourly": 0.75, "state": "ready",
        "running_at": NOW - 2 * HOUR, **more,
    }  # fmt: skip
    return VmState(name, **fields)  # type: ignore[arg-type]


def cluster(*vms: VmState, spec: ClusterSpec | None = SPEC, **more: object) -> ClusterState:
    return ClusterState(spec=spec, vms={each.name: each for each in vms}, **more)  # type: ignore[arg-type]


def test_a_bill_adds_up_what_runs_and_ran_and_what_crossed_between_zones() -> None:
    state = cluster(
        vm("ps-0", role="ps", accelerator="", provisioning_model="standard", hourly=0.125, on_demand_hourly=0.125),
        vm("worker-0"),
        vm("worker-1", zone=FAR, hourly=0.5, on_demand_hourly=1.0, transfer={"": 2.0}, traffic_rate=GIB / 900),
        vm("worker-2", state="leaving", noticed_at=NOW - 60),
        vm("worker-3", state="deleted", running_at=NOW - 3 * HOUR, ended_at=NOW - HOUR),
        vm("worker-4", state="requested", running_at=0.0),
        vm("worker-5", state="booting", running_at=NOW - 1),
    )
    account = bill(state, NOW)
    by_vm = {
        "ps-0": 0.25, "worker-0": 0.5, "worker-1": 3.0, "worker-2": 0.25 * 7140 / 3600, "worker-3": 0.5,
        "worker-4": 0.0, "worker-5": 0.25 / 60,
    }  # fmt: skip
    total = sum(by_vm.values())
    assert account.total == pytest.approx(total)
    assert account.hourly == pytest.approx(0.125 + 0.25 + 0.5 + 0.25 + 0.25)
    assert account.on_demand == pytest.approx(0.25 + 1.5 + 2.0 + 2.0 + 0.75 * 7140 / 3600 + 1.5 + 0.75 / 60)
    assert account.by_vm == pytest.approx(by_vm)
    assert account.source == "Google, today; a list; a table"
    assert (account.transfer, account.transfer_hourly) == (2.0, 0.25)
    assert account.saved == pytest.approx(1 - total / account.on_demand)


def test_an_empty_cluster_costs_nothing_and_one_whose_declaration_is_not_known_is_billed_by_its_vms() -> None:
    empty = bill(cluster(), NOW)
    assert (empty.total, empty.hourly, empty.on_demand, empty.by_vm, empty.lines, empty.saved) == (0, 0, 0, {}, {}, 0)
    unknown = bill(cluster(vm(traffic_bytes=GIB, traffic_rate=1.0), spec=None), NOW)
    figures = unknown.total, unknown.hourly, unknown.on_demand, unknown.by_vm, unknown.transfer
    assert figures == (0.5, 0.25, 1.5, {"worker-0": 0.5}, 0)


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({}, 7200),
        ({"running_at": 0.0, "state": "requested"}, 0),
        ({"running_at": 0.0, "state": "refused", "ended_at": NOW - 5}, 0),
        ({"running_at": NOW - 1}, 60),
        ({"running_at": NOW + 5}, 60),
        ({"running_at": NOW - 61}, 61),
        ({"started_at": NOW - 3 * HOUR}, 3 * HOUR),
        # Ended: by us, by Google, or nobody knows when.
        ({"state": "deleted", "ended_at": NOW - HOUR}, HOUR),
        ({"state": "deleted", "ended_at": NOW - HOUR, "stopping_at": NOW - 1.5 * HOUR}, 0.5 * HOUR),
        ({"state": "revoked", "ended_at": NOW - HOUR, "stopping_at": NOW - 1.5 * HOUR}, 0.5 * HOUR),
        # Within its first minute: free where Google takes it, a minute where we end it or it is no Spot VM.
        ({"state": "revoked", "ended_at": NOW - 2 * HOUR + 59}, 0),
        ({"state": "revoked", "ended_at": NOW - 2 * HOUR + 60}, 60),
        ({"state": "revoked", "ended_at": NOW - 2 * HOUR + 59, "provisioning_model": "preemptible"}, 0),
        ({"state": "revoked", "ended_at": NOW - 2 * HOUR + 59, "provisioning_model": "standard"}, 60),
        ({"state": "deleted", "ended_at": NOW - 2 * HOUR + 59}, 60),
        ({"state": "leaving", "running_at": NOW - 50, "noticed_at": NOW - 10}, 0),
        ({"state": "leaving", "running_at": NOW - 50, "noticed_at": NOW - 10, "provisioning_model": "standard"}, 60),
        ({"running_at": NOW - 50, "noticed_at": NOW - 10}, 60),
        # A notice counts for as long as it can be one, from the moment at which it was told.
        ({"state": "leaving", "noticed_at": NOW - 120}, 7080),
        ({"state": "leaving", "noticed_at": NOW - 121}, 7200),
        ({"state": "leaving", "noticed_at": NOW + 5}, 7200),
        ({"state": "revoked", "noticed_at": NOW - HOUR - 120, "ended_at": NOW - HOUR}, HOUR - 120),
        ({"state": "revoked", "noticed_at": NOW - HOUR - 121, "ended_at": NOW - HOUR}, HOUR),
        ({"state": "revoked", "noticed_at": NOW - 60, "ended_at": NOW - HOUR}, HOUR),
        ({"state": "revoked", "noticed_at": NOW - HOUR - 30, "stopping_at": NOW - HOUR, "ended_at": NOW}, HOUR - 30),
        # A longer notice: the VM runs on for two minutes, and is billed for them.
        ({"state": "revoked", "noticed_at": NOW - HOUR - 150, "ended_at": NOW - HOUR, "notice_seconds": 120.0},
         HOUR - 30),
        ({"state": "leaving", "noticed_at": NOW - 60, "notice_seconds": 120.0}, 7200),
        # Nobody saw it go: at the cluster's end at the latest.
        ({"state": "revoked", "running_at": START + HOUR, "ended_at": START + 200 * HOUR}, 99 * HOUR),
        ({"state": "revoked", "running_at": START + 101 * HOUR, "ended_at": START + 200 * HOUR}, 0),
        ({"state": "deleted", "running_at": START + 101 * HOUR, "ended_at": START + 200 * HOUR}, 60),
        ({"state": "revoked", "running_at": START, "stopping_at": START + 150 * HOUR, "ended_at": START + 200 * HOUR},
         150 * HOUR),
        ({"running_at": START - 190 * HOUR}, 200 * HOUR),
    ],
)  # fmt: skip
def test_for_how_long_a_vm_is_paid(more: dict[str, object], seconds: float) -> None:
    assert bill(cluster(vm(**more)), NOW).total / 0.25 * 3600 == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("more", "dollars"),
    [
        ({"state": "stopped", "hourly": 0.01}, 0.25 + 0.01),
        ({"state": "ready", "hourly": 0.125, "restarted": NOW - HOUR / 2}, 0.25 + 0.005 + 0.0625),
        ({"state": "booting", "hourly": 0.125, "restarted": NOW - 1}, 0.25 + 0.01 * 3599 / 3600 + 0.125 / 60),
        ({"state": "deleted", "hourly": 0.01, "ended_at": NOW - HOUR / 4}, 0.25 + 0.0075),
        ({"state": "revoked", "hourly": 0.01, "ended_at": NOW + 500 * HOUR}, 0.25 + 5.01),
    ],
)
def test_a_vm_that_is_stopped_costs_its_disk_and_then_what_it_has_become(more: dict, dollars: float) -> None:
    """It ran for an hour, and was stopped an hour ago."""
    restarted = more.pop("restarted", 0.0)
    became = [Stretch(restarted, "n1-standard-2", 0.125, 0.25, 0.5)] if restarted else []
    was = [Stretch(NOW - 2 * HOUR, "n1-standard-4", 0.25, 0.75),
           Stretch(NOW - HOUR, "n1-standard-4", 0.01, 0.01, runs=False)]  # fmt: skip
    state = cluster(vm(powered=(*was, *became), **more))
    account = bill(state, max(NOW, more.get("ended_at", 0.0)))
    assert account.total == pytest.approx(dollars, abs=1e-4)
    assert account.hourly == (more["hourly"] if not more.get("ended_at") else 0.0)


def test_a_cluster_whose_worker_is_stopped_has_spent_what_it_costs_at_the_end() -> None:
    stopped = vm(state="stopped", hourly=0.01, powered=(
        Stretch(NOW - 2 * HOUR, "n1-standard-4", 0.25, 0.75),
        Stretch(NOW - HOUR, "n1-standard-4", 0.01, 0.01, runs=False)))  # fmt: skip
    assert at_the_end(cluster(stopped), SPEC, NOW) == pytest.approx(0.26 + SPEC.most_hourly * 90)


def test_hours_go_by_on_the_emulated_clock_and_data_on_ours() -> None:
    account = bill(cluster(vm(zone=FAR, transfer={"": 1.0}, traffic_rate=GIB / 900), clock=FAST), NOW)
    assert account.total == pytest.approx(8 * 0.25 + 1.0)
    assert account.hourly == pytest.approx(0.25 + 0.25)
    # An end that nobody saw, too.
    gone = vm(state="revoked", running_at=START + HOUR, ended_at=NOW + 200 * HOUR)
    assert bill(cluster(gone, clock=FAST), NOW).total == pytest.approx(96 * 0.25)


def test_what_a_cluster_will_have_cost_when_compute_engine_ends_it() -> None:
    spec = replace(SPEC, zones=(HOME,), max_seconds=20 * HOUR)  # of which ten are left, at 0.625 an hour
    assert at_the_end(cluster(vm()), spec, NOW) == pytest.approx(0.5 + 6.25, abs=1e-9)
    assert at_the_end(cluster(vm(running_at=NOW - 15)), spec, NOW) == pytest.approx(round(0.25 * 15 / 3600 + 6.25, 6))
    assert at_the_end(cluster(vm(running_at=NOW - 15)), spec, NOW) == round(0.25 * 15 / 3600 + 6.25, 6)
    assert at_the_end(cluster(vm(running_at=0.0, state="requested")), spec, NOW) == 6.25
    assert at_the_end(cluster(vm(running_at=NOW + 5)), spec, NOW) == 6.25, "a clock that goes before ours"
    deleted = vm(state="deleted", running_at=NOW - 15, ended_at=NOW)
    assert at_the_end(cluster(deleted), spec, NOW) == round(0.25 / 60 + 6.25, 6), "its minute was paid"
    assert at_the_end(cluster(vm()), spec, NOW + 90 * HOUR) == pytest.approx(0.25 * 92), "no more after its end"
    assert at_the_end(cluster(vm(), clock=FAST), replace(spec, max_seconds=50 * HOUR), NOW) == pytest.approx(2 + 6.25)
    third = replace(spec, max_cost=0.625 * 40 / 3)  # its end lies 40/3 hours after its begin
    assert at_the_end(cluster(vm()), third, NOW) == pytest.approx(0.5 + 0.625 * 10 / 3, abs=1e-6)
