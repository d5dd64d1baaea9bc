"""Trials of a study on one VM: by example, and for any sequence of declarations, ends, losses and resizes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.controller.test_ledger import ROOM, after, cluster, ending, made, over, run, sized
from transient_magics.controller.decisions.ledger import AHEAD_SECONDS, leases
from transient_magics.controller.tasks import Tasks
from transient_magics.journal import ClusterState, RunState, Works, events, fold
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.space import parse_space
from transient_magics.spec.cluster import place, slot_of
from transient_magics.works.runs import conduct
from transient_magics.works.runs.conduct import Runs
from transient_magics.works.studies.decisions import StartTrial, decide
from transient_magics.works.studies.seats import has_place
from transient_magics.works.studies.spec import StudySpec
from transient_magics.works.studies.state import StudyState, TrialState

SHARED = RunSpec("s", 9, share_input=True)


def trial(name: str, per_vm: int = 2, study: str = "s") -> RunState:
    """A run of a study, so many of which share a VM."""
    each = run(name, 1)
    return replace(each, spec=replace(each.spec, study=study, per_vm=per_vm))


def with_run(state: ClusterState, each: RunState) -> ClusterState:
    return replace(state, works=state.works.with_work(each))


def on_vms(state: ClusterState) -> dict[int, list[str]]:
    """By slot, who is there."""
    found: dict[int, list[str]] = {}
    for seat, name in sorted(state.leases.items()):
        found.setdefault(slot_of(seat), []).append(name)
    return found


def test_trials_fill_a_vm_before_they_take_another_and_none_of_another_study_or_run_joins() -> None:
    state = after(cluster(*map(trial, "abc"), trial("z", study="other"), run("own", 1), states="rrrr"), 4)
    assert on_vms(state) == {0: ["a", "b"], 1: ["c"], 2: ["z"], 3: ["own"]}
    assert len(set(state.ports.values())) == 5, "each has a parameter server of its own"


def test_a_trial_that_ends_frees_its_place_and_the_others_stay_where_they_are() -> None:
    state = after(cluster(*map(trial, "ab"), states="rr"), 2)
    assert state.leases == {0: "a", place(0, 1): "b"}
    state = after(over(state, "a"), 2)
    assert state.leases == {place(0, 1): "b"}
    state = after(with_run(state, trial("c")), 2)
    assert state.leases == {0: "c", place(0, 1): "b"}
    lost = replace(state, vms={})
    assert after(lost, 2).leases == state.leases, "whatever VM comes into its place is theirs"


def test_one_that_has_its_steps_leaves_its_place_and_the_next_one_begins_ahead() -> None:
    state = after(cluster(*map(trial, "ab"), states="r"), 1)
    state = after(with_run(state, trial("c")), 1)
    assert "c" not in state.ports, "the VM is full"
    state = after(ending(state, "a", AHEAD_SECONDS - 1), 1)
    assert ("c" in state.ports, on_vms(state)) == (True, {0: ["a", "b"]}), "its parameter server starts meanwhile"
    state = after(made(state, "a"), 1)
    assert on_vms(state) == {0: ["c", "b"]}


def test_whoever_waits_for_a_worker_has_the_next_one_and_no_trial_joins_meanwhile() -> None:
    state = after(cluster(*map(trial, "ab"), states="r"), 1)
    state = after(with_run(with_run(over(state, "a"), run("own", 1)), trial("c")), 1)
    assert on_vms(state) == {0: ["b"]}
    state = after(over(state, "b"), 1)
    assert on_vms(state) == {0: ["own"]}
    assert on_vms(after(over(state, "own"), 1)) == {0: ["c"]}


def test_a_trial_joins_where_its_parameter_server_has_room() -> None:
    shared = [replace(sized(name, 6.0), spec=trial(name).spec) for name in "ab"]
    state = after(cluster(*shared, states="rr"), 2, ROOM)
    assert (on_vms(state), *state.held_back["b"][:1]) == ({0: ["a"]}, "memory")


def _study(name: str, per_vm: int, *runs: str, trials: int = 9) -> StudyState:
    spec = StudySpec(
        name, RunSpec(name, 9), "max accuracy", parse_space("lr=0:1"), trials=trials, sampler="random", per_vm=per_vm
    )
    known = {number: TrialState(number, {"lr": 0.5}, (each,)) for number, each in enumerate(runs)}
    return StudyState(name, spec, planned=trials, trials=known)


def _asks(state: ClusterState, name: str, slots: int) -> bool:
    return any(
        isinstance(each, StartTrial)
        for each in decide(state.of(StudyState)[name], state, dict.fromkeys(range(slots), "k80"), 0)
    )


def test_a_study_has_as_many_trials_under_way_as_have_places() -> None:
    state = replace(cluster(states="r"), phase="ready", works=Works([_study("s", 3)]))
    names: list[str] = []
    while _asks(state, "s", 1):
        names.append(f"s-{len(names)}")
        state = after(with_run(state, trial(names[-1], 3)), 1)
        state = replace(state, works=state.works.with_work(_study("s", 3, *names)))
    assert on_vms(state) == {0: ["s-0", "s-1", "s-2"]}
    waiting = with_run(over(state, "s-1"), run("own", 1))
    assert not _asks(waiting, "s", 1), "a run that waits comes next"


def test_two_studies_share_a_cluster_in_turns() -> None:
    state = replace(cluster(*map(trial, "ab"), states="r"), phase="ready")
    first = _study("s", 2, "a", "b")
    second = _study("t", 2)
    state = after(state, 1)
    state = over(replace(state, works=state.works.with_work(first, second)), "a")
    assert not any(_asks(state, name, 1) for name in "st"), "its VM comes free for the other"
    assert _asks(after(over(state, "b"), 1), "t", 1)
    alone = replace(state, works=state.works.with_work(replace(second, stopping_at=1.0)))
    assert has_place(alone.of(StudyState)["s"], alone, 0)


_ACTS = some.tuples(
    some.sampled_from(["trial", "trial", "trial", "other", "run", "end", "end", "make", "near", "resize", "lose"]),
    some.integers(0, 5),
)


@given(some.lists(_ACTS, min_size=1, max_size=25), some.integers(1, 4), some.integers(2, 4))
def test_no_place_has_two_owners_and_a_vm_only_trials_of_one_study(
    story: list[tuple[str, int]], slots: int, per_vm: int
) -> None:
    state = cluster(states="r" * slots)
    for number, (what, which) in enumerate([*story, *[("end", 0)] * 2 * len(story)]):
        before, going = state, list(state.ports)
        if what in ("trial", "other"):
            state = with_run(state, trial(f"r{number}", per_vm, what))
        elif what == "run":
            state = with_run(state, run(f"r{number}", 1, 1 + which))
        elif what == "end" and going:
            state = over(state, going[which % len(going)])
        elif what == "make" and going:
            state = made(state, going[which % len(going)])
        elif what == "near" and going:
            state = ending(state, going[which % len(going)], which + 10.0)
        elif what == "resize":
            slots = 1 + which % 4
        elif what == "lose":
            state = replace(state, vms={name: vm for name, vm in state.vms.items() if vm.slot != which})
        state = after(state, slots, ROOM)
        _check(before, state, slots, per_vm)
        settled = after(after(state, slots, ROOM), slots, ROOM)
        assert leases(settled, dict.fromkeys(range(slots), "k80"), ROOM, 0.0).workers == settled.leases, "it settles"
        state = settled
    assert all(each.over for each in state.of(RunState).values()), "each has begun and has had its end"


def _check(before: ClusterState, state: ClusterState, slots: int, per_vm: int) -> None:
    assert {*map(slot_of, state.leases)} <= {*range(slots)}
    trials = Counter(name for name in state.leases.values() if state.of(RunState)[name].spec.per_vm > 1)
    assert set(trials.values()) <= {1}, "a trial has one place"
    for slot, names in on_vms(state).items():
        assert len(names) <= per_vm
        assert len(names) == 1 or len({state.of(RunState)[name].spec.study for name in names} - {""}) == 1
        assert len(names) == 1 or all(state.of(RunState)[name].spec.per_vm > 1 for name in names)
        for name in on_vms(before).get(slot, ()):
            if state.of(RunState)[name].spec.per_vm > 1 and name in state.leases.values():
                assert name in names, "whoever has a place keeps it"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"workers": 2}, "per_vm: a trial that shares its VM can have only one worker; leave out --workers"),
        ({"on": ("k80x1",)}, "per_vm: a trial that shares its VM can have only one worker; leave out --on"),
        ({"run": SHARED, "per_vm": 1}, "share_input: it needs several trials on a VM; add --per-vm 2"),
        (
            {"run": SHARED, "space": parse_space("batch_size=16:64:int")},
            "over: trials with --share-input have the same mini-batches; leave out batch_size",
        ),
    ],
)
def test_what_does_not_go_with_a_shared_vm_is_refused(more: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(_study("s", 2).spec, **more)


def test_who_shares_a_vm_has_no_alarm_of_speed() -> None:
    spec = _study("s", 2).spec
    assert (
        spec.run_of(0, 0, {"lr": 0.1}).alarm_below,
        replace(spec, per_vm=1).run_of(0, 0, {"lr": 0.1}).alarm_below,
    ) == (
        0.0,
        0.8,
    )


def test_places_of_one_vm_are_in_the_journal() -> None:
    state = fold(
        ClusterState(), events.ClusterLeased(ports={"a": 0, "b": 1}, workers={"1": "a", str(place(1, 1)): "b"})
    )
    assert (state.slots_of("a"), state.slots_of("b")) == ({1}, {1})


async def test_two_trials_on_one_vm_are_traced_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = list[str]()

    async def bring(connection: str, name: str, worker: str, folder: Path) -> None:
        traced.append(f"{name} on {worker}")
        await asyncio.sleep(0.05)

    async def connection(name: str) -> str:
        return name

    monkeypatch.setattr(conduct, "bring", bring)
    runs = {name: SimpleNamespace(name=name, kind="run", workers={"worker-0": None}) for name in ("s-0", "s-1")}
    recorder = SimpleNamespace(state=ClusterState(works=Works(cast("Any", runs.values()))), record=lambda event: True)
    fleet = SimpleNamespace(link=lambda vm: SimpleNamespace(connection=connection))
    conducted = Runs(tmp_path, cast("Any", recorder), fleet.link)
    async with asyncio.TaskGroup() as group:
        conducted.take_charge(cast("Any", fleet), Tasks(group, lambda: None, lambda *_: None))
        for name in runs:
            conducted.trace(name, "worker-0")
    assert traced == ["s-0 on worker-0", "s-1 on worker-0"]
