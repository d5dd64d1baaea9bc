"""A compiled Keras 3 model as a model_fn, its optimizer, and the refused features of Keras.

Keras 3 supports neither parameter servers nor graph mode, but it can compute with other values in
place of its variables (keras.StatelessScope). So each weight of the model gets a version-1
variable, which is placed, sent, saved and restored like any other, and which starts with the
weight's value. Values that layers assign (the statistics of batch normalisation) become the state
of a step (graph/state.py), because several workers assign them at the same time. Seeds are not
weights: each step has its own.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from .training_metrics import TrainingMetrics, numbers

_EXAMPLES = 2
"""Size of the batch with which the model is used first."""
_TRAINING = ("evaluate", "train_on_batch", "test_on_batch")
_STEPS = ("train_step", "test_step", "predict_step", "make_train_function", "make_test_function")


@contextlib.contextmanager
def _loops_of_tensorflow_2() -> Iterator[None]:
    """Build loops of TensorFlow 2 inside.

    Loops of version 1 fail at run time where a recurrent layer writes its last output repeatedly.
    """
    from tensorflow.python.ops import control_flow_util

    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = True
    try:
        yield
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before


class KerasModel:
    """A Keras model as a model_fn. Create it outside of any graph."""

    def __init__(
        self, model: Any, data: Data, uneven: bool = False, optimizer_begin: int = 0
    ) -> None:
        """Build the model for these data.

        Parameters
        ----------
        model
            The cell's model.
        data
            The examples that it is built for.
        uneven
            Whether workers may have mini-batches of different sizes.
        optimizer_begin
            The step of the run with which its optimizer began.

        Raises
        ------
        DeclarationError
            For a model that a run cannot train.
        """
        self._keras = importlib.import_module("keras")
        check_model(model)
        self.model = model
        self._optimizer_begin = optimizer_begin
        self._optimizer = KerasOptimizer(model.optimizer, optimizer_begin)
        self.example, _, update = build_model(model, data)
        refuse_parts(model, uneven)
        self.metrics = TrainingMetrics(model, update)
        seed_generator = importlib.import_module("keras.src.random.seed_generator")
        self._seed = seed_generator.global_seed_generator().state
        self._names = dict(zip(map(id, model.weights), weight_names(model.weights), strict=True))
        self._optimizer.build(
            {self._names[id(weight)]: weight for weight in model.trainable_variables}
        )
        variables = (*model.variables, *model.metrics_variables, self._seed)
        self._values = {id(variable): variable.numpy() for variable in variables}

    @_loops_of_tensorflow_2()
    def __call__(
        self, features: Any, labels: Any, sample_weight: Any, mode: str
    ) -> Mapping[str, Any]:
        """Build the model in the default graph.

        `mode` is `train`, `eval` or `infer`. Returns the dict of a model_fn (trainable.py).
        """
        tf = tensorflow()
        model = self.model
        training = mode == "train"
        weights = [(weight, self._variable(tf, weight)) for weight in model.weights]
        variables_before = len(tf.global_variables())
        before = {id(weight): tf.convert_to_tensor(variable) for weight, variable in weights}
        values = [
            (variable, before.get(id(variable), self._drawn(tf, variable)))
            for variable in (*model.variables, self._seed)
        ]
        states = [
            (metrics_variable, self._state(tf, metrics_variable))
            for metrics_variable in model.metrics_variables
            if mode == "eval"
        ]
        counted = [(variable, state.read_value()) for variable, state in states]
        with self._scope([*values, *(counted or self._unused(tf))]) as scope:
            outputs = _outputs(model, features, training)
            if mode == "infer":
                if isinstance(outputs, list | tuple):
                    outputs = self._named(outputs)
                return {"predictions": outputs}
            loss = model._compute_loss(features, labels, outputs, sample_weight, training=training)
            examples = tf.shape(self._keras.tree.flatten(features)[0])[0]
            model._loss_tracker.update_state(loss, sample_weight=examples)
            results = model.compute_metrics(features, labels, outputs, sample_weight)
            added = None
            if training:
                added = self.metrics.added(scope, results, examples)
        if created := tf.global_variables()[variables_before:]:
            raise DeclarationError(
                f"the model creates a variable in each call ({created[0].op.name})",
                fix="Make it a weight of the layer, with add_weight.",
            )
        if training:
            for weight, variable in weights:
                if id(weight) in scope.assigning:
                    refuse_assigned(model, weight, scope.assigning[id(weight)])
                    keep(variable, before[id(weight)], scope.get_current_value(weight))
            return {"loss": loss, "training_metrics": added, **self._optimizer.parts()}
        # Without a batch, nothing is counted.
        with tf.control_dependencies(self._keras.tree.flatten(features)):
            updates = tf.group(
                *(state.assign(scope.get_current_value(variable)) for variable, state in states)
            )
        with self._scope([(variable, state.read_value()) for variable, state in states]):
            metrics = {
                name: (value, updates)
                for name, value in numbers(model.get_metrics_result())
                if name != "loss"
            }
        return {"loss": loss, "eval_metric_ops": metrics}

    @property
    def weight_names(self) -> list[str]:
        """The names of the model's weights in a graph and in checkpoints, in order."""
        return list(self._names.values())

    def load(self, prefix: str, step: int) -> None:
        """Set the weights of the Keras model to those of a checkpoint, and its optimizer's step."""
        reader = tensorflow().train.load_checkpoint(prefix)
        for weight in self.model.weights:
            weight.assign(reader.get_tensor(self._names[id(weight)]))
        self.model.optimizer.iterations.assign(step - self._optimizer_begin)

    def _named(self, outputs: Sequence[Any]) -> Any:
        """Return several outputs by their names, which subclassed models do not have."""
        names = getattr(self.model, "output_names", None)
        if names:
            return dict(zip(names, outputs, strict=True))
        return tuple(outputs)

    def _unused(self, tf: Any) -> list[tuple[Any, Any]]:
        """Return constants for the states of metrics in a training step.

        The loss of a model with several outputs updates one metric per output.
        """
        return [
            (metrics_variable, tf.constant(self._values[id(metrics_variable)]))
            for metrics_variable in self.model.metrics_variables
        ]

    def _scope(self, values: Sequence[tuple[Any, Any]]) -> Any:
        model = self.model

        class Scope(self._keras.StatelessScope):
            """A scope that records which layer assigns each variable."""

            def __init__(self) -> None:
                super().__init__(state_mapping=values, collect_losses=True)
                self.assigning: dict[int, Any] = {}

            def add_update(self, update: tuple[Any, Any]) -> None:
                self.assigning[id(update[0])] = calling_layer() or model
                super().add_update(update)

        return Scope()

    def _variable(self, tf: Any, weight: Any) -> Any:
        """Return the version-1 variable of a weight, with the weight's value."""
        value = self._values[id(weight)]

        def initial(shape: Sequence[int], dtype: Any = None, partition_info: Any = None) -> Any:
            start: Sequence[int] = [0] * len(shape)
            if partition_info:
                start = partition_info.var_offset
            spans = zip(start, shape, strict=True)
            part = tuple(slice(begin, begin + length) for begin, length in spans)
            return tf.constant(value[part], dtype)

        trainable = any(
            weight is trainable_variable for trainable_variable in self.model.trainable_variables
        )
        name = self._names[id(weight)]
        return tf.get_variable(
            name, value.shape, value.dtype, initial, trainable=trainable, use_resource=True
        )

    def _drawn(self, tf: Any, variable: Any) -> Any:
        """Return a random seed, or the value of a metric's state within the model."""
        value = self._values[id(variable)]
        if "seed" not in variable.name:
            return tf.constant(value)
        return tf.cast(
            tf.random.uniform(value.shape, maxval=2**31 - 1, dtype=tf.int32), value.dtype
        )

    def _state(self, tf: Any, variable: Any) -> Any:
        """Return a local variable for the state of a metric."""
        value = self._values[id(variable)]
        return tf.Variable(
            value, trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES], use_resource=True
        )


