"""Files followed on a VM whose SSH server is a stock one, which allows ten sessions a connection."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from vms import Vm

from tests.processes import until


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many sessions each connection has now; what is more than ten is refused."""
    having: Counter[int] = Counter()

    def limited(name: str) -> None:
        begin = getattr(asyncssh.SSHClientConnection, name)

        async def begun(self: Any, *arguments: Any, **options: Any) -> Any:
            if having[id(self)] >= 10:
                raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "open failed")
            having[id(self)] += 1
            session = await begin(self, *arguments, **options)

            async def ends() -> None:
                await session.wait_closed()
                having[id(self)] -= 1

            session.ending = asyncio.create_task(ends())
            return session

        monkeypatch.setattr(asyncssh.SSHClientConnection, name, begun)

    limited("create_process")
    limited("start_sftp_client")
    return having


async def test_many_files_are_followed_beside_commands_and_copies(
    vm: Vm, home: Path, sessions: Counter[int], tmp_path: Path
) -> None:
    lines: Counter[int] = Counter()
    async with await vm.connect() as connection:

        async def follow(number: int) -> None:
            async with aclosing(connection.follow(f"{number}.jsonl")) as followed:
                async for _ in followed:
                    lines[number] += 1

        following = [asyncio.create_task(follow(number)) for number in range(23)]
        for number in range(23):
            (home / f"{number}.jsonl").write_text("a line\n", encoding="utf-8")
        await until(lambda: len(lines) == 23 or any(each.done() for each in following))
        assert [each for each in following if each.done()] == []
        said = await asyncio.gather(*(connection.run(f"echo {number}") for number in range(12)))
        assert said == [f"{number}\n" for number in range(12)]
        await connection.get("7.jsonl", tmp_path / "7.jsonl")
        assert len(sessions) == 8, "three files each, and no connection more than that takes"
        for each in following[:5]:
            each.cancel()
        await asyncio.wait(following[:5])
        following += [asyncio.create_task(follow(number)) for number in range(23, 28)]
        for number in range(23, 28):
            (home / f"{number}.jsonl").write_text("a line\n", encoding="utf-8")
        await until(lambda: len(lines) == 28 or any(each.done() for each in following[5:]))
        assert len(sessions) == 8, "places that are free again are taken"
    await asyncio.wait(following, timeout=30)
    assert all(each.done() for each in following), "all of them end with the connection"
    for each in following:
        if not each.cancelled():
            each.exception()
