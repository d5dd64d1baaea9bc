"""The file with a worker's graph: what is in it for a worker of another number, and when there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.light import LIGHT
from tests.runtime import programs
from tests.runtime.machine_room import free_ports
from tests.runtime.test_other_runs import REVERSE
from tests.runtime.test_training import DECLARATION, DIGITS

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
from transient_magics.runtime.tf import placement
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.training.graph.file import GraphFile, written
from transient_magics.runtime.training.graph.worker import build
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.loading import load_model

folder = RunFolder(Path(sys.argv[1]))
spec = folder.spec()
trainable = load_model(folder, spec, str(folder.data))
tf = tensorflow()
device = placement.worker_device(7)


def every(elements):
    for each in vars(elements).values():
        yield from each if isinstance(each, list) else [] if each is None else [each]


def seen(make):
    with tf.Graph().as_default() as graph:
        elements = make(trainable.placeholders())
        wanted = [getattr(each, "op", each).name for each in every(elements)]
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


def read(content):
    (folder.path / "a.graph").write_bytes(content)
    return GraphFile.read(folder.path / "a.graph")


other = read(content.replace(tf.__version__.encode(), b"1.15.0", 1))
try:
    refused = seen(lambda features: other.on(features, device))
except TrainingError as error:
    refused = str(error)
file = read(content)
print(json.dumps({"built": seen(lambda features: build(trainable, features, spec, device, 1)),
                  "read": seen(lambda features: file.on(features, device)),
                  "examples": file.has_examples, "other": refused}))
"""


WRITING = """
import sys
from pathlib import Path
from transient_magics.runtime.files.data_files import make
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.training.graph.file import written
from transient_magics.runtime.training.loading import load_model

folder = RunFolder(Path(sys.argv[1]))
spec = folder.spec()
trainable = load_model(folder, spec, str(folder.data))
make(folder.data, lambda directory, temporary: trainable.generate(str(directory), str(temporary)))
Path(sys.argv[2]).write_bytes(written(trainable, spec, 1))
"""

READING = """
import json, sys
from pathlib import Path
from transient_magics.runtime.training.examples import Examples
from transient_magics.runtime.training.graph.file import GraphFile
from transient_magics.runtime.tf.graph_mode import run_only, tensorflow

file, told = GraphFile.read(Path(sys.argv[1])), {}
run_only()
tf = tensorflow()
place = "/job:ps/task:0"  # the worker's part of the graph there, too: one server will do
server = tf.train.Server({"ps": ["127.0.0.1:" + sys.argv[3]]}, job_name="ps", task_index=0)
for _ in range(2):
    with tf.Graph().as_default() as graph, tf.Session(server.target, graph=graph) as session:
        _, source = file.with_examples(place, sys.argv[2])
        files = [list(op.get_attr("value").string_val) for op in graph.get_operations()
                  if op.type == "Const" and op.get_attr("value").string_val]
        session.run(source.begin, source.feeds)
        values = session.run(source.values)
    told["places"] = [name.decode() for names in files for name in names if b"/data/" in name]
    told.setdefault("drawn", []).append(values["targets"].ravel().tolist())
shapes = {name: [str(value.dtype), *value.shape] for name, value in values.items()}
imported = [name for name in ("tensor2tensor", "tensorflow._api", "keras", "tf_keras") if name in sys.modules]
whole = [tf.reduce_sum.__name__, tf.train.Saver.__name__, tf.errors.OpError is sys.modules["tensorflow"].errors.OpError]
print(json.dumps({"batch": source.batch, "shapes": shapes, "wanted": source.requested is not None,
                  "features": sorted(source.features), **told, "imported": imported, "whole": whole}))
"""


def told(folder: Path, *, python: bool, mode: str = "async") -> dict[str, Any]:
    declared = {**DECLARATION, "model": "", "hparams_set": "", "problem": "", "mode": mode}
    (folder / "run.json").write_text(json.dumps(declared), encoding="utf-8")
    (folder / "cell.py").write_text(CELL.replace("PYTHON", str(python)), encoding="utf-8")
    return json.loads(programs.run(PROGRAM, folder, own=True).splitlines()[-1])


