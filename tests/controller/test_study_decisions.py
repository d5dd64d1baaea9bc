"""Studies without a machine: a cluster that only folds, trials that end as they are told, a controller that forgets."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.panels.stories import declaration
from transient_magics.controller.decisions.ledger import leases
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.works import Tick
from transient_magics.errors import UnknownWorkError
from transient_magics.journal import ClusterState, Event, Journal, RunState, events, fold, read, replay
from transient_magics.journal.declared import run_folder, waiting
from transient_magics.protocol import layout
from transient_magics.protocol.machines import parse_machines
from transient_magics.protocol.run import RunSpec, Value
from transient_magics.protocol.space import parse_space
from transient_magics.protocol.vm_events import (
    TrainEvaluated,
    TrainFailed,
    TrainFinished,
    TrainMade,
    TrainProgress,
    TrainStarted,
    WorkerJoined,
)
from transient_magics.spec import ClusterSpec, WorkerGroup, run_store
from transient_magics.works.studies.conduct import Studies
from transient_magics.works.studies.decisions import DeclareRun, EndStudy, FinishTrial, StartTrial, StopRun, decide
from transient_magics.works.studies.events import StudyAsked, StudyExtended, StudyTold
from transient_magics.works.studies.sampling import OptunaSampler, point, random_point
from transient_magics.works.studies.spec import StudySpec
from transient_magics.works.studies.state import StudyState

SECOND = 10**9
NAMES = ("lr", "units")


def study(**more: Any) -> StudySpec:
    run = RunSpec("s", 100, eval_steps=10, **more.pop("run", {}))
    given = {"space": parse_space("lr=1e-3:1e-1:log units=16,32,64"), "trials": 12, "sampler": "random", **more}
    return StudySpec("s", run, "max accuracy", **given)


class Simulated:
    """One study on a cluster of `places` workers, of which nothing is there but its journal.

    `accuracy` gives a trial's by its parameters and step; a run makes ten steps at each turn.
    """

    def __init__(self, spec: StudySpec, accuracy: Callable[[dict[str, Value], int], float], places: int = 2) -> None:
        self.spec, self.places, self.accuracy = spec, places, accuracy
        self.slots = dict.fromkeys(range(places), "k80")
        self.state, self.time, self.seq = ClusterState(phase="ready"), 1000, 0
        self.record(events.WorkDeclared(of="study", work="s", spec=spec.to_dict()))
        self.begin()

    def begin(self) -> None:
        """As a controller does that knows the journal only."""
        needs = self.spec.sampler in ("tpe", "gp") or self.spec.pruner != "none"
        self.twin = OptunaSampler(self.spec) if needs else None

    def record(self, event: Event) -> None:
        self.seq += 1
        self.state = fold(self.state, replace(event, seq=self.seq, time=self.time * SECOND))

    @property
    def study(self) -> Any:
        return self.state.of(StudyState)["s"]

    def look(self) -> list[Any]:
        pruned = self.twin.catch_up(self.study, self.state.of(RunState)) if self.twin else ()
        decisions = decide(self.study, self.state, self.slots, self.time, pruned)
        for decision in decisions:
            match decision:
                case FinishTrial():
                    told = {"state": decision.state, "value": decision.value, "reason": decision.reason}
                    self.record(StudyTold(study="s", trial=decision.trial, **told))
                case EndStudy():
                    self.record(events.WorkStopping(work="s", of="study", reason=decision.reason))
                case StartTrial(trial):
                    self.record(
                        StudyAsked(study="s", trial=trial, params=self.point(trial), runs=self.spec.run_names(trial))
                    )
                case DeclareRun(trial, repeat):
                    spec = self.spec.run_of(trial, repeat, self.study.trials[trial].params)
                    self.record(events.WorkDeclared(of="run", work=spec.name, spec=spec.without_token()))
                case StopRun(run):
                    self.record(TrainFinished(run=run, step=self.state.of(RunState)[run].step, stopped=True))
        return decisions

    def point(self, trial: int) -> dict[str, Value]:
        known = point(self.spec, trial)
        if known is None:
            assert self.twin
            return self.twin.propose()
        return known

    def step(self) -> None:
        """Let all runs that may train make ten steps; one that has made all is finished."""
        self.time += 10
        ports = {run.name: place for place, run in enumerate(self.state.turns[: self.places])}
        workers = {str(place): name for name, place in ports.items()}
        self.record(events.ClusterLeased(ports=ports, workers=workers))
        for name in ports:
            run = self.state.of(RunState)[name]
            at = run.step + 10
            accuracy = self.accuracy(dict(self.study.trials[run.spec.trial].params), at)
            if not run.step:
                self.record(TrainStarted(run=name, step=0))
            self.record(TrainProgress(run=name, step=at, loss=1.0, steps_per_second=1.0))
            measured = {} if math.isnan(accuracy) else {"accuracy": accuracy}
            undefined = () if measured else ("accuracy",)
            self.record(TrainEvaluated(run=name, step=at, metrics=measured, undefined=undefined))
            if at >= 100:
                self.record(TrainFinished(run=name, step=at))

    def until_over(self, killed: Callable[[], bool] = lambda: False) -> None:
        for _ in range(2000):
            if killed():
                self.begin()
            if self.study.over:
                return
            if not self.look():
                self.step()
        raise AssertionError("the study does not end")

    def tried(self) -> list[tuple[Any, ...]]:
        return [(each.number, *each.params.items(), each.state, each.value) for each in self.study.trials.values()]


def rate(params: dict[str, Value], step: int) -> float:
    return float(params["lr"]) * step / 100 + float(params.get("units", 16)) / 1000


@examples(5)
@given(st.sampled_from(["grid", "random"]), st.integers(0, 99), st.integers(0, 10**6))
def test_a_study_that_is_killed_at_any_moment_makes_exactly_the_same_trials(
    sampler: str, seed: int, kills: int
) -> None:
    space = parse_space("lr=0.1,0.2 units=16:18:int" if sampler == "grid" else "lr=1e-3:1:log units=16,32")
    spec = study(sampler=sampler, seed=seed, space=space, trials=6)
    plain, killed = Simulated(spec, rate), Simulated(spec, rate)
    plain.until_over()
    chance = random.Random(kills)
    killed.until_over(lambda: chance.random() < 0.3)
    assert killed.tried() == plain.tried()
    assert len(plain.study.trials) == 6
    assert {each.state for each in plain.study.trials.values()} == {"complete"}
    if sampler == "grid":
        points = {tuple(each.params.values()) for each in plain.study.trials.values()}
        assert points == {(lr, units) for lr in (0.1, 0.2) for units in (16, 17, 18)}
    best = plain.study.best
    assert best.value == max(each.value for each in plain.study.trials.values())


@pytest.mark.parametrize("pruner", ["none", "median", "hyperband"])
def test_what_optuna_is_told_is_what_the_journal_says_also_after_a_controllers_death(pruner: str) -> None:
    spec = study(sampler="tpe", pruner=pruner, trials=24, seed=3)
    there = Simulated(spec, rate, places=3)
    chance = random.Random(1)
    there.until_over(lambda: chance.random() < 0.1)
    trials = there.study.trials
    assert list(trials) == list(range(24)), "every number once"
    again = OptunaSampler(spec)
    again.catch_up(there.study, there.state.of(RunState))
    told = {each.number: (each.params, each.state.name, each.value) for each in again.study.trials}
    names = {"complete": "COMPLETE", "pruned": "PRUNED"}
    assert told == {
        number: (each.params, names[each.state], pytest.approx(each.value)) for number, each in trials.items()
    }
    assert again.study.best_trial.number == there.study.best.number
    pruned = [each for each in trials.values() if each.state == "pruned"]
    assert bool(pruned) == (pruner != "none")
    for each in pruned:
        assert there.state.of(RunState)[each.runs[0]].step < 100, "its worker is free"
        assert "pruned at step" in each.reason


def test_a_trial_whose_steps_are_made_is_not_pruned_by_what_was_measured_before() -> None:
    spec = study(pruner="median")
    there = Simulated(spec, rate)
    while there.look() or there.state.of(RunState)["s-0"].step < 20:
        there.step()
    trial, run = there.study.trials[0], there.state.of(RunState)["s-0"]
    (told,) = decide(there.study, there.state, there.slots, there.time, {0})
    assert told == FinishTrial(0, "pruned", run.metrics["accuracy"], f"pruned at step {run.step}")
    there.record(TrainMade(run="s-0", step=100))
    assert not any(
        isinstance(each, FinishTrial)
        for each in decide(there.study, there.state, there.slots, there.time, {trial.number})
    )


def test_an_objective_that_is_never_measured_ends_the_study_and_says_what_is() -> None:
    there = Simulated(replace(study(), objective="max precision"), rate)
    there.until_over()
    assert {trial.state for trial in there.study.trials.values()} == {"failed"}
    assert there.study.trials[0].reason == "s-0 has no metric precision (it has accuracy)"
    assert re.fullmatch(
        r"its first [34] trials failed: s-\d has no metric precision "
        r".*",
        there.study.reason,
    )


def test_points_that_fail_at_once_do_not_end_a_study_of_which_another_trains_on() -> None:
    there = Simulated(study(), rate, places=4)
    while (
        there.look() or not there.state.of(RunState) or min(run.step for run in there.state.of(RunState).values()) < 20
    ):
        there.step()
    for run in ("s-1", "s-2", "s-3"):
        there.record(TrainFailed(run=run, step=there.state.of(RunState)[run].step, reason="its loss is no number"))
    there.record(TrainProgress(run="s-0", step=99, loss=1.0, steps_per_second=1.0))
    there.look()
    assert there.study.trials[3].state == "failed"
    there.look()
    assert not there.study.stopping
    there.record(TrainFailed(run="s-0", step=99, reason="its loss is no number"))
    while there.look():
        pass
    assert there.study.reason == "its first 4 trials failed: its loss is no number"


def test_a_limit_in_the_middle_stops_what_trains_and_waits_for_the_last_evaluation_of_what_is_made() -> None:
    there = Simulated(study(repeat=2, trials=2), rate, places=4)
    while (
        there.look() or not there.state.of(RunState) or min(run.step for run in there.state.of(RunState).values()) < 20
    ):
        there.step()
    assert list(there.state.of(RunState)) == ["s-0-0", "s-0-1", "s-1-0", "s-1-1"]
    for run in ("s-0-0", "s-0-1", "s-1-0"):
        there.record(TrainMade(run=run, step=100))
    there.record(events.WorkStopping(work="s", of="study", reason="its limit of $1 is spent"))
    there.look()
    assert [trial.state for trial in there.study.trials.values()] == ["running", "stopped"]
    stops = decide(there.study, there.state, 4, there.time)
    assert stops == [StopRun("s-1-0", save=True), StopRun("s-1-1", save=True)]
    for run in ("s-0-0", "s-0-1"):
        there.record(TrainEvaluated(run=run, step=100, metrics={"accuracy": 0.75}))
        there.record(TrainFinished(run=run, step=100))
    there.until_over()
    assert [(trial.state, trial.value) for trial in there.study.trials.values()] == [
        ("complete", 0.75),
        ("stopped", None),
    ]


def test_no_worker_idles_while_a_trial_may_begin_and_who_waits_comes_first() -> None:
    there = Simulated(study(sampler="random", trials=5), rate, places=3)
    while there.look():
        pass
    assert len(there.state.turns) == 3
    there.record(
        events.WorkDeclared(of="run", work="mine", spec={"train_steps": 100, "least_workers": 1, "most_workers": 1})
    )
    there.record(TrainFinished(run="s-0", step=100))
    there.record(TrainEvaluated(run="s-0", step=100, metrics={"accuracy": 0.5}))
    while there.look():
        pass
    assert [run.name for run in there.state.turns] == ["s-1", "s-2", "mine"], "no trial of the study waits beside it"


def test_the_next_trial_is_asked_for_while_the_one_before_makes_its_last_steps_or_is_evaluated() -> None:
    there = Simulated(study(sampler="random", trials=5), rate, places=1)
    while there.look():
        pass
    there.step()
    assert not there.look(), "it has 90 steps to make"
    there.record(WorkerJoined(run="s-0", worker="w", number=0, active=1))
    there.record(TrainProgress(run="s-0", step=90, loss=1.0, steps_per_second=1.0))
    while there.look():
        pass
    assert [run.name for run in there.state.turns] == ["s-0", "s-1"], "and no third one"
    for name in ("s-0", "s-1"):
        there.record(TrainMade(run=name, step=100))
    there.time += 3600
    while there.look():
        pass
    assert [run.name for run in there.state.turns] == ["s-0", "s-1", "s-2"]
    assert [each.state for each in there.study.trials.values()] == ["running"] * 3, "they wait for their evaluations"


def test_each_point_is_repeated_with_its_seeds_and_told_as_their_mean() -> None:
    there = Simulated(study(sampler="tpe", repeat=3, trials=2, seed=5), lambda *_: 0.0)
    there.accuracy = lambda params, step: next(values)
    values = iter(round(0.001 * each, 4) for each in range(1000))
    there.until_over()
    runs = there.state.of(RunState)
    assert [runs[name].spec.seed for name in there.study.trials[1].runs] == [5, 6, 7]
    for trial in there.study.trials.values():
        assert trial.value == pytest.approx(sum(runs[name].metrics["accuracy"] for name in trial.runs) / 3)


class Leased(Simulated):
    """The same on workers with these GPUs, which the ledger gives to runs."""

    def __init__(self, spec: StudySpec, gpus: Sequence[str]) -> None:
        super().__init__(spec, lambda *_: 0.5, len(gpus))
        self.resize(gpus)

    def resize(self, gpus: Sequence[str]) -> None:
        self.slots = dict(enumerate(gpus))
        groups = tuple(WorkerGroup(gpu, count) for gpu, count in Counter(gpus).items())
        self.state = replace(self.state, spec=ClusterSpec("c", groups, ("us-west1-b",), {}))

    def step(self) -> None:
        self.time += 10
        held = leases(self.state, self.slots, now=self.time)
        workers = {str(slot): name for slot, name in held.workers.items()}
        self.record(events.ClusterLeased(ports=held.ports, workers=workers))
        for name in {*held.workers.values()}:
            run = self.state.of(RunState)[name]
            machines = Counter(self.slots[slot] for slot, owner in held.workers.items() if owner == name)
            assert machines == Counter(parse_machines(run.spec.machines)), "exactly those of its configuration"
            assert run.spec.machines == self.study.trials[run.spec.trial].params["on"]
            self.record(TrainProgress(run=name, step=run.step + 50, loss=1.0, steps_per_second=5.0))
            if run.step:
                self.record(TrainEvaluated(run=name, step=100, metrics={"accuracy": 0.5}))
                self.record(TrainFinished(run=name, step=100))


@examples(10)
@given(
    st.lists(st.sampled_from(["k80x1", "k80x2", "k80x3", "p100x1", "p100x2", "k80x2+p100x1"]), min_size=1, unique=True),
    st.sampled_from(["grid", "random"]),
    st.integers(1, 3),
)
def test_each_configuration_trains_each_point_on_exactly_its_machines(on: list[str], sampler: str, repeat: int) -> None:
    space = parse_space("lr=0.1,0.2") if sampler == "grid" else parse_space("lr=0:1")
    trials = 2 * len(on) if sampler == "grid" else 5
    spec = study(on=tuple(on), space=space, sampler=sampler, trials=trials, repeat=repeat)
    there = Leased(spec, ("k80", "p100", "k80", "p100", "k80"))
    there.until_over()
    tried = [each.params for each in there.study.trials.values()]
    assert {each.state for each in there.study.trials.values()} == {"complete"}
    assert tried == [point(spec, number) for number in range(trials)]


def test_a_configuration_that_the_cluster_has_no_more_fails_and_the_others_go_on() -> None:
    there = Leased(study(on=("k80x2", "k80x1"), space=(), sampler="grid", trials=2, repeat=3), ("k80", "k80"))
    while there.look():
        pass
    there.step()
    there.resize(("k80",))
    there.until_over()
    first, second = there.study.trials.values()
    assert (first.state, first.reason) == ("failed", "c is k80 now, and holds no k80x2")
    assert (second.params, second.state) == ({"on": "k80x1"}, "complete")
    assert all(run.over for run in there.state.of(RunState).values())


def test_a_trial_that_fails_is_told_so_and_the_others_go_on_unless_all_of_the_first_fail() -> None:
    there = Simulated(study(trials=4), lambda params, step: float("nan") if params["units"] == 16 else 0.5)
    there.record(StudyAsked(study="s", trial=0, params={"lr": 0.1, "units": 16}, runs=("s-0",)))
    there.until_over()
    assert there.study.trials[0].state == "failed"
    assert there.study.trials[0].reason == "the accuracy of s-0 is not a number"
    assert "complete" in {each.state for each in there.study.trials.values()}
    broken = Simulated(study(trials=9), lambda *_: float("nan"))
    broken.until_over()
    assert re.fullmatch(
        r"its first [34] trials failed: the accuracy of s-\d is not a "
        r"number",
        broken.study.reason,
    )
    assert broken.study.best is None


def test_a_trial_that_hangs_is_given_up_and_its_run_ended_without_a_checkpoint() -> None:
    there = Simulated(study(trials=1, give_up_seconds=60.0), rate, places=1)
    vm = events.VmRequested(
        vm="worker-0", role="worker", slot=0, zone="z", accelerator="k80", machine_type="m", provisioning_model="spot",
        hourly=1.0, on_demand_hourly=2.0,
    )  # fmt: skip
    for event in (vm, events.VmRunning(vm="worker-0", address="a"), events.VmReady(vm="worker-0")):
        there.record(event)
    there.look(), there.look()
    there.step()
    there.time += 59
    assert there.look() == []
    there.time += 2
    assert there.look() == [FinishTrial(0, "failed", reason="s-0 made no step for 60 s")]
    assert there.look()[0] == StopRun("s-0", save=False)


def test_a_trial_whose_worker_is_stopped_and_started_again_does_not_hang() -> None:
    there = Simulated(study(trials=1, give_up_seconds=60.0), rate, places=1)
    vm = events.VmRequested(
        vm="worker-0", role="worker", slot=0, zone="z", accelerator="k80", machine_type="m", provisioning_model="spot",
        hourly=1.0, on_demand_hourly=2.0,
    )  # fmt: skip
    for event in (vm, events.VmRunning(vm="worker-0", address="a"), events.VmReady(vm="worker-0")):
        there.record(event)
    there.look(), there.look()
    there.step()
    asked = events.VmMachineAsked(
        vm="worker-0", machine_type="n", hourly=0.5, on_demand_hourly=1.0, disk_hourly=0.01, part=0.5, reason="r"
    )
    for event in (asked, events.VmStopped(vm="worker-0", reason="r")):
        there.record(event)
    there.time += 100
    assert there.look() == []
    for event in (events.VmStarted(vm="worker-0", address="a"), events.VmReady(vm="worker-0")):
        there.record(event)
    there.time += 59
    assert there.look() == []
    there.time += 2
    assert there.look() == [FinishTrial(0, "failed", reason="s-0 made no step for 60 s")]


def test_a_limit_or_its_user_ends_a_study_with_what_is_done_kept() -> None:
    there = Simulated(study(trials=20, max_hours=0.1), rate)
    there.until_over()
    done = [each.state for each in there.study.trials.values()]
    assert there.study.reason == "its limit of 6 min has passed"
    assert 0 < done.count("complete") < 20
    assert set(done) <= {"complete", "stopped"}
    there.record(StudyExtended(study="s", trials=1))
    assert (there.study.over, there.study.stop, there.study.stopping_at) == (False, None, 0.0)
    stopped = Simulated(study(), rate)
    stopped.look(), stopped.look(), stopped.step()
    stopped.record(TrainFinished(run="s-0", step=10, stopped=True))
    assert FinishTrial(0, "stopped", reason="stopped by the user") in stopped.look()
    stopped.record(events.WorkStopping(work="s", of="study", reason="stopped by the user"))
    stopped.until_over()
    assert all(run.over for run in stopped.state.of(RunState).values())


class RecordingStudies(Studies):
    """Studies, and the runs that they stopped in the latest tick."""

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        runs = cast("Any", SimpleNamespace(stop_trial=self._stop))
        super().__init__(directory, recorder, lambda vm: None, {"run": runs})
        self.stops: list[StopRun] = []

    def _stop(self, run: str, save: bool) -> None:
        self.stops.append(StopRun(run, save))


CLUSTER = replace(declaration("lab", 2), bucket="bucket")


def hands(directory: Path) -> tuple[Journal, Recorder, RecordingStudies]:
    """What a controller that takes charge has."""
    journal = Journal(directory / layout.JOURNAL)
    recorder = Recorder(journal, replay(read(directory / layout.JOURNAL)))
    if recorder.state.spec is None:
        recorder.record(events.ClusterDeclared(spec=CLUSTER.to_dict()))
    return journal, recorder, RecordingStudies(directory, recorder)


async def settled(studies: RecordingStudies, recorder: Recorder, places: int) -> list[StopRun]:
    """Look until nothing more is written down, and give what is to be stopped."""
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, lambda: None, lambda key, what: pytest.fail(f"{key}: {what}"))
        quiet = 0
        while quiet < 5:
            before = recorder.state.seq
            studies.stops.clear()
            studies.tick(Tick(tasks, 1000.0, lambda: dict.fromkeys(range(places), "k80")))
            for name in waiting(studies.directory, recorder.state, "run"):
                spec = RunSpec.from_dict(
                    json.loads((run_folder(studies.directory, name) / layout.RUN).read_text(encoding="utf-8"))
                )
                recorder.record(events.WorkDeclared(of="run", work=name, spec=spec.without_token()))
            await asyncio.sleep(0.1)
            quiet = quiet + 1 if recorder.state.seq == before and not tasks._tasks else 0
    return studies.stops


@pytest.mark.slow
def test_a_trial_that_was_measured_while_no_controller_was_there_is_pruned_by_the_next_one(tmp_path: Path) -> None:
    spec = study(pruner="median", trials=6)
    folder = tmp_path / layout.STUDIES / "s"
    folder.mkdir(parents=True)
    (tmp_path / layout.RUNS).mkdir()
    (folder / layout.CELL).write_text("model = lr", encoding="utf-8")
    (folder / layout.STUDY).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    journal, recorder, studies = hands(tmp_path)
    with journal:
        studies.declare_waiting()
        asyncio.run(settled(studies, recorder, places=6))
        for number in range(5):
            for step in (10, 20):
                measured = TrainEvaluated(run=f"s-{number}", step=step, metrics={"accuracy": 0.9})
                recorder.record(measured)
            recorder.record(TrainFinished(run=f"s-{number}", step=100))
        asyncio.run(settled(studies, recorder, places=6))
        for step in (10, 20):
            recorder.record(TrainEvaluated(run="s-5", step=step, metrics={"accuracy": 0.1}))
    journal, recorder, studies = hands(tmp_path)
    with journal:
        stops = asyncio.run(settled(studies, recorder, places=6))
    trials = recorder.state.of(StudyState)["s"].trials
    assert [each.state for each in trials.values()] == ["complete"] * 5 + ["pruned"]
    assert stops == [StopRun("s-5", save=False)]


@pytest.mark.slow
def test_a_trial_is_drawn_where_the_numerics_of_a_sampler_fail_and_the_next_is_proposed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = study(sampler="tpe", trials=3, seed=1)
    folder = tmp_path / layout.STUDIES / "s"
    folder.mkdir(parents=True)
    (tmp_path / layout.RUNS).mkdir()
    (folder / layout.CELL).write_text("model = lr", encoding="utf-8")
    (folder / layout.STUDY).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    proposals, propose = [0], OptunaSampler.propose

    def failing(twin: OptunaSampler) -> dict[str, Value]:
        proposed = propose(twin)  # the study has a trial more
        proposals[0] += 1
        if proposals[0] == 2:
            raise RuntimeError("the factorization could not be completed")
        return proposed

    monkeypatch.setattr(OptunaSampler, "propose", failing)
    journal, recorder, studies = hands(tmp_path)
    with journal:
        studies.declare_waiting()
        asyncio.run(settled(studies, recorder, places=3))
    trials = recorder.state.of(StudyState)["s"].trials
    assert list(trials) == [0, 1, 2]
    assert proposals == [3]
    assert trials[1].params == random_point(spec.dimensions, spec.seed, 1)
    assert trials[2].params != random_point(spec.dimensions, spec.seed, 2)


@pytest.mark.slow
def test_runs_of_trials_have_folders_made_from_the_studys_also_by_the_controller_that_follows(tmp_path: Path) -> None:
    spec = study(sampler="tpe", pruner="median", trials=4, seed=1)
    folder = tmp_path / layout.STUDIES / "s"
    (folder / layout.INCLUDE).mkdir(parents=True)
    (tmp_path / layout.RUNS).touch()
    (folder / layout.CELL).write_text("model = lr", encoding="utf-8")
    (folder / layout.STUDY).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    journal, recorder, studies = hands(tmp_path)
    with journal:
        studies.declare_waiting()  # no command came
        asyncio.run(settled(studies, recorder, places=2))
        assert recorder.state.trouble == "s-0 cannot begin: Not a directory"
        (tmp_path / layout.RUNS).unlink()
        (tmp_path / layout.RUNS).mkdir()
        asyncio.run(settled(studies, recorder, places=2))
    assert (list(recorder.state.of(RunState)), recorder.state.trouble) == (["s-0", "s-1"], "")
    made = [
        json.loads((run_folder(tmp_path, name) / layout.RUN).read_text(encoding="utf-8")) for name in ("s-0", "s-1")
    ]
    assert [each["params"] for each in made] == [
        dict(each.params) for each in recorder.state.of(StudyState)["s"].trials.values()
    ]
    assert [each["store"] for each in made] == [run_store(CLUSTER, "s-0"), run_store(CLUSTER, "s-1")]
    assert len({each["token"] for each in made}) == 2
    assert (run_folder(tmp_path, "s-1") / layout.CELL).read_text(encoding="utf-8") == "model = lr"
    assert not (run_folder(tmp_path, "s-1") / layout.STUDY).exists()
    assert made[0]["token"] not in (tmp_path / layout.JOURNAL).read_text(encoding="utf-8")
    shutil.rmtree(run_folder(tmp_path, "s-1"))  # as if the first one had died between the journal and the folder
    lines = (tmp_path / layout.JOURNAL).read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / layout.JOURNAL).write_text(
        "".join(line for line in lines if '"work":"s-1"' not in line), encoding="utf-8"
    )
    journal, recorder, studies = hands(tmp_path)
    with journal:
        asyncio.run(settled(studies, recorder, places=2))
        assert (
            json.loads((run_folder(tmp_path, "s-1") / layout.RUN).read_text(encoding="utf-8"))["params"]
            == made[1]["params"]
        )
        assert list(recorder.state.of(StudyState)["s"].trials) == [0, 1]
        with pytest.raises(UnknownWorkError, match="Unknown study 't"):
            studies.extend("t", 1, "r1")
        for _ in range(2):  # the second time after a lost answer
            studies.extend("s", 1, "r1")
        studies.extend("s", 1, "r2")
        assert recorder.state.of(StudyState)["s"].planned == 6
        asyncio.run(studies.stop("s"))
        stops = asyncio.run(settled(studies, recorder, places=2))
    assert {each.run for each in stops} == {"s-0", "s-1"}
    assert all(each.save for each in stops)
    assert recorder.state.of(StudyState)["s"].over
