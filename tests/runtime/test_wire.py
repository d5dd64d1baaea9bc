"""Which tensors cross between worker and parameter servers, and how wide they are, with --wire bf16."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime import programs
from tests.runtime.test_training import DECLARATION, DIGITS

pytestmark = pytest.mark.training

# TensorFlow never comes into the process of the tests. It builds a worker's graph and counts the elements that cross.
CROSSING = """
import json, sys
from pathlib import Path
from transient_magics.runtime.tf import placement
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.training.graph.step import training_graph
from transient_magics.runtime.training.graph.step import cross_once
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.loading import load_model

folder = RunFolder(Path(sys.argv[1]))
spec = folder.spec()
trainable = load_model(folder, spec, str(folder.data))
tf = tensorflow()
device = placement.worker_device(7)
with tf.Graph().as_default() as built:
    trainable.prepare()
    with placement.placed(device, 2, 2):
        training_graph(trainable, trainable.placeholders(), spec.wire)
    cross_once(built, device, spec.wire)
    parameters = sum(variable.shape.num_elements() for variable in tf.trainable_variables())
def place(operation):
    resources = [given.device for given in operation.inputs if given.dtype == tf.resource]
    return operation.device or (resources[0] if resources else "")  # beside the variable, as TensorFlow places it


crossing = {}
for operation in built.get_operations():
    for tensor in operation.outputs:
        if tensor.dtype not in (tf.float32, tf.bfloat16) or not tensor.shape.is_fully_defined():
            continue
        source = place(operation)
        for target in {place(reader) for reader in tensor.consumers()} - {source, ""}:
            if "/job:ps" in target + source and "/job:worker" in target + source:
                way = f"{'down' if 'ps' in source else 'up'} {tensor.dtype.name}"
                crossing[way] = crossing.get(way, 0) + tensor.shape.num_elements()
print(json.dumps({"parameters": parameters, **crossing}))
"""


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_every_parameter_and_gradient_crosses_once_and_in_the_declared_width(tmp_path: Path, wire: str):
    (tmp_path / "run.json").write_text(json.dumps({**DECLARATION, "wire": wire}), encoding="utf-8")
    (tmp_path / "cell.py").write_text(DIGITS, encoding="utf-8")
    crossing = json.loads(programs.run(CROSSING, tmp_path).splitlines()[-1])
    declared, other = ("float32", "bfloat16") if wire == "fp32" else ("bfloat16", "float32")
    parameters = crossing["parameters"]
    for way in ("up", "down"):
        assert parameters <= crossing.get(f"{way} {declared}", 0) < 1.05 * parameters
    assert crossing.get(f"up {other}", 0) + crossing.get(f"down {other}", 0) < 0.05 * parameters  # batch statistics
