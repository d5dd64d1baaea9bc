"""What follows from a run's seed, for pairs of a seed and a worker's number: `... FOLDER SEED:NUMBER ...`; as JSON.

FOLDER is a run's, with its records where it has any. For each pair comes what the chief begins with, and the losses of
the worker's first steps on its own copy. A program of its own, because TensorFlow is not imported into the process of
the tests; its graphs run without the devices that they name, so that nothing listens here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.role import Stopwatch
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.graph import variables
from transient_magics.runtime.worker.graph import GraphMaker

STEPS = 4


def here(graph: Any) -> Any:
    """The same graph, all of it on this machine."""
    tf, definition = tensorflow(), graph.as_graph_def()
    for node in definition.node:
        node.device = ""
    with tf.Graph().as_default() as copy:
        tf.import_graph_def(definition, name="")
    return copy


def follows(folder: RunFolder, seed: int, number: int) -> dict[str, Any]:
    """What the chief begins with, and the worker's losses."""
    tf, spec = tensorflow(), replace(folder.spec(), seed=seed)
    made = GraphMaker(folder, spec, 1, Stopwatch(time.time(), ""))
    trainable = made._define()
    if not trainable.has_records():
        trainable.generate(str(folder.data), str(folder.path / "temporary"))
    chief = variables.build(trainable, spec, 1)
    with tf.Session(graph=here(chief.graph)) as session:
        session.run(chief.initialise.name)
        begin = [float(abs(value).sum()) for value in session.run([each.name for each in chief.written])]
    worker = made.make(number)
    source, built = worker.examples, worker.built
    with tf.Session(graph=here(worker.graph)) as session:
        session.run([each for each in session.graph.get_operations() if each.name.endswith("/Assign")])
        session.run(source.begin.name, {each.name: value for each, value in source.feeds.items()})
        for _ in range(2):  # one mini-batch and four of them
            session.run(source.enqueue.name)
        losses = [session.run([built.loss.name, built.after.name])[0].item() for _ in range(STEPS)]
    return {"begin": begin, "losses": losses}


def main() -> None:
    for pair in sys.argv[2:]:
        if not (child := os.fork()):  # a cell is run once in a process
            seed, number = map(int, pair.split(":"))
            print(json.dumps(follows(RunFolder(Path(sys.argv[1])), seed, number)), flush=True)
            os._exit(0)
        _, ended = os.waitpid(child, 0)
        assert not ended


if __name__ == "__main__":
    main()
