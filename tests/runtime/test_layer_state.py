"""State that layers assign, with several workers, and variables that are not finite any more."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime import programs
from tests.runtime.machine_room import MachineRoom, free_ports
from tests.runtime.test_own_models import OWN
from tests.runtime.test_training import Story, assignment
from transient_magics.protocol import chief_messages as messages
from transient_magics.protocol.agent_commands import Assignment
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.files.checkpoints import Checkpoints, Saved
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server.chief import chief as chiefs
from transient_magics.runtime.parameter_server.chief import events as events
from transient_magics.runtime.parameter_server.variables import Keeper, NotFiniteError

pytestmark = pytest.mark.training

ASSIGNMENT = Assignment("run-1", "ps", "ps-0", "127.0.0.1", ("127.0.0.1:2222",), "127.0.0.1:2221")
DATA = """
import keras
import numpy as np
from keras import layers, ops

def input_fn(mode):
    draw = np.random.default_rng(1)
    return draw.normal(size=(64, 6)).astype("float32"), draw.integers(0, 4, 64)

class Shrinking(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
    def call(self, inputs, training=False):
        if training:
            self.scale.assign_sub(0.01 * self.scale)
        return inputs * self.scale

class Projected(layers.Wrapper):
    def call(self, inputs, training=False):
        outputs = self.layer(inputs)
        if training:
            self.layer.kernel.assign(ops.clip(self.layer.kernel, -1.0, 1.0))
        return outputs

class Table(layers.Layer):
    def build(self, shape):
        self.table = layers.SpectralNormalization(layers.Embedding(4, 6), name="spectral")
        self.table.build(shape)
    def call(self, inputs, training=False):
        return self.table(ops.cast(inputs > 0, "int32"), training=training)
"""
MODEL = """
model = keras.Sequential([keras.Input((6,)), LAYER, layers.Flatten(), layers.Dense(4, "softmax")])
model.compile("sgd", "sparse_categorical_crossentropy")
"""
CHECKED = """
import json, pathlib, sys, tempfile
from transient_magics.errors import TransientError
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.training.graph.step import check_graph
from transient_magics.runtime.training.user_model.trainable import OwnModel

for cell in json.loads(sys.argv[1]):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "cell.py").write_text(cell)
        try:
            check_graph(OwnModel(RunFolder(pathlib.Path(folder)), RunSpec("run-1", 10)))
        except TransientError as error:
            print("refused:", error)
        else:
            print("taken")
"""
REFUSED = {
    'layers.SpectralNormalization(layers.Dense(8), name="spectral")':
        "the layer spectral (SpectralNormalization) assigns ",
    'Shrinking(name="shrinking")': "the layer shrinking (Shrinking) assigns ",
    'Projected(layers.Dense(5, name="inner"), name="projected")': "the layer projected (Projected) assigns ",
    "Table()": "the layer spectral (SpectralNormalization) assigns ",
    "layers.BatchNormalization(synchronized=True, name='shared')": "the layer shared is synchronized (statistics over",
}  # fmt: skip
TAKEN = (
    "layers.BatchNormalization(synchronized=True, trainable=False)",
    "layers.BatchNormalization(renorm=True)",
)
# Layers of TensorFlow's version 1, as Tensor2Tensor's models have them, fused or not, called once or twice.
VERSION_1 = """
from transient_magics.runtime.training.t2t import bridges
tf = bridges.cross()
import numpy as np
from transient_magics.runtime.training.graph import state, step as graph_step

inputs = tf.placeholder(tf.float32, [None, 2, 2, 3])
normalize = lambda values, **options: tf.layers.batch_normalization(values, training=True, momentum=0.8, **options)
fused = normalize(inputs, name="fused")
plain = normalize(inputs, name="plain", fused=False)
twice = normalize(inputs, name="twice", fused=False) + normalize(2 * inputs, name="twice", fused=False, reuse=True)
extra = tf.get_variable("extra", [], initializer=tf.zeros_initializer(), use_resource=True, trainable=False)
branch = tf.cond(tf.reduce_all(inputs > 1e9), lambda: tf.no_op(), lambda: tf.group(extra.assign_add(1.0)))
tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, branch)
weights = tf.get_variable("weights", [], initializer=tf.zeros_initializer(), use_resource=True)
tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, weights.assign(1.0, read_value=False))
states, others = state.assigned([weights])
assert others == [branch, tf.get_collection(tf.GraphKeys.UPDATE_OPS)[-1]]
assert all(each.change is not None for each in states)
names = sorted(each.variable.op.name for each in states)
assert names == [f"{layer}/moving_{what}" for layer in ("fused", "plain", "twice") for what in ("mean", "variance")]
step = tf.train.get_or_create_global_step()
rounds = graph_step.Accumulators([], step, states)
push = rounds.push([], tf.constant(1.0))
class Nothing:
    class optimizer:
        apply_gradients = lambda pairs: tf.no_op()
    finished = lambda pairs: pairs
    disturbances = lambda: []
