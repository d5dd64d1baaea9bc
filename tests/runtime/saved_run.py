"""A run's folder with a checkpoint that no run has written, for programs that have TensorFlow imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transient_magics.runtime.files.checkpoints import Checkpoints
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.tf.graph_mode import everything
from transient_magics.runtime.training.user_model.trainable import OwnModel

STEP = 4


def saved(place: Path, cell: str, **declared: Any) -> tuple[RunFolder, OwnModel]:
    """Run a cell, and write the values with which its variables begin as the checkpoint of `STEP`."""
    tf = everything()
    place.mkdir()
    (place / "cell.py").write_text(cell, encoding="utf-8")
    (place / "run.json").write_text(
        json.dumps({"name": place.name, "train_steps": 9, "seed": 3, **declared}), encoding="utf-8"
    )
    folder = RunFolder(place)
    trainable = OwnModel(folder, folder.spec())
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        trainable.evaluation_graph(trainable.placeholders())
        saver = tf.train.Saver(tf.global_variables())
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            checkpoints = Checkpoints(folder.checkpoints)
            write = lambda prefix: saver.save(session, prefix, write_meta_graph=False, write_state=False)  # noqa: E731
            checkpoints.write(STEP, write)
    return folder, trainable
