"""Bags: what may be declared, what of a driver's lines is let in, and what they add up to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.protocol.outputs import MOST_PRINTED, checked_values, jobs_of
from transient_magics.protocol.space import parse_space
from transient_magics.works.bags import events as b
from transient_magics.works.bags.fold import fold, replay
from transient_magics.works.bags.spec import BagSpec, parse_until
from transient_magics.works.bags.state import BagState

NOW = 1_760_000_000 * 10**9
SPACE = parse_space("density=0.3:0.9 temperature=0.8:1.6")


def spec(**more: Any) -> BagSpec:
    return BagSpec(**{"name": "bag-1", "space": SPACE, "jobs": 3, "spare": 0.3, **more})


def proposed(job: int, density: float = 0.5) -> b.BagProposed:
    return b.BagProposed(bag="bag-1", job=job, point={"density": density, "temperature": 1.0})


def started(job: int, attempt: int = 1, vm: str = "worker-0") -> b.BagStarted:
    return b.BagStarted(bag="bag-1", job=job, attempt=attempt, vm=vm, age=3600.0)


def lost(job: int, attempt: int = 1, why: Any = "revoked") -> b.BagLost:
    return b.BagLost(bag="bag-1", job=job, attempt=attempt, why=why)


def result(job: int, attempt: int = 1, pressure: float = 1.0, **more: float) -> b.BagResult:
    values = {"pressure": pressure, "pressure_error": 0.1, **more}
    return b.BagResult(bag="bag-1", job=job, attempt=attempt, returned=values, seconds=60.0)


def line(event: b.BagEvent, **changes: Any) -> bytes:
    return json.dumps({**event.to_dict(), "time": NOW, **changes}).encode()


def test_what_a_driver_may_say_for_ever_is_kept_once() -> None:
    state = replay(spec(), [proposed(0), started(0), result(0)])
    learnt = b.BagLearnt(bag="bag-1", batch=0, results=1, model="gp", judged=1)
    known = fold(state, learnt)
    for _ in range(3):
        assert fold(known, replace(learnt, judged=0)) is known
    state = replay(spec(), [proposed(0)])
    for attempt in range(1, 200):
        state = fold(fold(state, started(0, attempt)), replace(lost(0, attempt), printed=f"{attempt}"))
    said = state.jobs[0].printed
    assert len(said) < 50
    assert list(said.items())[-1] == (199, "199")


@given(
    st.integers(1, 10_000),
    st.floats(0, 1),
    st.sampled_from(["gp", "ensemble", "none"]),
    st.dictionaries(st.sampled_from(["pressure", "energy"]), st.floats(1e-6, 1e6)),
    st.integers(0, 2**31 - 1),
)
def test_a_declaration_is_read_as_it_was_written(
    jobs: int, spare: float, surrogate: Any, until: dict[str, float], seed: int
) -> None:
    declared = spec(jobs=jobs, spare=spare, surrogate=surrogate, until={} if surrogate == "none" else until, seed=seed)
    assert BagSpec.from_dict(json.loads(json.dumps(declared.to_dict()))) == declared
    assert declared.begun >= jobs
    assert declared.job_seed(7) == declared.job_seed(7) != declared.job_seed(8)


def test_so_many_jobs_are_begun_that_none_is_waited_for() -> None:
    assert [jobs_of(200, 0.1), jobs_of(3, 0.1), jobs_of(10, 0.0), jobs_of(10, 0.3)] == [220, 4, 10, 13]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"space": ()}, "a bag needs parameters"),
        ({"space": parse_space("seed=1:9:int")}, "seed is reserved"),
        ({"space": parse_space("solvent=water,oil")}, "solvent has choices that are not numbers"),
        ({"surrogate": "none", "until": {"": 0.1}}, "only a bag with a surrogate can reach it"),
        ({"until": {"": 0.1, "pressure": 0.1}}, "a number without a name is for the only output"),
        ({"until": {"pressure": 0.0}}, "must be greater than 0"),
        ({"jobs": 0}, "jobs: must be from 1"),
        ({"spare": 1.5}, "spare: must be from 0"),
        ({"policy": "hope"}, "policy: must be one of reuse, memoryless"),
        ({"name": "Bag 1"}, "name: 'Bag 1' is not a valid name"),
    ],
)
def test_what_cannot_be_declared_is_refused_with_its_field(wrong: dict[str, Any], why: str) -> None:
    values = {"name": "bag-1", "space": SPACE, "jobs": 3, **wrong}
    with pytest.raises(ValueError, match=why):
        BagSpec.from_dict({**values, "space": [vars_of(each) for each in values["space"]]})


def vars_of(dimension: Any) -> dict[str, Any]:
    return {name: getattr(dimension, name) for name in dimension.__slots__}


def test_a_tolerance_is_a_number_or_one_for_each_output() -> None:
    assert parse_until("0.01") == {"": 0.01}
    assert parse_until(" pressure = 0.02, energy=0.01") == {"pressure": 0.02, "energy": 0.01}
    for wrong in ("", "0", "-1", "nan", "inf", "x", "pressure=", "0.1,0.2", "a=1,a=2", "a=1,2", "1,a=2", "a b=1"):
        with pytest.raises(ValueError, match=r"."):
            parse_until(wrong)
    assert spec(until={"": 0.1}).tolerances(["pressure"]) == {"pressure": 0.1}
    with pytest.raises(ValueError, match="name the output of --until"):
        spec(until={"": 0.1}).tolerances(["pressure", "energy"])
    with pytest.raises(ValueError, match="--until names energie, but the jobs return pressure"):
        spec(until={"energie": 0.1}).tolerances(["pressure"])


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"a_error": 1.0}, {"a": 1.0, "a_error": -1.0}, {"not a name": 1.0},
        dict.fromkeys(map("a{}".format, range(99)), 1.0),
    ],
)  # fmt: skip
def test_what_a_job_may_not_return(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"."):
        checked_values(wrong)


def test_a_drivers_line_is_let_in_as_it_was_told() -> None:
    for event in (proposed(0), started(0), lost(0), result(0)):
        heard = b.from_driver(line(event), "bag-1", 0, NOW)
        assert heard.values == event.values
        assert heard.time == NOW


@pytest.mark.parametrize(
    "said",
    [
        line(proposed(0), bag="bag-2"), line(proposed(0), time=2 * NOW), line(proposed(0), kind="work.ended"),
        line(proposed(0), kind="cluster.declared", spec={}), line(proposed(0), kind=["bag.proposed"]),
        line(proposed(0), job=-1), line(proposed(0), point={"../up": 1}), line(proposed(0), point={"a": {"b": 1}}),
        line(proposed(0), point={f"a{each}": 1 for each in range(99)}),
        line(proposed(0), predicted={"p": [1.0, -1.0]}), line(proposed(0), predicted={"p": [1.0]}),
        line(started(0), attempt=0), line(started(0), vm="../../x"), line(started(0), age=-1.0),
        line(lost(0), why="fate"), line(lost(0), reason="x" * 5000),
        line(result(0), returned={"p": "1"}), line(result(0), returned={}), line(result(0), returned={"p": [1.0]}),
        line(result(0)).replace(b"60.0", b"NaN"), line(result(0)).replace(b"60.0", b"1e999"),
        line(result(0), arrays="../../etc/passwd"), line(result(0), arrays="a/b.npz"), line(result(0), bytes=2**40),
        line(result(0), digest="z" * 64), b"", b"[]", b"{", b"\xff", b'{"kind":"bag.result"}',
    ],
    ids=lambda said: said[-60:].decode(errors="replace"),
)  # fmt: skip
def test_whatever_else_a_driver_says_is_refused(said: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (many reasons, one way out)
        b.from_driver(said, "bag-1", NOW, NOW)


def test_a_bag_from_its_first_job_to_its_end() -> None:
    events: list[b.BagEvent] = [proposed(each) for each in range(4)]
    events += [started(0), started(1, vm="worker-1"), lost(0), result(1), started(0, 2), result(0, 2), started(2)]
    state = replay(spec(), events)
    assert [job.phase for job in state.jobs.values()] == ["done", "done", "running", "waiting"]
    assert state.results == (1, 0)
    assert state.interruptions == 1
    assert state.outputs == ("pressure",)
    state = fold(state, started(3, vm="worker-2"))
    state = fold(state, result(3))
    assert state.enough
    state = fold(state, b.BagStopped(bag="bag-1", why="counted"))
    assert state.jobs[2].phase == "skipped"
    assert fold(state, result(2)) is state, "after the end nothing counts"
    assert [point["density"] for point, _ in state.points()] == [0.5] * 3


def test_the_first_result_of_a_job_wins_whichever_attempt_it_is_of() -> None:
    state = replay(spec(), [proposed(0), started(0), lost(0, why="lost"), started(0, 2), result(0, 1, pressure=7.0)])
    assert state.jobs[0].result
    assert state.jobs[0].result.returned["pressure"] == 7.0
    assert fold(state, result(0, 2, pressure=8.0)) is state


def test_revocations_never_count_as_failures_and_a_jobs_own_faults_do() -> None:
    state = replay(spec(retries=1), [proposed(0)])
    for attempt in range(1, 20):
        state = fold(fold(state, started(0, attempt)), lost(0, attempt))
    assert (state.jobs[0].phase, state.jobs[0].failures) == ("waiting", 0)
    for attempt in (20, 21):
        state = fold(fold(state, started(0, attempt)), lost(0, attempt, why="memory"))
    assert (state.jobs[0].phase, state.jobs[0].interruptions) == ("failed", 19)
    assert state.to_propose == spec().begun, "a job that failed for good is made up for"


def test_what_was_saved_on_the_vm_of_a_lost_driver_is_safe_no_more() -> None:
    def saved(attempt: int, done: float) -> b.BagSaved:
        return b.BagSaved(bag="bag-1", job=0, attempt=attempt, done=done)

    state = replay(spec(), [proposed(0), started(0), saved(1, 500.0), lost(0)])
    assert state.jobs[0].done == 500.0
    state = fold(state, started(0, 2))
    assert state.jobs[0].done == 0.0
    state = replay(
        spec(), [proposed(0), started(0), saved(1, 500.0), lost(0), started(0, 2), saved(2, 100.0), lost(0, 2)]
    )
    assert state.jobs[0].done == 100.0, "or a time-out would count what is computed again"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (proposed(2), "the next job must be 1, not 2"),
        (proposed(0, density=0.6), "job 0 was already proposed with another point"),
        (proposed(1, density=0.1), "the point of job 1 is outside of the space"),
        (started(1), "unknown job 1"),
        (started(0, 3), "the next attempt of job 0 must be 2, not 3"),
        (started(0, 2), "job 0 already runs on worker-0"),
        (result(0, 2), "attempt 2 of job 0 has not started"),
        (b.BagStopped(bag="bag-1", why="counted"), "the bag has only 0 of 3 results"),
        (b.BagLearnt(bag="bag-1", batch=1, results=1, model="gp"), "cannot have 1 results: the bag has 0"),
    ],
)
def test_what_cannot_follow_is_refused(event: b.BagEvent, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fold(replay(spec(), [proposed(0), started(0)]), event)


def test_other_outputs_than_those_of_the_first_result_are_refused() -> None:
    state = replay(spec(), [proposed(0), proposed(1), started(0), started(1), result(0)])
    with pytest.raises(ValueError, match="job 1 returned pressure, energy, but the first job returned pressure"):
        fold(state, result(1, energy=2.0))


_EVENTS = st.one_of(
    st.builds(proposed, st.integers(0, 6)),
    st.builds(started, st.integers(0, 5), st.integers(1, 4), st.sampled_from(["worker-0", "worker-1"])),
    st.builds(lost, st.integers(0, 5), st.integers(1, 4), st.sampled_from(["revoked", "lost", *b.OWN_FAULTS])),
    st.builds(result, st.integers(0, 5), st.integers(1, 4), st.floats(-10, 10)),
    st.builds(
        b.BagSaved,
        bag=st.just("bag-1"),
        job=st.integers(0, 5),
        attempt=st.integers(1, 4),
        done=st.floats(0, 99),
        seconds=st.floats(0, 9),
    ),
    st.sampled_from([b.BagStopped(bag="bag-1", why=why) for why in ("counted", "asked")]),
)


@given(st.lists(_EVENTS, max_size=60))
def test_whatever_comes_in_whatever_order_results_are_counted_once(events: list[b.BagEvent]) -> None:
    state = BagState(spec())
    for event in [proposed(each) for each in range(4)] + events:
        before = state
        try:
            state = fold(state, event)
        except ValueError:
            continue
        assert state.results[: len(before.results)] == before.results, "what counts goes on counting"
        for number in before.results:
            assert state.jobs[number].result is before.jobs[number].result
        assert fold_again(state, event) == state, "what comes twice changes nothing"
    assert len(set(state.results)) == len(state.results)
    assert len(state.counted) <= 3
    assert len(state.jobs) <= spec().begun + sum(job.phase == "failed" for job in state.jobs.values())
    assert not (state.over and (state.running or state.waiting))


def fold_again(state: BagState, event: b.BagEvent) -> BagState:
    try:
        return fold(state, event)
    except ValueError:
        return state


def test_what_attempts_printed_stays_with_their_job_and_is_bounded() -> None:
    state = replay(spec(), [
        proposed(0), started(0), replace(lost(0, why="raised"), printed="no such "
                                                                        "place"), started(0, 2), lost(0, 2),
        started(0, 3), replace(result(0, 3), printed="all is well"),
    ])  # fmt: skip
    assert state.jobs[0].printed == {1: "no such place", 3: "all is well"}
    said = {"printed": "x" * MOST_PRINTED}
    assert b.from_driver(line(lost(0), **said), "bag-1", NOW, NOW).to_dict()["printed"] == said["printed"]
    with pytest.raises(ValueError, match="the output has 2001 characters"):
        b.from_driver(line(lost(0), printed="x" * 2001), "bag-1", NOW, NOW)


def test_a_driver_gives_up_vms_without_a_job_of_the_policy_of_reuse_and_no_more_than_there_are_jobs() -> None:
    def gave_up(vm: str) -> b.BagGaveUp:
        return b.BagGaveUp(bag="bag-1", vm=vm, age=80_000.0)

    state = replay(spec(), [proposed(0), started(0), gave_up("worker-1"), gave_up("worker-1")])
    assert state.given_up == ("worker-1",)
    with pytest.raises(ValueError, match="because job 0 runs on it"):
        fold(state, gave_up("worker-0"))
    with pytest.raises(ValueError, match="the policy memoryless does not allow"):
        replay(spec(policy="memoryless"), [gave_up("worker-1")])
    many = replay(spec(), [gave_up(f"worker-{number}") for number in range(spec().begun)])
    with pytest.raises(ValueError, match=f"after {spec().begun} others"):
        fold(many, gave_up("worker-99"))
