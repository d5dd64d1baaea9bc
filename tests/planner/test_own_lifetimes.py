"""Lifetimes of one's own VMs, from journals: what ended them, on which clock, and what is never mixed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from transient_magics import places
from transient_magics.client import Declaration, lifetimes
from transient_magics.client.declaring import specify
from transient_magics.errors import PlanError
from transient_magics.journal import Event, Journal, events
from transient_magics.panels import lifetimes_html
from transient_magics.planner.lifetimes.sources import Life, own_lives

HOUR = 3600
BEGIN = 1_760_000_000


def at(hours: float) -> int:
    """Nanoseconds since 1970."""
    return int((BEGIN + hours * HOUR) * 1e9)


def vm(name: str, model: str = "spot", start: float = 0.0, gpu: str = "v100") -> list[Event]:
    """Asked for and running from `start` hours on."""
    requested = events.VmRequested(
        vm=name, role="worker", slot=0, zone="us-west1-a", accelerator=gpu, machine_type="n1-standard-8",
        provisioning_model=model, hourly=0.8, on_demand_hourly=2.5, time=at(start),
    )  # fmt: skip
    return [requested, events.VmRunning(vm=name, address="10.0.0.2", time=at(start))]


def revoked(name: str, hours: float, noticed: bool = True) -> list[Event]:
    notice = events.VmPreemptionNotice(vm=name, noticed=at(hours), time=at(hours))
    return [*([notice] if noticed else []), events.VmRevoked(vm=name, signal="api", time=at(hours) + 30 * 10**9)]


def deleted(name: str, hours: float) -> list[Event]:
    return [events.VmDeleted(vm=name, reason="asked by the user", time=at(hours))]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the journal of a cluster; `project`: on Compute Engine."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))

    def write(name: str, history: Iterable[Event], project: str | None = "p-12345") -> None:
        spec = specify(Declaration("v100x2", name=name, project=project, bucket="none"))
        folder = places.private(places.cluster(name))
        (folder / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
        with Journal(folder / "journal.jsonl") as journal:
            journal.append(events.ClusterDeclared(spec=spec.to_dict(), time=at(0)))
            journal.extend(sorted(history, key=lambda event: event.time))

    return write


def told(life: Life) -> tuple[float, bool]:
    return round(life.hours, 3), life.revoked


def test_each_transient_vm_is_a_life_and_its_end_says_which(cluster: Callable[..., None]) -> None:
    cluster("a", [*vm("w0"), *revoked("w0", 2), *vm("w1"), *deleted("w1", 3), *vm("w2", start=1), *vm("ps", "standard"),
                  *vm("w3", start=2)[:1]])  # fmt: skip
    assert sorted(map(told, own_lives())) == [(2.0, False), (2.0, True), (3.0, False)], (
        "w2 still lived at the last line"
    )


def test_a_revocation_that_the_user_asked_for_is_none(cluster: Callable[..., None]) -> None:
    asked = [events.VmPreemptionAsked(vm="w0", seconds=0.0, time=at(1.9))]
    cluster("a", [*vm("w0"), *asked, *revoked("w0", 2)])
    assert list(map(told, own_lives())) == [(2.0, False)]


def test_one_that_was_given_back_by_choice_is_none(cluster: Callable[..., None]) -> None:
    wanted = events.ReclaimWanted(number=1, vms=("w0", "w1"), until=BEGIN + 3 * 3600, time=at(1.8))
    answered = events.ReclaimAnswered(vms=("w0",), reason="the slowest of 2", time=at(1.9))
    cluster("a", [*vm("w0"), *vm("w1"), wanted, answered, *revoked("w0", 2), *revoked("w1", 4)])
    assert sorted(map(told, own_lives())) == [(2.0, False), (4.0, True)]


def test_one_that_was_found_late_lies_half_way(cluster: Callable[..., None]) -> None:
    cluster("a", [*vm("w0"), *vm("w1", start=1), *revoked("w0", 9, noticed=False)])
    assert told(own_lives()[0]) == (pytest.approx(5, abs=0.01), True)


def test_compute_engines_own_times_count_where_nobody_looked(cluster: Callable[..., None]) -> None:
    asked = vm("w0")[0]
    seen = [events.VmRunning(vm="w0", address="", started=at(1), time=at(9))]
    gone = [events.VmRevoked(vm="w0", signal="api", stopping=at(3), time=at(9) + 10**6)]
    cluster("a", [asked, *seen, *gone])
    assert list(map(told, own_lives())) == [(2.0, True)]


def test_hours_are_those_of_the_cluster_s_clock_up_to_the_notice(cluster: Callable[..., None]) -> None:
    fast = events.ClusterClock(anchors=((0.0, 0.0, 1.0), (BEGIN + 1.0, BEGIN + 1.0, 60.0)), time=at(0) + 10**9)
    cluster("a", [fast, *vm("w0", start=0.1), *revoked("w0", 0.3)], project=None)
    [life] = own_lives()
    assert told(life) == (12.0, True), "the 30 s after the notice would be half an hour more"
    assert (life.emulated, life.rate) == (True, 60.0)


def test_they_answer_where_they_are_enough_and_are_never_mixed(cluster: Callable[..., None]) -> None:
    def many(first: float, count: int) -> list[Event]:
        return [event for i in range(count) for event in (*vm(f"w{i}"), *revoked(f"w{i}", first + i / 10))]

    with pytest.raises(PlanError, match=r"No spot VM of your own \(V100\) has run on Compute Engine"):
        lifetimes("v100", source="own")
    cluster("emulated", many(1, 40), project=None)
    with pytest.raises(PlanError, match="On the emulator there were 40 more"):
        lifetimes("v100", source="own")
    assert "Published" in lifetimes("v100").title
    emulated = lifetimes("v100", source="emulated")
    assert "never mixed" in emulated.notes[0]
    assert "40 VMs, 40 revoked" in str(emulated)
    cluster("few", many(2, 20))
    with pytest.raises(PlanError, match="20 revocations of 20 VMs are not enough"):
        lifetimes("v100", source="own")
    cluster("more", many(3, 20))
    own = lifetimes("v100", "us-west1")
    assert "Your own spot VMs on Compute Engine, V100 in us-west1" in own.title
    assert own.counted.startswith("40 VMs, 40 revoked")
    with pytest.raises(PlanError):
        lifetimes("v100", "us-east1", source="own")
    with pytest.raises(PlanError):
        lifetimes("v100", source="own", provisioning_model="preemptible")


def test_a_vm_that_was_stopped_and_started_again_lives_since_then(cluster: Callable[..., None]) -> None:
    def restarted(name: str, *, again: bool) -> list[Event]:
        asked = events.VmMachineAsked(vm=name, machine_type="n1-standard-4", hourly=0.4, on_demand_hourly=1.0,
                                      disk_hourly=0.01, part=0.5, reason="asked", time=at(2))  # fmt: skip
        stopped = events.VmStopped(vm=name, reason="r", time=at(3))
        started = events.VmStarted(vm=name, address="10.0.0.2", time=at(4))
        return [events.VmReady(vm=name, time=at(1)), asked, stopped, *([started] if again else [])]

    given_up = events.VmRevoked(vm="w1", signal="start", time=at(5))
    cluster("a", [*vm("w0"), *restarted("w0", again=True), *revoked("w0", 9), *vm("w1"), *restarted("w1", again=False),
                  given_up])  # fmt: skip
    assert sorted(map(told, own_lives())) == [(3.0, False), (5.0, True)]


def test_vms_that_suddenly_die_young_raise_the_alarm(cluster: Callable[..., None]) -> None:
    old = [event for i in range(60) for event in (*vm(f"w{i}"), *revoked(f"w{i}", 2 + i / 4))]
    same = [event for i in range(30) for event in (*vm(f"x{i}", start=50), *revoked(f"x{i}", 52 + i / 2))]
    cluster("a", old)
    cluster("b", same)
    steady = lifetimes("v100", source="own")
    assert not steady.alarm
    assert steady.notes[-1].endswith("no sign of a change.")
    cluster("c", [event for i in range(30) for event in (*vm(f"y{i}", start=100), *revoked(f"y{i}", 100.5 + i / 30))])
    young = lifetimes("v100", source="own")
    assert young.alarm
    assert "CHANGED: Of your latest 30 VMs, 30 were revoked" in young.notes[-1]


def test_published_figures_that_one_s_own_vms_disagree_with_are_told(cluster: Callable[..., None]) -> None:
    cluster("a", [event for i in range(30) for event in (*vm(f"w{i}"), *deleted(f"w{i}", 20))])
    published = lifetimes("v100", source="published")
    assert published.alarm
    assert "Of your latest 30 VMs, 0 were revoked" in published.notes[-1]
    assert "other lifetimes" in lifetimes_html(published)
