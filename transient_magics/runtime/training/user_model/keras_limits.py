"""What of Keras means nothing in a run, or something else: it is refused by name, never ignored.

Workers compute the loss and the gradients of a model, its optimizer is applied on parameter servers, and no Python of
the model is called in between. So nothing calls callbacks or a train_step of the model's own, and nothing can put
weights back behind each step.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ....errors import DeclarationError
from ...folder import RunFolder

_TRAINING = ("fit", "evaluate", "train_on_batch", "test_on_batch")
_STEPS = ("train_step", "test_step", "predict_step", "make_train_function", "make_test_function")


@contextlib.contextmanager
def declared_only(folder: RunFolder) -> Iterator[None]:
    """Inside, Keras models can be declared, but not trained; what they are compiled with must mean something.

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
                what, fix="Leave it out: the run trains and evaluates model with what input_fn gives."
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
    """Raise DeclarationError if the cell made Keras callbacks: they come with model.fit, which is never called."""
    for name, value in vars(module).items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if any(f"{kind.__module__}.{kind.__name__}".endswith("callback.Callback") for kind in type(each).__mro__):
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
            "the model is compiled without an optimizer", fix="model.compile(optimizer=..., loss=...)"
        )
    if model.run_eagerly:
        raise _unknown("run_eagerly=True")
    if model.steps_per_execution != 1:
        raise _unknown(f"steps_per_execution={model.steps_per_execution}")
    if (strategy := getattr(model, "_distribute_strategy", None)) is not None:
        raise DeclarationError(
            f"the model was made under {type(strategy).__name__}", fix="Make it outside: a run distributes it."
        )


def refuse_parts(model: Any, uneven: bool) -> None:
    """Raise DeclarationError if a weight, layer or loss of the model, which is built, wants what a run does not do.

    `uneven`: workers have mini-batches of different sizes, whose gradients are weighted as those of means.
    """
    for weight in model.trainable_variables:
        if getattr(weight, "constraint", None) is not None:
            kind = type(weight.constraint).__name__
            what = f"the constraint {kind} of {weight.path} is not supported on parameter servers"
            raise DeclarationError(what, fix="Leave it out, or use a regularizer.")
        if getattr(weight, "overwrite_with_gradient", False):
            raise DeclarationError(f"{weight.path} is overwritten with its gradient (float8), which a run does not do")
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and layer is not model:
            what = f"the layer {layer.name} is stateful, but the batches of a run do not follow each other"
            raise DeclarationError(what, fix="Leave stateful out.")
        if getattr(layer, "synchronized", False) and layer.trainable:
            what = (
                f"the layer {layer.name} takes its statistics over all workers (synchronized), which a run does not do"
            )
            raise DeclarationError(what, fix="Leave synchronized out: each worker normalizes with its own mini-batch.")

    for each in getattr(model._compile_loss, "_flat_losses", None) or ():
        reduction = getattr(each.loss, "reduction", "sum_over_batch_size")
        if reduction in (None, "none"):
            what = f"the loss {each.loss.name} has no reduction and gives a number for each example"
            raise DeclarationError(what, fix='Make it with reduction="sum_over_batch_size", or "sum".')
        if reduction == "sum" and uneven:
            what = f"the loss {each.loss.name} is a sum, and mini-batches of different sizes are weighted as means"
            raise DeclarationError(what, fix='Make it with reduction="sum_over_batch_size", or leave --batching out.')


def refuse_assigned(model: Any, weight: Any, layer: Any) -> None:
    """Raise DeclarationError if `weight`, which `layer` assigns in a training step, is trained.

    Its gradient is that at the assigned value, which parameter servers do not have when a worker computes it.
    """
    if any(weight is each for each in model.trainable_variables):
        what = f"the layer {layer.name} ({type(layer).__name__}) assigns {weight.path}, which is trained, in each step"
        fix = "Leave the layer out, or let it compute with the changed value without assigning it."
        raise DeclarationError(what, fix=fix)


def calling_layer() -> Any:
    """Return the innermost layer whose method is running, None if there is none. Keras itself knows the outermost."""
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
    """Whether Keras is worth its time to be imported: the cell, or what came along, may train something with it."""
    return folder.include.is_dir() or (folder.cell.exists() and "keras" in folder.cell.read_text(encoding="utf-8"))


def _unknown(option: str) -> DeclarationError:
    return DeclarationError(f"{option} of model.compile means nothing in a run", fix="Leave it out.")
