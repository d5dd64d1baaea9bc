"""Which run has which workers: by example, and for any sequence of declarations, ends, losses and resizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from transient_magics.controller.decisions.admission import GB, Need, Server, shortage
from transient_magics.controller.decisions.ledger import AHEAD_SECONDS, MOST_MADE, Leases, leases, to_check
from transient_magics.errors import DeclarationError, JournalError
from transient_magics.journal import ClusterState, RunState, VmState, Works, events, fold, unknown_run
from transient_magics.journal.events import MOST_RUNS
from transient_magics.journal.state import WorkerState
from transient_magics.protocol.machines import parse_machines
from transient_magics.protocol.vm_events import TrainFailed, TrainMade, TrainStarted
from transient_magics.spec import parse_workers

ANY, ROOM = Server(), Server(memory=10 * GB, link=10e6)
"""A parameter server with room for all, and one with 10 GB and 80 Mbit/s each way."""


def run(name: str, least: int = 0, most: int = 0, phase: str = "declared") -> RunState:
    """A run that asks for so many workers; all of them without a number."""
    asked = {"least_workers": least, "most_workers": most or least, "check": False}
    return replace(unknown_run(name, train_steps=9, **asked), phase=phase)


def cluster(*runs: RunState, states: str = "") -> ClusterState:
    """With these runs in order, and VMs in these states: r(eady), b(ooting), - (none)."""
    words = {"r": "ready", "b": "booting"}
    vms = {
        f"worker-{slot}": VmState(f"worker-{slot}", "worker", slot, "z", "", "m", "spot", 0.0, 0.0, words[state])
        for slot, state in enumerate(states)
        if state in words
    }
    return ClusterState(vms=vms, works=Works(runs))


def sized(name: str, gigabytes: float, least: int = 1) -> RunState:
    """A run whose process takes so much memory on a parameter server's VM."""
    return replace(run(name, least), server_bytes=int(gigabytes * GB))


