"""Models, hparams sets and problems by the name that Tensor2Tensor or the cell registers.

T2T imports all its 150 modules to find them, which takes many seconds and fails on current
TensorFlow. Here a scan of the sources finds the registrations once (in a tenth of a second), and
only the module of a requested name is imported. The input is a run's declaration and the output a
Definition; an unknown name is refused with similar names.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from ....errors import DeclarationError, TransientError, unknown
from ....protocol.run import RunSpec
from ...folder import RunFolder
from ...tf.graph_mode import has_gpu
from ..usercode import run_program
from . import bridges, hyperparameters

_REGISTRATION = re.compile(
    r"^@registry\.register_(?P<kind>model|hparams|problem|base_problem)"
    r"(?:\(\s*(?:[\"'](?P<name>[^\"']+)[\"'])?\s*\))?[^\S\n]*\n"
    r"(?:@.*\n)*(?:class|def)\s+(?P<code>\w+)",
    re.MULTILINE,
)
_PLACES = {
    "model": ("models",),
    "hparams": ("models", "layers", "utils"),
    "problem": ("data_generators",),
}
_SHUFFLED_BATCHES = 512
"""Tensor2Tensor's default of batch_shuffle_size."""
_WORDS = {"model": "model", "hparams": "hparams set", "problem": "problem"}

_OF_A_MODEL = (
    "estimator_model_fn",
    "estimator_spec_train",
    "estimator_spec_eval",
    "make_estimator_model_fn",
    "train_hooks",
    "eval_hooks",
    "get_train_hooks",
    "get_eval_hooks",
    "initialize_from_ckpt",
)
_OF_A_PROBLEM = ("input_fn", "make_estimator_input_fn", "eval_hooks")
_HARMLESS = {
    # Only summaries, and the same metrics without BLEU and ROUGE.
    ("tensor2tensor.models.research.transformer_vae", "estimator_spec_eval"),
    ("tensor2tensor.models.neural_architecture_search.nas_model", "estimator_spec_eval"),
    # Initializes from data. The model fails anyway: see docs/models.md.
    ("tensor2tensor.models.research.glow", "train_hooks"),
}
_MIXTURES = (
    "tensor2tensor.data_generators.multi_problem",
    "tensor2tensor.data_generators.multi_problem_v2",
)
_BEGINNINGS = ("warm_start_from_second", "pretrained_model_dir")


@dataclass(frozen=True)
class Definition:
    """T2T's model class, its hparams and the problem's instance."""

    model: Any
    hparams: Any
    problem: Any


@cache
def index() -> dict[tuple[str, str], str]:
    """Return the module of each (kind, registered name), from T2T's sources without imports."""
    from importlib.util import find_spec

    found: dict[tuple[str, str], str] = {}
    specification = find_spec("tensor2tensor")
    if specification is None:
        return found
    places = sorted({place for places in _PLACES.values() for place in places})
    for root in map(Path, specification.submodule_search_locations or ()):
        sources = (source for place in places for source in sorted((root / place).rglob("*.py")))
        for source in sources:
            if source.name.endswith("_test.py"):
                continue
            parts = source.relative_to(root).with_suffix("").parts
            module = ".".join(("tensor2tensor", *parts))
            text = source.read_text(errors="replace", encoding="utf-8")
            for match in _REGISTRATION.finditer(text):
                kind = match["kind"].removeprefix("base_")
                found.setdefault((kind, match["name"] or _snake(match["code"])), module)
    return found


def define(folder: RunFolder, spec: RunSpec, data_directory: str) -> Definition:
    """Run the cell and find the names of the run. Raises CellError or DeclarationError."""
    bridges.cross()
    _look_up_all()
    run_program(folder, spec)
    model = find("model", spec.model)
    hparams = _hparams(spec, data_directory)
    problem = find("problem", spec.problem)
    check_supported(model, hparams, problem, spec)
    hparams.problem = problem
    return Definition(model, hparams, problem)


def find(kind: str, name: str) -> Any:
    """Return the registered model class, hparams or problem instance called `name`.

    Imports its module if necessary. Raises an error with similar names for an unknown name.
    """
    from tensor2tensor.utils import registry

    stores = {
        "model": registry.Registries.models,
        "hparams": registry.Registries.hparams,
        "problem": registry.Registries.problems,
    }
    base = name
    if kind == "problem":
        base = registry.parse_problem_name(name).base_name
    if base not in stores[kind] and (module := index().get((kind, base))):
        importlib.import_module(module)
    if base not in stores[kind] and kind == "problem":
        # Some problems are registered in loops, which the scan of the sources does not find.
        _import_all(module for (other, _), module in index().items() if other == "problem")
    if base not in stores[kind]:
        raise _unknown(kind, name, stores[kind])
    if kind == "problem":
        return registry.problem(name)
    return stores[kind][name]


def _look_up_all() -> None:
    """Let models find other models and sets (in distillation, teacher and student) by name.

    T2T would have imported all of them.
    """
    from tensor2tensor.utils import registry

    def look_up(kind: str, store: Any, name: str) -> Any:
        if name not in store and (module := index().get((kind, name))):
            importlib.import_module(module)
        return store[name]

    registry.model = partial(look_up, "model", registry.Registries.models)
    registry.hparams = partial(look_up, "hparams", registry.Registries.hparams)


