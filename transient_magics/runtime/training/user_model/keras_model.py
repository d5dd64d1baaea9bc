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
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from ....errors import DeclarationError
from ...folder import RunFolder
from ...tf.graph_mode import tensorflow
from ..graph.state import keep
from .data import Data
from .structure import weight_names

_CLIPPED = ("clipnorm", "global_clipnorm", "clipvalue")
_UNUSED = ("weight_decay", "use_ema", "amsgrad", "loss_scale_factor", "gradient_accumulation_steps")
_RULE = ("momentum", "nesterov", "beta_1", "beta_2", "epsilon", "rho", "centered")

_TRAINING = ("fit", "evaluate", "train_on_batch", "test_on_batch")
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


# The optimizer of a compiled Keras model as one of TensorFlow's version-1 optimizers.
#
# Those update a variable on its parameter server with one operation, which is what lets workers
# apply gradients at the same time; Keras's own would read, compute and assign, and lose what others
# did in between. Only optimizers that compute the same both ways are taken.
#
# Where a batch uses a row of an embedding several times, its gradient is the sum here, whichever
# optimizer and mode. Keras on TensorFlow squares and clips the parts of that sum one by one.


class KerasOptimizer:
    """An optimizer's rule, learning rate and clipping. Made outside of any graph."""

    def __init__(self, optimizer: Any) -> None:
        """Raises DeclarationError if there is none like it."""
        self._optimizer = optimizer
        # Its get_config would write out its schedule, which needs none of its own.
        self._config = {
            name: getattr(optimizer, name, None) for name in (*_CLIPPED, *_UNUSED, *_RULE)
        }
        kind = type(optimizer).__name__
        if kind == "LossScaleOptimizer":
            what = (
                "mixed_float16 needs its loss scaled, which is not supported on parameter servers"
            )
            raise DeclarationError(what, fix="Use mixed_bfloat16.")
        if kind not in _RULES:
            fix = f"Compile the model with {', '.join(_RULES)}, or define model_fn, which may use any of tf.compat.v1."
            raise DeclarationError(
                f"the Keras optimizer {kind} is not supported on parameter servers", fix=fix
            )
        if unused := [name for name in _UNUSED if self._config.get(name)]:
            raise DeclarationError(
                f"{unused[0]} of the Keras optimizer {kind} is not supported on parameter servers",
                fix="Leave it out.",
            )
        self._rule = _RULES[kind]
        self._values = [(variable, variable.numpy()) for variable in optimizer.variables]

    def parts(self) -> Mapping[str, Any]:
        """What a model_fn says about its optimizer: see own.trainable. The schedule follows the
        global step.
        """
        tf = tensorflow()
        keras = importlib.import_module("keras")
        step = tf.train.get_or_create_global_step().read_value()
        iterations = self._optimizer.iterations
        values = [
            (each, step if each is iterations else tf.constant(value))
            for each, value in self._values
        ]
        with keras.StatelessScope(state_mapping=values):
            rate = tf.convert_to_tensor(self._optimizer.learning_rate)
        return {
            "optimizer": lambda rate: self._rule(rate, self._config),
            "learning_rate": rate,
            "clip": self._clip,
        }

    def _clip(self, gradients: list[Any]) -> list[Any]:
        """As Keras does it: one of the three at most."""
        tf = tensorflow()
        config = self._config
        if any(config.get(name) for name in _CLIPPED):
            gradients = [_summed(tf, gradient) for gradient in gradients]
        if limit := config.get("clipnorm"):
            return [tf.clip_by_norm(gradient, limit) for gradient in gradients]
        if limit := config.get("global_clipnorm"):
            return tf.clip_by_global_norm(gradients, limit)[0]
        if limit := config.get("clipvalue"):
            return [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]
        return gradients


def _summed(tf: Any, gradient: Any) -> Any:
    """Of an embedding, one gradient for each row, as it is clipped behind a synchronous step, where
    all are dense.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _sgd(rate: Any, config: Mapping[str, Any]) -> Any:
    train = tensorflow().train
    if not config["momentum"]:
        return train.GradientDescentOptimizer(rate)

    class Momentum(_dense(train.MomentumOptimizer)):
        """Of TensorFlow's two momenta the one that is Keras's: each gradient keeps the learning
        rate that it had.
        """

        def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
            from tensorflow.python.ops import gen_training_ops

            kind = var.dtype.base_dtype
            momentum = self.get_slot(var, "momentum")
            rate, share = (
                tensorflow().cast(value, kind)
                for value in (self._learning_rate_tensor, self._momentum_tensor)
            )
            return gen_training_ops.resource_apply_keras_momentum(
                var.handle,
                momentum.handle,
                rate,
                grad,
                share,
                use_locking=False,
                use_nesterov=self._use_nesterov,
            )

    return Momentum(rate, config["momentum"], use_nesterov=config["nesterov"], name="KerasMomentum")


def _adam(rate: Any, config: Mapping[str, Any]) -> Any:
    return tensorflow().train.AdamOptimizer(
        rate, config["beta_1"], config["beta_2"], config["epsilon"]
    )


def _rmsprop(rate: Any, config: Mapping[str, Any]) -> Any:
    class FromZero(_dense(tensorflow().train.RMSPropOptimizer)):
        """TensorFlow's mean squares begin with one, Keras's with zero."""

        def _create_slots(self, var_list: Any) -> None:
            for variable in var_list:
                for name in ("rms", "momentum", *(["mg"] if self._centered else [])):
                    self._zeros_slot(variable, name, self._name)

    return FromZero(
        rate, config["rho"], config["momentum"], config["epsilon"], centered=config["centered"]
    )


def _dense(optimizer: Any) -> Any:
    """TensorFlow's rules leave a variable's rows alone that have no gradient (of embeddings),
    Keras's move them too.
    """

    class Dense(optimizer):
        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
            tf = tensorflow()
            whole = tf.scatter_nd(
                tf.expand_dims(indices, 1), grad, tf.shape(var, out_type=indices.dtype)
            )
            return self._resource_apply_dense(whole, var)

    return Dense


_RULES: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "RMSprop": _rmsprop,
}


# What of Keras means nothing in a run, or something else: it is refused by name, never ignored.
#
# Workers compute the loss and the gradients of a model, its optimizer is applied on parameter
# servers, and no Python of the model is called in between. So nothing calls callbacks or a
# train_step of the model's own, and nothing can put weights back behind each step.


@contextlib.contextmanager
def declared_only(folder: RunFolder) -> Iterator[None]:
    """Inside, Keras models can be declared, but not trained; what they are compiled with must mean
    something.

    Every server of a run executes the cell: each would train by itself, and throw the result away.
    """
    if not _may_use_keras(folder):
        yield
        return
    kind: Any = importlib.import_module("keras").Model
    compiled = kind.compile

    def refused(name: str) -> Any:
        def method(self: Any, *_: Any, **__: Any) -> Any:
            what = f"model.{name} in a cell would run on every server by itself"
            raise DeclarationError(
                what,
                fix="Leave it out: the run trains and evaluates model with what input_fn gives.",
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
        yield
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
    for name in (*_STEPS, *_TRAINING):
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
        if getattr(weight, "constraint", None) is not None:
            kind = type(weight.constraint).__name__
            what = f"the constraint {kind} of {weight.path} is not supported on parameter servers"
            raise DeclarationError(what, fix="Leave it out, or use a regularizer.")
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
