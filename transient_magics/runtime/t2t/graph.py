"""The graph of one training step, and of an evaluation, of a T2T model.

Chief and workers build the same variables in the same order from the same definition, so their placement on several
parameter servers agrees without talking. The chief builds on placeholders and never runs the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import accumulate, bridges, data
from .optimizer import learning_rate, training_operation
from .registry import Definition


@dataclass(frozen=True)
class TrainingGraph:
    """What a worker runs: `step` returns nothing; `before` and `after` are the global step around it.

    In synchronous training `step` pushes into the `accumulators`, from which the chief applies with the `optimizer`.
    """

    loss: Any
    step: Any
    before: Any
    after: Any
    examples: Any
    divisor: Any
    share: Any
    global_step: Any
    accumulators: Any = None
    optimizer: Any = None


def prepare(definition: Definition) -> None:
    """Give the hparams the problem's own (vocabulary sizes, modalities).

    Needs the vocabulary files of text problems.
    """
    definition.hparams.problem_hparams = definition.problem.get_hparams(definition.hparams)


def training_graph(
    definition: Definition, features: Mapping[str, Any], wire: str = "fp32", sync: bool = False, damped: bool = False
) -> TrainingGraph:
    """Build the training step on `features` in the default graph; with `sync` it pushes gradients and applies none.

    `wire` is how gradients are sent (wire.py); `damped`: the learning rate of late ones is lower (optimizer.py).
    """
    tf = bridges.cross()

    global_step = tf.train.get_or_create_global_step()
    before = tf.identity(global_step.read_value(), name="step_before")
    divisor = tf.placeholder_with_default(tf.constant(1.0), [], name="learning_rate_divisor")
    share = tf.placeholder_with_default(tf.constant(1.0), [], name="gradient_share")
    examples = tf.shape(next(iter(features.values())))[0]
    loss, _, _ = model_outputs(definition, features, tf.estimator.ModeKeys.TRAIN)
    rate = learning_rate(definition.hparams, divisor)
    accumulators = optimizer = None
    if sync:
        pushing = accumulate.pushing_operation(loss, definition.hparams, rate, global_step, share, wire)
        total, step, accumulators, optimizer = pushing
    else:
        began = before if damped else None
        total, step = training_operation(loss, definition.hparams, rate, global_step, share, wire, began)
    with tf.control_dependencies([step]):
        after = tf.identity(global_step.read_value(), name="step_after")
    return TrainingGraph(total, step, before, after, examples, divisor, share, global_step, accumulators, optimizer)


@dataclass(frozen=True)
class EvaluationGraph:
    """`updates` sees one more batch; `values` are T2T's metrics by their short names, `loss` the batch's mean loss."""

    values: Mapping[str, Any]
    updates: Any
    loss: Any
    examples: Any


def evaluation_graph(definition: Definition, features: Mapping[str, Any]) -> EvaluationGraph:
    """Build the problem's own evaluation metrics on `features`."""
    from tensor2tensor.utils import metrics

    tf = bridges.cross()

    tf.train.get_or_create_global_step()
    examples = tf.shape(next(iter(features.values())))[0]
    loss, logits, features = model_outputs(definition, features, tf.estimator.ModeKeys.EVAL)
    problem, hparams = definition.problem, definition.hparams
    values: dict[str, Any] = {}
    updates: list[Any] = []
    for name, function in metrics.create_evaluation_metrics([problem], hparams).items():
        _, target, short = name.split("/")[0], name.split("/")[1], name.split("/")[-1]
        if isinstance(logits, dict):
            if target not in logits:
                continue
            outcome = function(logits[target], features, features[target])
        else:
            outcome = function(logits, features, features["targets"])
        if not isinstance(outcome, tuple):
            continue  # image summaries are no numbers
        values[short], update = outcome
        updates.append(update)
    return EvaluationGraph(values, updates, loss, examples)


def check_graph(definition: Definition, batching: str = "uniform") -> None:
    """Build one training step on placeholders, and throw it away. Raises whatever the model raises."""
    tf = bridges.cross()

    with tf.Graph().as_default():
        prepare(definition)
        training_graph(definition, data.placeholders(definition, batching))


def model_outputs(definition: Definition, features: Mapping[str, Any], mode: str) -> tuple[Any, Any, dict[str, Any]]:
    """Loss and logits of the model, as T2T's estimator function computes them."""
    from tensor2tensor.utils import hparams_lib

    hparams = hparams_lib.copy_hparams(definition.hparams)
    features = dict(features)
    logits, losses = definition.model(hparams, mode)(features)
    if isinstance(logits, dict) and "self_generated_targets" in logits:
        features["targets"] = logits.pop("self_generated_targets")
        logits = logits["logits"]
    return sum(losses[key] for key in sorted(losses)), logits, features
