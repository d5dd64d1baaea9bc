"""When a bag begins, goes on with another driver, and ends; and what of it the journal adds up to."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.panels.stories import declaration
from transient_magics.controller import artifacts, on_vm
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.works import Tick
from transient_magics.errors import ConnectionLostError, ForeignError, JournalError
from transient_magics.journal import ClusterState, Event, Journal, events, fold, replay
from transient_magics.protocol import layout
from transient_magics.protocol.checks import is_name
from transient_magics.protocol.space import parse_space
from transient_magics.works.bags import artifacts as of_bags
from transient_magics.works.bags import conduct
from transient_magics.works.bags import events as b
from transient_magics.works.bags import events as e
from transient_magics.works.bags.conduct import Bags, _Follower
from transient_magics.works.bags.decisions import MOST_DRIVERS, Begin, End, EndDask, Stop, dask_name, decide
from transient_magics.works.bags.spec import BagSpec
from transient_magics.works.bags.state import DeclaredBag
from transient_magics.works.dask.conduct import Dasks
from transient_magics.works.dask.events import DaskBegan, DaskClosed
from transient_magics.works.dask.spec import DaskSpec
from transient_magics.works.dask.state import DaskState
from transient_magics.works.jobs.spec import JobSpec

Block = list[tuple[int, bytes]]
SPEC = BagSpec("bag-1", parse_space("x=0:1"), 2, spare=0.0, max_cost=1.0, max_hours=2.0)


def state_of(*told: Event) -> ClusterState:
    first = [
        events.ClusterDeclared(spec=declaration("many", 2).to_dict()),
        events.WorkDeclared(of="bag", work="bag-1", spec=SPEC.to_dict()),
    ]
    return replay(replace(each, seq=seq, time=seq * 10**9) for seq, each in enumerate([*first, *told], 1))


def dask(number: int, *, over: bool = False) -> list[Event]:
    name = f"bag-1-{number}"
    spec = DaskSpec(name, 2, bag="bag-1")
    told: list[Event] = [
        e.BagBegan(bag="bag-1", dask=name),
        events.WorkDeclared(of="dask", work=name, spec=spec.to_dict()),
    ]
    return [*told, events.WorkEnded(work=name, of="dask", state="failed", reason="its VM is gone")] if over else told


def decided(*told: Event, cost: float = 0.0, now: float = 100.0) -> object:
    state = state_of(*told)
    return decide(state.of(DeclaredBag)["bag-1"], state, cost, now)


COMPUTED: list[b.BagEvent] = [
    b.BagProposed(bag="bag-1", job=0, point={"x": 0.0}),
    b.BagProposed(bag="bag-1", job=1, point={"x": 1.0}),
    *(b.BagStarted(bag="bag-1", job=job, attempt=1, vm="worker-0", age=0.0) for job in (0, 1)),
    *(b.BagResult(bag="bag-1", job=job, attempt=1, returned={"y": 1.0}, seconds=1.0) for job in (0, 1)),
    b.BagStopped(bag="bag-1", why="counted"),
]


def test_it_begins_and_another_driver_takes_the_place_of_one_that_is_lost() -> None:
    assert decided() == Begin("bag-1-d1")
    assert decided(*dask(1)) is None
    lost = dask(1, over=True)
    assert decided(*lost, now=5.5) is None, "not at once"
    assert decided(*lost) == Begin("bag-1-d2")
    state = state_of(*lost)
    assert decide(state.of(DeclaredBag)["bag-1"], state, 0.0, 100.0, arriving=True) is None, (
        "not before all is here that it told"
    )
    half = dask(2)[:1]
    assert decided(*lost, *half) == Begin("bag-1-2"), "its controller was killed before it had declared it"
    always = [event for number in range(1, MOST_DRIVERS + 1) for event in dask(number, over=True)]
    assert decided(*always, now=1000.0) == End(
        "failed", f"its driver was lost {MOST_DRIVERS} times, the last time: its VM is gone"
    )


def test_its_dask_clusters_have_names_that_nothing_else_has() -> None:
    def job(name: str) -> Event:
        return events.WorkDeclared(of="job", work=name, spec=JobSpec(name, "true").to_dict())

    early = replay([job("bag-1-d1"), events.WorkDeclared(of="bag", work="bag-1", spec=SPEC.to_dict())])
    assert decide(early.of(DeclaredBag)["bag-1"], early, 0.0, 100.0) == Begin("bag-1-d2")
    assert decided(job("bag-1-d1")) == Begin("bag-1-d1"), "a bag reserves these names"
    assert decided(*dask(1)[:1], job("bag-1-1")) == Begin("bag-1-d2")
    assert is_name(dask_name("a" * 40, 20))


def test_it_ends_when_its_driver_says_so_and_its_vms_are_free() -> None:
    assert decided(*dask(1), *COMPUTED, now=12.0) is None, "the scheduler ends by itself"
    assert decided(*dask(1), *COMPUTED) == EndDask("bag-1-1", "its bag is over")
    ended = events.WorkEnded(work="bag-1-1", of="dask", state="finished", reason="its bag is over")
    assert decided(*dask(1), *COMPUTED, ended) == End("finished", "all 2 results are complete")


def test_it_is_stopped_and_has_limits_of_its_own() -> None:
    assert decided(*dask(1), cost=1.0) == Stop(
        "its cost of $1.00 has reached its limit of $1.00 (--max-cost)", state="finished"
    )
    assert decided(*dask(1), now=7300.0) == Stop("it has reached its limit of 2 hours (--max-hours)", state="finished")
    asked = events.WorkStopping(work="bag-1", of="bag", reason="it was stopped")
    assert decided(*dask(1), asked) == EndDask("bag-1-1", "it was stopped")
    ended = events.WorkEnded(work="bag-1-1", of="dask", state="finished", reason="it was stopped")
    assert decided(*dask(1), asked, ended) == End("stopped", "it was stopped")
    assert decided(asked) == End("stopped", "it was stopped"), "before it began"
    limit = events.WorkStopping(
        work="bag-1", of="bag", reason="its cost of $1.00 has reached its limit of $1.00 (--max-cost)", state="finished"
    )
    assert decided(*dask(1), limit, ended) == End("finished", limit.reason)


def test_the_journal_adds_up_what_drivers_tell_and_refuses_what_makes_no_sense() -> None:
    state = state_of(*dask(1), *COMPUTED)
    bag = state.of(DeclaredBag)["bag-1"]
    assert (bag.phase, bag.dasks, len(bag.state.counted)) == ("running", ("bag-1-1",), 2)
    assert state.has_work_without_servers
    assert state.active(DeclaredBag) == [bag]
    assert bag.reported_at == 10 * 10**9 + 10**9
    with pytest.raises(JournalError, match="unknown job 7"):
        fold(state_of(*dask(1)), b.BagStarted(bag="bag-1", job=7, attempt=1, vm="worker-0", age=0.0))
    over = state_of(*dask(1), *COMPUTED, events.WorkEnded(work="bag-1", of="bag", state="finished", reason="done"))
    assert over.active(DeclaredBag) == []
    assert over.of(DeclaredBag)["bag-1"].over


def test_another_driver_is_heard_though_the_clock_of_the_one_before_was_ahead(
    tmp_path: Path, recorder: Recorder
) -> None:
    bags = Bags(tmp_path, recorder, lambda vm: None, {})
    moment = time.time_ns()
    bag = lambda: recorder.state.of(DeclaredBag)["bag-1"]  # noqa: E731
    for event in dask(1, over=True):
        recorder.record(event)
    ahead = replace(COMPUTED[0], time=moment + 60 * 10**9)
    assert bags.record("bag-1", ahead)
    for event in dask(2):
        recorder.record(event)
    for place, each in enumerate(COMPUTED[:-1], 1):
        for _ in range(2):  # by the controller that follows on this one, once more
            assert bags.record("bag-1", replace(each, time=moment + place))
    assert len(bag().state.results) == 2
    assert bag().reported_at == moment + len(COMPUTED) - 1


async def test_only_arrays_that_count_and_each_surrogate_once_are_brought(tmp_path: Path) -> None:
    (tmp_path / "bags" / "bag-1").mkdir(parents=True)
    now, brought = time.time_ns(), list[str]()

    class Recording:
        state = state_of(*dask(1), *COMPUTED[:5])

        def record(self, event: Event) -> bool:
            try:
                self.state = fold(self.state, replace(event, seq=self.state.seq + 1))
            except JournalError:
                return False
            return True

        def note(self, source: str, what: str) -> None:
            """Nobody reads it."""

    result = b.BagResult(bag="bag-1", job=0, attempt=1, returned={"y": 1.0}, seconds=1.0, digest="0" * 64)
    learnt = b.BagLearnt(bag="bag-1", batch=0, results=1, model="gp")
    told = [
        *(replace(result, arrays=f"{number}.npz") for number in range(9)),  # it has one already
        *(replace(result, job=7, arrays=f"{number}.npz") for number in range(9)),  # nobody has proposed it
        *(replace(result, job=1, arrays=f"second-{number}.npz") for number in range(9)),
        *[learnt] * 9,
    ]

    class Connection:
        async def follow_blocks(self, path: str, offset: int = 0, *, allowance: object) -> AsyncIterator[Block]:
            for number, each in enumerate(told):
                yield [(number, json.dumps({**each.to_dict(), "time": now + number}).encode())]
            raise ForeignError("that was all")

        async def exists(self, path: str) -> bool:
            return True

        async def get(self, path: str, local: Path, *, most: int) -> None:
            brought.append(path.rpartition("/")[2])
            local.write_bytes(b"")

    async def connection() -> Connection:
        return Connection()

    link = SimpleNamespace(connection=connection)
    recording, stopped = Recording(), list[tuple[str, str]]()
    dasks = SimpleNamespace(request_end=lambda dask, *, reason: stopped.append((dask, reason)))
    bags = Bags(tmp_path, cast("Any", recording), lambda vm: cast("Any", link), {"dask": cast("Any", dasks)})
    await _Follower(bags, "bag-1", "bag-1-1", "ps-0").conduct()
    assert brought == ["second-0.npz", "surrogate.npz", "surrogate.json"]
    assert recording.state.of(DeclaredBag)["bag-1"].phase == "failed", (
        "more of it is not taken, and nobody would hear of its end"
    )
    assert stopped == [("bag-1-1", recording.state.of(DeclaredBag)["bag-1"].reason)]


async def test_the_last_surrogate_comes_though_the_connection_was_lost_while_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_vm, "TRY_AGAIN_SECONDS", 0.0)
    (tmp_path / "bags" / "bag-1").mkdir(parents=True)
    taken, tries = list[tuple[bytes, bytes]](), list[str]()

    def taking(packed: Path, header: Path) -> None:
        taken.append((header.read_bytes(), packed.read_bytes()))

    monkeypatch.setattr(of_bags, "check_surrogate", taking)
    learnt = {**b.BagLearnt(bag="bag-1", batch=0, results=1, model="gp").to_dict(), "time": time.time_ns()}

    class Connection:
        async def follow_blocks(self, path: str, offset: int = 0, *, allowance: object) -> AsyncIterator[Block]:
            if not offset:
                yield [(1, json.dumps(learnt).encode())]
            raise ForeignError("that was all")

        async def exists(self, path: str) -> bool:
            return True

        async def get(self, path: str, local: Path, *, most: int) -> None:
            tries.append(path)
            if len(tries) == 2:
                raise ConnectionLostError("The connection to ps-0 was lost")
            local.write_bytes(path.rpartition("/")[2].encode())

    async def connection() -> Connection:
        return Connection()

    state = state_of(*dask(1), *COMPUTED[:5])
    recorder = SimpleNamespace(state=state, record=lambda event: True, note=lambda source, what: None)
    link, dasks = SimpleNamespace(connection=connection), SimpleNamespace(request_end=lambda *_, **__: None)
    bags = Bags(tmp_path, cast("Any", recorder), lambda vm: cast("Any", link), {"dask": cast("Any", dasks)})
    await _Follower(bags, "bag-1", "bag-1-1", "ps-0").conduct()
    assert taken == [(b"surrogate.json", b"surrogate.npz")]


async def test_what_a_bag_returns_waits_for_room_on_the_disk_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, noted = [0, 0, 2**40], list[str]()
    monkeypatch.setattr(artifacts, "room", lambda folder: left.pop(0))
    monkeypatch.setattr(of_bags, "check_arrays", lambda path: None)
    monkeypatch.setattr(on_vm, "TRY_AGAIN_SECONDS", 0.0)
    told = b.BagResult(
        bag="bag-1", job=1, attempt=1, returned={"y": 1.0}, seconds=1.0, arrays="1.npz",
        digest=hashlib.sha256(b"arrays").hexdigest(),
    )  # fmt: skip

    class Connection:
        async def follow_blocks(self, path: str, offset: int = 0, *, allowance: object) -> AsyncIterator[Block]:
            yield [(1, json.dumps({**told.to_dict(), "time": time.time_ns()}).encode())]
            raise ForeignError("that was all")

        async def exists(self, path: str) -> bool:
            return True

        async def get(self, path: str, local: Path, *, most: int) -> None:
            local.write_bytes(b"arrays")

    async def connection() -> Connection:
        return Connection()

    state = state_of(*dask(1), *COMPUTED[:5])
    recorder = SimpleNamespace(state=state, record=lambda event: True, note=lambda source, what: noted.append(what))
    link, dasks = SimpleNamespace(connection=connection), SimpleNamespace(request_end=lambda *_, **__: None)
    bags = Bags(tmp_path, cast("Any", recorder), lambda vm: cast("Any", link), {"dask": cast("Any", dasks)})
    await _Follower(bags, "bag-1", "bag-1-1", "ps-0").conduct()
    assert ["no room" in each for each in noted] == [True, True, False], "and it is said as long as it is so"
    assert not left
    assert (tmp_path / layout.BAGS / "bag-1" / layout.RESULTS / "1.npz").read_bytes() == b"arrays"


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """With a bag whose driver is on ps-0, and has told nothing yet."""
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, ClusterState())
        vm = events.VmRequested(
            vm="ps-0", role="ps", slot=0, zone="us-central1-a", accelerator="", machine_type="n1-standard-1",
            provisioning_model="standard", hourly=0.1, on_demand_hourly=0.2,
        )  # fmt: skip
        for event in (
            events.ClusterDeclared(spec=declaration("many", 2).to_dict()), vm,
            events.VmRunning(vm="ps-0", address="10.0.0.2"), events.VmReady(vm="ps-0"),
            events.WorkDeclared(of="bag", work="bag-1", spec=SPEC.to_dict()),
        ):  # fmt: skip
            recorder.record(event)
        yield recorder


def test_one_whose_declaration_cannot_be_read_is_told_of(tmp_path: Path, recorder: Recorder) -> None:
    folder = tmp_path / layout.BAGS / "bag-2"
    folder.mkdir(parents=True)
    (folder / layout.BAG).write_text("{", encoding="utf-8")
    Bags(tmp_path, recorder, lambda vm: None, {}).declare_waiting()
    assert recorder.state.trouble.startswith("The declaration of bag-2 cannot be read: ")
    assert "bag-2" not in recorder.state.of(DeclaredBag)


async def test_a_full_disk_is_told_and_the_bag_begins_once_there_is_room(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bags = Bags(tmp_path, recorder, lambda vm: None, {"dask": Dasks(tmp_path, recorder, lambda vm: None)})
    full = True

    def write(path: Path, content: str) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        path.write_text(content, encoding="utf-8")

    monkeypatch.setattr(conduct, "write_atomically", write)
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, recorder.changed.set, recorder.note)
        for _ in range(3):
            bags.tick(Tick(tasks, time.time(), dict))
        assert recorder.trouble == "bag-1 cannot begin: No space left on device"
        assert not recorder.state.of(DeclaredBag)["bag-1"].dasks
        full = False
        bags.tick(Tick(tasks, time.time(), dict))
    assert not recorder.trouble
    assert [*recorder.state.of(DaskState)] == [*recorder.state.of(DeclaredBag)["bag-1"].dasks] == ["bag-1-d1"]


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
async def test_no_other_driver_begins_and_no_bag_ends_while_what_the_last_one_told_still_comes(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    monkeypatch.setattr(on_vm, "TRY_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(conduct, "_SILENT_SECONDS", 0.2)
    monkeypatch.setattr(of_bags, "check_arrays", lambda path: None)
    free = 0
    monkeypatch.setattr(artifacts, "room", lambda folder: free)
    results = tmp_path / "bags" / "bag-1" / "results"
    results.parent.mkdir(parents=True)
    told = [
        replace(each, arrays=f"{each.job}.npz", digest=hashlib.sha256(b"arrays").hexdigest())
        if isinstance(each, b.BagResult)
        else each
        for each in COMPUTED[: -1 if stopped else None]
    ]

    class Connection:
        async def follow_blocks(self, path: str, offset: int = 0, *, allowance: object) -> AsyncIterator[Block]:
            for number, each in enumerate(told[offset:], offset + 1):
                yield [(number, json.dumps({**each.to_dict(), "time": time.time_ns()}).encode())]
            await asyncio.get_running_loop().create_future()

        async def exists(self, path: str) -> bool:
            return True

        async def get(self, path: str, local: Path, *, most: int) -> None:
            local.write_bytes(b"arrays")

    async def connection() -> Connection:
        return Connection()

    link = SimpleNamespace(connection=connection)
    for event in (
        *dask(1), DaskBegan(dask="bag-1-1", vm="ps-0"),
        DaskClosed(dask="bag-1-1", reason="its bag is over"),
        *([events.WorkStopping(work="bag-1", of="bag", reason="it was "
                                                              "stopped")] if stopped else []),
        events.WorkEnded(work="bag-1-1", of="dask", state="finished", reason="its bag is over"),
    ):  # fmt: skip
        recorder.record(event)
    bags = Bags(tmp_path, recorder, lambda vm: cast("Any", link), {"dask": Dasks(tmp_path, recorder, lambda vm: None)})
    bag = lambda: recorder.state.of(DeclaredBag)["bag-1"]  # noqa: E731
    async with asyncio.TaskGroup() as group, asyncio.timeout(30):
        tasks = Tasks(group, recorder.changed.set, recorder.note)

        async def looks(over: Callable[[], bool]) -> None:
            while not over():
                bags.tick(Tick(tasks, time.time() + 100, dict))
                await asyncio.sleep(0.01)

        since = time.monotonic()
        await looks(lambda: time.monotonic() - since > 1)
        assert "disk has no room for results of bag-1" in recorder.trouble
        assert bag().dasks == ("bag-1-1",)
        assert not bag().over
        free = 2**40
        await looks(lambda: bag().over)
        tasks.cancel_all()
    assert bag().phase == ("stopped" if stopped else "finished")
    assert bag().dasks == ("bag-1-1",)
    assert sorted(each.name for each in results.iterdir()) == ["0.npz", "1.npz"]
    assert len(bag().state.counted) == 2
