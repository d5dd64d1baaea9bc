"""A provider wants workers back and names their number alone: who goes, who is asked, and when nobody answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.controller.test_resizing import Life, declare
from transient_magics.client import text
from transient_magics.controller.decisions.shrink_policy import first_to_go
from transient_magics.controller.reclaim import Reclaims, measured
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.vms.access import WantedBack
from transient_magics.errors import ClusterError, UnreachableError
from transient_magics.journal import Journal, VmState, bill, events, read, replay
from transient_magics.journal.declared import run_folder
from transient_magics.panels import html, view
from transient_magics.panels.actions import find_action
from transient_magics.planner.lifetimes.kaplan_meier import Capped
from transient_magics.planner.lifetimes.parametric import Weibull
from transient_magics.planner.lifetimes.study import best_known, risk
from transient_magics.protocol.vm_events import TrainStarted
from transient_magics.works.runs.conduct import Runs

NAMES = ("worker-0", "worker-1", "worker-2")


class Provider:
    """Stands in for the cluster's VMs: takes those that it is told to take, unless it does not answer."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.silent = 0

    async def preempt(self, vm: VmState, seconds: float) -> None:
        if self.silent:
            self.silent -= 1
            raise UnreachableError("Compute Engine does not answer")
        self.taken.append(vm.name)


class Desk:
    """A cluster of three workers, each a second younger than the one before, and who answers for it."""

    def __init__(self, folder: Path, journal: Journal, give_up: str | None) -> None:
        life = declare("t4x3", project=None, max_cost=None, max_hours=24.0, give_up=give_up)
        self.recorder = Recorder(journal, replay([]))
        self.recorder.record(events.ClusterDeclared(spec=life.spec.to_dict()))
        for number, name in enumerate(NAMES):
            vm = life.state.vms[name]
            asked = events.VmRequested(
                vm=name, role="worker", slot=number, zone=vm.zone, accelerator="t4", machine_type=vm.machine_type,
                provisioning_model="spot", hourly=vm.hourly + number % 2, on_demand_hourly=1.0,
            )  # fmt: skip
            at = time.time() - 60 + number
            runs = events.VmRunning(vm=name, address="10.0.0.1", vm_id=str(number))
            for event in (asked, runs, events.VmReady(vm=name)):
                self.recorder.record(replace(event, time=round(at * 1e9)))
        runs = Runs(folder, self.recorder, lambda vm: None)
        self.reclaims, self.provider, self.until = Reclaims(self.recorder, [runs]), Provider(), time.time() + 60

    def wants(self, number: int, *ids: str) -> None:
        self.reclaims.note_wanted_back(WantedBack(number, ids or ("0", "1", "2"), self.until))

    def looks(self, at: float | None = None, times: int = 1) -> None:
        """What the controller does in so many of its turns."""

        async def turn() -> None:
            async with asyncio.TaskGroup() as group:
                tasks = Tasks(group, lambda: None, lambda key, what: self.recorder.note(key, what))
                self.reclaims.advance(tasks, self.provider, at or time.time())  # type: ignore[arg-type]

        for _ in range(times):
            asyncio.run(turn())

    @property
    def answered(self) -> events.ReclaimAnswered | None:
        return self.recorder.state.reclaim and self.recorder.state.reclaim.answered


@pytest.fixture
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    with Journal(tmp_path / "journal.jsonl") as journal:
        yield Desk(tmp_path, journal, getattr(request, "param", None))


def chosen(give_up: str | None) -> Any:
    return pytest.mark.parametrize("desk", [give_up], indirect=True)


@pytest.mark.slow
@chosen("youngest")
def test_who_goes_is_decided_once_and_told_to_the_provider_until_it_hears(desk: Desk) -> None:
    desk.provider.silent = 2
    desk.wants(2)
    desk.wants(2)
    desk.looks(times=6)
    assert desk.answered
    assert (desk.answered.vms, desk.answered.reason) == (("worker-2", "worker-1"), "the youngest of 3")
    assert sorted(desk.provider.taken) == ["worker-1", "worker-2"]
    assert not desk.recorder.trouble
    kinds = [event.kind for event in desk.recorder.state.recent]
    assert (kinds.count("reclaim.wanted"), kinds.count("reclaim.answered")) == (1, 1)
    desk.reclaims.note_wanted_back(None)
    assert desk.recorder.state.reclaim is None


@pytest.mark.slow
@chosen("youngest")
def test_where_the_provider_does_not_hear_the_trouble_ends_with_the_vm(desk: Desk) -> None:
    desk.provider.silent = 1
    desk.wants(1)
    desk.looks(times=2)
    assert desk.recorder.trouble == "Compute Engine does not answer."
    desk.recorder.record(events.VmPreemptionNotice(vm="worker-2"))
    desk.looks()
    assert desk.recorder.trouble == ""


@chosen("costliest")
def test_one_that_goes_meanwhile_counts_and_others_than_were_named_do_not_go(desk: Desk) -> None:
    desk.wants(2, "0", "1")
    desk.recorder.record(events.VmPreemptionNotice(vm="worker-1"))
    desk.looks(times=3)
    assert desk.provider.taken == ["worker-0"]


def test_where_nothing_trains_the_youngest_goes_and_it_is_said(desk: Desk) -> None:
    desk.wants(1)
    desk.looks(times=2)
    assert desk.provider.taken == ["worker-2"]
    assert desk.answered
    assert desk.answered.reason == "the youngest of 3, for nothing trains that tells how fast workers are"
    assert text.event_words(desk.answered).startswith("worker-2 is given up: the youngest of 3")


