"""A model of Tensor2Tensor's registry, as a run trains it: the Trainable, its graphs, and texts.

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
from .optimizer import gradients, noisy_and_clipped, optimize_request, optimizer, weight_noise
from .registry import Definition

_AT_ONCE = 16
"""Texts per batch; a model may keep the logits of all their tokens."""
_LONGER = 100
"""Tokens by which an answer may exceed the longest input, as in Tensor2Tensor."""


def prepare(definition: Definition) -> None:
    """Add the problem's hparams (vocabulary sizes, modalities).

    Needs the vocabulary files of text problems.
    """
    definition.hparams.problem_hparams = definition.problem.get_hparams(definition.hparams)


def objective(definition: Definition, features: Mapping[str, Any], divisor: Any) -> Objective:
    """Return the training loss on a batch, with T2T's weight decay, noise and clipping.

    Raises DeclarationError for a model whose `optimize` does something else.
    """
    from tensor2tensor.utils import data_reader

    tf = bridges.cross()

    hparams = definition.hparams
    features = data_reader.standardize_shapes(dict(features))
    model, loss, _, _ = model_outputs(definition, features, tf.estimator.ModeKeys.TRAIN)
    request = optimize_request(model, loss)
    rate = request.rate / divisor
    total, made, pairs = gradients(request, rate)
    return Objective(
        total,
        pairs,
        made,
        lambda given: noisy_and_clipped(given, request.hparams),
        lambda by: optimizer(request.hparams, rate / by),
        _weight(tf, hparams, features),
        lambda: weight_noise(request.hparams, rate),
    )


def _weight(tf: Any, hparams: Any, features: Mapping[str, Any]) -> Any:
    """Return the number of targets over which T2T's loss is a mean.

    Targets that the modality counts as padding are left out; the others have their own weight if
    the problem defines one (`targets_mask`).
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
        path = name.split("/")
        target = path[1]
        short = path[-1]
        if isinstance(logits, dict):
            if target not in logits:
                continue
            outcome = function(logits[target], features, features[target])
        else:
            outcome = function(logits, features, features["targets"])
        if not isinstance(outcome, tuple):
            continue  # image summaries are not numbers
        values[short], update = outcome
        updates.append(update)
    return EvaluationGraph(values, updates, loss, examples)


