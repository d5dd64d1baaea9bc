"""The graph that a trained model is used with: raw examples in, class scores or logits out.

An example enters as the problem reads it from its records (an image's pixels, a text's token numbers); the problem's
own preprocessing is a part of the graph, so that whoever has an exported model needs nothing else. The model is built
as for an evaluation (no dropout, no augmentation), which is what its accuracy was measured with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ....errors import TrainingError
from ..trainable import ServingGraph
from . import bridges
from .graph import model_outputs
from .registry import Definition


def serving_graph(definition: Definition, given: Collection[str] = ()) -> ServingGraph:
    """Build the model on placeholders for the features that it needs, and for those `given`, in the default graph.

    A classifier does not need its targets and answers `scores`, probabilities of shape (examples, classes). Any other
    model needs its targets too (a sequence's logits depend on what came before), and answers `logits`.
    """
    tf = bridges.cross()

    if "use_nchw" in definition.hparams:
        definition.hparams.use_nchw = False  # a GPU's layout; what is exported here must run anywhere
    modalities = definition.hparams.problem_hparams.modality
    target = str(modalities.get("targets", ""))
    classifier = target.endswith("class_label")
    known = _raw_features(tf, definition)
    needed = {name for name in modalities if name in known and not (classifier and name == "targets")}
    if strange := sorted(set(given) - set(known)):
        have = f"The problem's are: {', '.join(sorted(known))}."
        raise TrainingError(f"the problem has no feature {strange[0]!r}", where="inputs", fix=have)
    if given and (missing := sorted(needed - set(given))):
        raise TrainingError(f"the model needs the feature {missing[0]!r} too", where="inputs", fix=_how_to_give(needed))
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
        outputs = {"scores": tf.sigmoid(flat) if target.startswith("sigmoid") else tf.nn.softmax(flat)}
    else:
        outputs = {"logits": _without_ones(tf, logits)}
    return ServingGraph(inputs, {name: tf.identity(value, name=f"output_{name}") for name, value in outputs.items()})


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
    types, shapes = tf.data.get_output_types(records), tf.data.get_output_shapes(records)
    return {name: (types[name], shapes[name].as_list()) for name in sorted(types)}


def _nothing(tf: Any, examples: Any, kind: Any, shape: list[int | None]) -> Any:
    """A feature that the answer does not depend on: zeros, or empty strings."""
    sizes = tf.stack([examples, *(tf.constant(size or 1, tf.int64) for size in shape)])
    filled = tf.fill(sizes, "") if kind == tf.string else tf.zeros(sizes, kind)
    filled.set_shape([None, *(size or 1 for size in shape)])
    return filled


def _preprocessed(tf: Any, definition: Definition, raw: Mapping[str, Any], examples: Any) -> dict[str, Any]:
    """The batch after the problem's preprocessing, as Problem.serving_input_fn does it."""
    from tensor2tensor.utils import data_reader

    problem, hparams = definition.problem, definition.hparams
    mode = tf.estimator.ModeKeys.EVAL
    dataset = tf.data.Dataset.from_tensor_slices(dict(raw))
    dataset = dataset.map(lambda example: problem.preprocess_example(example, mode, hparams))
    dataset = dataset.map(data_reader.cast_ints_to_int32)
    dataset = dataset.padded_batch(examples, tf.data.get_output_shapes(dataset)).map(data_reader.standardize_shapes)
    return tf.data.experimental.get_single_element(dataset)


def _without_ones(tf: Any, logits: Any) -> Any:
    """Tensor2Tensor keeps four dimensions and the vocabulary; those behind the second that are always one go."""
    shape = logits.shape.as_list()
    ones = [axis for axis in range(2, len(shape) - 1) if shape[axis] == 1]
    return tf.cast(tf.squeeze(logits, ones) if ones else logits, tf.float32)


def _how_to_give(needed: Collection[str]) -> str:
    return f"Give a dict: {{{', '.join(f'{name!r}: ...' for name in sorted(needed))}}}."
