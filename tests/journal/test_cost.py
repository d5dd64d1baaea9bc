"""Costs of work and their sum: a bill computed by hand, and what holds of any journal."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.journal.test_bill import FAR, FAST, GIB, HOME, HOUR, NOW, SPEC, cluster, vm
from transient_magics.client.results.comparison import revocations
from transient_magics.client.text.bills import lines_words
from transient_magics.journal import ClusterState, Cost, Event, Projection, RunState, Works, bill, costs, events, fold
from transient_magics.journal.cost import CORRECTIONS, IDLE, NOTICED, START_UP, charged, total
from transient_magics.journal.power import Stretch
from transient_magics.journal.state import unknown_run
from transient_magics.panels.snapshot.view import view
from transient_magics.protocol.vm_events import TrainFinished
from transient_magics.spec.cluster import place
from transient_magics.works.jobs.spec import JobSpec

SECOND = 10**9
MINUTE = 60 * SECOND


def shown(state: ClusterState, now: float) -> object:
    """A panel's snapshot."""
    return view(state, bill(state, now), now)


def taken(state: ClusterState, now: float) -> object:
    """The revocations of each run."""
    return revocations(state)


class Story:
    """Events of a cluster, numbered as they are told; moments in minutes since its declaration, at 0."""

    def __init__(self, **spec: object) -> None:
        self.state = ClusterState()
        self.states: list[tuple[float, ClusterState]] = []
        """After each event: its moment, and the state."""
        declared = replace(SPEC, declared_at=0.0, zones=(HOME, FAR), **spec)  # type: ignore[arg-type]
        self.tell(events.ClusterDeclared(spec=declared.to_dict()), 0)

    def tell(self, event: Event, minute: float) -> None:
        event = replace(event, seq=self.state.seq + 1, time=round(minute * MINUTE) + 1)
        self.state = fold(self.state, event)
        self.states.append((event.at, self.state))

    def rent(
        self, name: str, runs: float, ready: float | None, *, role: str = "worker", slot: int = 0, zone: str = HOME
    ) -> None:
        price = 0.12 if role == "ps" else 0.3
        self.tell(
            events.VmRequested(
                vm=name, role=role, slot=slot, zone=zone, accelerator="k80" if role == "worker" else "",
                machine_type="n1-standard-4", provisioning_model="standard" if role == "ps" else "spot",
                hourly=price, on_demand_hourly=3 * price,
            ),
            runs,
        )  # fmt: skip
        self.tell(events.VmRunning(vm=name, address="10.128.0.2"), runs)
        if ready is not None:
            self.tell(events.VmReady(vm=name), ready)

    def lease(self, minute: float, workers: dict[int, str]) -> None:
        places = {str(slot): name for slot, name in workers.items()}
        self.tell(events.ClusterLeased(workers=places, ports={}), minute)

    def declare_run(self, name: str, minute: float) -> None:
        self.tell(events.WorkDeclared(of="run", work=name, spec={"train_steps": 1000}), minute)

    def end_run(self, name: str, minute: float) -> None:
        self.tell(TrainFinished(run=name, step=1000), minute)


def by_hand() -> Story:
    """Two hours of a cluster with a parameter server at $0.12 and workers at $0.30 per hour."""
    story = Story()
    story.rent("ps-0", 0, 2, role="ps")
    story.rent("worker-0", 0, 3)
    story.rent("worker-1", 0, 3, slot=1)
    story.declare_run("run-1", 0)
    story.lease(5, {0: "run-1", 1: "run-1"})
    # worker-1 is taken at minute 35, with the usual notice; its replacement answers at minute 40.
    story.tell(events.VmPreemptionNotice(vm="worker-1"), 35)
    story.tell(events.VmRevoked(vm="worker-1", signal="notice"), 35.5)
    story.rent("worker-2", 36, 40, slot=1)
    # At minute 50 a job gets worker-0 from the run, which ends at minute 65; the job ends at minute 80.
    story.tell(events.WorkDeclared(of="job", work="job-1", spec=JobSpec("job-1", "make").to_dict()), 50)
    story.lease(50, {0: "job-1", 1: "run-1"})
    story.end_run("run-1", 65)
    story.lease(65.1, {0: "job-1"})
    story.tell(events.WorkEnded(work="job-1", of="job", state="finished"), 80)
    story.lease(80.1, {})
    return story


