"""Evaluate one checkpoint of a run.

`python -m transient_magics.runtime.programs.evaluate --run FOLDER [--step N]` is a process of its
own, because it has its own graph, and needs its memory only for a moment. The dev split goes once
through the model, or a part of it, the same part at every step of a run: as many batches as
declared, or a drawn part if the whole split takes too long.

It prints one line of JSON: `{"step": N, "metrics": {...}, "undefined": [...], "batches": N,
"examples": N, "complete": true, "program": "..."}`, with the fingerprint of the program
(training/reproducibility.py) and, for a part, the fields of TrainEvaluated about it; or `{"error":
"sentence"}`, with exit code 1. The metrics of a Tensor2Tensor model are those of its problem.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import TrainingError
from ...files import write_atomically
from ...protocol.run import RunSpec
from ..files.checkpoints import Checkpoints
from ..folder import RunFolder
from ..tf import placement
from ..tf.graph_mode import tensorflow
from ..training import reproducibility
from ..training.examples import iterator_of
from ..training.loading import load_model
from ..training.reproducibility import seed_process
from ..training.trainable import Pipeline, Sample, Trainable
from ..training.user_model.trainable import OwnModel
from ..training.usercode import reason

NICE = 10
"""Priority: training comes first on the cores, and leaves a tenth of one if it needs all of them.

An awaited evaluation has the usual priority. On a busy VM it would take minutes otherwise.
"""

_SECONDS = 60.0
"""Time that the whole split of a cell's model may take, unless the chief allows more."""
_ESTIMATE_AFTER = 3.0
"""Seconds before the time of the whole split is estimated; the first batches take longer."""
_LONGEST = 800.0
"""Time limit, in seconds, if the whole split is declared: one without an end may be endless."""
_COUNTING = 2
"""A split that is too long is counted for its time limit divided by this."""
_BATCHES = 100
"""Batches of a Tensor2Tensor split, or of one without a known end, unless declared."""
_ENDLESS = -1

_DIGITS = 6
"""Significant digits of a metric: two good trials may have small values that differ little."""


@dataclass(frozen=True)
class Plan:
    """The part of the dev split that is evaluated."""

    batches: int = 0
    """First batches; 0: all."""
    drawn: Sample | None = None
    """Elements drawn from the first ones."""
    seconds: float = math.inf
    """Stop once the whole split is estimated to take longer."""


@dataclass(frozen=True)
class _Pass:
    """The result of one pass over the split."""

    metrics: Mapping[str, float]
    batches: int
    examples: int
    complete: bool
    """Whether it was the whole split."""
    size: int
    """Elements of the split (trainable.Pipeline)."""
    single: bool
    """Whether an element is an example, and not a batch."""
    elements: int
    """Elements of the pass."""
    seconds: float
    """Seconds since the first batch."""
    program: Mapping[str, str]
    """Fingerprint of the run's program."""


