"""Supervision of one role, with real processes: what it does when they keep ending or cannot be started."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import virtual_time
from transient_magics.protocol.agent_commands import Assign, Assignment, Stop
from transient_magics.protocol.vm_events import AgentLine, ProcessGaveUp, line_fields
from transient_magics.runtime.agent import supervise
from transient_magics.runtime.agent.agent import Agent
from transient_magics.runtime.agent.starting import Program, spawn
from transient_magics.runtime.agent.supervise import RoleProcess
from transient_magics.runtime.process_record import RoleRecord, lock_file

PLACE = "127.0.0.1:1"
DECLARATION = {"name": "run-1", "train_steps": 1, "token": "t"}


class Supervised:
    """A worker that waits for a chief that never comes, and what is reported about it."""

    def __init__(self, root: Path) -> None:
        self.reports: list[tuple[str, Mapping[str, Any]]] = []
        assignment = Assignment("run-1", "worker", "worker-1", "127.0.0.1", (PLACE,), PLACE)
        self.role = RoleProcess(root, assignment, lambda line: self.reports.append((line.kind, line_fields(line))))
        self.role.folder.logs.mkdir(parents=True)

    def declare(self) -> None:
        (self.role.folder.path / "run.json").write_text(json.dumps(DECLARATION), encoding="utf-8")

    async def until(self, kind: str) -> Mapping[str, Any]:
        async with asyncio.timeout(60):
            while True:
                for each, values in self.reports:
                    if each == kind:
                        return values
                await asyncio.sleep(0.02)

    async def claimed(self, pid: int) -> None:
        """Until the process has said that it is the role."""
        async with asyncio.timeout(60):
            place = lock_file(self.role.folder.logs, "worker-1")
            while (known := RoleRecord.read(place)) is None or known.pid != pid:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.fixture
def supervised(tmp_path: Path) -> Supervised:
    return Supervised(tmp_path)


@pytest.mark.slow
async def test_a_role_that_keeps_ending_is_given_up_and_said(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_PAUSES", (0.0, 0.0))
    supervised.role.start()  # without the run's declaration it cannot go on
    line_fields = await supervised.until("process.gave_up")
    assert (line_fields["run"], line_fields["role"], line_fields["name"]) == ("run-1", "worker", "worker-1")
    assert "the declaration of the run cannot be read" in line_fields["said"]
    assert "\n" not in line_fields["said"]
    assert [kind for kind, _ in supervised.reports].count("process.exited") == 3
    assert not supervised.role.pid_file.exists()


def test_a_role_that_ran_for_long_is_started_again_after_a_short_pause_however_often_it_ended(
    supervised: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifetimes = [120.0] * 20
    started_at = list[float]()
    ended_at = list[float]()

    class Crashing:
        """A process that ends with an error."""

        pid = 4_000_000

        async def code(self) -> int:
            return 1

    def start(*_: object) -> Crashing:
        started_at.append(asyncio.get_running_loop().time())
        return Crashing()

    async def live(*_: object) -> None:
        """Live for two minutes, twenty times, and for a second afterwards."""
        await asyncio.sleep(lifetimes.pop() if lifetimes else 1.0)
        ended_at.append(asyncio.get_running_loop().time())

    async def supervise_until_it_is_given_up() -> None:
        given_up = asyncio.Event()

        def report(line: AgentLine) -> None:
            if isinstance(line, ProcessGaveUp):
                given_up.set()

        virtual_clock = asyncio.get_running_loop().time
        monkeypatch.setattr(supervise, "time", SimpleNamespace(monotonic=virtual_clock, time=time.time))
        RoleProcess(tmp_path, supervised.role.assignment, report).start()
        await given_up.wait()

    monkeypatch.setattr(supervise, "spawn", start)
    monkeypatch.setattr(supervise, "start_time", lambda _: 1)
    monkeypatch.setattr(supervise, "wait_for_end", live)
    virtual_time.run(supervise_until_it_is_given_up())
    pauses = [start - end for start, end in zip(started_at[1:], ended_at, strict=False)]
    assert len(started_at) > 20, "it ended twenty times and was not given up"
    assert max(pauses[:20]) <= 0.5
    assert max(pauses[20:]) > 2, "one that ends soon after each start waits longer each time"


async def test_a_role_that_cannot_be_started_is_tried_again_once_it_can(supervised: Supervised) -> None:
    supervised.declare()
    supervised.role.pid_file.mkdir()  # there is no writing to it
    supervised.role.start()
    line_fields = await supervised.until("process.exited")
    assert line_fields["code"] is None
    assert "could not be started" in line_fields["tail"]
    supervised.role.pid_file.rmdir()
    running = (await supervised.until("process.started"))["pid"]
    assert json.loads(supervised.role.pid_file.read_text(encoding="utf-8"))["pid"] == running == supervised.role.pid
    await supervised.role.end()
    assert not supervised.role.pid_file.exists()


async def test_a_role_that_can_never_be_started_is_given_up_and_leaves_no_process(
    supervised: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_PAUSES", (0.0,))
    supervised.declare()
    supervised.role.pid_file.mkdir()
    supervised.role.start()
    assert "could not be started" in (await supervised.until("process.gave_up"))["said"]
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if str(tmp_path).encode() in line]


class AgentDiesError(BaseException):
    """Nothing of the agent is carried out after this."""


@pytest.mark.slow
async def test_what_an_agent_started_when_it_died_is_found_and_not_started_twice(
    supervised: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first dies before it knows the process, and so does the next, which looks before that is on record."""
    supervised.declare()
    programs: list[Program] = []

    def dying(*given: Any) -> Program:
        programs.append(spawn(*given))
        raise AgentDiesError

    async def nobody(_: RoleProcess) -> None:
        """The process, which has just been started, has not said anything yet."""

    monkeypatch.setattr(supervise, "spawn", dying)
    monkeypatch.setattr(RoleProcess, "_find_running", nobody)
    for _ in range(2):
        supervised.role.start()
        assert supervised.role._supervision is not None
        with pytest.raises(AgentDiesError):
            await supervised.role._supervision
    ends = {asyncio.create_task(asyncio.to_thread(each._process.wait)): each.pid for each in programs}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)  # one of the two found the other there
    (left,) = [pid for task, pid in ends.items() if not task.done()]
    await supervised.claimed(left)
    monkeypatch.undo()
    agent = Agent(tmp_path)
    await agent._carry_out(Assign.of(supervised.role.assignment, ()))
    (role,) = agent._roles.values()
    async with asyncio.timeout(60):
        while role.pid is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert role.pid == left
    await agent._carry_out(Stop(run="run-1"))
    await asyncio.wait(ends)


async def test_what_a_dead_agent_started_ends_when_the_run_was_over_before_it_was_there(supervised: Supervised) -> None:
    supervised.declare()
    given = supervised.role.assignment
    late = spawn(given.role, given.name, supervised.role.folder, given.arguments())
    assert await asyncio.to_thread(late._process.wait) == 1
    assert "worker-1 of run-1 is no longer requested" in supervised.role.log.read_text(encoding="utf-8")