def test_a_bill_that_was_computed_by_hand() -> None:
    """The arithmetic, in minutes: a worker costs $0.005 in each, the parameter server $0.002."""
    story = by_hand()
    worker, server = 0.30 / 60, 0.12 / 60
    run_1 = {
        # worker-0 from 5 to 50, worker-1 from 5 to its notice at 35, worker-2 from 40 to the run's end at 65.
        "its workers": worker * (45 + 30 + 25),
        # All of the server from 5 to 50; from 50 to 65 the run has one worker, and the job one.
        "its share of other VMs": server * (45 + 15 / 2),
    }
    job_1 = {
        "its workers": worker * 30,
        # Half of the server from 50 to 65, and all of it from 65 to 80.
        "its share of other VMs": server * (15 / 2 + 15),
    }
    # Until VMs answered: the server 2 minutes, worker-0 and worker-1 3 each, worker-2 4.
    start_up = server * 2 + worker * (3 + 3 + 4)
    # worker-0 from 3 to 5 and from 80 to 120, worker-1 from 3 to 5, worker-2 from 65 to 120; the server from 2 to 5
    # and from 80 to 120.
    idle = worker * (2 + 40 + 2 + 55) + server * (3 + 40)
    found, account = costs(story.state, 120 * 60), bill(story.state, 120 * 60)
    assert found["run-1"].lines == pytest.approx(run_1)
    assert found["job-1"].lines == pytest.approx(job_1)
    assert account.lines == pytest.approx({
        "run-1": sum(run_1.values()), "job-1": sum(job_1.values()), START_UP: start_up, IDLE: idle,
    })  # fmt: skip
    # By VM: two hours of the server and worker-0, worker-1 until its notice, worker-2 from 36 on.
    total = server * 120 + worker * (120 + 35 + 84)
    assert account.total == pytest.approx(total)
    assert total == pytest.approx(1.435), "in US dollars"
    assert sum(account.lines.values()) == pytest.approx(total)


def same(one: Cost, other: Cost) -> bool:
    return one.over == other.over and one.lines == pytest.approx(other.lines, abs=1e-12)


def test_what_finished_work_cost_does_not_change() -> None:
    story = by_hand()
    at_its_end = costs(story.state, 80 * 60)
    assert repr(at_its_end["job-1"]) == "job-1: $0.195"
    for hours in (2, 30):
        assert same(costs(story.state, hours * HOUR)["job-1"], at_its_end["job-1"]), "the cluster idles"
    story.declare_run("run-2", 130)
    story.lease(131, {0: "run-2", 1: "run-2"})
    later = costs(story.state, 5 * HOUR)
    assert same(later["job-1"], at_its_end["job-1"]), "new work"
    assert same(later["run-1"], at_its_end["run-1"])
    assert later["run-2"].total > 0
    story.tell(events.ClusterDeleting(reason=""), 400)
    assert same(costs(story.state, 9 * HOUR)["run-1"], at_its_end["run-1"])


def test_a_longer_notice_is_billed_and_no_work_pays_it() -> None:
    story = Story()
    story.rent("worker-0", 0, 1)
    story.declare_run("run-1", 0)
    story.lease(1, {0: "run-1"})
    story.tell(events.VmPreemptionNotice(vm="worker-0", seconds=120.0), 31)
    story.tell(events.VmRevoked(vm="worker-0", signal="notice"), 33)
    account = bill(story.state, HOUR)
    assert account.lines == pytest.approx({"run-1": 0.15, START_UP: 0.005, NOTICED: 0.01})


