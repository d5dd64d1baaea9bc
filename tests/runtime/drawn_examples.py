"""What two processes of one run draw: `... FOLDER`, a line of JSON for each.

The cell is executed in each process, and examples of its generator are read in two sessions.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy

from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.examples import iterator_of
from transient_magics.runtime.training.graph.step import training_graph
from transient_magics.runtime.training.loading import load_model
from transient_magics.runtime.training.reproducibility import fingerprint_weights

READ = 40


def observed(folder: RunFolder) -> dict[str, Any]:
    """What the cell has drawn, the model's initial weights, and noise of examples by number, for each session."""
    tf, trainable = tensorflow(), load_model(folder, folder.spec(), str(folder.data))
    cell: Any = sys.modules["transient_cell"]
    with tf.Graph().as_default():
        training_graph(trainable, trainable.placeholders())
        program = {**trainable.fingerprint(), **fingerprint_weights(tf.get_default_graph())}
    with tf.Graph().as_default():
        pipeline = trainable.training_pipeline()
        iterator = iterator_of(pipeline.dataset)
        following = iterator.get_next()["inputs"]
        sessions = []
        for _ in range(2):
            with tf.Session() as session:
                session.run(iterator.initializer, pipeline.feeds)
                sessions.append([session.run(following).tolist() for _ in range(READ)])
    weights = [float(abs(each.numpy()).sum()) for each in cell.model.weights]
    drawn = [cell.order.tolist(), cell.kept.tolist(), cell.start.numpy().tolist(), weights]
    augmented = [[float(value) for value in cell.augmented] for _ in range(2)]
    return {"drawn": drawn, "program": program, "sessions": sessions, "augmented": augmented}


def main() -> None:
    """Observe in a process of its own, as often as there are lines."""
    for _ in range(2):
        if not (child := os.fork()):
            numpy.random.seed()  # as the fork server of an agent does
            print(json.dumps(observed(RunFolder(Path(sys.argv[1])))), flush=True)
            os._exit(0)
        _, ended = os.waitpid(child, 0)
        assert not ended


if __name__ == "__main__":
    main()
