"""Synchronous training with real processes: steps that equal one process's, and a run through deaths on both sides."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from tests.light import LIGHT
from tests.runtime import programs
from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_training import DECLARATION, DIGITS, Story, assignment, shut_down

pytestmark = pytest.mark.training

SYNC = {**DECLARATION, **LIGHT, "mode": "sync", "train_steps": 100_000, "checkpoint_steps": 20, "pace_seconds": 0.2}
WORKERS = ("worker-1", "worker-2", "worker-3")


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    return json.loads(programs.run("tests.runtime.synchronous_step").splitlines()[-1])


def test_a_step_equals_that_of_one_process_on_all_batches(small: dict[str, Any]):
    assert len(small["differences"]) == 4
    assert max(small["differences"]) < 1e-6
    assert small["steps"] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert all(after == before + 1 for before, after in itertools.pairwise(small["rounds"]))


def test_only_whole_pushes_of_this_round_count(small: dict[str, Any]):
    assert small["counted after half a push"] == 0
    assert small["counted after a whole one"] == 1
    assert small["counted after a restore"] == 0
    assert small["counted in the new round"] == 1


@pytest.fixture(scope="module")
def story(shared_room: MachineRoom) -> Story:
    return play(shared_room)


def need_agent(room: MachineRoom, name: str) -> None:
    """Start the agent of a machine where there is none yet, and what forks its roles."""
    room.need_agent(name)
    room.say(name, {"do": "warm", "run": "any", "role": name.partition("-")[0], "name": name})


def rows(story: Story, worker: str, since: float) -> list[dict[str, Any]]:
    """A worker's metrics after a moment."""
    return [line for line in story.metrics() if line["worker"] == worker and line["time"] > since]


def play(room: MachineRoom) -> Story:
    story = Story(room)
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    for name in ("ps-0", *WORKERS):
        need_agent(room, name)
        room.put(name, SYNC, DIGITS)
        room.say(name, assignment(name, [server], chief))
    for name in WORKERS:
        story.wait(f"{name} joined", "worker.joined", worker=name)
    joined = time.time_ns()  # the barrier follows within one step, which may still do without one of them
    until(lambda: all(len(rows(story, name, joined)) > 2 for name in WORKERS), "steps of all")
    story.marks["all"] = begun = time.time_ns()
    until(lambda: all(len(rows(story, name, begun)) > 2 for name in WORKERS), "more steps of all")
    story.marks["killed"] = time.time_ns()
    os.kill(room.pids("worker-3")["worker-3"], signal.SIGKILL)
    story.wait("the killed worker is lost", "worker.left", worker="worker-3")
    frozen = room.pids("worker-1")["worker-1"]
    os.kill(frozen, signal.SIGSTOP)
    story.marks["frozen"] = time.time_ns()
    until(lambda: rows(story, "worker-2", story.marks["frozen"] + 3 * 10**9), "steps without the frozen one")
    story.marks["thawed"] = time.time_ns()
    os.kill(frozen, signal.SIGCONT)
    story.wait("its successor", "worker.joined", worker="worker-3")
    story.marks["joined"] = time.time_ns()

    until(lambda: rows(story, "worker-1", story.marks["thawed"]), "the thawed worker steps again")
    until(lambda: story.events("train.checkpoint")[-1]["step"] > 0, "a checkpoint")
    story.marks["server killed"] = time.time_ns()
    os.kill(room.pids("ps-0")["ps-0"], signal.SIGKILL)
    restarted = until(lambda: story.events("train.started")[1:], "training restarted")[0]
    story.marks["restored"], story.marks["restarted"] = restarted["step"], restarted["time"]

    def resumed() -> bool:
        later = [line for line in story.metrics() if line["time"] > restarted["time"] + 3 * 10**9]
        return {line["worker"] for line in later if line["step"] > restarted["step"] + 5} == set(WORKERS)

    until(resumed, "all step again")

    # A VM is taken. All that runs there is told to end; then it is off, without a word to anybody. That is later than
    # was said, because a busy machine may need seconds for a goodbye; the worker's log has when it means to go.
    story.marks["noticed"] = room.preempt("worker-2")
    taken, agent = room.pids("worker-2")["worker-2"], room.say("worker-2", {"do": "ping"})["pid"]
    shut_down(agent, taken)
    off = threading.Timer(SYNC["notice_seconds"] + 15, freeze, [taken])
    off.start()
    story.marks["left"] = story.wait("the worker of the VM that is taken", "worker.left", worker="worker-2")
    off.cancel()
    until(lambda: len(rows(story, "worker-1", story.marks["left"]["time"])) > 2, "steps of those who are left")
    for name in ("worker-1", "worker-3", "ps-0"):
        room.say(name, {"do": "stop", "run": "run-1"})
    return story


