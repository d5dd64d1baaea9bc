"""Small Keras models, as the cells that would define them: layers, losses, metrics, optimizers, data.

The same number gives the same random cell. Everything in it is drawn from what `run` takes; data and first values are
its own. STATES are cells whose layers assign state; `shares` in a cell is what stays of a weight's value in a step.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

BATCH, STEPS, EVALUATED = 8, 20, 21
HEAD = f"""
import keras
import numpy as np
from keras import layers, ops

batch_size = {BATCH}

class Marked(layers.Layer):
    def call(self, inputs):
        there = ops.cast(ops.round(inputs) != 0, inputs.dtype)
        self.add_loss(ops.cast(0.01 * ops.mean(inputs ** 2), "float32"))
        return inputs * (1 + there) + ops.cast(ops.round(inputs) == 1, inputs.dtype)

def same(truth, guess):
    return ops.mean(ops.cast(ops.round(guess[:, :1]) == ops.reshape(ops.cast(truth, guess.dtype), (-1, 1)), "float32"))

def mean_guess(truth, guess):
    return ops.mean(ops.cast(guess, "float32"))

def largest_guess(truth, guess):
    return ops.max(ops.cast(guess, "float32"), axis=-1)

def where_not_zero(truth, guess):
    truth = ops.reshape(ops.cast(truth, guess.dtype), (-1, 1))
    there = ops.cast(truth != 0, guess.dtype)
    return ops.sum(there * ops.square(guess[:, :1] - truth)) / (ops.sum(there) + 1e-3)

def each_apart(truth, guess):
    return ops.mean(ops.abs(guess - ops.reshape(ops.cast(truth, guess.dtype), (-1, 1))), axis=-1)