def model_outputs(
    definition: Definition, features: Mapping[str, Any], mode: str, autoregressive: bool = False
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return the model, its loss, its logits and the features.

    Computes them as T2T's estimator function does. With `autoregressive` the model continues its
    own output, and the features have the targets that it generated.
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


# The graph for predictions: raw examples in, class scores or logits out.
#
# An input is an example as the problem reads it from its records (an image's pixels, a text's token
# numbers). The problem's preprocessing is part of the graph, so an exported model needs nothing
# else. The model is built as for an evaluation (no dropout, no augmentation), like the one whose
# accuracy was measured.


def serving_graph(definition: Definition, given: Collection[str] = ()) -> ServingGraph:
    """Build the model on placeholders in the default graph.

    The placeholders are those of the features that it needs, and of those `given`. A classifier
    does not need its targets, and its output is `scores`, probabilities of shape (examples,
    classes). Any other model needs its targets (the logits of a sequence depend on what came
    before), and its output is `logits`. Raises TrainingError for unknown or missing features.
    """
    tf = bridges.cross()

    if "use_nchw" in definition.hparams:
        # A layout for GPUs, but an exported model must run anywhere.
        definition.hparams.use_nchw = False
    modalities = definition.hparams.problem_hparams.modality
    target = str(modalities.get("targets", ""))
    classifier = target.endswith("class_label")
    raw_features = _raw_features(tf, definition)
    needed = {name for name in modalities if name in raw_features}
    if classifier:
        needed.discard("targets")
    if unknown := sorted(set(given) - set(raw_features)):
        have = f"Its features are: {', '.join(sorted(raw_features))}."
        raise TrainingError(f"the problem has no feature {unknown[0]!r}", where="inputs", fix=have)
    if given and (missing := sorted(needed - set(given))):
        raise TrainingError(
            f"the model also needs the feature {missing[0]!r}",
            where="inputs",
            fix=_how_to_give(needed),
        )
    inputs = {
        name: tf.placeholder(kind, [None, *shape], name=f"feature_{name}")
        for name, (kind, shape) in raw_features.items()
        if name in needed or name in given
    }
    examples = tf.shape(next(iter(inputs.values())), out_type=tf.int64)[0]
    raw = {
        name: inputs.get(name, _nothing(tf, examples, *like)) for name, like in raw_features.items()
    }
    features = _preprocessed(tf, definition, raw, examples)
    _, _, logits, _ = model_outputs(definition, features, tf.estimator.ModeKeys.EVAL)
    if isinstance(logits, Mapping):
        outputs = {name: _without_ones(tf, value) for name, value in logits.items()}
    elif classifier:
        flat = tf.cast(tf.reshape(logits, [-1, logits.shape.as_list()[-1]]), tf.float32)
        activation = tf.sigmoid if target.startswith("sigmoid") else tf.nn.softmax
        outputs = {"scores": activation(flat)}
    else:
        outputs = {"logits": _without_ones(tf, logits)}
    return ServingGraph(
        inputs, {name: tf.identity(value, name=f"output_{name}") for name, value in outputs.items()}
    )


def _raw_features(tf: Any, definition: Definition) -> dict[str, tuple[Any, list[int | None]]]:
    """Return type and shape of every feature of an example as read from a record."""
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
    """Return zeros, or empty strings, for a feature that does not affect the output."""
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
    """Return the batch after the problem's preprocessing, as in Problem.serving_input_fn."""
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
    """Return logits without the dimensions of size one that follow the second.

    Tensor2Tensor always has four dimensions and the vocabulary.
    """
    shape = logits.shape.as_list()
    ones = [axis for axis in range(2, len(shape) - 1) if shape[axis] == 1]
    return tf.cast(tf.squeeze(logits, ones) if ones else logits, tf.float32)


def _how_to_give(needed: Collection[str]) -> str:
    entries = ", ".join(f"{name!r}: ..." for name in sorted(needed))
    return f"Pass a dict: {{{entries}}}."


# Texts from texts: a trained model generates tokens, each time the most likely one, or by beam
# search.
#
# Tensor2Tensor's encoders convert texts to token numbers and back, and its inference generates. A
# model with inputs answers them (a translation), a language model continues them, and a classifier
# names the class.


class Decoder:
    """Encoding, generation and decoding for one definition, whose vocabularies must exist.

    Methods raise TrainingError.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._hparams = definition.hparams.problem_hparams
        self._language_model = "inputs" not in self._hparams.modality
        self.batch = 1 if self._language_model else _AT_ONCE
        """Texts per batch; one for a language model, which would treat padding as text."""

    def encode(self, feature: str, texts: Sequence[str]) -> Any:
        """Return the token numbers of `texts`, padded with zeros to the longest.

        A model with inputs also gets a token for the end of each text.
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
                    "a language model continues a text, but one of the texts is empty"
                )
            rows.append(tokens if self._language_model else [*tokens, EOS_ID])
        array = numpy.zeros((len(rows), max(map(len, rows))), numpy.int64)
        for row, tokens in zip(array, rows, strict=True):
            row[: len(tokens)] = tokens
        return array

    def graph(self, given: Collection[str], beam_size: int = 1, alpha: float = 0.0) -> ServingGraph:
        """Build the graph that answers the features `given` with tokens, in the default graph."""
        from tensor2tensor.utils import hparams_lib

        tf = bridges.cross()

        needed = {name for name in self._hparams.modality if name != "targets"} or {"inputs"}
        if different := sorted(set(given) ^ needed):
            name = different[0]
            if name in needed:
                what = f"the texts of {name!r} are missing"
            else:
                what = f"the model has no input of texts {name!r}"
            raise TrainingError(what, where="inputs", fix=f"Needed: {', '.join(sorted(needed))}.")
        for name in ("targets", *given):
            self._encoder(self._modelled(name))
        hparams = hparams_lib.copy_hparams(self._definition.hparams)
        if hparams.get("prepend_mode", "none") != "none":
            raise TrainingError(
                "a model that prepends inputs to targets cannot be decoded", where="prepend_mode"
            )
        inputs = {
            name: tf.placeholder(tf.int32, [None, None], name=f"feature_{name}")
            for name in sorted(given)
        }
        features = {name: tensor[:, :, None, None] for name, tensor in inputs.items()}
        with bridges.autograph_off():
            model = self._definition.model(hparams, tf.estimator.ModeKeys.PREDICT)
            answer = model.infer(features, decode_length=_LONGER, beam_size=beam_size, alpha=alpha)
        tokens = answer["outputs"]
        return ServingGraph(inputs, {"tokens": tf.reshape(tokens, [tf.shape(tokens)[0], -1])})

    def decode(self, tokens: Any) -> str:
        """Return the text of one answer."""
        from tensor2tensor.data_generators.text_encoder import EOS_ID

        found = [int(token) for token in tokens]
        if EOS_ID in found and not self._classifier:
            found = found[: found.index(EOS_ID)]
        return str(self._encoder("targets").decode(found))

    @property
    def _classifier(self) -> bool:
        return self._hparams.modality["targets"] == "class_label"

    def _modelled(self, feature: str) -> str:
        """Return the model's name of a feature: inputs of a language model begin its targets."""
        if self._language_model and feature == "inputs":
            return "targets"
        return feature

    def _encoder(self, feature: str) -> Any:
        """Return the encoder of a feature's texts. Raises TrainingError if it has none."""
        modality = self._hparams.modality.get(feature)
        encoder = self._hparams.vocabulary.get(feature)
        text = str(modality).startswith("symbol") or (feature == "targets" and self._classifier)
        if encoder is None or not text:
            raise TrainingError(f"{self._definition.problem.name} has no texts for {feature}")
        return encoder