def _hparams(spec: RunSpec, data_directory: str) -> Any:
    """Return the hparams of a run. Raises DeclarationError."""
    hparams = find("hparams", spec.hparams_set)
    # Some sets assign values without adding them (sliced_gan its bottleneck_bits). T2T copies only
    # what was added.
    for name, value in list(vars(hparams).items()):
        empty = isinstance(value, list | tuple) and not value  # T2T refuses to add these
        if not (name.startswith("_") or name in hparams or empty):
            delattr(hparams, name)
            hparams.add_hparam(name, value)
    typed = hyperparameters.typed(spec.hparams)
    if spec.hparams:
        defined = hparams.values()
        for name in typed:
            if name not in defined:
                raise unknown(
                    f"hyperparameter of {spec.hparams_set}", name, defined, where="--hparams"
                )
        try:
            hparams.parse(spec.hparams)
        except (ValueError, TypeError) as error:
            raise DeclarationError(f"invalid --hparams: {error}", where=spec.hparams) from error
    # T2T's trainer adds these, and schedules and models read some of them.
    for name, value in (
        ("data_dir", data_directory),
        ("model_dir", ""),
        ("train_steps", spec.train_steps),
        ("eval_steps", 0),
        ("schedule", "train"),
        ("warm_start_from", None),
        ("std_server_protocol", None),
    ):
        if name not in hparams:
            hparams.add_hparam(name, value)
        elif value is not None:
            hparams.set_hparam(name, value)
    if "use_nchw" in hparams and not has_gpu():
        hparams.use_nchw = False  # the CPU has no convolution with channels first
    if hparams.get("batch_shuffle_size") == _SHUFFLED_BATCHES and "batch_shuffle_size" not in typed:
        hparams.batch_shuffle_size = 0  # data.py begins at random places instead
    return hparams


def _unknown(kind: str, name: str, store: Iterable[str]) -> TransientError:
    names = sorted({*store, *(found for other, found in index() if other == kind)})
    return unknown(_WORDS[kind], name, names, otherwise="The cell can register it.")


def _import_all(modules: Iterable[str]) -> None:
    for module in sorted(set(modules)):
        try:
            importlib.import_module(module)
        except Exception:  # noqa: BLE001 - some problems need missing libraries (gym)
            continue


def _snake(name: str) -> str:
    """Return the default name under which T2T registers a class or function."""
    partly = re.sub("(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub("([a-z0-9])([A-Z])", r"\1_\2", partly).lower()


# Features of Tensor2Tensor that are not supported here are refused by name, never ignored silently.
#
# Tensor2Tensor trains models with TensorFlow's estimator, which no longer exists. Overridden
# methods and hyperparameters that only the estimator uses would have no effect.


def check_supported(model: Any, hparams: Any, problem: Any, spec: RunSpec) -> None:
    """Raise DeclarationError for anything that would be trained differently than by T2T."""
    _check_methods(model, "T2TModel", _OF_A_MODEL)
    _check_methods(type(problem), "Problem", _OF_A_PROBLEM)
    if any(kind.__module__ in _MIXTURES for kind in type(problem).__mro__):
        raise DeclarationError(
            f"{problem.name} mixes several problems by a schedule, whose steps each worker would "
            "count separately",
            fix="Train one of its problems.",
        )
    for name in _BEGINNINGS:
        if hparams.get(name):
            raise DeclarationError(
                f"variables cannot be loaded from {hparams.get(name)!r}",
                where=name,
                fix="Use --resume to continue a run.",
            )
    if hparams.get("gpu_automatic_mixed_precision"):
        raise DeclarationError(
            "TensorFlow no longer supports this rewriting of graphs",
            fix="Leave it out.",
            where="gpu_automatic_mixed_precision",
        )
    scaler = hparams.get("mixed_precision_optimizer_loss_scaler")
    if scaler not in (None, "", "0", "exponential", False):
        raise DeclarationError(
            f"unknown loss scaler {scaler!r}",
            where="mixed_precision_optimizer_loss_scaler",
            fix="Use exponential.",
        )
    if spec.ps_shards > 1 and str(hparams.get("optimizer")).lower() == "adafactor":
        raise DeclarationError(
            "Adafactor needs whole variables, but --ps-shards splits them",
            where="--ps-shards",
            fix="Remove --ps-shards, or choose another optimizer.",
        )


def _check_methods(kind: type, base: str, names: tuple[str, ...]) -> None:
    for name in names:
        owner = next((base_kind for base_kind in kind.__mro__ if name in vars(base_kind)), None)
        if owner is None or owner.__name__ == base or (owner.__module__, name) in _HARMLESS:
            continue
        raise DeclarationError(
            f"{owner.__name__}.{name} would never be called: it belongs to TensorFlow's estimator, "
            "which no longer exists",
            fix="Remove it. A model can override body, loss, optimize and metrics.",
        )