def check_model(model: Any) -> None:
    """Raise DeclarationError if a run cannot train the cell's model."""
    keras = importlib.import_module("keras")
    if not isinstance(model, keras.Model):
        kind = f"{type(model).__module__}.{type(model).__qualname__}"
        if kind.startswith("tf_keras"):
            fix = "Create it with keras (Keras 3), not tf_keras."
        else:
            fix = ""
        raise DeclarationError(f"the cell's model is not a Keras model, but a {kind}", fix=fix)
    if not model.compiled:
        raise DeclarationError(
            "the cell's model is not compiled",
            fix="Call model.compile(optimizer=..., loss=...).",
        )
    refuse_model(model)


def build_model(model: Any, data: Data) -> tuple[Any, list[str], Callable[[], None]]:
    """Use a compiled model once, on examples of zeros, which creates its weights and metrics.

    Returns the features of these examples, the names of the metrics, and a function that adds the
    examples to all metrics.
    """
    keras = importlib.import_module("keras")
    features, labels, weights = data.structured(data.example(_EXAMPLES))
    example = features
    outputs = _outputs(model, features, training=False)
    count = len(keras.tree.flatten(outputs))
    if count == _EXAMPLES:
        # Keras would distribute the rows of the labels over as many outputs.
        features, labels, weights = data.structured(data.example(count + 1))
        outputs = _outputs(model, features, training=False)
    loss = model._compute_loss(features, labels, outputs, weights, training=False)
    names = list(model.compute_metrics(features, labels, outputs, weights))
    model.reset_metrics()

    def update() -> None:
        if getattr(model._compile_loss, "metrics", None):  # those of several outputs
            model._compute_loss(features, labels, outputs, weights, training=False)
        model._loss_tracker.update_state(loss, sample_weight=2)
        model.compute_metrics(features, labels, outputs, weights)

    return example, names, update