def stepping(name: str, rate: float) -> RunState:
    """A run with one worker that takes so many bytes per second each way."""
    each = replace(run(name, 1), parameters=int(rate) // 4)
    return replace(each, spec=replace(each.spec, pace_seconds=1.0))


def made(state: ClusterState, name: str) -> ClusterState:
    """The run has its steps, and is evaluated."""
    return fold(state, TrainMade(run=name, step=9))


def ending(state: ClusterState, name: str, seconds: float) -> ClusterState:
    """The run will have its steps in so many seconds, as it was told at 0."""
    worker = {"w": WorkerState("w", 0, 0.0)}
    told = replace(state.of(RunState)[name], series=((0.0, 0, None, 9 / seconds),), workers=worker)
    return replace(state, works=state.works.with_work(told))


def after(state: ClusterState, slots: int, room: Server = ANY, now: float = 0.0) -> ClusterState:
    """The state once the leases of this moment are written down."""
    held = leases(state, dict.fromkeys(range(slots), "k80"), room, now)
    workers = {str(slot): name for slot, name in held.workers.items()}
    ahead = {str(slot): name for slot, name in held.ahead.items()}
    return fold(state, events.ClusterLeased(ports=held.ports, workers=workers, held=held.held_back, ahead=ahead))


def over(state: ClusterState, name: str) -> ClusterState:
    return replace(state, works=state.works.with_work(replace(state.of(RunState)[name], phase="finished")))


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
    state = after(replace(state, works=state.works.with_work(run("b", 2))), 4)
    assert shares(state) == {"a": 2, "b": 2}
    kept = [slot for slot, name in state.leases.items() if name == "a"]
    state = after(over(state, "b"), 4)
    assert shares(state) == {"a": 4}
    assert kept == [0, 1], "those at the front stay"


def test_a_run_that_an_earlier_version_began_has_the_first_ports() -> None:
    state = after(cluster(run("a", phase="running"), run("b"), states="rr"), 2)
    assert (dict(state.ports), shares(state), [each.name for each in state.queue]) == ({"a": 0}, {"a": 2}, ["b"])


@pytest.mark.slow
def test_ports_are_never_those_of_two_runs_and_are_used_again() -> None:
    state = after(cluster(*(run(f"run-{number}", 1) for number in range(MOST_RUNS + 2))), MOST_RUNS + 2)
    assert sorted(state.ports.values()) == list(range(MOST_RUNS))
    state = after(over(state, "run-3"), MOST_RUNS + 2)
    assert state.ports[f"run-{MOST_RUNS}"] == 3


def test_a_run_that_does_not_fit_on_the_parameter_server_is_held_until_it_does() -> None:
    state = after(cluster(sized("a", 4), sized("b", 9), sized("c", 1)), 4, ROOM)
    assert (list(state.ports), list(state.held_back)) == (["a"], ["b"]), "no run overtakes one that waits for memory"
    assert state.held_back["b"] == (
        "memory",
        "a parameter server has 10.0 GB of memory for runs, a takes 4.0 GB of it, this one needs about 9.0 GB",
    )
    measured = replace(state, works=state.works.with_work(replace(state.of(RunState)["a"], server_bytes=5 * GB)))
    assert after(measured, 4, ROOM).held_back == state.held_back, "told once, whatever is measured meanwhile"
    state = after(over(state, "a"), 4, ROOM)
    assert (list(state.ports), list(state.held_back)) == (["b", "c"], [])
    large = after(cluster(sized("a", 99), sized("b", 1)), 4, ROOM)
    assert (list(large.ports), list(large.held_back)) == (["a"], ["b"]), "alone a run begins, however large it is"


def test_a_run_that_has_its_steps_leaves_its_workers_to_the_next_and_stays_on_the_parameter_servers() -> None:
    state = after(cluster(run("a", 2), run("b", 2), states="rr"), 2)
    assert state.leases == {0: "a", 1: "a"}
    state = after(made(state, "a"), 2)
    assert (state.leases, dict(state.ports)) == ({0: "b", 1: "b"}, {"a": 0, "b": 1})
    lost = after(fold(state, TrainStarted(run="a", step=3)), 2)
    assert set(lost.leases.values()) == {"a"}, "its parameter server's VM was lost, and its last steps with it"
    assert after(made(lost, "a"), 2).leases == {0: "b", 1: "b"}


def test_the_next_run_begins_a_few_seconds_ahead_and_has_no_worker_before_it_has_its_least() -> None:
    state = after(cluster(run("a", 3), run("b", 2), run("c", 1), states="rrrr"), 4)
    assert shares(state) == {"a": 3, "c": 1}, "c has room beside b"
    state = after(cluster(run("a", 3), run("b", 2), run("c", 2), states="rrrr"), 4)
    soon = after(ending(state, "a", AHEAD_SECONDS + 5), 4)
    assert shares(soon) == {"a": 3}
    soon = after(soon, 4, now=6.0)
    assert shares(soon) == {"a": 3, "b": 0, "c": 0}, "their parameter servers start"
    assert shares(after(ending(soon, "a", 1000), 4)) == shares(soon), "what has begun is not stopped"
    assert shares(after(made(soon, "a"), 4)) == {"a": 0, "b": 2, "c": 2}
    full = after(cluster(sized("a", 6, 2), sized("b", 6, 2)), 2, ROOM)
    assert shares(after(ending(full, "a", 5), 2, ROOM)) == {"a": 2}, "not where the server has no room"
    assert not after(ending(full, "a", 5), 2, ROOM).held_back, "it waits for workers all the same"


def trial(name: str) -> RunState:
    """A run of a study, with one worker."""
    each = run(name, 1)
    return replace(each, spec=replace(each.spec, study="s"))


def test_the_next_run_makes_ready_on_the_vm_that_comes_free_first_and_goes_on_there() -> None:
    state = after(cluster(run("a", 1), run("b", 1), run("c", 1), run("d", 1), states="rr"), 2)
    assert not state.ahead
    state = after(ending(ending(state, "a", 9), "b", 4), 2)
    assert (shares(state), state.ahead) == ({"a": 1, "b": 1, "c": 0, "d": 0}, {0: "d", 1: "c"})
    state = after(ending(state, "b", 12), 2)
    assert state.ahead == {0: "d", 1: "c"}, "nobody makes ready twice because speeds have changed"
    state = after(made(state, "a"), 2)
    assert (state.leases, state.ahead) == ({0: "c", 1: "b"}, {1: "d"}), "runs begin in their order, ready or not"
    assert not after(over(state, "d"), 2).ahead, "who is stopped makes nothing ready"
    assert not after(made(state, "b"), 2).ahead, "who has its worker neither"


def test_of_the_trials_of_a_study_the_one_that_is_ready_on_the_free_vm_begins_there() -> None:
    state = after(cluster(*map(trial, "abcd"), states="rr"), 2)
    state = after(ending(ending(state, "a", 4), "b", 5), 2)
    assert state.ahead == {0: "c", 1: "d"}
    state = after(made(state, "b"), 2)
    assert (state.leases, state.ahead) == ({0: "a", 1: "d"}, {0: "c"}), "it was to take a bit longer, and did not"
    assert after(made(state, "a"), 2).leases == {0: "c", 1: "d"}


def test_no_run_takes_a_vm_that_boots_because_it_was_ready_on_the_one_before() -> None:
    state = after(cluster(*map(trial, "abc"), states="rr"), 2)
    state = after(ending(state, "a", 4), 2)
    assert state.ahead == {0: "c"}
    lost = replace(state, vms={**state.vms, "worker-0": replace(state.vms["worker-0"], state="booting")})
    state = after(made(made(lost, "a"), "b"), 2)
    assert (state.leases, state.ahead) == ({1: "c"}, {})


def test_the_first_run_takes_a_vm_that_is_there_and_not_one_that_boots_though_another_is_ready_on_it() -> None:
    state = after(cluster(*map(run, "abcd", (1, 1, 1, 1)), states="rr"), 2)
    state = after(ending(ending(state, "a", 4), "b", 9), 2)
    assert state.ahead == {0: "c", 1: "d"}
    lost = replace(state, vms={**state.vms, "worker-0": replace(state.vms["worker-0"], state="booting")})
    assert after(made(made(lost, "a"), "b"), 2).leases == {0: "d", 1: "c"}


def test_where_two_vms_are_free_each_goes_to_the_run_that_is_ready_there() -> None:
    state = after(cluster(*map(run, "abcd", (1, 1, 1, 1)), states="rr"), 2)
    state = after(ending(ending(state, "a", 9), "b", 4), 2)
    assert state.ahead == {0: "d", 1: "c"}
    assert after(made(made(state, "a"), "b"), 2).leases == {0: "d", 1: "c"}


def test_no_run_begins_beside_more_than_a_few_that_are_made_and_not_over() -> None:
    state = cluster(*(run(f"r{number}", 1) for number in range(MOST_MADE + 3)))
    for number in range(MOST_MADE + 1):
        state = made(after(state, 1), f"r{number}")
    assert shares(after(state, 1)) == {f"r{number}": 0 for number in range(MOST_MADE + 1)}
    assert shares(after(over(state, "r1"), 1))[f"r{MOST_MADE + 1}"] == 1


def test_runs_that_have_their_steps_at_once_hold_up_none_behind_them_while_they_are_evaluated() -> None:
    state = after(cluster(*(run(f"r{number}", 1) for number in range(2 * MOST_MADE + 4))), MOST_MADE + 2)
    for number in range(MOST_MADE + 2):
        state = made(state, f"r{number}")
    assert list(after(state, MOST_MADE + 2).leases.values()) == [
        f"r{MOST_MADE + 2 + each}" for each in range(MOST_MADE + 2)
    ]


@pytest.mark.parametrize(("gigabytes", "passes"), [(1, True), (2, False)])
def test_a_run_passes_one_that_waits_for_workers_only_where_the_server_has_room_for_both(
    gigabytes: float, passes: bool
) -> None:
    state = after(cluster(sized("a", 1, 2), sized("b", 8, 3), sized("c", gigabytes)), 4, ROOM)
    assert ("c" in state.ports) == passes
    assert "b" not in state.ports


def test_a_run_whose_steps_the_link_does_not_carry_is_held_until_it_does() -> None:
    state = after(cluster(stepping("a", 6e6), stepping("b", 6e6)), 4, ROOM)
    assert state.held_back["b"] == (
        "link",
        "a parameter server's link carries 80 Mbit/s each way, a takes 48 Mbit/s of it, this one needs about 48 Mbit/s",
    )
    assert not after(cluster(stepping("a", 6e6), stepping("b", 3e6)), 4, ROOM).held_back
    assert not after(cluster(stepping("a", 6e6), run("b", 1)), 4, ROOM).held_back, "what is not known takes nothing"
    assert list(after(cluster(stepping("a", 9.5e6), run("b", 1)), 4, ROOM).held_back) == ["b"], "but of what is left"


def test_a_run_is_checked_before_it_begins_beside_another() -> None:
    first, second = (replace(each, spec=replace(each.spec, check=True)) for each in (run("a", 1), run("b", 1)))
    state = after(cluster(first, second), 2)
    assert (list(state.ports), state.held_back["b"][0]) == (["a"], "check"), "alone at once, and checked"
    assert [each and each.name for each in (to_check(state), to_check(cluster()))] == ["b", None]
    behind = after(replace(state, works=state.works.with_work(run("c", 1))), 3)
    assert "c" not in behind.ports, "nobody passes it before its size is known"
    checked = fold(state, events.TrainChecked(run="b", parameters=10))
    assert list(after(checked, 2).ports) == ["a", "b"]


def test_a_trial_waits_for_the_check_of_another_that_may_hold_for_it() -> None:
    def trial(name: str, study: str = "s", **params: float) -> RunState:
        return replace(each := run(name, 1), spec=replace(each.spec, check=True, study=study, params=params))

    for second, checked in (
        (trial("b", lr=0.5), None),
        (trial("b", units=64), "b"),  # a whole number may be a size
        (trial("b", "other", lr=0.5), "b"),
    ):
        state = after(cluster(trial("a", lr=0.1), second), 2)
        assert ((to_check(state) or run("")).name or None) == checked
    state = after(cluster(trial("a", lr=0.1), trial("b", lr=0.5)), 2)
    found = fold(state, events.TrainChecked(run="a"))
    failed = fold(state, TrainFailed(run="a", reason="no"))
    assert [each and each.name for each in map(to_check, (found, failed))] == ["b", "b"]


def test_a_run_that_waits_is_moved_before_others_that_wait() -> None:
    state = after(cluster(run("a", 4), *(run(name, 4) for name in "bcd")), 4)
    state = fold(state, events.TrainMoved(run="d"))
    assert [each.name for each in state.turns] == ["a", "d", "b", "c"]
    state = fold(state, events.TrainMoved(run="b", before="d"))
    state = replace(state, works=state.works.with_work(run("e", 4)))
    assert [each.name for each in state.queue] == ["b", "d", "c", "e"]
    assert list(after(over(state, "a"), 4).ports) == ["b"]
    for wrong in (events.TrainMoved(run="a"), events.TrainMoved(run="x"), events.TrainMoved(run="b", before="a")):
        with pytest.raises(JournalError):
            fold(state, wrong)


_NEEDS = some.tuples(some.integers(0, 5), some.integers(0, 3), some.integers(0, 12), some.integers(0, 12))
"""Of a run: its least number of workers, how many more it would take, its GB, its Mbyte/s."""


@some.composite
def stories(draw: some.DrawFn) -> list[tuple[str, int]]:
    what = some.sampled_from(["end", "make", "near", "resize", "lose", "move", "measure"])
    return draw(some.lists(some.tuples(what, some.integers(0, 12)), max_size=12))


@given(some.lists(_NEEDS, min_size=1, max_size=7), stories(), some.integers(1, 6), some.booleans())
def test_every_run_begins_and_has_its_least_whatever_happens(
    needs: list[tuple[int, int, int, int]], story: list[tuple[str, int]], slots: int, trials: bool
) -> None:
    runs = []
    for number, (least, more, memory, link) in enumerate(needs):
        asked = {"least_workers": least, "most_workers": least + more if least else 0, "pace_seconds": 1.0}
        asked |= {"study": "s"} if trials else {}
        sizes = {"server_bytes": memory * GB, "parameters": int(link * 1e6 / 4 / max(least, 1))}
        each = run(f"r{number}")
        runs.append(replace(each, spec=replace(each.spec, **asked), **sizes))
    state = after(cluster(*runs, states="r" * slots), slots, ROOM)
    for what, which in [*story, *[("end", 0)] * len(runs)]:
        before = state
        going = list(state.ports)
        if what == "end" and going:
            state = over(state, going[which % len(going)])
        elif what == "make" and going:
            state = made(state, going[which % len(going)])
        elif what == "near" and going:
            state = ending(state, going[which % len(going)], which + 10.0)
        elif what == "resize":
            slots = 1 + which % 6
        elif what == "lose":
            state = replace(state, vms={name: vm for name, vm in state.vms.items() if vm.slot != which})
        elif what == "move" and state.queue:
            state = fold(state, events.TrainMoved(run=state.queue[which % len(state.queue)].name))
        elif what == "measure" and going:
            grown = replace(state.of(RunState)[going[which % len(going)]], server_bytes=which * GB)
            state = replace(state, works=state.works.with_work(grown))
        state = after(state, slots, ROOM)
        known = Leases(state.ports, state.leases, state.held_back, state.ahead)
        assert leases(state, dict.fromkeys(range(slots), "k80"), ROOM) == known, "nothing is moved twice"
        check(before, state, slots, resized=what == "resize")
        check_room(before, state)
    assert all(each.over for each in state.of(RunState).values()), "each has begun and has had its end"


def check(before: ClusterState, state: ClusterState, slots: int, *, resized: bool) -> None:
    had, has = shares(before), shares(state)
    assert set(state.leases) <= set(range(slots))
    assert len(set(state.ports.values())) == len(state.ports) <= MOST_RUNS
    training = [name for name in state.ports if not state.of(RunState)[name].made]
    leasts = {name: min(state.of(RunState)[name].spec.least_workers or slots, slots) for name in training}
    for name, many in has.items():
        assert not state.of(RunState)[name].over
        if name not in training:
            assert not many, "whoever has its steps needs nobody"
            continue
        assert many <= min(state.of(RunState)[name].spec.most_workers or slots, slots)
        assert resized or sum(leasts.values()) > slots or many >= leasts[name]
    if free := slots - len(state.leases):
        most = {name: min(state.of(RunState)[name].spec.most_workers or slots, slots) for name in training}
        ahead = {name for name in training if not has[name] and leasts[name] > free}
        assert all(has[name] == most[name] for name in {*training} - ahead), (
            f"{free} are idle, somebody would take them"
        )
    for slot, name in before.leases.items():
        if slot < slots and name in training and state.leases.get(slot) != name:
            assert has[name] < had[name], "a place changes hands only where its run had too many"
    assert any(not each.over for each in state.of(RunState).values()) == bool(state.ports), "somebody goes on"
    assert {*state.ahead.values()} <= {name for name in training if not has[name]}, "who has workers waits for none"
    assert set(state.ahead) <= set(range(slots))


def check_room(before: ClusterState, state: ClusterState) -> None:
    new = [name for name in state.ports if name not in before.ports]
    assert set(before.ports) - {name for name in before.ports if state.of(RunState)[name].over} <= set(state.ports), (
        "none stops"
    )
    if new and len(state.ports) > 1:
        assert sum(state.of(RunState)[name].server_bytes or GB for name in state.ports) <= ROOM.memory
    queue = [each.name for each in state.queue]
    assert set(state.held_back) <= set(queue[:1]), "only the run that has waited longest is held"


MIXED = "k80", "k80", "p100", "k80", "p100", "v100"
_MACHINES = some.sampled_from(
    ["", "", "k80x1", "k80x2", "k80x3", "p100x1", "p100x2", "v100x1", "k80x1+p100x1", "k80x2+p100x2", "p100x1+v100x1"]
)


def named(name: str, machines: str, least: int = 1, most: int = 2) -> RunState:
    """A run that takes these machines; any, if none are named."""
    many = sum(parse_machines(machines).values()) if machines else 0
    each = run(name, many or least, many or most)
    return replace(each, spec=replace(each.spec, machines=machines))


def has(state: ClusterState, gpus: Sequence[str], name: str) -> Counter[str]:
    """Of which GPUs a run has workers, and how many."""
    return Counter(gpus[slot] for slot, run in state.leases.items() if run == name)


def after_mixed(state: ClusterState, gpus: Sequence[str]) -> ClusterState:
    """The state once nothing more is to be leased, in a cluster with these GPUs.

    Who has more than its least of other GPUs since the first look can leave at the second what a run named.
    """
    for _ in range(9):
        held = leases(state, dict(enumerate(gpus)), ANY, 0.0)
        if held == Leases(state.ports, state.leases, state.held_back):
            return state
        for name in {*state.leases.values()} & {each.name for each in state.turns if not each.made}:
            had, now = ({slot for slot, run in each.items() if run == name} for each in (state.leases, held.workers))
            assert had & {*range(len(gpus))} <= now or len(now) < len(had), "only who has too many leaves a place"
        workers = {str(slot): name for slot, name in held.workers.items()}
        state = fold(state, events.ClusterLeased(ports=held.ports, workers=workers, held=held.held_back))
    raise AssertionError("places change hands for ever")


def test_a_run_with_named_machines_takes_these_and_whoever_has_too_many_leaves_them_to_it() -> None:
    gpus = "k80", "p100", "k80", "p100"
    state = after_mixed(cluster(run("any", 2, 4)), gpus)
    assert has(state, gpus, "any") == {"k80": 2, "p100": 2}
    state = after_mixed(replace(state, works=state.works.with_work(named("b", "p100x2"))), gpus)
    assert (has(state, gpus, "any"), has(state, gpus, "b")) == ({"k80": 2}, {"p100": 2})
    state = after_mixed(replace(state, works=state.works.with_work(named("c", "k80x1"))), gpus)
    assert [each.name for each in state.queue] == ["c"], "any keeps its two, which are all K80s now"
    state = after_mixed(over(state, "b"), gpus)
    assert (has(state, gpus, "any").total(), has(state, gpus, "c")) == (3, {"k80": 1}), "with more, it can leave one"


def test_a_run_whose_machines_the_cluster_has_not_waits_and_nobody_waits_for_it() -> None:
    for gpus in (("k80",) * 4, ("k80", "k80", "k80", "p100")):
        state = after_mixed(cluster(named("a", "k80x5"), named("b", "v100x1"), named("c", "k80x3")), gpus)
        assert dict(state.ports) == {"c": 0}
        assert has(state, gpus, "c") == {"k80": 3}
    state = after_mixed(state, ("k80", "k80"))
    assert has(state, ("k80", "k80"), "c") == {"k80": 2}, "one that has begun keeps what is left"


def test_runs_on_other_gpus_pass_a_run_that_waits_for_its_own() -> None:
    gpus = "k80", "k80", "p100", "p100"
    runs = [named("a", "k80x1"), named("b", "k80x2"), named("c", "p100x2"), named("d", "k80x1")]
    state = after_mixed(cluster(*runs), gpus)
    assert sorted(state.ports) == ["a", "c"], "d would delay b, and c cannot"


@given(some.lists(some.tuples(_MACHINES, some.integers(1, 4)), min_size=1, max_size=7), stories(), some.integers(0, 6))
def test_leases_by_gpu_never_take_another_and_every_run_begins(
    asked: list[tuple[str, int]], story: list[tuple[str, int]], slots: int
) -> None:
    runs = [named(f"r{number}", machines, least, least + 1) for number, (machines, least) in enumerate(asked)]
    gpus = MIXED[: slots or 6]
    state = after_mixed(cluster(*runs), gpus)
    steps = [each for each in story if each[0] in ("end", "make", "resize")]
    for what, which in [*steps, *[("end", 0)] * len(runs)]:
        going = list(state.ports)
        before = state
        if what == "end" and going:
            state = over(state, going[which % len(going)])
        elif what == "make" and going:
            state = made(state, going[which % len(going)])
        elif what == "resize":
            gpus = MIXED[: 1 + which % 6]
        state = after_mixed(state, gpus)
        for name in state.ports:
            each = state.of(RunState)[name]
            theirs = has(state, gpus, name)
            if each.spec.machines:
                wanted = Counter(parse_machines(each.spec.machines))
                assert theirs <= wanted, "of no other GPU, and no more than it named"
                new = name not in before.leases.values() and what != "resize"
                assert not theirs or not new or theirs == wanted, "all of them, or none yet"
            elif not each.made:
                assert theirs.total() <= each.spec.most_workers
    held = [each.name for each in state.of(RunState).values() if not each.over]
    for name in held:
        machines = parse_machines(state.of(RunState)[name].spec.machines)
        assert any(count > Counter(gpus)[gpu] for gpu, count in machines.items()), f"{name} could have begun"


@given(some.lists(some.integers(0, 12), min_size=1, max_size=5), some.lists(some.integers(0, 12), max_size=2))
def test_what_does_not_fit_with_some_does_not_fit_with_more(begun: list[int], more: list[int]) -> None:
    needs = [Need(memory * GB, memory * 1e6) for memory in begun]
    other = [Need(memory * GB, memory * 1e6) for memory in more]
    if shortage(ROOM, needs[1:], other):
        assert shortage(ROOM, needs, other)


@given(some.lists(some.integers(1, 4), min_size=2, max_size=6), some.permutations(range(6)))
def test_the_head_begins_as_early_as_if_nobody_had_begun_before_it(leasts: list[int], order: list[int]) -> None:
    slots = 4
    runs = [run(f"r{number}", least) for number, least in enumerate(leasts)]
    state = after(cluster(*runs), slots)
    if not (queue := state.queue):
        return
    head, behind = queue[0], runs[runs.index(queue[0]) + 1 :]
    alone = after(cluster(*[each for each in runs if each not in behind]), slots)
    for which in order:  # of those that were declared before it, until it begins
        if which < runs.index(head):
            state, alone = (after(over(each, f"r{which}"), slots) if f"r{which}" in each.of(RunState) else each
                            for each in (state, alone))  # fmt: skip
            assert (head.name in state.ports) == (head.name in alone.ports)


def test_workers_are_asked_for_as_a_number_or_as_least_and_most() -> None:
    assert parse_workers("2") == {"least_workers": 2, "most_workers": 2}
    assert parse_workers("2:4") == {"least_workers": 2, "most_workers": 4}
    for wrong in ("0", "4:2", "two", "2:", ":2", "-1", ""):
        with pytest.raises(DeclarationError, match="Invalid --workers"):
            parse_workers(wrong)
