"""The parts of a Dask cluster as an agent has them: real processes and TLS; notices, crashes, memory, and no client.

Dask is imported where it is used: it takes a tenth of what it takes to collect all tests, and few of them need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.processes import until
from transient_magics.protocol import layout
from transient_magics.protocol.agent_commands import Begin, End
from transient_magics.protocol.outputs import MOST_PRINTED
from transient_magics.runtime import process_record
from transient_magics.runtime.agent.processes import Processes
from transient_magics.works.dask import certificates
from transient_magics.works.dask.on_vm import record
from transient_magics.works.dask.on_vm.task import DaskTask
from transient_magics.works.dask.spec import DaskSpec

pytestmark = pytest.mark.skipif(find_spec("distributed") is None, reason="Dask is not installed here")
PATIENCE = 120.0


END = End(kind="dask", work="dask-1")


class OneVm:
    """A VM: the root of an agent that is this test, with the files of its part."""

    def __init__(self, top: Path, name: str, authority: Path, **spec: Any) -> None:
        self.root, self.name = top / name, name
        self.folder = self.root / layout.DASKS / "dask-1"
        (self.folder / layout.TLS_CA).parent.mkdir(parents=True)
        certificate, key = certificates.issued(authority, name, time.time() + 3600)
        (self.folder / layout.TLS_CA).write_bytes((authority / layout.TLS_CA).read_bytes())
        (self.folder / layout.TLS_CERTIFICATE).write_bytes(certificate)
        (self.folder / layout.TLS_KEY).write_bytes(key)
        declared = DaskSpec("dask-1", 2, **{"threads": 1, "allowed_failures": 1, **spec})
        (self.folder / layout.DASK).write_text(json.dumps(declared.to_dict()), encoding="utf-8")
        self.agent = Processes(self.root)

    async def begin(self, scheduler: str = "") -> None:
        task = DaskTask("worker" if scheduler else "scheduler", self.name, "127.0.0.1", scheduler)
        await self.agent.begin(Begin(kind="dask", work="dask-1", task=task.to_dict()))

    def told(self, kind: str) -> list[dict[str, Any]]:
        path = self.folder / layout.DASK_EVENTS
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        return [line for line in lines if line["kind"] == kind]

    @property
    def process(self) -> int:
        found = process_record.running(self.folder)
        assert found
        return found[0]


class Room:
    """A scheduler's VM, workers' VMs, and a client."""

    def __init__(self, top: Path) -> None:
        self.top, self.authority = top, top / "here"
        self.authority.mkdir()
        certificates.make(self.authority, "dask-1", time.time() + 3600)
        self.vms: list[OneVm] = []
        self.scheduler = self.vm("ps-0")

    def vm(self, name: str, **spec: Any) -> OneVm:
        self.vms.append(OneVm(self.top, name, self.authority, **spec))
        return self.vms[-1]

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.scheduler.told('dask.serving')[0]['port']}"

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        import cloudpickle
        import distributed

        from transient_magics.works.dask.on_vm.task import security

        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests
        own = security(self.authority)
        async with distributed.Client(
            f"tls://{self.place}", security=own, direct_to_workers=False, asynchronous=True, set_as_default=False
        ) as client:
            yield client

    async def workers(self, client: Any, names: set[str]) -> dict[str, str]:
        """Wait until it has exactly these; their addresses."""
        async with asyncio.timeout(PATIENCE):
            while True:
                info = await client.scheduler.identity(n_workers=-1)
                known = {each["name"]: address for address, each in info["workers"].items()}
                if set(known) == names:
                    return known
                await asyncio.sleep(0.1)


@pytest.fixture
async def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Room]:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")  # nobody there: no notice comes
    room = Room(tmp_path)
    await room.scheduler.begin()
    await until(lambda: room.scheduler.told("dask.serving"))
    try:
        yield room
    finally:
        for vm in room.vms:
            await vm.agent.end(END)


async def test_a_part_that_is_ended_before_it_begins_never_begins_and_its_keys_are_deleted(tmp_path: Path) -> None:
    """The files are on the VM, and the user stops the Dask cluster before the agent is told to begin."""
    authority = tmp_path / "here"
    authority.mkdir()
    certificates.make(authority, "dask-1", time.time() + 3600)
    vm = OneVm(tmp_path, "ps-0", authority)
    await vm.agent.end(END)
    await vm.begin()
    assert process_record.requested(vm.folder) is None
    assert not any((vm.folder / name).exists() for name in (layout.TLS_CA, layout.TLS_CERTIFICATE, layout.TLS_KEY))


@pytest.mark.slow
async def test_a_worker_leaves_in_time_and_a_crash_is_a_fault_as_a_loss_is_not(room: Room) -> None:
    from distributed import KilledWorker

    first, second = room.vm("worker-0"), room.vm("worker-1")
    await first.begin(room.place)
    await second.begin(room.place)
    async with room.client() as client:
        known = await room.workers(client, {"worker-0", "worker-1"})

        # What only a leaving worker has is moved, what it computes may end, what it has not begun goes elsewhere.
        kept = client.map(bytes, [1_000_000 + each for each in range(4)], workers=[known["worker-0"]], pure=False,
                          allow_other_workers=True)  # fmt: skip
        await asyncio.gather(*kept)
        computing = client.map(_slow, range(4), workers=[known["worker-0"]], allow_other_workers=True)
        await asyncio.sleep(1.0)
        began = time.monotonic()
        await client.scheduler.transient_leave(worker=known["worker-0"], executing=[computing[0].key], seconds=90.0)
        assert time.monotonic() - began < 60, "it does not wait for all of its time"
        [left] = room.scheduler.told("dask.left")
        assert (left["worker"], left["lost"]) == ("worker-0", 0)
        assert left["moved_bytes"] >= 1_000_000, "those that were made there"
        assert await client.gather(computing) == [0, 1, 2, 3]
        assert {len(each) for each in await client.gather(kept)} == {1_000_000 + each for each in range(4)}

        # The agent has begun it again, as after client.restart(): no crash was told.
        await room.workers(client, {"worker-0", "worker-1"})
        assert not first.told("dask.crashed")

        # A VM that is taken without a notice: however often, it is nobody's fault.
        await first.agent.end(END)
        await room.workers(client, {"worker-1"})
        awake = room.top / "awake"
        sleeping = client.submit(_sleep_until, str(awake), pure=False)
        for _ in range(2):
            process = second.process
            second.agent.notice()
            os.kill(process, signal.SIGKILL)
            await until(lambda process=process: not Path(f"/proc/{process}").exists())
            second.agent = Processes(second.root)  # its replacement
            await second.begin(room.place)
            await room.workers(client, {"worker-1"})
        assert sleeping.status == "pending"
        awake.touch()
        await sleeping

        # A task that crashes its worker fails, and its neighbour does not.
        crashes = client.submit(_crash, pure=False)
        with pytest.raises(KilledWorker) as failed:
            await crashes
        assert "2 x signal 9" in "".join(failed.value.__notes__)
        assert len(second.told("dask.crashed")) == 2
        await room.workers(client, {"worker-1"})
        assert await client.submit(_slow, 1) == 1


@pytest.mark.slow
async def test_too_much_memory_is_told_apart_and_nobody_comes_in_without_a_certificate(room: Room) -> None:
    from distributed import KilledWorker

    vm = room.vm("worker-0", memory_bytes=300_000_000)
    await vm.begin(room.place)
    for made in (ssl.create_default_context, ssl._create_unverified_context):
        with pytest.raises(OSError):  # noqa: PT011 (of TLS, in one way or another)
            await _talk(room.place, made())
    strange = room.top / "strange"
    strange.mkdir()
    certificates.make(strange, "dask-1", time.time() + 3600)  # of the same name
    context = ssl._create_unverified_context()
    context.load_cert_chain(strange / layout.TLS_CERTIFICATE, strange / layout.TLS_KEY)
    with pytest.raises(OSError):  # noqa: PT011
        await _talk(room.place, context)
    async with room.client() as client:
        await room.workers(client, {"worker-0"})
        with pytest.raises(KilledWorker) as failed:
            await client.submit(_grow, pure=False)
        assert "memory" in "".join(failed.value.__notes__)
        assert all(each["reason"].startswith("memory") for each in vm.told("dask.crashed"))
    keys = [room.authority / name for name in (layout.TLS_KEY, layout.TLS_CA_KEY)]
    assert not [path for path in keys if path.stat().st_mode & 0o77]


@pytest.mark.slow
async def test_a_bags_worker_that_does_not_come_up_is_told_of_once_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    authority = tmp_path / "here"
    authority.mkdir()
    certificates.make(authority, "dask-1", time.time() + 3600)
    vm = OneVm(tmp_path, "worker-1", authority, bag="bag-1")
    wheels = vm.folder / layout.WHEELS
    wheels.mkdir()
    (wheels / "broken-1.0-py3-none-any.whl").write_bytes(b"no archive")
    await vm.begin("127.0.0.1:1")
    await until(lambda: vm.told("dask.crashed"))
    await vm.agent.end(END)
    reason = vm.told("dask.crashed")[0]["reason"]
    assert reason.startswith("it does not start: exit code 1 (pip cannot install broken-1.0-py3-none-any.whl: ")
    assert len(reason) < 500


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which Dask is set to give up silent workers after seconds, where it takes five minutes by itself."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "1s")


def hold(path: str) -> str:
    """Hold the interpreter for as long, as compiled code does that a job calls."""
    import ctypes

    with open(path, "a", encoding="utf-8") as file:
        file.write("once ")
    ctypes.PyDLL(None).sleep(9)
    return "held"


@pytest.mark.slow
async def test_a_worker_whose_task_holds_the_interpreter_is_waited_for(
    tmp_path: Path, impatient: None, room: Room
) -> None:
    await room.vm("worker-0").begin(room.place)
    async with room.client() as client:
        await room.workers(client, {"worker-0"})
        assert await asyncio.wait_for(client.submit(hold, str(tmp_path / "computed")), 60) == "held"
    assert (tmp_path / "computed").read_text(encoding="utf-8") == "once "


@pytest.mark.slow
async def test_a_job_that_holds_the_interpreter_past_its_time_ends_with_its_process(room: Room) -> None:
    from distributed import KilledWorker

    from transient_magics.works.dask.on_vm.bag_task import compute

    def asked(source: str) -> list[Any]:
        return [f"import ctypes, time\ndef job(): {source}", {}, 0, 0, 1, 0.0, b"", (), 2.0]

    vm = room.vm("worker-0")
    await vm.begin(room.place)
    async with room.client() as client:
        await room.workers(client, {"worker-0"})
        assert (await client.submit(compute, *asked("return {'y': 1.0}"), pure=False))["returned"] == {"y": 1.0}
        await asyncio.sleep(2.5)
        assert not vm.told("dask.crashed"), "no other job's process is ended for it"
        held = client.submit(compute, *asked("ctypes.PyDLL(None).sleep(1000)"), pure=False)
        with pytest.raises(KilledWorker):
            await asyncio.wait_for(held, PATIENCE)
    assert {each["reason"] for each in vm.told("dask.crashed")} == {"time: a job exceeded its limit"}


POOLS = """
import asyncio, concurrent.futures, multiprocessing, signal, time

