"""The bridges that let Tensor2Tensor 1.15.7 be imported on TensorFlow 2.21.

`cross()` is called once per process, before anything of tensor2tensor is imported. Each bridge
explains its reason. None changes what a model computes. Some (hidden and lazy modules, no garbage
collection, no scan of Unicode) only save seconds of a worker's start.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import types
from collections import namedtuple
from collections.abc import Iterator
from typing import Any, cast

from ....imports import uncollected
from ...tf.graph_mode import everything, tensorflow

_OPTIONAL = (
    # Optional imports of tf-keras and tf-slim: to recognise types, for one metric, to rotate
    # images.
    *("pandas", "sklearn", "scipy.sparse", "scipy.linalg", "scipy.ndimage"),
    # The format of weights alone in a file, as Keras 1 wrote it.
    "h5py",
    # TensorFlow's client to list VMs at Google, which is not used here.
    "googleapiclient",
)
"""Packages that cost seconds of a start, and that training of T2T's models does not use."""

_crossed = False

_IN_SLIM = {
    "slim": "tf_slim",
    "slim.python.slim.nets": "tf_slim.nets",
    "slim.python.slim.nets.resnet_v1": "tf_slim.nets.resnet_v1",
    "slim.python.slim.nets.resnet_v2": "tf_slim.nets.resnet_v2",
    "slim.python.slim.nets.vgg": "tf_slim.nets.vgg",
    "layers.python.layers": "tf_slim.layers",
    "framework.python.ops": "tf_slim.ops.arg_scope",
}
"""Modules of tf.contrib, and the present place of the same code."""


def cross() -> Any:
    """Put every bridge in place (once) and return `tensorflow.compat.v1`."""
    global _crossed
    # T2T is written for Keras 2, which is now tf-keras. Keras 3 has no graph mode and no v1 layers.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    if _crossed:
        return tensorflow()
    with uncollected(), _hidden(*_OPTIONAL):
        tf = everything()
        _build(tf)
        _crossed = True
    return tf


def preload() -> None:
    """Import what every run needs of Tensor2Tensor, for a process that waits for its role."""
    cross()
    with uncollected():
        for name in (
            "data_generators.problem",
            "utils.data_reader",
            "utils.optimize",
            "utils.t2t_model",
        ):
            importlib.import_module(f"tensor2tensor.{name}")


def _build(tf: Any) -> None:
    # disable_eager_execution() alone is not enough: a transformer worker never got a session.
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
    _moved_names()
    _initialized_values()
    _estimator(tf)
    _addons(tf)
    _models_package()
    _numpy_names()
    _argument_names()
    _lazy("tensorflow_probability", "scipy.signal")
    _no_unicode_scans()
    _supply_contrib(tf)


@contextlib.contextmanager
def autograph_off() -> Iterator[None]:
    """Disable AutoGraph inside.

    Keras would convert the whole model, and building the graph would take 16 s instead of 4 s.
    """
    from tensorflow.python.autograph.core import ag_ctx

    with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.DISABLED):
        yield


@contextlib.contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """Hide optional packages inside.

    Afterwards they can be imported as usual, for example by the cell.
    """

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
            if fullname in names:
                raise ModuleNotFoundError(
                    f"{fullname} is hidden while TensorFlow is imported", name=fullname
                )
            return None

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _moved_names() -> None:
    """Add names where tf-slim and T2T expect them.

    TensorFlow 2.12 split the modules that had them.
    """
    from tensorflow.python.framework import indexed_slices, ops, tensor
    from tensorflow.python.ops import cond, control_flow_case, control_flow_ops, while_loop

    for module, name, value in (
        (control_flow_ops, "cond", cond.cond),
        (control_flow_ops, "case", control_flow_case.case),
        (control_flow_ops, "while_loop", while_loop.while_loop),
        (ops, "Tensor", tensor.Tensor),
        (ops, "IndexedSlices", indexed_slices.IndexedSlices),
    ):
        if not hasattr(module, name):
            setattr(module, name, value)


def _initialized_values() -> None:
    """Give resource variables the method `initialized_value`.

    Only the old kind of variable has it, and T2T initialises moving averages with it
    (transformer_nat).
    """
    from tensorflow.python.ops import resource_variable_ops, variable_v1

    variables: Any = resource_variable_ops.BaseResourceVariable
    variables.initialized_value = variable_v1.VariableV1.initialized_value


