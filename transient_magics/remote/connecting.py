"""Connect to a VM that may still be booting, and to no other one.

While a VM boots, its port is silent, then refuses, then accepts no key yet. All of that is retried,
with limits. A host key that differs from Compute Engine's is never retried: another machine may be
listening.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import asyncssh
import stamina

from ..errors import ConnectionLostError, HostKeyError, RemoteError, reason_of
from .connection import Connection, Watch

_PASSING = (OSError, asyncssh.ConnectionLost, asyncssh.ServiceNotAvailable)
_ATTEMPT_SECONDS = 10.0
# Time for a VM that already answers to learn our key.
_DENIED_SECONDS = 30.0
_KEEPALIVE_SECONDS = 4 / 3
_KEEPALIVES = 2
"""Keepalives without an answer, after which the connection is closed: 4 s after its last byte.

The agent is asked every second, so none is sent while it answers.
"""
_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
"""Preferred ciphers: with processor support they take asyncssh a sixth of the time of ChaCha20."""

_REPLY_LIMIT = 4096


async def connect(
    dialler: Dialler,
    address: str,
    *,
    user: str,
    key: Path,
    host_keys: Sequence[str],
    name: str,
    port: int = 22,
    timeout: float = 120.0,
) -> Connection:
    """Return a connection to the VM at `address` as soon as it accepts one.

    `host_keys` are lines such as "ssh-ed25519 AAAA", as Compute Engine returns them; `name` is the
    VM's name in errors. Raises HostKeyError, ConnectionLostError (no answer within `timeout`) or
    RemoteError (answered, login refused).
    """
    attempt = _Attempt(dialler, address, port, user, read_key(key), _trusted(host_keys, name), name)
    attempts = stamina.retry_context(
        attempt.is_worth_another,
        attempts=200,
        timeout=timeout,
        wait_initial=0.1,
        wait_max=2.0,
        wait_jitter=0.2,
    )
    try:
        async with asyncio.timeout(timeout):
            async for context in attempts:
                with context:
                    return await attempt()
    except (OSError, asyncssh.Error) as error:
        raise attempt.explain(error, timeout) from error
    raise AssertionError("stamina must end with a result or an error")


class _Attempt:
    """Series of attempts to connect to one VM, with the errors so far."""

    def __init__(
        self,
        dialler: Dialler,
        address: str,
        port: int,
        user: str,
        key: asyncssh.SSHKey,
        trusted: list[asyncssh.SSHKey],
        name: str,
    ) -> None:
        self._dialler = dialler
        self._address = address
        self._port = port
        self._name = name
        self._user = user
        self._key = key
        self._trusted = trusted
        self._denied_since: float | None = None
        self._last: Exception = TimeoutError("no answer")

    async def __call__(self) -> Connection:
        async with AsyncExitStack() as stack:
            line = await stack.enter_async_context(self._dialler.dial(self._address, self._port))
            watch = Watch()
            try:
                ssh = await asyncssh.connect(
                    self._address,
                    self._port,
                    sock=line,
                    client_factory=lambda: watch,
                    username=self._user,
                    client_keys=[self._key],
                    known_hosts=(self._trusted, [], []),
                    host_key_alias=self._name,
                    # The user's own SSH configuration must not apply.
                    config=None,
                    agent_path=None,
                    x509_trusted_certs=None,
                    gss_kex=False,
                    gss_auth=False,
                    preferred_auth="publickey",
                    compression_algs=None,
                    encryption_algs=_CIPHERS,
                    connect_timeout=_ATTEMPT_SECONDS,
                    # Off by default. A VM that loses its power sends nothing, so silence must be
                    # detected.
                    keepalive_interval=_KEEPALIVE_SECONDS,
                    keepalive_count_max=_KEEPALIVES,
                )
            except asyncssh.HostKeyNotVerifiable as error:
                shown = watch.refused_key or "of an unknown kind"
                what = (
                    f"The machine at {self._address} is not {self._name}: its host key is {shown}"
                )
                fix = (
                    "Delete this VM, so that it is replaced; if this repeats, find out which "
                    "machine has that address."
                )
                raise HostKeyError(what, where=self._address, fix=fix) from error
            return Connection(ssh, watch, self._name, stack.pop_all(), self)

    def is_worth_another(self, error: BaseException) -> bool:
        """Return whether a retry may succeed while the VM boots."""
        if not isinstance(error, Exception):
            return False
        self._last = error
        if isinstance(error, asyncssh.PermissionDenied):
            now = asyncio.get_running_loop().time()
            self._denied_since = self._denied_since or now
            return now - self._denied_since < _DENIED_SECONDS
        return isinstance(error, _PASSING)

    def explain(self, error: Exception, timeout: float) -> RemoteError:
        """Return the error for the last failure.

        After a timeout, that is the failure before it, which is more precise.
        """
        failure = self._last if isinstance(error, TimeoutError) else error
        if isinstance(failure, asyncssh.PermissionDenied):
            what = f"{self._name} rejects the SSH key of the cluster for user {self._user}"
            fix = "Check that the VM's metadata has the key in ssh-keys, and that OS Login is off."
            return RemoteError(what, where=self._address, fix=fix)
        if isinstance(failure, _PASSING):
            why = str(failure) or "no answer"
            what = (
                f"{self._name} does not answer at {self._address}:{self._port} within "
                f"{timeout:g} s: {why}"
            )
            return ConnectionLostError(
                what, fix="Check that the VM runs and that port 22 is open to this machine."
            )
        return RemoteError(f"No SSH connection to {self._name}: {failure}", where=self._address)


def _trusted(host_keys: Sequence[str], name: str) -> list[asyncssh.SSHKey]:
    if not host_keys:
        raise HostKeyError(
            f"The host key of {name} is unknown", fix="Wait until Compute Engine reports it."
        )
    try:
        return [asyncssh.import_public_key(line) for line in host_keys]
    except asyncssh.KeyImportError as error:
        raise HostKeyError(
            f"Compute Engine reports an invalid host key of {name}: {error}"
        ) from error


def generate_key(path: Path) -> str:
    """Make an ed25519 key in `path` (mode 0600) if necessary, and return its public line."""
    if not path.exists():
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        key = asyncssh.generate_private_key("ssh-ed25519", comment="transient")  # pyright: ignore[reportUnknownMemberType]
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(key.export_private_key())
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                # Unlike a rename, a link never replaces a key that another process just made.
                os.link(fresh, path)
        finally:
            fresh.unlink()
    return read_key(path).export_public_key().decode().strip()


def read_key(path: Path) -> asyncssh.SSHKey:
    """Return the private key in `path`. Raises RemoteError if it cannot be read."""
    try:
        return asyncssh.read_private_key(path)
    except (OSError, asyncssh.KeyImportError) as error:
        what = f"The key of the cluster cannot be read: {error}"
        raise RemoteError(
            what, where=str(path), fix="Delete the cluster and declare it again."
        ) from error


# Transport of bytes to a VM's SSH port: directly, through a program, or through the emulator's
# relay. A dialler only returns a connected socket. The SSH host key proves the identity of the
# peer, so a dialler need not be trusted. Leaving the context ends the transport.


class Dialler(Protocol):
    """Route to a port of a VM."""

    def dial(self, address: str, port: int) -> AbstractAsyncContextManager[socket.socket]:
        """Return a connected, non-blocking stream socket. Raises OSError without a route."""
        ...


@dataclass(frozen=True)
class Direct:
    """Direct route over the network."""

    @asynccontextmanager
    async def dial(self, address: str, port: int) -> AsyncGenerator[socket.socket]:
        """Connect over the network, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as line:
            line.setblocking(False)
            await loop.sock_connect(line, target)
            yield line


