"""A model, an hparams set and a problem of Tensor2Tensor's registry, as a run trains them.

AutoGraph is off wherever something is built: see bridges.autograph_off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....errors import TrainingError
from ....protocol.run import RunSpec
from ...folder import RunFolder
from ..trainable import EvaluationGraph, Objective, Pipeline, Sample, ServingGraph
from . import bridges, data, registry
from .bridges import autograph_off
from .optimizer import asked_of_optimize, gradients, noisy_and_clipped, optimizer, weight_noise
from .registry import Definition

_AT_ONCE = 16
"""Texts; a model may keep the logits of all their tokens."""
_LONGER = 100
"""How many tokens longer than the longest input an answer may be; as in Tensor2Tensor."""


# The graphs of a T2T model: a training step's loss and gradients, an evaluation, serving and decoding.


def prepare(definition: Definition) -> None:
    """Give the hparams the problem's own (vocabulary sizes, modalities).

    Needs the vocabulary files of text problems.
    """
    definition.hparams.problem_hparams = definition.problem.get_hparams(definition.hparams)


def objective(definition: Definition, features: Mapping[str, Any], divisor: Any) -> Objective:
    """The training loss on a batch, with T2T's weight decay, noise and clipping around its
    gradients.

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
    """Of how many targets T2T's loss is the mean: those that the modality's weights do not take for
    padding, each with its own weight where the problem gives one (`targets_mask`).
    """
    from tensor2tensor.layers import common_layers, modalities

    modality = hparams.problem_hparams.modality.get("targets")
    targets = features.get("targets")
    if targets is None or modality is None:
        return tf.cast(tf.shape(next(iter(features.values())))[0], tf.float32)
    weights = hparams.weights_fn.get("targets", modalities.get_weights_fn(modality))
    counted = tf.cast(weights(targets) if weights else tf.ones_like(targets), tf.float32)
    if (mask := features.get("targets_mask")) is not None:
        counted *= common_layers.expand_squeeze_to_nd(
            tf.cast(mask, tf.float32), counted.shape.ndims
        )
    return tf.reduce_sum(counted)


def evaluation_graph(definition: Definition, features: Mapping[str, Any]) -> EvaluationGraph:
    """Build the problem's own evaluation metrics on `features`."""
    from tensor2tensor.utils import data_reader, metrics

    tf = bridges.cross()

    features = data_reader.standardize_shapes(dict(features))
    tf.train.get_or_create_global_step()
    examples = tf.shape(next(iter(features.values())))[0]
    problem = definition.problem
    hparams = definition.hparams
    alone = bool(hparams.get("eval_run_autoregressive"))
    _, loss, logits, features = model_outputs(
        definition, features, tf.estimator.ModeKeys.EVAL, alone
    )
    values: dict[str, Any] = {}
    updates: list[Any] = []
    for name, function in metrics.create_evaluation_metrics([problem], hparams).items():
        _ = name.split("/")[0]
        target = name.split("/")[1]
        short = name.split("/")[-1]
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
    """The model, its loss and logits as T2T's estimator function computes them, and the features
    with its targets.

    `autoregressive`: it goes on from what it wrote itself, and not from the targets.
    """
    from tensor2tensor.utils import hparams_lib

    hparams = hparams_lib.copy_hparams(definition.hparams)
    features = dict(features)
    model = definition.model(hparams, mode)
    if autoregressive:
        logits, losses = model.eval_autoregressive(features)
    else:
        logits, losses = model(features)
    if isinstance(logits, dict) and "self_generated_targets" in logits:
        features["targets"] = logits.pop("self_generated_targets")
        logits = logits["logits"]
    return model, sum(losses[key] for key in sorted(losses)), logits, features


# The graph that a trained model is used with: raw examples in, class scores or logits out.
#
# An example enters as the problem reads it from its records (an image's pixels, a text's token
# numbers); the problem's own preprocessing is a part of the graph, so that whoever has an exported
# model needs nothing else. The model is built as for an evaluation (no dropout, no augmentation),
# which is what its accuracy was measured with.


