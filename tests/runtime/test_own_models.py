"""Models that a cell defines itself, without Tensor2Tensor: a Keras model, and a model_fn; real runs."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.runtime import programs
from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_training import DECLARATION, Story, assignment
from transient_magics import client
from transient_magics.errors import TrainingError
from transient_magics.runtime.files.checkpoints import Checkpoints

pytestmark = pytest.mark.training

# With a share of 1 gradients are measured beside every step, however fast the machine is.
OWN = {**DECLARATION, "model": "", "hparams_set": "", "problem": "", "pace_seconds": None, "noise_share": 1.0}
DATA = """
import numpy as np
from sklearn.datasets import load_digits

def input_fn(mode):
    digits = load_digits()
    chosen = (np.arange(len(digits.target)) % 5 > 0) == (mode == "train")
    return digits.images[chosen] / 16, digits.target[chosen]
"""
KERAS = (
    DATA
    + """
import keras
from keras import layers

rate = keras.optimizers.schedules.ExponentialDecay(0.003, 200, 0.5)
model = keras.Sequential([
    layers.Reshape([8, 8, 1]),
    layers.Conv2D(16, 3, use_bias=False, padding="same"),
    layers.BatchNormalization(momentum=0.9),
    layers.ReLU(),
    layers.Flatten(),
    layers.Dropout(0.2),
    layers.Dense(64, activation="relu", kernel_regularizer="l2"),
    layers.Dense(10, activation="softmax"),
])
model.compile(keras.optimizers.Adam(rate, global_clipnorm=5.0), "sparse_categorical_crossentropy", metrics=["accuracy"])
"""
)
MODEL_FN = (
    DATA.replace(
        "digits.images[chosen] / 16,", 'tf2.data.Dataset.from_tensor_slices(({"image": digits.images[chosen]},'
    ).replace("digits.target[chosen]\n", "digits.target[chosen])).shuffle(1500)\n")
    + """
import tensorflow as tf2
import tensorflow.compat.v1 as tf

batch_size = 16

def model_fn(features, labels, mode):
    pixels = tf.reshape(tf.cast(features["image"], tf.float32), [-1, 64]) / 16
    logits = pixels @ tf.get_variable("weights", [64, 10]) + tf.get_variable("bias", [10])
    answer = {"predictions": {"digit": tf.argmax(logits, 1), "scores": tf.nn.softmax(logits)}}
    if mode != "infer":
        answer["loss"] = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == "train":
        answer |= {"optimizer": lambda rate: tf.train.MomentumOptimizer(rate, 0.9), "learning_rate": 0.1}
    if mode == "eval":
        answer["eval_metric_ops"] = {"accuracy": tf.metrics.accuracy(labels, answer["predictions"]["digit"])}
    return answer
"""
)
# 5 MiB, of which TensorFlow's lookup takes odd rows from one part and even ones from the other.
TABLE = MODEL_FN.replace(
    'pixels @ tf.get_variable("weights", [64, 10])',
    'tf.reduce_sum(tf.nn.embedding_lookup(tf.get_variable("weights", [131072, 10], initializer=tf.zeros_initializer), '
    "tf.cast(pixels * 16, tf.int32) + 2011 * tf.range(64)), 1)",
)
WITHOUT_US = """
import sys
sys.modules["keras"] = sys.modules["transient_magics"] = None
import numpy, tensorflow
images, scores = (numpy.load(f"{sys.argv[2]}/{name}.npy") for name in ("images", "scores"))
serve = tensorflow.saved_model.load(sys.argv[1]).signatures["serving_default"]
assert numpy.allclose(serve(inputs=tensorflow.constant(images))["predictions"], scores, atol=1e-5)
del sys.modules["keras"]
import keras
model = keras.models.load_model(sys.argv[2] + "/deep/digits.keras")
assert numpy.allclose(model.predict(images, verbose=0), scores, atol=1e-6)
assert model.optimizer.name == "adam"
"""


IN_A_KERNEL = """
import random, sys
from pathlib import Path
from types import SimpleNamespace
import keras, numpy
from tests.runtime import programs
from transient_magics import client, errors
from transient_magics.client import commands