def test_the_first_minute_of_a_vm_that_is_taken_within_it_is_free_and_ended_work_keeps_its_cost() -> None:
    """A VM answers after 6 s and is taken after 42 s; the run that had it ends after a minute, or after 30 s."""
    taken, ended = Story(), Story()
    for story in (taken, ended):
        story.rent("worker-0", 0, 0.1)
        story.declare_run("run-1", 0)
        story.lease(0.1, {0: "run-1"})
    ended.end_run("run-1", 0.5)
    before = costs(ended.state, 33)["run-1"]
    for story in (taken, ended):
        story.tell(events.VmRevoked(vm="worker-0", signal="api"), 0.7)
    taken.end_run("run-1", 1)
    assert bill(taken.state, HOUR).lines == {}
    assert same(costs(ended.state, HOUR)["run-1"], before)
    paid = 0.4 / 60 * 0.3
    assert bill(ended.state, HOUR).lines == pytest.approx({"run-1": paid, CORRECTIONS: -paid})
    assert bill(ended.state, HOUR).total == 0


def test_a_cluster_that_moves_pays_its_new_vms_beside_the_old_ones_by_itself() -> None:
    story = Story()
    story.rent("worker-0", 0, 0)
    story.declare_run("run-1", 0)
    story.lease(0, {0: "run-1"})
    story.tell(events.ClusterRelocating(spec=story.state.spec.to_dict()), 10)  # type: ignore[union-attr]
    story.rent("worker-1", 10, 12)
    story.tell(events.ClusterRelocated(leaves=("worker-0",), dollars=0.5), 20)
    story.tell(events.VmDeleted(vm="worker-0", reason="", stopping=0), 21)
    lines = bill(story.state, 30 * 60).lines
    # worker-0 until minute 20, then worker-1; two minutes of start-up, eight of waiting there and one of going here.
    assert lines == pytest.approx({"run-1": 0.15, START_UP: 0.01, IDLE: 0.045, "data that followed it": 0.5})


def test_data_transfer_is_paid_by_the_work_that_had_the_vm_and_at_the_price_of_then() -> None:
    story = Story(transfer_prices={FAR: 0.06})
    story.rent("worker-0", 0, 0, zone=FAR)
    for name in ("run-1", "run-2"):
        story.declare_run(name, 0)
    story.lease(0, {0: "run-1"})
    story.tell(events.VmTraffic(vm="worker-0", sent=GIB, received=GIB), 10)
    story.end_run("run-1", 11)
    story.tell(events.VmTraffic(vm="worker-0", sent=GIB, received=2 * GIB), 11.2)
    story.lease(12, {0: "run-2", place(0, 1): "run-1"})
    story.tell(events.VmTraffic(vm="worker-0", sent=2 * GIB, received=4 * GIB), 13)
    found = costs(story.state, HOUR)
    assert found["run-1"].lines["data transfer"] == pytest.approx(0.12)
    assert found["run-2"].lines["data transfer"] == pytest.approx(0.18)
    idle = 0.3 / 60 + 0.06
    assert bill(story.state, HOUR).lines[IDLE] == pytest.approx(idle), "what was counted after run-1 ended"


def test_a_run_costs_what_its_workers_were_when_it_had_them() -> None:
    """Of three hours: one as what was rented, one stopped, and one as a smaller machine that answers at once."""
    smaller = vm(running_at=NOW - 3 * HOUR, hourly=0.125, powered=(
        Stretch(NOW - 3 * HOUR, "n1-standard-4", 0.5, 1.0, ready_at=NOW - 3 * HOUR),
        Stretch(NOW - 2 * HOUR, "n1-standard-4", 0.01, 0.01, runs=False),
        Stretch(NOW - HOUR, "n1-standard-1", 0.125, 0.25, 0.25, ready_at=NOW - HOUR / 2)))  # fmt: skip
    state = cluster(
        smaller,
        tenures={"run-1": ((0, NOW - 3 * HOUR, NOW - 2 * HOUR),), "run-2": ((0, NOW - 2 * HOUR, NOW - HOUR),)},
        leases={0: "run-3"},
        leased_at={0: NOW - HOUR},
    )
    assert bill(state, NOW).lines == pytest.approx({"run-1": 0.5, "run-2": 0.01, "run-3": 0.0625, START_UP: 0.0625})


