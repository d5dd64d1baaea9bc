"""The SSH server of a VM: commands, shells, file transfer and socket forwarding, for the keys in its metadata only.

It is served by the emulator's own event loop on a socket that lives in the VM's network; what it starts runs in the VM
(see `shell_session`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import asyncssh
from asyncssh.channel import SSHChannel
from asyncssh.forward import SSHForwarder

from ..network import isolation
from .machine import Machine
from .shell_session import Files, ShellSession

Keys = Callable[[], str]
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

        def files(channel: SSHChannel[bytes]) -> asyncssh.SFTPServer:
            return _Files(channel, home)

        self._acceptor = await asyncssh.listen(
            sock=self._machine.sockets["ssh"], server_host_keys=[self._key], config=None, encoding=None,
            server_factory=lambda: _Door(self._machine, self._keys, self._connections, self._network, files),
            line_editor=False, keepalive_interval=15, login_timeout=30,
        )  # fmt: skip

    def stop(self) -> None:
        """Drop all connections, as a machine does that loses its power."""
        if self._acceptor:
            self._acceptor.close()
        for connection in list(self._connections):
            connection.abort()


class _Door(asyncssh.SSHServer):
    """Who may come in, and what may be forwarded."""

    def __init__(
        self, machine: Machine, keys: Keys, connections: set[asyncssh.SSHServerConnection], network: bool, files: Files
    ) -> None:
        self._machine, self._keys, self._connections, self._network = machine, keys, connections, network
        self._files = files
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

    def session_requested(self) -> ShellSession:
        return ShellSession(self._machine, self._files)

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

    def __init__(self, channel: SSHChannel[bytes], home: bytes) -> None:
        super().__init__(cast(asyncssh.SSHServerChannel[bytes], channel))
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
