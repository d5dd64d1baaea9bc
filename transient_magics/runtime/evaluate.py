"""Evaluate one checkpoint of a run: `python -m transient_magics.runtime.evaluate --run FOLDER [--step N]`.

A process of its own, because it has its own graph and needs its memory only for a moment. The dev split goes once
through the model (100 batches or two minutes at most); its metrics, of a T2T model the problem's own, are printed as
one line of JSON, `{"step": N, "metrics": {...}, "examples": N}`, or `{"error": "sentence"}` with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from ..errors import TrainingError
from . import placement
from .checkpoints import Checkpoints
from .folder import RunFolder, RunSpec
from .graph_mode import tensorflow
from .trainable import define
from .usercode import reason

_MOST_BATCHES = 100
"""T2T's own default of --eval_steps; dev splits of text problems are large."""
_MOST_SECONDS = 120.0
_NICE = 10
"""What steps want of the parameter server's cores comes first; a tenth of one is left where they want all."""


def evaluate(folder: RunFolder, spec: RunSpec, step: int | None) -> dict[str, Any]:
    """Metrics of the checkpoint at `step` (or of the newest) on the dev split."""
    trainable = define(folder, spec, folder.data_directory(spec))
    tf = tensorflow()
    checkpoints = Checkpoints(folder.checkpoints)
    known = checkpoints.steps()
    if not known or (step is not None and step not in known):
        raise TrainingError("there is no checkpoint to evaluate", where=str(folder.checkpoints))
    step = known[0] if step is None else step
    with tf.Graph().as_default():
        trainable.prepare()
        pipeline = trainable.evaluation_pipeline()
        iterator = tf.data.make_initializable_iterator(pipeline.dataset)
        with placement.cut(spec.ps_shards):
            built = trainable.evaluation_graph(iterator.get_next())
        saver = checkpoints.saver(step)
        with tf.Session(config=placement.plain_config(spec.threads)) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(iterator.initializer, pipeline.feeds)
            saver.restore(session, str(checkpoints.prefix(step)))
            loss, examples = _all_batches(tf, session, built)
            metrics = {name: float(value) for name, value in session.run(dict(built.values)).items()}
    if not loss and "neg_log_perplexity" in metrics:
        loss = -metrics["neg_log_perplexity"]  # some models (resnet) compute no loss when they are not training
    metrics["loss"] = loss
    finite = {name: round(value, 6) for name, value in metrics.items() if math.isfinite(value)}
    return {"step": step, "metrics": finite, "examples": examples}


def _all_batches(tf: Any, session: Any, built: Any) -> tuple[float, int]:
    total, examples = 0.0, 0
    until = time.monotonic() + _MOST_SECONDS
    for _ in range(_MOST_BATCHES):
        if examples and time.monotonic() > until:
            break
        try:
            loss, seen, _ = session.run([built.loss, built.examples, built.updates])
        except tf.errors.OutOfRangeError:
            break
        total += float(loss) * int(seen)
        examples += int(seen)
    if not examples:
        raise TrainingError("the dev split is empty")
    return total / examples, examples


def main() -> None:
    """Print the metrics as one line of JSON."""
    parser = argparse.ArgumentParser(description="Evaluate a checkpoint of a run.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--step", type=int)
    given = parser.parse_args()
    os.nice(_NICE)
    folder = RunFolder(given.run)
    spec = folder.spec()
    try:
        answer = evaluate(folder, spec, given.step)
    except Exception as error:  # noqa: BLE001 - user code and TensorFlow raise anything; it is told in one line
        import traceback

        traceback.print_exc()
        answer = {"error": reason(error, spec.line_offset)}
    print(json.dumps(answer), flush=True)
    sys.exit("error" in answer)


if __name__ == "__main__":
    main()