def test_trials_on_one_vm_pay_equal_parts_of_it_and_count_as_one_worker_together() -> None:
    state = cluster(
        vm("ps-0", role="ps", accelerator="", provisioning_model="standard", hourly=0.125, ready_at=NOW - 2 * HOUR),
        vm("worker-0", ready_at=NOW - 2 * HOUR),
        vm("worker-1", slot=1, ready_at=NOW - 2 * HOUR),
        tenures={"s-0": ((0, NOW - 2 * HOUR, NOW - HOUR),)},
        leases={place(0, 1): "s-1", place(0, 2): "s-2", 1: "run-1"},
        leased_at={place(0, 1): NOW - 2 * HOUR, place(0, 2): NOW - HOUR, 1: NOW - HOUR},
    )
    workers = {"s-0": 0.125, "s-1": 0.25, "s-2": 0.125, "run-1": 0.25}
    servers = {"s-0": 0.0625, "s-1": 0.0625 + 0.125 / 4, "s-2": 0.125 / 4, "run-1": 0.125 / 2}
    expected = {name: workers[name] + servers[name] for name in workers}
    assert bill(state, NOW).lines == pytest.approx({**expected, IDLE: 0.25})


def test_a_vm_that_is_taken_within_its_first_minute_changes_nothing_of_work_that_ended_before() -> None:
    story = Story()
    story.rent("worker-0", 0, 0)
    story.declare_run("run-1", 0)
    story.lease(0, {0: "run-1"})
    story.end_run("run-1", 0.5)
    before = costs(story.state, 40)["run-1"]
    story.tell(events.VmRevoked(vm="worker-0", signal="api"), 0.75)
    assert same(costs(story.state, HOUR)["run-1"], before)
    account = bill(story.state, HOUR)
    assert account.total == pytest.approx(0), "Google bills nothing"
    assert sum(account.lines.values()) == pytest.approx(0)


def random_story(seed: int) -> Story:
    """A cluster whose VMs come, are taken and replaced while runs and jobs share it, none of which ends twice."""
    chance = random.Random(seed)
    story = Story(transfer_prices={FAR: 0.05})
    minute, vms, work, over, leases = 0.0, 0, list[str](), set[str](), dict[int, str]()
    if chance.random() < 0.3:
        story.tell(events.ClusterClock(anchors=((0.0, 0.0, 1.0), (600.0, 600.0, 3.0))), 0)
    story.rent("ps-0", 0, chance.choice([None, 1.0]), role="ps")
    for _ in range(chance.randrange(5, 40)):
        minute += chance.choice([0.1, 0.5, 3.0, 20.0])
        living = [each for each in story.state.living if each.role == "worker"]
        match chance.randrange(7):
            case 0 | 1:
                slot, zone = chance.randrange(3), chance.choice([HOME, FAR])
                story.rent(f"worker-{vms}", minute, chance.choice([None, minute, minute]), slot=slot, zone=zone)
                vms += 1
            case 2 if living:
                name = chance.choice(living).name
                story.tell(events.VmPreemptionNotice(vm=name, seconds=chance.choice([30.0, 120.0])), minute)
                stopping = chance.choice([0, round((minute - chance.choice([0.001, 7.0])) * MINUTE)])
                revoked = events.VmRevoked(vm=name, signal="notice", stopping=max(stopping, 0))
                story.tell(revoked, minute + chance.choice([0.5, 2.0, 4.0]))
                minute += 4
            case 3:
                name = chance.choice([each.name for each in story.state.living] or ["none"])
                stopping = round((minute - chance.choice([0.5, 7.0, 25.0])) * MINUTE)
                gone = events.VmRevoked(vm=name, signal="api", stopping=max(stopping, 0))
                story.tell(chance.choice([gone, events.VmDeleted(vm=name, reason="")]), minute)
            case 4 if living:
                moved = chance.choice(living)
                more = moved.traffic_bytes + chance.randrange(1, 9) * GIB
                story.tell(events.VmTraffic(vm=moved.name, sent=more, received=0), minute)
            case 5:
                name = f"run-{len(work)}"
                work.append(name)
                story.declare_run(name, minute)
            case 6 if len(over) < len(work):
                name = chance.choice([each for each in work if each not in over])
                over.add(name)
                story.end_run(name, minute)
                minute += 0.05  # the places are taken from it a moment later
        going = [each for each in work if each not in over]
        if going and chance.random() < 0.5:
            places = [0, 1, 2, place(0, 1), place(1, 1)]
            leases = {slot: chance.choice(going) for slot in places if chance.random() < 0.6}
            story.lease(minute, leases)
        elif any(name in over for name in leases.values()):
            leases = {slot: name for slot, name in leases.items() if name not in over}
            story.lease(minute, leases)
    return story


