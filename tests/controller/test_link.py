"""A link over real SSH to a real agent: whoever connects, and however often, disturbs nothing that is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests import processes
from tests.processes import until
from tests.remote import ssh_server
from tests.remote.vms import Vm
from transient_magics.controller.vms import link as link_module
from transient_magics.controller.vms.link import Hooks, Link, Work
from transient_magics.protocol.agent_commands import Assignment, Ping
from transient_magics.protocol.vm_events import AgentLine
from transient_magics.remote import Connection, generate_key

MARK = "vm.preemption_notice"
PLACE = "127.0.0.1:1"
WORKER = Assignment("run-1", "worker", "worker-1", "127.0.0.1", (PLACE,), PLACE)
DECLARATION = {"name": "run-1", "train_steps": 1, "token": "t"}


class Machine:
    """A VM, and the links to it."""

    def __init__(self, vm: Vm) -> None:
        self.vm = vm
        self.run = vm.home / "transient" / "runs" / "run-1"
        self.lines: list[AgentLine] = []
        self.troubles: list[str] = []
        self.connections: list[Connection] = []

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[Link]:
        """A link, as a controller has it, until its end."""

        async def connect() -> Connection:
            self.connections.append(await self.vm.connect())
            return self.connections[-1]

        hooks = Hooks(
            lambda _: None,
            lambda _: None,
            lambda _, line: self.lines.append(line),
            lambda _, what: self.troubles.append(what),
        )
        link = Link("worker-1", connect, hooks)
        living = asyncio.create_task(link.run())
        try:
            yield link
        finally:
            living.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(living, 30)

    def heard(self, kind: str) -> int:
        return sum(line.kind == kind for line in self.lines)


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    (programs / "transient-python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    (programs / "transient-python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(link_module, "BOOTED", tmp_path / "booted")
    (tmp_path / "booted").touch()
    acceptor, host_key = await ssh_server.serve(home, generate_key(tmp_path / "key"))
    yield Machine(Vm(home, tmp_path / "key", acceptor.get_port(), host_key))
    acceptor.close()
    for pid in (home / "transient").glob("agent.pid"):
        os.kill(int(pid.read_text(encoding="utf-8")), signal.SIGKILL)
    for record in (home / "transient").glob("runs/*/logs/*.pid"):
        if pid := json.loads(record.read_text(encoding="utf-8"))[
            "pid"
        ]:  # none has been started yet where there is none
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def files(metrics: bytes) -> Mapping[str, bytes | Path]:
    return {"run.json": json.dumps(DECLARATION).encode(), "metrics.jsonl": metrics, "include/a.py": b""}


@pytest.mark.slow
async def test_what_a_vm_can_do_counts_when_its_start_up_has_ended_and_a_reboot_until_then_is_borne(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_LOOK_SECONDS", 0.02)
    booted = machine.vm.key.parent / "booted"
    booted.unlink()  # its image has a transient-python, and the script has not looked at the GPU yet
    async with machine.linked() as link:
        for times in (1, 2):
            await until(lambda times=times: len(machine.connections) == times)
            await until((machine.vm.home / "transient" / "code").exists)
            await asyncio.sleep(0.3)
            assert not link.answering
            assert not (machine.vm.home / "transient" / "agent.pid").exists()
            if times == 1:
                await machine.connections[0].close()
        booted.touch()
        await until(lambda: link.answering)
    assert len(machine.connections) == 2


async def test_what_is_made_ready_ahead_begins_when_it_is_assigned(machine: Machine) -> None:
    async with machine.linked() as link:
        link.expect("run-1", "worker", own=True, warm=False)
        link.assign(Work(WORKER, lambda: files(b""), ahead=True))
        await until(lambda: machine.heard("process.started"))
        assert (machine.run / "ahead").exists()
        link.assign(Work(WORKER, lambda: files(b"")))
        await until(lambda: not (machine.run / "ahead").exists())
        async with asyncio.timeout(60):
            assert [process["run"] for process in (await link.ask(Ping()))["processes"]] == ["run-1"]
        assert machine.heard("process.started") == 1
        link.release("run-1")
        await until(lambda: machine.heard("process.exited"))


async def test_a_later_controller_leaves_alone_what_the_run_has_written(machine: Machine) -> None:
    async with machine.linked() as link:
        link.expect("run-1", "worker", own=True, warm=False)
        link.assign(Work(WORKER, lambda: files(b"1\n")))
        await link.connection("run-1")
        await until(lambda: machine.heard("process.started"))
    metrics = machine.run / "metrics.jsonl"
    with metrics.open("ab") as file:
        file.write(b"2\n")
    written = metrics.stat().st_ino
    async with machine.linked() as link:
        link.expect("run-1", "worker", own=True, warm=False)
        link.assign(Work(WORKER, lambda: files(b"older\n")))
        async with asyncio.timeout(60):
            await link.connection("run-1")
            running = (await link.ask(Ping()))["processes"]
        assert (metrics.read_bytes(), metrics.stat().st_ino) == (b"1\n2\n", written)
        assert [process["run"] for process in running] == ["run-1"]
        link.release("run-1")
        await until(lambda: machine.heard("process.exited"))


@pytest.mark.parametrize("warm", [pytest.param(True, marks=pytest.mark.training), False])
async def test_all_is_imported_ahead_only_where_the_role_will_take_a_while(machine: Machine, warm: bool) -> None:
    servers = lambda: [each for each in processes.bearing(str(machine.vm.home)).values() if "fork_server" in each]  # noqa: E731
    async with machine.linked() as link:
        link.expect("run-1", "worker", own=True, warm=warm)
        if warm:
            await until(servers)
        link.assign(Work(WORKER, lambda: files(b"")))
        await until(lambda: machine.heard("process.started"))
        assert bool(servers()) is warm
        link.release("run-1")
        await until(lambda: machine.heard("process.exited"))


@pytest.mark.slow
async def test_what_the_agent_says_is_heard_once_over_many_connections(machine: Machine) -> None:
    async with machine.linked() as link:
        for connected in (1, 2, 3):
            await until(lambda connected=connected: len(machine.connections) == connected and link.answering)
            await until(lambda: machine.heard("agent.started"))
            with (machine.vm.home / "transient" / "agent.jsonl").open("ab") as file:
                file.write(json.dumps({"kind": MARK, "time": connected}).encode() + b"\n")
            await until(lambda connected=connected: machine.heard(MARK) >= connected)
            await machine.connections[-1].close()  # the last time together with the link
    assert [line.time for line in machine.lines if line.kind == MARK] == [1, 2, 3]
    assert machine.heard("agent.started") == 1


@pytest.mark.slow
async def test_an_agent_that_writes_too_much_is_told_of_once_and_the_link_goes_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_MOST_LINES", 1 << 20)
    async with machine.linked() as link:
        await until(lambda: machine.heard("agent.started"))
        with (machine.vm.home / "transient" / "agent.jsonl").open("ab") as file:
            file.write((b"x" * 1000 + b"\n") * 2000)
        await until(lambda: machine.troubles)
        assert (await link.ask(Ping(), timeout=60))["ok"]
        assert len(machine.connections) == 1
        await machine.connections[-1].close()
        await until(lambda: len(machine.connections) == 2 and link.answering)
        assert (await link.ask(Ping(), timeout=60))["ok"]
    (said,) = machine.troubles
    assert "transient/agent.jsonl on " in said
    assert "more than 1 MiB, the limit for a VM" in said
