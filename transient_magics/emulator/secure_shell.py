"""The SSH server of a VM: commands, shells, file transfer and socket forwarding, for the keys in its metadata only.

It is served by the emulator's own event loop on a socket that lives in the VM's network; what it starts runs in the VM.
Output, exit codes and the closing of a session follow OpenSSH: a session lasts as long as something holds its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh.forward import SSHForwarder

from . import isolation
from .machine import Command, Machine

Keys = Callable[[], str]
_FAREWELL_SECONDS = 5
_CHUNK = 1 << 16
_CANNOT_CONNECT = 2  # RFC 4254's code for a connection that could not be made


class SecureShell:
    """SSH on a machine's socket. `keys` gives the present `ssh-keys` of the metadata, `user:key` per line."""

    def __init__(self, machine: Machine, keys: Keys, network: bool) -> None:
        self._machine, self._keys, self._network = machine, keys, network
        self._key = _host_key(machine.plan.directory / "host_key")
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._acceptor: asyncssh.SSHAcceptor | None = None

    @property
    def host_key(self) -> str:
        """The public host key in base64, as the guest attributes `hostkeys/ssh-ed25519` hold it."""
        return self._key.export_public_key().decode().split()[1]

    async def start(self) -> None:
        """Serve."""
        home = str(self._machine.plan.home).encode()

        def files(channel: asyncssh.SSHServerChannel[bytes]) -> asyncssh.SFTPServer:
            return _Files(channel, home)

        self._acceptor = await asyncssh.listen(
            sock=self._machine.sockets["ssh"], server_host_keys=[self._key], config=None, encoding=None,
            server_factory=lambda: _Door(self._machine, self._keys, self._connections, self._network),
            process_factory=self._serve, sftp_factory=files, allow_scp=True, line_editor=False,
            keepalive_interval=15, login_timeout=30,
        )  # fmt: skip

    def stop(self) -> None:
        """Drop all connections, as a machine does that loses its power."""
        if self._acceptor:
            self._acceptor.close()
        for connection in list(self._connections):
            connection.abort()

    async def _serve(self, session: asyncssh.SSHServerProcess[bytes]) -> None:
        shell = ["/bin/sh", "-c", session.command] if session.command else ["/bin/sh", "-l"]
        try:
            if session.term_type:
                await self._with_terminal(session, shell)
            else:
                await self._with_pipes(session, shell)
        except OSError as error:
            session.stderr.write(f"cannot start a program on {self._machine.plan.name}: {error}\n".encode())
            session.exit(255)

    async def _with_pipes(self, session: asyncssh.SSHServerProcess[bytes], shell: list[str]) -> None:
        # The library passes signals on only if the input is a pipe that it writes to itself.
        theirs, ours = os.pipe()
        try:
            command = await self._machine.run(*shell, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        process = command.process
        assert process.stdout
        assert process.stderr
        session.set_redirect_pid(-command.group)
        await session.redirect(stdin=ours)
        outputs = [_pass_on(process.stdout, session.stdout), _pass_on(process.stderr, session.stderr)]

        async def finish() -> None:
            await asyncio.gather(*outputs)
            code = await process.wait()
            session.set_redirect_pid(None)
            _report(session, code)

        await _until_closed(session, command, finish())

    async def _with_terminal(self, session: asyncssh.SSHServerProcess[bytes], shell: list[str]) -> None:
        ours, theirs = os.openpty()
        columns, rows, *_ = session.term_size
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows or 24, columns or 80, 0, 0))
        try:
            command = await self._machine.run(
                "env", f"TERM={session.term_type}", *shell, terminal=True, stdin=theirs, stdout=theirs, stderr=theirs
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        session.set_redirect_pid(-command.group)
        await session.redirect(stdin=os.dup(ours), stdout=ours, send_eof=False)

        async def finish() -> None:
            code = await command.process.wait()
            session.set_redirect_pid(None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    await session.stdout.drain()
            _report(session, code)

        await _until_closed(session, command, finish())


async def _pass_on(output: asyncio.StreamReader, client: asyncssh.SSHWriter[bytes]) -> None:
    # By hand: the library's own redirection starts a second reader when the client is slow, and loses what comes then.
    with contextlib.suppress(BrokenPipeError):
        while data := await output.read(_CHUNK):
            client.write(data)
            await client.drain()


def _report(session: asyncssh.SSHServerProcess[bytes], code: int) -> None:
    if code < 0:
        session.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
    else:
        session.exit(code)


async def _until_closed(
    session: asyncssh.SSHServerProcess[bytes], command: Command, finish: Coroutine[None, None, None]
) -> None:
    """Until the program has ended; if the client leaves before, hang up on the program."""
    ending, leaving = asyncio.ensure_future(finish), asyncio.ensure_future(session.wait_closed())
    try:
        await asyncio.wait([ending, leaving], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([leaving], timeout=_FAREWELL_SECONDS)
    finally:
        ending.cancel()
        leaving.cancel()
        if command.process.returncode is None:
            command.signal(signal.SIGHUP)


class _Door(asyncssh.SSHServer):
    """Who may come in, and what may be forwarded."""

    def __init__(
        self, machine: Machine, keys: Keys, connections: set[asyncssh.SSHServerConnection], network: bool
    ) -> None:
        self._machine, self._keys, self._connections, self._network = machine, keys, connections, network
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection:
            self._connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        for line in self._keys().splitlines():
            user, _, text = line.strip().partition(":")
            if user == username:
                with contextlib.suppress(asyncssh.KeyImportError):
                    if asyncssh.import_public_key(text.strip()) == key:
                        return True
        return False

    def unix_connection_requested(self, dest_path: str) -> Any:
        home = self._machine.plan.home
        path = os.path.normpath(home / dest_path)
        if not path.startswith((f"{home}/", f"{self._machine.plan.directory}/")) or self._connection is None:
            return False
        return self._connection.forward_unix_connection(path)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> Any:
        if not self._network:
            return False
        assert self._connection
        return _forward_tcp(self._connection, self._machine, dest_host, dest_port)


async def _forward_tcp(
    connection: asyncssh.SSHServerConnection, machine: Machine, host: str, port: int
) -> SSHForwarder:
    """A connection made from within the VM's network."""
    first = machine.first_process
    if first is None or not (host == "localhost" or host.replace(".", "").isdigit()):
        raise asyncssh.ChannelOpenError(_CANNOT_CONNECT, "Only addresses of the VM network can be reached")

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        return made

    made = isolation.within_network(first[0], make)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(10):
            await loop.sock_connect(made, ("127.0.0.1" if host == "localhost" else host, port))
        _, peer = await loop.create_connection(SSHForwarder, sock=made)
    except (OSError, TimeoutError) as error:
        made.close()
        raise asyncssh.ChannelOpenError(_CANNOT_CONNECT, str(error)) from None
    return SSHForwarder(peer)


class _Files(asyncssh.SFTPServer):
    """Files of the VM: relative paths start at home, and nothing outside the VM's folder can be reached."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], home: bytes) -> None:
        super().__init__(channel)
        self._home = home
        self._folder = os.path.dirname(os.path.realpath(home))

    def map_path(self, path: bytes) -> bytes:
        mapped = self.realpath(path)
        real = os.path.realpath(mapped)
        if real != self._folder and not real.startswith(self._folder + b"/"):
            raise asyncssh.SFTPPermissionDenied("Only the VM's own home can be reached")
        return mapped

    def realpath(self, path: bytes) -> bytes:
        # Links are not resolved: the short way home must stay short.
        return os.path.normpath(os.path.join(self._home, path))

    # Clients look at the folders above home, too, when they list it or make directories.

    def stat(self, path: bytes) -> os.stat_result:
        return os.stat(self.realpath(path))

    def lstat(self, path: bytes) -> os.stat_result:
        return os.lstat(self.realpath(path))


def _host_key(path: Path) -> asyncssh.SSHKey:
    if path.exists():
        return asyncssh.read_private_key(path)
    key = asyncssh.generate_private_key("ssh-ed25519")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.export_private_key())
    return key
