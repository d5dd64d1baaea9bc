"""The file with a worker's graph: what is in it for a worker of another number, and when there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_training import DECLARATION

pytestmark = pytest.mark.training

CELL = """
import numpy, tensorflow.compat.v1 as tf

def input_fn(mode):
    return numpy.zeros([8, 3], "float32"), numpy.zeros([8, 1], "float32")

def model_fn(features, labels, mode):
    guess = features @ tf.get_variable("weights", [3, 1])
    if PYTHON:
        guess = tf.py_func(lambda x: x, [guess], tf.float32, stateful=False)
        guess.set_shape([None, 1])
    loss = tf.reduce_mean(tf.square(guess - labels)) + tf.reduce_sum(tf.get_variable("more", [2]))
    return {"loss": loss, "optimizer": tf.train.AdamOptimizer, "learning_rate": 0.1}
"""

# TensorFlow never comes into the process of the tests.
PROGRAM = """
import json, sys
from pathlib import Path
from transient_magics.errors import TrainingError
from transient_magics.runtime import placement
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.graph.worker import build, read, written
from transient_magics.runtime.graph_mode import tensorflow
from transient_magics.runtime.trainable import define

folder = RunFolder(Path(sys.argv[1]))
spec = folder.spec()
trainable = define(folder, spec, str(folder.data))
tf = tensorflow()
device = placement.worker_device(7)


def seen(make):
    with tf.Graph().as_default() as graph:
        elements = make(trainable.placeholders())
        wanted = [getattr(each, "op", each).name for each in vars(elements).values() if each is not None]
        used = {node.name for node in tf.graph_util.extract_sub_graph(graph.as_graph_def(), wanted).node}
        operations = [operation for operation in graph.get_operations() if operation.name in used]
    handles = {op.get_attr("shared_name").decode(): op.device for op in operations if op.type == "VarHandleOp"}
    return {"handles": handles, "devices": sorted({op.device for op in operations}),
            "types": sorted(op.type for op in operations if op.type != "Placeholder")}


try:
    content = written(trainable, spec, 1)
except TrainingError as error:
    print(json.dumps({"refused": str(error)}))
    sys.exit()
other = content.replace(tf.__version__.encode(), b"1.15.0", 1)
try:
    refused = seen(lambda features: read(other, features, device))
except TrainingError as error:
    refused = str(error)
print(json.dumps({"built": seen(lambda features: build(trainable, features, spec, device, 1)),
                  "read": seen(lambda features: read(content, features, device)), "other": refused}))
"""


def told(folder: Path, *, python: bool, mode: str = "async") -> dict[str, Any]:
    declared = {**DECLARATION, "model": "", "hparams_set": "", "problem": "", "mode": mode}
    (folder / "run.json").write_text(json.dumps(declared))
    (folder / "cell.py").write_text(CELL.replace("PYTHON", str(python)))
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_it_is_the_graph_that_the_worker_would_have_built(tmp_path: Path, mode: str):
    found = told(tmp_path, python=False, mode=mode)
    assert found["read"] == found["built"]
    own = found["read"]["handles"].pop("transient_gradient_sum")
    assert own == "/job:worker/task:7/device:CPU:0", "it is no part of the model"
    assert set(found["read"]["handles"].values()) == {"/job:ps/task:0"}
    assert {"weights", "more", "global_step", "transient_ready_run-1"} <= set(found["read"]["handles"])
    assert "/job:worker/task:7" in found["read"]["devices"]
    assert "1.15.0" in found["other"], "a graph of another TensorFlow is not used"


def test_there_is_none_of_a_model_that_calls_python(tmp_path: Path):
    assert "PyFunc" in told(tmp_path, python=True)["refused"]