"""
INPUTS = {
    "numbers": ("(12,)", "float32", "draw.normal(size=(count, 12))"),
    "picture": ("(6, 6, 2)", "float32", "draw.normal(size=(count, 6, 6, 2))"),
    "words": ("(7,)", "int32", "draw.integers(0, 9, (count, 7)) * (np.arange(7) < draw.integers(2, 8, (count, 1)))"),
    "series": ("(5, 3)", "float32",
               "draw.normal(size=(count, 5, 3)) * (np.arange(5) < draw.integers(2, 6, (count, 1)))[..., None]"),
}  # fmt: skip
TRUTHS = {
    "kind": ("draw.integers(0, 4, count)", 4),
    "value": ("draw.normal(size=count).round(1)", 1),
    "sign": ("draw.integers(0, 2, count)", 1),
}
REGULARIZERS = ("None", "None", "'l1'", "'l2'", "keras.regularizers.L1L2(0.002, 0.01)")
ACTIVATIONS = ("'relu'", "'tanh'", "'gelu'", "None")


@dataclass(frozen=True)
class Drawn:
    """One model: its cell, and whether it has layers that draw random numbers, or computes in bfloat16."""

    cell: str
    random: bool
    narrow: bool


def draw(number: int) -> Drawn:
    """The model of that number: one of six draws random numbers, one of six computes in bfloat16."""
    dice = random.Random(f"model {number}")
    noisy, narrow = number % 6 == 4, number % 6 == 5
    inputs = dice.sample(sorted(INPUTS), dice.choice((1, 1, 2)))
    truths = dice.sample(sorted(TRUTHS), dice.choice((1, 1, 2)))
    weighted = dice.random() < 0.4
    lines = [f"keras.utils.set_random_seed({number})"]
    if narrow:
        lines.append('keras.config.set_dtype_policy("mixed_bfloat16")')
    lines += [
        _data(dice, inputs, truths, weighted),
        *_model(dice, inputs, truths, noisy, narrow),
        _compiled(dice, truths, weighted),
    ]
    return Drawn(HEAD + "\n" + "\n".join(lines) + "\n", noisy, narrow)


def _data(dice: random.Random, inputs: list[str], truths: list[str], weighted: bool) -> str:
    ordered = dice.random() < 0.5
    features = [f"{INPUTS[name][2]}.astype('{INPUTS[name][1]}')" for name in inputs]
    labels = [TRUTHS[name][0] for name in truths]
    # Keras cannot spread one weight over labels that have names: it looks for it by their number.
    parts = [_together(features, inputs, ordered), _together(labels, truths, ordered or weighted)]
    parts += ["draw.uniform(0, 2, count).astype('float32')"] if weighted else []
    return (
        "def input_fn(mode):\n"
        f"    count, draw = ({BATCH * STEPS}, np.random.default_rng(1)) if mode == 'train' else "
        f"({EVALUATED}, np.random.default_rng(2))\n"
        f"    return {', '.join(parts)}"
    )


def _together(values: list[str], names: list[str], ordered: bool) -> str:
    if len(values) == 1:
        return values[0]
    if ordered:
        return f"({', '.join(values)})"
    return "{" + ", ".join(f"'{name}': {value}" for name, value in zip(names, values, strict=True)) + "}"


def _model(dice: random.Random, inputs: list[str], truths: list[str], noisy: bool, narrow: bool) -> list[str]:
    lines, ends = [], []
    for name in inputs:
        shape, kind, _ = INPUTS[name]
        lines.append(f"{name} = keras.Input({shape}, dtype='{kind}', name='{name}')")
        lines.append(f"x_{name} = {_branch(dice, name)}")
        ends.append(f"x_{name}")
    lines.append(f"x = layers.concatenate([{', '.join(ends)}])" if len(ends) > 1 else f"x = {ends[0]}")
    for _ in range(dice.choice((0, 1, 2))):
        lines.append(f"x = {_between(dice, narrow)}(x)")
    if noisy:
        lines.append(
            f"x = {dice.choice(('layers.Dropout(0.4)', 'layers.GaussianNoise(0.5)', 'layers.AlphaDropout(0.3)'))}(x)"
        )
    outputs = []
    for name in truths:
        activation = {"kind": "'softmax'", "value": "None", "sign": "'sigmoid'"}[name]
        lines.append(f"{name} = layers.Dense({TRUTHS[name][1]}, {activation}, name='{name}', dtype='float32', "
                     f"kernel_regularizer={dice.choice(REGULARIZERS)})(x)")  # fmt: skip
        outputs.append(name)
    of_inputs, of_outputs = f"[{', '.join(inputs)}]", f"[{', '.join(outputs)}]"
    return [*lines, f"model = keras.Model({inputs[0] if len(inputs) == 1 else of_inputs}, "
            f"{outputs[0] if len(outputs) == 1 else of_outputs})"]  # fmt: skip


def _branch(dice: random.Random, name: str) -> str:
    width, regularizer = dice.choice((4, 6)), dice.choice(REGULARIZERS)
    recurrent = dice.choice(("GRU", "LSTM", "SimpleRNN", "Bidirectional"))
    steps = (
        f"layers.{recurrent}({width})" if recurrent != "Bidirectional" else f"layers.Bidirectional(layers.GRU({width}))"
    )
    if name == "numbers":
        return f"layers.Dense({width}, {dice.choice(ACTIVATIONS)}, kernel_regularizer={regularizer})(numbers)"
    if name == "picture":
        convolution = dice.choice((f"layers.Conv2D({width}, 3, use_bias=False, kernel_regularizer={regularizer})",
                                   f"layers.DepthwiseConv2D(3, use_bias=False, depthwise_regularizer={regularizer})",
                                   f"layers.SeparableConv2D({width}, 3, use_bias=False)"))  # fmt: skip
        after = dice.choice(
            ("layers.BatchNormalization(momentum=0.8)", "layers.GroupNormalization(2)", "layers.ReLU()")
        )
        flat = dice.choice(("layers.Flatten()", "layers.GlobalAveragePooling2D()", "layers.GlobalMaxPooling2D()"))
        return f"{flat}({after}({convolution}(picture)))"
    if name == "words":
        masked = dice.random() < 0.7
        table = f"layers.Embedding(9, {width}, mask_zero={masked}, embeddings_regularizer={regularizer})"
        return f"{dice.choice((steps, 'layers.GlobalAveragePooling1D()'))}({table}(words))"
    return f"{steps}(layers.Masking(0.0)(series))"


def _between(dice: random.Random, narrow: bool) -> str:
    wide = ", dtype='float32'" if narrow else ""  # Keras adds no loss in bfloat16 to those in float32: it fails
    return dice.choice((
        f"layers.Dense(6, {dice.choice(ACTIVATIONS)}, kernel_regularizer={dice.choice(REGULARIZERS)})",
        f"layers.Dense(5, 'tanh', activity_regularizer={dice.choice(REGULARIZERS)}{wide})",
        "layers.LayerNormalization()", "layers.BatchNormalization(momentum=0.7)", "layers.UnitNormalization()",
        "Marked()", "layers.PReLU()",
    ))  # fmt: skip


def _compiled(dice: random.Random, truths: list[str], weighted: bool) -> str:
    losses = {name: _loss(dice, name, weighted) for name in truths}
    metrics = {name: _metrics(dice, name) for name in truths}
    also = {name: ["'mse'"] if name == "value" else ["'accuracy'"] for name in truths}
    options = []
    if len(truths) > 1:
        ordered = dice.random() < 0.5
        as_given = lambda each: _by_name(each, ordered)  # noqa: E731
        options += [f"loss={as_given(losses)}"]
        if dice.random() < 0.6:
            options.append(f"loss_weights={as_given({name: str(dice.choice((0.3, 1.0, 2.5))) for name in truths})}")
        options.append(f"metrics={as_given({name: _list(each) for name, each in metrics.items()})}")
        if dice.random() < 0.5:
            options.append(f"weighted_metrics={as_given({name: _list(each) for name, each in also.items()})}")
    else:
        options += [f"loss={losses[truths[0]]}", f"metrics={_list(metrics[truths[0]])}"]
        if dice.random() < 0.5:
            options.append(f"weighted_metrics={_list(also[truths[0]])}")
    return f"model.compile({_optimizer(dice)}, {', '.join(options)})"


def _by_name(values: dict[str, str], ordered: bool) -> str:
    if ordered:
        return f"[{', '.join(values.values())}]"
    return "{" + ", ".join(f"'{name}': {value}" for name, value in values.items()) + "}"


def _list(names: list[str]) -> str:
    return f"[{', '.join(names)}]"


def _loss(dice: random.Random, name: str, weighted: bool) -> str:
    reduction = dice.choice(("sum_over_batch_size", "sum_over_batch_size", "mean_with_sample_weight", "sum"))
    of_class = {
        "kind": ("SparseCategoricalCrossentropy",),
        "value": ("MeanSquaredError", "MeanAbsoluteError", "Huber", "LogCosh"),
        "sign": ("BinaryCrossentropy", "BinaryFocalCrossentropy", "Hinge", "Poisson"),
    }[name]
    by_name = {
        "kind": ("'sparse_categorical_crossentropy'", "'crossentropy'"),
        "value": ("'mse'", "where_not_zero", "each_apart"),
        "sign": ("'binary_crossentropy'", "where_not_zero", "each_apart"),
    }[name]
    if weighted:  # Keras weights what there is one of for each example
        by_name = tuple(each for each in by_name if each != "where_not_zero")
    return dice.choice((f"keras.losses.{dice.choice(of_class)}(reduction='{reduction}')", dice.choice(by_name)))


def _metrics(dice: random.Random, name: str) -> list[str]:
    known = {
        "kind": ["'accuracy'", "'sparse_categorical_crossentropy'", "keras.metrics.SparseTopKCategoricalAccuracy(2)",
                 "mean_guess", "largest_guess"],
        "value": ["'mae'", "keras.metrics.RootMeanSquaredError()", "same", "mean_guess", "each_apart"],
        "sign": ["'accuracy'", "keras.metrics.AUC()", "keras.metrics.Precision()", "keras.metrics.Recall()", "same",
                 "keras.metrics.FalsePositives()", "mean_guess"],
    }[name]  # fmt: skip
    return dice.sample(known, dice.choice((1, 2, 3)))


def _optimizer(dice: random.Random) -> str:
    schedules = ("keras.optimizers.schedules.{}(*{})".format(*each) for each in (
        ("ExponentialDecay", (0.02, 5, 0.5)), ("CosineDecay", (0.02, 15)), ("InverseTimeDecay", (0.02, 3, 0.5)),
        ("PiecewiseConstantDecay", ([4, 9], [0.02, 0.01, 0.002])), ("PolynomialDecay", (0.02, 12)),
    ))  # fmt: skip
    rate = dice.choice(("0.01", dice.choice(list(schedules))))
    kind = dice.choice((
        "SGD({})", "SGD({}, momentum=0.9)", "SGD({}, momentum=0.8, nesterov=True)", "Adam({})",
        "Adam({}, beta_1=0.8, epsilon=1e-4)", "RMSprop({}, epsilon=1e-4)", "RMSprop({}, momentum=0.5, epsilon=1e-4)",
        "RMSprop({}, centered=True, epsilon=1e-4)",
    )).format(rate)  # fmt: skip
    clip = dice.choice(("", "", ", clipnorm=0.5", ", global_clipnorm=0.7", ", clipvalue=0.05"))
    return f"keras.optimizers.{kind[:-1]}{clip})"


_TABLE = """
def input_fn(mode):
    count, draw = (160, np.random.default_rng(1)) if mode == "train" else (21, np.random.default_rng(2))
    return draw.normal(1, 2, size=(count, 6)).astype("float32"), draw.normal(size=(count, 1)).astype("float32")

