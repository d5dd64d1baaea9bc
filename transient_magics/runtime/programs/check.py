"""Build one training step of a run and throw it away: `python -m
transient_magics.runtime.programs.check --run FOLDER`.

FOLDER holds run.json and cell.py (and include/). Prints one line of JSON, `{"ok": true, "model":
{"parameters": N, "gigaflops": X, "batch_size": B}}` (`model_size` in graph/step.py) or `{"ok":
false, "error": "sentence", "line": N}`, where N is the cell's line as the notebook counts it, or
null. No data is needed and nothing is trained; a problem whose vocabulary is only made with its
data passes with a note. With `--planned`, for plans of models that never ran, a vocabulary of the
size that the problem declares stands in: `vocabulary` in the answer's `model` is that size.
`tokens` there means that the mini-batch is counted in tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import DeclarationError
from ...protocol.objective import Objective
from ...protocol.run import RunSpec
from ..folder import RunFolder
from ..role import take_environment
from ..tf.graph_mode import GPU, tensorflow
from ..training.graph.step import check_graph
from ..training.loading import load_model
from ..training.t2t.trainable import RegisteredModel
from ..training.trainable import Trainable
from ..training.user_model.trainable import OwnModel
from ..training.usercode import cell_line, reason


def check(folder: RunFolder, spec: RunSpec, *, planned: bool = False) -> dict[str, Any]:
    """Raise what is wrong with the run; the answer has a `note` on what could not be checked, or
    the `model`'s size.
    """
    assumed: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as nothing:
        directory = spec.data_folder or nothing
        trainable = load_model(folder, spec, directory)
        try:
            trainable.prepare()
        except Exception as error:
            if directory not in str(error):
                raise
            if planned and isinstance(trainable, RegisteredModel):
                size = trainable.assume_vocabulary()
            else:
                size = 0
            if not size:
                what = f"{spec.problem} needs a vocabulary that is made with its data: the model was not built"
                return {"note": what}
            assumed["vocabulary"] = size
    if planned and isinstance(trainable, RegisteredModel) and trainable.counts_tokens:
        assumed["tokens"] = 1
    found = {
        "model": {
            **check_graph(trainable, spec.ps_shards),
            "batch_size": trainable.batch,
            **assumed,
        }
    }
    if isinstance(trainable, OwnModel):
        if trainable.fit:
            found["fit"] = asdict(trainable.fit.declaration())
        trainable.check_data()
    if spec.objective or spec.judged_by:
        _check_metrics(trainable, spec)
    return found


def _check_metrics(trainable: Trainable, spec: RunSpec) -> None:
    """Raise DeclarationError where evaluations will not have what the run is judged by."""
    tf = tensorflow()
    with tf.Graph().as_default():
        has = {*trainable.evaluation_graph(trainable.placeholders()).values, "loss"}
    judging = {
        "--keep-best": spec.keep_best and spec.objective,
        "--stop-when": spec.patience and spec.patience.objective,
        "--objective": spec.judged_by and Objective.parse(spec.judged_by),
    }
    for option, objective in judging.items():
        if objective and objective.metric not in has:
            what = f"evaluations of this model have no '{objective.metric}'"
            raise DeclarationError(what, where=option, fix=f"They have {', '.join(sorted(has))}.")


def answer(folder: RunFolder, *, planned: bool = False) -> dict[str, Any]:
    """What is printed."""
    offset = 0
    try:
        spec = folder.spec()
        offset = spec.line_offset
        found = check(folder, spec, planned=planned)
    except BaseException as error:  # noqa: BLE001 - whatever user code raises is the answer
        traceback.print_exc()
        cause: BaseException = error.__cause__ or error
        return {
            "ok": False,
            "error": reason(error, offset),
            "line": cell_line(cause, offset),
        }
    return {"ok": True, **found}


def main() -> None:
    """Print the answer; exit with 0 if the run can be built."""
    parser = argparse.ArgumentParser(
        description="Build one training step of a run and throw it away."
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument(
        "--planned", action="store_true", help="count with stand-ins for what only data tell"
    )
    asked = parser.parse_args()
    folder = RunFolder(asked.run)
    take_environment()
    # A GPU of this machine may be busy, and TensorFlow counts operations in the layout of a CPU
    # alone.
    os.environ.update({"CUDA_VISIBLE_DEVICES": "-1", GPU: "0"})
    with contextlib.redirect_stdout(sys.stderr):  # whatever the cell prints is not the answer
        found = answer(folder, planned=asked.planned)
    print(json.dumps(found), flush=True)
    sys.exit(not found["ok"])


if __name__ == "__main__":
    main()
