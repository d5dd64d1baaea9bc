"""The SSH server of a VM: commands, shells, file transfer and forwarding.

Only the keys in the VM's metadata can log in.

The emulator's own event loop serves it, on a socket in the VM's network. What it starts runs in the
VM (see `shell_session`).
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
"""Returns the present `ssh-keys` of the metadata: `user:key` per line."""
# RFC 4254, 5.1: SSH_OPEN_CONNECT_FAILED.
_CANNOT_CONNECT = 2
_CONNECT_SECONDS = 10


class SecureShell:
    """The SSH server on a machine's socket.

    Parameters
    ----------
    machine
        The VM.
    keys
        Returns the keys that may log in.
    network
        Whether the VM has a network of its own, into which TCP connections are forwarded.
    """

    def __init__(self, machine: Machine, keys: Keys, network: bool) -> None:
        self._machine = machine
        self._keys = keys
        self._network = network
        self._key = _host_key(machine.plan.directory / "host_key")
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._acceptor: asyncssh.SSHAcceptor | None = None

    @property
    def host_key(self) -> str:
        """The public host key in base64, as in the guest attributes `hostkeys/ssh-ed25519`."""
        return self._key.export_public_key().decode().split()[1]

    async def start(self) -> None:
        """Start to serve."""
        home = str(self._machine.plan.home).encode()

        def files(channel: SSHChannel[bytes]) -> asyncssh.SFTPServer:
            return _Files(channel, home)

        def server() -> _Server:
            return _Server(self._machine, self._keys, self._connections, self._network, files)

        self._acceptor = await asyncssh.listen(
            sock=self._machine.sockets["ssh"],
            server_host_keys=[self._key],
            # The configuration of this machine's own SSH must not apply.
            config=None,
            encoding=None,
            server_factory=server,
            line_editor=False,
            keepalive_interval=15,
            login_timeout=30,
        )

    def stop(self) -> None:
        """Drop all connections, like a machine that loses its power."""
        if self._acceptor:
            self._acceptor.close()
        for connection in list(self._connections):
            connection.abort()


class _Server(asyncssh.SSHServer):
    """The rules of one connection: who may log in, and what may be forwarded."""

    def __init__(
        self,
        machine: Machine,
        keys: Keys,
        connections: set[asyncssh.SSHServerConnection],
        network: bool,
        files: Files,
    ) -> None:
        self._machine = machine
        self._keys = keys
        self._connections = connections
        self._network = network
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
        # Read for each login: clients may change the metadata of a running VM.
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
        # Other sockets of this machine are not the VM's.
        folders = (f"{home}/", f"{self._machine.plan.directory}/")
        if not path.startswith(folders) or self._connection is None:
            return False
        return self._connection.forward_unix_connection(path)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Any:
        if not self._network:
            return False
        assert self._connection
        return _forward_tcp(self._connection, self._machine, dest_host, dest_port)


async def _forward_tcp(
    connection: asyncssh.SSHServerConnection, machine: Machine, host: str, port: int
) -> SSHForwarder:
    """Forward to a connection that is made from within the VM's network.

    Raises ChannelOpenError.
    """
    first = machine.first_process
    # Names would be resolved outside of the VM.
    is_address = host == "localhost" or host.replace(".", "").isdigit()
    if first is None or not is_address:
        reason = "Only addresses of the VM network can be reached"
        raise asyncssh.ChannelOpenError(_CANNOT_CONNECT, reason)

    def create() -> socket.socket:
        created = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        created.setblocking(False)
        return created

    # A socket belongs for its whole life to the network in which it was created.
    far = isolation.within_network(first[0], create)
    loop = asyncio.get_running_loop()
    address = "127.0.0.1" if host == "localhost" else host
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await loop.sock_connect(far, (address, port))
        _, peer = await loop.create_connection(SSHForwarder, sock=far)
    except (OSError, TimeoutError) as error:
        far.close()
        raise asyncssh.ChannelOpenError(_CANNOT_CONNECT, str(error)) from None
    return SSHForwarder(peer)


class _Files(asyncssh.SFTPServer):
    """The files of the VM.

    Relative paths start at home, and nothing outside the VM's folder can be reached.
    """

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
        # Links are not resolved: the short path to home must stay short.
        return os.path.normpath(os.path.join(self._home, path))

    # Clients also look at the folders above home, when they list it or create directories.

    def stat(self, path: bytes) -> os.stat_result:
        return os.stat(self.realpath(path))

    def lstat(self, path: bytes) -> os.stat_result:
        return os.lstat(self.realpath(path))


def _host_key(path: Path) -> asyncssh.SSHKey:
    """Return the host key in a file, created if it does not exist."""
    if path.exists():
        return asyncssh.read_private_key(path)
    key = asyncssh.generate_private_key("ssh-ed25519")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.export_private_key())
    return key