def serving_graph(definition: Definition, given: Collection[str] = ()) -> ServingGraph:
    """Build the model on placeholders for the features that it needs, and for those `given`, in the
    default graph.

    A classifier does not need its targets and answers `scores`, probabilities of shape (examples,
    classes). Any other model needs its targets too (a sequence's logits depend on what came
    before), and answers `logits`.
    """
    tf = bridges.cross()

    if "use_nchw" in definition.hparams:
        definition.hparams.use_nchw = (
            False  # a GPU's layout; what is exported here must run anywhere
        )
    modalities = definition.hparams.problem_hparams.modality
    target = str(modalities.get("targets", ""))
    classifier = target.endswith("class_label")
    known = _raw_features(tf, definition)
    needed = {
        name for name in modalities if name in known and not (classifier and name == "targets")
    }
    if strange := sorted(set(given) - set(known)):
        have = f"The problem's are: {', '.join(sorted(known))}."
        raise TrainingError(f"the problem has no feature {strange[0]!r}", where="inputs", fix=have)
    if given and (missing := sorted(needed - set(given))):
        raise TrainingError(
            f"the model needs the feature {missing[0]!r} too",
            where="inputs",
            fix=_how_to_give(needed),
        )
    inputs = {
        name: tf.placeholder(kind, [None, *shape], name=f"feature_{name}")
        for name, (kind, shape) in known.items()
        if name in needed or name in given
    }
    examples = tf.shape(next(iter(inputs.values())), out_type=tf.int64)[0]
    raw = {name: inputs.get(name, _nothing(tf, examples, *like)) for name, like in known.items()}
    _, _, logits, _ = model_outputs(
        definition, _preprocessed(tf, definition, raw, examples), tf.estimator.ModeKeys.EVAL
    )
    if isinstance(logits, Mapping):
        outputs = {name: _without_ones(tf, value) for name, value in logits.items()}
    elif classifier:
        flat = tf.cast(tf.reshape(logits, [-1, logits.shape.as_list()[-1]]), tf.float32)
        outputs = {
            "scores": tf.sigmoid(flat) if target.startswith("sigmoid") else tf.nn.softmax(flat)
        }
    else:
        outputs = {"logits": _without_ones(tf, logits)}
    return ServingGraph(
        inputs, {name: tf.identity(value, name=f"output_{name}") for name, value in outputs.items()}
    )


def _raw_features(tf: Any, definition: Definition) -> dict[str, tuple[Any, list[int | None]]]:
    """Type and shape of every feature of one example as the problem reads it from a record."""
    problem = definition.problem
    problem._hparams = definition.hparams  # as Problem.dataset does before it reads examples

    def read(serialized: Any) -> dict[str, Any]:
        example = problem.decode_example(serialized)
        problem.maybe_reverse_features(example)
        problem.maybe_copy_features(example)
        return example

    records = tf.data.Dataset.from_tensors(tf.constant("")).map(read)
    types = tf.data.get_output_types(records)
    shapes = tf.data.get_output_shapes(records)
    return {name: (types[name], shapes[name].as_list()) for name in sorted(types)}


def _nothing(tf: Any, examples: Any, kind: Any, shape: list[int | None]) -> Any:
    """A feature that the answer does not depend on: zeros, or empty strings."""
    sizes = tf.stack([examples, *(tf.constant(size or 1, tf.int64) for size in shape)])
    if kind == tf.string:
        filled = tf.fill(sizes, "")
    else:
        filled = tf.zeros(sizes, kind)
    filled.set_shape([None, *(size or 1 for size in shape)])
    return filled


def _preprocessed(
    tf: Any, definition: Definition, raw: Mapping[str, Any], examples: Any
) -> dict[str, Any]:
    """The batch after the problem's preprocessing, as Problem.serving_input_fn does it."""
    from tensor2tensor.utils import data_reader

    problem = definition.problem
    hparams = definition.hparams
    mode = tf.estimator.ModeKeys.EVAL
    dataset = tf.data.Dataset.from_tensor_slices(dict(raw))
    dataset = dataset.map(lambda example: problem.preprocess_example(example, mode, hparams))
    dataset = dataset.map(data_reader.cast_ints_to_int32)
    dataset = dataset.padded_batch(examples, tf.data.get_output_shapes(dataset)).map(
        data_reader.standardize_shapes
    )
    return tf.data.experimental.get_single_element(dataset)