commands.subprocess = SimpleNamespace(run=programs.serve, TimeoutExpired=TimeoutError)

folder, step = Path(sys.argv[1]), int(sys.argv[2])
images, scores = numpy.load(folder / "images.npy"), numpy.load(folder / "scores.npy")
assert keras.layers.Dense(3).name == "dense", "the notebook makes layers too"
keras.config.set_dtype_policy("mixed_bfloat16")
run = client.Run("keras", client.Cluster("gone"))
model = run.model(folder / "deep" / "digits.keras", checkpoint=step)
assert numpy.allclose(model.predict(images, verbose=0), scores, atol=1e-6)
assert keras.layers.Dense(3).name == "dense_1"
assert keras.config.dtype_policy().name == "mixed_bfloat16"
assert [path.name for path in (folder / "deep").iterdir()] == ["digits.keras"]
cell = run.directory / "cell.py"
cell.write_text(cell.read_text().replace("Dense(64", "Dense(32"))
try:
    run.model(checkpoint=step)
except errors.TrainingError as error:
    print(f"TrainingError: {error}")
"""


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    held_out = load_digits()
    return numpy.float32(held_out.images[::5]), held_out.target[::5]


def need_agent(room: MachineRoom, name: str) -> None:
    """Start the agent of a machine where there is none yet, and a fork server for this run and the next ones."""
    room.need_agent(name)
    room.say(name, {"do": "warm", "run": "any", "role": "worker", "name": name, "own": True})


def stop(room: MachineRoom, run: str) -> None:
    """What a controller tells everybody when a run is over: nothing of it is started again."""
    for name in room.names():
        room.say(name, {"do": "stop", "run": run})


def finish(room: MachineRoom, run: str, cell: str, servers: int, **more: object) -> dict[str, Any]:
    """Play a run with two workers to its end, and return its evaluation."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(servers)]
    chief = f"127.0.0.1:{free_ports(1)[0]}"
    workers = ("worker-1", "worker-2")
    for name in (*(f"ps-{index}" for index in range(servers)), *workers):
        need_agent(room, name)
        room.hold(name, 1.0)  # one worker alone does not get to the end
        room.put(name, {**OWN, **more, "name": run}, cell)
        room.say(name, assignment(name, addresses, chief, run))
    story = Story(room, run=run)
    for name in workers:
        story.wait(f"{name} joined", "worker.joined", worker=name)
    for name in workers:
        room.hold(name, 0.0)
    story.wait("the end", "train.finished", "train.failed")
    assert not story.events("train.failed")
    stepped = {line["worker"] for line in story.metrics()}
    assert stepped == set(workers)
    measured = [line for line in story.metrics() if "gradient_squared" in line]
    assert measured
    for line in measured:
        assert line["gradient_squared"] > 0
        assert math.isfinite(line["gradient_signal"])
        assert math.isfinite(line["gradient_noise"])
    until(lambda: not room.pids("ps-0"), "the end of every role")
    stop(room, run)
    return story.events("train.evaluated")[-1]["metrics"]


