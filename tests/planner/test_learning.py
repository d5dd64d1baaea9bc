"""What runs of one's own teach: step times, joins, steps to a target; and what is foretold of a run that goes on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.panels import stories
from transient_magics.catalog import ACCELERATORS, ZONES
from transient_magics.clock import Clock
from transient_magics.errors import DeclarationError, PlanError
from transient_magics.journal import Event, Projection, RunState, costs, events, fold, replay
from transient_magics.planner.choices import Choice, immortal
from transient_magics.planner.efficiency import ExamplesModel, Target, TargetSteps, Way
from transient_magics.planner.forecast import (
    CLOSING_SECONDS,
    Forecast,
    _join,
    _startup,
    ending_words,
    forecast,
    forecast_words,
)
from transient_magics.planner.lifetimes.sources import published_lifetimes
from transient_magics.planner.model_store import ModelStore
from transient_magics.planner.plan import make_plan
from transient_magics.planner.run_records import Observation, Record, record
from transient_magics.planner.speeds.fitting import rest_error
from transient_magics.planner.speeds.throughput import service_by_size
from transient_magics.planner.speeds.workloads import PUBLISHED
from transient_magics.protocol.vm_events import TrainFinished, TrainProgress, TrainStarted, WorkerJoined, WorkerLeft
from transient_magics.spec import parse_groups

BEGAN = 1_000_000.0


def story(
    steps: int = 4000, *, revoked: bool = True, gpu: str = "", **spec: Any
) -> tuple[list[Event], list[dict[str, Any]]]:
    """Four workers of two steps a second; after 100 s one of them is revoked, 40 s later its replacement joins."""
    cluster = stories.declaration("demo", declared_at=BEGAN)
    told: list[tuple[float, Event]] = [
        (0, events.ClusterDeclared(spec=cluster.to_dict())),
        (0, stories.requested("ps-0", 0)),
    ]
    for index in range(4):
        vm = f"worker-{index}"
        told += [(0, stories.requested(vm, index)), (5, events.VmRunning(vm=vm, address="10.0.0.2")),
                 (8, events.VmReady(vm=vm))]  # fmt: skip
    told += [(8, events.VmRunning(vm="ps-0", address="10.0.0.1")), (8, events.VmReady(vm="ps-0"))]
    told += [(10, events.WorkDeclared(of="run", work="run-1", spec={**stories.TRAIN, "train_steps": steps, **spec})),
             (12, events.ClusterLeased(ports={"run-1": 0}, workers={str(slot): "run-1" for slot in range(4)})),
             (12, TrainStarted(run="run-1", step=0))]  # fmt: skip
    told += [(20, WorkerJoined(run="run-1", worker=f"worker-{n}", number=n, active=n + 1)) for n in range(4)]
    if revoked:
        told += [
            (120, WorkerLeft(run="run-1", worker="worker-0", number=0, reason="revoked", active=3)),
            (120, events.VmRevoked(vm="worker-0", signal="notice")),
            (120, stories.requested("worker-4", 0, replaces="worker-0")),
            (130, events.VmRunning(vm="worker-4", address="10.0.0.9")),
            (148, events.VmReady(vm="worker-4")),
            (160, WorkerJoined(run="run-1", worker="worker-4", number=4, active=4)),
        ]
    rows, step = [], 0.0
    for second in range(20, 260):
        active = 3 if revoked and 120 <= second < 160 else 4
        step += 2.0 * active
        rows.append({"time": int((BEGAN + second) * 1e9), "worker": "worker-1", "step": int(step), "batch_size": 32,
                     "steps": 2, "samples": 64})  # fmt: skip
        if second % 10 == 0:
            told.append((second, TrainProgress(run="run-1", step=int(step), loss=1.0,
                                                      steps_per_second=2.0 * active, active=active)))  # fmt: skip
    told.sort(key=lambda each: each[0])
    if gpu:
        told = [
            (second, replace(event, accelerator=gpu) if _asks_for_a_worker(event) else event) for second, event in told
        ]
    return [_at(event, BEGAN + second, seq) for seq, (second, event) in enumerate(told, 1)], rows


def _asks_for_a_worker(event: Event) -> bool:
    return isinstance(event, events.VmRequested) and event.role == "worker"


def _at(event: Event, at: float, seq: int) -> Event:
    return replace(event, time=int(at * 1e9), seq=seq)


def test_stretches_between_changes_are_observed_long_ones_in_parts() -> None:
    history, rows = story()
    found = record(history, rows, "run-1", {"parameters": 100, "gigaflops": 0.5})
    assert [dict(each.workers) for each in found.observations] == [{"k80": n} for n in (4, 4, 4, 3, 4, 4, 4)]
    assert [each.steps_per_second for each in found.observations] == pytest.approx([8] * 3 + [6] + [8] * 3, rel=0.02)
    assert [each.seconds for each in found.observations] == pytest.approx([95 / 3] * 3 + [35] + [94 / 3] * 3)
    assert found.joins == pytest.approx((12.0,))
    assert (found.batch_size, found.parameters, found.over) == (32, 100, False)
    assert found.workers == pytest.approx((4 * 199 + 3 * 40) / 239, rel=0.01)
    assert Record.from_dict(found.to_dict()) == found


def test_a_replacement_that_is_started_again_later_has_joined_after_its_first_answer() -> None:
    history, rows = story()
    again = [
        WorkerLeft(run="run-1", worker="worker-4", number=4, active=3, reason="stopped"),
        events.VmReady(vm="worker-4"),
        WorkerJoined(run="run-1", worker="worker-4", number=5, active=4),
    ]
    history += [_at(event, BEGAN + 300 + number, len(history) + number) for number, event in enumerate(again, 1)]
    assert record(history, rows, "run-1").joins == pytest.approx((12.0,))


def changed(history: list[Event], vm: str, second: float, *, becomes: str = "n1-standard-1") -> list[Event]:
    """The same with a VM that is stopped at that second, made another machine, and answers again 20 s later."""
    told = [
        (0.0, events.VmMachineAsked(vm=vm, machine_type=becomes, hourly=0.1, on_demand_hourly=0.2, disk_hourly=0.01,
                                    part=0.25, reason="asked")),
        (1.0, WorkerLeft(run="run-1", worker=vm, number=int(vm[-1]), reason="stopped", active=3)),
        (4.0, events.VmStopped(vm=vm, reason="asked")),
        (6.0, events.VmMachineChanged(vm=vm, machine_type=becomes, machine_before="n1-standard-4")),
        (10.0, events.VmStarted(vm=vm, address="10.0.0.8")),
        (20.0, events.VmReady(vm=vm)),
        (25.0, WorkerJoined(run="run-1", worker=vm, number=int(vm[-1]) + 10, active=4)),
    ]  # fmt: skip
    every = [*history, *(_at(event, BEGAN + second + later, 0) for later, event in told)]
    return [replace(each, seq=seq) for seq, each in enumerate(sorted(every, key=lambda each: each.time), 1)]


def test_a_worker_that_becomes_another_machine_is_measured_as_what_it_is_then() -> None:
    history, rows = story(revoked=False)
    split = [0.4, 0.0, 0.6, *[0.0] * 6]
    rows = [{**each, "split": split} for each in rows]
    found = record(changed(history, "worker-1", 120), rows, "run-1")
    small = {"k80": 3, "k80/n1-standard-1": 1}
    assert [dict(each.workers) for each in found.observations] == [{"k80": 4}] * 3 + [{"k80": 3}] + [small] * 3
    assert found.waits.keys() == {"k80", "k80/n1-standard-1"}


def deflated(history: list[Event], *vms: str) -> list[Event]:
    """The same with VMs that have half of their CPU from second 100 to 160."""
    told = [(100.0, events.VmDeflated(vm=vm, cpu=0.5, network=1.0)) for vm in vms]
    told += [(160.0, events.VmInflated(vm=vm, cpu=1.0, network=1.0, cpu_before=0.5)) for vm in vms]
    every = [*history, *(_at(event, BEGAN + second, 0) for second, event in told)]
    return [replace(each, seq=seq) for seq, each in enumerate(sorted(every, key=lambda each: each.time), 1)]


@pytest.mark.parametrize("vm", ["worker-1", "ps-0"])
def test_a_deflated_vm_is_not_learnt_as_what_it_was_rented_as(vm: str) -> None:
    history, rows = story(revoked=False)
    rows = [{**each, "split": [0.4, 0.0, 0.6, *[0.0] * 6]} for each in rows]
    for each in rows:  # it is slower meanwhile, and waits longer for its data
        seconds = each["time"] / 1e9 - BEGAN
        each["step"] -= int(4 * (min(max(seconds, 100), 160) - 100))
        if 100 <= seconds < 160 and vm == "worker-1":
            each["split"] = [1.4, 0.0, 0.6, *[0.0] * 6]
    history = deflated(history, vm)
    learnt = record(history, rows, "run-1", whole=True)
    assert [each.steps_per_second for each in learnt.observations] == pytest.approx([8] * 5, rel=0.02)
    assert sum(each.seconds for each in learnt.observations) == pytest.approx(75 + 94, abs=1)
    assert learnt.waits["k80"].waited / learnt.waits["k80"].seconds == pytest.approx(0.4)
    own = record(history, rows, "run-1").observations
    assert [each.steps_per_second for each in own] == pytest.approx([8, 8, 4, 8, 8, 8], rel=0.05), "of its forecast"


def test_the_store_grows_with_every_run_and_outlives_them(tmp_path: Path) -> None:
    store = ModelStore("resnet", "image_digits", directory=tmp_path)
    with pytest.raises(PlanError, match="long enough"):
        store.workload("run-1", "emulated")
    history, rows = story()
    store.learn("demo/run-1@1", record(history, rows, "run-1", {"parameters": 20_162}))
    store.learn("demo/run-2@2", record(history, rows, "run-1"))
    store.learn("demo/run-2@2", record(history, rows, "run-1"))
    again = ModelStore("resnet", "image_digits", directory=tmp_path)
    assert list(again.records("emulated")) == ["demo/run-1@1", "demo/run-2@2"]
    workload = again.workload("run-1", "emulated")
    assert workload.step("k80").seconds == pytest.approx(0.5, rel=0.02)
    assert workload.step("k80").source == "measured in 2 runs"
    assert (workload.batch_size, workload.join_seconds, workload.parameters) == (32, pytest.approx(12), 20_162)
    assert not workload.step("t4").measured
    assert not workload.guess
    assert ModelStore("resnet", "other", directory=tmp_path).records("emulated") == {}
    store.path.write_text("{", encoding="utf-8")
    with pytest.raises(PlanError, match="Delete that file"):
        again.records("emulated")


@pytest.mark.parametrize(("stretches", "guess", "together"), [
    ([{"k80": 4}], True, False), ([{"k80": 4}] * 2, False, False), ([{"k80": 4, "p100": 1}] * 4, False, True),
    ([{"k80": 4, "p100": 1}] * 2 + [{"k80": 4}] * 2, False, False),
])  # fmt: skip
def test_a_plan_says_what_few_stretches_do_not_tell(
    stretches: list[dict[str, int]], guess: bool, together: bool, tmp_path: Path
) -> None:
    """Half a minute is a guess. Of two GPUs that only trained together it is open which makes how much."""
    store = ModelStore("resnet", "image_digits", directory=tmp_path)
    seen = [Observation(each, 1, 2.0 * each["k80"] + 4.6 * each.get("p100", 0), 30.0) for each in stretches]
    store.learn("demo/run-1@1", Record(tuple(seen), "own", parameters=1))
    workload = store.workload("run-1", "own")
    assert workload.guess == ("it has not trained for long" if guess else "")
    for gpu in seen[0].workers:
        assert workload.step(gpu).measured
        assert workload.step(gpu).seconds == pytest.approx({"k80": 0.5, "p100": 1 / 4.6}[gpu], rel=0.05)
    assert any("only trained together" in note for note in workload.notes) is together


def planned_width(store: ModelStore, spec: str, steps: int = 64_000) -> tuple[float, float]:
    """The mean hours from the first step, and the width of their interval over it."""
    choice = Choice(parse_groups(spec, ACCELERATORS, ZONES))
    plan = make_plan(choice, replace(store.workload("run", "own"), from_first_step=True), steps)
    low, high = plan.interval("hours")
    return plan.hours, (high - low) / plan.hours


def learnt(folder: Path, *runs: list[Observation], parameters: int = 0) -> ModelStore:
    store = ModelStore("resnet", "image_digits", directory=folder)
    for number, seen in enumerate(runs):
        store.learn(f"demo/run-{number}@{number}", Record(tuple(seen), "own", parameters=parameters))
    return store


def test_more_stretches_of_one_run_do_not_make_the_next_run_surer(tmp_path: Path) -> None:
    """Runs differ from each other by more than the stretches of one do: only another run tells by how much."""
    few = learnt(tmp_path / "few", [Observation({"p100": 2}, 1, 8.0, 600.0)] * 4)
    many = learnt(tmp_path / "many", [Observation({"p100": 2}, 1, 8.0 + 0.01 * (-1) ** n, 600.0) for n in range(52)])
    runs = learnt(tmp_path / "runs", *([Observation({"p100": 2}, 1, speed, 2400.0)] for speed in (7.9, 8.0, 8.1)))
    (_, once), (_, often), (_, thrice) = (planned_width(store, "p100x2") for store in (few, many, runs))
    assert often == pytest.approx(once, rel=0.1)
    assert 0.2 < often < 0.3
    assert thrice < 0.6 * often


def test_runs_that_differ_are_no_limit_of_the_servers(tmp_path: Path) -> None:
    """In the slow run two workers make less than twice what one makes in the fast one. In each run they make twice."""
    runs = [[Observation({"p100": n}, 1, n * speed, 600.0) for n in (2, 1)] for speed in (4.7, 3.8)]
    hours, width = planned_width(learnt(tmp_path, *runs), "p100x2")
    assert hours == pytest.approx(64_000 / 8.5 / 3600, rel=0.05)
    assert width < 0.5


@pytest.mark.parametrize(("workers", "spec", "speed"), [
    ({"k80": 2, "p100": 1, "v100": 1}, "k80x2+p100+v100", 32.0), ({"p100": 4}, "p100x4", 37.0),
])  # fmt: skip
def test_a_cluster_that_was_measured_is_planned_as_measured(
    workers: dict[str, int], spec: str, speed: float, tmp_path: Path
) -> None:
    """What was not measured of it, which GPU makes how much or what the servers take, changes neither hours nor width;
    another cluster of the same GPUs is less sure."""
    store = learnt(tmp_path, [Observation(workers, 1, speed, 2400.0)], parameters=1_857_722)
    hours, width = planned_width(store, spec)
    assert hours == pytest.approx(64_000 / speed / 3600, rel=0.02)
    assert width < 0.3
    assert planned_width(store, "p100x8")[1] > 1.2 * width


def test_a_limit_that_nobody_saw_is_computed_from_the_parameters_and_said_to_be(tmp_path: Path) -> None:
    for known in PUBLISHED.values():
        assert service_by_size(known.parameters) == pytest.approx(known.service_seconds, rel=0.15)
    store = ModelStore("resnet", "image_digits", directory=tmp_path)
    pairs = tuple(Observation({"p100": 2}, 1, speed, 60.0) for speed in (23.0, 23.4))
    store.learn("demo/run-1@1", Record(pairs, "own", parameters=1_857_722))
    workload, said = store.workload("run-1", "own"), "may be 30% off"
    large, small = (make_plan(Choice(parse_groups(spec, ACCELERATORS, ZONES)), workload, 1_000_000)
                    for spec in ("p100x8", "p100"))  # fmt: skip
    assert "not measured but computed from 1,857,722 parameters: it may be 30% off" in str(large)
    assert said not in str(small), "far from it"
    low, high = large.interval()
    assert high - low > 0.3 * large.hours
    seen = tuple(Observation({"p100": n}, 1, speed, 60.0) for n, speed in ((1, 11.7), (4, 37.0), (8, 44.0)))
    store.learn("demo/run-2@2", Record(seen, "own", parameters=1_857_722))
    measured = make_plan(large.choice, store.workload("run-1", "own"), 1_000_000)
    assert said not in str(measured)
    assert measured.steps_per_second == pytest.approx(44, rel=0.03)


def foretold(until: float, *, lifetimes: Any = immortal, revoked: bool = True, **spec: str) -> Forecast:
    history, rows = story(revoked=revoked, **spec)
    now = BEGAN + until
    past = [event for event in history if event.at <= now]
    state = replay(past)
    seen = record(past, [row for row in rows if row["time"] / 1e9 <= now], "run-1")
    return forecast(state, now, state.of(RunState)["run-1"], seen, lifetimes)


def test_a_run_is_foretold_from_what_its_workers_reach() -> None:
    calm = foretold(110, revoked=False)
    left = 4000 - 8 * 91
    assert calm.steps_left == left
    assert calm.seconds == pytest.approx(left / 8 + CLOSING_SECONDS, rel=0.02)
    hourly = 4 * 0.256 + 0.143
    assert calm.dollars == pytest.approx((110 - 12 + calm.seconds) * hourly / 3600, rel=0.03), "from its lease on"
    low, high = calm.interval("seconds")
    assert low < calm.seconds < high


def test_stretches_with_distant_workers_are_left_out_where_others_tell_how_fast_steps_are(tmp_path: Path) -> None:
    history, rows = story(revoked=False)
    moved = [
        replace(each, zone="us-east1-c") if isinstance(each, events.VmRequested) and each.vm == "worker-3" else each
        for each in history
    ]
    far, near = record(moved, rows, "run-1"), record(history, rows, "run-1")
    assert {each.distant for each in far.observations} == {True}
    assert {each.distant for each in near.observations} == {False}
    assert Record.from_dict(far.to_dict()) == far
    slow = [replace(each, steps_per_second=each.steps_per_second / 2) for each in far.observations]
    store = learnt(tmp_path, list(near.observations), slow)
    assert store.workload("run-1", "own").step("k80").seconds == pytest.approx(0.5, rel=0.05)
    alone = learnt(tmp_path / "alone", slow).workload("run-1", "own")
    assert alone.step("k80").seconds == pytest.approx(1.0, rel=0.05)
    assert any("include the distance" in note for note in alone.notes)


def test_a_distant_gpu_that_nothing_else_measured_keeps_its_stretches(tmp_path: Path) -> None:
    found = learnt(
        tmp_path,
        [
            Observation({"k80": 2}, 1, 4.0, 60.0),
            Observation({"k80": 2, "p100": 2}, 1, 10.0, 600.0, distant=True),
            Observation({"k80": 2}, 1, 1.0, 600.0, distant=True),
        ],
    ).workload("run", "own")
    assert found.step("p100").measured
    assert found.step("p100").seconds == pytest.approx(1 / 3, rel=0.05)
    assert found.step("k80").seconds == pytest.approx(0.5, rel=0.05)
    said = [note for note in found.notes if "include the distance" in note]
    assert [note.partition(" were measured")[0] for note in said] == ["Its seconds on P100"]


def test_an_empty_place_is_filled_again_some_day() -> None:
    """The replacement was refused everywhere, and is asked for again: with three for ever it would last much longer."""
    history, rows = story()
    now = BEGAN + 150
    past = [each for each in history if each.at <= now and getattr(each, "vm", "") != "worker-4"]
    state = replay(past)
    seen = record(past, [row for row in rows if row["time"] / 1e9 <= now], "run-1")
    found = forecast(state, now, state.of(RunState)["run-1"], seen, immortal)
    left = 4000 - 8 * 100 - 6 * 31
    assert found.seconds == pytest.approx((left + 2 * 20) / 8, rel=0.05)
    assert found.seconds < 0.9 * left / 6


@pytest.mark.parametrize(
    ("until", "lost", "becomes"),
    [(122, False, 0.1), (125, False, 0.1), (127, False, 0.1), (142, False, 0.1), (160, False, 0.1), (210, True, 0.256)],
)
def test_a_worker_that_becomes_another_machine_is_paid_as_what_it_becomes(
    until: float, lost: bool, becomes: float
) -> None:
    """While it is stopped, too, when its disk alone costs. Who takes its place is what it was rented as."""
    history, rows = story(revoked=False)
    now, past = BEGAN + until, changed(history, "worker-0", 120)
    if lost:
        left = WorkerLeft(run="run-1", worker="worker-0", number=10, reason="revoked", active=3)
        gone = [left, events.VmRevoked(vm="worker-0", signal="notice")]
        past = [*past, *(_at(each, BEGAN + 200, len(past) + 1 + more) for more, each in enumerate(gone))]
    past = [each for each in past if each.at <= now]
    state = replay(past)
    seen = record(past, [row for row in rows if row["time"] / 1e9 <= now], "run-1")
    spent = costs(state, now)["run-1"].total
    found = forecast(state, now, state.of(RunState)["run-1"], seen, immortal, closing=0.001)
    starts = max(20.0 + 120 - until, 0.0) if not lost else 10.0
    paid = 3600 * (found.dollars - spent)
    assert paid == pytest.approx(found.seconds * (3 * 0.256 + 0.143) + (found.seconds - starts) * becomes, rel=0.03)


def test_a_worker_that_was_stopped_took_as_long_to_join_as_since_it_answered_again() -> None:
    history, rows = story(revoked=False)
    past = [each for each in changed(history, "worker-0", 120) if each.at <= BEGAN + 150]
    run = replay(past).of(RunState)["run-1"]
    again = replace(run, workers={"worker-0": run.workers["worker-0"]})
    assert _join(replay(past), again, record(past, rows, "run-1")) == pytest.approx(5.0)


def test_a_run_that_shares_the_cluster_is_foretold_with_its_own_workers() -> None:
    history, rows = story(revoked=False)
    now, seen = BEGAN + 240, record(history, rows, "run-1", {})
    state = replay(history)
    shared = fold(state, events.ClusterLeased(ports={"run-1": 0, "run-2": 1}, workers={"0": "run-1", "2": "run-1",
                                                                                       "1": "run-2"}))  # fmt: skip
    alone, beside = (forecast(each, now, each.of(RunState)["run-1"], seen, immortal) for each in (state, shared))
    assert beside.seconds - CLOSING_SECONDS == pytest.approx(2 * (alone.seconds - CLOSING_SECONDS), rel=0.1)
    left, whole = (each.dollars - costs(of, now)["run-1"].total for each, of in ((beside, shared), (alone, state)))
    hourly = 2 * 0.256 + 2 / 3 * 0.143  # of the cluster's four workers, the fourth of which is nobody's
    assert left == pytest.approx(beside.seconds / 3600 * hourly, rel=0.03), "its own workers, its share of the server"
    assert whole == pytest.approx(alone.seconds / 3600 * (4 * 0.256 + 0.143), rel=0.03)


def test_where_time_passes_faster_start_ups_do_and_what_servers_do_after_them_does_not() -> None:
    history, _ = story(revoked=False)
    calm = replay(history)
    fast = replace(calm, clock=calm.clock.running_at(240.0, BEGAN + 200))
    before, after = _startup(calm), _startup(fast)
    assert (after.running, after.usable) == (pytest.approx(before.running), pytest.approx(240 * before.usable))
    assert before.running > 0 < before.usable


def test_hours_of_training_tell_more_of_the_rest_than_a_minute_and_uneven_ones_less() -> None:
    """Speeds are correlated over minutes, so that many short stretches are one measurement."""
    minute = rest_error([0.0], [60.0], 1, 3600.0)
    hours = rest_error([0.01, -0.01] * 4, [1200.0] * 8, 1, 3600.0)
    uneven = rest_error([0.05, -0.05] * 4, [1200.0] * 8, 1, 3600.0)
    assert hours < 0.6 * minute < minute < 1.1 * rest_error([0.0] * 6, [10.0] * 6, 1, 3600.0)
    assert uneven > 2 * hours


@pytest.mark.parametrize("until", [60, 110, 150, 200])
def test_what_a_run_costs_in_the_end_lies_within_what_was_foretold_of_it(until: float) -> None:
    """One of its workers is revoked at second 120, and the cluster idles for an hour after its end."""
    history, rows = story(1700)
    last = next(row["time"] / 1e9 for row in rows if row["step"] >= 1700)
    ended = [event for event in history if event.at <= last]
    over = _at(TrainFinished(run="run-1", step=1700), last + CLOSING_SECONDS, len(ended) + 1)
    final = costs(replay([*ended, over]), last + 3600)["run-1"]
    assert final.over
    now, past = BEGAN + until, [event for event in history if event.at <= BEGAN + until]
    state = replay(past)
    seen = record(past, [row for row in rows if row["time"] / 1e9 <= now], "run-1")
    found = forecast(state, now, state.of(RunState)["run-1"], seen, immortal)
    low, high = found.interval("dollars")
    assert low <= final.total <= high
    assert (found.cost.mean, found.cost.low, found.cost.high) == (found.dollars, low, high)
    if until >= 110:
        assert found.dollars == pytest.approx(final.total, rel=0.08)


def test_an_interval_whose_ends_read_the_same_is_left_out() -> None:
    sure: Any = SimpleNamespace(
        seconds=180.0, cost=Projection(0.0571, 0.0571, 0.0571), at=0.0, finishes_at=180.0, finished=1.0, guess="",
        stand_in="", provided=", if Spot capacity lasts", behind=None, interval=lambda what: (175.0, 184.0),
    )  # fmt: skip
    said = r"finishes in 3 min, at \d\d:\d\d, if Spot capacity lasts; this run \$0.057 at its end"
    assert re.fullmatch(said, forecast_words(sure))


def test_a_forecast_from_little_training_says_that_it_is_a_guess() -> None:
    young, one, more = foretold(28), foretold(60), foretold(110, revoked=False)
    for told in (young, one):
        for said in (str(told), ending_words(told)):
            assert said.endswith("; a guess: it has not trained for long yet")
    assert not more.guess
    assert "guess" not in str(more) + ending_words(more)
    together = foretold(60, mode="sync"), foretold(110, revoked=False, mode="sync")
    assert ["guess" in str(each) for each in together] == [True, False]


@pytest.mark.parametrize(("kind", "project", "seconds", "wide"), [
    ("p100", "my-project", 0.5 * 4.113 / 9.526, 1.5), ("cpu", "my-project", 0.5, 3.0), ("p100", "", 0.5, 0.0),
])  # fmt: skip
def test_a_gpu_that_has_not_trained_yet_is_a_guess(kind: str, project: str, seconds: float, wide: float) -> None:
    """Two P100s beside four K80s: twice as fast by their peaks, as far as these tell it; emulated, all are alike."""
    history, rows = story(revoked=False)
    now = BEGAN + 110
    past = [event for event in history if event.at <= now]
    declared = past[0]
    assert isinstance(declared, events.ClusterDeclared)
    past[0] = replace(declared, spec={**declared.spec, "project": project or None})
    for vm in ("worker-4", "worker-5"):
        new = replace(stories.requested(vm, 0), accelerator=kind)
        ready = [new, events.VmRunning(vm=vm, address="10.0.0.9"), events.VmReady(vm=vm)]
        past += [_at(event, now - 5 + second, len(past) + 1) for second, event in enumerate(ready)]
    state = replay(past)
    seen = record(past, [row for row in rows if row["time"] / 1e9 <= now], "run-1")
    found = forecast(state, now, state.of(RunState)["run-1"], seen, immortal)
    assert found.guess == f"it has not trained on {kind.upper()} yet"
    calm = foretold(110, revoked=False)
    assert np.median(found.outcome.hours) * 3600 == pytest.approx(calm.seconds * 8 / (8 + 2 / seconds), rel=0.1), (
        "but for the seconds until they join"
    )
    low, high = found.interval()
    usual = calm.interval()
    assert (high - low) / found.seconds >= wide * (usual[1] - usual[0]) / calm.seconds


@pytest.mark.parametrize("rate", [1.0, 60.0])
def test_data_between_zones_is_paid_by_the_second_of_work_however_fast_the_clock(rate: float) -> None:
    history, rows = story(revoked=False)
    now, seen = BEGAN + 240, record(history, rows, "run-1", {})
    state = replay(history)
    state = replace(state, clock=Clock(((BEGAN, BEGAN, rate),)))
    assert state.spec is not None
    far = replace(state.spec, transfer_prices={vm.zone: 0.01 for vm in state.vms.values()})
    vms = {name: replace(vm, traffic_rate=2**30 / 4) if vm.role == "worker" else vm for name, vm in state.vms.items()}
    moved = replace(state, spec=far, vms=vms)  # four workers, a GiB a second together, $36 an hour
    free, paid = (forecast(each, now, each.of(RunState)["run-1"], seen, immortal) for each in (state, moved))
    assert paid.dollars - free.dollars == pytest.approx(36.0 * paid.seconds / 3600, rel=0.02)


def test_what_is_on_its_way_is_reckoned_with() -> None:
    """30 s after a revocation three train, and the fourth is 10 s from its first step."""
    soon = foretold(150)
    made = 8 * 100 + 6 * 31
    assert soon.seconds == pytest.approx((4000 - made + 10 * 2) / 8, rel=0.05)


def test_risk_makes_the_forecast_later_and_wider() -> None:
    calm, risky = foretold(110, revoked=False), foretold(110, revoked=False, lifetimes=published_lifetimes)
    assert risky.seconds >= calm.seconds
    assert "finishes in" in str(risky)
    with pytest.raises(PlanError, match="An interval"):
        risky.interval("hours")


def test_a_run_whose_steps_are_taken_together_is_as_fast_with_fewer_workers() -> None:
    class Doomed:
        """Three minutes in the mean."""

        name = "doomed"

        def survival(self, hours: np.ndarray) -> np.ndarray:
            return np.exp(-20 * np.asarray(hours))

        def quantile(self, share: np.ndarray, age: Any = 0.0) -> np.ndarray:
            return np.asarray(age) - np.log(share) / 20

    calm = foretold(110, revoked=False, mode="sync")
    risky, alone = (
        foretold(110, revoked=False, lifetimes=lambda gpu, place: Doomed(), **spec) for spec in ({"mode": "sync"}, {})
    )
    assert calm.seconds == pytest.approx((4000 - 8 * 91) / 8 + CLOSING_SECONDS, rel=0.02)
    assert risky.seconds == pytest.approx(calm.seconds, rel=0.03)
    assert alone.seconds > 1.05 * calm.seconds


def test_a_run_that_is_too_young_or_over_is_not_foretold() -> None:
    with pytest.raises(PlanError, match="too few steps"):
        foretold(13)
    history, rows = story()
    ended = TrainFinished(run="run-1", step=4000)
    history = [*history, _at(ended, BEGAN + 290, len(history) + 1)]
    assert record(history, rows, "run-1").closing == pytest.approx(31)
    state = replay(history)
    with pytest.raises(PlanError, match="already"):
        forecast(state, BEGAN + 300, state.of(RunState)["run-1"], record(history, rows, "run-1"), immortal)


def reaching(batch: int, step: int, workers: float = 0.0) -> Record:
    there = ((step - 100, {"accuracy": 0.8}), (step + 100, {"accuracy": 1.0}))
    return Record((), "own", evaluations=there, batch_size=batch, workers=workers)


def test_examples_to_a_target() -> None:
    target = Target.parse(" accuracy >= 0.9 ")
    assert target.reached_at(reaching(32, 1000).evaluations) == (pytest.approx(1000), True)
    assert Target.parse("loss<=0.5").reached_at([(5, {"loss": 0.9}), (10, {"loss": 0.4})]) == (pytest.approx(9), True)
    runs = [reaching(32, 1000, 3.9), reaching(32, 1200, 2), reaching(64, 900)]
    known = TargetSteps(runs, target, 32)
    found = known.need(4)
    assert found.examples == pytest.approx(32 * 1100)
    assert "2 runs" in found.source
    assert not found.guess
    assert known.guess(8) == "no run tells what as many workers need"
    assert known.guess() == "these runs do not tell what other numbers of workers need"
    alone = TargetSteps(runs[:1], target, 32)
    assert "1 run with a mini-batch of 32 got there" in alone.words()
    assert alone.guess(4) == "one run that got there does not tell how others differ"
    with pytest.raises(DeclarationError, match=r"accuracy>=0\.9"):
        Target.parse("accuracy > 0.9")
    with pytest.raises(PlanError, match="--eval-every"):
        TargetSteps([Record((), "own", batch_size=32)], target, 32)


def test_another_batch_is_predicted_only_where_the_line_holds() -> None:
    target = Target.parse("accuracy>=0.9")
    grows = [reaching(batch, round((20_000 + 50 * batch) / batch)) for batch in (32, 64, 128, 256)]
    assert TargetSteps(grows, target, 100).need(1).examples == pytest.approx(25_000, rel=0.02)
    with pytest.raises(PlanError, match="No run had a mini-batch near"):
        TargetSteps(grows, target, 512).need(1)
    with pytest.raises(PlanError, match="needs runs with 3 sizes, not"):
        TargetSteps(grows[:2], target, 100).need(1)
    u_shaped = ExamplesModel.fit(
        [32, 64, 128, 256], [Way(32, 0, needed, True) for needed in (40_000, 22_000, 23_000, 39_000)]
    )
    with pytest.raises(PlanError, match="R²"):
        u_shaped.predict(100)


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))
