"""Following a file on a VM: every line once, with little delay, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from vms import Vm

from transient_magics.errors import CommandError, ConnectionLostError, RemoteError
from transient_magics.remote import Connection, follow_across


async def take(lines: AsyncIterator[tuple[int, bytes]], count: int) -> list[tuple[int, bytes]]:
    async with asyncio.timeout(60):
        return [await anext(lines) for _ in range(count)]


def tails(home: Path) -> list[int]:
    """The processes that follow a file below `home`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "comm").read_text(encoding="utf-8") == "tail\n":
                found += [int(folder.name)] * ((folder / "cwd").readlink() == home)
        except OSError:  # it ended meanwhile
            continue
    return found


def told_of_changes(process: int) -> bool:
    """Whether the kernel tells it when a file changes (inotify)."""
    try:
        return any("inotify" in os.readlink(each) for each in Path(f"/proc/{process}/fd").iterdir())
    except OSError:  # it ended meanwhile
        return False


async def until_no_tail(home: Path) -> None:
    async with asyncio.timeout(60):
        while tails(home):  # noqa: ASYNC110 (a process of another program: no event comes from there)
            await asyncio.sleep(0.02)


async def test_lines_come_with_the_offset_behind_them(connection: Connection, home: Path) -> None:
    (home / "events").write_bytes(b"one\ntwo\n\nhal")
    async with aclosing(connection.follow("events")) as lines:
        assert await take(lines, 3) == [(4, b"one"), (8, b"two"), (9, b"")]
        with (home / "events").open("ab") as file:
            file.write(b"f\nnext\n")
        assert await take(lines, 2) == [(14, b"half"), (19, b"next")]
    async with aclosing(connection.follow("events", 8)) as lines:
        assert await take(lines, 3) == [(9, b""), (14, b"half"), (19, b"next")]


async def test_a_file_that_does_not_exist_yet_is_waited_for(connection: Connection, home: Path) -> None:
    async with aclosing(connection.follow("runs/run-1/events")) as lines:
        waiting = asyncio.create_task(take(lines, 1))
        async with asyncio.timeout(60):
            while not (home / "runs/run-1").exists():  # noqa: ASYNC110 (made by a process of another program)
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)  # it follows by then
        (home / "runs/run-1/events").write_bytes(b"first\n")
        assert await waiting == [(6, b"first")]


async def test_a_file_that_does_not_exist_yet_is_not_looked_for_again_and_again(
    connection: Connection, home: Path
) -> None:
    async with aclosing(connection.follow("runs/run-1/events")) as lines:
        waiting = asyncio.create_task(take(lines, 1))
        async with asyncio.timeout(60):
            while not any(map(told_of_changes, tails(home))):  # noqa: ASYNC110 (a process of another program)
                await asyncio.sleep(0.02)
        with (home / "runs/run-1/events").open("ab") as file:
            file.write(b"first\n")
        assert await waiting == [(6, b"first")]
    assert (home / "runs/run-1/events").stat().st_mode & 0o777 == 0o600


async def test_another_file_in_its_place_is_read_from_its_start(connection: Connection, home: Path) -> None:
    (home / "events").write_bytes(b"a long first line\n")
    async with aclosing(connection.follow("events")) as lines:
        assert await take(lines, 1) == [(18, b"a long first line")]
        (home / "new").write_bytes(b"other\n")
        (home / "new").rename(home / "events")
        assert await take(lines, 1) == [(6, b"other")]
    async with aclosing(connection.follow("events", 18)) as lines:
        assert await take(lines, 1) == [(6, b"other")]


async def test_a_great_many_lines_arrive_complete(connection: Connection, home: Path) -> None:
    content = b"".join(b"line %d\n" % number for number in range(100_000))
    (home / "events").write_bytes(content)
    async with aclosing(connection.follow("events")) as lines:
        arrived = await take(lines, 100_000)
    assert arrived[-1] == (len(content), b"line 99999")
    assert b"\n".join(line for _, line in arrived) + b"\n" == content