@pytest.mark.usefixtures("_forked")
def test_a_keras_model_is_trained_evaluated_used_and_exported(
    shared_room: MachineRoom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The least accuracy is the first one: the run ends by the next evaluation.
    judged = {"keep_best": "max accuracy", "stop_when": "min accuracy no better in 1 evaluations", "eval_steps": 80}
    judged["pace_seconds"] = 0.2  # nobody needs the steps that are made while it is evaluated
    declared = {"train_steps": 10**6, "checkpoint_steps": 50, "keep": 1, **judged}
    metrics = finish(shared_room, "keras", KERAS, 2, batching="dynamic", wire="bf16", workers=2, **declared)
    story = Story(shared_room, run="keras")
    evaluations = story.events("train.evaluated")
    (finished,) = story.events("train.finished")
    assert finished["reason"].startswith("accuracy was no better in 1 evaluation than 0.")
    assert finished["step"] < 10**6
    best = max(evaluations, key=lambda each: each["metrics"]["accuracy"])
    told = story.events("train.best")
    assert [told[0]["step"], told[-1]["step"]] == [evaluations[0]["step"], best["step"]]
    kept = {*Checkpoints(shared_room.run_folder("ps-0", "keras") / "checkpoints").steps()}
    assert {best["step"], finished["step"]} <= kept
    assert kept - {finished["step"]} <= {each["step"] for each in told}, "one that was the best goes by the next save"
    assert len(kept) <= 3
    assert metrics["accuracy"] > 0.9
    assert 0 < metrics["loss"] < 1
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))
    run = client.Run("keras", client.Cluster("gone"))
    shutil.copytree(shared_room.run_folder("ps-0", "keras"), run.directory)
    images, truth = digits()
    scores = run.predict(images / 16, checkpoint=finished["step"])
    assert isinstance(scores, numpy.ndarray)
    assert (scores.argmax(axis=1) == truth).mean() == pytest.approx(metrics["accuracy"], abs=1e-4)
    with pytest.raises(TrainingError, match="no checkpoint of step 1 yet"):
        run.predict(images / 16, checkpoint=1)

    model = run.export(tmp_path / "model")
    numpy.save(tmp_path / "images.npy", images / 16)
    numpy.save(tmp_path / "scores.npy", scores)
    said = programs.run(IN_A_KERNEL, tmp_path, finished["step"], own=True).splitlines()
    assert said[-1].startswith(
        "TrainingError: sequential/dense/kernel is float32[1024, 64] in the checkpoint, but float32"
    )
    programs.run(WITHOUT_US, model, tmp_path, own=True)


@pytest.mark.parametrize(
    ("run", "cell", "servers"),
    [
        pytest.param("function", MODEL_FN, 1, id="one server", marks=pytest.mark.nightly),
        pytest.param("table", TABLE, 2, id="two servers"),
    ],
)
def test_a_model_fn_is_trained_synchronously_and_answers_by_name(
    shared_room: MachineRoom, tmp_path: Path, run: str, cell: str, servers: int
) -> None:
    metrics = finish(shared_room, run, cell, servers, train_steps=100, mode="sync", ps_shards=servers)
    assert metrics["accuracy"] > 0.85
    images, truth = digits()
    numpy.savez(tmp_path / "inputs.npz", image=images)
    words = ["--run", shared_room.run_folder("ps-0", run), "predict", tmp_path / "inputs.npz", tmp_path / "outputs.npz"]
    programs.run("transient_magics.runtime.programs.serve", *words, own=True)
    answers = numpy.load(tmp_path / "outputs.npz")
    assert (answers["digit"] == truth).mean() == pytest.approx(metrics["accuracy"], abs=1e-4)
    assert answers["scores"].shape == (len(images), 10)
    words[2:] = ["weights", tmp_path / "weights.npz"]
    said = programs.run("transient_magics.runtime.programs.serve", *words, own=True, code=1)
    assert "the cell defines model_fn instead of a Keras model" in said


BROKEN = """
import numpy, tensorflow.compat.v1 as tf

def input_fn(mode):
    return numpy.ones([8, 3], "float32"), numpy.zeros([8, 1], "float32")

def broken(values):
    raise RuntimeError("cuDNN launch failure")

def model_fn(features, labels, mode):
    guess = tf.py_func(broken, [features @ tf.get_variable("weights", [3, 1])], tf.float32)
    guess.set_shape([None, 1])
    loss = tf.reduce_mean(tf.square(guess - labels)) + tf.reduce_sum(tf.get_variable("more", [2]))
    return {"loss": loss, "optimizer": tf.train.AdamOptimizer, "learning_rate": 0.1}
"""


