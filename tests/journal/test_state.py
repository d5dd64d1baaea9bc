"""State and cost are folds: the same events give the same answer, however they are cut into batches."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.journal import (
    ClusterState,
    Event,
    KeptState,
    RunState,
    bill,
    decode,
    encode,
    events,
    fold,
    replay,
)
from transient_magics.protocol.machines import MOST_WORKERS
from transient_magics.protocol.objective import Objective
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.space import parse_space
from transient_magics.protocol.vm_events import (
    TrainCheckpoint,
    TrainFinished,
    TrainMade,
    TrainProgress,
    TrainStarted,
    WorkerBatchResized,
    WorkerJoined,
    WorkerLeft,
)
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup
from transient_magics.works.studies.events import StudyAsked, StudyExtended, StudyTold
from transient_magics.works.studies.spec import StudySpec
from transient_magics.works.studies.state import StudyState

SPEC = ClusterSpec(
    name="k80x2",
    groups=(WorkerGroup("k80", 2),),
    zones=("us-west1-b",),
    prices={
        "k80": PriceLine("n1-standard-4", 0.256, 0.723, "ICAC'19"),
        "parameter-server": PriceLine("custom-4-16384", 0.143, 0.143, "ICAC'19"),
    },
)
SECOND = 10**9
HOUR = 3600 * SECOND


def requested(vm: str, time: int) -> Event:
    return events.VmRequested(
        vm=vm, role="worker", slot=0, zone="us-west1-b", accelerator="k80", machine_type="n1-standard-4",
        provisioning_model="spot", hourly=0.256, on_demand_hourly=0.723, time=time,
    )  # fmt: skip


def numbered(history: list[Event]) -> list[Event]:
    lines = [encode(event) for event in history]
    return [decode(line.replace(b'"seq":0', f'"seq":{index}'.encode(), 1)) for index, line in enumerate(lines, 1)]


names = st.sampled_from(["worker-0", "worker-1", "worker-2"])
stories = st.lists(
    st.one_of(
        names.map(lambda vm: requested(vm, 0)),
        names.map(lambda vm: events.VmRunning(vm=vm, address="10.128.0.2")),
        names.map(lambda vm: events.VmReady(vm=vm)),
        names.map(lambda vm: events.VmPreemptionNotice(vm=vm)),
        names.map(lambda vm: events.VmRevoked(vm=vm, signal="ssh")),
        names.map(lambda vm: events.VmDeleted(vm=vm, reason="")),
        st.just(events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 10})),
        st.builds(WorkerJoined, run=st.just("run-1"), worker=names, number=st.integers(0, 3), active=st.just(1)),
        st.just(WorkerBatchResized(run="run-1", worker="worker-1", old=32, new=48, reason="join")),
        st.builds(TrainProgress, run=st.just("run-1"), step=st.integers(0, 10)),
        st.just(TrainFinished(run="run-1", step=10)),
    ),
    max_size=30,
).map(numbered)


@given(stories, st.integers(0, 30))
def test_a_state_does_not_depend_on_where_reading_was_interrupted(story: list[Event], cut: int) -> None:
    assert replay(story[cut:], replay(story[:cut])) == replay(story)


@given(stories)
def test_events_read_twice_count_once(story: list[Event]) -> None:
    # A run that is declared twice is refused at each reading, and counted.
    assert replace(replay(story + story), passed_over=0) == replace(replay(story), passed_over=0)


@given(stories)
def test_a_vm_that_ran_and_is_gone_stays_gone(story: list[Event]) -> None:
    state = ClusterState()
    for event in story:
        gone = {name for name, vm in state.vms.items() if not vm.living and vm.running_at}
        state = replay([event], state)
        if not isinstance(event, events.VmRequested):
            assert gone <= {name for name, vm in state.vms.items() if not vm.living}


def test_a_revoked_vm_costs_until_its_notice_and_a_living_one_until_now() -> None:
    history = numbered([
        events.ClusterDeclared(spec=SPEC.to_dict(), time=1),
        requested("worker-0", 1),
        requested("worker-1", 1),
        events.VmRunning(vm="worker-0", address="10.128.0.2", time=HOUR),
        events.VmRunning(vm="worker-1", address="10.128.0.3", time=HOUR),
        events.VmPreemptionNotice(vm="worker-0", time=2 * HOUR - 30 * SECOND),
        events.VmRevoked(vm="worker-0", signal="notice", time=2 * HOUR),
    ])  # fmt: skip
    state = replay(history)
    account = bill(state, now=3 * 3600)
    assert account.by_vm == pytest.approx({"worker-0": 0.256 * 3570 / 3600, "worker-1": 0.512})
    assert account.on_demand == pytest.approx(0.723 * (2 * 3600 + 3570) / 3600)
    assert account.hourly == pytest.approx(0.256)
    assert account.source == "ICAC'19"
    assert state.revocations == 1


def billed(*history: Event, now: float = 9e9, **more: object) -> float:
    """Seconds for which a Spot VM that runs from the first hour on is paid."""
    begin = [events.ClusterDeclared(spec=replace(SPEC, **more).to_dict(), time=1), requested("worker-0", 1)]  # type: ignore[arg-type]
    running = [] if any(isinstance(each, events.VmRunning) for each in history) else [runs(HOUR)]
    return bill(replay(numbered([*begin, *running, *history])), now).total / 0.256 * 3600


def runs(time: int, **more: int) -> Event:
    return events.VmRunning(vm="worker-0", address="10.128.0.2", time=time, **more)


def notice(time: int) -> Event:
    return events.VmPreemptionNotice(vm="worker-0", time=time)


def revoked(time: int, **more: int) -> Event:
    return events.VmRevoked(vm="worker-0", signal="api", time=time, **more)


def deleted(time: int, **more: int) -> Event:
    return events.VmDeleted(vm="worker-0", reason="", time=time, **more)


def test_a_vm_is_paid_for_a_minute_at_least_and_then_by_the_second() -> None:
    assert billed(now=3600.5) == pytest.approx(60)
    assert billed(deleted(HOUR + 20 * SECOND)) == pytest.approx(60)
    assert billed(deleted(HOUR + 61 * SECOND)) == pytest.approx(61)


def test_a_vm_that_is_preempted_within_its_first_minute_is_free() -> None:
    early = notice(HOUR + 59 * SECOND), revoked(HOUR + 89 * SECOND)
    assert billed(*early) == billed(early[0], now=3665) == 0
    assert billed(notice(HOUR + 61 * SECOND), revoked(HOUR + 91 * SECOND)) == pytest.approx(61)
    assert billed(revoked(HOUR + 59 * SECOND)) == 0
    assert billed(now=3659) == pytest.approx(60), "whoever ends it pays the minute"


def test_a_notice_is_free_while_it_can_be_one() -> None:
    assert billed(notice(2 * HOUR), now=2 * 3600 + 100) == pytest.approx(3600)
    assert billed(notice(2 * HOUR), deleted(2 * HOUR + 20 * SECOND)) == pytest.approx(3600)
    # A VM that tells of a notice and goes on is paid for.
    assert billed(notice(2 * HOUR), now=3 * 3600) == pytest.approx(7200)
    assert billed(notice(2 * HOUR), deleted(3 * HOUR)) == pytest.approx(7200)


def test_compute_engines_own_times_count_where_they_can_be_true() -> None:
    overnight = revoked(10 * HOUR, stopping=2 * HOUR)
    assert billed(overnight) == pytest.approx(3600), "nobody saw it go, for hours"
    assert billed(runs(2 * HOUR, started=HOUR), overnight) == pytest.approx(3600)
    assert billed(deleted(3 * HOUR, stopping=2 * HOUR)) == pytest.approx(3600)
    assert billed(runs(2 * HOUR, started=5 * HOUR), revoked(3 * HOUR, stopping=9 * HOUR)) == pytest.approx(3600)


def test_a_vm_that_went_unseen_is_paid_until_its_time_limit_at_most() -> None:
    assert billed(revoked(10 * HOUR), max_seconds=3 * 3600.0) == pytest.approx(2 * 3600)
    assert billed(now=10 * 3600, max_seconds=3 * 3600.0) == pytest.approx(9 * 3600), "one that is there still costs"


def test_a_vm_that_runs_after_it_was_given_up_is_paid_for_and_of_no_use() -> None:
    refused = events.VmRefused(vm="worker-0", reason="it did not start within 600 s", cause="other", time=HOUR)
    late = runs(2 * HOUR + 5 * SECOND, started=2 * HOUR)
    assert billed(refused, late, now=3 * 3600) == pytest.approx(3600)
    assert billed(refused, late, deleted(3 * HOUR, stopping=3 * HOUR - 5 * SECOND)) == pytest.approx(3595)
    vm = replay(numbered([requested("worker-0", 1), refused, late])).vms["worker-0"]
    assert (vm.state, vm.failure, vm.reason) == ("booting", "it came after it was given up", "")
    # One that has run is gone for good.
    assert billed(runs(HOUR), deleted(2 * HOUR), runs(3 * HOUR), now=9 * 3600) == pytest.approx(3600)


def test_a_faster_clock_bills_the_hours_that_pass_on_it() -> None:
    minute = 60 * 10**9
    history = numbered([
        events.ClusterDeclared(spec=SPEC.to_dict(), time=1),
        requested("worker-0", 1),
        events.VmRunning(vm="worker-0", address="10.128.0.2", time=HOUR),
        # Half an hour later an hour begins to pass in a minute.
        events.ClusterClock(anchors=((0.0, 0.0, 1.0), (5400.0, 5400.0, 60.0)), time=HOUR + 30 * minute),
        events.VmRevoked(vm="worker-0", signal="notice", time=HOUR + 32 * minute),
    ])  # fmt: skip
    assert bill(replay(history), now=9e9).total == pytest.approx(2.5 * 0.256)


def test_data_between_zones_is_on_the_bill_and_on_the_on_demand_bill_too() -> None:
    spec = replace(SPEC, transfer_prices={"us-west1-b": 0.02})
    gib = 2**30
    history = numbered([
        events.ClusterDeclared(spec=spec.to_dict(), time=1),
        requested("worker-0", 1),
        events.VmRunning(vm="worker-0", address="10.128.0.2", time=HOUR),
        events.VmTraffic(vm="worker-0", sent=10 * gib, received=30 * gib, time=2 * HOUR),
    ])  # fmt: skip
    account = bill(replay(history), now=2 * 3600)
    assert account.transfer == pytest.approx(0.8)
    assert account.transfer_hourly == pytest.approx(0.8)
    assert account.total == pytest.approx(0.256 + 0.8)
    assert account.on_demand == pytest.approx(0.723 + 0.8)


def test_data_crosses_no_faster_where_the_emulated_clock_does() -> None:
    spec = replace(SPEC, transfer_prices={"us-west1-b": 0.02})
    history = numbered([
        events.ClusterDeclared(spec=spec.to_dict(), time=1),
        requested("worker-0", 1),
        events.VmRunning(vm="worker-0", address="10.128.0.2", time=HOUR),
        events.ClusterClock(anchors=((0.0, 0.0, 1.0), (3600.0, 3600.0, 60.0)), time=HOUR),
        events.VmTraffic(vm="worker-0", sent=10 * 2**30, received=30 * 2**30, time=2 * HOUR),
        events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 7200}, time=HOUR),
        TrainStarted(run="run-1", step=0, time=HOUR),
        TrainProgress(run="run-1", step=3600, steps_per_second=1.0, time=2 * HOUR),
    ])  # fmt: skip
    account = bill(replay(history), now=2 * 3600)
    assert account.total == pytest.approx(60 * 0.256 + 0.8)


def test_a_spec_survives_the_journal() -> None:
    state = replay(numbered([events.ClusterDeclared(spec=SPEC.to_dict())]))
    assert state.spec == SPEC


def test_of_a_long_run_few_points_and_marks_are_kept_and_they_cover_all_of_it() -> None:
    spec = {"train_steps": 10**6}
    history: list[Event] = [events.WorkDeclared(of="run", work="r", spec=spec), TrainStarted(run="r", step=0)]
    for step in range(5000):
        history += [
            TrainProgress(run="r", step=step, loss=1.0),
            TrainCheckpoint(run="r", step=step, path=""),
        ]
    timed = [replace(event, seq=number, time=number * 10**9) for number, event in enumerate(history, 1)]
    run = replay(timed).of(RunState)["r"]
    for points, most in ((run.series, 720), (run.checkpoints, 120)):
        steps = [point[1] for point in points]
        assert most / 3 < len(points) <= most
        assert (steps[0], steps[-1]) == (0, 4999)
        assert max(after - before for before, after in pairwise(steps)) < 6 * 5000 / most


def test_a_run_is_no_less_far_than_its_checkpoint() -> None:
    history: list[Event] = [
        events.WorkDeclared(of="run", work="r", spec={"train_steps": 900}),
        TrainStarted(run="r", step=0),
        TrainProgress(run="r", step=100, loss=1.0),
        TrainCheckpoint(run="r", step=140, path=""),
    ]
    assert replay(history).of(RunState)["r"].step == 140
    again = replay([*history, TrainStarted(run="r", step=0), TrainProgress(run="r", step=7, loss=1.0)])
    assert again.of(RunState)["r"].step == 7, "the parameter server began anew"


def test_the_moment_of_a_notice_is_kept() -> None:
    vm = replay([requested("worker-0", 1), events.VmPreemptionNotice(vm="worker-0", time=5 * 10**9)]).vms["worker-0"]
    assert (vm.state, vm.noticed_at) == ("leaving", 5.0)


def test_a_kept_state_reads_what_is_new_and_notices_another_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    state = KeptState(path)
    assert state.read() == ClusterState()
    history = [replace(requested(f"worker-{number}", number), seq=number) for number in range(1, 9)]
    lines = [encode(event) for event in history]
    path.write_bytes(b"".join(lines[:5]) + lines[5][:20])
    assert state.read() == replay(history[:5])
    path.write_bytes(b"".join(lines))
    assert state.read() == replay(history)
    other = replace(requested("other", 1), seq=1)
    path.write_bytes(encode(other))
    assert list(state.read().vms) == ["other"]
    path.unlink()
    path.write_bytes(encode(other) + b"".join(encode(replace(event, seq=event.seq + 1)) for event in history))
    assert len(state.read().vms) == 9


def test_a_study_is_its_trials_and_the_best_of_those_that_are_complete() -> None:
    run = RunSpec("lr", 100)
    spec = StudySpec("lr", run, "min loss", space=parse_space("lr=0.1,0.2,0.3,0.4,0.5"), trials=3, sampler="grid")
    history: list[Event] = [events.WorkDeclared(of="study", work="lr", spec=spec.to_dict())]
    for trial, (state, value) in enumerate([("complete", 0.5), ("pruned", 0.1), ("complete", 0.4), ("failed", None)]):
        history.append(StudyAsked(study="lr", trial=trial, params={"lr": 0.1 * (trial + 1)}, runs=(f"lr-{trial}",)))
        if trial == 2:
            history.append(events.WorkStopping(work="lr", of="study", time=SECOND))
            assert not replay(numbered(history)).of(StudyState)["lr"].over
            history.append(StudyExtended(study="lr", trials=9))
        history.append(StudyTold(study="lr", trial=trial, state=state, value=value))  # type: ignore[arg-type]
    twice = StudyTold(study="lr", trial=0, state="failed")
    out_of_turn = StudyAsked(study="lr", trial=9, params={}, runs=())
    state = replay(
        numbered([*history, twice, out_of_turn, events.WorkStopping(work="lr", of="study", reason="x", time=SECOND)])
    )
    study = state.of(StudyState)["lr"]
    assert study.planned == 5, "a grid has no more points"
    assert (list(study.trials), study.over, study.reason) == ([0, 1, 2, 3], True, "x")
    assert state.passed_over == 2
    assert study.best
    assert (study.best.number, study.best.params) == (2, {"lr": pytest.approx(0.3)})


def test_a_run_is_known_to_have_had_a_worker_from_its_lease_to_its_end() -> None:
    leased = [
        events.ClusterLeased(ports={"a": 0}, workers={"0": "a", "1": "a"}, time=1 * SECOND),
        events.ClusterLeased(ports={"a": 0, "b": 1}, workers={"0": "a", "1": "b"}, time=3 * SECOND),
        events.ClusterLeased(ports={"b": 1}, workers={"1": "b"}, time=6 * SECOND),
    ]
    state = replay(numbered(list(leased)))
    assert state.tenures == {"a": ((1, 1.0, 3.0), (0, 1.0, 6.0))}
    assert (state.leases, state.leased_at) == ({1: "b"}, {1: 3.0})


@pytest.mark.parametrize(
    ("options", "goal", "expected"),
    [
        ({}, "max accuracy", 0.7),
        ({"keep_best": "accuracy"}, "max accuracy", 0.9),
        ({"stop_when": "loss no better in 2 evaluations"}, "min loss", 0.2),
        ({"keep_best": "accuracy"}, "max bleu", None),
    ],
)
def test_a_run_comes_to_its_best_evaluation_where_that_is_kept_and_else_to_its_latest(
    options: dict[str, str], goal: str, expected: float | None
) -> None:
    measured = [{"accuracy": 0.5, "loss": 0.4}, {"accuracy": 0.9, "loss": 0.2}, {"accuracy": math.nan, "loss": 0.9},
                {"accuracy": 0.7, "loss": 0.3}]  # fmt: skip
    evaluations = tuple((float(at), 10 * at, found) for at, found in enumerate(measured))
    run = RunState("r", RunSpec("r", 100, **options), metrics=measured[-1], evaluations=evaluations)
    assert run.value_of(Objective.parse(goal)) == expected


def test_a_run_is_made_until_it_turns_out_that_its_last_steps_were_lost() -> None:
    spec = RunSpec("r", 100).without_token()
    made = replay(
        [
            events.WorkDeclared(of="run", work="r", spec=spec),
            TrainStarted(run="r", step=0),
            TrainMade(run="r", step=100),
        ]
    )
    for step, still in ((100, True), (80, False)):
        again = fold(made, TrainStarted(run="r", step=step)).of(RunState)["r"]
        assert (again.made, again.phase) == (still, "running")


def test_a_run_ends_in_so_many_seconds_as_its_latest_speed_says() -> None:
    spec = RunSpec("r", 100).without_token()
    told = [
        events.WorkDeclared(of="run", work="r", spec=spec),
        WorkerJoined(run="r", worker="w", number=0, active=1),
        TrainProgress(run="r", step=40, loss=1.0, steps_per_second=2.0, time=10 * 10**9),
    ]
    run = replay(told).of(RunState)["r"]
    assert [run.seconds_left(now) for now in (10.0, 15.0, 41.0)] == [30.0, 25.0, math.inf]
    alone = replay([*told, WorkerLeft(run="r", worker="w", number=0, active=0, reason="revoked")]).of(RunState)["r"]
    assert alone.seconds_left(15.0) == math.inf, "nobody trains"


def test_a_run_whose_parameter_servers_were_there_before_starts_with_its_first_worker() -> None:
    spec = RunSpec("r", 100).without_token()
    begun = [
        events.WorkDeclared(of="run", work="r", spec=spec),
        events.ClusterLeased(ports={"r": 0}, workers={}),
        TrainStarted(run="r", step=0, time=10 * 10**9),
        events.ClusterLeased(ports={"r": 0}, workers={"0": "r"}, time=15 * 10**9),
        events.ClusterLeased(ports={"r": 0}, workers={}, time=20 * 10**9),
        events.ClusterLeased(ports={"r": 0}, workers={"1": "r"}, time=25 * 10**9),
    ]
    assert replay(begun).of(RunState)["r"].started_at == 15.0


def test_a_run_has_no_more_workers_than_a_cluster_whatever_its_chief_says() -> None:
    spec = RunSpec("run-1", 100, check=False).without_token()
    joined = [WorkerJoined(run="run-1", worker=f"w-{n}", number=n, active=1) for n in range(MOST_WORKERS + 50)]
    told = [events.WorkDeclared(of="run", work="run-1", spec=spec), *joined]
    state = replay(replace(each, seq=seq, time=seq) for seq, each in enumerate(told, 1))
    assert list(state.of(RunState)["run-1"].workers) == [each.worker for each in joined[-MOST_WORKERS:]]