def job():
    total = 0
    for _ in range(3):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            total += sum(pool.map(abs, [-1, 1]))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        total += sum(pool.map(abs, [-4]))
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        total += sum(executor.map(abs, [-10, -20]))
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join()
    loop = asyncio.get_event_loop()
    return {"total": total, "code": process.exitcode, "waited": loop.run_until_complete(asyncio.sleep(0, 1))}
"""


@pytest.mark.slow
async def test_jobs_have_processes_and_an_event_loop_and_a_worker_that_ends_unasked_is_a_crash(room: Room) -> None:
    from distributed import KilledWorker

    from transient_magics.works.dask.on_vm.bag_task import compute

    vm = room.vm("worker-0")
    await vm.begin(room.place)
    async with room.client() as client:
        await room.workers(client, {"worker-0"})
        found = await client.submit(compute, POOLS, {}, 0, 0, 1, 0.0, b"", (), 600.0, pure=False)
        assert found["returned"] == {"total": 40, "code": -signal.SIGTERM, "waited": 1}
        handles = "import signal\ndef job(): signal.signal(signal.SIGALRM, print)"
        found = await client.submit(compute, handles, {}, 0, 0, 1, 0.0, b"", (), pure=False)
        assert "a job runs in a thread; handle signals in a process that it starts" in found["reason"]
        assert not vm.told("dask.crashed")
        for code, how in (("os._exit(0)", "exit code 0"), ("os.kill(os.getpid(), 15); time.sleep(3)", "signal 15")):
            ends = f"import os, time\ndef job(): {code}"
            ended = client.submit(compute, ends, {}, 0, 0, 1, 0.0, b"", (), pure=False)
            with pytest.raises(KilledWorker) as caught:
                await asyncio.wait_for(ended, PATIENCE)
            assert f"2 x {how}" in "".join(caught.value.__notes__)
    assert [each["reason"] for each in vm.told("dask.crashed")] == 2 * ["exit code 0"] + 2 * ["signal 15"]


@pytest.mark.slow
async def test_a_scheduler_that_is_killed_is_told_of_and_never_begun_again(room: Room) -> None:
    os.kill(room.scheduler.process, signal.SIGKILL)
    await until(lambda: room.scheduler.told("dask.crashed"))
    assert room.scheduler.told("dask.crashed")[0]["reason"] == "signal 9"
    await room.scheduler.begin()
    await asyncio.sleep(0.5)
    assert process_record.running(room.scheduler.folder) is None


def test_a_fault_counts_where_the_vm_lives_to_tell_it() -> None:
    from transient_magics.works.dask.on_vm.scheduler import Faults  # Dask's scheduler takes half a second to import

    faults = Faults(allowed=1)
    faults.gone("a", ["x", "y"])
    faults.gone("b", ["x"])
    assert faults.crashed("a", 1, "signal 9") == {}
    assert faults.crashed("a", 1, "signal 9") == {}, "told twice"
    assert faults.crashed("c", 2, "signal 9") == {}, "it had nothing in hand"
    assert faults.crashed("b", 3, "memory") == {"x": "1 x memory, 1 x signal 9"}
    faults.failed("x")
    faults.gone("d", ["x"])
    assert faults.crashed("d", 4, "memory") == {}, "tried again, it begins anew"


async def _talk(place: str, context: ssl.SSLContext) -> None:
    """Raises OSError where one who has this is not let in."""
    context.check_hostname = False
    host, _, port = place.partition(":")
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        try:
            if not await reader.read(1):
                raise ConnectionResetError("it was closed")
        finally:
            writer.close()


def _sleep_until(place: str) -> None:
    while not os.path.exists(place):
        time.sleep(0.05)


def _slow(value: float) -> float:
    time.sleep(1.0)
    return value


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _grow() -> int:
    held = []
    while True:
        held.append(b"x" * 20_000_000)
        time.sleep(0.02)


def test_of_what_jobs_print_the_end_is_kept_whatever_they_write_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record.last_output(tmp_path) == "", "nothing was printed"
    monkeypatch.setattr(record, "_MOST_BYTES", 50_000)
    program = (
        "import os, sys; from pathlib import Path; from transient_magics.works.dask.on_vm import "
        "record\nfolder = Path(sys.argv[1]); record.capture_output(folder)\n"
        "print('of the job before'); record.clear_output(folder)\n"
        "for line in range(5000): print(f'line {line:06}')\n"
        "record.shorten_output(folder); os.system('echo by a child; echo as an error >&2'); "
        "os.abort()"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGABRT, ended.stderr
    assert ended.stdout == b""
    size = (tmp_path / record.OUTPUT_FILE).stat().st_size
    record.shorten_output(tmp_path)
    end = record.last_output(tmp_path)
    assert (tmp_path / record.OUTPUT_FILE).stat().st_size < size / 3
    assert len(end) <= MOST_PRINTED
    assert end.startswith("line ")
    assert end.endswith("line 004999\nby a child\nas an error")
