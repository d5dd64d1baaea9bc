"""When the chief looks how far its run is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from transient_magics.protocol import chief_messages as messages
from transient_magics.protocol.agent_commands import Assignment
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.files.checkpoints import Saved
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server.chief import chief as chiefs
from transient_magics.runtime.parameter_server.chief import events as events
from transient_magics.runtime.parameter_server.variables import Keeper

SPEC = RunSpec("run-1", 100, token="secret")
ASSIGNMENT = Assignment("run-1", "ps", "ps-0", "127.0.0.1", ("127.0.0.1:2222",), "127.0.0.1:2221")


async def test_a_worker_that_tells_the_last_step_is_told_to_stop_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chiefs, "_TICK", 3600.0)  # what follows does not wait for it
    monkeypatch.setattr(Keeper, "parameters", 650)  # it counts those of a graph, and none is built here
    monkeypatch.setattr(Keeper, "step", lambda _: 100)
    monkeypatch.setattr(Keeper, "save", lambda _: Saved(100, "model.ckpt-100", 0.0, 0))  # the last step has one follow
    chief = chiefs.Chief(RunFolder(tmp_path), SPEC, ASSIGNMENT)
    chief._handle(events.Prepared(40))
    watching = asyncio.create_task(chief._watch())
    server = await asyncio.start_server(chief._serve_connection, "127.0.0.1")
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(messages.Join(token="secret", name="worker-0", accelerator="").encoded)
    writer.write(messages.Stepping(loss=1.0, samples=0, speed=0.0, gpu=False).encoded)
    told = list[messages.ToWorker | messages.Refused | None]()

    async def hear(until: type) -> None:
        while not told or not isinstance(told[-1], until):
            told.append(messages.read_to_worker(await reader.readline()))

    async with asyncio.timeout(60):
        await hear(messages.Joined)
        writer.write(messages.Metrics(line={"step": 99}).encoded)
        writer.write(messages.Metrics(line={"step": 100}).encoded)
        await hear(messages.Stop)
    watching.cancel()
    writer.close()
    server.close()
