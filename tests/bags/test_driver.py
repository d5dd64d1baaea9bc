"""What a driver decides: jobs, places, batches, the end; whatever is lost, each job counts once."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processes import until
from transient_magics.planner.lifetimes.parametric import Bathtub
from transient_magics.protocol import layout
from transient_magics.protocol.space import parse_space
from transient_magics.works.bags import events as b
from transient_magics.works.bags.driver.decisions import Core, Lifetimes, age_hours, batch, end, job_seconds
from transient_magics.works.bags.fold import fold
from transient_magics.works.bags.policy.placement import Free, Survival
from transient_magics.works.bags.spec import BagSpec
from transient_magics.works.bags.state import BagState
from transient_magics.works.bags.surrogate.active_learning import LEAST_JUDGED

SPEC = BagSpec("bag-1", parse_space("x=0:1"), 12, surrogate="none")
REVOKED = Lifetimes(Survival.of(Bathtub(0.4137, 24.0, 0.9, 0.76)), 1.0, 0.1)  # a second is an hour


def proposed(spec: BagSpec, many: int) -> BagState:
    state = BagState(spec)
    for job in range(many):
        state = fold(state, b.BagProposed(bag=spec.name, job=job, point={"x": job / many}))
    return state


def free(*names: str, age: float = 0.0) -> list[Free]:
    return [Free(name, age) for name in names]


@given(
    seed=st.integers(0, 2**16),
    jobs=st.integers(1, 15),
    vms=st.integers(1, 5),
    spare=st.sampled_from([0.0, 0.1, 0.5]),
    surrogate=st.sampled_from(["none", "gp"]),
    policy=st.sampled_from(["reuse", "memoryless"]),
)
def test_a_bag_ends_whatever_is_lost_and_no_job_runs_twice_at_once_or_counts_twice(
    seed: int, jobs: int, vms: int, spare: float, surrogate: str, policy: str
) -> None:
    spec = replace(SPEC, jobs=jobs, spare=spare, surrogate=surrogate, policy=policy, seed=seed)
    chance, state, core = random.Random(seed), BagState(spec), Core(REVOKED)
    running: dict[str, int] = {}
    there = {f"w{number}": 20 * chance.random() for number in range(vms)}
    for _ in range(2000):
        if told := end(state):
            state = fold(state, told)
            break
        for _ in range(batch(state, vms)):
            state = fold(state, b.BagProposed(bag=spec.name, job=len(state.jobs), point={"x": chance.random()}))
        idle = [name for name in there if name not in running]
        moves = core.moves(state, [Free(name, there[name]) for name in idle])
        assert policy == "reuse" or not moves.given_up
        for name in moves.given_up:
            state = fold(state, b.BagGaveUp(bag=spec.name, vm=name))
            del there[name]
            there[f"w{vms + len(state.given_up)}"] = 0.0
        for start in moves.starts:
            assert start.vm in idle
            assert start.vm not in moves.given_up
            assert start.vm not in running
            attempt = state.jobs[start.job].attempt + 1
            state = fold(state, b.BagStarted(bag=spec.name, job=start.job, attempt=attempt, vm=start.vm, age=0.0))
            running[start.vm] = start.job
        there = {name: age + 2.0 for name, age in there.items()}
        assert running or moves.given_up, "nobody waits for anything"
        if not running:
            continue
        vm = chance.choice([*running])
        job = running.pop(vm)
        attempt = state.jobs[job].attempt
        if chance.random() < 0.3:
            why = chance.choice(["revoked", "lost"])
            state = fold(state, b.BagLost(bag=spec.name, job=job, attempt=attempt, why=why))  # type: ignore[arg-type]
        else:
            result = b.BagResult(bag=spec.name, job=job, attempt=attempt, returned={"y": 1.0}, seconds=1.5)
            state = fold(state, result)
    assert state.stopped is not None
    assert state.stopped.why == "counted"
    assert len(state.counted) == len({*state.counted}) == jobs


def test_all_jobs_are_chosen_at_once_where_nothing_is_learnt_else_as_many_as_can_be_judged() -> None:
    assert batch(BagState(SPEC), 3) == SPEC.begun == 14
    learning = replace(SPEC, jobs=200, surrogate="gp")
    assert batch(BagState(learning), 3) == LEAST_JUDGED + 3
    state = proposed(learning, 23)
    assert batch(state, 3) == 0, "some wait"


def test_jobs_that_keep_failing_end_the_bag_with_the_last_reason() -> None:
    state = proposed(replace(SPEC, retries=0), 10)
    for job in range(4):
        assert end(state) is None
        state = fold(state, b.BagStarted(bag="bag-1", job=job, attempt=1, vm="w0", age=0.0))
        state = fold(state, b.BagLost(bag="bag-1", job=job, attempt=1, why="raised", reason=f"ValueError: {job}"))
    told = end(state)
    assert told is not None
    assert (told.why, told.reason) == ("failed", "4 jobs failed, the last one: ValueError: 3")


def test_a_tolerance_of_an_output_that_no_job_returns_ends_it_with_the_name() -> None:
    state = proposed(replace(SPEC, surrogate="gp", until={"pressure": 0.1}), 1)
    state = fold(state, b.BagStarted(bag="bag-1", job=0, attempt=1, vm="w0", age=0.0))
    assert end(state) is None
    state = fold(state, b.BagResult(bag="bag-1", job=0, attempt=1, returned={"energy": 1.0}, seconds=1.0))
    told = end(state)
    assert told is not None
    assert told.reason == "--until names pressure, but the jobs return energy"


def test_short_jobs_go_to_young_vms_and_saving_points_follow_the_age_of_the_vm() -> None:
    spec = replace(SPEC, job_seconds=2.0, save_seconds=0.01)
    core, state = Core(REVOKED), proposed(spec, 2)
    state = fold(state, b.BagStarted(bag="bag-1", job=1, attempt=1, vm="w0", age=0.0))
    state = fold(state, b.BagSaved(bag="bag-1", job=1, attempt=1, done=1.8))
    state = fold(state, b.BagLost(bag="bag-1", job=1, attempt=1, why="revoked"))
    starts = {start.job: start for start in core.moves(state, [Free("young", 0.0), Free("stable", 8.0)]).starts}
    assert {job: start.vm for job, start in starts.items()} == {0: "stable", 1: "young"}
    (young,) = core.moves(proposed(spec, 1), free("young")).starts
    assert len(young.saves) > len(starts[0].saves)
    assert all(0 < each < 2 for each in young.saves)
    assert Core(Lifetimes()).moves(state, free("any")).starts[0].saves == (), (
        "where nobody is revoked nothing is planned"
    )


def test_a_vm_that_is_too_old_for_any_job_is_given_up_once_and_a_stable_one_kept_for_an_hour() -> None:
    spec = replace(SPEC, job_seconds=2.0)
    core, state = Core(REVOKED), proposed(spec, spec.begun)
    found = core.moves(state, [Free("old", 23.5), Free("stable", 8.0)])
    assert (found.given_up, [start.vm for start in found.starts]) == (("old",), ["stable"])
    state = fold(state, b.BagGaveUp(bag="bag-1", vm="old", age=23.5))
    again = core.moves(state, free("old", age=23.6))
    assert (again.given_up, [start.vm for start in again.starts]) == ((), ["old"]), "it is there all the same"
    memoryless = Core(REVOKED).moves(proposed(replace(spec, policy="memoryless"), spec.begun), free("old", age=23.5))
    assert (memoryless.given_up, len(memoryless.starts)) == ((), 1)
    for job in range(spec.begun):  # all of them are under way
        state = fold(state, b.BagStarted(bag="bag-1", job=job, attempt=1, vm=f"w{job}", age=0.0))
    assert core.moves(state, [Free("spare", 8.0, idle=0.9)]).given_up == ()
    assert core.moves(state, [Free("spare", 8.0, idle=1.0)]).given_up == ("spare",)


def test_no_vm_is_given_up_for_one_that_would_come_as_old_as_it_is() -> None:
    spec = replace(SPEC, job_seconds=2.0)
    told_nothing = replace(REVOKED, boot_hours=0.0)
    state, at_once = proposed(spec, spec.begun), replace(REVOKED, boot_hours=1e-6)
    assert Core(at_once).moves(state, free("old", age=23.0)).given_up == ("old",)
    core = Core(told_nothing)
    assert core.moves(state, free("first", age=3.0)).given_up == ()
    core.moves(state, [Free("fresh", 0.01, fresh=True)])
    assert core.moves(state, free("old", age=23.5)).given_up == ("old",), "a fresh one comes at once"
    slow = Core(at_once)
    slow.moves(state, [Free("fresh", 5.0, fresh=True)])
    assert slow.moves(state, free("old", age=23.0)).given_up == ()


@pytest.mark.parametrize(("limit", "told"), [(None, 0.0), (600.0, 610.0), (0.5, 10.5)])
def test_a_job_is_told_when_its_process_ends_that_does_not_hear_of_its_time_out(
    tmp_path: Path, limit: float | None, told: float
) -> None:
    pytest.importorskip("distributed")
    from transient_magics.works.bags.driver.driver import Driver

    spec = replace(SPEC, timeout_seconds=limit)
    for name, content in ((layout.BAG, spec.to_dict()), (layout.LIFETIMES, REVOKED.to_dict())):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / layout.CELL).write_text("def job(x): return {'y': x}", encoding="utf-8")
    driver, submitted = Driver(tmp_path), list[dict[str, Any]]()
    driver.state = proposed(spec, 1)
    here = SimpleNamespace(workers={"a": SimpleNamespace(name="worker-0", address="tls://a")}, born={})
    client = SimpleNamespace(submit=lambda *given, **how: submitted.append(how))
    driver._begin(0, "worker-0", (), cast("Any", here), cast("Any", client))
    assert submitted[0]["most"] == told


async def test_a_job_whose_vm_is_taken_goes_on_from_what_it_saved_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    from distributed.core import Status

    from transient_magics.works.bags.driver import driver as drivers

    spec = replace(SPEC, jobs=1, spare=0.0)
    for name, content in ((layout.BAG, spec.to_dict()), (layout.LIFETIMES, Lifetimes().to_dict())):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / layout.CELL).write_text("def job(x): return {'y': x}", encoding="utf-8")
    submitted = list[dict[str, Any]]()

    class Client:
        """A client of a Dask cluster whose tasks never end."""

        def __init__(self, *_: object, **__: object) -> None:
            """Connect to nothing."""

        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *_: object) -> None:
            """Close nothing."""

        def submit(self, function: Any, *arguments: object, **options: object) -> Any:
            names = inspect.signature(function).parameters
            named = {name: value for name, value in options.items() if name in names}
            submitted.append(inspect.signature(function).bind(*arguments, **named).arguments)
            return SimpleNamespace(done=lambda: False, release=lambda: None)

    def worker(name: str, address: str) -> Any:
        return SimpleNamespace(name=name, address=address, status=Status.running)

    monkeypatch.setattr(drivers, "Client", Client)
    monkeypatch.setattr(drivers, "security", lambda _: None)
    driver = drivers.Driver(tmp_path)
    driver.state = proposed(spec, 1)
    here: Any = SimpleNamespace(
        address="tls://scheduler", workers={"tls://a": worker("worker-0", "tls://a")}, departed=set(), born={}
    )
    over = asyncio.Event()
    driving = asyncio.create_task(driver.until(here, over))
    await until(lambda: len(submitted) == 1)
    for done, data in ((1.0, b"half of it"), (2.0, b"most of it")):
        driver.saved(0, 1, done, 0.1, data)
    here.departed.add("tls://a")
    here.workers = {"tls://b": worker("worker-1", "tls://b")}
    await until(lambda: len(submitted) == 2)
    over.set()
    await driving
    assert [(task["attempt"], task["done"], task["state"]) for task in submitted] == [
        (1, 0.0, b""),
        (2, 2.0, b"most of it"),
    ]


def test_what_a_job_takes_is_what_was_declared_else_what_three_have_taken() -> None:
    state = proposed(SPEC, 4)
    for job, seconds in enumerate((1.0, 9.0, 2.0)):
        assert job_seconds(state) is None
        state = fold(state, b.BagStarted(bag="bag-1", job=job, attempt=1, vm="w0", age=0.0))
        state = fold(state, b.BagResult(bag="bag-1", job=job, attempt=1, returned={"y": 1.0}, seconds=seconds))
    assert job_seconds(state) == 2.0
    assert job_seconds(replace(state, spec=replace(SPEC, job_seconds=7.0))) == 7.0


def test_lifetimes_are_written_and_read_and_ages_are_in_the_time_of_the_vms() -> None:
    assert Lifetimes.from_dict(REVOKED.to_dict()) == REVOKED
    assert Lifetimes.from_dict(Lifetimes().to_dict()) == Lifetimes()
    with pytest.raises(ValueError, match="survival"):
        Lifetimes.from_dict({"survival": {"ages": [0, 1], "shares": [0.5, 0.1]}})
    assert age_hours(100.0, 110.0, REVOKED) == 10
    assert age_hours(0.0, 110.0, REVOKED) == 0
