"""A resize keeps within the limits of its cluster, whoever is in charge afterwards, or nobody."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.client import Declaration
from transient_magics.client.declaring import resized as meant
from transient_magics.client.declaring import specify
from transient_magics.controller.decisions.core import DeleteVm, RequestVm, Situation, decide
from transient_magics.controller.vms.machines import requested
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import ClusterState, Event, bill, events, replay
from transient_magics.journal.declared import resized
from transient_magics.spec import ClusterSpec


class Life:
    """A cluster whose VMs come as soon as they are asked for, and go where the controller deletes them.

    With a `zone` workers come there alone: elsewhere they are sold out.
    """

    def __init__(self, spec: ClusterSpec, zone: str = "") -> None:
        self.now, self._zone = spec.declared_at, zone
        self._seq = itertools.count(1)
        self.state = ClusterState()
        self.happens(events.ClusterDeclared(spec=spec.to_dict()))
        self.governed()

    def happens(self, event: Event) -> None:
        self.state = replay([replace(event, seq=next(self._seq), time=int(self.now * 1e9))], self.state)

    @property
    def spec(self) -> ClusterSpec:
        assert self.state.spec
        return self.state.spec

    def governed(self) -> None:
        """What its controller decides now is done."""
        sold_out = False
        for each in decide(Situation(self.now, self.state)):
            if isinstance(each, RequestVm) and each.role == "worker" and self._zone not in ("", each.zone):
                self.happens(requested(self.spec, each))
                self.happens(events.VmRefused(vm=each.vm, reason="sold out", cause="stockout"))
                sold_out = True
            elif isinstance(each, RequestVm):
                self.happens(requested(self.spec, each))
                self.happens(events.VmRunning(vm=each.vm, address="10.0.0.1"))
                self.happens(events.VmReady(vm=each.vm))
            elif isinstance(each, DeleteVm):
                self.happens(events.VmDeleted(vm=each.vm, reason=each.reason))
        if sold_out:
            self.governed()

    def resize(self, text: str) -> None:
        """As the user's command does; everything that was there is checked for its end."""
        before = self.spec.ends_at
        new = resized(self.spec, meant(self.spec, text), self.state, self.now)
        self.happens(events.ClusterResized(spec=new.to_dict()))
        assert self.spec.ends_at == pytest.approx(before), "VMs that run have that end"
        self.governed()

    def cost_at_the_end(self) -> float:
        """Nobody is in charge any more until Compute Engine ends the VMs."""
        return bill(self.state, self.spec.ends_at).total


HERE = ("us-central1-a",)


def declare(spec: str, **options: object) -> Life:
    options = {"project": "my-own", "max_cost": 10.0, "max_hours": 1000.0, **options}
    return Life(specify(Declaration(spec, name="one", **options)))  # type: ignore[arg-type]


def test_more_workers_than_the_money_lasts_for_are_refused_in_a_sentence() -> None:
    life = declare("t4x4", max_workers=None)
    life.now += 1800
    with pytest.raises(ClusterError) as refused:
        life.resize("t4x8")
    assert "t4x8 could cost $" in refused.value.what
    assert refused.value.what.endswith(
        "more than its limit of $10.00; Compute Engine cannot change the end of a running VM"
    )
    assert "--max-workers N" in refused.value.fix
    life.resize("t4x3")  # fewer may always be
    assert life.cost_at_the_end() < 10.0


def test_with_max_workers_there_may_be_as_many_from_the_first_moment_on_and_the_end_is_early() -> None:
    early, late = declare("t4x4", max_workers=8, zone=HERE), declare("t4x4", zone=HERE)
    eight = declare("t4x8", zone=HERE)
    assert early.spec.ends_at - early.now == pytest.approx(eight.spec.ends_at - eight.now)
    assert early.spec.ends_at < late.spec.ends_at
    early.resize("t4x8")
    assert early.cost_at_the_end() == pytest.approx(10.0, rel=1e-3)


@pytest.mark.parametrize("fallback", [None, 600.0])
def test_the_money_lasts_also_where_all_but_the_dearest_zone_is_sold_out(fallback: float | None) -> None:
    spec = declare("t4x4", fallback_seconds=fallback).spec
    dearest = max(spec.zones_for("t4"), key=lambda zone: spec.price("t4", zone).hourly)
    assert spec.price("t4", dearest).hourly > 1.3 * spec.price("t4", spec.zones[0]).hourly
    life = Life(spec, zone=dearest)
    assert {vm.zone for vm in life.state.living if vm.role == "worker"} == {dearest}
    assert len(life.state.living) == 5
    assert life.cost_at_the_end() <= 10.0