class RegisteredModel:
    """The Trainable of a model, hparams set and problem that a run names."""

    @autograph_off()
    def __init__(self, folder: RunFolder, spec: RunSpec, directory: str) -> None:
        """Run the cell and find the names of the run.

        Raises CellError or DeclarationError.
        """
        self._definition = registry.define(folder, spec, directory)
        self._directory = directory
        self._threads = spec.prep_threads or (0 if spec.reads_records else data.AS_MANY_AS_CORES)

    @property
    def batch(self) -> int:
        """The batch size of the hparams; for most text problems in tokens."""
        return int(self._definition.hparams.batch_size)

    @autograph_off()
    def prepare(self) -> None:
        """Add the problem's hparams (vocabulary sizes, modalities).

        Needs the vocabulary of text problems.
        """
        prepare(self._definition)

    @autograph_off()
    def assume_vocabulary(self) -> int:
        """Use a vocabulary without words, and return its size.

        Returns 0 for a problem that declares no size.
        """
        return data.assume_vocabulary(self._definition.problem)

    @property
    def counts_tokens(self) -> bool:
        """Whether the mini-batch is counted in tokens, not in examples."""
        return bool(self._definition.problem.batch_size_means_tokens)

    def continued(self, step: int, values: dict[str, Any]) -> dict[str, Any]:
        """Return all values: a registered model is trained in one phase."""
        return values

    def fingerprint(self) -> dict[str, str]:
        """Return an empty fingerprint: all processes read the same files."""
        return {}

    def has_records(self) -> bool:
        """Return whether the training files are in the directory, which may be a bucket."""
        return data.has_records(self._definition, self._directory)

    @autograph_off()
    def generate(self, directory: str, temporary: str) -> None:
        """Run the problem's own generate_data into `directory`."""
        data.generate(self._definition, directory, temporary)

    def keep_vocabularies(self, checkpoints: Path) -> None:
        """Do nothing: they are copied from the records (parameter_server/records.py)."""

    @autograph_off()
    def record_files(self) -> Sequence[Path]:
        """Return the training files if their records may be read in any order; else none."""
        return data.record_files(self._definition, self._directory)

    @autograph_off()
    def training_pipeline(self) -> Pipeline:
        """Return training examples; for text problems, batches as T2T makes them."""
        return data.training_pipeline(self._definition, self._directory, self._threads)

    @autograph_off()
    def evaluation_pipeline(self, drawn: Sample | None = None) -> Pipeline:
        """Return the dev split once, in batches. A part of it is never drawn."""
        return data.evaluation_pipeline(self._definition, self._directory)

    @autograph_off()
    def placeholders(self) -> dict[str, Any]:
        """Return placeholders in the shape of a batch of training features."""
        return data.placeholders(self._definition)

    @autograph_off()
    def objective(self, features: Mapping[str, Any], divisor: Any) -> Objective:
        """Return the model's loss, gradients and optimizer."""
        return objective(self._definition, features, divisor)

    @autograph_off()
    def evaluation_graph(self, features: Mapping[str, Any]) -> EvaluationGraph:
        """Return the problem's own metrics by their short names."""
        return evaluation_graph(self._definition, features)

    @autograph_off()
    def serving_graph(self, given: Collection[str] = ()) -> ServingGraph:
        """Return class scores of a classifier, or logits of any other model."""
        return serving_graph(self._definition, given)

    def texts(self) -> Decoder:
        """Return the model with texts in and out, by the problem's own encoders."""
        return Decoder(self._definition)
