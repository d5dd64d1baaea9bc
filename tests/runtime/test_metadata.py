"""The watch for the preemption notice, against a real HTTP server."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.runtime.metadata_server import MetadataServer
from transient_magics.runtime.metadata import notice_seconds, watch_preemption


async def until_it_hangs(server: MetadataServer, polls: int = 2) -> None:
    """Until the watch has fetched the value and hangs on its second poll."""
    while server.polls < polls:  # noqa: ASYNC110 - the server is the real part here, not its counter
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)


async def notice_after(server: MetadataServer, polls: int = 2) -> float:
    """Seconds between the flip and the notice."""
    seen: list[float] = []
    watch = asyncio.create_task(watch_preemption(lambda: seen.append(time.perf_counter()), f"127.0.0.1:{server.port}"))
    await until_it_hangs(server, polls)
    flipped = time.perf_counter()
    await server.preempt()
    async with asyncio.timeout(60):
        await watch
    assert len(seen) == 1
    return seen[0] - flipped


@pytest.mark.slow
async def test_a_flip_is_seen_at_once():
    """The request that hangs when the value flips is the one that answers: no poll follows it."""
    server = MetadataServer()
    await server.start()
    polls = []
    for _ in range(20):
        before = server.polls
        await notice_after(server, before + 2)
        polls.append(server.polls - before)
        server.value = "FALSE"
    await server.stop()
    assert max(polls) <= 3


async def test_a_busy_server_is_asked_again():
    server = MetadataServer(busy=2)
    await server.start()
    assert await notice_after(server, polls=4) < 60
    await server.stop()


@pytest.mark.parametrize(("value", "seconds"), [("", 30.0), ("120", 120.0), ("5", 30.0), ("soon", 30.0), ("nan", 30.0)])
async def test_the_usable_seconds_follow_from_what_the_vm_requested(value: str, seconds: float):
    server = MetadataServer()
    server.notice = value
    await server.start()
    assert await asyncio.to_thread(notice_seconds, f"127.0.0.1:{server.port}") == seconds
    await server.stop()
    assert notice_seconds(f"127.0.0.1:{server.port}") == 30.0, "without an answer it is the usual notice"


@pytest.mark.parametrize("version", [1, 7])
async def test_the_watch_survives_a_restart_of_the_server(version: int):
    server = MetadataServer()
    await server.start()
    seen = asyncio.Event()
    watch = asyncio.create_task(watch_preemption(seen.set, f"127.0.0.1:{server.port}"))
    await until_it_hangs(server)
    await server.stop()
    await asyncio.sleep(0.2)
    successor = MetadataServer()
    successor.version = version
    await successor.start(server.port)
    await until_it_hangs(successor, 1)
    await successor.preempt()
    async with asyncio.timeout(60):
        await seen.wait()
        await watch
    await successor.stop()