async def test_a_new_line_arrives_at_once(connection: Connection, home: Path) -> None:
    delays = []
    (home / "events").write_bytes(b"begin\n")
    async with aclosing(connection.follow("events")) as lines:
        await take(lines, 1)
        with (home / "events").open("ab", buffering=0) as file:
            for _ in range(20):
                started = time.perf_counter()
                file.write(b"line\n")
                await take(lines, 1)
                delays.append(time.perf_counter() - started)
    assert statistics.median(delays) < 0.3, "looking every second takes longer"


async def test_no_follower_is_left_behind(connection: Connection, home: Path) -> None:
    (home / "events").write_bytes(b"begin\n")
    async with aclosing(connection.follow("events")) as lines:
        await take(lines, 1)
        assert len(tails(home)) == 1
    await until_no_tail(home)


async def test_a_lost_connection_ends_the_following(start_vm: Callable[[], Awaitable[Vm]], home: Path) -> None:
    vm = await start_vm()
    (home / "events").write_bytes(b"begin\n")
    async with await vm.connect() as connection, aclosing(connection.follow("events")) as lines:
        await take(lines, 1)
        os.kill(vm.pid, signal.SIGKILL)
        with pytest.raises(ConnectionLostError):
            await take(lines, 1)


@pytest.mark.slow
async def test_no_line_is_lost_or_doubled_across_lost_connections(
    start_vm: Callable[[], Awaitable[Vm]], home: Path
) -> None:
    vm = await start_vm()
    live: list[Connection] = []

    async def connected() -> Connection:
        live.append(await vm.connect())
        return live[-1]

    async def write() -> None:
        with (home / "events").open("ab", buffering=0) as file:
            for number in range(60):
                file.write(b"line %d\n" % number)
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as tasks, aclosing(follow_across(connected, "events")) as lines:
        tasks.create_task(write())
        arrived = await take(lines, 10)
        os.kill(vm.pid, signal.SIGKILL)
        vm = await start_vm()
        arrived += await take(lines, 30)
        os.kill(vm.pid, signal.SIGKILL)
        vm = await start_vm()
        arrived += await take(lines, 20)
    assert [line for _, line in arrived] == [b"line %d" % number for number in range(60)]
    assert arrived[-1][0] == (home / "events").stat().st_size
    for connection in live:
        await connection.close()


async def test_following_ends_when_no_connection_can_be_had(vm: Vm, home: Path) -> None:
    connection = await vm.connect()

    async def connected() -> Connection:
        if connection.closed.is_set():
            raise ConnectionRefusedError("the cluster was deleted")
        return connection

    (home / "events").write_bytes(b"begin\n")
    async with aclosing(follow_across(connected, "events")) as lines:
        await take(lines, 1)
        await connection.close()
        with pytest.raises(ConnectionRefusedError):
            await take(lines, 1)


async def test_a_channel_that_is_refused_is_asked_for_again(connection: Connection, home: Path) -> None:
    refusals = [RemoteError("worker-1 refused following events: too many sessions"), CommandError("tail is not found")]

    async def connected() -> Connection:
        if refusals:
            raise refusals.pop()
        return connection

    (home / "events").write_bytes(b"begin\n")
    async with aclosing(follow_across(connected, "events")) as lines:
        assert await take(lines, 1) == [(6, b"begin")]


async def test_a_cancelled_follower_cleans_up(connection: Connection, home: Path) -> None:
    (home / "events").write_bytes(b"begin\n")
    begun = asyncio.Event()

    async def follow() -> None:
        async with aclosing(connection.follow("events")) as lines:
            async for _ in lines:
                begun.set()

    following = asyncio.create_task(follow())
    await begun.wait()
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    await until_no_tail(home)
    assert await connection.run("echo still there") == "still there\n"
