"""The pace of a worker's steps, from a real HTTP server as the emulator's metadata server is one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.runtime.metadata_server import MetadataServer
from transient_magics.runtime.worker.gpu import Pace


async def becomes(pace: Pace, seconds: float) -> None:
    async with asyncio.timeout(60):
        while pace.seconds != pytest.approx(seconds):  # noqa: ASYNC110 - a thread of its own writes it
            await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("declared", "expected"), [(None, 0.0641), (2.0, 0.5846)])
async def test_a_worker_steps_as_its_gpu_was_measured_or_in_proportion_to_the_runs_pace(
    declared: float | None, expected: float
) -> None:
    server = MetadataServer()
    server.value = "0.0641 0.2923"
    await server.start()
    pace = Pace(declared, f"127.0.0.1:{server.port}")
    assert pace.seconds == (declared or 0.0)
    pace.start()
    await becomes(pace, expected)
    assert pace.of(0.5) == pytest.approx(expected / 2)  # a step of half the declared mini-batch
    assert pace.speed == pytest.approx(1 / 0.2923)
    server.value, server.version = "0 0", 2
    await server.stop()
    successor = MetadataServer()
    successor.value, successor.version = "0 0", 2
    await successor.start(server.port)
    await becomes(pace, declared or 0.0)
    pace.stop()
    await successor.stop()


async def test_without_such_an_attribute_only_the_declared_pace_counts() -> None:
    async def missing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(missing, "127.0.0.1", 0)
    pace = Pace(0.2, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    pace.start()
    async with asyncio.timeout(60):
        while any(thread.name == "pace" for thread in threading.enumerate()):  # noqa: ASYNC110 - threads tell nobody
            await asyncio.sleep(0.01)
    assert pace.seconds == 0.2
    server.close()