def _outputs(model: Any, features: Any, training: bool) -> Any:
    """Call the model as Keras does: some models have no parameter `training`."""
    if model._call_has_training_arg:
        return model(features, training=training)
    return model(features)


# Features of Keras without effect in a run, or with another one, are refused by name, never
# ignored.
#
# Workers compute the loss and the gradients of a model, and parameter servers apply its optimizer.
# No Python code of the model runs in between: callbacks and a custom train_step are never called.


@contextlib.contextmanager
def declared_only(folder: RunFolder, recorder: Recorder) -> Iterator[None]:
    """Let the cell define Keras models, and record its calls of `fit` instead of training.

    Every process of a run executes the cell: each would train a copy and discard it. Arguments of
    `compile` that have no effect in a run are refused. After an earlier call of `fit`, the cell may
    evaluate the model: its weights are those with which that phase ended.
    """
    if not _may_use_keras(folder):
        yield
        return
    kind: Any = importlib.import_module("keras").Model
    compiled = kind.compile
    evaluate = kind.evaluate

    def refused(name: str) -> Any:
        def method(self: Any, *given: Any, **options: Any) -> Any:
            if name == "evaluate" and recorder.passing:
                return evaluate(self, *given, **options)
            raise DeclarationError(
                f"model.{name} in a cell would run separately in every process",
                fix="Move it below model.fit, or remove it. The run evaluates the model.",
            )

        return method

    def compile_(self: Any, *given: Any, **options: Any) -> Any:
        if options.get("jit_compile") is True:
            raise _without_effect("jit_compile=True")
        return compiled(self, *given, **options)

    own = {name: vars(kind).get(name) for name in (*_TRAINING, "compile")}
    for name in _TRAINING:
        setattr(kind, name, refused(name))
    kind.compile = compile_
    try:
        with recording(recorder):
            yield
    finally:
        for name, method in own.items():
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


def refuse_callbacks(module: Any) -> None:
    """Raise DeclarationError if the cell created Keras callbacks.

    Only model.fit would call them, and a run never calls model.fit.
    """
    for name, value in vars(module).items():
        values = value if isinstance(value, list | tuple) else [value]
        for item in values:
            if _is_callback(item):
                raise DeclarationError(
                    f"Keras callbacks are not called in a run ({name}: {type(item).__name__})",
                    fix="Remove them. Use a schedule as the optimizer's learning rate, and "
                    "--checkpoint-every and --eval-every of %%train.",
                )


def _is_callback(value: object) -> bool:
    names = (f"{kind.__module__}.{kind.__name__}" for kind in type(value).__mro__)
    return any(name.endswith("callback.Callback") for name in names)