rounds.build_update(Nothing)
updates = [operation for each in states for operation in state.merged(each)]
values = {each.variable.op.name: each.variable for each in states}
with tf.Session() as session:
    batches = np.random.default_rng(1).normal(3, 2, size=(3, 8, 2, 2, 3))
    means = batches.mean((1, 2, 3))
    for asynchronous in (False, True):
        session.run(tf.global_variables_initializer())
        if asynchronous:
            for batch in batches:
                session.run(updates, {inputs: batch})
            expected = 0.2 * (means[2] + 0.8 * means[1] + 0.64 * means[0])
        else:
            rounds.open(session)
            number, _ = session.run(rounds.position)
            for batch in batches:
                session.run(push, {inputs: batch, rounds.round: number})
            session.run(rounds.update, {rounds.round: number, rounds.needed: 3})
            expected = 0.2 * means.mean(0)
        found = session.run(values)
        np.testing.assert_allclose(found["plain/moving_mean"], expected, rtol=1e-4)
        np.testing.assert_allclose(found["fused/moving_mean"], expected, rtol=1e-4)
        if not asynchronous:  # twice in a row, of the inputs and of twice the inputs
            np.testing.assert_allclose(found["twice/moving_mean"], (0.2 * 0.8 + 0.2 * 2) * means.mean(0), rtol=1e-4)
"""
# A chief's variables in one process, with a server of their own. A layer begins with an infinite number, as maxima do.
KEPT = """
import json, pathlib, sys
from transient_magics.protocol.agent_commands import Assignment
from transient_magics.runtime.files.checkpoints import Checkpoints
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server.variables import Keeper, NotFiniteError
from transient_magics.runtime.tf.graph_mode import tensorflow

folder = RunFolder(pathlib.Path(sys.argv[1]))
server = sys.argv[2]
keeper = Keeper(folder, folder.spec(), Assignment("run-1", "ps", "ps-0", "127.0.0.1", (server,), "127.0.0.1:1"))
keeper.serve()
keeper.define()
keeper.build()
assert keeper.prepare() == 0
keeper.check_finite()
keeper.save()
session = keeper.another_session()
loading = {each.name: each for each in keeper._variables.loadings}

def load(name, value):
    session.run(loading[name].operation, {loading[name].placeholder: value})

def refused(work):
    try:
        work()
    except NotFiniteError as error:
        print(error)
    else:
        print("nothing is refused")

moving = next(name for name in loading if name.endswith("moving_variance"))
bias = next(name for name in loading if name.endswith("dense/bias"))
load(moving, [1.0, float("inf"), 1.0, 1.0, 1.0, 1.0])
load("global_step", 40)
refused(keeper.save)
refused(lambda: keeper.take(40, 1.0, []))
load(moving, [1.0] * 6)
load(bias, [float("nan")] * 4)
refused(keeper.check_finite)
load(bias, [0.0] * 4)
print(keeper.save().step, Checkpoints(folder.checkpoints).steps())
"""
INFINITE = """
class Largest(layers.Layer):
    def build(self, shape):
        start = lambda shape, dtype: ops.full(shape, -np.inf, dtype)
        self.largest = self.add_weight(shape=(), initializer=start, trainable=False, name="largest")
    def call(self, inputs, training=False):
        if training:
            self.largest.assign(ops.maximum(self.largest, ops.max(inputs)))
        return inputs

