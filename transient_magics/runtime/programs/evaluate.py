"""Evaluate one checkpoint of a run: `python -m transient_magics.runtime.programs.evaluate --run
FOLDER [--step N]`.

A process of its own, because it has its own graph and needs its memory only for a moment. The dev
split goes once through the model, or a part of it, the same one at every step of a run: so many
batches as the declaration says, or, where the whole takes too long, what is drawn. Its metrics, of
a T2T model the problem's own, are printed as one line of JSON, `{"step": N, "metrics": {...},
"undefined": [...], "batches": N, "examples": N, "complete": true, "program": "..."}`, with a
fingerprint of the program (training/reproducibility.py) and, where a part was taken, what is known of
it (TrainEvaluated), or `{"error": "sentence"}` with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
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

_NICE = 10
"""What steps want of the parameter server's cores comes first; a tenth of one is left where they
want all. Not of an evaluation that is awaited: on a full machine it would take minutes, and hold up
what follows.
"""

_SECONDS = 60.0
"""What the whole split of a cell's own model may take, unless the chief allows more."""
_LOOK_AFTER = 3.0
"""Seconds after which it is estimated how long the whole split takes: the first batches take longer
than others.
"""
_LONGEST = 800.0
"""Seconds for a split of which all is asked for. What has no end by then may have none."""
_COUNTING = 2
"""A split that turned out to be too long is counted for this part of the time that it may take."""
_BATCHES = 100
"""Of a split of Tensor2Tensor's, and of one whose end was not found, unless the declaration says
how many.
"""
_ENDLESS = -1

_DIGITS = 6
"""Of a metric: those that are small differ, too, as of two trials that are both good."""


@dataclass(frozen=True)
class Plan:
    """Which part of the dev split is evaluated.

    The first `batches` (0: all); or those that are `drawn` of the first elements; or nothing more,
    once it is clear that all of it would take longer than `seconds`.
    """

    batches: int = 0
    drawn: Sample | None = None
    seconds: float = math.inf


@dataclass(frozen=True)
class _Seen:
    """What one pass came to. Its `seconds` are those since the first batch, in which it had so many
    `elements`.
    """

    metrics: Mapping[str, float]
    batches: int
    examples: int
    complete: bool
    size: int
    """How many elements the split has (trainable.Pipeline)."""
    single: bool
    elements: int
    seconds: float
    program: Mapping[str, str]
    """The fingerprint of the run's program."""


