"""A real run of one worker that keeps its variables itself: frozen and replaced, its server killed, and its end."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_own_models import MODEL_FN, OWN
from tests.runtime.test_training import Story, assignment

pytestmark = pytest.mark.training

DECLARED: dict[str, Any] = {
    **OWN, "name": "run-1", "most_workers": 1, "pace_seconds": 0.05, "train_steps": 400, "checkpoint_steps": 20,
    "eval_steps": 150, "noise_share": 0.0,
}  # fmt: skip


def start_agent(room: MachineRoom, name: str) -> None:
    """Start the agent of a machine, and what forks its role."""
    room.start_agent(name)
    room.say(name, {"do": "warm", "run": "run-1", "role": "worker", "name": name, "own": True})


def test_a_lone_worker_hands_its_variables_over_unless_another_has_its_place(room: MachineRoom) -> None:
    story = Story(room)
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    for name in ("ps-0", "worker-1"):
        start_agent(room, name)
        room.put(name, DECLARED, MODEL_FN)
        room.say(name, assignment(name, [server], chief))
    saved = lambda: [each["step"] for each in story.events("train.checkpoint")]  # noqa: E731
    until(lambda: max(saved(), default=0) >= 20, "what it handed over is saved")

    # It freezes; another takes its place, and goes on from what it handed over; it thaws.
    frozen = room.pids("worker-1")["worker-1"]
    os.kill(frozen, signal.SIGSTOP)
    story.wait("the frozen worker is lost", "worker.left", worker="worker-1")
    start_agent(room, "worker-2")
    room.put("worker-2", DECLARED, MODEL_FN)
    room.say("worker-2", assignment("worker-2", [server], chief))
    story.wait("another one", "worker.joined", worker="worker-2")
    began = until(lambda: [line for line in story.metrics() if line["worker"] == "worker-2"], "its steps")[0]
    assert began["step"] - began["steps"] >= 20
    os.kill(frozen, signal.SIGCONT)
    exited = until(lambda: room.reports("worker-1", "process.exited"), "the end of the thawed one")[0]
    assert (exited["name"], exited["code"]) == ("worker-1", 0)
    log = (room.run_folder("worker-1") / "logs" / "worker-1.log").read_text(encoding="utf-8")
    assert "another worker has replaced this one" in log
    mark = saved()[-1]
    until(lambda: saved()[-1] > mark, "the other one is saved")
    assert saved() == sorted(saved())

    # The parameter server dies: training goes on from the last checkpoint.
    os.kill(room.pids("ps-0")["ps-0"], signal.SIGKILL)
    again = until(lambda: story.events("train.started")[1:], "training goes on")[-1]
    assert again["step"] >= mark

    finished = story.wait("the end", "train.finished", "train.failed")
    assert finished["kind"] == "train.finished"
    assert finished["step"] == DECLARED["train_steps"], "nobody else makes a step beyond the end"
    assert {150, 300, 400} <= {each["step"] for each in story.events("train.evaluated")}
    assert story.events("train.evaluated")[-1]["metrics"]["accuracy"] > 0.85
    parts = [line["parts"] for line in story.metrics() if "parts" in line]
    assert all(part["compute"] > 0 for part in parts)
