"""Which parameter server holds which variable, and how much of all that makes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import programs
from tests.runtime.machine_room import free_ports

pytestmark = pytest.mark.training

# A table far larger than all the rest, as a vocabulary's is, besides layers of several sizes and one without any rows.
PROGRAM = """
import json, sys
from transient_magics.runtime.tf import placement
from transient_magics.runtime.tf.graph_mode import tensorflow

tf = tensorflow()
shards = int(sys.argv[1])
with tf.Graph().as_default() as graph, placement.placed("/job:worker/task:7", 3, shards):
    for name, shape in {"table": [300_001, 8], "empty": [0, 8], "step": [], "long": [2, 300_000]}.items():
        tf.get_variable(name, shape, tf.float32, tf.zeros_initializer())
    for layer in range(12):
        tf.get_variable(f"layer_{layer}", [100 * layer + 1, 50], tf.float32, tf.zeros_initializer())
    other = tf.constant(0.0)
variables = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
told = [[*placement.place_in_checkpoint(each), each.device, each.shape.as_list()] for each in variables]
print(json.dumps({"variables": told, "other": other.device}, default=lambda part: [part.start, part.stop]))
"""

# A model that names its GPU, as many do, on machines without one.
CELL = """
import numpy, tensorflow.compat.v1 as tf

def input_fn(mode):
    return numpy.ones([8, 3], "float32"), numpy.zeros([8, 1], "float32")

def model_fn(features, labels, mode):
    with tf.device("/gpu:0"):
        guess = features @ tf.get_variable("weights", [3, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(guess - labels))
    return {"loss": loss, "optimizer": tf.train.AdamOptimizer, "learning_rate": 0.1}
"""
ON_A_GPU = """
import json, sys
from pathlib import Path
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.tf import placement
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.loading import load_model
from transient_magics.runtime.training.graph import variables, worker

folder = RunFolder(Path(sys.argv[1]))
spec, tf = folder.spec(), tensorflow()
trainable = load_model(folder, spec, str(folder.data))
server, own = ("127.0.0.1:" + port for port in sys.argv[2:])
served = tf.train.Server({"ps": [server]}, job_name="ps", task_index=0, config=placement.plain_config(1))
mine = tf.train.Server({"boot": [own]}, job_name="boot", task_index=0, config=placement.plain_config(1))
chief = variables.build(trainable, spec, 1)
with tf.Session(served.target, graph=chief.graph, config=placement.plain_config(1)) as session:
    session.run([chief.initialise, chief.ready])
with tf.Graph().as_default() as graph:
    features = trainable.placeholders()
    built = worker.build(trainable, features, spec, placement.worker_device(0), 1)
feeds = {each: [[1.0] * each.shape.as_list()[1]] * 8 for each in features.values()}
with tf.Session(mine.target, graph=graph, config=placement.worker_config([server], 0, own, 1)) as session:
    missing = len(session.run(built.missing))
    losses = [float(session.run([built.loss, built.step], feeds)[0]) for _ in range(20)]
with tf.Graph().as_default():
    evaluated = trainable.evaluation_graph(trainable.placeholders())
    with tf.Session(config=placement.plain_config(1)) as session:
        session.run(tf.global_variables_initializer())
print(json.dumps({"missing": missing, "losses": losses}))
"""


def placed(shards: int) -> dict[str, Any]:
    return json.loads(programs.run(PROGRAM, shards, own=True))


@pytest.mark.parametrize("shards", [0, 1, 3])
def test_variables_are_spread_over_the_servers_by_their_size(shards: int) -> None:
    answer = placed(shards)
    assert answer["other"] == "/job:worker/task:7"
    held: Counter[str] = Counter()
    parts: dict[str, list[Any]] = {}
    for name, part, device, shape in answer["variables"]:
        elements = 1
        for size in shape:
            elements *= size
        held[device] += elements
        parts.setdefault(name, []).append(part)
    assert set(held) == {f"/job:ps/task:{index}" for index in range(3)}
    assert all(len(pieces) == 1 for name, pieces in parts.items() if name not in ("table", "long"))
    if shards < 2:
        assert parts["table"] == [None]
        assert held.most_common(1)[0][1] == 300_001 * 8  # whoever has the table got nothing else
    else:
        rows = [rows for rows, _ in parts["table"]]
        assert rows == [[0, 100_001], [100_001, 200_001], [200_001, 300_001]]
        assert len(parts["long"]) == 2  # of two rows there can be two parts
        assert max(held.values()) < 1.1 * sum(held.values()) / 3


def test_what_a_model_puts_on_a_gpu_is_on_the_cpu_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        json.dumps({"name": "run-1", "train_steps": 20, "token": "0123456789abcdef"}), encoding="utf-8"
    )
    (tmp_path / "cell.py").write_text(CELL, encoding="utf-8")
    answer = json.loads(programs.run(ON_A_GPU, tmp_path, *free_ports(2), own=True).splitlines()[-1])
    assert answer["missing"] == 0
    assert answer["losses"][-1] < answer["losses"][0]