def _without_ones(tf: Any, logits: Any) -> Any:
    """Tensor2Tensor keeps four dimensions and the vocabulary; those behind the second that are
    always one go.
    """
    shape = logits.shape.as_list()
    ones = [axis for axis in range(2, len(shape) - 1) if shape[axis] == 1]
    return tf.cast(tf.squeeze(logits, ones) if ones else logits, tf.float32)


def _how_to_give(needed: Collection[str]) -> str:
    return f"Give a dict: {{{', '.join(f'{name!r}: ...' for name in sorted(needed))}}}."


# From texts to texts: what a trained model writes, token by token, each time the likeliest one, or
# by beam search.
#
# Tensor2Tensor's own encoders turn texts into token numbers and back, and its own inference writes:
# a model of texts with inputs answers them (a translation), a language model goes on from them, a
# classifier names the class.


class Decoder:
    """Encodes, writes and decodes for one definition, whose vocabularies must be there. Raises
    TrainingError.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._hparams = definition.hparams.problem_hparams
        self._language_model = "inputs" not in self._hparams.modality
        self.batch = 1 if self._language_model else _AT_ONCE
        """Of a language model one, because it would take padding for a part of the text."""

    def encode(self, feature: str, texts: Sequence[str]) -> Any:
        """The token numbers of `texts`, filled up with zeros to the longest, with an end where a
        model has inputs.
        """
        import numpy
        from tensor2tensor.data_generators.text_encoder import EOS_ID

        name = self._modelled(feature)
        encoder = self._encoder(name)
        size = self._hparams.vocab_size[name]
        rows: list[list[int]] = []
        for text in texts:
            try:
                tokens = list(encoder.encode(str(text)))
            except (KeyError, ValueError) as error:
                raise TrainingError(
                    f"{str(text)!r} is not in the vocabulary of {feature}: {error}"
                ) from error
            if any(not 0 <= token < size for token in tokens):
                raise TrainingError(f"{str(text)!r} is not in the vocabulary of {feature}")
            if not tokens and self._language_model:
                raise TrainingError(
                    "a language model goes on from a text, and one of them is empty"
                )
            rows.append(tokens if self._language_model else [*tokens, EOS_ID])
        array = numpy.zeros((len(rows), max(map(len, rows))), numpy.int64)
        for row, tokens in zip(array, rows, strict=True):
            row[: len(tokens)] = tokens
        return array

    def graph(self, given: Collection[str], beam_size: int = 1, alpha: float = 0.0) -> ServingGraph:
        """Build what answers the features `given` with token numbers, in the default graph."""
        from tensor2tensor.utils import hparams_lib

        tf = bridges.cross()

        needed = {name for name in self._hparams.modality if name != "targets"} or {"inputs"}
        if strange := sorted(set(given) ^ needed):
            what = f"the texts of {strange[0]!r} are {'missing' if strange[0] in needed else 'not wanted'}"
            raise TrainingError(what, where="inputs", fix=f"Needed: {', '.join(sorted(needed))}.")
        for name in ("targets", *given):
            self._encoder(self._modelled(name))
        hparams = hparams_lib.copy_hparams(self._definition.hparams)
        if hparams.get("prepend_mode", "none") != "none":
            raise TrainingError(
                "a model that prepends inputs to targets is not decoded", where="prepend_mode"
            )
        inputs = {
            name: tf.placeholder(tf.int32, [None, None], name=f"feature_{name}")
            for name in sorted(given)
        }
        features = {name: each[:, :, None, None] for name, each in inputs.items()}
        with bridges.autograph_off():
            model = self._definition.model(hparams, tf.estimator.ModeKeys.PREDICT)
            answer = model.infer(features, decode_length=_LONGER, beam_size=beam_size, alpha=alpha)
        tokens = answer["outputs"]
        return ServingGraph(inputs, {"tokens": tf.reshape(tokens, [tf.shape(tokens)[0], -1])})

    def decode(self, tokens: Any) -> str:
        """The text of one answer."""
        from tensor2tensor.data_generators.text_encoder import EOS_ID

        found = [int(token) for token in tokens]
        if EOS_ID in found and not self._classifier:
            found = found[: found.index(EOS_ID)]
        return str(self._encoder("targets").decode(found))

    @property
    def _classifier(self) -> bool:
        return self._hparams.modality["targets"] == "class_label"

    def _modelled(self, feature: str) -> str:
        """What a language model is given is the beginning of its targets."""
        if self._language_model and feature == "inputs":
            return "targets"
        return feature

    def _encoder(self, feature: str) -> Any:
        modality = self._hparams.modality.get(feature)
        encoder = self._hparams.vocabulary.get(feature)
        text = str(modality).startswith("symbol") or (feature == "targets" and self._classifier)
        if encoder is None or not text:
            raise TrainingError(f"{self._definition.problem.name} has no texts as {feature}")
        return encoder


class RegisteredModel:
    """The Trainable that a run names."""

    @autograph_off()
    def __init__(self, folder: RunFolder, spec: RunSpec, directory: str) -> None:
        """Run the cell and find what the run names. Raises CellError or DeclarationError."""
        self._definition = registry.define(folder, spec, directory)
        self._directory = directory
        self._threads = spec.prep_threads or (0 if spec.reads_records else data.AS_MANY_AS_CORES)

    @property
    def batch(self) -> int:
        """The hparams' batch size; of most text problems in tokens."""
        return int(self._definition.hparams.batch_size)

    @autograph_off()
    def prepare(self) -> None:
        """Give the hparams the problem's own (vocabulary sizes, modalities). Needs the vocabulary
        of text problems.
        """
        prepare(self._definition)

    @autograph_off()
    def assume_vocabulary(self) -> int:
        """Use a vocabulary without words and return its size; 0 for a problem that declares no
        size.
        """
        return data.assume_vocabulary(self._definition.problem)

    @property
    def counts_tokens(self) -> bool:
        """Whether the mini-batch is counted in tokens, not in examples."""
        return bool(self._definition.problem.batch_size_means_tokens)

    def fingerprint(self) -> dict[str, str]:
        """Return nothing: all processes read the same files."""
        return {}

    def has_records(self) -> bool:
        """Whether the problem's training files are in the directory (which may be a bucket)."""
        return data.has_records(self._definition, self._directory)

    @autograph_off()
    def generate(self, directory: str, temporary: str) -> None:
        """Run the problem's own generate_data into `directory`."""
        data.generate(self._definition, directory, temporary)

    @autograph_off()
    def record_files(self) -> Sequence[Path]:
        """The training files, of a problem whose records may be read one by one in any order."""
        return data.record_files(self._definition, self._directory)

    @autograph_off()
    def training_pipeline(self) -> Pipeline:
        """Training examples; of text problems, batches as T2T makes them."""
        return data.training_pipeline(self._definition, self._directory, self._threads)

    @autograph_off()
    def evaluation_pipeline(self, drawn: Sample | None = None) -> Pipeline:
        """The dev split once, in batches. No part of it is ever drawn."""
        return data.evaluation_pipeline(self._definition, self._directory)

    @autograph_off()
    def placeholders(self) -> dict[str, Any]:
        """Placeholders shaped like a batch of the problem's training features."""
        return data.placeholders(self._definition)

    @autograph_off()
    def objective(self, features: Mapping[str, Any], divisor: Any) -> Objective:
        """The model's loss, and T2T's optimizer."""
        return objective(self._definition, features, divisor)

    @autograph_off()
    def evaluation_graph(self, features: Mapping[str, Any]) -> EvaluationGraph:
        """The problem's own metrics, by their short names."""
        return evaluation_graph(self._definition, features)

    @autograph_off()
    def serving_graph(self, given: Collection[str] = ()) -> ServingGraph:
        """Class scores of a classifier, logits of any other model."""
        return serving_graph(self._definition, given)

    def texts(self) -> Decoder:
        """Texts in and out by the problem's own encoders."""
        return Decoder(self._definition)
