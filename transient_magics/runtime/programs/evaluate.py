"""Evaluate one checkpoint of a run: `python -m transient_magics.runtime.programs.evaluate --run FOLDER [--step N]`.

A process of its own, because it has its own graph and needs its memory only for a moment. The dev split goes once
through the model, or so many batches of it as the declaration says: the same ones at every step of a run, however long
they take. Its metrics, of a T2T model the problem's own, are printed as one line of JSON, `{"step": N, "metrics":
{...}, "undefined": [...], "batches": N, "examples": N, "complete": true, "program": "..."}`, where `program` is a
fingerprint (training/fingerprint.py), or `{"error": "sentence"}` with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from ...errors import TrainingError
from ...files import write_atomically
from ...protocol.run import RunSpec
from ..files.checkpoints import Checkpoints
from ..folder import RunFolder
from ..tf import placement
from ..tf.graph_mode import tensorflow
from ..training import fingerprint
from ..training.define import define
from ..training.examples import iterator_of
from ..training.randomness import seed_process
from ..training.usercode import reason

_NICE = 10
"""What steps want of the parameter server's cores comes first; a tenth of one is left where they want all. Not of an
evaluation that is awaited: on a full machine it would take minutes, and hold up what follows."""

_DIGITS = 6
"""Of a metric: those that are small differ, too, as of two trials that are both good."""


def evaluate(folder: RunFolder, spec: RunSpec, step: int | None) -> dict[str, Any]:
    """Metrics of the checkpoint at `step` (or of the newest) on the dev split."""
    trainable = define(folder, spec, folder.data_directory(spec))
    seed_process(spec.program_seed, "evaluation")  # what the examples draw is the same in every evaluation
    tf = tensorflow()
    checkpoints = Checkpoints(folder.checkpoints)
    known = checkpoints.steps()
    if not known or (step is not None and step not in known):
        raise TrainingError("there is no checkpoint to evaluate", where=str(folder.checkpoints))
    step = known[0] if step is None else step
    with tf.Graph().as_default():
        trainable.prepare()
        pipeline = trainable.evaluation_pipeline()
        iterator = iterator_of(pipeline.dataset)
        with placement.cut(spec.ps_shards):
            batch = iterator.get_next()
            built = trainable.evaluation_graph(batch)
        program = {**trainable.fingerprint(), **fingerprint.of_weights(tf.get_default_graph())}
        saver = checkpoints.saver(step)
        with tf.Session(config=placement.plain_config(spec.threads)) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(iterator.initializer, pipeline.feeds)
            saver.restore(session, str(checkpoints.prefix(step)))
            loss, batches, examples, complete = _all_batches(tf, session, built, batch, spec.eval_batches)
            metrics = {name: float(value) for name, value in session.run(dict(built.values)).items()}
    if not loss and "neg_log_perplexity" in metrics:
        loss = -metrics["neg_log_perplexity"]  # some models (resnet) compute no loss when they are not training
    metrics["loss"] = loss
    finite = {name: float(f"{value:.{_DIGITS}g}") for name, value in metrics.items() if math.isfinite(value)}
    undefined = sorted(set(metrics) - set(finite))
    seen = {"batches": batches, "examples": examples, "complete": complete, "program": json.dumps(program)}
    return {"step": step, "metrics": finite, "undefined": undefined, **seen}


def _all_batches(tf: Any, session: Any, built: Any, batch: Any, most: int) -> tuple[float, int, int, bool]:
    """The mean loss, batches and examples, and whether that was the whole split; `most`: so many batches (0: all)."""
    total, batches, examples, complete = 0.0, 0, 0, False
    while not complete and (not most or batches < most):
        try:
            loss, seen, _ = session.run([built.loss, built.examples, built.updates])
        except tf.errors.OutOfRangeError:
            complete = True
        else:
            total, batches, examples = total + float(loss) * int(seen), batches + 1, examples + int(seen)
    if not examples:
        raise TrainingError("the dev split is empty")
    if not complete:  # the last one may have been taken
        try:
            session.run(next(iter(batch.values())))
        except tf.errors.OutOfRangeError:
            complete = True
    return total / examples, batches, examples, complete


def main() -> None:
    """Print the metrics as one line of JSON."""
    parser = argparse.ArgumentParser(description="Evaluate a checkpoint of a run.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--step", type=int)
    parser.add_argument("--answer", type=Path, help="a file for the line, too")
    parser.add_argument("--awaited", action="store_true", help="at once, and not behind what steps want")
    given = parser.parse_args()
    os.nice(0 if given.awaited else _NICE)
    folder = RunFolder(given.run)
    spec = folder.spec()
    try:
        answer = evaluate(folder, spec, given.step)
    except Exception as error:  # noqa: BLE001 - user code and TensorFlow raise anything; it is told in one line
        import traceback

        traceback.print_exc()
        answer = {"error": reason(error, spec.line_offset)}
    line = json.dumps(answer)
    if given.answer:
        write_atomically(given.answer, line, durable=False)
    print(line, flush=True)
    sys.exit("error" in answer)


if __name__ == "__main__":
    main()
