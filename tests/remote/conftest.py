"""A VM to connect to: an SSH server of our own on loopback, in this process or in one that can be frozen and killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import ssh_server
from vms import Vm

from transient_magics.remote import Connection, generate_key


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
async def vm(home: Path, tmp_path: Path) -> AsyncIterator[Vm]:
    key = tmp_path / "key"
    acceptor, host_key = await ssh_server.serve(home, generate_key(key))
    yield Vm(home, key, acceptor.get_port(), host_key)
    acceptor.close()
    await acceptor.wait_closed()


@pytest.fixture
async def connection(vm: Vm) -> AsyncIterator[Connection]:
    async with await vm.connect() as connection:
        yield connection


@pytest.fixture
async def start_vm(home: Path, tmp_path: Path) -> AsyncIterator[Callable[[], Awaitable[Vm]]]:
    """Starts a server in a process of its own; it is ended, frozen or not, with the test."""
    key, started = tmp_path / "key", []
    public = generate_key(key)

    async def start() -> Vm:
        program = await asyncio.create_subprocess_exec(
            sys.executable, ssh_server.__file__, str(home), public, stdout=subprocess.PIPE
        )
        started.append(program)
        assert program.stdout is not None
        port, host_key = (await program.stdout.readline()).decode().split(" ", 1)
        return Vm(home, key, int(port), host_key.strip(), program.pid)

    yield start
    for program in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program.pid, signal.SIGKILL)
        await program.wait()
