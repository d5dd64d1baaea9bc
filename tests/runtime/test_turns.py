"""Whose turn it is to measure: whatever becomes of workers, each measure is taken once a repeat, and alone by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from transient_magics.protocol.chief_messages import Take, Took
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.step_parts import ALONE, MEASURES
from transient_magics.protocol.vm_events import TrainMeasured, line_fields
from transient_magics.runtime.parameter_server.chief.stall_turns import WAIT_FOR_ALL, Turns, planned, straggler

SPEC = RunSpec("stalls-1", 16, stalls=2, stall_seconds=1.0, workers=2)


def taken(turns: Turns, fates: some.DataObject | None = None, *, most: int = 10_000) -> list[TrainMeasured]:
    """Play the turns to their end (or until so many measures): `fates` has workers lost, come, silent or in vain."""
    able, awaited, found = {1, 2}, dict[int, Take](), list[TrainMeasured]()
    now, number = 0.0, 2
    while not turns.done and not turns.failing and len(found) < most:
        now += 1.0
        takes, measured = turns.advance(able, now)
        awaited = {each: take for each, take in {**awaited, **takes}.items() if each in able}
        if measured:
            found.append(measured)
        if takes and next(iter(takes.values())).measure in ALONE:
            assert len(takes) == 1, "nobody else steps meanwhile"
        fate = fates.draw(some.sampled_from(["goes", "comes", *["answers"] * 6])) if fates else "answers"
        if fate == "goes" and len(able) > 1:
            able.discard(max(able))
        elif fate == "comes" and len(able) < 4:
            number += 1
            able.add(number)
        else:
            for each, take in awaited.items():
                turns.add_result(each, f"worker-{each}", Took(turn=take.turn, seconds=(0.1, 0.3), examples=8))
                turns.add_result(each, f"worker-{each}", Took(turn=take.turn - 1, seconds=(9.0,)))
            awaited = {}
    return found


@given(some.data())
def test_each_measure_is_taken_once_a_repeat_whoever_comes_and_goes(data: some.DataObject) -> None:
    found = taken(Turns(SPEC), data)
    assert [(each.repeat, each.measure) for each in found] == [*planned(2)]
    assert all(mean == 0.2 for each in found for mean in each.seconds.values()), "a late answer counts not"


def test_repeats_go_there_and_back() -> None:
    assert [measure for _, measure in planned(2)] == [*MEASURES, *reversed(MEASURES)]


@given(some.integers(0, 15))
def test_a_chief_goes_on_where_the_one_before_was(most: int) -> None:
    before = taken(Turns(SPEC), most=most)
    lines = [{"kind": each.kind, **line_fields(each)} for each in before]
    turns = Turns(SPEC, lines)
    assert turns.count == len(before)
    assert [(each.repeat, each.measure) for each in [*before, *taken(turns)]] == [*planned(2)]


def test_other_workers_are_waited_for_but_not_for_ever() -> None:
    turns = Turns(SPEC)
    assert turns.advance({1}, 0.0) == ({}, None)
    assert turns.advance({1}, WAIT_FOR_ALL - 1) == ({}, None)
    assert [*turns.advance({1}, WAIT_FOR_ALL)[0]] == [1]


def test_who_does_not_answer_is_missed_after_a_while_and_a_measure_that_nobody_takes_ends_it() -> None:
    turns, now = Turns(SPEC), 0.0
    while not turns.failing:
        turns.advance({1, 2}, now)
        now += 100.0
        assert now < 1e5
    assert turns.failing == MEASURES[0]
    assert turns.advance({1, 2}, now) == ({}, None)


def test_the_straggler_is_later_than_the_mean() -> None:
    assert straggler([(1.0, 2.0, 9.0), (3.0, 2.0)]) == 0.5
    assert straggler([(1.0, 2.0)]) == 0.0
