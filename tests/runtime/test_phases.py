"""A real run whose cell calls `fit` three times: frozen, unfrozen with another optimizer, and once more with the same.

The code between the calls must see the trained weights: it compares its own evaluation with that of the run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
from typing import Any

import pytest

from tests.runtime import programs
from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_own_models import OWN
from tests.runtime.test_training import Story, assignment

pytestmark = pytest.mark.training

CELL = """
import keras
import numpy as np
x = np.random.default_rng(0).normal(size=(200, 8, 8, 3)).astype("float32")
y = (x[:, :4].mean((1, 2, 3)) > x[:, 4:].mean((1, 2, 3))).astype("int64")
layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.ReLU()]
base = keras.Sequential(layers, name="base")
base.trainable = False
inputs = keras.Input((8, 8, 3))
hidden = keras.layers.Flatten()(base(inputs, training=False))
model = keras.Model(inputs, keras.layers.Dense(2, "softmax", name="head")(hidden))
def compiled(rate):
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
compiled(0.01)
history = model.fit(x, y, batch_size=10, epochs=1, validation_split=0.2)
before = history.history["val_accuracy"][-1]
measured = model.evaluate(x[160:], y[160:], return_dict=True)["accuracy"]
assert np.isnan(before) or abs(before - measured) < 1e-5, (before, measured)
base.trainable = True
compiled(0.001)
for size in (20, 40):
    model.fit(x, y, batch_size=size, epochs=1, validation_split=0.2)
print(undefined_name)
"""
STEPS = [16, 8, 4]
"""Steps of each phase: the training part has 160 examples."""
DECLARED: dict[str, Any] = {
    **OWN, "name": "run-1", "train_steps": 0, "checkpoint_steps": 5, "keep": 20, "noise_share": 0.0, "max_workers": 2,
}  # fmt: skip
FIT = {"steps": sum(STEPS), "epoch_steps": 16, "phase_steps": STEPS[0]}
READ = """
import json, sys
from transient_magics.runtime.tf.graph_mode import tensorflow
found = []
for step in map(int, sys.argv[2:]):
    reader = tensorflow().train.load_checkpoint(f"{sys.argv[1]}/model.ckpt-{step}")
    found.append({name: reader.get_tensor(name).tolist() for name in reader.get_variable_to_shape_map()})
print(json.dumps(found))
"""


def begin(room: MachineRoom, declared: dict[str, Any], *workers: str) -> Story:
    """Start the run on one parameter server and these workers."""
    story = Story(room)
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    for name in ("ps-0", *workers):
        room.start_agent(name)
        room.put(name, declared, CELL)
        room.say(name, {"do": "warm", "run": "run-1", "role": name.partition("-")[0], "name": name, "own": True})
        room.say(name, {**assignment(name, [server], chief), **FIT})
    return story


@pytest.fixture(scope="module")
def story(shared_room: MachineRoom) -> Story:
    story = begin(shared_room, DECLARED, "worker-1", "worker-2")
    story.wait("the end", "train.finished", "train.failed")
    return story


def ends(story: Story) -> list[int]:
    """The steps at which the phases ended; workers that train at the same time may make one more than declared."""
    began = {event["phase"]: event["step"] for event in story.events("train.started")}
    return [began[2], began[3], story.events("train.finished")[0]["step"]]


def values(story: Story) -> list[dict[str, Any]]:
    """The variables by name, as the run begins and as each of its phases ends."""
    place = story.room.run_folder("ps-0") / "checkpoints"
    return json.loads(programs.run(READ, place, 0, *ends(story), own=True).splitlines()[-1])


def assert_three_phases(story: Story) -> None:
    """Assert that the run made three phases, and no step of another phase's program."""
    (finished,) = story.events("train.finished", "train.failed")
    assert finished["kind"] == "train.finished", finished
    begins = [0, *ends(story)]
    made = [end - begin for begin, end in itertools.pairwise(begins)]
    assert all(declared <= steps <= declared + 1 for declared, steps in zip(STEPS, made, strict=True)), made
    assert sorted({event["phase"] for event in story.events("train.started")}) == [1, 2, 3]
    start, first, second, third = values(story)
    kernel = next(name for name in start if name.endswith("conv2d/kernel"))
    assert start[kernel] == first[kernel], "frozen in the first phase"
    assert first[kernel] != second[kernel] != third[kernel]
    assert start["head/kernel"] != first["head/kernel"] != second["head/kernel"]
    # Adam keeps the power of beta_1 of its next step: compile begins again, and another fit continues.
    powers = [made[0], made[1], made[1] + made[2]]
    found = [math.log(phase["beta1_power"]) / math.log(0.9) - 1 for phase in (first, second, third)]
    # A worker that is stopped may have applied a gradient whose step is not counted.
    assert all(-0.1 < more - power < 3 for more, power in zip(found, powers, strict=True)), (found, powers)


def test_a_cell_trains_frozen_unfrozen_and_with_larger_batches_in_one_run(shared_room: MachineRoom):
    story = begin(shared_room, DECLARED, "worker-1", "worker-2")
    story.wait("the end", "train.finished", "train.failed")
    assert_three_phases(story)
    assert [event["steps"] for event in story.events("train.started")][1:] == [ends(story)[0] + 12, ends(story)[1] + 4]
    assert [event["step"] for event in story.events("train.evaluated")] == ends(story)
    assert not story.events("train.made"), "the next run gets the workers when the last phase has ended"
    assert {event["reason"] for event in story.events("worker.left")} == {"finished"}
    until(lambda: not story.room.pids("ps-0") and not story.room.pids("worker-1"), "every role has ended")
    exits = [line["code"] for name in ("ps-0", "worker-1") for line in story.room.reports(name, "process.exited")]
    assert exits == [0, 0], "a process that starts again for a phase has not failed"


@pytest.mark.nightly
def test_processes_that_are_killed_between_two_phases_come_back_in_the_right_one(room: MachineRoom):
    story = begin(room, DECLARED, "worker-1", "worker-2")
    phases = room.run_folder("ps-0") / "checkpoints" / "phases.json"

    # Before it is stored that the second phase begins, and right after it.
    story.wait("the end of the first phase", "train.evaluated")
    os.kill(room.pids("ps-0")["ps-0"], signal.SIGKILL)
    until(phases.exists, "the second phase")
    for name in ("ps-0", "worker-1"):
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.kill(room.pids(name)[name], signal.SIGKILL)

    # A worker is frozen when the third phase begins, and thaws in it.
    story.wait("the second phase", "train.started", phase=2)
    joined = story.wait("its workers", "worker.joined")["worker"]
    frozen = room.pids(joined)[joined]
    os.kill(frozen, signal.SIGSTOP)
    story.wait("the third phase", "train.started", phase=3)
    os.kill(frozen, signal.SIGCONT)
    story.wait("the end", "train.finished", "train.failed")
    assert_three_phases(story)
