"""A compiled Keras 3 model as a model_fn.

Keras 3 knows no parameter servers and no graph mode, but it can compute with values that are handed to it in place of
its variables (keras.StatelessScope). So each of the model's weights gets a version-1 variable, which is placed, sent,
saved and restored like any other, and starts with the weight's own value. What layers assign (the statistics of batch
normalisation) is kept as the state of a step (graph/state.py), because several workers assign simultaneously. Seeds are
no weights: each step has its own.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....errors import DeclarationError
from ...tf.graph_mode import tensorflow
from ..graph.state import keep
from . import keras_limits
from .data import Data
from .keras_optimizer import KerasOptimizer
from .structure import weight_names


@contextlib.contextmanager
def _loops_of_tensorflow_2() -> Iterator[None]:
    """Loops of version 1 refuse, when they run, what recurrent layers do: write their last output again and again."""
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
            fix = "Make it with keras (Keras 3), not tf_keras." if kind.startswith("tf_keras") else ""
            raise DeclarationError(f"the cell's model is no Keras model but a {kind}", fix=fix)
        if not model.compiled:
            raise DeclarationError("the cell's model is not compiled", fix="model.compile(optimizer=..., loss=...)")
        keras_limits.refuse_model(model)
        self.model = model
        self._optimizer = KerasOptimizer(model.optimizer)
        batch = {name: _zeros(data.types[name], shape) for name, shape in data.shapes.items()}
        features, labels, weights = data.structured(batch)
        self.example = features
        outputs = self._outputs(features, training=False)  # weights and metrics are made when first used
        model._compute_loss(features, labels, outputs, weights, training=False)
        results = model.compute_metrics(features, labels, outputs, weights)
        keras_limits.refuse_parts(model, uneven)
        keras_limits.refuse_results(results)
        model.reset_metrics()
        self._seed = importlib.import_module("keras.src.random.seed_generator").global_seed_generator().state
        self._names = dict(zip(map(id, model.weights), weight_names(model.weights), strict=True))
        known = (*model.variables, *model.metrics_variables, self._seed)
        self._values = {id(each): each.numpy() for each in known}

    @_loops_of_tensorflow_2()
    def __call__(self, features: Any, labels: Any, sample_weight: Any, mode: str) -> Mapping[str, Any]:
        """Build the model in the default graph."""
        tf, model, training = tensorflow(), self.model, mode == "train"
        weights = [(weight, self._variable(tf, weight)) for weight in model.weights]
        known = len(tf.global_variables())
        before = {id(weight): tf.convert_to_tensor(variable) for weight, variable in weights}
        values = [(each, before.get(id(each), self._drawn(tf, each))) for each in (*model.variables, self._seed)]
        states = [(each, self._state(tf, each)) for each in model.metrics_variables if mode == "eval"]
        counted = [(each, state.read_value()) for each, state in states]
        with self._scope([*values, *(counted or self._unused(tf))]) as scope:
            outputs = self._outputs(features, training)
            if mode == "infer":
                several = isinstance(outputs, list | tuple)
                named = dict(zip(model.output_names, outputs, strict=True)) if several else outputs
                return {"predictions": named}
            loss = model._compute_loss(features, labels, outputs, sample_weight, training=training)
            if not training:
                model.compute_metrics(features, labels, outputs, sample_weight)
        if made := tf.global_variables()[known:]:
            fix = "Make it a weight of the layer, with add_weight."
            raise DeclarationError(f"the model makes a variable whenever it is called ({made[0].op.name})", fix=fix)
        if training:
            for weight, variable in weights:
                old, new = before[id(weight)], scope.get_current_value(weight)
                if new is not old:
                    keras_limits.refuse_assigned(model, weight, scope.layers[id(weight)] or model)
                    keep(variable, old, new)
            return {"loss": loss, **self._optimizer.parts()}
        with tf.control_dependencies(self._keras.tree.flatten(features)):  # nothing is counted when no batch came
            updates = tf.group(*(state.assign(scope.get_current_value(each)) for each, state in states))
        with self._scope([(each, state.read_value()) for each, state in states]):
            metrics = {name: (value, updates) for name, value in model.get_metrics_result().items() if name != "loss"}
        return {"loss": loss, "eval_metric_ops": metrics}

    def _outputs(self, features: Any, training: bool) -> Any:
        """As Keras itself calls the model: some models take no `training`."""
        model = self.model
        return model(features, training=training) if model._call_has_training_arg else model(features)

    def _unused(self, tf: Any) -> list[tuple[Any, Any]]:
        """The metrics' states in a step: a loss of several outputs counts each of them."""
        return [(each, tf.constant(self._values[id(each)])) for each in self.model.metrics_variables]

    def _scope(self, values: Sequence[tuple[Any, Any]]) -> Any:
        class Scope(self._keras.StatelessScope):
            """A scope that knows which layer has assigned which weight last."""

            def add_update(self, update: tuple[Any, Any]) -> None:
                self.layers[id(update[0])] = keras_limits.calling_layer()
                super().add_update(update)

        scope = Scope(state_mapping=values, collect_losses=True)
        scope.layers = {}
        return scope

    def _variable(self, tf: Any, weight: Any) -> Any:
        value = self._values[id(weight)]

        def initial(shape: Sequence[int], dtype: Any = None, partition_info: Any = None) -> Any:
            start = partition_info.var_offset if partition_info else [0] * len(shape)
            part = tuple(slice(begin, begin + length) for begin, length in zip(start, shape, strict=True))
            return tf.constant(value[part], dtype)

        trainable = any(weight is each for each in self.model.trainable_variables)
        name = self._names[id(weight)]
        return tf.get_variable(name, value.shape, value.dtype, initial, trainable=trainable, use_resource=True)

    def _drawn(self, tf: Any, variable: Any) -> Any:
        """A value for what is no weight: a seed, or the state of a metric within the model."""
        value = self._values[id(variable)]
        if "seed" not in variable.name:
            return tf.constant(value)
        return tf.cast(tf.random.uniform(value.shape, maxval=2**31 - 1, dtype=tf.int32), value.dtype)

    def _state(self, tf: Any, variable: Any) -> Any:
        value = self._values[id(variable)]
        return tf.Variable(value, trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES], use_resource=True)


def _zeros(kind: Any, shape: Any) -> Any:
    """A batch of two examples in which every unknown dimension is one."""
    import numpy

    return numpy.zeros([2, *(size or 1 for size in shape.as_list())], kind.as_numpy_dtype)