def evaluate(
    folder: RunFolder,
    spec: RunSpec,
    step: int | None,
    seconds: float = _SECONDS,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Metrics of the checkpoint at `step` (or of the newest) on the dev split.

    Of a model of the cell's own, it may take so many `seconds`, unless the declaration says how
    many batches it has. `before`: what the run's latest evaluation said of its part of the split
    (protocol's TrainEvaluated).
    """
    trainable = load_model(folder, spec, folder.data_directory(spec))
    seed_process(
        spec.program_seed, "evaluation"
    )  # what the examples draw is the same in every evaluation
    checkpoints = Checkpoints(folder.checkpoints)
    known = checkpoints.steps()
    if not known or (step is not None and step not in known):
        raise TrainingError("there is no checkpoint to evaluate", where=str(folder.checkpoints))
    if step is None:
        step = known[0]
    else:
        step = step
    judge = partial(_pass, trainable, spec, checkpoints, step)
    if isinstance(trainable, OwnModel):
        seen, part = _of_own(trainable, spec, before or {}, judge, seconds)
    else:
        seen = judge(Plan(_BATCHES if spec.eval_batches is None else spec.eval_batches))
        part = {}
    finite = {
        name: float(f"{value:.{_DIGITS}g}")
        for name, value in seen.metrics.items()
        if math.isfinite(value)
    }
    undefined = sorted(set(seen.metrics) - set(finite))
    counted = {
        "batches": seen.batches,
        "examples": seen.examples,
        "complete": seen.complete and not part,
    }
    program = json.dumps(seen.program)
    return {
        "step": step,
        "metrics": finite,
        "undefined": undefined,
        "program": program,
        **counted,
        **part,
    }


def _of_own(
    trainable: OwnModel,
    spec: RunSpec,
    before: Mapping[str, Any],
    judge: Callable[[Plan], _Seen],
    seconds: float,
) -> tuple[_Seen, dict[str, Any]]:
    """The evaluation of a model of the cell's own, and which part of its split that was, if it was
    one.

    It is the whole split, or a part of it that is drawn once for all evaluations of the run, so
    that they compare: the first examples may be all of one class.
    """
    if spec.eval_batches:
        seen = judge(Plan(spec.eval_batches))
        return seen, {} if seen.complete else _first(seen)
    if many := before.get("drawn"):
        seen = judge(Plan(drawn=Sample(many, before["among"], _seed(spec))))
        return seen, {
            name: before[name] for name in ("of", "endless", "drawn", "among") if name in before
        }
    whole = spec.eval_batches == 0
    limit = _LONGEST if whole else seconds
    seen = judge(Plan(seconds=math.inf if before.get("complete") else limit))
    if seen.complete:
        return seen, {}
    if seen.size == _ENDLESS or whole:
        return seen, {**_first(seen), "drawn": seen.elements, "among": seen.elements}
    if seen.seconds:
        many = max(1, int(seconds * seen.elements / seen.seconds))
    else:
        many = seen.elements
    if seen.size > 0 and seen.single:  # it knows how many there are
        elements = seen.size
        examples = seen.size
        ended = True
    else:
        elements, examples, ended = trainable.counted_evaluation(seconds / _COUNTING)
    if not ended:
        elements = max(elements, seen.elements)
        many = min(many, _BATCHES * math.ceil(seen.elements / seen.batches))
    many = min(many, elements)
    part = {"drawn": many, "among": elements, **({"of": examples} if ended else {"endless": True})}
    return judge(Plan(drawn=Sample(many, elements, _seed(spec)))), part


def _first(seen: _Seen) -> dict[str, Any]:
    """What is known of a split of which the first batches were taken."""
    if seen.size == _ENDLESS:
        return {"endless": True}
    if seen.size > 0 and seen.single:
        return {"of": seen.size}
    return {}


def _seed(spec: RunSpec) -> int:
    """From which a part of the split is drawn, the same one at every step."""
    return spec.program_seed


def _pass(
    trainable: Trainable, spec: RunSpec, checkpoints: Checkpoints, step: int, plan: Plan
) -> _Seen:
    """Evaluate one checkpoint on a part of the split."""
    tf = tensorflow()
    with tf.Graph().as_default():
        trainable.prepare()
        pipeline = trainable.evaluation_pipeline(plan.drawn)
        iterator = iterator_of(pipeline.dataset)
        with placement.cut(spec.ps_shards):
            batch = iterator.get_next()
            built = trainable.evaluation_graph(batch)
        program = {
            **trainable.fingerprint(),
            **reproducibility.fingerprint_weights(tf.get_default_graph()),
        }
        saver = checkpoints.saver(step)
        with tf.Session(config=placement.plain_config(spec.threads)) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(iterator.initializer, pipeline.feeds)
            saver.restore(session, str(checkpoints.prefix(step)))
            loss, batches, examples, complete, taken = all_batches(
                session, built, batch, pipeline, plan
            )
            metrics = {
                name: float(value) for name, value in session.run(dict(built.values)).items()
            }
    if not loss and "neg_log_perplexity" in metrics:
        loss = -metrics[
            "neg_log_perplexity"
        ]  # some models (resnet) compute no loss when they are not training
    elements = examples if pipeline.single else batches
    return _Seen(
        {**metrics, "loss": loss},
        batches,
        examples,
        complete,
        pipeline.elements,
        pipeline.single,
        elements,
        taken,
        program,
    )


def all_batches(
    session: Any, built: Any, batch: Any, pipeline: Pipeline, plan: Plan | None = None
) -> tuple[float, int, int, bool, float]:
    """The mean loss, batches and examples, whether that was the whole split, and the seconds that
    they took.
    """
    tf = tensorflow()
    plan = plan or Plan()
    total = 0.0
    batches = 0
    examples = 0
    complete = False
    most = plan.batches or (_BATCHES if pipeline.elements == _ENDLESS and not plan.drawn else 0)
    began = time.monotonic()
    while not complete and (not most or batches < most):
        try:
            loss, seen, _ = session.run([built.loss, built.examples, built.updates])
        except tf.errors.OutOfRangeError:
            complete = True
        else:
            total = total + float(loss) * int(seen)
            batches = batches + 1
            examples = examples + int(seen)
            if pipeline.elements > 0:
                share = (examples if pipeline.single else batches) / pipeline.elements
            else:
                share = 1.0
            taken = time.monotonic() - began
            if taken > min(_LOOK_AFTER, plan.seconds) and taken / share > plan.seconds:
                break
    taken = time.monotonic() - began
    if not examples:
        raise TrainingError("the dev split is empty")
    if not complete:  # the last one may have been taken
        try:
            session.run(next(iter(batch.values())))
        except tf.errors.OutOfRangeError:
            complete = True
    return total / examples, batches, examples, complete, taken


def main() -> None:
    """Print the metrics as one line of JSON."""
    parser = argparse.ArgumentParser(description="Evaluate a checkpoint of a run.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--step", type=int)
    parser.add_argument("--answer", type=Path, help="a file for the line, too")
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS, help="that the whole split may take"
    )
    parser.add_argument(
        "--before",
        default="{}",
        help="what the run's latest evaluation said of its part of the split",
    )
    parser.add_argument(
        "--awaited", action="store_true", help="at once, and not behind what steps want"
    )
    given = parser.parse_args()
    os.nice(0 if given.awaited else _NICE)
    folder = RunFolder(given.run)
    spec = folder.spec()
    try:
        answer = evaluate(folder, spec, given.step, given.seconds, json.loads(given.before))
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