@examples(30)
@given(st.integers(0, 10**6))
def test_all_lines_of_any_journal_sum_to_the_bill_and_finished_work_keeps_its_cost(seed: int) -> None:
    story = random_story(seed)
    final: dict[str, Cost] = {}
    for at, state in story.states[1::3]:
        account = bill(state, at)
        assert sum(account.lines.values()) == pytest.approx(account.total, abs=1e-9)
        assert all(dollars > -1e-9 for line, dollars in account.lines.items() if line != CORRECTIONS)
        found = costs(state, at)
        assert all(cost.total >= 0 for cost in found.values())
        for name, cost in found.items():
            if name in final:
                assert cost.total == pytest.approx(final[name].total, abs=1e-12), "after its end"
            elif cost.over:
                final[name] = cost
    later = costs(story.state, 1e6)
    assert all(later[name].total == pytest.approx(cost.total, abs=1e-12) for name, cost in final.items())


def test_an_end_that_is_learnt_after_the_end_of_work_is_corrected_in_a_line_of_its_own() -> None:
    """The run ends at minute 65; at minute 66 Compute Engine reports that VMs had stopped at minute 60."""
    story = by_hand()
    late = Story()
    for _, state in story.states:
        if not state.of(RunState).get("run-1") or not state.of(RunState)["run-1"].over:
            late.state = state
    late.end_run("run-1", 65)
    before = costs(late.state, 65.5 * 60)["run-1"]
    for name in ("worker-2", "ps-0"):
        late.tell(events.VmRevoked(vm=name, signal="api", stopping=60 * MINUTE), 66)
    assert same(costs(late.state, 3 * HOUR)["run-1"], before)
    account = bill(late.state, 3 * HOUR)
    # Five minutes of worker-2, and of the server the part of the run; the job had the other half of it.
    assert account.lines[CORRECTIONS] == pytest.approx(-5 * 0.30 / 60 - 5 * 0.12 / 60 / 2)
    assert "corrections -$0.030" in lines_words(account)
    assert sum(account.lines.values()) == pytest.approx(account.total)
    assert account.total == pytest.approx(total(late.state, 3 * HOUR))


def test_a_limit_counts_what_replacing_workers_takes_beside_the_cost_of_work() -> None:
    """The run waits 4 minutes for worker-2 at $0.30 per hour, and starts before it had slots are not its own."""
    state = by_hand().state
    found = costs(state, 2 * HOUR)
    assert charged(state, "run-1", 2 * HOUR) == pytest.approx(found["run-1"].total + 4 * 0.30 / 60)
    assert charged(state, "job-1", 2 * HOUR) == pytest.approx(found["job-1"].total)
    story = Story()
    story.rent("worker-0", 0, 1)
    story.declare_run("run-1", 0)
    story.lease(1, {0: "run-1"})
    story.tell(events.VmPreemptionNotice(vm="worker-0", seconds=120.0), 31)
    story.tell(events.VmRevoked(vm="worker-0", signal="notice"), 33)
    assert charged(story.state, "run-1", HOUR) == pytest.approx(0.15 + 0.01), "a notice that is billed"
    story.rent("worker-1", 34, None)
    story.tell(events.VmRevoked(vm="worker-1", signal="api"), 34.5)
    assert charged(story.state, "run-1", HOUR) == pytest.approx(0.15 + 0.01), "taken within its first minute"


