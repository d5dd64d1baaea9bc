"""A compiled Keras 3 model as a model_fn, its optimizer, and what of Keras is refused.

Keras 3 knows no parameter servers and no graph mode, but it can compute with values that are handed
to it in place of its variables (keras.StatelessScope). So each of the model's weights gets a
version-1 variable, which is placed, sent, saved and restored like any other, and starts with the
weight's own value. What layers assign (the statistics of batch normalisation) is kept as the state
of a step (graph/state.py), because several workers assign simultaneously. Seeds are no weights:
each step has its own.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from ....errors import DeclarationError
from ...folder import RunFolder
from ...tf.graph_mode import tensorflow
from ..graph.state import keep
from .data import Data
from .fit import Recorder, recording
from .keras_optimizer import KerasOptimizer
from .structure import weight_names

_TRAINING = ("evaluate", "train_on_batch", "test_on_batch")
_STEPS = ("train_step", "test_step", "predict_step", "make_train_function", "make_test_function")


@contextlib.contextmanager
def _loops_of_tensorflow_2() -> Iterator[None]:
    """Loops of version 1 refuse, when they run, what recurrent layers do: write their last output
    again and again.
    """
    from tensorflow.python.ops import control_flow_util

    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = True
    try:
        yield
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before


class KerasModel:
    """The model_fn of a model. Made outside of any graph."""

    def __init__(self, model: Any, data: Data, uneven: bool = False) -> None:
        """Build the model for these data. Raises DeclarationError if it cannot be trained.

        `uneven`: workers may have mini-batches of different sizes.
        """
        self._keras = keras = importlib.import_module("keras")
        if not isinstance(model, keras.Model):
            kind = f"{type(model).__module__}.{type(model).__qualname__}"
            if kind.startswith("tf_keras"):
                fix = "Make it with keras (Keras 3), not tf_keras."
            else:
                fix = ""
            raise DeclarationError(f"the cell's model is no Keras model but a {kind}", fix=fix)
        if not model.compiled:
            raise DeclarationError(
                "the cell's model is not compiled", fix="model.compile(optimizer=..., loss=...)"
            )
        refuse_model(model)
        self.model = model
        self._optimizer = KerasOptimizer(model.optimizer)
        batch = {name: _zeros(data.types[name], shape) for name, shape in data.shapes.items()}
        features, labels, weights = data.structured(batch)
        self.example = features
        outputs = self._outputs(
            features, training=False
        )  # weights and metrics are made when first used
        model._compute_loss(features, labels, outputs, weights, training=False)
        results = model.compute_metrics(features, labels, outputs, weights)
        refuse_parts(model, uneven)
        refuse_results(results)
        model.reset_metrics()
        self._seed = (
            importlib.import_module("keras.src.random.seed_generator").global_seed_generator().state
        )
        self._names = dict(zip(map(id, model.weights), weight_names(model.weights), strict=True))
        self._optimizer.build(
            {self._names[id(weight)]: weight for weight in model.trainable_variables}
        )
        known = (*model.variables, *model.metrics_variables, self._seed)
        self._values = {id(each): each.numpy() for each in known}

    @_loops_of_tensorflow_2()
    def __call__(
        self, features: Any, labels: Any, sample_weight: Any, mode: str
    ) -> Mapping[str, Any]:
        """Build the model in the default graph."""
        tf = tensorflow()
        model = self.model
        training = mode == "train"
        weights = [(weight, self._variable(tf, weight)) for weight in model.weights]
        known = len(tf.global_variables())
        before = {id(weight): tf.convert_to_tensor(variable) for weight, variable in weights}
        values = [
            (each, before.get(id(each), self._drawn(tf, each)))
            for each in (*model.variables, self._seed)
        ]
        states = [
            (metrics_variable, self._state(tf, metrics_variable))
            for metrics_variable in model.metrics_variables
            if mode == "eval"
        ]
        counted = [(each, state.read_value()) for each, state in states]
        with self._scope([*values, *(counted or self._unused(tf))]) as scope:
            outputs = self._outputs(features, training)
            if mode == "infer":
                several = isinstance(outputs, list | tuple)
                if several:
                    named = dict(zip(model.output_names, outputs, strict=True))
                else:
                    named = outputs
                return {"predictions": named}
            loss = model._compute_loss(features, labels, outputs, sample_weight, training=training)
            if not training:
                model.compute_metrics(features, labels, outputs, sample_weight)
        if made := tf.global_variables()[known:]:
            fix = "Make it a weight of the layer, with add_weight."
            raise DeclarationError(
                f"the model makes a variable whenever it is called ({made[0].op.name})", fix=fix
            )
        if training:
            for weight, variable in weights:
                if id(weight) in scope.assigning:
                    refuse_assigned(model, weight, scope.assigning[id(weight)])
                    keep(variable, before[id(weight)], scope.get_current_value(weight))
            return {"loss": loss, **self._optimizer.parts()}
        with tf.control_dependencies(
            self._keras.tree.flatten(features)
        ):  # nothing is counted when no batch came
            updates = tf.group(
                *(state.assign(scope.get_current_value(each)) for each, state in states)
            )
        with self._scope([(each, state.read_value()) for each, state in states]):
            metrics = {
                name: (value, updates)
                for name, value in model.get_metrics_result().items()
                if name != "loss"
            }
        return {"loss": loss, "eval_metric_ops": metrics}

    def _outputs(self, features: Any, training: bool) -> Any:
        """As Keras itself calls the model: some models take no `training`."""
        model = self.model
        if model._call_has_training_arg:
            return model(features, training=training)
        return model(features)

    def _unused(self, tf: Any) -> list[tuple[Any, Any]]:
        """The metrics' states in a step: a loss of several outputs counts each of them."""
        return [
            (metrics_variable, tf.constant(self._values[id(metrics_variable)]))
            for metrics_variable in self.model.metrics_variables
        ]

    def _scope(self, values: Sequence[tuple[Any, Any]]) -> Any:
        model = self.model

        class Scope(self._keras.StatelessScope):
            """A scope that knows of each variable that is assigned which layer does it."""

            def __init__(self) -> None:
                super().__init__(state_mapping=values, collect_losses=True)
                self.assigning: dict[int, Any] = {}

            def add_update(self, update: tuple[Any, Any]) -> None:
                self.assigning[id(update[0])] = calling_layer() or model
                super().add_update(update)

        return Scope()

    def _variable(self, tf: Any, weight: Any) -> Any:
        value = self._values[id(weight)]

        def initial(shape: Sequence[int], dtype: Any = None, partition_info: Any = None) -> Any:
            if partition_info:
                start = partition_info.var_offset
            else:
                start = [0] * len(shape)
            part = tuple(
                slice(begin, begin + length) for begin, length in zip(start, shape, strict=True)
            )
            return tf.constant(value[part], dtype)

        trainable = any(
            weight is trainable_variable for trainable_variable in self.model.trainable_variables
        )
        name = self._names[id(weight)]
        return tf.get_variable(
            name, value.shape, value.dtype, initial, trainable=trainable, use_resource=True
        )

    def _drawn(self, tf: Any, variable: Any) -> Any:
        """A value for what is no weight: a seed, or the state of a metric within the model."""
        value = self._values[id(variable)]
        if "seed" not in variable.name:
            return tf.constant(value)
        return tf.cast(
            tf.random.uniform(value.shape, maxval=2**31 - 1, dtype=tf.int32), value.dtype
        )

    def _state(self, tf: Any, variable: Any) -> Any:
        value = self._values[id(variable)]
        return tf.Variable(
            value, trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES], use_resource=True
        )


