"""A real run on two unequal machines: mini-batches follow their speeds, and their sum stays."""

from __future__ import annotations

import pytest

from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_training import DECLARATION, DIGITS, Story, assignment

pytestmark = pytest.mark.training

PACES = {"worker-1": 0.15, "worker-2": 0.45}
SMALL_MEMORY = '''

import tensorflow.compat.v1 as _tf
from tensor2tensor.models import resnet as _resnet


@registry.register_model
class SmallMemory(_resnet.Resnet):
    """A GPU on which 40 examples do not fit."""

    def body(self, features):
        def take(count):
            if count > 40:
                raise MemoryError("too many")
            return count

        taken = _tf.py_func(take, [_tf.shape(features["inputs"])[0]], _tf.int32)
        with _tf.control_dependencies([taken]):
            features["inputs"] = _tf.identity(features["inputs"])
        return super().body(features)
'''


def begin(room: MachineRoom, run: str, cell: str, **more: object) -> Story:
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    for name in ("ps-0", *PACES):
        room.start_agent(name)
        declared = {**DECLARATION, "name": run, "workers": 2, "pace_seconds": PACES.get(name), **more}
        room.put(name, declared, cell)
        room.say(name, assignment(name, [server], chief, run))
    story = Story(room, run=run)
    for name in PACES:
        story.wait(60, f"{name} joined", "worker.joined", worker=name)
    return story


def sizes(story: Story) -> dict[str, int]:
    """The newest size of each worker, as the events tell it."""
    found = dict.fromkeys(PACES, 32)
    for event in story.events("worker.batch_resized"):
        assert event["old"] == found[event["worker"]]
        found[event["worker"]] = event["new"]
    return found


def test_a_slow_worker_takes_fewer_examples_and_leaves_them_to_the_other(room: MachineRoom) -> None:
    story = begin(room, "run-1", DIGITS, batching="dynamic", train_steps=100_000)
    until(lambda: sizes(story)["worker-2"] < 24, 40, "unequal sizes")
    told = sizes(story)
    assert sum(told.values()) == 64
    assert {event["reason"] for event in story.events("worker.batch_resized")} == {"dynamic"}
    begun = len(story.metrics())

    def last() -> dict[str, dict[str, float]]:
        return {line["worker"]: line for line in story.metrics()[begun:] if line["samples"] == line["steps"] * told.get(
            line["worker"], 0)}  # fmt: skip

    until(lambda: len(last()) == 2, 20, "steps of the new sizes")
    seconds = [line["compute_seconds"] / line["steps"] for line in last().values()]
    assert max(seconds) / min(seconds) < 1.6  # three times as long before

    room.preempt("worker-2")
    story.wait(10, "the revoked worker left", "worker.left", worker="worker-2", reason="revoked")
    resized = story.events("worker.batch_resized")[-1]
    assert (resized["worker"], resized["new"], resized["reason"]) == ("worker-1", 64, "revocation")
    until(lambda: story.metrics()[-1]["batch_size"] == 64, 20, "steps with all examples")
    for name in ("ps-0", *PACES):
        room.say(name, {"do": "stop", "run": "run-1"})
    until(lambda: not room.pids("ps-0"), 20, "the end")


def test_a_worker_whose_memory_is_exhausted_goes_on_with_fewer_examples(room: MachineRoom) -> None:
    story = begin(room, "run-2", DIGITS + SMALL_MEMORY, batching="dynamic", model="small_memory", train_steps=100_000)
    event = story.wait(40, "memory exhausted", "worker.batch_resized", worker="worker-1", reason="oom")
    assert event["old"] > 40 >= event["new"]
    numbers = [line["number"] for line in story.events("worker.joined")]
    assert len(numbers) == 2  # no process was started anew
    stepping = lambda: story.metrics()[-1]["time"] > event["time"] + 2e9  # noqa: E731
    until(stepping, 10, "training goes on")
    assert sum(sizes(story).values()) == 64
