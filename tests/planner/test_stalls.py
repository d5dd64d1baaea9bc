"""What follows from measured stalls: parts that sum to the step, what is in the noise, what a change would bring."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as some

from transient_magics.errors import DeclarationError
from transient_magics.planner.stalls.parts import COMPUTE, STALLS, Estimate, Stalls, apart, by_kind, straggler
from transient_magics.planner.stalls.terms import Change, advice, seconds, what_if
from transient_magics.protocol.step_parts import MEASURES, Measure
from transient_magics.protocol.vm_events import TrainMeasured

SECONDS = some.floats(1e-4, 10.0)
MEASURED = some.fixed_dictionaries(dict.fromkeys(MEASURES, SECONDS))
CHANGES = some.builds(
    Change, some.floats(0, 1), *[some.floats(0.01, 100)] * 6
)  # fmt: skip


def step(compute: float = 0.1, *, own: float = 0.0, network: float = 0.0, shared: float = 0.0, warm: float = 0.01,
         cold: float = 0.02, unhidden: float = 0.0) -> dict[Measure, float]:  # fmt: skip
    """The measures of a step that is made of these, its input beside it."""
    busy = compute + own + network + shared

    def beside(input: float) -> float:
        return max(busy, input) + unhidden * min(busy, input)

    return {
        "S0": compute, "S1": compute + own, "S2": compute + own + network, "S3": busy, "S4": beside(warm),
        "S5": beside(cold), "R4": warm, "R5": cold,
    }  # fmt: skip


def told(
    repeats: list[Mapping[Measure, float]], workers: tuple[str, ...] = ("worker-1",), *, bytes: int = 10**10,
    slower: Mapping[str, Mapping[Measure, float]] | None = None, noise: float = 0.0, straggler: float = 0.0,
) -> list[TrainMeasured]:  # fmt: skip
    drawn = random.Random(3)
    return [
        TrainMeasured(
            run="stalls-1", measure=measure, repeat=number, examples=32, bytes=bytes, straggler=straggler,
            seconds={
                who: values[measure] * (1 + noise * drawn.gauss(0, 1)) + (slower or {}).get(who, {}).get(measure, 0.0)
                for who in workers
            },
            steps=dict.fromkeys(workers, 20),
        )
        for number, values in enumerate(repeats, 1) for measure in MEASURES
    ]  # fmt: skip


def one(measured: list[TrainMeasured]) -> Stalls:
    (found,) = by_kind(measured, {name: "k80" for each in measured for name in each.seconds})
    return found


@given(some.lists(MEASURED, min_size=1, max_size=6))
def test_the_parts_sum_to_the_step_whatever_was_measured(repeats: list[Mapping[Measure, float]]) -> None:
    found = one(told(repeats))
    assert math.isclose(sum(each.seconds.mean for each in (found.compute, *found.parts)), found.step.mean)
    assert [each.name for each in found.parts] == [*STALLS]
    assert found.compute.name == COMPUTE
    if len(repeats) < 3:
        assert not found.stalled, "nothing is claimed of fewer than three repeats"


@pytest.mark.parametrize(
    ("made", "where"),
    [
        ({"own": 0.05}, "serialisation"), ({"network": 0.05}, "network"), ({"shared": 0.05}, "contention"),
        ({"warm": 0.15, "cold": 0.15}, "preparation"), ({"warm": 0.01, "cold": 0.15}, "fetch"), ({}, ""),
    ],
)  # fmt: skip
def test_a_stall_lands_in_its_part_and_where_there_is_none_none_is_claimed(made: dict[str, float], where: str) -> None:
    found = one(told([step(**made)] * 5, noise=0.01))
    assert [each.name for each in found.stalled] == ([where] if where else [])
    said = advice(found, servers=1)
    assert where in said if where else said.startswith("No stall is larger")
    if where == "contention":
        assert "--ps 2" in said


@pytest.mark.parametrize(("kind", "faster"), [("k80/n1-standard-4", "A faster GPU"), ("cpu/n1-standard-4", "A GPU")])
def test_where_a_step_is_computing_a_gpu_is_advised_or_a_faster_one(kind: str, faster: str) -> None:
    (found,) = by_kind(told([step()] * 5), {"worker-1": kind})
    assert advice(found).endswith(f"% of a step is computing. {faster} would help.")


def test_nothing_is_advised_before_there_are_repeats_enough_to_claim_anything() -> None:
    measured = told([step(network=0.05)] * 3)
    assert advice(one([each for each in measured if each.repeat < 2])) == ""
    assert "network" in advice(one(measured))


def test_a_part_that_takes_long_and_is_too_uneven_to_be_claimed_is_told_to_be_measured_again() -> None:
    """Seen of a disk that others used: most of a step in the mean, and one repeat of four without any of it."""
    found = one(told([step(cold=each) for each in (0.1, 0.4, 0.5, 0.9)]))
    assert not found.stalled
    assert re.search(r"but fetch took 7\d% of a step on average, but varied between repeats: use", advice(found))


def test_of_twenty_steps_without_a_stall_at_most_one_has_one_by_chance() -> None:
    drawn = random.Random(7)
    claims = 0
    for _ in range(200):
        repeats = [{name: value * (1 + 0.05 * drawn.gauss(0, 1)) for name, value in step().items()} for _ in range(5)]
        claims += bool(one(told(repeats)).stalled)
    assert claims <= 0.05 * 200


def test_who_reads_no_file_has_nothing_to_fetch() -> None:
    found = one(told([step(cold=0.5)] * 3, bytes=0))
    assert found.parts[-1].seconds == Estimate(0.0, 0.0, 0.0)


def test_data_that_fit_into_memory_are_fetched_once() -> None:
    assert "first pass only" in advice(one(told([step(cold=0.5)] * 3, bytes=10**8)))


@given(MEASURED)
def test_without_a_change_the_measured_step_is_predicted(measured: Mapping[Measure, float]) -> None:
    repeat = one(told([measured] * 3)).repeats[0]
    if measured["R5"] >= measured["R4"]:
        assert math.isclose(seconds(repeat, Change()), measured["S5"], rel_tol=1e-9)
        assert math.isclose(seconds(repeat, Change(cache=1.0)), measured["S4"], rel_tol=1e-9)


@given(some.floats(0, 1), some.floats(0.01, 1), some.floats(0, 1), CHANGES)
def test_a_change_of_what_made_the_step_is_predicted_exactly(
    network: float, cold: float, unhidden: float, change: Change
) -> None:
    """Whatever is bigger or faster: the model says what a step made of the changed parts takes."""
    repeat = one(told([step(0.1, network=network, cold=cold, unhidden=unhidden)] * 3)).repeats[0]
    then = step(
        0.1 * change.batch / change.gpu, network=network / change.link, unhidden=unhidden,
        warm=change.batch * (0.01 / change.cores + (1 - change.cache) * (cold - 0.01) / change.disk),
    )  # fmt: skip
    if cold > 0.01:
        assert math.isclose(seconds(repeat, change), then["S4"], rel_tol=1e-6)


@given(MEASURED, some.sampled_from(("cores", "disk", "link")))
def test_no_prediction_is_shorter_than_what_is_left(measured: Mapping[Measure, float], what: str) -> None:
    """However unevenly it was measured: a step with a hundred times as much of one thing has the rest of it still."""
    repeat = one(told([measured] * 3)).repeats[0]
    after = seconds(repeat, Change(**{what: 100.0}))
    at = repeat.seconds
    rest = min(at["S3"], at["S4"], at["S5"]) - (max(at["S2"] - at["S1"], 0.0) if what == "link" else 0.0)
    assert after >= rest - 1e-9


def test_a_cache_brings_what_the_published_model_says() -> None:
    """speed = min(F, G) with F = D / (D x / C + D (1 - x) / S), where input is hidden beneath the step as in CoorDL."""
    found = one(told([step(0.05, warm=0.01, cold=0.2)] * 3))
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        fetched = 1 / (share * 0.01 + (1 - share) * 0.2)
        assert what_if(found, Change(cache=share)).seconds.mean == pytest.approx(1 / min(fetched, 1 / 0.05))


def test_a_change_comes_in_another_run_and_runs_differ_however_steady_the_measure_was() -> None:
    steady = one(told([step(network=0.05)] * 5))
    same, faster = what_if(steady, Change()), what_if(steady, Change(link=2.0))
    assert same.seconds.low < 0.9 * same.seconds.mean < 1.1 * same.seconds.mean < same.seconds.high
    assert same.times == Estimate(1.0, 1.0, 1.0)
    assert faster.seconds.half / faster.seconds.mean > same.seconds.half / same.seconds.mean, "the model may be off"
    assert faster.times.low < faster.times.mean < faster.times.high
    noisy = what_if(one(told([step(network=0.05)] * 5, noise=0.1)), Change(link=2.0))
    assert noisy.seconds.half > faster.seconds.half


def test_repeats_on_a_slower_machine_make_no_stall_less_sure() -> None:
    """All of a repeat takes longer: a stall that stands out of each repeat stands out of all of them."""
    levels = (1.0, 1.4, 0.9, 1.3, 1.1)
    found = one(told([{name: level * value for name, value in step(network=0.05).items()} for level in levels]))
    (stall,) = found.stalled
    assert stall.name == "network"
    assert stall.seconds.half < 0.01 * stall.seconds.mean < 0.1 * found.compute.seconds.half


@pytest.mark.parametrize(("change", "said"), [({"cache": 1.5}, "must be a share"), ({"link": 0.0}, "must be a factor")])
def test_a_change_that_cannot_be_is_refused(change: dict[str, float], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        Change(**change)


def test_equal_vms_that_differ_are_named() -> None:
    four = ("worker-1", "worker-2", "worker-3", "worker-4")
    alike = told([step()] * 5, four, noise=0.01)
    kinds = dict.fromkeys(four, "k80")
    assert apart(alike, kinds) == []
    slow = dict.fromkeys(MEASURES, 0.03)
    measured = told([step()] * 5, four, noise=0.01, slower={"worker-3": slow})
    (found,) = apart(measured, kinds)
    assert (found.worker, found.what) == ("worker-3", "computing")
    assert found.share == pytest.approx(0.3, rel=0.1)
    far = {name: 0.03 for name in MEASURES if name not in ("S0", "S1")}
    assert [each.what for each in apart(told([step()] * 5, four, noise=0.01, slower={"worker-2": far}), kinds)] == [
        "network"
    ]
    other = {**kinds, "worker-3": "p100"}
    assert apart(measured, other) == [], "another GPU may be as slow as it is"


@pytest.mark.parametrize("seconds", [0.0, 5e-324])
def test_a_worker_that_says_that_its_steps_take_no_time_counts_not(seconds: float) -> None:
    kinds = {"worker-0": "cpu", "worker-1": "cpu"}
    measured = [
        TrainMeasured(run="m", measure=measure, repeat=repeat, seconds=dict.fromkeys(kinds, seconds), steps={})
        for measure in MEASURES for repeat in range(1, 5)
    ]  # fmt: skip
    assert by_kind(measured, kinds) == []
    assert apart(measured, kinds) == []


def test_workers_that_came_or_went_count_where_they_took_all_measures() -> None:
    measured = told([step(), step(0.2), step()], ("worker-1", "worker-2"), straggler=0.02)
    lost = [
        TrainMeasured(**{**each.values, "time": each.time, "seconds": {"worker-1": each.seconds["worker-1"]}})
        if each.repeat == 2 and each.measure == "S4" else each
        for each in measured if (each.repeat, each.measure) != (3, "R5")
    ]  # fmt: skip
    found = one(lost)
    assert len(found.repeats) == 2
    assert found.repeats[1].seconds["S0"] == 0.2
    assert straggler(measured) == Estimate(0.02, 0.02, 0.02)
