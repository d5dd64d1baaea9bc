"""A chief that is killed between telling an event and keeping what follows from it, and what its successor tells."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.runtime.machine_room import lines
from transient_magics.protocol import jsonl
from transient_magics.protocol.agent_commands import Assignment
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server.chief import events as events
from transient_magics.runtime.parameter_server.chief.chief import Chief
from transient_magics.runtime.parameter_server.chief.workers import Roster
from transient_magics.runtime.parameter_server.variables import Keeper

SPEC = RunSpec("run-1", 100, token="secret")
ASSIGNMENT = Assignment("run-1", "ps", "ps-0", "127.0.0.1", ("127.0.0.1:2222",), "127.0.0.1:2221")


class Killed(BaseException):
    """Nothing that the chief does comes after it, and nothing of it is caught."""


def told(folder: RunFolder) -> list[tuple[str, int]]:
    return [(line["kind"], line["number"]) for line in lines(folder.events) if line["kind"].startswith("worker.")]


def test_a_chief_killed_between_an_event_and_its_state_leaves_no_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    monkeypatch.setattr(Keeper, "parameters", 650)  # it counts those of a graph, and none is built here

    def killed() -> None:
        raise Killed

    async def start() -> Chief:
        chief = Chief(folder, SPEC, ASSIGNMENT)
        chief._handle(events.Prepared(40))
        return chief

    async def killed_as_a_worker_joins() -> None:
        chief = await start()
        chief._handle(events.Joined(1, "worker-1"))
        monkeypatch.setattr(chief, "_keep", killed)
        with pytest.raises(Killed):
            chief._handle(events.Stepping(1, 2.0))

    async def killed_as_it_leaves() -> None:
        chief = await start()
        chief._handle(events.Joined(1, "worker-1", number=0))
        chief._handle(events.Stepping(1, 2.0))
        assert told(folder) == [("worker.joined", 0)]
        monkeypatch.setattr(chief, "_keep", killed)
        with pytest.raises(Killed):
            chief._handle(events.Leaving(1, "revoked"))

    async def the_last_one() -> None:
        chief = await start()
        done = chief._state.handle(events.Tick(), asyncio.get_running_loop().time() + 3600)
        assert not [each for each in done if isinstance(each, events.Emit) and each.kind == "worker.left"]

    for life in (killed_as_a_worker_joins, killed_as_it_leaves, the_last_one):
        asyncio.run(life())
    assert told(folder) == [("worker.joined", 0), ("worker.left", 0)]


def test_a_line_that_a_crash_tore_was_not_told(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert Roster.after(jsonl.read(path)) == Roster()
    joined = '{"kind":"worker.joined","worker":"worker-%d","number":%d}\n'
    path.write_text(
        joined % (0, 0) + (joined % (1, 1))[:30] + "\n" + '{"kind":"train.progress","step":5}\n', encoding="utf-8"
    )
    assert Roster.after(jsonl.read(path)) == Roster({0: "worker-0"}, {0: "worker-0"})