keras.utils.set_random_seed(4)
"""
_WATCHED = """
class Watched(layers.Layer):
    def build(self, shape):
        def weight(name, kind="float32", size=(shape[-1],)):
            return self.add_weight(shape=size, dtype=kind, initializer="zeros", trainable=False, name=name)
        self.mean, self.slow, self.double = weight("mean"), weight("slow"), weight("double", "float64")
        self.largest, self.last, self.total = weight("largest"), weight("last"), weight("total")
        self.seen, self.first = weight("seen", "bool", ()), weight("first")
        self.count, self.steps = weight("count", "int64", ()), weight("steps", size=())

    def call(self, inputs, training=False):
        if training:
            mean = ops.mean(inputs, axis=0)
            self.mean.assign(self.mean * 0.75 + mean * 0.25)
            self.slow.assign_sub((self.slow - ops.stop_gradient(mean)) * 0.01)
            self.double.assign(self.double + 0.5 * (ops.cast(mean, "float64") - self.double))
            self.largest.assign(ops.maximum(self.largest, ops.max(inputs, axis=0)))
            self.last.assign(inputs[-1])
            self.total.assign_add(ops.sum(inputs, axis=0))
            self.first.assign(ops.where(self.seen, self.first, mean))
            self.seen.assign(True)
            self.count.assign(self.count + 1)
            self.steps.assign_add(1.0)
        return ops.tanh(inputs - self.mean) + 0.1 * ops.sin(self.last) + 0.01 * self.steps