def _estimator(tf: Any) -> None:
    """Add the names of the estimator, which TensorFlow 2.16 dropped.

    T2T needs the names to be imported, and ModeKeys and EstimatorSpec to build graphs.
    """
    if hasattr(tf, "estimator"):
        return

    class ModeKeys:
        TRAIN = "train"
        EVAL = "eval"
        PREDICT = "infer"

    fields = "mode predictions loss train_op eval_metric_ops export_outputs training_chief_hooks"
    fields += " training_hooks scaffold evaluation_hooks prediction_hooks host_call"
    specification = namedtuple("EstimatorSpec", fields, defaults=(None,) * 12)

    class RunConfig:
        def __init__(self, **settings: Any) -> None:
            self.__dict__.update(settings)

    class PredictOutput:
        def __init__(self, outputs: Any) -> None:
            self.outputs = outputs

    def absent(*_arguments: Any, **_settings: Any) -> Any:
        raise NotImplementedError(
            "TensorFlow no longer has the estimator; transient_magics trains without it"
        )

    estimator: Any = types.ModuleType("tensorflow.compat.v1.estimator")
    estimator.ModeKeys = ModeKeys
    estimator.EstimatorSpec = specification
    estimator.RunConfig = RunConfig
    estimator.SessionRunHook = tf.train.SessionRunHook
    estimator.export = types.SimpleNamespace(
        PredictOutput=PredictOutput, ServingInputReceiver=absent
    )
    estimator.tpu = types.SimpleNamespace(
        TPUEstimatorSpec=specification,
        RunConfig=RunConfig,
        TPUConfig=RunConfig,
        InputPipelineConfig=types.SimpleNamespace(),
    )
    for name in (
        "Estimator",
        "TrainSpec",
        "EvalSpec",
        "FinalExporter",
        "BestExporter",
        "train_and_evaluate",
    ):
        setattr(estimator, name, absent)
    tf.estimator = estimator


def _addons(tf: Any) -> None:
    """Add tensorflow_addons, which is no longer maintained.

    T2T uses only its LazyAdam, but as its `adam` optimizer.
    """
    if "tensorflow_addons" in sys.modules:
        return

    class LazyAdam(tf.train.AdamOptimizer):
        """Adam that updates the moments of an embedding row only if the row was used.

        Much faster with large vocabularies.
        """

        def __init__(
            self,
            learning_rate: Any = 0.001,
            beta_1: Any = 0.9,
            beta_2: Any = 0.999,
            **settings: Any,
        ) -> None:
            settings = {"beta1": beta_1, "beta2": beta_2, "name": "LazyAdam", **settings}
            super().__init__(learning_rate, **settings)

        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
            first_power, second_power = self._get_beta_accumulators()
            kind = var.dtype.base_dtype
            first_power = tf.cast(first_power, kind)
            second_power = tf.cast(second_power, kind)
            beta1 = tf.cast(self._beta1_t, kind)
            beta2 = tf.cast(self._beta2_t, kind)
            rate = tf.cast(self._lr_t, kind) * tf.sqrt(1 - second_power) / (1 - first_power)
            first = self.get_slot(var, "m")
            second = self.get_slot(var, "v")
            mean = beta1 * tf.gather(first, indices) + (1 - beta1) * grad
            square = beta2 * tf.gather(second, indices) + (1 - beta2) * tf.square(grad)
            change = rate * mean / (tf.sqrt(square) + tf.cast(self._epsilon_t, kind))
            return tf.group(
                first.scatter_update(tf.IndexedSlices(mean, indices)),
                second.scatter_update(tf.IndexedSlices(square, indices)),
                var.scatter_sub(tf.IndexedSlices(change, indices)),
            )

    addons: Any = types.ModuleType("tensorflow_addons")
    addons.optimizers = types.SimpleNamespace(LazyAdam=LazyAdam)
    sys.modules["tensorflow_addons"] = addons


def _models_package() -> None:
    """Register the package `tensor2tensor.models` without executing it.

    It imports every model, including some that cannot be imported on current TensorFlow.
    """
    specification = importlib.util.find_spec("tensor2tensor")
    if specification is None or not specification.submodule_search_locations:
        raise ModuleNotFoundError("tensor2tensor is not installed", name="tensor2tensor")
    root = next(iter(specification.submodule_search_locations))
    package = types.ModuleType("tensor2tensor.models")
    package.__path__ = [os.path.join(root, "models")]
    package.__spec__ = importlib.machinery.ModuleSpec("tensor2tensor.models", None, is_package=True)
    sys.modules.setdefault("tensor2tensor.models", package)
    # transformer_vae_flow_prior imports its operations from this name.
    sys.modules["tensor2tensor.research.models"] = importlib.import_module(
        "tensor2tensor.models.research"
    )


