"""The parts of a T2T model's graphs: loss, gradients and optimizer of a training step, metrics of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..trainable import EvaluationGraph, Objective
from . import bridges
from .optimizer import asked_of_optimize, gradients, noisy_and_clipped, optimizer, weight_noise
from .registry import Definition


def prepare(definition: Definition) -> None:
    """Give the hparams the problem's own (vocabulary sizes, modalities).

    Needs the vocabulary files of text problems.
    """
    definition.hparams.problem_hparams = definition.problem.get_hparams(definition.hparams)


def objective(definition: Definition, features: Mapping[str, Any], divisor: Any) -> Objective:
    """The training loss on a batch, with T2T's weight decay, noise and clipping around its gradients.

    Raises DeclarationError for a model whose `optimize` does something else.
    """
    from tensor2tensor.utils import data_reader

    tf = bridges.cross()

    hparams = definition.hparams
    features = data_reader.standardize_shapes(dict(features))
    model, loss, _, _ = model_outputs(definition, features, tf.estimator.ModeKeys.TRAIN)
    asked = asked_of_optimize(model, loss)
    rate = asked.rate / divisor
    total, made, pairs = gradients(asked, rate)
    return Objective(
        total,
        pairs,
        made,
        lambda given: noisy_and_clipped(given, asked.hparams),
        lambda by: optimizer(asked.hparams, rate / by),
        _weight(tf, hparams, features),
        lambda: weight_noise(asked.hparams, rate),
    )


def _weight(tf: Any, hparams: Any, features: Mapping[str, Any]) -> Any:
    """Of how many targets T2T's loss is the mean: those that the modality's weights do not take for padding, each with
    its own weight where the problem gives one (`targets_mask`)."""
    from tensor2tensor.layers import common_layers, modalities

    modality = hparams.problem_hparams.modality.get("targets")
    targets = features.get("targets")
    if targets is None or modality is None:
        return tf.cast(tf.shape(next(iter(features.values())))[0], tf.float32)
    weights = hparams.weights_fn.get("targets", modalities.get_weights_fn(modality))
    counted = tf.cast(weights(targets) if weights else tf.ones_like(targets), tf.float32)
    if (mask := features.get("targets_mask")) is not None:
        counted *= common_layers.expand_squeeze_to_nd(tf.cast(mask, tf.float32), counted.shape.ndims)
    return tf.reduce_sum(counted)


def evaluation_graph(definition: Definition, features: Mapping[str, Any]) -> EvaluationGraph:
    """Build the problem's own evaluation metrics on `features`."""
    from tensor2tensor.utils import data_reader, metrics

    tf = bridges.cross()

    features = data_reader.standardize_shapes(dict(features))
    tf.train.get_or_create_global_step()
    examples = tf.shape(next(iter(features.values())))[0]
    problem, hparams = definition.problem, definition.hparams
    alone = bool(hparams.get("eval_run_autoregressive"))
    _, loss, logits, features = model_outputs(definition, features, tf.estimator.ModeKeys.EVAL, alone)
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


def model_outputs(
    definition: Definition, features: Mapping[str, Any], mode: str, autoregressive: bool = False
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """The model, its loss and logits as T2T's estimator function computes them, and the features with its targets.

    `autoregressive`: it goes on from what it wrote itself, and not from the targets.
    """
    from tensor2tensor.utils import hparams_lib

    hparams = hparams_lib.copy_hparams(definition.hparams)
    features = dict(features)
    model = definition.model(hparams, mode)
    logits, losses = model.eval_autoregressive(features) if autoregressive else model(features)
    if isinstance(logits, dict) and "self_generated_targets" in logits:
        features["targets"] = logits.pop("self_generated_targets")
        logits = logits["logits"]
    return model, sum(losses[key] for key in sorted(losses)), logits, features