@pytest.mark.parametrize(
    ("run", "cell", "begins", "says"),
    [
        pytest.param(
            "unreadable",
            MODEL_FN.replace(".shuffle(1500)", ".map(lambda image, label: (image, tf2.gather([0, 1, 2], label)))"),
            "the examples cannot be read: InvalidArgumentError: ",
            "is not in [0, 3)",
            id="unreadable",
        ),
        pytest.param(
            "broken",
            BROKEN,
            # The error looks as if a parameter server was lost, and no step ever succeeds.
            "all steps fail: cell line ",
            ": UnknownError: RuntimeError: cuDNN launch failure",
            id="broken step",
        ),
        pytest.param(
            "stalling",
            BROKEN,
            "all steps fail: cell line ",
            ": UnknownError: RuntimeError: cuDNN launch failure",
            id="broken step, stalls allowed",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "unknown",
            KERAS.replace("digits.target[chosen]", "digits.target[chosen] + 30"),
            "InvalidArgumentError: Received a label value of ",
            "is outside the valid range of [0, 10)",
            id="unknown label",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_what_cannot_be_trained_on_fails_the_run_with_the_reason(
    shared_room: MachineRoom, run: str, cell: str, begins: str, says: str
) -> None:
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    for name in ("ps-0", "worker-1"):
        need_agent(shared_room, name)
        shared_room.put(name, {**OWN, "name": run, "stalls": 2 * (run == "stalling")}, cell)
        shared_room.say(name, assignment(name, [server], chief, run))
    failed = Story(shared_room, run=run).wait("the failure", "train.failed")
    stop(shared_room, run)
    assert failed["reason"].startswith(begins)
    assert says in failed["reason"]


def test_a_checkpoint_of_another_model_is_refused_with_the_variable_that_differs(shared_room: MachineRoom) -> None:
    room = shared_room
    room.need_agent("ps-0")
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    first = room.put("ps-0", {**OWN, "name": "first"}, MODEL_FN)
    room.say("ps-0", assignment("ps-0", [server], chief, "first"))
    Story(room, run="first").wait("the first checkpoint", "train.checkpoint")
    wider = MODEL_FN.replace("[64, 10])", "[64, 12])").replace('"bias", [10]', '"bias", [12]')
    renamed = MODEL_FN.replace('"bias", [10]', '"shift", [10]')
    for run, other, said in (
        ("wider", wider, "has the shape (64, 10) in the checkpoint, but (64, 12) in the model (--resume)."),
        ("renamed", renamed, "the checkpoint has no variable shift (--resume)."),
    ):
        second = room.put("ps-0", {**OWN, "name": run, "resume": "first"}, other)
        shutil.copytree(first / "checkpoints", second / "checkpoints")
        server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
        room.say("ps-0", assignment("ps-0", [server], chief, run))
        failed = Story(room, run=run).wait("the failure", "train.failed")
        assert said in failed["reason"]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (
            KERAS.replace("optimizers.Adam(rate", "optimizers.ScheduleFreeAdamW(rate"),
            "the Keras optimizer ScheduleFreeAdamW is not supported on parameter servers. Use AdamW.",
        ),
        (MODEL_FN.replace("[64, 10]", "[65, 10]"), "cell line"),
        (KERAS, "have no metric 'acuracy' (--keep-best). Use one of: accuracy, loss."),
        (KERAS.replace("input_fn(mode)", "input_fn()").replace("mode ==", "'eval' =="), "Write def input_fn(mode)."),
        (
            MODEL_FN.replace("(features, labels, mode)", "(features, labels)").replace("mode ", "'train' "),
            "model_fn must take features, labels and mode. Write def model_fn(features, labels, mode).",
        ),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_is_launched(tmp_path: Path, cell: str, said: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**OWN, "keep_best": "max acuracy"}), encoding="utf-8")
    (tmp_path / "cell.py").write_text(cell, encoding="utf-8")
    answer = json.loads(programs.run("transient_magics.runtime.programs.check", "--run", tmp_path, own=True, code=1))
    assert not answer["ok"]
    assert said in answer["error"]


def test_one_worker_has_the_same_losses_by_the_same_seed(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**OWN, "threads": 2}), encoding="utf-8")
    (tmp_path / "cell.py").write_text(KERAS, encoding="utf-8")
    said = programs.run("tests.runtime.seeded_steps", tmp_path, "7:0", "7:0", "7:1", "8:0", own=True).splitlines()
    first, again, other_worker, other_seed = (json.loads(line) for line in said if line.startswith("{"))
    assert first == again
    assert first["begin"] == other_worker["begin"] != other_seed["begin"]
    assert len({tuple(each["losses"]) for each in (first, other_worker, other_seed)}) == 3
