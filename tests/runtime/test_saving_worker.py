"""A real run with --chief worker: who saves freezes and another goes on, also when it thaws after it was replaced; then
the parameter server dies."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from tests.light import LIGHT
from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_training import DECLARATION, DIGITS, Story, assignment

pytestmark = [pytest.mark.training, pytest.mark.nightly]

DECLARED: dict[str, Any] = {
    **DECLARATION,
    **LIGHT,
    "chief": "worker",
    "train_steps": 10**6,
    "checkpoint_steps": 10,
    "pace_seconds": 0.2,
}
LONGER_THAN_A_STEP = 22.0
"""Seconds without a step after which a worker that could have made one would begin anew."""


def start_agent(room: MachineRoom, name: str) -> None:
    """Start the agent of a machine, and what forks its role."""
    room.start_agent(name)
    room.say(name, {"do": "warm", "run": "run-1", "role": "worker", "name": name})


def test_another_worker_saves_when_the_one_that_did_is_gone(room: MachineRoom):
    story = Story(room)
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    for name in ("ps-0", "worker-1"):
        start_agent(room, name)
        room.put(name, DECLARED, DIGITS)
        room.say(name, assignment(name, [server], chief))
    story.wait("worker-1 saves", "train.checkpoint", worker="worker-1")
    start_agent(room, "worker-2")
    room.put("worker-2", DECLARED, DIGITS)
    room.say("worker-2", assignment("worker-2", [server], chief))
    story.wait("worker-2 trains too", "worker.joined", worker="worker-2")
    assert all(line.get("worker") != "worker-2" for line in story.events("train.checkpoint")), "the duty stays"

    # It freezes; a checkpoint becomes due, and it is asked for it, before its silence is noticed.
    saving = room.pids("worker-1")["worker-1"]
    os.kill(saving, signal.SIGSTOP)
    frozen = time.monotonic()
    first = story.wait("the other one saves", "train.checkpoint", worker="worker-2")
    folder = room.run_folder("ps-0")

    def whole(saved: dict[str, Any]) -> None:
        files = sorted(folder.glob(f"{saved['path']}.*"))
        assert [path.suffix for path in files] == [".data-00000-of-00001", ".index"]
        assert sum(path.stat().st_size for path in files) == saved["bytes"]

    whole(first)

    # Its successor is another VM's process; then it thaws, and is told to leave: what it brings comes too late.
    start_agent(room, "successor")
    room.put("successor", DECLARED, DIGITS)
    room.say("successor", assignment("worker-1", [server], chief))
    numbers = lambda: [line["number"] for line in story.events("worker.joined") if line["worker"] == "worker-1"]  # noqa: E731
    assert until(lambda: numbers()[1:], "its successor joins") == [2]
    assert room.pids("worker-1") == {"worker-1": saving}
    time.sleep(max(0.0, frozen + LONGER_THAN_A_STEP - time.monotonic()))  # it must not take itself for stuck
    os.kill(saving, signal.SIGCONT)
    exited = until(lambda: room.reports("worker-1", "process.exited"), "the end of the thawed one")[0]
    assert (exited["name"], exited["code"]) == ("worker-1", 0)
    log = (room.run_folder("worker-1") / "logs" / "worker-1.log").read_text(encoding="utf-8")
    assert "leaving: told to leave" in log
    left = [(line["number"], line["reason"]) for line in story.events("worker.left")]
    assert left == [(0, "lost")]
    gone = story.metrics()[-1]["time"]

    def steps(worker: str) -> int:
        return sum(line["steps"] for line in story.metrics() if line["worker"] == worker and line["time"] > gone)

    until(lambda: steps("worker-1") > 10 and steps("worker-2") > 10, "the two that are left train")
    second = story.wait("and again", "train.checkpoint", worker="worker-2")
    assert {line["worker"] for line in story.events("train.checkpoint") if line["step"] >= first["step"]} == {
        "worker-2"
    }
    assert first["step"] + 10 <= second["step"]
    whole(second)

    # What it saved is what the run goes on from.
    os.kill(json.loads((folder / "logs" / "ps-0.pid").read_text(encoding="utf-8"))["pid"], signal.SIGKILL)
    there = max(int(path.stem.rpartition("-")[2]) for path in (folder / "checkpoints").glob("model.ckpt-*.index"))
    restarted = until(lambda: story.events("train.started")[1:], "training restarted")[-1]
    saved = [line["step"] for line in story.events("train.checkpoint") if line["time"] < restarted["time"]]
    assert max(saved) <= there, "the last one may have been whole before it was told"
    assert there <= restarted["step"] <= there + 2
    assert not list((folder / "checkpoints").glob("broken-*"))
    before = len(saved)
    until(lambda: any(line.get("worker") for line in story.events("train.checkpoint")[before:]), "a worker saves on")

    # With nobody left to do it, the chief does.
    for name in ("worker-2", "successor"):
        room.say(name, {"do": "stop", "run": "run-1"})
    alone = len(story.events("train.checkpoint"))
    room.say("ps-0", {"do": "save", "run": "run-1"})
    until(lambda: len(story.events("train.checkpoint")) > alone, "the chief saves")
    assert not story.events("train.checkpoint")[-1]["worker"]