def refuse_model(model: Any) -> None:
    """Raise DeclarationError if the compiled `model` needs what a run does not support."""
    kind: Any = importlib.import_module("keras").Model
    for name in (*_STEPS, *_TRAINING, "fit"):
        if getattr(type(model), name) is not getattr(kind, name):
            fix = "Override compute_loss, or define model_fn instead."
            raise DeclarationError(f"{type(model).__name__}.{name} is not called in a run", fix=fix)
    if model.optimizer is None:
        raise DeclarationError(
            "the model is compiled without an optimizer",
            fix="Call model.compile(optimizer=..., loss=...).",
        )
    if model.run_eagerly:
        raise _without_effect("run_eagerly=True")
    if model.steps_per_execution != 1:
        raise _without_effect(f"steps_per_execution={model.steps_per_execution}")
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and layer is not model:
            what = (
                f"the layer {layer.name} is stateful, but the batches of a run are not consecutive"
            )
            raise DeclarationError(what, fix="Remove stateful.")
    if (strategy := getattr(model, "_distribute_strategy", None)) is not None:
        raise DeclarationError(
            f"the model was created under {type(strategy).__name__}",
            fix="Create it without a strategy: the run distributes it.",
        )


def refuse_parts(model: Any, uneven: bool) -> None:
    """Raise DeclarationError for an unsupported weight, layer or loss of the built model.

    `uneven`: workers have mini-batches of different sizes, whose gradients are weighted as means.
    """
    for weight in model.trainable_variables:
        if getattr(weight, "overwrite_with_gradient", False):
            raise DeclarationError(
                f"{weight.path} is overwritten with its gradient (float8), which a run does not "
                "support",
                fix="Use another data type.",
            )
    for layer in model._flatten_layers():
        if getattr(layer, "synchronized", False) and layer.trainable:
            raise DeclarationError(
                f"the layer {layer.name} is synchronized (statistics over all workers), "
                "which a run does not support",
                fix="Remove synchronized: each worker normalizes with its own mini-batch.",
            )
    for compiled in getattr(model._compile_loss, "_flat_losses", None) or ():
        _refuse_reduction(compiled.loss, uneven)


def _refuse_reduction(loss: Any, uneven: bool) -> None:
    """Raise DeclarationError for a loss that is not one number, or cannot be weighted."""
    reduction = getattr(loss, "reduction", "sum_over_batch_size")
    if reduction in (None, "none"):
        raise DeclarationError(
            f"the loss {loss.name} has no reduction and returns one number per example",
            fix='Create it with reduction="sum_over_batch_size", or "sum".',
        )
    if reduction == "sum" and uneven:
        raise DeclarationError(
            f"the loss {loss.name} is a sum, but mini-batches of different sizes need means",
            fix='Create it with reduction="sum_over_batch_size", or remove --batching.',
        )


def refuse_assigned(model: Any, weight: Any, layer: Any) -> None:
    """Raise DeclarationError if `weight`, which `layer` assigns in a step, is trainable.

    Its gradient would be that of the assigned value, which parameter servers do not have when a
    worker computes it.
    """
    if any(weight is trainable_variable for trainable_variable in model.trainable_variables):
        raise DeclarationError(
            f"the layer {layer.name} ({type(layer).__name__}) assigns the trainable weight "
            f"{weight.path} in each step",
            fix="Remove the layer, or let it use the changed value without assigning it.",
        )


def calling_layer() -> Any:
    """Return the innermost layer whose method is running, or None.

    Keras itself knows only the outermost layer.
    """
    kind: Any = importlib.import_module("keras").Layer
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, kind):
            return owner
        frame = frame.f_back
    return None


def _may_use_keras(folder: RunFolder) -> bool:
    """Return whether the cell, or a module sent with it, may use Keras.

    If not, the import of Keras would only cost time.
    """
    return folder.include.is_dir() or (
        folder.cell.exists() and "keras" in folder.cell.read_text(encoding="utf-8")
    )


def _without_effect(option: str) -> DeclarationError:
    return DeclarationError(f"{option} of model.compile has no effect in a run", fix="Remove it.")
