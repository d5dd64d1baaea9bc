"""What a plain script does up to its first gradient: `python _plain.py RUN_FOLDER IMPORTS` prints when it was applied.

It builds its graph with AutoGraph on, as TensorFlow has it, and has its variables on a parameter server in the same
process. Nothing that makes our workers start faster is used. `IMPORTS` says what it imports of Tensor2Tensor's models:
`package`, what a user's `from tensor2tensor.models import resnet` brings, for the package names 43 modules; or `model`,
the one module that is used, as if the package were empty.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
import time
from pathlib import Path
from typing import Any

from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.training.t2t import bridges

IMPORTS = ("package", "model")


def import_models(imports: str) -> Any:
    """TensorFlow's version-1 interface, after all that makes our workers start faster was undone."""
    for saving in ("_lazy", "_no_unicode_scans"):
        setattr(bridges, saving, lambda *_: None)
    for around in ("_hidden", "_no_collection"):
        setattr(bridges, around, lambda *_: contextlib.nullcontext())
    bridges.autograph_off = lambda: lambda function: function
    tf = bridges.cross()
    for module in _of_package() if imports == "package" else ():
        with contextlib.suppress(Exception):  # some need packages that nobody has any more
            importlib.import_module(module)
    return tf


def _of_package() -> list[str]:
    """The models that `tensor2tensor.models` imports under TensorFlow 2: those outside of its conditions."""
    (place,) = importlib.import_module("tensor2tensor.models").__path__
    lines = ast.parse((Path(place) / "__init__.py").read_text(encoding="utf-8")).body
    named = [line for line in lines if isinstance(line, ast.ImportFrom) and (line.module or "").endswith("models")]
    named += [line for line in lines if isinstance(line, ast.ImportFrom) and ".models." in (line.module or "")]
    return [f"{line.module}.{each.name}" for line in named for each in line.names]


def main(folder: RunFolder, imports: str) -> None:
    """Train one step of the run whose declaration and data are in `folder`."""
    tf = import_models(imports)
    from transient_magics.runtime.training.define import define
    from transient_magics.runtime.training.graph.training import training_graph

    spec = folder.spec()
    trainable = define(folder, spec, str(folder.data))
    addresses = {"ps": ["127.0.0.1:2290"], "worker": ["127.0.0.1:2291"]}
    servers = [tf.train.Server(addresses, job_name=role, task_index=0) for role in addresses]
    with tf.Graph().as_default():
        trainable.prepare()
        with tf.device("/job:worker/task:0/cpu:0"):
            pipeline = trainable.training_pipeline()
            data = pipeline.dataset if pipeline.batched else pipeline.dataset.batch(trainable.batch)
            iterator = tf.data.make_initializable_iterator(data.prefetch(4))
        with tf.device(tf.train.replica_device_setter(cluster=addresses, worker_device="/job:worker/task:0")):
            built = training_graph(trainable, dict(iterator.get_next()))
            begin = tf.global_variables_initializer()
        with tf.Session(servers[1].target) as session:
            session.run(begin)
            session.run(iterator.initializer, pipeline.feeds)
            session.run([built.objective.loss, built.step], {built.divisor: 1.0})
            print(time.time(), flush=True)


if __name__ == "__main__":
    main(RunFolder(Path(sys.argv[1])), sys.argv[2])