class Both(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.normalize, self.largest = layers.BatchNormalization(), Largest()
    def call(self, inputs, training=False):
        return self.normalize(self.largest(inputs, training=training), training=training)
"""


@pytest.mark.parametrize("check", ["forms", "late", "begun", "together", "in_parts", "exact"])
def test_state_of_several_workers_is_combined(check: str) -> None:
    programs.run("tests.runtime.layer_state_steps", check, own=True)


def test_layers_that_assign_what_is_trained_are_refused_by_name() -> None:
    cells = [DATA + MODEL.replace("LAYER", layer) for layer in (*REFUSED, *TAKEN)]
    said = [
        line
        for line in programs.run(CHECKED, json.dumps(cells), own=True).splitlines()
        if line.startswith(("ref", "tak"))
    ]
    assert said[len(REFUSED) :] == ["taken"] * len(TAKEN)
    for line, expected in zip(said, REFUSED.values(), strict=False):
        assert line.startswith(f"refused: {expected}"), line
        assert "assigns the trainable weight " in line or "synchronized" in line


def test_moving_statistics_of_version_1_layers_are_combined_too() -> None:
    programs.run(VERSION_1)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_checkpoint_with_numbers_that_are_not_finite_is_refused_and_the_last_one_stays(
    tmp_path: Path, mode: str
) -> None:
    (port,) = free_ports(1)
    (tmp_path / "run.json").write_text(
        json.dumps({**OWN, "mode": mode, "damping": "none", "workers": 2}), encoding="utf-8"
    )
    (tmp_path / "cell.py").write_text(DATA + INFINITE + MODEL.replace("LAYER", "Both()"), encoding="utf-8")
    saved, taken, trained, last = programs.run(KEPT, tmp_path, f"127.0.0.1:{port}", own=True).splitlines()[-4:]
    for said in (saved, taken):
        assert said.startswith("sequential/both/"), said
        assert "moving_variance is no longer finite at step 40." in said
        assert "the checkpoint of step 0 is still finite" in said
    assert "/bias is no longer finite at step 40. Lower learning_rate" in trained
    assert last == "40 [40, 0]"


async def test_a_chief_ends_a_run_with_the_name_of_a_variable_that_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examined(_: Keeper) -> None:
        raise NotFiniteError("bn/moving_mean is no longer finite at step 60", fix="Look at the layer.")

    monkeypatch.setattr(chiefs, "_TICK", 0.01)
    monkeypatch.setattr(chiefs, "_STEP_SECONDS", 0.0)
    monkeypatch.setattr(Keeper, "parameters", 650)
    monkeypatch.setattr(Keeper, "step", lambda _: 60)
    monkeypatch.setattr(Keeper, "save", lambda _: Saved(0, "model.ckpt-0", 0.0, 0))
    monkeypatch.setattr(Keeper, "check_finite", examined)
    chief = chiefs.Chief(RunFolder(tmp_path), RunSpec("run-1", 100, token="secret"), ASSIGNMENT)
    chief._handle(events.Prepared(40))
    chief._handle(events.Joined(1, "worker-0"))
    watching = asyncio.create_task(chief._watch())
    chief._receive(1, messages.Metrics(line={"step": 60, "steps": 1, "loss": None}))  # what it sees, not when it looks
    async with asyncio.timeout(60):
        await chief._finished
    watching.cancel()
    told = [json.loads(line) for line in (RunFolder(tmp_path).events).read_text(encoding="utf-8").splitlines()]
    assert told[-1]["kind"] == "train.failed"
    assert told[-1]["reason"] == "bn/moving_mean is no longer finite at step 60. Look at the layer."


QUICK = """
import keras
import numpy as np

batch_size = 16
model = keras.Sequential([
    keras.Input((3,)), keras.layers.BatchNormalization(momentum=MOMENTUM, name="quick"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.001), "mse")

def input_fn(mode):
    examples = np.random.RandomState(1).normal(-4, 2, size=(512, 3)).astype("f")
    return examples, examples.sum(1, keepdims=True)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("momentum", [0.05, 0.9])
def test_four_workers_keep_the_statistics_of_their_examples(
    shared_room: MachineRoom, mode: str, momentum: float
) -> None:
    room, run = shared_room, f"quick-{mode}-{int(100 * momentum)}"
    story = Story(room, run=run)
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    declared: dict[str, Any] = {**OWN, "name": run, "mode": mode, "workers": 4, "train_steps": 80, "pace_seconds": 0.3}
    names = ["ps-0", *(f"worker-{number}" for number in range(1, 5))]
    for name in names:
        room.need_agent(name)
        room.put(name, {**declared, "damping": "none"}, QUICK.replace("MOMENTUM", str(momentum)))
        room.say(name, assignment(name, [server], chief, run))
    story.wait("the end", "train.finished")
    values = Checkpoints(room.run_folder("ps-0", run).joinpath("checkpoints")).newest()
    assert values is not None
    found = {name.rpartition("/")[2]: value for name, value in values[1].items() if "/quick/moving_" in name}
    np.testing.assert_allclose(found["moving_mean"], -4, atol=1.5)
    assert (found["moving_variance"] > 1).all()
    assert (found["moving_variance"] < 9).all()