def _zeros(kind: Any, shape: Any) -> Any:
    """A batch of two examples in which every unknown dimension is one."""
    import numpy

    return numpy.zeros([2, *(size or 1 for size in shape.as_list())], kind.as_numpy_dtype)


# What of Keras means nothing in a run, or something else: it is refused by name, never ignored.
#
# Workers compute the loss and the gradients of a model, its optimizer is applied on parameter
# servers, and no Python of the model is called in between. So nothing calls callbacks or a
# train_step of the model's own, and nothing can put weights back behind each step.


@contextlib.contextmanager
def declared_only(folder: RunFolder) -> Iterator[Recorder]:
    """Record `model.fit` within the block, and refuse other training and evaluation.

    Every server of a run executes the cell: each would train alone, and lose the result.
    """
    if not _may_use_keras(folder):
        yield Recorder()
        return
    kind: Any = importlib.import_module("keras").Model
    compiled = kind.compile

    def refused(name: str) -> Any:
        def method(self: Any, *_: Any, **__: Any) -> Any:
            what = f"model.{name} in a cell would run on every server by itself"
            raise DeclarationError(
                what,
                fix="Put it behind model.fit, or leave it out: the run trains and evaluates model.",
            )

        return method

    def compile_(self: Any, *given: Any, **options: Any) -> Any:
        if options.get("jit_compile") is True:
            raise _unknown("jit_compile=True")
        return compiled(self, *given, **options)

    own = {name: vars(kind).get(name) for name in (*_TRAINING, "compile")}
    for name in _TRAINING:
        setattr(kind, name, refused(name))
    kind.compile = compile_
    try:
        with recording() as recorder:
            yield recorder
    finally:
        for name, method in own.items():
            delattr(kind, name) if method is None else setattr(kind, name, method)


