"""Follow a file on a VM across lost connections: its lines, then each new one.

The VM's own `tail` watches the file (with inotify, so with almost no delay); this module turns its
bytes into lines with offsets. An offset is always behind a complete line. It can be stored, and a
later follower continues from it without losing or repeating a line. Lines longer than 1 MiB are
skipped.

Lines come in blocks, and the event loop has a turn after each block: a file of many short lines
cannot keep the other tasks of the process from running.

A `Splitter` turns bytes into whole lines, in linear time and bounded memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import asyncssh

from ..errors import CommandError, ForeignError, HostKeyError, RemoteError
from ..protocol.backoff import backoff
from ..protocol.checks import LONGEST_LINE
from .failures import explained, lost

_AGAIN = (b"has been replaced", b"file truncated", b"has become inaccessible")
# Failures in a row, each within seconds, before following is given up.
_FAILURES = 20
_QUICK_SECONDS = 10.0
MOST_LINES = 1000
"""Maximum number of lines in a block: some callers parse, fold and write each of them."""
_CHUNK = 64 * 2**10

Block = list[tuple[int, bytes]]
"""Lines of a file, at least one, each as (offset behind the line, line)."""

# The script first prints the offset from which it reads. It ends when its input ends: on request,
# or when the peer is gone. It makes a missing file, because tail never uses inotify for a file that
# is missing at its start. Without inotify (some file systems; too many watches), tail polls every
# second, or as often as -s requests, which not every tail supports.
_SCRIPT = """
export LC_ALL=C; mkdir -p {folder}
[ -e {path} ] || (umask 077; : >>{path}) 2>/dev/null
offset={offset}; size=$(wc -c <{path} 2>/dev/null) || size=0
[ "$size" -ge "$offset" ] || offset=0
echo "$offset"
often=; tail --version >/dev/null 2>&1 && often='-s 0.05'
exec 3<&0
{{ cat <&3; kill $$; }} >/dev/null 2>&1 &
exec tail $often -c +$((offset + 1)) -F {path} </dev/null 3<&-
"""


@dataclass
class Allowance:
    """Limit of the bytes taken from one source: at most `most`, of which `arrived` have come.

    It is kept when a file is followed again, because the VM decides when a following ends and what
    is in the file.
    """

    most: int = 2**32
    arrived: int = 0


class Followable(Protocol):
    """A connection to a VM on which files can be followed."""

    def follow_blocks(
        self, path: str, offset: int = 0, *, allowance: Allowance | None = None
    ) -> AsyncGenerator[Block, None]:
        """Yield blocks of lines of a file from an offset on, then each new one."""
        ...


async def follow(
    ssh: asyncssh.SSHClientConnection, name: str, path: str, offset: int, allowance: Allowance
) -> AsyncGenerator[Block, None]:
    """Follow a file as `Connection.follow_blocks` does."""
    while True:
        folder = shlex.quote(posixpath.dirname(path) or ".")
        script = _SCRIPT.format(folder=folder, path=shlex.quote(path), offset=offset)
        with explained(name, f"following {path}"):
            process = await ssh.create_process(script, encoding=None)
            another = asyncio.Event()
            watching = asyncio.create_task(_watch(process, another))
            try:
                offset = _begin(await process.stdout.readline(), offset, name)
                lines = Splitter()
                while (
                    offset >= 0
                    and (chunk := await process.stdout.read(_CHUNK))
                    and not another.is_set()
                ):
                    allowance.arrived += len(chunk)
                    if allowance.arrived > allowance.most:
                        much = f"more than {allowance.most >> 20} MiB, the limit for a VM"
                        raise ForeignError(f"{path} on {name} has {much}", where=name)
                    block: Block = []
                    for size, line in lines.feed(chunk):
                        offset += size
                        if line is not None:
                            block.append((offset, line))
                        if len(block) >= MOST_LINES:
                            yield block
                            block = []
                            await asyncio.sleep(0)
                    if block:
                        yield block
                    # A read that finds bytes in asyncssh's buffer does not wait.
                    await asyncio.sleep(0)
            finally:
                watching.cancel()
                await end(process)
        if another.is_set():
            offset = 0
        elif process.exit_status is None and process.exit_signal is None:
            raise lost(name, "")
        else:
            raise CommandError(
                f"The program that follows {path} on {name} ended with status {process.returncode}",
                where=name,
            )


async def follow_across(
    connected: Callable[[], Awaitable[Followable]],
    path: str,
    offset: int = 0,
    *,
    allowance: Allowance | None = None,
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Follow a file as `Connection.follow` does, over as many connections as it takes.

    Raises what `follow_blocks_across` raises.
    """
    blocks = follow_blocks_across(connected, path, offset, allowance=allowance)
    async with aclosing(blocks):
        async for block in blocks:
            for place, line in block:
                yield place, line


