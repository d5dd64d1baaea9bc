"""Evaluations of a cell's own model on splits of many kinds, as JSON: `python -m tests.runtime.evaluated_parts FOLDER`.

A program of its own, because TensorFlow is not imported into the process of the tests. The model has no weights to
learn: its loss is the mean of the labels, so that the examples that were seen follow from it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.runtime.saved_run import saved
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.programs import evaluate as program

COUNT = 2000
CELL = """
import time
import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

COUNT = 2000
LABELS = np.arange(COUNT, dtype="float32")  # in the order of their classes, as a directory of classes has them
FEATURES = np.ones((COUNT, 1), "float32")
batch_size = 20

def slow(value):
    time.sleep(SECONDS)
    return value

def batches_or_examples():
    k = 0
    while True:
        yield np.float32([1]), np.float32(k)
        k += 1

def input_fn(mode):
    if mode == "train":
        return FEATURES, LABELS
    return SPLIT

def model_fn(features, labels, mode):
    loss = tf.reduce_mean(tf.get_variable("scale", [], initializer=tf.ones_initializer()) * labels)
    loss = tf.reduce_mean(tf.py_func(slow, [labels], tf.float32)) * 0 + loss
    return {"loss": loss, "optimizer": tf.train.GradientDescentOptimizer, "learning_rate": 0.1,
            "predictions": features, "eval_metric_ops": {"mean": tf.metrics.mean(labels)}}
"""
SETS = "tf2.data.Dataset.from_tensor_slices((FEATURES, LABELS))"
SIGNATURE = "(tf2.TensorSpec((1,)), tf2.TensorSpec(()))"
ENDLESS = f"tf2.data.Dataset.from_generator(batches_or_examples, output_signature={SIGNATURE})"
SPLITS = {
    "arrays": "FEATURES, LABELS",
    "dataset": SETS,
    "not known": f"{SETS}.filter(lambda x, y: y >= 0)",
    "endless": f"{SETS}.repeat()",
    "generator without end": ENDLESS,
}
MANY = 0.02
"""Seconds of a batch: all hundred of them take two."""


def folder_of(place: Path, split: str, seconds: float, **more: Any) -> RunFolder:
    """The folder of a run with a checkpoint, whose cell is run once in this process."""
    folder, trainable = saved(place, CELL.replace("SPLIT", split).replace("SECONDS", str(seconds)), **more)
    program.load_model = lambda *_: trainable
    return folder


def main() -> None:
    """Print the answers by what was asked."""
    root, found = Path(sys.argv[1]), dict[str, Any]()
    for name, split in SPLITS.items():
        for budget, batch in ((60.0, 0.0), (0.5, MANY)):
            if budget == 60.0 and name == "generator without end":
                continue
            folder = folder_of(root / f"{name} {budget:.0f}".replace(" ", "-"), split, batch)
            first = program.evaluate(folder, folder.spec(), 4, budget)
            again = program.evaluate(folder, folder.spec(), 4, budget, first)
            found[f"{name}, {'time' if budget == 60.0 else 'no time'}"] = [first, again]
    for batches in (0, 3):
        for name in ("arrays", "endless"):
            folder = folder_of(root / f"{name}-of-{batches}", SPLITS[name], 0.0, eval_batches=batches)
            found[f"{name}, {batches} batches"] = [program.evaluate(folder, folder.spec(), 4)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
