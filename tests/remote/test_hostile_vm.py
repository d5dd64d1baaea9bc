"""A VM that wants to harm whoever copies from it and listens to it: each attack over real SSH, and what it comes to."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import stat
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import asyncssh
import pytest
from ssh_server import serve
from vms import Vm

from transient_magics.errors import ForeignError, RemoteError, RoomError
from transient_magics.protocol import jsonl
from transient_magics.protocol.checks import LONGEST_LINE
from transient_magics.remote import Allowance, Connection, follow_across, generate_key, transfer
from transient_magics.remote.following import Splitter

NAMES = (b"../../../.bashrc", b"/etc/cron.d/evil", b"a/b", b"a\\b", b"a\0b", b"a\nb", b"\xff", b"\x1b[2J", b"x" * 300)


class Lying(asyncssh.SFTPServer):
    """Lists a file under whatever name it likes."""

    name = b""

    async def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
        regular = asyncssh.SFTPAttrs(permissions=stat.S_IFREG | 0o600, size=4)
        yield asyncssh.SFTPName(self.name, attrs=regular)

    def lstat(self, path: bytes) -> os.stat_result:
        return os.stat_result((stat.S_IFREG | 0o600, 0, 0, 1, 0, 0, 4, 0, 0, 0))


@asynccontextmanager
async def a_vm(folder: Path, sftp: type[asyncssh.SFTPServer] = asyncssh.SFTPServer) -> AsyncIterator[Connection]:
    """A connection to a VM whose home is in `folder`."""
    (folder / "vm").mkdir(exist_ok=True)
    acceptor, host_key = await serve(folder / "vm", generate_key(folder / "key"), sftp=sftp)
    try:
        async with await Vm(folder / "vm", folder / "key", acceptor.get_port(), host_key).connect() as connection:
            yield connection
    finally:
        acceptor.close()


async def test_no_name_that_a_vm_lists_leads_out_of_its_folder(tmp_path: Path) -> None:
    target = tmp_path / "here" / "runs" / "run-1"
    target.mkdir(parents=True)
    for name in NAMES:
        listing = type("Listing", (Lying,), {"name": name})
        async with a_vm(tmp_path, listing) as connection:
            with pytest.raises(RemoteError, match=r"is not copied|Unable to decode"):
                await connection.get_tree("run-1", target)
    assert [path for path in (tmp_path / "here").rglob("*") if path.is_file()] == []
    assert not (tmp_path / ".bashrc").exists()


async def test_links_are_not_taken_and_not_followed_here(tmp_path: Path) -> None:
    secret, home = tmp_path / "secret", tmp_path / "vm"
    secret.write_text("mine", encoding="utf-8")
    home.mkdir()
    (home / "link").symlink_to(secret)
    os.mkfifo(home / "fifo")
    (home / "tree").mkdir()
    (home / "tree" / "good").write_text("good", encoding="utf-8")
    (home / "tree" / "link").symlink_to(secret)
    async with a_vm(tmp_path) as connection:
        for name in ("link", "fifo"):
            with pytest.raises(ForeignError, match="not a regular file"):
                await connection.get(name, tmp_path / "got")
        assert await connection.get_tree("tree", tmp_path / "copied") == ["good"]
        out = tmp_path / "out"
        out.mkdir()
        (tmp_path / "led").mkdir()
        (tmp_path / "led" / "astray").symlink_to(out)
        (home / "deep" / "astray").mkdir(parents=True)
        (home / "deep" / "astray" / "file").write_text("x", encoding="utf-8")
        with pytest.raises(ForeignError, match="would be outside of its folder"):
            await connection.get_tree("deep", tmp_path / "led")
    assert not (tmp_path / "got").exists()
    assert not (tmp_path / "got").is_symlink()
    assert list(out.iterdir()) == []
    (tmp_path / "metrics.jsonl").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic link"):
        jsonl.append_lines(tmp_path / "metrics.jsonl", b"{}\n")
    assert secret.read_text(encoding="utf-8") == "mine"


class Endless(asyncssh.SFTPServer):
    """Lists entries of one kind without end, and in each folder another one."""

    entry, together = b"", True

    async def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
        kind = {b"folder": stat.S_IFDIR, b"link": stat.S_IFLNK}.get(self.entry, stat.S_IFREG)
        for number in itertools.count() if self.together else range(1):
            yield asyncssh.SFTPName(b"%d" % number + self.entry, attrs=asyncssh.SFTPAttrs(permissions=kind | 0o600))


@pytest.mark.parametrize(
    ("entry", "together", "said"),
    [
        (b"folder", False, "more than 64 levels of folders"),
        (b"folder", True, "more than 500 files and folders"),
        (b"link", True, "more than 500 files and folders"),
        (b".part", True, "more than 500 files and folders"),
    ],
)
async def test_a_listing_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: bytes, together: bool, said: str
) -> None:
    monkeypatch.setattr(transfer, "MOST_FILES", 500)
    listing = type("Listing", (Endless,), {"entry": entry, "together": together})
    async with asyncio.timeout(60), a_vm(tmp_path, listing) as connection:
        with pytest.raises(ForeignError, match=said):
            await connection.get_tree("run-1", tmp_path / "here")


@pytest.mark.slow
async def test_there_is_a_limit_to_what_a_vm_may_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "vm"
    (home / "many").mkdir(parents=True)
    for number in range(4):
        (home / "many" / str(number)).write_text("x", encoding="utf-8")
    (home / "large").write_bytes(bytes(20))
    monkeypatch.setattr(transfer, "MOST_FILES", 3)
    monkeypatch.setattr(transfer, "LARGEST_FILE", 10)
    async with a_vm(tmp_path) as connection:
        with pytest.raises(ForeignError, match="more than 3 files"):
            await connection.get_tree("many", tmp_path / "got")
        with pytest.raises(ForeignError, match="has 20 bytes"):
            await connection.get("large", tmp_path / "got")
        with pytest.raises(ForeignError, match="printed more than 8 MiB"):
            await connection.run("yes")
        assert await connection.run("echo still here") == "still here\n"


async def test_no_file_of_a_vm_fills_the_disk_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vm").mkdir()
    (tmp_path / "vm" / "large").write_bytes(bytes(3 * 2**20))
    (tmp_path / "vm" / "small").write_text("x", encoding="utf-8")
    free = [transfer.KEPT_FREE + 2**20]

    def disk(_: Path) -> tuple[int, int, int]:
        return shutil._ntuple_diskusage(2**50, 0, free.pop(0) if len(free) > 1 else free[0])

    monkeypatch.setattr(transfer.shutil, "disk_usage", disk)
    monkeypatch.setattr(transfer, "_BLOCK", 2**20)
    got = tmp_path / "got"
    got.mkdir()
    async with a_vm(tmp_path) as connection:
        with pytest.raises(RoomError, match=r"large on .* has 3,145,728 bytes, and this machine's disk has no"):
            await connection.get("large", got / "large")
        await connection.get("small", got / "small")
        free[:] = [transfer.KEPT_FREE + each * 2**20 for each in (3, 3, 1)]  # something else takes of it meanwhile
        with pytest.raises(RoomError, match="no room"):
            await connection.get("large", got / "large")
        with pytest.raises(ForeignError, match="has 1 bytes"):
            await connection.get("small", got / "more", most=0)
    assert [path.name for path in got.iterdir()] == ["small"]


async def test_a_line_without_an_end_is_passed_over(tmp_path: Path) -> None:
    home = tmp_path / "vm"
    home.mkdir()
    (home / "lines").write_bytes(b"first\n" + b"x" * (32 * LONGEST_LINE) + b"\nlast\n")
    async with a_vm(tmp_path) as connection:
        found: list[tuple[int, bytes]] = []
        async for offset, line in connection.follow("lines"):
            found.append((offset, line))
            if line == b"last":
                break
        assert found == [(6, b"first"), ((home / "lines").stat().st_size, b"last")]
        with pytest.raises(ForeignError, match="more than 1 MiB"):
            async for _ in connection.follow("lines", allowance=Allowance(2**20)):
                pass


async def test_lines_that_are_taken_one_by_one_leave_the_event_loop_its_turns(tmp_path: Path) -> None:
    (tmp_path / "vm").mkdir()
    (tmp_path / "vm" / "lines").write_bytes(b"\n" * 100_000 + b"last\n")
    turn, lines_of_turn = 0, Counter[int]()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with a_vm(tmp_path) as connection:
        counting = asyncio.create_task(count_turns())
        async with aclosing(connection.follow("lines")) as lines:
            async for _, line in lines:
                lines_of_turn[turn] += 1
                if line == b"last":
                    break
        counting.cancel()
    assert lines_of_turn.total() == 100_001
    assert max(lines_of_turn.values()) <= 2_000


async def test_a_file_that_is_replaced_again_and_again_brings_no_more_than_one(tmp_path: Path) -> None:
    home = tmp_path / "vm"
    home.mkdir()
    content, taken = b"a line of a VM\n" * 1000, 0
    (home / "lines").write_bytes(content)

    async def follow(connection: Connection) -> None:
        nonlocal taken
        async for _, line in connection.follow("lines", allowance=Allowance(10 * len(content))):
            taken += len(line) + 1
            if taken % len(content) == 0:
                (home / "new").write_bytes(content)
                (home / "new").rename(home / "lines")

    async with asyncio.timeout(60), a_vm(tmp_path) as connection:
        with pytest.raises(ForeignError, match="the limit for a VM"):
            await follow(connection)
    assert 9 * len(content) <= taken <= 11 * len(content)


async def test_what_a_vm_may_bring_is_counted_over_all_who_follow_it(tmp_path: Path) -> None:
    """A VM that breaks each following is given no more than one that breaks none."""
    home, taken = tmp_path / "vm", 0
    home.mkdir()
    content = b"a line of a VM\n" * 1000
    (home / "lines").write_bytes(content)
    allowance = Allowance(10 * len(content))
    async with asyncio.timeout(60), a_vm(tmp_path) as connection:

        async def connected() -> Connection:
            return connection

        async def follow_once() -> None:
            nonlocal taken
            async with aclosing(follow_across(connected, "lines", allowance=allowance)) as lines:
                async for offset, line in lines:
                    taken += len(line) + 1
                    if offset == len(content):
                        return

        for _ in range(10):
            await follow_once()
        with pytest.raises(ForeignError, match="the limit for a VM"):
            await follow_once()
    assert 9 * len(content) <= taken <= 10 * len(content)


def test_lines_are_cut_in_linear_time() -> None:
    def looked_at(size: int) -> int:
        """How many bytes are copied while a line of that size comes in small blocks."""
        lines, copied = Splitter(2**30), 0
        block = b"x" * 1000
        for _ in range(size // 1000):
            copied += sum(1 for _ in lines.feed(block))
        assert lines.pending == size
        return len(lines._parts)

    assert looked_at(2_000_000) == 2 * looked_at(1_000_000)  # parts are kept as they come, and joined once
    lines = Splitter(10)
    assert list(lines.feed(b"a\nb")) == [(2, b"a")]
    assert list(lines.feed(b"c\n" + b"y" * 11)) == [(3, b"bc")]
    assert list(lines.feed(b"y\n\nz\n")) == [(13, None), (1, b""), (2, b"z")]
    assert (lines.passed_over, lines.pending) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "begin", ["echo x", "printf 99999999999999999999999999", "yes 1 | tr -d '\\n'", "echo 100; echo line", "echo -5"]
)
async def test_a_vm_that_does_not_say_from_where_it_reads(
    tmp_path: Path, begin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transient_magics.remote.following._SCRIPT", begin + "; true {folder}{path}{offset}")
    async with a_vm(tmp_path) as connection:
        following = connection.follow("lines", allowance=Allowance(2**20))
        with pytest.raises(RemoteError):
            await asyncio.wait_for(anext(following), 60)
