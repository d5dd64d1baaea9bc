"""Live SSH connection to one VM: run commands, copy and follow files, use sockets.

`connect` makes it. It never reconnects: when the VM dies, `closed` is set and every call in flight
raises ConnectionLostError. A stock sshd allows ten sessions per connection, and following a file
holds one for long. Files beyond that number are followed on further connections, which end with
this one. All paths are relative to the user's home on the VM unless they start with a slash.

`Reader` and `Writer` are the ends of a Unix socket on a VM: the streams of asyncssh, with the
errors of this package.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import shlex
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import asyncssh

from ..errors import CommandError, ForeignError, RemoteError
from . import following
from .failures import explained, lost
from .transfer import Transfer

_Connect = Callable[[str], Awaitable[tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]]]
"""Type of asyncssh's function that opens a socket, without an encoding."""

# Limits of simultaneous commands and of followed files. SFTP needs a session, and one may just be
# ending.
_SESSIONS = 4
_FOLLOWED = 3
_LONGEST_OUTPUT = 8 * 2**20


class Watch(asyncssh.SSHClient):
    """Record of the connection's end, and of a refused host key."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.reason = ""
        self.refused_key = ""

    def connection_lost(self, exc: Exception | None) -> None:
        """Record why the connection ended, and set `closed`."""
        if exc:
            self.reason = str(exc)
        else:
            self.reason = "it was closed"
        self.closed.set()

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        """Record the offered host key, and refuse it."""
        self.refused_key = f"{key.get_algorithm()} {key.get_fingerprint()}"
        return False


class Connection:
    """Connection to the VM `name`; `another` makes one more.

    Close it, or use it as an async context manager.
    """

    def __init__(
        self,
        ssh: asyncssh.SSHClientConnection,
        watch: Watch,
        name: str,
        carrier: AsyncExitStack,
        another: Callable[[], Awaitable[Connection]],
    ) -> None:
        self.name = name
        self._ssh = ssh
        self._watch = watch
        self._carrier = carrier
        self._sessions = asyncio.Semaphore(_SESSIONS)
        self._transfer = Transfer(ssh, name)
        self._home = ""
        self._another = another
        self._opening = asyncio.Lock()
        self._beside: list[Connection] = []
        self._followed = 0

    @property
    def closed(self) -> asyncio.Event:
        """Event that is set once the connection is gone, closed by either end."""
        return self._watch.closed

    @property
    def reason(self) -> str:
        """Reason why the connection is gone; empty while it lives."""
        return self._watch.reason

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; detached processes continue."""
        beside = self._beside
        self._beside = []
        await asyncio.gather(*(connection.close() for connection in beside))
        self._ssh.close()
        try:
            async with asyncio.timeout(2):
                await self._ssh.wait_closed()
        except TimeoutError:
            # A frozen peer does not answer the close.
            self._ssh.abort()
        finally:
            await self._carrier.aclose()

    async def run(
        self, command: str | Sequence[str], *, timeout: float = 60.0, input: bytes = b""
    ) -> str:
        """Run a command (a list of words, or text for the shell) and return its output.

        Raises
        ------
        CommandError
            It failed or took too long; the error has the end of its standard error.
        ForeignError
            Its output is longer than 8 MiB.
        ConnectionLostError
            The connection was lost before its result arrived.
        """
        if isinstance(command, str):
            text = command
        else:
            text = shlex.join(command)
        with explained(self.name, f"running `{text}`"):
            async with self._sessions:
                process = await self._ssh.create_process(text, encoding=None)
                # A quick command has ended already.
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(input)
                    process.stdin.write_eof()
                try:
                    async with asyncio.timeout(timeout):
                        output, complaints = await self._output(text, process)
                except TimeoutError as error:
                    what = f"`{text}` did not end within {timeout:g} s on {self.name}"
                    raise CommandError(what, where=self.name) from error
                finally:
                    await following.end(process)
        # When the connection dies, asyncssh returns as if the command had ended, but without a
        # status.
        if process.exit_status is None and process.exit_signal is None:
            raise lost(self.name, self.reason)
        if process.returncode:
            tail = bytes(complaints or b"").decode(errors="replace").strip()[-2000:]
            if process.exit_signal:
                how = f"ended by signal {process.exit_signal[0]}"
            else:
                how = f"failed ({process.returncode})"
            raise CommandError(
                f"`{text}` {how} on {self.name}: {tail or 'it printed nothing'}", where=self.name
            )
        return bytes(output or b"").decode(errors="replace")

    async def _output(
        self, text: str, process: asyncssh.SSHClientProcess[bytes]
    ) -> tuple[bytes, bytes]:
        """Return standard output and standard error of a process, until it has ended."""

        async def read_all(source: asyncssh.SSHReader[bytes]) -> bytes:
            found = list[bytes]()
            size = 0
            while block := await source.read(65536):
                size += len(block)
                if size > _LONGEST_OUTPUT:
                    raise ForeignError(
                        f"`{text}` printed more than {_LONGEST_OUTPUT >> 20} MiB on {self.name}"
                    )
                found.append(block)
            return b"".join(found)

        output, complaints = await asyncio.gather(
            read_all(process.stdout), read_all(process.stderr)
        )
        await process.wait()
        return output, complaints

    async def start_detached(
        self,
        command: str | Sequence[str],
        log: str,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Start a process that outlives this connection, and return its process id.

        Its output is appended to `log`. For text, the id is that of the shell which runs it, unless
        the text starts with `exec`.
        """
        if isinstance(command, str):
            text = command
        else:
            text = f"exec {shlex.join(command)}"
        settings = [
            f"export {name}={shlex.quote(value)}; " for name, value in (environment or {}).items()
        ]
        program = shlex.quote("".join(settings) + text)
        target = shlex.quote(log)
        # setsid leaves the session that ends with the connection. Without it, job control at least
        # leaves the process group.
        script = (
            f"mkdir -p {shlex.quote(posixpath.dirname(log) or '.')} && : >> {target} || exit; "
            "if command -v setsid >/dev/null; then away=setsid; else away=nohup; set -m; fi; "
            f"$away sh -c {program} </dev/null >>{target} 2>&1 & echo $!"
        )
        answer = await self.run(script)
        try:
            return int(answer)
        except ValueError as error:
            raise RemoteError(
                f"{self.name} did not report the id of the started process: {answer!r:.80}"
            ) from error

    async def follow(
        self, path: str, offset: int = 0, *, allowance: following.Allowance | None = None
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield the complete lines of a file, also future ones, as (offset behind the line, line).

        The file need not exist yet. If it is shorter than `offset`, or is replaced, it counts as a
        new file: it is read from its start, and offsets start over. The generator ends only when it
        is closed (`aclosing`), with ConnectionLostError, or with ForeignError if more than
        `allowance` has arrived, including earlier files. Lines longer than 1 MiB are skipped.
        """
        async with contextlib.aclosing(
            self.follow_blocks(path, offset, allowance=allowance)
        ) as blocks:
            async for block in blocks:
                for place, line in block:
                    yield place, line

    async def follow_blocks(
        self, path: str, offset: int = 0, *, allowance: following.Allowance | None = None
    ) -> AsyncGenerator[following.Block, None]:
        """Follow a file as `follow` does, in blocks of at most `MOST_LINES` lines.

        Blocks are for callers that write them whole. The event loop has a turn after each block.
        """
        allowance = allowance or following.Allowance(arrived=offset)
        carrier = await self._for_following()
        try:
            blocks = following.follow(carrier._ssh, self.name, path, offset, allowance)
            async with contextlib.aclosing(blocks):
                async for block in blocks:
                    yield block
        finally:
            carrier._followed -= 1

    async def _for_following(self) -> Connection:
        """Return the connection that follows the next file."""
        async with self._opening:
            self._beside = [
                connection for connection in self._beside if not connection.closed.is_set()
            ]
            for connection in (self, *self._beside):
                if connection._followed < _FOLLOWED:
                    break
            else:
                try:
                    with explained(self.name, "opening another connection"):
                        connection = await self._another()
                except OSError as error:
                    raise lost(self.name, str(error)) from error
                if self.closed.is_set():
                    await connection.close()
                    raise lost(self.name, self.reason)
                self._beside.append(connection)
            connection._followed += 1
            return connection

    async def open_socket(self, path: str) -> tuple[Reader, Writer]:
        """Connect to a Unix socket on the VM."""
        absolute = posixpath.join(await self.home(), path)
        with explained(self.name, f"the socket {path}"):
            connect = cast("_Connect", self._ssh.open_unix_connection)  # pyright: ignore[reportUnknownMemberType]
            reader, writer = await connect(absolute)
        return Reader(reader, self.name), Writer(writer, self.name)

    async def forward(self, host: str, port: int) -> int:
        """Listen on a local loopback port while the connection lives, and return the port.

        Each local connection is forwarded from the VM to `host` and `port`.
        """
        with explained(self.name, f"forwarding to {host}:{port}"):
            listener = await self._ssh.forward_local_port("127.0.0.1", 0, host, port)
        return listener.get_port()

    async def home(self) -> str:
        """Return the user's home on the VM."""
        if not self._home:
            self._home = await self.run('printf %s "$HOME"')
        return self._home

    async def put_bytes(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Write a file atomically: readers never see half of it."""
        await self._transfer.put({path: content}, mode=mode)

    async def put_files(self, files: Mapping[str, bytes | Path], *, below: str = "") -> None:
        """Write several files, each one atomically.

        `files` maps paths on the VM, below `below`, to their contents or local paths.
        """
        await self._transfer.put(
            {posixpath.join(below, path): source for path, source in files.items()}, mode=0o600
        )

    async def put_tree(self, local: Path, path: str) -> None:
        """Copy the folder `local` to `path`, without byte code, keeping each file's mode."""
        await self._transfer.put_tree(local, path)

    async def get(self, path: str, local: Path, *, most: int | None = None) -> None:
        """Copy a file from the VM; `local` is replaced once all of it is here and on disk.

        Raises ForeignError if it is not a regular file or has more than `most` bytes, and RoomError
        if it would fill the disk.
        """
        await self._transfer.get(path, local, most)

    async def get_tree(self, path: str, local: Path, *, without: Collection[str] = ()) -> list[str]:
        """Copy a folder from the VM file by file like `get`, and return the relative paths.

        The relative paths in `without` are left out.
        """
        return await self._transfer.get_tree(path, local, without)

    async def remove(self, path: str) -> None:
        """Remove a file; a missing file is success."""
        await self._transfer.remove(path)

    async def rename(self, path: str, target: str) -> None:
        """Rename a file, replacing `target`, or a folder, to a missing or empty `target`."""
        await self._transfer.rename(path, target)

    async def exists(self, path: str) -> bool:
        """Return whether there is a file or folder at `path`."""
        return await self._transfer.exists(path)


class Reader:
    """Input from a socket.

    End of file means that the peer closed it; a lost connection is an error.
    """

    def __init__(self, source: asyncssh.SSHReader[bytes], name: str) -> None:
        self._source = source
        self._name = name

    async def readline(self) -> bytes:
        """Return one line with its newline; at the end what is left, then b""."""
        with explained(self._name, "reading from a socket"):
            return await self._source.readline()

    async def read(self, most: int = 65536) -> bytes:
        """Return what has arrived, at most `most` bytes; b"" at the end."""
        with explained(self._name, "reading from a socket"):
            return await self._source.read(most)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while line := await self.readline():
            yield line


class Writer:
    """Output to a socket."""

    def __init__(self, target: asyncssh.SSHWriter[bytes], name: str) -> None:
        self._target = target
        self._name = name

    def write(self, data: bytes) -> None:
        """Send `data`; does not wait."""
        with explained(self._name, "writing to a socket"):
            self._target.write(data)

    async def drain(self) -> None:
        """Wait until the peer has read enough of what was written."""
        with explained(self._name, "writing to a socket"):
            await self._target.drain()

    def close(self) -> None:
        """Close both directions."""
        self._target.channel.close()