def freeze(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGSTOP)


def test_a_slow_worker_that_is_a_backup_holds_nobody_up_and_its_late_gradients_do_not_count(shared_room: MachineRoom):
    room, story = shared_room, Story(shared_room, run="backup")
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    fast_one, slow_one = "worker-1", "worker-3"
    paces = {fast_one: 0.1, slow_one: 3.0}
    for name in ("ps-0", *paces):
        need_agent(room, name)
        declared = {
            **SYNC,
            "name": "backup",
            "backup_workers": 1,
            "checkpoint_steps": 10_000,
            "pace_seconds": paces.get(name),
        }
        room.put(name, declared, DIGITS)
        room.say(name, assignment(name, [server], chief, "backup"))
    for name in paces:
        story.wait(f"{name} joined", "worker.joined", worker=name)
    joined = max(line["time"] for line in story.events("worker.joined"))

    def of(worker: str) -> list[dict[str, Any]]:
        return rows(story, worker, joined + 1.5e9)

    def long_enough() -> bool:
        fast = of(fast_one)
        return sum(line["steps"] for line in fast[1:]) >= 60 and fast[-1]["time"] - fast[0]["time"] > 15e9

    until(long_enough, "60 steps of the fast one, and time for five of the slow one")
    fast, slow = of(fast_one), of(slow_one)
    made = fast[-1]["step"] - fast[0]["step"]
    assert made == sum(line["steps"] for line in fast[1:]), "every step has the gradient of the fast one"
    # Of its five gradients and more; one counts only if the fast one stood still for seconds.
    assert sum(line["steps"] for line in slow) <= 2
    assert set(room.pids(slow_one)) == {slow_one}, "it trains all the same"
    assert not story.events("worker.left")
    for name in (*paces, "ps-0"):
        room.say(name, {"do": "stop", "run": "backup"})


def between(story: Story, since: str, to: str, worker: str = "") -> list[dict[str, Any]]:
    found = [line for line in story.metrics() if story.marks[since] < line["time"] < story.marks[to]]
    return [line for line in found if not worker or line["worker"] == worker]


def test_workers_keep_step_and_nothing_is_stale(story: Story):
    lines = between(story, "all", "killed")
    assert {line["worker"] for line in lines} == set(WORKERS)
    assert all(line["staleness"] == 0 for line in story.metrics())
    assert all(line["samples"] == 8 * line["steps"] for line in story.metrics())
    for name in WORKERS:  # a worker's share of a step is the whole step
        mine = between(story, "all", "killed", name)
        assert mine[-1]["step"] - mine[0]["step"] == sum(line["steps"] for line in mine[1:])


def test_the_others_go_on_when_a_worker_is_killed_or_frozen_and_wait_for_nobody_who_joins(story: Story):
    gaps = [line["gap_seconds"] for line in between(story, "killed", "joined", "worker-2")]
    assert len(gaps) >= 2
    assert max(gaps) < 60
    assert between(story, "thawed", "server killed", "worker-1")
    numbers = [line["number"] for line in story.events("worker.joined") if line["worker"] == "worker-3"]
    assert numbers[-1] > numbers[0]


def test_training_resumes_from_the_checkpoint_when_the_parameter_server_restarts(story: Story):
    saved = [line["step"] for line in story.events("train.checkpoint") if line["time"] < story.marks["server killed"]]
    assert story.marks["restored"] >= saved[-1] > 0, "a later one may be written and not told yet"
    assert not story.events("train.failed")
    assert story.events("train.checkpoint")[-1]["step"] > story.marks["restored"]


def test_a_worker_takes_part_under_notice_and_is_out_of_the_barrier_before_its_vm_ends(story: Story):
    noticed, left = story.marks["noticed"], story.marks["left"]
    assert left["reason"] == "revoked"
    log = (story.room.run_folder("worker-2") / "logs" / "worker-2.log").read_text(encoding="utf-8")
    assert f"under notice: training on for {SYNC['notice_seconds'] - 1:.1f} s" in log
    mine = rows(story, "worker-2", noticed)
    made = sum(line["steps"] for line in mine[1:])
    assert made > 1
    assert mine[-1]["step"] - mine[0]["step"] == made, "each is counted once, the last one too"
    assert max(line["gap_seconds"] for line in rows(story, "worker-1", noticed)) < 60