shares = {"mean": 0.75, "slow": 0.99, "double": 0.5, "total": 1.0, "count": 1.0, "steps": 1.0}
model = keras.Sequential([keras.Input((6,)), Watched(), layers.BatchNormalization(momentum=0.3), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
"""
_CODEBOOK = """
class Codebook(layers.Layer):
    def build(self, shape):
        self.vectors = self.add_weight(shape=(shape[-1], 5), initializer="uniform", trainable=False, name="vectors")
        self.used = self.add_weight(shape=(5,), initializer="ones", trainable=False, name="used")

    def call(self, inputs, training=False):
        apart = ops.sum(self.vectors**2, 0) - 2 * ops.matmul(inputs, self.vectors)
        chosen = ops.one_hot(ops.argmin(apart, 1), 5)
        nearest = ops.matmul(chosen, ops.transpose(self.vectors))
        if training:
            self.used.assign(0.9 * self.used + 0.1 * ops.sum(chosen, 0))
            self.vectors.assign(0.9 * self.vectors + 0.1 * ops.matmul(ops.transpose(inputs), chosen) / self.used)
        self.add_loss(0.25 * ops.mean(ops.square(ops.stop_gradient(nearest) - inputs)))
        return inputs + ops.stop_gradient(nearest - inputs)

shares = {"used": 0.9, "vectors": 0.9}
model = keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh"), Codebook(), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
"""
_NORMALIZED = """
shares = {SHARES}
inputs = keras.Input((6,))
normalize = layers.BatchNormalization({OPTIONS})
x = layers.Dense(5, "tanh", use_bias=False)({FIRST})
model = keras.Model(inputs, layers.Dense(1)(x))
model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
"""


def _normalized(options: str, first: str = "normalize(inputs)", shares: Mapping[str, float] | None = None) -> str:
    values = {"SHARES": repr(dict(shares or {})), "OPTIONS": options, "FIRST": first}
    cell = _NORMALIZED
    for name, value in values.items():
        cell = cell.replace("{" + name + "}", value)
    return cell


_RENORM = {"renorm_mean": 0.8, "renorm_stddev": 0.8, "moving_stddev": 0.7, "moving_variance": 0.0}
_TWICE = {"moving_mean": 0.25, "moving_variance": 0.25}
STATES: Mapping[str, Drawn] = {
    name: Drawn(HEAD + _TABLE + cell, random=False, narrow=False)
    for name, cell in {
        "watched": _WATCHED,
        "codebook": _CODEBOOK,
        "fast": _normalized("momentum=0.1"),
        "slow": _normalized("momentum=0.997"),
        "renormalized": _normalized("momentum=0.7, renorm=True, renorm_momentum=0.8", shares=_RENORM),
        "twice": _normalized("momentum=0.5", "layers.add([normalize(inputs), normalize(2 * inputs)])", _TWICE),
    }.items()
}
"""Models by their names."""