def test_a_study_has_no_final_cost_while_runs_of_it_go_on() -> None:
    """A trial's value is there before its run ends, and a bag is over before its Dask cluster is."""
    story = Story()
    story.rent("worker-0", 0, 0)
    story.declare_run("s-0", 0)
    story.lease(0, {0: "s-0"})
    study: Any = SimpleNamespace(
        name="s", kind="study", over=True, members=("s-0",), takes_workers=False, owns_cluster=False
    )
    state = replace(story.state, works=story.state.works.with_work(study))
    assert not costs(state, HOUR)["s"].over
    story.end_run("s-0", 30)
    ended = replace(story.state, works=story.state.works.with_work(study))
    assert costs(ended, HOUR)["s"].over
    assert charged(ended, "s", HOUR) == pytest.approx(0.15)
    study.owns_cluster = True
    assert charged(ended, "s", HOUR) == pytest.approx(0.3), "it pays all of a cluster that it has for itself"
    dask: Any = SimpleNamespace(name="d", kind="dask", over=False, members=(), takes_workers=True)
    bag: Any = SimpleNamespace(name="b", kind="bag", over=True, members=("d",), takes_workers=False)
    assert not costs(replace(story.state, works=story.state.works.with_work(bag, dask)), HOUR)["b"].over


def calls(function: Callable[[], object]) -> int:
    """How many calls it takes."""
    counts = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counts
        counts += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counts


def one_slot(vms: int) -> ClusterState:
    """A cluster whose one worker was replaced many times while as many runs came and went."""
    since = [NOW - HOUR * (vms - number) for number in range(vms)]
    machines = [
        vm(f"worker-{number}", state="revoked", running_at=at, ready_at=at + 60, requested_at=at, ended_at=at + 3000,
           replaces=f"worker-{number - 1}")
        for number, at in enumerate(since)
    ]  # fmt: skip
    tenures = {f"run-{number}": ((0, at, at + HOUR),) for number, at in enumerate(since)}
    ended = {"phase": "finished", "declared_at": NOW, "ended_at": NOW}
    runs = Works(replace(unknown_run(name), **ended) for name in tenures)
    spec = replace(SPEC, max_seconds=1e9)
    return cluster(*machines, spec=spec, tenures=tenures, works=runs)


@pytest.mark.parametrize("function", [bill, total, shown, taken])
def test_a_bill_takes_time_by_the_number_of_vms_and_no_more(function: Callable[[ClusterState, float], object]) -> None:
    few, many = one_slot(50), one_slot(200)
    assert calls(lambda: function(many, NOW)) < 6 * calls(lambda: function(few, NOW))
    assert calls(lambda: function(many, NOW)) < 250 * len(many.vms), "prices of all zones are looked up once"


def test_a_faster_clock_counts_for_shares_too() -> None:
    state = cluster(
        vm("ps-0", role="ps", accelerator="", provisioning_model="standard", hourly=0.125, ready_at=NOW - 2 * HOUR),
        vm("worker-0", ready_at=NOW - 2 * HOUR),
        leases={0: "run-1"},
        leased_at={0: NOW - HOUR},
        clock=FAST,
    )
    assert bill(state, NOW).lines == pytest.approx({"run-1": 4 * 0.375, IDLE: 4 * 0.375})


def test_a_cost_says_what_it_is_of_and_shows_its_lines() -> None:
    going = Cost(subject="run-1", total=0.0512, lines={"its workers": 0.05}, projected=Projection(0.42, 0.38, 0.46))
    assert repr(going) == "run-1: $0.051 so far, $0.420 at its end ($0.380 to $0.460)"
    assert repr(replace(going, projected=None)) == "run-1: $0.051 so far"
    assert repr(Cost(subject="run-1", total=1.07, over=True)) == "run-1: $1.07"
    shown = Cost(subject="<b>", total=1.0, lines={"its workers": 1.0})._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "its workers" in shown
    assert "<span>$</span>1.00" in shown, "between two plain dollar signs JupyterLab reads a formula"