def _numpy_names() -> None:
    """Add NumPy's former aliases of Python types, which some T2T layers and generators use."""
    import numpy

    for name, value in (("int", int), ("float", float), ("object", object), ("bool", bool)):
        if name not in numpy.__dict__:
            setattr(numpy, name, value)


def _argument_names() -> None:
    """Add `inspect.getargspec`, which Python 3.11 dropped.

    T2T uses it for the arguments of losses and metrics.
    """
    if hasattr(inspect, "getargspec"):
        return
    specification = namedtuple("ArgSpec", "args varargs keywords defaults")

    def getargspec(function: Any) -> Any:
        found = inspect.getfullargspec(function)
        return specification(found.args, found.varargs, found.varkw, found.defaults)

    inspect.getargspec = getargspec  # type: ignore[attr-defined]


class _Later(types.ModuleType):
    """A module that is imported when one of its attributes is used.

    importlib's LazyLoader does not work here: since Python 3.11 an import statement that finds the
    module reads its attributes, which loads it.
    """

    def __init__(
        self, specification: importlib.machinery.ModuleSpec, loader: importlib.abc.Loader
    ) -> None:
        super().__init__(specification.name)
        self._begun = False
        self._loader = loader
        self.__spec__ = specification
        self.__loader__ = loader
        self.__file__ = specification.origin
        if specification.submodule_search_locations is not None:
            self.__path__ = specification.submodule_search_locations

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name != "__version__") or self._begun:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self._begun = True
        self._loader.exec_module(self)
        return getattr(self, name)


def _lazy(*names: str) -> None:
    """Import these modules at their first use.

    Most models never use them, and together they cost over a second.
    """
    for name in names:
        if name in sys.modules:
            continue
        specification = importlib.util.find_spec(name)
        if specification is None or specification.loader is None:
            continue
        module = _Later(specification, specification.loader)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


class _Letters:
    """A set of letters and digits that does not list all of Unicode, unlike T2T's."""

    def __contains__(self, character: object) -> bool:
        import unicodedata

        return isinstance(character, str) and unicodedata.category(character)[0] in "LN"


class _Postponed:
    """An object that is built when one of its attributes is used."""

    def __init__(self, build: Any) -> None:
        self._build = build
        self._built = None

    def __getattr__(self, name: str) -> Any:
        if self._built is None:
            self._built = self._build()
        return getattr(self._built, name)


def _no_unicode_scans() -> None:
    """Shorten scans of Unicode when T2T's tokenizer and BLEU module are imported.

    They read 1.1 million characters, which takes over a second.
    """

    def after_tokenizer(module: Any) -> None:
        module._ALPHANUMERIC_CHAR_SET = _Letters()

    def after_bleu(module: Any) -> None:
        module.uregex = _Postponed(module.UnicodeRegex)

    completions = {
        "tensor2tensor.data_generators.tokenizer": after_tokenizer,
        "tensor2tensor.utils.bleu_hook": after_bleu,
    }

    class Loader(importlib.abc.Loader):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def create_module(self, spec: Any) -> Any:
            return self.inner.create_module(spec)

        def exec_module(self, module: Any) -> None:
            # Both scans are range(sys.maxunicode).
            limit = sys.maxunicode
            sys.maxunicode = 128
            try:
                self.inner.exec_module(module)
            finally:
                sys.maxunicode = limit
            completions[module.__name__](module)

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
            if fullname not in completions:
                return None
            found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
            if found is not None and found.loader is not None:
                found.loader = Loader(found.loader)
            return found

    sys.meta_path.insert(0, Finder())


# The parts of tf.contrib that T2T uses. TensorFlow 2 dropped it; tf-slim and TensorFlow have the
# code.


