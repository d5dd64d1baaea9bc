"""Which run has which workers: by example, and for any sequence of declarations, ends, losses and resizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from transient_magics.controller.decisions.ledger import MOST_RUNS, Leases, leases, waiting
from transient_magics.errors import DeclarationError
from transient_magics.journal import ClusterState, RunState, VmState, events, fold, unknown_run
from transient_magics.spec import parse_workers


def run(name: str, least: int = 0, most: int = 0, phase: str = "declared") -> RunState:
    """A run that asks for so many workers; all of them without a number."""
    return replace(unknown_run(name, train_steps=9, least_workers=least, most_workers=most or least), phase=phase)


def cluster(*runs: RunState, states: str = "") -> ClusterState:
    """With these runs in order, and VMs in these states: r(eady), b(ooting), - (none)."""
    words = {"r": "ready", "b": "booting"}
    vms = {
        f"worker-{slot}": VmState(f"worker-{slot}", "worker", slot, "z", "", "m", "spot", 0.0, 0.0, words[state])
        for slot, state in enumerate(states)
        if state in words
    }
    return ClusterState(vms=vms, runs={each.name: each for each in runs})


def after(state: ClusterState, slots: int) -> ClusterState:
    """The state once the leases of this moment are written down."""
    held = leases(state, range(slots))
    written = events.ClusterLeased(ports=held.ports, workers={str(slot): name for slot, name in held.workers.items()})
    return fold(state, written)


def over(state: ClusterState, name: str) -> ClusterState:
    return replace(state, runs={**state.runs, name: replace(state.runs[name], phase="finished")})


def shares(state: ClusterState) -> dict[str, int]:
    return {name: sum(each == name for each in state.leases.values()) for name in state.ports}


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([run("a"), run("b")], {"a": 4}),  # without a number: all, one after the other
        ([run("a", 2), run("b", 2)], {"a": 2, "b": 2}),
        ([run("a", 1, 4), run("b", 2, 4)], {"a": 2, "b": 2}),
        ([run("a", 1, 4), run("b", 1, 1)], {"a": 3, "b": 1}),
        ([run("a", 2), run("b", 3), run("c", 2)], {"a": 2}),  # c would delay b, which needs three of four
        ([run("a", 2), run("b", 3), run("c", 1)], {"a": 2, "c": 1}),
        ([run("a", 3), run("b", 2), run("c", 1)], {"a": 3, "c": 1}),  # b needs the end of a, and has room beside c then
        ([run("a", 9)], {"a": 4}),  # the cluster was made smaller since
    ],
)  # fmt: skip
def test_runs_share_the_workers_in_the_order_in_which_they_were_declared(
    runs: list[RunState], expected: dict[str, int]
) -> None:
    assert shares(after(cluster(*runs), 4)) == expected


def test_a_run_takes_the_workers_that_are_ready_and_keeps_its_places_whoever_is_in_them() -> None:
    state = after(cluster(run("a", 2), states="-brr"), 4)
    assert state.leases == {2: "a", 3: "a"}
    lost = replace(state, vms={name: vm for name, vm in state.vms.items() if vm.slot < 2})
    assert after(lost, 4).leases == {2: "a", 3: "a"}, "replacements in these places are its own"


def test_what_is_left_goes_to_whoever_takes_more_and_comes_back_when_another_begins() -> None:
    state = after(cluster(run("a", 1, 4), states="rrrr"), 4)
    assert shares(state) == {"a": 4}
    state = after(replace(state, runs={**state.runs, "b": run("b", 2)}), 4)
    assert shares(state) == {"a": 2, "b": 2}
    kept = [slot for slot, name in state.leases.items() if name == "a"]
    state = after(over(state, "b"), 4)
    assert shares(state) == {"a": 4}
    assert kept == [0, 1], "those at the front stay"


def test_a_run_that_an_earlier_version_began_has_the_first_ports() -> None:
    state = after(cluster(run("a", phase="running"), run("b"), states="rr"), 2)
    assert (dict(state.ports), shares(state), [each.name for each in waiting(state)]) == ({"a": 0}, {"a": 2}, ["b"])


def test_ports_are_never_those_of_two_runs_and_are_used_again() -> None:
    state = after(cluster(*(run(f"run-{number}", 1) for number in range(12))), 12)
    assert sorted(state.ports.values()) == list(range(MOST_RUNS))
    state = after(over(state, "run-3"), 12)
    assert state.ports[f"run-{MOST_RUNS}"] == 3


_NEEDS = some.tuples(some.integers(0, 5), some.integers(0, 3))


@some.composite
def stories(draw: some.DrawFn) -> list[tuple[str, int]]:
    return draw(some.lists(some.tuples(some.sampled_from(["end", "resize", "lose"]), some.integers(0, 7)), max_size=12))


@given(some.lists(_NEEDS, min_size=1, max_size=7), stories(), some.integers(1, 6))
def test_every_run_begins_and_has_its_least_whatever_happens(
    needs: list[tuple[int, int]], story: list[tuple[str, int]], slots: int
) -> None:
    runs = [run(f"r{number}", least, least + more if least else 0) for number, (least, more) in enumerate(needs)]
    state = after(cluster(*runs, states="r" * slots), slots)
    for what, which in [*story, *[("end", 0)] * len(runs)]:
        before = state
        going = list(state.ports)
        if what == "end" and going:
            state = over(state, going[which % len(going)])
        elif what == "resize":
            slots = 1 + which % 6
        elif what == "lose":
            state = replace(state, vms={name: vm for name, vm in state.vms.items() if vm.slot != which})
        state = after(state, slots)
        assert leases(state, range(slots)) == Leases(state.ports, state.leases), "nothing is moved twice"
        check(before, state, slots, resized=what == "resize")
    assert all(each.over for each in state.runs.values()), "each has begun and has had its end"


def check(before: ClusterState, state: ClusterState, slots: int, *, resized: bool) -> None:
    had, has = shares(before), shares(state)
    assert set(state.leases) <= set(range(slots))
    assert len(set(state.ports.values())) == len(state.ports) <= MOST_RUNS
    leasts = {name: min(state.runs[name].spec.least_workers or slots, slots) for name in state.ports}
    for name, many in has.items():
        assert not state.runs[name].over
        assert many <= min(state.runs[name].spec.most_workers or slots, slots)
        assert resized or sum(leasts.values()) > slots or many >= leasts[name]
    if free := slots - len(state.leases):
        most = {name: min(state.runs[name].spec.most_workers or slots, slots) for name in has}
        assert all(has[name] == most[name] for name in has), f"{free} are idle and somebody would take them"
    for slot, name in before.leases.items():
        if slot < slots and name in has and state.leases.get(slot) != name:
            assert has[name] < had[name], "a place changes hands only where its run had too many"
    assert any(not each.over for each in state.runs.values()) == bool(state.ports), "somebody goes on"


@given(some.lists(some.integers(1, 4), min_size=2, max_size=6), some.permutations(range(6)))
def test_the_head_begins_as_early_as_if_nobody_had_begun_before_it(leasts: list[int], order: list[int]) -> None:
    slots = 4
    runs = [run(f"r{number}", least) for number, least in enumerate(leasts)]
    state = after(cluster(*runs), slots)
    if not (queue := waiting(state)):
        return
    head, behind = queue[0], runs[runs.index(queue[0]) + 1 :]
    alone = after(cluster(*[each for each in runs if each not in behind]), slots)
    for which in order:  # of those that were declared before it, until it begins
        if which < runs.index(head):
            state, alone = (after(over(each, f"r{which}"), slots) if f"r{which}" in each.runs else each
                            for each in (state, alone))  # fmt: skip
            assert (head.name in state.ports) == (head.name in alone.ports)


def test_workers_are_asked_for_as_a_number_or_as_least_and_most() -> None:
    assert parse_workers("2") == {"least_workers": 2, "most_workers": 2}
    assert parse_workers("2:4") == {"least_workers": 2, "most_workers": 4}
    for wrong in ("0", "4:2", "two", "2:", ":2", "-1", ""):
        with pytest.raises(DeclarationError, match="Invalid --workers"):
            parse_workers(wrong)