async def follow_blocks_across(
    connected: Callable[[], Awaitable[Followable]],
    path: str,
    offset: int = 0,
    *,
    allowance: Allowance | None = None,
) -> AsyncGenerator[Block, None]:
    """Follow a file as `Connection.follow_blocks` does, over as many connections as it takes.

    `connected` returns a live connection, and waits for one if necessary. RemoteErrors (a lost
    connection, a refused channel) are retried; when they repeat immediately, the last one ends the
    following. Any other error of `connected` ends it immediately, and so do HostKeyError and
    ForeignError (more than `allowance`, over all files: a VM may replace the file any number of
    times).
    """
    # This retry yields lines between its attempts; stamina's can only wrap a function that returns.
    clock = asyncio.get_running_loop().time
    failures = 0
    allowance = allowance or Allowance(arrived=offset)
    while True:
        started = clock()
        try:
            connection = await connected()
            async with aclosing(
                connection.follow_blocks(path, offset, allowance=allowance)
            ) as blocks:
                async for block in blocks:
                    offset = block[-1][0]
                    yield block
        except (HostKeyError, ForeignError):
            raise
        except RemoteError:
            if clock() - started < _QUICK_SECONDS:
                failures = failures + 1
            else:
                failures = 1
            if failures >= _FAILURES:
                raise
            await asyncio.sleep(backoff(failures, first=0.05, longest=2.0))


def _begin(line: bytes, asked: int, name: str) -> int:
    """Return the first byte that is read: the requested one, or 0; -1 if the report is missing."""
    if not line:
        return -1
    if (begin := line.strip()) not in (b"%d" % asked, b"0"):
        raise RemoteError(
            f"{name} reports an invalid position in the file: {line[:80]!r}", where=name
        )
    return int(begin)


async def end(process: asyncssh.SSHClientProcess[bytes]) -> None:
    """End a process that may still run: close its input, then send it a signal if necessary.

    Its channel is closed only after it has ended: servers made with asyncssh may drop the whole
    connection when a channel closes while its program still writes.
    """
    try:
        for tell in (process.stdin.write_eof, process.terminate):
            # The connection may be gone, or the time over.
            with contextlib.suppress(OSError, asyncssh.Error):
                if process.exit_status is None and process.exit_signal is None:
                    tell()
                # asyncssh's own wait can lose a cancellation of the caller.
                async with asyncio.timeout(0.5):
                    await process.wait()
                return
    finally:
        process.close()


async def _watch(process: asyncssh.SSHClientProcess[bytes], another: asyncio.Event) -> None:
    """End tail once it reports that the file was replaced: its bytes have no offset any more."""
    # The reader handles a lost connection.
    with contextlib.suppress(asyncssh.Error, OSError):
        async for complaint in process.stderr:
            if any(sign in complaint for sign in _AGAIN):
                another.set()
                process.stdin.write_eof()
                return


class Splitter:
    """Splitter of byte blocks into lines. It skips lines longer than `longest` bytes."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self.passed_over = 0
        """Number of lines that were too long."""
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Number of bytes of an incomplete line."""
        return self._size

    def feed(self, block: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the lines that `block` completes, as their bytes with newlines, and their content.

        The content of a line that is too long is None.
        """
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            self._keep(block[begin:end])
            size = self._size + 1
            if self._size <= self._longest:
                line = b"".join(self._parts)
            else:
                line = None
            self._parts = []
            self._size = 0
            begin = end + 1
            self.passed_over += line is None
            yield size, line
        self._keep(block[begin:])

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._longest:
            self._parts.append(part)
        else:
            self._parts.clear()