def _supply_contrib(tf: Any) -> None:
    """Complete T2T's own replacements for tf.contrib.

    They have no optimizers (`sgd`, `rms_prop` would be missing), layers, argument scopes (for glow)
    and recurrent cells (for neural_stack). Some models (epva, all for VQA) import tf.contrib
    directly.
    """
    from tensor2tensor.utils import contrib

    classes = {
        "Adagrad": tf.train.AdagradOptimizer,
        "Ftrl": tf.train.FtrlOptimizer,
        "RMSProp": tf.train.RMSPropOptimizer,
        "SGD": tf.train.GradientDescentOptimizer,
    }
    slim = contrib.slim()
    framework = cast(Any, contrib.framework())
    layers = _Layers(slim, classes)
    cells = _Cells(tf)
    framework.arg_scope = slim.arg_scope
    framework.add_arg_scope = slim.add_arg_scope
    contrib.layers = lambda: layers
    contrib.framework = lambda msg="": framework
    contrib.rnn = lambda: cells
    # Only now: without tf.contrib, T2T detects TensorFlow 2 when it is imported.
    package: Any = types.ModuleType("tensorflow.contrib")
    package.rnn = cells
    package.slim = slim
    sys.modules[package.__name__] = package
    for name, place in _IN_SLIM.items():
        sys.modules[f"tensorflow.contrib.{name}"] = importlib.import_module(place)


class _Layers:
    """The parts of tf.contrib.layers that tf-slim has, with the optimizers that T2T registers."""

    def __init__(self, slim: Any, classes: dict[str, Any]) -> None:
        self._slim = slim
        self.OPTIMIZER_CLS_NAMES = classes
        self.optimize_loss = slim.optimize_loss

    def __getattr__(self, name: str) -> Any:
        for place in (self._slim.layers, self._slim):
            if hasattr(place, name):
                return getattr(place, name)
        raise AttributeError(f"tf.contrib.layers.{name} does not exist on current TensorFlow")


class _Cells:
    """The parts of tf.contrib.rnn that T2T uses.

    They come from tf.nn.rnn_cell, except for the convolutional cell of video models. The cells are
    tf-keras's, which is imported with the first one.
    """

    def __init__(self, tf: Any) -> None:
        self._tf = tf

    def __getattr__(self, name: str) -> Any:
        if name == "ConvLSTMCell":
            found = _conv_lstm_cell(self._tf)
        else:
            found = getattr(self._tf.nn.rnn_cell, name, None)
        if found is None:
            raise AttributeError(f"tf.contrib.rnn.{name} does not exist on current TensorFlow")
        setattr(self, name, found)
        return found


def _conv_lstm_cell(tf: Any) -> type:
    class ConvLSTMCell(tf.nn.rnn_cell.RNNCell):
        """An LSTM on images, whose products are convolutions (X. Shi et al., NIPS 2015).

        Computes what tf.contrib's did, with variables of the same names and shapes. It has no skip
        connections, which T2T does not use.
        """

        def __init__(
            self,
            conv_ndims: int,
            input_shape: Any,
            output_channels: int,
            kernel_shape: Any,
            *,
            use_bias: bool = True,
            forget_bias: float = 1.0,
            name: str = "conv_lstm_cell",
        ) -> None:
            super().__init__(name=name)
            if conv_ndims != len(input_shape) - 1:
                raise ValueError(f"Invalid input_shape {input_shape} for conv_ndims={conv_ndims}.")
            self._channels = output_channels
            self._kernel_shape = list(kernel_shape)
            self._use_bias = use_bias
            self._forget_bias = forget_bias
            self._output = tf.TensorShape([*input_shape[:-1], output_channels])

        @property
        def state_size(self) -> Any:
            return tf.nn.rnn_cell.LSTMStateTuple(self._output, self._output)

        @property
        def output_size(self) -> Any:
            return self._output

        def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
            cell, hidden = state
            both = tf.concat([inputs, hidden], axis=-1)
            gates = 4 * self._channels
            kernel = tf.get_variable(
                "kernel", [*self._kernel_shape, both.shape.as_list()[-1], gates], both.dtype
            )
            products = tf.nn.convolution(both, kernel, padding="SAME")
            if self._use_bias:
                products += tf.get_variable("biases", [gates], both.dtype, tf.zeros_initializer())
            enter, new, forget, leave = tf.split(products, 4, axis=-1)
            cell = tf.sigmoid(forget + self._forget_bias) * cell + tf.sigmoid(enter) * tf.tanh(new)
            hidden = tf.tanh(cell) * tf.sigmoid(leave)
            return hidden, tf.nn.rnn_cell.LSTMStateTuple(cell, hidden)

    return ConvLSTMCell