def evaluate(
    folder: RunFolder,
    spec: RunSpec,
    step: int | None,
    seconds: float = _SECONDS,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint as `evaluate_model` does, with the model of the run."""
    trainable = load_model(folder, spec, folder.data_directory(spec))
    return evaluate_model(Graphs(trainable, spec), folder, spec, step, seconds, before)


def evaluate_model(
    graphs: Graphs,
    folder: RunFolder,
    spec: RunSpec,
    step: int | None,
    seconds: float = _SECONDS,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint on the dev split.

    Parameters
    ----------
    graphs
        The evaluation graphs of the run's model.
    folder, spec
        Folder and declaration of the run.
    step
        Step of the checkpoint; None: the newest.
    seconds
        Time that the split of a cell's model may take, unless the number of batches is declared.
    before
        Fields of the run's last evaluation about its part of the split (TrainEvaluated).

    Returns
    -------
    dict
        The answer as printed.
    """
    trainable = graphs.trainable
    # Random examples are the same in each evaluation.
    seed_process(spec.program_seed, "evaluation")
    checkpoints = Checkpoints(folder.checkpoints)
    step = checkpoints.find(step)
    run_pass = partial(_run_pass, graphs, spec, checkpoints, step)
    part: dict[str, Any] = {}
    if isinstance(trainable, OwnModel):
        result, part = _evaluate_own(trainable, spec, before or {}, run_pass, seconds)
    else:
        result = run_pass(Plan(_BATCHES if spec.eval_batches is None else spec.eval_batches))
    finite = {
        name: float(f"{value:.{_DIGITS}g}")
        for name, value in result.metrics.items()
        if math.isfinite(value)
    }
    return {
        "step": step,
        "metrics": finite,
        "undefined": sorted(set(result.metrics) - set(finite)),
        "program": json.dumps(result.program),
        "batches": result.batches,
        "examples": result.examples,
        "complete": result.complete and not part,
        **part,
    }


def _evaluate_own(
    trainable: OwnModel,
    spec: RunSpec,
    before: Mapping[str, Any],
    run_pass: Callable[[Plan], _Pass],
    seconds: float,
) -> tuple[_Pass, dict[str, Any]]:
    """Evaluate a model of the cell; return the result, and the part of the split if it was one.

    A part is drawn once for all evaluations of the run, so that they compare. The first examples
    may all be of one class.
    """
    if spec.eval_batches:
        result = run_pass(Plan(spec.eval_batches))
        return result, {} if result.complete else _describe_split(result)
    if drawn := before.get("drawn"):
        result = run_pass(Plan(drawn=Sample(drawn, before["among"], spec.program_seed)))
        names = ("of", "endless", "drawn", "among")
        return result, {name: before[name] for name in names if name in before}
    whole = spec.eval_batches == 0
    limit = _LONGEST if whole else seconds
    result = run_pass(Plan(seconds=math.inf if before.get("complete") else limit))
    if result.complete:
        return result, {}
    if result.size == _ENDLESS or whole:
        first = {"drawn": result.elements, "among": result.elements}
        return result, {**_describe_split(result), **first}
    count = result.elements
    if result.seconds:
        count = max(1, int(seconds * result.elements / result.seconds))
    if result.size > 0 and result.single:
        elements = result.size
        examples = result.size
        ended = True
    else:
        elements, examples, ended = trainable.counted_evaluation(seconds / _COUNTING)
    if not ended:
        elements = max(elements, result.elements)
        count = min(count, _BATCHES * math.ceil(result.elements / result.batches))
    count = min(count, elements)
    part: dict[str, Any] = {"drawn": count, "among": elements}
    if ended:
        part["of"] = examples
    else:
        part["endless"] = True
    return run_pass(Plan(drawn=Sample(count, elements, spec.program_seed))), part


def _describe_split(result: _Pass) -> dict[str, Any]:
    """Return what is known about the size of a split of which the first batches were evaluated."""
    if result.size == _ENDLESS:
        return {"endless": True}
    if result.size > 0 and result.single:
        return {"of": result.size}
    return {}


@dataclass(frozen=True)
class _Evaluation:
    """The graph of an evaluation of a part of the split."""

    graph: Any
    pipeline: Pipeline
    iterator: Any
    batch: Any
    built: Any
    """The metrics (EvaluationGraph)."""
    initializers: list[Any]
    saver: Any
    program: Mapping[str, str]


class Graphs:
    """The evaluation graphs of a model, each built once. Sessions are new for each evaluation.

    A new session begins the random numbers of a graph again.
    """

    def __init__(self, trainable: Trainable, spec: RunSpec) -> None:
        self.trainable = trainable
        self._spec = spec
        self._made: dict[Sample | None, _Evaluation] = {}

    def of(self, drawn: Sample | None, checkpoints: Checkpoints, step: int) -> _Evaluation:
        """Return the graph for this part of the split, and for checkpoints such as that of `step`."""
        if drawn not in self._made:
            self._made[drawn] = self._build(drawn, checkpoints, step)
        return self._made[drawn]

    def _build(self, drawn: Sample | None, checkpoints: Checkpoints, step: int) -> _Evaluation:
        tf = tensorflow()
        trainable = self.trainable
        with tf.Graph().as_default() as graph:
            trainable.prepare()
            pipeline = trainable.evaluation_pipeline(drawn)
            iterator = iterator_of(pipeline.dataset)
            with placement.cut(self._spec.ps_shards):
                batch = iterator.get_next()
                built = trainable.evaluation_graph(batch)
            program = {
                **trainable.fingerprint(),
                **reproducibility.fingerprint_weights(graph),
            }
            initializers = [
                tf.global_variables_initializer(),
                tf.local_variables_initializer(),
                tf.tables_initializer(),
            ]
            saver = checkpoints.saver(step)
        return _Evaluation(graph, pipeline, iterator, batch, built, initializers, saver, program)


def _run_pass(
    graphs: Graphs, spec: RunSpec, checkpoints: Checkpoints, step: int, plan: Plan
) -> _Pass:
    """Evaluate one checkpoint on a part of the split."""
    tf = tensorflow()
    made = graphs.of(plan.drawn, checkpoints, step)
    pipeline = made.pipeline
    built = made.built
    config = placement.plain_config(spec.threads)
    with made.graph.as_default(), tf.Session(config=config) as session:
        session.run(made.initializers)
        session.run(made.iterator.initializer, pipeline.feeds)
        made.saver.restore(session, str(checkpoints.prefix(step)))
        loss, batches, examples, complete, seconds = all_batches(
            session, built, made.batch, pipeline, plan
        )
        metrics = {name: float(value) for name, value in session.run(dict(built.values)).items()}
    if not loss and "neg_log_perplexity" in metrics:
        # Some models (resnet) compute no loss when they do not train.
        loss = -metrics["neg_log_perplexity"]
    return _Pass(
        metrics={**metrics, "loss": loss},
        batches=batches,
        examples=examples,
        complete=complete,
        size=pipeline.elements,
        single=pipeline.single,
        elements=examples if pipeline.single else batches,
        seconds=seconds,
        program=made.program,
    )


def all_batches(
    session: Any, built: Any, batch: Any, pipeline: Pipeline, plan: Plan | None = None
) -> tuple[float, int, int, bool, float]:
    """Run batches through the model.

    Returns
    -------
    tuple
        Mean loss, number of batches and examples, whether that was the whole split, and the seconds
        that it took.
    """
    tf = tensorflow()
    plan = plan or Plan()
    limit = plan.batches
    if not limit and pipeline.elements == _ENDLESS and not plan.drawn:
        limit = _BATCHES
    total = 0.0
    batches = 0
    examples = 0
    complete = False
    began = time.monotonic()
    while not complete and (not limit or batches < limit):
        try:
            loss, count, _ = session.run([built.loss, built.examples, built.updates])
        except tf.errors.OutOfRangeError:
            complete = True
            continue
        total += float(loss) * int(count)
        batches += 1
        examples += int(count)
        share = 1.0
        if pipeline.elements > 0:
            share = (examples if pipeline.single else batches) / pipeline.elements
        seconds = time.monotonic() - began
        if seconds > min(_ESTIMATE_AFTER, plan.seconds) and seconds / share > plan.seconds:
            break
    seconds = time.monotonic() - began
    if not examples:
        raise TrainingError("the dev split is empty")
    if not complete:
        # The batch before may have been the last one.
        try:
            session.run(next(iter(batch.values())))
        except tf.errors.OutOfRangeError:
            complete = True
    return total / examples, batches, examples, complete, seconds


def main() -> None:
    """Print the metrics as one line of JSON."""
    parser = argparse.ArgumentParser(description="Evaluate a checkpoint of a run.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--step", type=int)
    parser.add_argument("--answer", type=Path, help="file that gets the line, too")
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS, help="time that the whole split may take"
    )
    parser.add_argument(
        "--before",
        default="{}",
        help="fields of the run's last evaluation about its part of the split, JSON",
    )
    parser.add_argument("--awaited", action="store_true", help="do not yield to training")
    given = parser.parse_args()
    os.nice(0 if given.awaited else NICE)
    folder = RunFolder(given.run)
    spec = folder.spec()
    try:
        answer = evaluate(folder, spec, given.step, given.seconds, json.loads(given.before))
    except Exception as error:  # noqa: BLE001 - user code and TensorFlow raise anything
        traceback.print_exc()
        answer = {"error": reason(error, spec.line_offset)}
    line = json.dumps(answer)
    if given.answer:
        write_atomically(given.answer, line, durable=False)
    print(line, flush=True)
    sys.exit("error" in answer)


if __name__ == "__main__":
    main()
