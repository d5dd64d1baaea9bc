"""How the chief hears of the load of parameter servers other than its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.processes import until
from tests.runtime.machine_room import free_ports
from transient_magics.protocol.agent_commands import Assignment
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server import server_load
from transient_magics.runtime.parameter_server.chief.chief import Chief
from transient_magics.runtime.parameter_server.server_load import Load, own_load, report

SPEC = RunSpec("run-1", 100, token="secret")


class Room:
    """A chief that listens, as often as it is started, and what it heard of whom."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.heard = RunFolder(folder), dict[str, list[Load]]()
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        monkeypatch.setattr(server_load, "EVERY", 0.05)

    def assignment(self, index: int) -> Assignment:
        servers = ("127.0.0.1:1", "127.0.0.1:2")
        return Assignment("run-1", "ps", f"ps-{index}", "127.0.0.1", servers, self.address, index)

    @contextlib.asynccontextmanager
    async def chief(self) -> AsyncIterator[None]:
        chief = Chief(self.folder, SPEC, self.assignment(0))
        chief._state._alarm.add_load = lambda name, load: self.heard.setdefault(name, []).append(load)
        host, port = self.address.split(":")
        server = await asyncio.start_server(chief._serve_connection, host, int(port))
        yield
        server.close()
        await server.wait_closed()


async def test_another_parameter_server_tells_its_load_to_every_chief_that_it_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(tmp_path, monkeypatch)
    reporting = asyncio.create_task(report(room.assignment(1), "secret", threads=1))
    async with room.chief():
        await until(lambda: len(room.heard.get("ps-1", [])) > 2)
    before = len(room.heard["ps-1"])
    async with room.chief():
        await until(lambda: len(room.heard["ps-1"]) > before + 2)
    reporting.cancel()
    first, last = room.heard["ps-1"][0], room.heard["ps-1"][-1]
    assert first.cores == 1
    assert 0 < last.share_since(first) < 1.5
    assert first.share_since(last) == 0, "of another process, which began later"


async def test_who_does_not_know_the_runs_token_is_not_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(tmp_path, monkeypatch)
    async with room.chief():
        reporting = asyncio.create_task(report(room.assignment(1), "another", threads=0))
        await asyncio.sleep(0.5)
        reporting.cancel()
    assert room.heard == {}


@pytest.mark.slow
def test_a_busy_process_says_so() -> None:
    before, until = own_load(1), time.monotonic() + 0.4
    while time.monotonic() < until:
        pass
    busy = own_load(1).share_since(before)
    before = own_load(1)
    time.sleep(0.4)
    assert own_load(1).share_since(before) < min(0.2, busy)