def elsewhere(folder: Path, cell: str, **declared: Any) -> dict[str, Any]:
    """What a worker finds in the graph that was written in one folder, with the records in another."""
    there, here = folder / "there", folder / "here"
    there.mkdir()
    (there / "run.json").write_text(json.dumps({**DECLARATION, **declared}), encoding="utf-8")
    (there / "cell.py").write_text(cell, encoding="utf-8")
    programs.run(WRITING, there, folder / "a.graph")
    there.rename(here)
    # From nothing: what it imports is looked at.
    command = [sys.executable, "-c", READING, folder / "a.graph", here / "data", str(free_ports(1)[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(place.startswith(f"{here}/data/") for place in found["places"])
    return found


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
    assert not found["examples"], "what input_fn gives is every VM's own"


def test_there_is_none_of_a_model_that_calls_python(tmp_path: Path):
    assert "PyFunc" in told(tmp_path, python=True)["refused"]


def test_examples_of_one_shape_are_in_it_and_need_little_of_tensorflow(tmp_path: Path):
    found = elsewhere(tmp_path, DIGITS, **LIGHT)
    assert found["batch"] == 8
    assert found["shapes"] == {"inputs": ["float32", 8, 8, 8, 1], "targets": ["int32", 8, 1]}
    assert found["wanted"], "a step can take any number of them"
    assert found["imported"] == []
    assert found["whole"] == ["reduce_sum_v1", "Saver", True], "the rest of TensorFlow comes when it is asked for"
    assert len(set(found["places"])) == 4
    first, second = found["drawn"]
    assert first != second, "every session draws an order of its own"


@pytest.mark.nightly
def test_batches_of_text_are_in_it(tmp_path: Path):
    text = {"model": "transformer", "hparams_set": "transformer_bits", "problem": "reverse_bits"}
    found = elsewhere(tmp_path, REVERSE, **text, batching="dynamic")
    assert {"inputs", "targets"} <= set(found["features"]), "regrouped ones are fed"
    assert found["shapes"]["targets"][0] == "int32"
    assert not found["imported"]


def test_examples_that_python_makes_are_every_workers_own(tmp_path: Path):
    cell = DIGITS.replace(
        '        example["inputs"].set_shape([8, 8, 1])\n',
        '        example["inputs"] = tf.py_func(np.copy, [example["inputs"]], example["inputs"].dtype)\n'
        '        example["inputs"].set_shape([8, 8, 1])\n',
    ).replace("import numpy as np", "import numpy as np, tensorflow.compat.v1 as tf")
    (tmp_path / "run.json").write_text(json.dumps({**DECLARATION, **LIGHT}), encoding="utf-8")
    (tmp_path / "cell.py").write_text(cell, encoding="utf-8")
    programs.run(WRITING, tmp_path, tmp_path / "a.graph")
    header = json.loads((tmp_path / "a.graph").read_bytes().partition(b"\n")[0])
    assert header["examples"] is None
    assert header["features"].keys() == {"inputs", "targets"}


IN_BLOCKS = """
import json, sys
from pathlib import Path
from transient_magics.runtime.files import blocks
from transient_magics.runtime.files.data_files import make
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.graph.file import GraphFile, written
from transient_magics.runtime.training.loading import load_model

folder = RunFolder(Path(sys.argv[1]))
spec = folder.spec()
trainable = load_model(folder, spec, str(folder.data))
make(folder.data, lambda directory, temporary: trainable.generate(str(directory), str(temporary)))
paths = trainable.record_files()
index = blocks.indexed(folder.data, paths)
(folder.path / "a.graph").write_bytes(written(trainable, spec, 1))
chunk = [folder.path / path.name for path in paths]
for path, moved in zip(paths, chunk):
    path.rename(moved)
    path.touch()
tf, seen = tensorflow(), 0
server = tf.train.Server({"ps": ["127.0.0.1:" + sys.argv[2]]}, job_name="ps", task_index=0)
with tf.Graph().as_default() as graph:
    _, source = GraphFile.read(folder.path / "a.graph").with_examples("/job:ps/task:0", str(folder.data))
    with tf.Session(server.target, graph=graph) as session:
        session.run(source.begin, {source.files: [str(path) for path in chunk]})
        try:
            while True:
                values = session.run(source.values)
                seen += len(values["targets"])
        except tf.errors.OutOfRangeError:
            pass
        left = session.run(source.left) if source.left is not None else 0
print(json.dumps({"records": index.records, "seen": seen, "left": int(left)}))
"""


@pytest.mark.parametrize(("text", "batching"), [(False, "uniform"), (True, "dynamic")])
def test_of_records_in_blocks_a_chunk_is_read_whole_and_once(tmp_path: Path, text: bool, batching: str):
    named = {"model": "transformer", "hparams_set": "transformer_bits", "problem": "reverse_bits"} if text else LIGHT
    (tmp_path / "run.json").write_text(json.dumps({**DECLARATION, **named, "batching": batching}), encoding="utf-8")
    (tmp_path / "cell.py").write_text(REVERSE if text else DIGITS, encoding="utf-8")
    found = json.loads(programs.run(IN_BLOCKS, tmp_path, str(free_ports(1)[0]), own=True).splitlines()[-1])
    assert found["seen"] == found["records"] > 100
    assert found["left"] == 0


RECURRENT = """
import keras, numpy

def input_fn(mode):
    return numpy.zeros([8, 4, 3], "float32"), numpy.zeros([8], "int64")

model = keras.Sequential([keras.Input((4, 3)), LAYER, keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
"""


@pytest.mark.parametrize("gpu", [False, True])
def test_a_model_that_takes_other_kernels_on_a_gpu_has_no_file_for_those_with_one(tmp_path: Path, gpu: bool) -> None:
    (tmp_path / "run.json").write_text(
        json.dumps({"name": "run-1", "train_steps": 3, "token": "0123456789abcdef"}), encoding="utf-8"
    )
    for layer, refused in (("keras.layers.Flatten()", False), ("keras.layers.LSTM(5)", gpu)):
        (tmp_path / "cell.py").write_text(RECURRENT.replace("LAYER", layer), encoding="utf-8")
        graph = tmp_path / "graphs" / f"{'gpu' if gpu else 'cpu'}-1.graph"
        graph.unlink(missing_ok=True)
        given = ("--run", tmp_path, "--servers", 1, *(["--gpu"] if gpu else []))
        programs.run("transient_magics.runtime.programs.shared_graph", *given, own=True, code=int(refused))
        assert graph.exists() is not refused
