"""Build one training step of a run and drop it.

`python -m transient_magics.runtime.programs.check --run FOLDER`, where FOLDER has run.json and
cell.py (and include/). Prints one line of JSON: `{"ok": true, "model": {"parameters": N,
"gigaflops": X, "batch_size": B}}` (`model_size` in graph/step.py), or `{"ok": false, "error":
"sentence", "line": N}`, where N is the line of the cell as the notebook counts it, or null.

No data is needed, and nothing is trained. If a problem makes its vocabulary with its data, the
answer has a note instead of the model. With `--planned`, for plans of models that never ran, a
vocabulary of the size that the problem declares is assumed: `vocabulary` in the answer's `model` is
that size. `tokens` there means that the mini-batch is counted in tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...errors import DeclarationError
from ...protocol.objective import Objective
from ...protocol.run import FitDeclaration, RunSpec
from ..folder import RunFolder
from ..role import take_environment
from ..tf.graph_mode import GPU, tensorflow
from ..training.graph.step import check_graph
from ..training.loading import load_model
from ..training.t2t.trainable import RegisteredModel
from ..training.trainable import Trainable
from ..training.user_model.fit import Fit
from ..training.user_model.trainable import OwnModel, expected_calls
from ..training.usercode import cell_line, reason


def check(folder: RunFolder, spec: RunSpec, *, planned: bool = False) -> dict[str, Any]:
    """Check a run by building its step.

    Parameters
    ----------
    folder, spec
        Folder and declaration of the run.
    planned
        Whether a vocabulary may be assumed.

    Returns
    -------
    dict
        The `model` with its size, or a `note` about what could not be checked.

    Raises
    ------
    Exception
        Whatever is wrong with the run.
    """
    assumed: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as empty:
        directory = spec.data_folder or empty
        trainable = load_model(folder, spec, directory)
        try:
            trainable.prepare()
        except Exception as error:
            if directory not in str(error):
                raise
            size = 0
            if planned and isinstance(trainable, RegisteredModel):
                size = trainable.assume_vocabulary()
            if not size:
                needs = f"{spec.problem} needs a vocabulary that is made with its data"
                return {"note": f"{needs}: the model was not built"}
            assumed["vocabulary"] = size
    if planned and isinstance(trainable, RegisteredModel) and trainable.counts_tokens:
        assumed["tokens"] = 1
    size_of_graph = check_graph(trainable, spec.ps_shards)
    result: dict[str, Any] = {"model": {**size_of_graph, "batch_size": trainable.batch, **assumed}}
    if isinstance(trainable, OwnModel):
        if trainable.fit:
            result["fit"] = asdict(_declared(trainable, trainable.fit, folder, spec))
        trainable.check_data()
    if spec.objective or spec.judged_by:
        _check_metrics(trainable, spec)
    return result


def _declared(trainable: OwnModel, fit: Fit, folder: RunFolder, spec: RunSpec) -> FitDeclaration:
    """Return what the cell's calls of `fit` declare; later ones are expected, not certain."""
    declared = fit.declaration()
    if not trainable.continues:
        return declared
    calls, left = expected_calls(folder, spec)
    if len(calls) == 1 and not left:
        return declared
    total = sum(call.steps for call in calls)
    return replace(declared, steps=total, phase_steps=fit.steps)


def _check_metrics(trainable: Trainable, spec: RunSpec) -> None:
    """Raise DeclarationError if evaluations lack a metric by which the run is judged."""
    tf = tensorflow()
    with tf.Graph().as_default():
        metrics = {*trainable.evaluation_graph(trainable.placeholders()).values, "loss"}
    judging = {
        "--keep-best": spec.keep_best and spec.objective,
        "--stop-when": spec.patience and spec.patience.objective,
        "--objective": spec.judged_by and Objective.parse(spec.judged_by),
    }
    for option, objective in judging.items():
        if objective and objective.metric not in metrics:
            what = f"evaluations of this model have no metric '{objective.metric}'"
            raise DeclarationError(
                what, where=option, fix=f"Use one of: {', '.join(sorted(metrics))}."
            )


def answer(folder: RunFolder, *, planned: bool = False) -> dict[str, Any]:
    """Return the answer that is printed."""
    offset = 0
    try:
        spec = folder.spec()
        offset = spec.line_offset
        result = check(folder, spec, planned=planned)
    except BaseException as error:  # noqa: BLE001 - anything that user code raises is the answer
        traceback.print_exc()
        cause: BaseException = error.__cause__ or error
        return {
            "ok": False,
            "error": reason(error, offset),
            "line": cell_line(cause, offset),
        }
    return {"ok": True, **result}


def main() -> None:
    """Print the answer; exit with 0 if the run can be built."""
    parser = argparse.ArgumentParser(description="Build one training step of a run and drop it.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument(
        "--planned", action="store_true", help="assume the vocabulary that data would give"
    )
    arguments = parser.parse_args()
    folder = RunFolder(arguments.run)
    take_environment()
    # A GPU of this machine may be busy, and TensorFlow counts operations only in a CPU's layout.
    os.environ.update({"CUDA_VISIBLE_DEVICES": "-1", GPU: "0"})
    with contextlib.redirect_stdout(sys.stderr):  # the cell may print, and only the answer counts
        result = answer(folder, planned=arguments.planned)
    print(json.dumps(result), flush=True)
    sys.exit(not result["ok"])


if __name__ == "__main__":
    main()