@dataclass(frozen=True)
class Relay:
    """Route through a relay on a Unix socket, which leads into the emulator's network."""

    path: Path

    @asynccontextmanager
    async def dial(self, address: str, port: int) -> AsyncGenerator[socket.socket]:
        """Connect to the relay and request the target. Raises OSError if it refuses."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as line:
            line.setblocking(False)
            await loop.sock_connect(line, str(self.path))
            await loop.sock_sendall(line, f"CONNECT {address} {port}\n".encode())
            reply = await _reply(line)
            if reply != "OK":
                raise ConnectionRefusedError(
                    f"the relay refused the connection: {reply.removeprefix('ERROR ')}"
                )
            yield line


@dataclass(frozen=True)
class ProxyCommand:
    """Route through a program that relays the VM's bytes, such as an IAP tunnel.

    The program uses its standard input and output. `{address}` and `{port}` in `argv` stand for the
    target.
    """

    argv: Sequence[str]

    @asynccontextmanager
    async def dial(self, address: str, port: int) -> AsyncGenerator[socket.socket]:
        """Start the program with one end of a socket pair; end it on exit from the context."""
        argv = [part.format(address=address, port=port) for part in self.argv]
        ours, its = socket.socketpair()
        with ours:
            with its:
                ours.setblocking(False)
                try:
                    program = await asyncio.create_subprocess_exec(
                        *argv,
                        stdin=its.fileno(),
                        stdout=its.fileno(),
                        stderr=subprocess.PIPE,
                        start_new_session=True,
                    )
                except OSError as error:
                    what = f"The program {argv[0]} could not be started: {reason_of(error)}"
                    raise RemoteError(
                        what, where=address, fix=f"Install {argv[0]}, or connect without it."
                    ) from error
            assert program.stderr is not None
            complaints = asyncio.create_task(_tail(program.stderr))
            try:
                yield ours
            except (OSError, asyncssh.ConnectionLost) as error:
                words = await _last_words(complaints)
                raise ConnectionRefusedError(f"{error}; {argv[0]} printed: {words}") from error
            finally:
                ours.close()
                # It usually ends when its input is closed.
                if program.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(program.pid, signal.SIGKILL)
                await program.wait()
                complaints.cancel()


async def _reply(line: socket.socket) -> str:
    """Return one line, read byte by byte, because what follows it already belongs to SSH."""
    loop = asyncio.get_running_loop()
    reply = bytearray()
    while not reply.endswith(b"\n"):
        byte = await loop.sock_recv(line, 1)
        if not byte or len(reply) > _REPLY_LIMIT:
            raise ConnectionResetError("the relay closed the connection")
        reply += byte
    return reply.decode(errors="replace").strip()


async def _tail(stream: asyncio.StreamReader) -> str:
    """Return the last lines of a program's standard error.

    It is read all the time, because the program would block on a full pipe.
    """
    kept = b""
    while chunk := await stream.read(4096):
        kept = (kept + chunk)[-400:]
    return kept.decode(errors="replace").strip()


async def _last_words(complaints: asyncio.Task[str]) -> str:
    try:
        async with asyncio.timeout(1):
            return await asyncio.shield(complaints) or "nothing"
    except TimeoutError:
        return "nothing"
