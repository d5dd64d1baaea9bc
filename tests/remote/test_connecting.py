"""Reaching the right VM while it boots, and never the wrong one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import pytest
import ssh_server
from vms import Vm

from transient_magics.errors import ConnectionLostError, HostKeyError, RemoteError
from transient_magics.remote import Connection, Dialler, Direct, ProxyCommand, Relay, connect, generate_key

CAT = "import socket,sys,threading,os; s=socket.create_connection((sys.argv[1], int(sys.argv[2])))\n" + (
    "def up():\n"
    "  while data := os.read(0, 65536): s.sendall(data)\n"
    "  s.shutdown(socket.SHUT_WR)\n"
    "threading.Thread(target=up, daemon=True).start()\n"
    "while data := s.recv(65536): os.write(1, data)\n"
)


async def entered(vm: Vm, dialler: Dialler, *, host_key: str = "", timeout: float = 60.0) -> Connection:
    return await connect(
        dialler,
        "127.0.0.1",
        port=vm.port,
        user="transient",
        key=vm.key,
        host_keys=[host_key or vm.host_key],
        name="worker-1",
        timeout=timeout,
    )


@asynccontextmanager
async def relay(path: Path, refusal: str = "") -> AsyncIterator[Relay]:
    """A relay like the emulator's."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word, address, port = (await reader.readline()).decode().split()
        assert word == "CONNECT"
        if refusal:
            writer.write(f"ERROR {refusal}\n".encode())
            writer.close()
            return
        there, back = await asyncio.open_connection(address, int(port))
        # The greeting of the SSH server comes in one piece with the reply.
        writer.write(b"OK\n" + await there.read(100))
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_unix_server(serve, path)
    yield Relay(path)
    server.close()


async def test_a_vm_is_reached_directly(vm: Vm) -> None:
    async with await entered(vm, Direct()) as connection:
        assert await connection.run(["echo", "here I am"]) == "here I am\n"
        assert not connection.closed.is_set()
    assert connection.closed.is_set()


async def test_a_vm_is_reached_through_a_relay(vm: Vm, tmp_path: Path) -> None:
    async with relay(tmp_path / "relay") as dialler, await entered(vm, dialler) as connection:
        assert await connection.run("echo through the relay") == "through the relay\n"


@pytest.mark.slow
async def test_a_relay_that_refuses_is_quoted(vm: Vm, tmp_path: Path) -> None:
    async with relay(tmp_path / "relay", "no VM has this address") as dialler:
        with pytest.raises(ConnectionLostError, match=r"does not answer .* within [\d.]+ s: .*no VM has this address"):
            await entered(vm, dialler, timeout=3)


async def test_a_vm_is_reached_through_a_program(vm: Vm) -> None:
    program = ProxyCommand([sys.executable, "-c", CAT, "{address}", "{port}"])
    async with await entered(vm, program) as connection:
        assert await connection.run("echo through a program") == "through a program\n"


@pytest.mark.slow
async def test_a_program_that_fails_is_quoted(vm: Vm) -> None:
    program = ProxyCommand(["sh", "-c", "echo You are not allowed to tunnel >&2; exit 1"])
    with pytest.raises(ConnectionLostError, match="sh printed: You are not allowed to tunnel"):
        await entered(vm, program, timeout=3)


async def test_a_program_that_is_not_installed_is_named_at_once(vm: Vm) -> None:
    with pytest.raises(RemoteError, match="no-such-program could not be started"):
        await entered(vm, ProxyCommand(["no-such-program"]), timeout=30)


async def test_a_wrong_host_key_is_refused_at_once(vm: Vm) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    started = time.monotonic()
    with pytest.raises(HostKeyError, match=r"is not worker-1: its host key is ssh-ed25519 SHA256:"):
        await entered(vm, Direct(), host_key=other, timeout=60)
    assert time.monotonic() - started < 30


async def test_without_a_known_host_key_nobody_is_called(vm: Vm) -> None:
    with pytest.raises(HostKeyError, match="The host key of worker-1 is unknown"):
        await connect(Direct(), "127.0.0.1", user="u", key=vm.key, host_keys=[], name="worker-1")


