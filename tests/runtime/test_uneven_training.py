"""Real runs on unequal machines: mini-batches follow their speeds, and their sum stays."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.light import LIGHT
from tests.runtime import programs
from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_other_runs import REVERSE, TEXT
from tests.runtime.test_training import DECLARATION, DIGITS, Story, assignment

pytestmark = pytest.mark.training

PACES = {"worker-1": 0.2, "worker-2": 0.4, "worker-3": 0.2}
TOKENS = 256
SYNCHRONOUS = {**TEXT, "mode": "sync", "damping": "none", "batching": "dynamic"}
SYNCHRONOUS |= {"checkpoint_auto": False, "checkpoint_seconds": 3600}  # nothing is due while the story lasts
SMALL = {**DECLARATION, **LIGHT, "batching": "dynamic", "model": "small_memory"}
SMALL |= {"hparams": "batch_size=32", "checkpoint_steps": None, "checkpoint_seconds": 3600}  # nothing is due
SMALL_MEMORY = '''

import tensorflow.compat.v1 as _tf
from tensor2tensor.models import basic as _basic


@registry.register_model
class SmallMemory(_basic.BasicFcRelu):
    """A GPU on which 56 examples do not fit."""

    def body(self, features):
        def take(count):
            if count > 56:
                raise MemoryError("too many")
            return count

        taken = _tf.py_func(take, [_tf.shape(features["inputs"])[0]], _tf.int32)
        with _tf.control_dependencies([taken]):
            features["inputs"] = _tf.identity(features["inputs"])
        return super().body(features)
'''


def begin(room: MachineRoom, run: str, cell: str, names: tuple[str, ...], declared: dict[str, Any]) -> Story:
    """A run of two declared workers, of which those with these names are there."""
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    story = Story(room, run=run)
    for name in ("ps-0", *names):
        room.start_agent(name)
        room.say(name, {"do": "warm", "run": run, "role": name.partition("-")[0], "name": name})
        join(story, name, cell, server, chief, declared)
    for name in names:
        story.wait(f"{name} joined", "worker.joined", worker=name)
    story.marks["addresses"] = server, chief
    return story


def join(story: Story, name: str, cell: str, server: str, chief: str, declared: dict[str, Any]) -> None:
    own = {"name": story.run, "workers": 2, "pace_seconds": PACES.get(name), "train_steps": 100_000}
    story.room.put(name, {**declared, **own}, cell)
    story.room.say(name, assignment(name, [server], chief, story.run))


def sizes(story: Story, declared: int) -> dict[str, int]:
    """The mini-batches of those who train, as the events tell them."""
    found: dict[str, int] = {}
    for event in story.events("worker.joined", "worker.left", "worker.batch_resized"):
        name = event["worker"]
        if event["kind"] == "worker.joined":
            found[name] = declared
        elif event["kind"] == "worker.left":
            found.pop(name, None)
        else:
            assert event["old"] == found[name]
            found[name] = event["new"]
    return found


def imbalance(told: dict[str, int]) -> float:
    """The longest step over the mean one, as the workers are paced."""
    times = [PACES[name] * size for name, size in told.items()]
    return max(times) * len(times) / sum(times)


def balanced_sizes(story: Story, declared: int) -> dict[str, int] | None:
    """The mini-batches of two workers, once their steps take about as long and their sum is the declared one."""
    found = sizes(story, declared)
    whole = len(found) == 2 and sum(found.values()) == 2 * declared
    return found if whole and imbalance(found) < 1.1 else None


@pytest.fixture(scope="module")
def text(shared_room: MachineRoom) -> Story:
    """Synchronous steps of a transformer on text: two unequal workers; then a death, two joins and two notices."""
    story = begin(shared_room, "run-1", REVERSE, ("worker-1", "worker-2"), SYNCHRONOUS)
    room, marks = shared_room, story.marks

    def settled(workers: int, below: float = 9.9) -> dict[str, int]:
        def found() -> dict[str, int] | None:
            told = sizes(story, TOKENS)
            whole = len(told) == workers and sum(told.values()) == 2 * TOKENS
            return told if whole and imbalance(told) < below else None

        return until(found, f"sizes of {workers} workers")

    marks["first sizes"] = settled(2)
    marks["balanced"], marks["resized"] = settled(2, below=1.1), story.events("worker.batch_resized")
    marks["processes"] = [room.pids(name)[name] for name in ("worker-1", "worker-2")]

    def all_step() -> bool:
        now = {line["worker"]: line["batch_size"] for line in story.metrics()}
        return now == sizes(story, TOKENS)

    until(all_step, "steps of the new sizes")
    marks["same processes"] = marks["processes"] == [room.pids(name)[name] for name in ("worker-1", "worker-2")]
    marks["logs"] = [
        (room.run_folder(name) / "logs" / f"{name}.log").read_text(encoding="utf-8")
        for name in ("worker-1", "worker-2")
    ]

    os.kill(room.pids("worker-2")["worker-2"], signal.SIGKILL)
    story.wait("the killed worker is lost", "worker.left", worker="worker-2")
    marks["after a death"] = settled(1)
    room.start_agent("worker-3")
    server, chief = marks["addresses"]
    join(story, "worker-3", REVERSE, server, chief, SYNCHRONOUS)
    for name in ("worker-2", "worker-3"):
        story.wait(f"{name} joins", "worker.joined", worker=name)
    marks["after two joins"] = settled(3)
    room.preempt("worker-1")
    story.wait("the revoked worker left", "worker.left", worker="worker-1", reason="revoked")
    marks["after a notice"] = settled(2)
    step = story.metrics()[-1]["step"]
    until(lambda: story.metrics()[-1]["step"] > step + 2, "steps of those who are left")

    marks["saved before"], marks["step at the notice"] = story.events("train.checkpoint"), story.metrics()[-1]["step"]
    room.preempt("ps-0")
    marks["noticed"] = until(lambda: room.reports("ps-0", "vm.preemption_notice"), "the notice")[0]
    marks["saved"] = until(lambda: story.events("train.checkpoint")[1:], "a checkpoint")[0]
    for name in ("ps-0", *PACES):
        room.say(name, {"do": "stop", "run": "run-1"})
    until(lambda: not room.pids("ps-0"), "the end")
    return story


@pytest.mark.nightly
def test_unequal_workers_take_unequal_parts_of_text_without_a_restart_or_another_graph(text: Story) -> None:
    marks = text.marks
    balanced = marks["balanced"]
    assert balanced["worker-1"] > 1.5 * balanced["worker-2"]
    assert imbalance(balanced) < 1.1 < imbalance({"worker-1": TOKENS, "worker-2": TOKENS})
    adjustments = [event for event in marks["resized"] if event["worker"] == "worker-1"]
    assert 1 <= len(adjustments) <= 10, "not at every step"
    assert {event["reason"] for event in adjustments} == {"dynamic"}
    assert marks["same processes"]
    for log in marks["logs"]:
        assert len(re.findall(r"first gradient after", log)) == 1
        assert "session lost" not in log
    fast, slow = (
        [line["samples"] / line["steps"] for line in text.metrics() if (line["worker"], line["batch_size"]) == which]
        for which in (("worker-1", balanced["worker-1"]), ("worker-2", balanced["worker-2"]))
    )
    assert sum(fast) / len(fast) > 1.3 * sum(slow) / len(slow)  # sequences
    assert not text.events("train.failed")


@pytest.mark.nightly
def test_the_global_batch_stays_through_a_death_joins_and_a_notice(text: Story) -> None:
    moments = ("first sizes", "balanced", "after a death", "after two joins", "after a notice")
    assert [sum(text.marks[moment].values()) for moment in moments] == [2 * TOKENS] * len(moments)
    assert text.marks["after a death"] == {"worker-1": 2 * TOKENS}
    assert set(text.marks["after two joins"]) == set(PACES)
    assert set(text.marks["after a notice"]) == {"worker-2", "worker-3"}


@pytest.mark.nightly
def test_a_notice_on_the_vm_of_the_chief_saves_at_once(text: Story) -> None:
    marks = text.marks
    assert [line["step"] for line in marks["saved before"]] == [0], "nothing else was due"
    assert marks["saved"]["step"] >= marks["step at the notice"] > 0
    assert marks["saved"]["time"] > marks["noticed"]["time"]
    assert list(text.room.run_folder("ps-0").glob(f"{marks['saved']['path']}.index"))


@pytest.mark.parametrize(
    "masked",
    [pytest.param([], id="tokens", marks=pytest.mark.nightly), pytest.param(["masked"], id="masked tokens")],
)
def test_gradients_of_uneven_text_are_weighted_by_tokens_and_equal_that_of_one_process(
    tmp_path: Path, masked: list[str]
) -> None:
    found = json.loads(programs.run("tests.runtime.text_step", tmp_path, *masked).splitlines()[-1])
    assert found["weights"] == found["tokens"]
    assert found["tokens"][0] < found["tokens"][1] < found["tokens"][2]
    assert max(found["differences"]) < 1e-6 < 1e-2 < found["largest"]


@pytest.mark.nightly
def test_unequal_workers_take_unequal_parts_and_one_whose_memory_is_exhausted_fewer_examples(room: MachineRoom) -> None:
    story = begin(room, "run-2", DIGITS + SMALL_MEMORY, ("worker-1", "worker-2"), SMALL)
    balanced = until(lambda: balanced_sizes(story, 32), "parts that follow the speeds")
    assert balanced["worker-1"] > 1.5 * balanced["worker-2"]
    os.kill(room.pids("worker-2")["worker-2"], signal.SIGKILL)  # the other one takes its part, too
    event = story.wait("memory exhausted", "worker.batch_resized", worker="worker-1", reason="oom")
    assert event["old"] > 56 >= event["new"]
    stepping = lambda: story.metrics()[-1]["time"] > event["time"] + 2e9  # noqa: E731
    until(stepping, "training goes on")
    until(lambda: sum(sizes(story, 32).values()) == 64, "the rest goes to the one that is back")
    assert [line["worker"] for line in story.events("worker.joined")].count("worker-1") == 1, "its process goes on"

    assert [line["step"] for line in story.events("train.checkpoint")] == [0]
    step = story.metrics()[-1]["step"]
    noticed = room.preempt("ps-0")
    saved = until(lambda: story.events("train.checkpoint")[1:], "a checkpoint at the notice on the chief's VM")[0]
    assert saved["time"] > noticed
    assert saved["step"] >= step > 0
