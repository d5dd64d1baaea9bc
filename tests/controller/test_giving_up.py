"""Who goes where a cluster becomes smaller."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controller.test_resizing import Life, declare
from tests.examples import examples
from transient_magics.client.declaring import resized as meant
from transient_magics.controller.decisions.core import worker_places
from transient_magics.controller.decisions.shrink_policy import compared, lately, leaving
from transient_magics.journal import events
from transient_magics.protocol.cluster_commands import GiveUp


def workers(life: Life) -> list[str]:
    return [vm.name for vm in life.state.living if vm.role == "worker"]


def aged(life: Life, after: list[float]) -> None:
    """Its first workers are taken one after the other, so that those in their places are younger."""
    for name, seconds in zip(workers(life), after, strict=False):
        life.now += seconds
        life.happens(events.VmRevoked(vm=name, signal="api"))
        life.governed()


def smaller(life: Life, spec: str, policy: GiveUp, rates: dict[str, float]) -> tuple[str, ...]:
    """As the controller does it."""
    new = meant(life.spec, spec)
    gone = leaving(life.state, new, policy, rates)
    life.happens(events.ClusterResized(spec=new.to_dict(), gives_up=gone))
    life.governed()
    return gone


def test_the_youngest_go_whatever_their_places_are() -> None:
    life = declare("t4x4", max_cost=None)
    aged(life, [60.0, 60.0])
    assert workers(life) == ["worker-2", "worker-3", "worker-4", "worker-5"]
    assert smaller(life, "t4x3", "youngest", {}) == ("worker-5",)
    assert smaller(life, "t4x2", "youngest", {}) == ("worker-4",)
    assert workers(life) == ["worker-2", "worker-3"]
    held = life.state
    life.governed()
    assert life.state == held, "and then it is at rest"


def test_the_slowest_go_and_those_that_do_nothing_before_them() -> None:
    life = declare("t4x4", max_cost=None)
    gone = smaller(life, "t4x2", "slowest", {"worker-0": 10.0, "worker-1": 30.0, "worker-3": 20.0})
    assert gone == ("worker-2", "worker-0")
    assert workers(life) == ["worker-1", "worker-3"]


def test_the_costliest_go_and_one_on_demand_costs_most() -> None:
    life = declare("t4x3", max_cost=None)
    vm = life.state.vms["worker-1"]
    life.state = replace(life.state, vms={**life.state.vms, vm.name: replace(vm, hourly=vm.on_demand_hourly)})
    assert smaller(life, "t4x2", "costliest", {}) == ("worker-1",)


def test_one_that_was_told_to_leave_goes_first() -> None:
    life = declare("t4x3", max_cost=None)
    life.happens(events.VmPreemptionNotice(vm="worker-0"))
    gone = leaving(life.state, meant(life.spec, "t4x2"), "slowest", {f"worker-{each}": 1.0 + each for each in range(3)})
    assert gone == ("worker-0",)


@examples(60)
@given(
    st.sampled_from(["t4x5", "t4x3+l4x2", "t4x2@us-central1-a+t4x2@us-west1-b"]), st.integers(1, 3),
    st.lists(st.floats(0.0, 3600.0), max_size=4), st.sampled_from(get_args(GiveUp)),
    st.dictionaries(st.sampled_from([f"worker-{each}" for each in range(9)]), st.sampled_from([0.0, 1.0, 2.0])),
)  # fmt: skip
def test_exactly_as_many_go_as_are_too_many_and_no_parameter_server_is_among_them(
    before: str, count: int, ages: list[float], policy: GiveUp, rates: dict[str, float]
) -> None:
    life = declare(before, max_cost=None, max_hours=1000.0)
    aged(life, ages)
    there = workers(life)
    new = meant(life.spec, f"t4x{count}")
    fitting = [vm for vm in life.state.living if any(each.fits(vm) for each in worker_places(life.state, new))]
    staying = min(count, sum(vm.role == "worker" for vm in fitting))
    assert leaving(life.state, new, policy, rates) == leaving(life.state, new, policy, rates)
    gone = smaller(life, f"t4x{count}", policy, rates)
    assert len(gone) == len(set(gone)) == len(there) - staying
    assert set(gone) <= set(there)
    assert set(there) - set(gone) <= set(workers(life)), "nobody else goes"
    assert len(workers(life)) == count
    assert sum(vm.role == "ps" for vm in life.state.living) == 1


def test_a_journal_cannot_say_that_a_parameter_server_was_given_up() -> None:
    life = declare("t4x2", max_cost=None)
    life.happens(events.ClusterResized(spec=life.spec.to_dict(), gives_up=("ps-0", "worker-7", "worker-1")))
    assert [vm.name for vm in life.state.vms.values() if vm.left] == ["worker-1"]


def test_speed_is_what_was_made_of_late() -> None:
    rows = [
        {"time": 100e9, "worker": "worker-0", "samples": 9000}, {"time": 155e9, "worker": "worker-0", "samples": 30},
        {"time": 156e9, "worker": "worker-1", "samples": 60}, {"time": 157e9, "worker": "worker-1"},
        {"time": 158e9, "worker": "worker-1", "samples": None},
    ]  # fmt: skip
    assert lately(rows, 160.0) == pytest.approx({"worker-0": 1.0, "worker-1": 2.0})


def test_a_worker_is_as_slow_as_it_is_beside_those_of_its_own_run() -> None:
    heavy = {"worker-0": 2.0, "worker-1": 4.0}
    light = {"worker-2": 300.0, "worker-3": 100.0, "worker-4": 200.0}
    assert compared([heavy, light, {}, {"worker-5": 0.0}]) == pytest.approx(
        {"worker-0": 2 / 3, "worker-1": 4 / 3, "worker-2": 1.5, "worker-3": 0.5, "worker-4": 1.0}
    )
    shared = compared([{"worker-0": 1.0, "worker-1": 3.0}, {"worker-0": 30.0, "worker-1": 10.0}])
    assert shared == pytest.approx({"worker-0": 1.0, "worker-1": 1.0})
