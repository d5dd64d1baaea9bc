"""The agent as the controller sees it: its socket, its lines, and what it does when roles or itself die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import processes
from tests.runtime.machine_room import PROJECT, MachineRoom, free_ports, until
from transient_magics.runtime.agent import agent as agent_module
from transient_magics.runtime.agent.agent import Agent
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server.chief import programs
from transient_magics.runtime.worker.gpu import likely_reason

DECLARATION = {"name": "run-1", "model": "m", "hparams_set": "h", "problem": "p", "train_steps": 1, "token": "t"}


def worker(ports: list[int], run: str = "run-1") -> dict[str, object]:
    """A worker that waits for a chief that never comes: it lives without TensorFlow for a while."""
    place = f"127.0.0.1:{ports[0]}"
    return {
        "do": "assign",
        "run": run,
        "role": "worker",
        "name": "worker-1",
        "address": "127.0.0.1",
        "ps": [place],
        "chief": place,
    }


def test_an_agent_answers_and_refuses_what_it_cannot_do(room: MachineRoom):
    pid = room.start_agent("vm")
    assert room.say("vm", {"do": "ping"}) == {"ok": True, "pid": pid, "processes": [], "imported": False}
    assert stat.S_IMODE((room.root("vm") / "agent.sock").stat().st_mode) == 0o600
    assert [line["pid"] for line in room.reports("vm", "agent.started")] == [pid]
    for message, said in (
        ({"do": "dance"}, "unknown kind of message 'dance'"),
        ({"do": "assign", "run": "../x"}, "assign: run: '../x' is not a valid name"),
        (worker(free_ports(1)), "run.json"),
        ({**WARM, "name": "../x"}, "is not a valid name"),
        ({"do": "save", "run": "run-1"}, "chief of run-1 does not run"),
    ):
        answer = room.say("vm", message)
        assert answer["ok"] is False
        assert said in answer["error"]


async def test_an_agent_that_waits_for_a_role_to_end_still_answers(tmp_path: Path):
    """A controller takes one that does not for dead, and kills it; a chief may save for long before it ends."""
    agent = Agent(tmp_path)
    async with agent._changing:
        answer = await asyncio.wait_for(agent._answer(b'{"do": "ping"}'), 60)
    assert answer == {"ok": True, "pid": os.getpid(), "processes": [], "imported": False}


def test_the_same_assignment_changes_nothing_and_another_place_restarts_the_role(room: MachineRoom):
    room.start_agent("vm")
    room.put("vm", DECLARATION, "")
    first, second = worker(free_ports(1)), worker(free_ports(1))
    assert room.say("vm", first) == {"ok": True}
    before = until(lambda: room.pids("vm"), "a process")
    assert room.say("vm", first) == {"ok": True}
    assert room.pids("vm") == before
    assert room.say("vm", second) == {"ok": True}
    until(lambda: room.pids("vm") and room.pids("vm") != before, "another process")
    assert room.say("vm", {"do": "stop", "run": "run-1"}) == {"ok": True}
    assert room.pids("vm") == {}


@pytest.mark.slow
def test_a_role_that_stands_by_begins_when_it_is_told_so_and_outlives_the_agent_until_then(room: MachineRoom):
    room.start_agent("vm")
    room.put("vm", DECLARATION, "")
    assignment, run = worker(free_ports(1)), room.root("vm") / "runs" / "run-1"
    assert room.say("vm", {**assignment, "standby": True}) == {"ok": True}
    before = until(lambda: room.pids("vm"), "a process")
    (run / "prepared").touch()  # as it does itself once it has all but the values
    assert [each["prepared"] for each in room.say("vm", {"do": "ping"})["processes"]] == [True]
    room.kill_agent("vm")
    room.start_agent("vm")
    assert room.say("vm", {**assignment, "standby": True}) == {"ok": True}
    assert (run / "standby").exists()
    assert room.say("vm", assignment) == {"ok": True}
    assert not (run / "standby").exists()
    assert room.pids("vm") == before, "no other process"
    os.kill(before["worker-1"], signal.SIGKILL)
    until(lambda: room.pids("vm") and room.pids("vm") != before, "its successor")
    assert not (run / "prepared").exists(), "which has nothing ready yet"


@pytest.mark.slow
def test_a_killed_agent_is_followed_by_one_that_adopts_the_roles(room: MachineRoom):
    room.start_agent("vm")
    room.put("vm", DECLARATION, "")
    room.say("vm", worker(free_ports(1)))
    before = until(lambda: room.pids("vm"), "a process")
    room.kill_agent("vm")
    room.start_agent("vm")
    assert room.pids("vm") == before
    os.kill(before["worker-1"], signal.SIGKILL)
    until(lambda: room.reports("vm", "process.exited"), "the exit of an adopted process")
    until(lambda: room.pids("vm") and room.pids("vm") != before, "its successor")


def test_a_notice_is_reported_at_once_and_the_worker_leaves_for_good(room: MachineRoom):
    room.start_agent("vm")
    room.put("vm", {**DECLARATION, "notice_seconds": 3}, "")
    room.say("vm", worker(free_ports(1)))
    until(lambda: room.pids("vm"), "a process")
    flipped = room.preempt("vm")
    notice = until(lambda: room.reports("vm", "vm.preemption_notice"), "the notice")[0]
    assert notice["time"] - flipped < 5e9
    exit_ = until(lambda: room.reports("vm", "process.exited"), "the worker's exit")[0]
    assert exit_["name"] == "worker-1"
    until(lambda: not room.pids("vm"), "no process")
    answer = room.say("vm", worker(free_ports(1)))
    assert answer["ok"] is False
    assert "has a preemption notice" in answer["error"]


WARM = {"do": "warm", "run": "run-1", "role": "worker", "name": "worker-1"}


def servers(room: MachineRoom) -> list[int]:
    """The fork servers of the machine, without what they have just forked."""
    found = [
        pid for pid, line in processes.bearing(str(room.root("vm"))).items() if "runtime.agent.fork_server" in line
    ]
    return [pid for pid in found if parent(pid) not in found]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def handles_notice(pid: int) -> bool:
    """Whether a process has got as far as having something to do at SIGTERM."""
    (caught,) = [
        line.split()[1]
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        if "SigCgt" in line
    ]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def another_worker(room: MachineRoom, before: int) -> int:
    """The process that is the worker after `before`."""
    others = lambda: [pid for pid in room.pids("vm").values() if pid != before]  # noqa: E731
    return until(others, "another process")[0]


@pytest.mark.training
def test_roles_are_forked_while_a_fork_server_lives_and_start_plainly_without(room: MachineRoom):
    agent = room.start_agent("vm")
    room.put("vm", DECLARATION, "")
    assert room.say("vm", WARM) == room.say("vm", WARM) == {"ok": True}
    assert room.say("vm", worker(free_ports(1))) == {"ok": True}
    (server,) = until(lambda: servers(room), "a fork server")
    first = another_worker(room, 0)
    assert parent(first) == server
    called = [b"transient_magics.runtime.worker", b"--run-folder", bytes(room.run_folder("vm"))]
    until(lambda: Path(f"/proc/{first}/cmdline").read_bytes().split(b"\0")[2:5] == called, "its own command line")
    assert os.getsid(first) == first
    assert os.readlink(f"/proc/{first}/cwd") == str(room.run_folder("vm"))
    assert os.readlink(f"/proc/{first}/fd/2") == str(room.run_folder("vm") / "logs" / "worker-1.log")
    assert Path(f"/proc/{server}/oom_score_adj").read_text(encoding="utf-8") == "1000\n", "the kernel takes it first"
    assert Path(f"/proc/{first}/oom_score_adj").read_text(encoding="utf-8") != "1000\n"

    os.kill(first, signal.SIGKILL)
    second = another_worker(room, first)
    assert parent(second) == server, "it is forked again"
    assert [exited["code"] for exited in room.reports("vm", "process.exited")] == [-signal.SIGKILL]
    assert room.say("vm", WARM) == {"ok": True}
    assert servers(room) == [server], "it is there already"

    os.kill(server, signal.SIGKILL)
    until(lambda: not servers(room), "its end")
    assert room.pids("vm") == {"worker-1": second}, "what it forked lives on"
    os.kill(second, signal.SIGKILL)
    assert parent(another_worker(room, second)) == agent


@pytest.mark.training
def test_a_program_beside_a_run_is_forked_and_ends_with_its_caller(room: MachineRoom):
    room.start_agent("vm")
    room.put(
        "vm", {**DECLARATION, "model": "", "hparams_set": "", "problem": "", "seed": 3}, "import time\ntime.sleep(600)"
    )
    folder = RunFolder(room.run_folder("vm"))
    folder.logs.mkdir(exist_ok=True)
    given = ("--run", str(folder.path))
    assert asyncio.run(programs.answer_of_fork(folder, "evaluate", given)) is None, "there is no fork server"

    room.say("vm", {**WARM, "own": True})
    caller = subprocess.Popen(["sleep", "600"])
    asked = {"do": "fork", "run": "run-1", "program": "evaluate", "arguments": given, "caller": caller.pid}
    pid = room.say("vm", asked)["pid"]
    assert [parent(pid)] == servers(room)
    called = [b"transient_magics.runtime.programs.evaluate", b"--run", bytes(folder.path)]
    until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[2:5] == called, "its own command line")
    caller.kill()
    caller.wait()
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end")

    folder.cell.write_text("import sys\nraise ValueError(f\"imported: {'ker' 'as' in sys.modules}\")", encoding="utf-8")
    said = asyncio.run(programs.answer_of_fork(folder, "evaluate", given))
    assert said is not None
    assert "imported: True" in json.loads(said)["error"], "a cell's Keras is there"

    folder.cell.write_text("import keras, random\nraise ValueError(f'drawn: {random.random()}')", encoding="utf-8")
    drawn = asyncio.run(programs.answer_of_fork(folder, "evaluate", given))
    assert drawn is not None
    plain = asyncio.run(programs.answer("evaluate", *given, log=folder.logs / "plain.log", limit=600))
    assert "drawn: 0." in plain["error"]
    assert json.loads(drawn) == plain, "what follows from a seed is the same in a process that was not forked"


@pytest.mark.training
def test_the_worker_of_a_trial_is_forked_and_has_a_fork_server_for_that(room: MachineRoom):
    agent = room.start_agent("vm")
    own = {**DECLARATION, "model": "", "hparams_set": "", "problem": ""}
    room.put("vm", own, "")
    room.say("vm", worker(free_ports(1)))
    assert parent(plain := another_worker(room, 0)) == agent
    room.say("vm", {"do": "stop", "run": "run-1"})
    room.put("vm", {**own, "name": "run-2", "study": "study", "trial": 0}, "")
    room.say("vm", worker(free_ports(1), "run-2"))
    (server,) = until(lambda: servers(room), "a fork server")
    assert parent(another_worker(room, plain)) == server


@pytest.mark.training
def test_a_fork_server_ends_with_its_agent_and_serves_the_next_run(room: MachineRoom):
    room.start_agent("vm")
    for run in ("run-1", "run-2"):
        room.put("vm", {**DECLARATION, "name": run}, "")
    room.say("vm", WARM)
    room.say("vm", worker(free_ports(1)))
    first = another_worker(room, 0)
    (server,) = servers(room)
    room.say("vm", {"do": "stop", "run": "run-1"})
    room.say("vm", {**WARM, "run": "run-2"})
    room.say("vm", worker(free_ports(1), "run-2"))
    second = another_worker(room, first)
    assert parent(second) == server
    until(lambda: handles_notice(second), "its work")  # before that it ends where its agent has gone

    os.kill(server, signal.SIGSTOP)
    room.kill_agent("vm")
    until(lambda: not servers(room), "its end")
    room.start_agent("vm")
    assert room.pids("vm") == {"worker-1": second}


async def test_a_role_that_runs_for_long_gets_a_fork_server_if_memory_is_free_and_a_vm_without_work_lets_it_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Server:
        alive = True

        def __init__(self, root: Path, *, own: bool) -> None:
            self.own, self.ended = own, asyncio.Event()
            started.put_nowait(self)

        def end(self) -> None:
            self.ended.set()

    started: asyncio.Queue[Server] = asyncio.Queue()
    monkeypatch.setattr(agent_module, "ForkServer", Server)
    monkeypatch.setattr(agent_module, "_SERVER_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(agent_module, "_IDLE_SECONDS", 0.02)
    free = asyncio.Event()
    monkeypatch.setattr(agent_module, "available_memory", lambda: int(free.is_set()) << 40)
    agent = Agent(tmp_path)
    assignment = SimpleNamespace(run="run-1", role="worker")
    role = SimpleNamespace(pid=1, requested=True, has_lasted=False, assignment=assignment)
    agent._roles["run-1", "worker-1"] = role  # type: ignore[assignment]
    looking = asyncio.create_task(agent._manage_fork_server())
    for change in (lambda: setattr(role, "has_lasted", True), free.set):
        await asyncio.sleep(0.05)
        assert started.empty()
        change()
    server = await asyncio.wait_for(started.get(), 60)
    await asyncio.sleep(0.05)
    assert not server.ended.is_set()
    assert started.empty()
    role.has_lasted, server.alive = False, False
    server = await asyncio.wait_for(started.get(), 60)  # instead of one that was killed: runs may be short
    role.pid = None
    await asyncio.wait_for(server.ended.wait(), 60)
    looking.cancel()
    assert started.empty()


@pytest.mark.training
@pytest.mark.nightly
def test_a_fork_server_that_stands_still_is_done_without(room: MachineRoom):
    agent = room.start_agent("vm")
    room.put("vm", DECLARATION, "")
    room.say("vm", WARM)
    room.say("vm", worker(free_ports(1)))
    before = another_worker(room, 0)
    (server,) = servers(room)
    os.kill(server, signal.SIGSTOP)
    os.kill(before, signal.SIGKILL)
    assert parent(after := another_worker(room, before)) == agent
    assert not servers(room)
    assert room.pids("vm") == {"worker-1": after}


@pytest.mark.training
def test_what_is_left_of_an_earlier_run_ends_when_another_one_is_assigned(room: MachineRoom):
    room.start_agent("vm")
    for run in ("run-1", "run-2"):
        room.put("vm", {**DECLARATION, "name": run}, "")
    room.say("vm", worker(free_ports(1)))
    earlier = until(lambda: room.pids("vm"), "a process")["worker-1"]
    assert room.say("vm", worker(free_ports(1), "run-2")) == {"ok": True}
    with pytest.raises(ProcessLookupError):
        os.kill(earlier, 0)
    runs = lambda: [process["run"] for process in room.say("vm", {"do": "ping"})["processes"]]  # noqa: E731
    assert until(runs, "its successor") == ["run-2"]


@pytest.mark.training
def test_a_worker_without_the_gpu_that_its_vm_was_rented_for_trains_on_no_cpu(room: MachineRoom):
    room.start_agent("vm")
    declared = {"model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits", "pace_seconds": None}
    room.put("vm", {**DECLARATION, **declared}, (PROJECT / "templates" / "digits.py").read_text(encoding="utf-8"))
    room.say("vm", {**worker(free_ports(1)), "gpu": "t4"})
    (said,) = until(lambda: room.reports("vm", "process.unfit"), "that it is unfit")
    assert (said["run"], said["role"], said["name"]) == ("run-1", "worker", "worker-1")
    assert said["reason"].startswith("TensorFlow cannot use the GPU (t4): ")
    (ended,) = room.reports("vm", "process.exited")
    assert said["reason"] in ended["tail"]
    assert room.pids("vm") == {}, "nor is it started again"


SMI = "#!/bin/sh\necho '{}'\nexit {}\n"


@pytest.mark.parametrize(
    ("driver", "smi", "said"),
    [
        (False, SMI.format("GPU 0: Tesla T4", 0), "the NVIDIA driver is not loaded"),
        (True, None, "nvidia-smi cannot be run (No such file or directory)"),
        (
            True,
            SMI.format("Failed to initialize NVML: Driver/library version mismatch", 18),
            "nvidia-smi printed: Failed to",
        ),
        (True, SMI.format("No devices found", 0), "nvidia-smi printed: No devices found"),
        (True, SMI.format("GPU 0: Tesla T4 (UUID: GPU-0)", 0), "nvidia-smi sees it, but CUDA's driver library cannot"),
    ],
)
def test_the_likely_reason_is_what_the_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: bool, smi: str | None, said: str
):
    monkeypatch.setenv("PATH", str(tmp_path))
    if smi:
        (tmp_path / "nvidia-smi").write_text(smi, encoding="utf-8")
        (tmp_path / "nvidia-smi").chmod(0o700)
    assert likely_reason(tmp_path if driver else tmp_path / "none").startswith(said)


def test_a_frozen_process_is_ended_too(room: MachineRoom):
    room.start_agent("vm")
    room.put("vm", DECLARATION, "")
    room.say("vm", worker(free_ports(1)))
    pid = until(lambda: room.pids("vm"), "a process")["worker-1"]
    os.kill(pid, signal.SIGSTOP)
    room.say("vm", {"do": "stop", "run": "run-1"})
    assert room.pids("vm") == {}
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
