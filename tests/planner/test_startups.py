"""Start-up times of one's own VMs, from journals: which count, when they are enough, and what plans make of them."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.journal import ClusterState, events, replay
from transient_magics.planner.choices import Choice
from transient_magics.planner.plan import make_plan
from transient_magics.planner.run_records import ENOUGH, Starts, published_starts, starts_of
from transient_magics.planner.speeds.workloads import PUBLISHED
from transient_magics.spec import WorkerGroup

BEGAN = 1_760_000_000.0


def cluster(
    seconds: list[tuple[float, float]], *, gpu: str = "t4", project: str | None = "my-own", image: str | None = None,
    later: float = 0.0, model: str = "spot",
) -> ClusterState:  # fmt: skip
    """Whose workers ran, and could be used, so many seconds after each other."""
    spec = specify(Declaration(gpu, name="c", project=project, bucket="none" if project else None, image=image))
    told = [events.ClusterDeclared(spec=spec.to_dict(), time=int((BEGAN + later) * 1e9))]
    for number, (running, usable) in enumerate(seconds):
        vm = f"worker-{number}"
        asked = BEGAN + later + 1000 * number
        moments = [asked, asked + running, asked + running + usable]
        some = [
            events.VmRequested(vm=vm, role="worker", slot=number, zone="us-central1-a", accelerator=gpu,
                               machine_type="n1-standard-4", provisioning_model=model, hourly=0.2,
                               on_demand_hourly=0.5),
            events.VmRunning(vm=vm, address="10.0.0.2"),
            events.VmReady(vm=vm),
        ]  # fmt: skip
        told += [replace(each, time=int(at * 1e9)) for each, at in zip(some, moments, strict=True)]
    return replay([replace(each, seq=seq) for seq, each in enumerate(told, 1)])


def total(starts: Starts, gpu: str = "t4", *, transient: bool = True) -> float:
    found = starts(gpu, transient, "us-central1").startup
    return found.running + found.usable


def test_own_vms_count_as_soon_as_they_are_enough_and_those_of_their_kind_alone() -> None:
    known = total(published_starts)
    some = [(30.0 + number, 500.0) for number in range(ENOUGH)]
    assert total(starts_of([cluster(some[:-1])])) == known, "too few"
    own = starts_of([cluster(some)])
    assert total(own) == pytest.approx(30 + (ENOUGH - 1) / 2 + 500)
    found = own("t4", True, "asia-east1")
    assert (found.own, found.startup.deviation) == (ENOUGH, pytest.approx(statistics.stdev(range(ENOUGH))))
    assert total(own, "v100") == total(published_starts, "v100")
    assert total(own, transient=False) == total(published_starts, transient=False)
    assert total(starts_of([cluster(some, project=None)])) == known, "emulated ones say nothing"
    assert total(starts_of([cluster(some, model="standard")]), transient=False) == pytest.approx(total(own))


def test_a_baked_image_makes_what_was_installed_before_it_history() -> None:
    slow, quick = [(40.0, 600.0)] * ENOUGH, [(40.0, 30.0)] * ENOUGH
    before, after = cluster(slow), cluster(quick, image="mine", later=90_000)
    assert total(starts_of([before, after])) == total(starts_of([after, before])) == pytest.approx(70)
    young = starts_of([before, cluster(quick[:-1], image="mine", later=90_000)])
    assert total(young) == total(published_starts), "too few from the image, and others before it"


def test_a_vm_that_never_answered_or_a_clock_that_jumped_is_not_counted() -> None:
    odd = [(40.0, 30.0)] * (ENOUGH - 1) + [(40.0, 90_000.0)]
    assert total(starts_of([cluster(odd)])) == total(published_starts)


def test_a_plan_takes_them_and_says_so() -> None:
    workload = replace(PUBLISHED["icac19/resnet-32"], from_first_step=False)
    groups = (WorkerGroup("t4", 2, "us-central1-a"),)
    own = starts_of([cluster([(40.0, 1160.0)] * ENOUGH)])
    usual, mine = (make_plan(Choice(groups, starts=each), workload, 5000) for each in (published_starts, own))
    assert 60 * (mine.hours - usual.hours) == pytest.approx((1200 - total(published_starts)) / 60, abs=1.0)
    assert "VMs with the T4 take 20 min until they are usable, as your last 5 did." in str(mine)
    assert "as your last" not in str(usual)
    published = make_plan(Choice(groups, starts=own), PUBLISHED["icac19/resnet-32"], 5000)
    assert "as your last" not in str(published), "a published workload is as it was published"


def test_plans_look_at_the_journals_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    from transient_magics.planner.run_records import own_starts

    assert total(own_starts()) == total(published_starts)
    broken = tmp_path / "clusters" / "broken"
    broken.mkdir(parents=True)
    (broken / "journal.jsonl").mkdir()
    assert total(own_starts()) == total(published_starts), "one that cannot be read stands in nobody's way"