def test_where_hours_end_the_cluster_first_the_money_may_be_used_up() -> None:
    life = declare("t4x2", max_hours=2.0)
    life.resize("t4x4")
    assert life.cost_at_the_end() < 10.0


def test_a_cluster_of_an_earlier_version_keeps_the_end_that_its_vms_have() -> None:
    spec = replace(declare("t4x4").spec, end_hourly=0.0)
    life = Life(spec)
    life.resize("t4x2")
    assert life.spec.ends_at == pytest.approx(spec.ends_at)


@pytest.mark.slow
@examples(60)
@given(
    st.integers(1, 6), st.none() | st.integers(6, 12), st.sampled_from([None, 600.0]),
    st.lists(st.tuples(st.floats(0.0, 3 * 3600.0), st.integers(1, 12), st.sampled_from(["t4", "l4"])), max_size=5),
)  # fmt: skip
def test_whatever_was_resized_when_the_money_lasts_though_nobody_is_in_charge(
    workers: int, most: int | None, fallback: float | None, wishes: list[tuple[float, int, str]]
) -> None:
    life = declare(f"t4x{workers}", max_workers=most, fallback_seconds=fallback)
    for after, many, gpu in wishes:
        life.now = min(life.now + after, life.spec.ends_at - 1)
        try:
            life.resize(f"{gpu}x{many}")
        except (ClusterError, DeclarationError):
            continue
    # Google charges a minute of what is sent away within its first one.
    minute = sum(vm.hourly / 60 for vm in life.state.vms.values() if 0 < vm.ended_at < vm.running_at + 60)
    assert life.cost_at_the_end() <= 10.0 + 1e-6 + minute


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("t4x2+l4", "t4+l4", 2), ("t4x2+l4", "l4x2", 1), ("l4+t4", "t4+l4", 2), ("t4x3+l4x2", "l4x2+t4", 3),
        ("t4x2", "l4+t4x2", 2), ("t4x2@us-central1-a+l4@us-central1-a", "t4@us-central1-a+l4@us-central1-a", 2),
        ("t4@us-central1-a+t4@us-west1-b", "t4@us-west1-b", 1), ("t4@us-central1-a", "t4@us-west1-b", 0),
    ],
)  # fmt: skip
def test_a_resize_of_a_mixed_cluster_keeps_every_vm_that_is_still_wanted(before: str, after: str, kept: int) -> None:
    life = declare(before, max_cost=None, max_workers=8)
    there = {vm.name for vm in life.state.living if vm.role == "worker"}
    life.resize(after)
    now = [vm for vm in life.state.living if vm.role == "worker"]
    assert len(there & {vm.name for vm in now}) == kept
    groups = [(group.accelerator, group.zone) for group in life.spec.groups for _ in range(group.count)]
    assert sorted(vm.accelerator for vm in now) == sorted(gpu for gpu, _ in groups)
    assert all(zone in {vm.zone for vm in now} for _, zone in groups if zone)
    held = life.state
    life.governed()
    assert life.state == held, "and then it is at rest"


def test_a_worker_that_is_lost_after_such_a_resize_has_its_place_taken() -> None:
    life = declare("t4x2+l4", max_cost=None)
    life.resize("t4+l4")
    gone = next(vm.name for vm in life.state.living if vm.accelerator == "l4")
    life.happens(events.VmRevoked(vm=gone, signal="api"))
    life.governed()
    workers = [vm for vm in life.state.living if vm.role == "worker"]
    assert sorted(vm.accelerator for vm in workers) == ["l4", "t4"]


def test_new_gpus_have_their_own_zones_and_traffic_is_priced_from_where_the_parameter_servers_are() -> None:
    life = declare("t4@us-central1-a", max_cost=None, max_workers=8)
    life.resize("t4@us-central1-a+v100x3@asia-east1-c")
    assert life.spec.home_zone == "asia-east1-c", "where most workers are now"
    assert set(life.spec.transfer_prices) == {"asia-east1-c"}, "and not where the parameter servers are"
    life.resize("t4@us-central1-a+l4")
    (l4,) = [vm for vm in life.state.living if vm.accelerator == "l4"]
    assert l4.zone in life.spec.zones_for("l4")
    assert "asia-east1-c" in life.spec.transfer_prices