@chosen("slowest")
def test_how_slow_one_is_all_runs_that_train_tell(desk: Desk, tmp_path: Path) -> None:
    rates = {"run-1": {"worker-0": 300, "worker-1": 900}, "run-2": {"worker-2": 30}}
    for run, samples in rates.items():
        desk.recorder.record(events.WorkDeclared(of="run", work=run, spec={"train_steps": 9}))
        desk.recorder.record(TrainStarted(run=run, step=0))
        path = run_folder(tmp_path, run) / "metrics.jsonl"
        path.parent.mkdir(parents=True)
        rows = [{"time": time.time_ns(), "worker": vm, "samples": made, "step": 1} for vm, made in samples.items()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    desk.wants(1)
    desk.looks(times=2)
    assert desk.provider.taken == ["worker-0"], "worker-2 makes fewer examples, of another run's"
    assert desk.answered
    assert desk.answered.reason == "the slowest of 3"


@chosen("ask")
def test_asked_first_it_proposes_and_what_is_agreed_to_goes(desk: Desk) -> None:
    desk.wants(1)
    desk.looks(times=3)
    state, now = desk.recorder.state, time.time()
    assert state.reclaim
    proposed = state.reclaim.proposed
    assert proposed
    assert proposed.vms == ("worker-2",)
    assert desk.provider.taken == []
    shown = view(state, bill(state, now), now)
    assert shown["proposal"]
    assert shown["proposal"]["number"] == proposed.seq
    said = shown["proposal"]["text"]
    assert said.startswith("The provider wants 1 VM back: worker-2 goes at ")
    assert said in html(shown)
    how = f"{said} To agree: %transient_cluster agree {state.name}\n"
    assert how in text.status(state, bill(state, now), now)
    assert view(state, bill(state, now), now + 61)["proposal"] is None, "it expires"
    with pytest.raises(ClusterError, match="is out of date"):
        desk.reclaims.agree(proposed.seq + 1)
    desk.reclaims.agree(proposed.seq)
    desk.looks()
    assert desk.provider.taken == ["worker-2"]
    assert desk.answered
    assert desk.answered.agreed
    with pytest.raises(ClusterError, match="is out of date"):
        desk.reclaims.agree(proposed.seq)


@chosen("ask")
def test_a_user_may_revoke_another_and_where_nobody_answers_those_proposed_go_in_time(desk: Desk) -> None:
    desk.wants(2)
    desk.looks()
    assert desk.recorder.state.reclaim
    proposed = desk.recorder.state.reclaim.proposed
    assert proposed
    assert proposed.vms == ("worker-2", "worker-1")
    assert time.time() < proposed.until <= desk.until - 9
    desk.recorder.record(events.VmPreemptionNotice(vm="worker-0"))
    said = text.given_up_words(desk.recorder.state, time.time())
    assert said.startswith("The provider wants 1 VM back: worker-2 goes at ")
    desk.looks(proposed.until - 1, times=2)
    assert desk.answered is None
    desk.looks(proposed.until, times=2)
    assert desk.provider.taken == ["worker-2"], "one of two: the user gave another"


@chosen("ask")
def test_where_others_went_nothing_is_proposed_any_more(desk: Desk) -> None:
    desk.wants(1)
    desk.looks()
    assert desk.recorder.state.reclaim
    proposed = desk.recorder.state.reclaim.proposed
    assert proposed
    desk.recorder.record(events.VmPreemptionNotice(vm="worker-0"))
    state, now = desk.recorder.state, time.time()
    assert view(state, bill(state, now), now)["proposal"] is None
    with pytest.raises(ClusterError, match="is out of date"):
        desk.reclaims.agree(proposed.seq)


def test_after_the_time_the_provider_takes_them_by_itself(desk: Desk) -> None:
    desk.wants(1)
    desk.looks(desk.until, times=2)
    assert desk.provider.taken == []


def test_the_page_agrees_to_the_proposal_of_the_cluster() -> None:
    class Asked:
        def agree(self, proposal: int | None = None) -> tuple[str, ...]:
            agreed.append(proposal)
            return ()

    agreed: list[int | None] = []
    found = find_action(Asked(), None, {"do": "agree", "number": 7})  # type: ignore[arg-type]
    assert found
    assert found.do() is None
    assert agreed == [7]


def test_the_riskiest_are_those_that_die_soonest_at_their_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    early, late = Weibull(10.0, 0.5), Weibull(10.0, 3.0)
    assert risk(early, 0.1) > risk(early, 5.0), "who has lived long lives on"
    assert risk(late, 0.1) < risk(late, 5.0), "or is worn"
    assert risk(Capped(late, 24.0), 30.0) == 1.0
    life = declare("t4x2+v100x1@us-central1-a", project=None, max_cost=None, max_hours=24.0)
    reading = asyncio.run(measured([], life.state, "riskiest"))
    assert reading is not None
    v100 = next(name for name, vm in life.state.vms.items() if vm.accelerator == "v100")
    model = best_known("spot", emulated=True)("v100", "us-central1")
    assert reading[v100] == pytest.approx(risk(model, 0.0), abs=1e-3)
    assert 0 < reading[v100] < 1
    assert float(model.survival(np.array([0.0]))[0]) == 1.0
    ranked = wanted(life, *reading)
    assert first_to_go(ranked.state, "riskiest", {"worker-0": 0.5, "worker-1": 0.9, "worker-2": 0.1}) == (
        "worker-1", "worker-0", "worker-2",
    )  # fmt: skip


def wanted(life: Life, *vms: str) -> Life:
    life.happens(events.ReclaimWanted(number=1, vms=vms, until=life.now + 60))
    return life


def test_a_journal_that_answers_what_nobody_wants_is_passed_over(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(events.ReclaimAnswered(vms=("ps-0",), reason="a VM said so"))
    state = replay(read(tmp_path / "journal.jsonl"))
    assert (state.reclaim, state.passed_over) == (None, 1)
