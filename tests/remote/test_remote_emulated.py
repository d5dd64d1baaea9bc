"""Into the emulator's network: VMs whose addresses this machine cannot reach, through the relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import asyncssh
import pytest

from tests.conftest import Emulate
from transient_magics.cloud import ComputeEngine, Vm, VmRequest
from transient_magics.emulator import about
from transient_magics.errors import CommandError, HostKeyError
from transient_magics.remote import Connection, Relay, bundle, connect, follow_across, generate_key, push_bundle

ZONE = "us-central1-c"


@pytest.fixture(scope="module")
def url(emulate: Emulate) -> Iterator[str]:
    with emulate("--boot", "0.3") as url:
        yield url


@pytest.fixture
async def engine(url: str) -> AsyncIterator[ComputeEngine]:
    async with ComputeEngine("emulated-project", url) as engine:
        yield engine


@pytest.fixture
async def emulated_vm(engine: ComputeEngine, tmp_path: Path) -> AsyncIterator[Vm]:
    public = generate_key(tmp_path / "key")
    yield await engine.insert(VmRequest("c1-worker-1", ZONE, "n1-standard-4", public, labels={"cluster": "c1"}))
    await engine.delete(ZONE, "c1-worker-1", {})


async def entered(url: str, engine: ComputeEngine, vm: Vm, key: Path) -> Connection:
    return await connect(
        Relay(Path(about(url)["relay"])),
        vm.address,
        user="transient",
        key=key,
        host_keys=await engine.host_keys(vm.zone, vm.name),
        name=f"compute.{vm.id}",
        timeout=60,
    )


@pytest.mark.slow
async def test_an_emulated_vm_is_used_like_any_other(
    url: str, engine: ComputeEngine, emulated_vm: Vm, tmp_path: Path
) -> None:
    async with await entered(url, engine, emulated_vm, tmp_path / "key") as connection:
        home = await connection.home()
        assert await connection.run("pwd") == f"{home}\n"
        sha = await push_bundle(connection)
        program = "import transient_magics.errors as errors; print(errors.__file__)"
        where = await connection.run(f"PYTHONPATH=$HOME/transient/code/{sha} transient-python -c '{program}'")
        assert where == f"{home}/transient/code/{bundle()[0]}/transient_magics/errors.py\n"
        await connection.put_bytes("transient/runs/run-1/run.json", b"{}")
        await connection.get("transient/runs/run-1/run.json", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"{}"


@pytest.mark.slow
async def test_nothing_that_a_command_does_costs_the_connection(
    url: str, engine: ComputeEngine, emulated_vm: Vm, tmp_path: Path
) -> None:
    async with await entered(url, engine, emulated_vm, tmp_path / "key") as connection:
        with pytest.raises(CommandError, match="late complaint"):
            await connection.run("echo out; exec >&-; sleep 0.2; echo late complaint >&2; exit 3")
        with pytest.raises(CommandError, match="did not end within"):
            await connection.run("sleep 60", timeout=0.2)
        for number in range(10):
            async with aclosing(connection.follow("events")) as lines:
                await connection.run(f"echo {number} >> events")
                await anext(lines)
        assert not connection.closed.is_set()


@pytest.mark.slow
async def test_what_was_started_goes_on_and_is_followed_further(
    url: str, engine: ComputeEngine, emulated_vm: Vm, tmp_path: Path
) -> None:
    key, live = tmp_path / "key", []

    async def connected() -> Connection:
        live.append(await entered(url, engine, emulated_vm, key))
        return live[-1]

    async with await connected() as connection:
        count = "n=0; while [ $n -lt 40 ]; do echo line $n; n=$((n+1)); sleep 0.02; done"
        await connection.start_detached(count, "logs/count.log")
    arrived = []
    async with asyncio.timeout(60), aclosing(follow_across(connected, "logs/count.log")) as lines:
        async for _, line in lines:
            arrived.append(line)
            if line == b"line 20":
                await live[-1].close()
            if line == b"line 39":
                break
    assert arrived == [b"line %d" % number for number in range(40)]
    for connection in live:
        await connection.close()


async def test_a_deleted_vm_is_noticed_at_once(
    url: str, engine: ComputeEngine, emulated_vm: Vm, tmp_path: Path
) -> None:
    async with await entered(url, engine, emulated_vm, tmp_path / "key") as connection:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(engine.delete(emulated_vm.zone, emulated_vm.name, {}))
            await connection.closed.wait()
        assert "keepalive" not in connection.reason, "its silence would have been noticed seconds later"


async def test_another_machine_at_its_address_is_refused(url: str, emulated_vm: Vm, tmp_path: Path) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    with pytest.raises(HostKeyError):
        await connect(
            Relay(Path(about(url)["relay"])),
            emulated_vm.address,
            user="transient",
            key=tmp_path / "key",
            host_keys=[other],
            name="compute.1",
        )