def refuse_callbacks(module: Any) -> None:
    """Raise DeclarationError if the cell made Keras callbacks: they come with model.fit, which is
    never called.
    """
    for name, value in vars(module).items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if any(
                f"{kind.__module__}.{kind.__name__}".endswith("callback.Callback")
                for kind in type(each).__mro__
            ):
                raise DeclarationError(
                    f"Keras callbacks are not called in a run ({name}: {type(each).__name__})",
                    fix="Leave them out; a schedule can be the optimizer's learning rate, and %train has "
                    "--checkpoint-every and --eval-every.",
                )


def refuse_model(model: Any) -> None:
    """Raise DeclarationError if the compiled `model` asks for what a run does not do."""
    kind: Any = importlib.import_module("keras").Model
    for name in (*_STEPS, *_TRAINING, "fit"):
        if getattr(type(model), name) is not getattr(kind, name):
            fix = "Override compute_loss, or define model_fn instead."
            raise DeclarationError(f"{type(model).__name__}.{name} is not called in a run", fix=fix)
    if model.optimizer is None:
        raise DeclarationError(
            "the model is compiled without an optimizer",
            fix="model.compile(optimizer=..., loss=...)",
        )
    if model.run_eagerly:
        raise _unknown("run_eagerly=True")
    if model.steps_per_execution != 1:
        raise _unknown(f"steps_per_execution={model.steps_per_execution}")
    if (strategy := getattr(model, "_distribute_strategy", None)) is not None:
        raise DeclarationError(
            f"the model was made under {type(strategy).__name__}",
            fix="Make it outside: a run distributes it.",
        )


def refuse_parts(model: Any, uneven: bool) -> None:
    """Raise DeclarationError if a weight, layer or loss of the model, which is built, wants what a
    run does not do.

    `uneven`: workers have mini-batches of different sizes, whose gradients are weighted as those of
    means.
    """
    for weight in model.trainable_variables:
        if getattr(weight, "overwrite_with_gradient", False):
            raise DeclarationError(
                f"{weight.path} is overwritten with its gradient (float8), which a run does not do"
            )
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and layer is not model:
            what = f"the layer {layer.name} is stateful, but the batches of a run do not follow each other"
            raise DeclarationError(what, fix="Leave stateful out.")
        if getattr(layer, "synchronized", False) and layer.trainable:
            what = f"the layer {layer.name} takes its statistics over all workers (synchronized), which a run does not do"
            raise DeclarationError(
                what, fix="Leave synchronized out: each worker normalizes with its own mini-batch."
            )

    for each in getattr(model._compile_loss, "_flat_losses", None) or ():
        reduction = getattr(each.loss, "reduction", "sum_over_batch_size")
        if reduction in (None, "none"):
            what = f"the loss {each.loss.name} has no reduction and gives a number for each example"
            raise DeclarationError(
                what, fix='Make it with reduction="sum_over_batch_size", or "sum".'
            )
        if reduction == "sum" and uneven:
            what = f"the loss {each.loss.name} is a sum, and mini-batches of different sizes are weighted as means"
            raise DeclarationError(
                what, fix='Make it with reduction="sum_over_batch_size", or leave --batching out.'
            )


def refuse_assigned(model: Any, weight: Any, layer: Any) -> None:
    """Raise DeclarationError if `weight`, which `layer` assigns in a training step, is trained.

    Its gradient is that at the assigned value, which parameter servers do not have when a worker
    computes it.
    """
    if any(weight is trainable_variable for trainable_variable in model.trainable_variables):
        what = f"the layer {layer.name} ({type(layer).__name__}) assigns {weight.path}, which is trained, in each step"
        fix = "Leave the layer out, or let it compute with the changed value without assigning it."
        raise DeclarationError(what, fix=fix)


def calling_layer() -> Any:
    """Return the innermost layer whose method is running, None if there is none. Keras itself knows
    the outermost.
    """
    kind: Any = importlib.import_module("keras").Layer
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, kind):
            return owner
        frame = frame.f_back
    return None


def refuse_results(results: Any) -> None:
    """Raise DeclarationError if a metric gives several numbers."""
    for name, value in results.items():
        if len(getattr(value, "shape", ())):
            what = f"the metric {name} gives {value.shape[0]} numbers, and a run keeps one of each"
            raise DeclarationError(what, fix="Let it give their mean.")


def _may_use_keras(folder: RunFolder) -> bool:
    """Whether Keras is worth its time to be imported: the cell, or what came along, may train
    something with it.
    """
    return folder.include.is_dir() or (
        folder.cell.exists() and "keras" in folder.cell.read_text(encoding="utf-8")
    )


def _unknown(option: str) -> DeclarationError:
    return DeclarationError(
        f"{option} of model.compile means nothing in a run", fix="Leave it out."
    )
