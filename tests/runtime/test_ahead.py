"""A worker that is made ready while another run has the VM: it begins when it is told to, and not before."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_agent import DECLARATION, worker
from tests.runtime.test_joining import laps
from tests.runtime.test_other_runs import events
from tests.runtime.test_own_models import OWN
from tests.runtime.test_training import assignment
from transient_magics.protocol.agent_commands import Assign, Assignment, MakeReady, Stop
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.agent import agent as agent_module
from transient_magics.runtime.agent import supervise
from transient_magics.runtime.agent.agent import Agent
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.role import Stopwatch
from transient_magics.runtime.tf.graph_mode import GPU
from transient_magics.runtime.worker import graph

CELL = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf

def input_fn(mode):
    return np.ones((8, 3), "f"), np.arange(8) % 2

def model_fn(features, labels, mode):
    logits = features @ tf.get_variable("weights", [3, 2])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return {"loss": loss, "optimizer": lambda rate: tf.train.GradientDescentOptimizer(rate), "learning_rate": 0.1}
"""
BROKEN = CELL + """\nif '"role":"worker"' in ' '.join(sys.argv): raise KeyError("a file of the cell's")\n"""


class Ahead:
    """A run with a parameter server, whose worker is made ready before it has the VM."""

    def __init__(self, room: MachineRoom, cell: str) -> None:
        server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
        self.room = room
        self.server, self.worker = (assignment(name, [server], chief) for name in ("ps-0", "worker-1"))
        for name in ("ps-0", "worker-1"):
            room.start_agent(name)
            room.put(name, {**OWN, "train_steps": 10**6, "most_workers": 1}, cell)
        assert room.say("worker-1", {**self.worker, "do": "make ready"}) == {"ok": True}
        room.say("ps-0", self.server)
        until(lambda: events(room, "train.started"), "the variables")

    @property
    def log(self) -> str:
        place = self.room.run_folder("worker-1") / "logs" / "worker-1.log"
        return place.read_text(encoding="utf-8") if place.exists() else ""

    def numbers(self) -> list[str]:
        """Those that its chief has given out."""
        return list(json.loads((self.room.run_folder("ps-0") / "chief.json").read_text(encoding="utf-8"))["given"])


@pytest.mark.training
def test_it_has_all_but_its_server_ready_and_joins_the_run_when_it_is_told_to(room: MachineRoom) -> None:
    ahead = Ahead(room, CELL)
    until(lambda: "ready, before the run has this VM" in ahead.log, "a worker that is ready")
    (process,) = room.pids("worker-1").values()
    assert ahead.numbers() == []
    room.say("worker-1", ahead.worker)
    until(lambda: events(room, "worker.joined"), "its first step")
    assert list(room.pids("worker-1").values()) == [process]
    assert ahead.numbers() == ["0"]
    until(lambda: "first gradient" in ahead.log, "what took how long")
    assert list(laps(ahead.log)) == ["tensorflow", "code", "graph", "ahead", "data", "session", "step"]


@pytest.mark.training
def test_what_is_wrong_with_it_is_told_once_it_has_the_vm(room: MachineRoom) -> None:
    ahead = Ahead(room, BROKEN)
    (process,) = until(lambda: room.pids("worker-1"), "its process").values()
    assert not events(room, "train.failed")
    room.say("worker-1", ahead.worker)
    (failed,) = until(lambda: events(room, "train.failed"), "the end of the run")
    assert "a file of the cell's" in failed["reason"]
    assert [each["pid"] for each in room.reports("worker-1", "process.started")] == [process]


@pytest.mark.training
def test_it_outlives_the_agent_has_a_successor_and_goes_with_its_run(room: MachineRoom) -> None:
    def there() -> dict[str, int]:
        return {each["run"]: each["pid"] for each in room.say("vm", {"do": "ping"})["processes"]}

    room.start_agent("vm")
    for run in ("run-1", "run-2"):
        room.put("vm", {**DECLARATION, "name": run}, "")
    first, second = ({**worker(free_ports(1), run), "runs": ["run-1", "run-2"]} for run in ("run-1", "run-2"))
    assert room.say("vm", first) == {"ok": True}
    ready = {**second, "do": "make ready"}
    assert room.say("vm", ready) == {"ok": True}
    before = until(lambda: len(there()) == 2 and there(), "both")
    room.kill_agent("vm")
    room.start_agent("vm")
    for command in (ready, first):
        assert room.say("vm", command) == {"ok": True}
    assert there() == before, "said twice it is done once"
    os.kill(before["run-2"], signal.SIGKILL)
    after = until(lambda: len(there()) == 2 and there() != before and there(), "another one")
    waits = room.run_folder("vm", "run-2") / "ahead"
    assert waits.exists()
    assert room.say("vm", {"do": "stop", "run": "run-1"}) == {"ok": True}
    assert room.say("vm", second) == {"ok": True}
    assert not waits.exists()
    assert room.say("vm", ready) == {"ok": True}
    assert not waits.exists(), "what has begun does not wait again"
    assert there() == {"run-2": after["run-2"]}
    assert room.say("vm", {"do": "stop", "run": "run-2"}) == {"ok": True}
    assert there() == {}


def test_of_a_gpu_that_another_run_has_it_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setenv(GPU, "1")
    monkeypatch.setattr(graph, "import_tensorflow", lambda _: done.append("imported"))
    monkeypatch.setattr(graph, "load_model", lambda *_: done.append("a cell that has Keras compute"))
    graph.GraphMaker(RunFolder(tmp_path), RunSpec("run-1", 1), 1, Stopwatch(0.0)).make_ready()
    assert done == ["imported"]


def declared(root: Path) -> Assignment:
    folder = root / "runs" / "run-1"
    (folder / "logs").mkdir(parents=True)
    (folder / "run.json").write_text("{}", encoding="utf-8")
    return Assignment("run-1", "worker", "worker-1", "127.0.0.1", ("127.0.0.1:1",), "127.0.0.1:1")


async def test_one_that_kept_ending_is_started_once_more_when_it_has_the_vm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_PAUSES", ())
    agent, given = Agent(tmp_path), declared(tmp_path)
    monkeypatch.setattr(agent, "_server_for", lambda _: None)
    await agent._carry_out(MakeReady.of(given))
    (role,) = agent._roles.values()
    async with asyncio.timeout(300):
        while not role.has_ended:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await agent._carry_out(Assign.of(given, ("run-1",)))
    (again,) = agent._roles.values()
    assert again is not role
    await agent._carry_out(Stop(run="run-1"))


@pytest.mark.parametrize("more", [0, 2**31])
async def test_none_is_made_ready_where_there_is_no_memory_for_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    agent, given, mine = Agent(tmp_path), declared(tmp_path), 2**28
    trains = agent_module.RoleProcess(tmp_path, Assignment(**{**given.to_dict(), "run": "run-0"}), lambda _: None)  # type: ignore[arg-type]
    monkeypatch.setattr(trains, "_process", type("Process", (), {"pid": 1}))
    agent._roles["run-0", "worker-1"] = trains
    monkeypatch.setattr(agent_module.process_record, "resident_bytes", lambda _: mine)
    monkeypatch.setattr(agent_module, "available_memory", lambda: mine + more)
    started: list[Any] = []
    monkeypatch.setattr(agent, "_start", started.append)
    await agent._carry_out(MakeReady.of(given))
    assert bool(started) == RunFolder(tmp_path / "runs" / "run-1").ahead.exists() == (more > 2**30)