@pytest.mark.slow
async def test_a_vm_that_is_still_booting_is_waited_for(vm: Vm, home: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        later = Vm(home, vm.key, probe.getsockname()[1], "")
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    later.host_key = host_key.export_public_key().decode()
    connecting = asyncio.create_task(later.connect())
    await asyncio.sleep(0.3)  # refused so far
    stranger = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    acceptor, _ = await ssh_server.serve(home, stranger, port=later.port, host_key=host_key)
    await asyncio.sleep(0.5)  # it answers, but does not know our key yet
    acceptor.close()
    await acceptor.wait_closed()
    acceptor, _ = await ssh_server.serve(home, generate_key(vm.key), port=later.port, host_key=host_key)
    async with await connecting as connection:
        assert await connection.run("echo booted") == "booted\n"
    acceptor.close()


@pytest.mark.slow
async def test_a_vm_that_never_takes_our_key_says_so(vm: Vm, tmp_path: Path) -> None:
    generate_key(tmp_path / "other")
    vm.key = tmp_path / "other"
    with pytest.raises(RemoteError, match="worker-1 rejects the SSH key of the cluster for user transient"):
        await vm.connect(timeout=3)


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        ((), "aes128-gcm@openssh.com"),
        (("chacha20-poly1305@openssh.com", "aes256-gcm@openssh.com"), "aes256-gcm@openssh.com"),
        (("chacha20-poly1305@openssh.com",), "chacha20-poly1305@openssh.com"),
        (("aes256-ctr",), "aes256-ctr"),
    ],
)
async def test_the_cipher_that_takes_the_least_is_chosen_of_those_that_a_vm_has(
    home: Path, tmp_path: Path, offered: tuple[str, ...], taken: str
) -> None:
    key = tmp_path / "key"
    acceptor, host_key = await ssh_server.serve(home, generate_key(key), ciphers=offered)
    async with await Vm(home, key, acceptor.get_port(), host_key).connect() as connection:
        assert await connection.run("printf %s $CIPHER") == taken
    acceptor.close()
    await acceptor.wait_closed()


async def test_a_silent_machine_is_given_up(tmp_path: Path) -> None:
    generate_key(tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        vm = Vm(tmp_path, tmp_path / "key", silent.getsockname()[1], generate_key(tmp_path / "key"))
        with pytest.raises(ConnectionLostError, match=r"does not answer .* within [\d.]+ s: no answer"):
            await vm.connect(timeout=0.6)


@pytest.mark.slow
async def test_a_frozen_vm_is_noticed_within_seconds(start_vm: Callable[[], Awaitable[Vm]]) -> None:
    vm = await start_vm()
    async with await vm.connect() as connection:
        reading = asyncio.create_task(connection.run("sleep 60"))
        await connection.run("true")
        os.kill(vm.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            await connection.closed.wait()
        with pytest.raises(ConnectionLostError):
            await reading
        assert "keepalive" in connection.reason


async def test_a_killed_vm_is_noticed_at_once(start_vm: Callable[[], Awaitable[Vm]]) -> None:
    vm = await start_vm()
    async with await vm.connect() as connection:
        running = asyncio.create_task(connection.run("sleep 60"))
        await connection.run("true")
        os.kill(vm.pid, signal.SIGKILL)
        # asyncssh itself would return here as if the command had ended well.
        with pytest.raises(ConnectionLostError, match="The connection to worker-1 was lost"):
            await running
        assert "keepalive" not in connection.reason, "its silence would have been noticed seconds later"
        for call in (connection.run("true"), connection.put_bytes("a", b""), connection.open_socket("b")):
            with pytest.raises(ConnectionLostError):
                await call


def test_a_key_is_private_and_made_once(tmp_path: Path) -> None:
    line = generate_key(tmp_path / "key")
    assert line.startswith("ssh-ed25519 AAAA")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert generate_key(tmp_path / "key") == line
    assert [each.name for each in tmp_path.iterdir()] == ["key"]


def test_a_key_that_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("torn", encoding="utf-8")
    with pytest.raises(RemoteError, match="The key of the cluster cannot be read"):
        generate_key(tmp_path / "key")
