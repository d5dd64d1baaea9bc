"""Find a model, an hparams set or a problem by the name under which Tensor2Tensor (or the cell)
registers it.

T2T finds them by importing all its 150 modules, which takes many seconds and fails today. Here the
sources are scanned for registrations once (a tenth of a second), and only the module that holds the
wanted name is imported. What goes in is a run's declaration, what comes out is a Definition; a name
that nobody registers is refused with its nearest neighbours.
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
    r"(?:\(\s*(?:[\"'](?P<name>[^\"']+)[\"'])?\s*\))?[^\S\n]*\n(?:@.*\n)*(?:class|def)\s+(?P<code>\w+)",
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
    *(
        "estimator_model_fn",
        "estimator_spec_train",
        "estimator_spec_eval",
        "make_estimator_model_fn",
    ),
    *("train_hooks", "eval_hooks", "get_train_hooks", "get_eval_hooks", "initialize_from_ckpt"),
)
_OF_A_PROBLEM = ("input_fn", "make_estimator_input_fn", "eval_hooks")
_HARMLESS = {
    # Only summaries, and the same metrics without BLEU and ROUGE.
    ("tensor2tensor.models.research.transformer_vae", "estimator_spec_eval"),
    ("tensor2tensor.models.neural_architecture_search.nas_model", "estimator_spec_eval"),
    # Initializes from data. The model fails by itself: see docs/models.md.
    ("tensor2tensor.models.research.glow", "train_hooks"),
}
_MIXTURES = (
    "tensor2tensor.data_generators.multi_problem",
    "tensor2tensor.data_generators.multi_problem_v2",
)
_BEGINNINGS = ("warm_start_from_second", "pretrained_model_dir")


@dataclass(frozen=True)
class Definition:
    """What is trained: T2T's model class, its hparams and the problem's instance."""

    model: Any
    hparams: Any
    problem: Any


@cache
def index() -> dict[tuple[str, str], str]:
    """(kind, registered name) -> module, from T2T's sources, without importing any of them."""
    from importlib.util import find_spec

    specification = find_spec("tensor2tensor")
    if specification:
        locations = specification.submodule_search_locations
    else:
        locations = None
    found: dict[tuple[str, str], str] = {}
    for root in map(Path, locations or ()):
        for place in sorted({place for places in _PLACES.values() for place in places}):
            for source in sorted((root / place).rglob("*.py")):
                if source.name.endswith("_test.py"):
                    continue
                module = ".".join(
                    ("tensor2tensor", *source.relative_to(root).with_suffix("").parts)
                )
                for match in _REGISTRATION.finditer(
                    source.read_text(errors="replace", encoding="utf-8")
                ):
                    kind = match["kind"].removeprefix("base_")
                    found.setdefault((kind, match["name"] or _snake(match["code"])), module)
    return found


def define(folder: RunFolder, spec: RunSpec, data_directory: str) -> Definition:
    """Run the cell and find what the run names. Raises CellError or DeclarationError."""
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
    """The registered model class, hparams or problem instance called `name`; its module is imported
    if need be.
    """
    from tensor2tensor.utils import registry

    stores = {
        "model": registry.Registries.models,
        "hparams": registry.Registries.hparams,
        "problem": registry.Registries.problems,
    }
    if kind == "problem":
        base = registry.parse_problem_name(name).base_name
    else:
        base = name
    if base not in stores[kind] and (module := index().get((kind, base))):
        importlib.import_module(module)
    if base not in stores[kind] and kind == "problem":
        # Some problems are registered in loops that no scan of the sources sees.
        _import_all(module for (held, _), module in index().items() if held == "problem")
    if base not in stores[kind]:
        raise _unknown(kind, name, stores[kind])
    if kind == "problem":
        return registry.problem(name)
    return stores[kind][name]


def _look_up_all() -> None:
    """Let models name other models and sets (distillation its teacher and student): T2T would have
    imported them.
    """
    from tensor2tensor.utils import registry

    def look_up(kind: str, store: Any, name: str) -> Any:
        if name not in store and (module := index().get((kind, name))):
            importlib.import_module(module)
        return store[name]

    registry.model = partial(look_up, "model", registry.Registries.models)
    registry.hparams = partial(look_up, "hparams", registry.Registries.hparams)


def _hparams(spec: RunSpec, data_directory: str) -> Any:
    hparams = find("hparams", spec.hparams_set)
    # Some sets only assign what they should add (sliced_gan its bottleneck_bits). T2T copies no
    # more than was added.
    for name, value in list(vars(hparams).items()):
        empty = isinstance(value, list | tuple) and not value  # which T2T does not let anyone add
        if not (name.startswith("_") or name in hparams or empty):
            delattr(hparams, name)
            hparams.add_hparam(name, value)
    typed = hyperparameters.typed(spec.hparams)
    if spec.hparams:
        known = hparams.values()
        for name in typed:
            if name not in known:
                raise unknown(
                    f"hyper-parameter of {spec.hparams_set}", name, known, where="--hparams"
                )
        try:
            hparams.parse(spec.hparams)
        except (ValueError, TypeError) as error:
            raise DeclarationError(
                f"--hparams cannot be read: {error}", where=spec.hparams
            ) from error
    # What T2T's trainer adds before a model sees them; schedules and models read some of these.
    for name, value in (
        ("data_dir", data_directory),
        ("model_dir", ""),
        ("train_steps", spec.train_steps),
        ("eval_steps", 0),
        ("schedule", "train"),
        ("warm_start_from", None),
        ("std_server_protocol", None),
    ):
        if name in hparams:
            hparams.set_hparam(name, value) if value is not None else None
        else:
            hparams.add_hparam(name, value)
    if "use_nchw" in hparams and not has_gpu():
        hparams.use_nchw = False  # channels first is a GPU layout; the CPU has no such convolution
    if hparams.get("batch_shuffle_size") == _SHUFFLED_BATCHES and "batch_shuffle_size" not in typed:
        hparams.batch_shuffle_size = 0  # in its place, reading begins anywhere: see data.py
    return hparams


def _unknown(kind: str, name: str, store: Iterable[str]) -> TransientError:
    names = sorted({*store, *(known for held, known in index() if held == kind)})
    return unknown(_WORDS[kind], name, names, otherwise="The cell can register it.")


def _import_all(modules: Iterable[str]) -> None:
    for module in sorted(set(modules)):
        try:
            importlib.import_module(module)
        except Exception:  # noqa: BLE001 - problems with libraries of their own (gym); not the wanted one
            continue


def _snake(name: str) -> str:
    """The name under which T2T registers a class or function when none is given."""
    partly = re.sub("(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub("([a-z0-9])([A-Z])", r"\1_\2", partly).lower()


# What Tensor2Tensor would do for a model or a problem and is not done here: refused by name, never
# left out silently.
#
# Tensor2Tensor hands models to TensorFlow's estimator, which is gone. What a cell overrides of that
# part, and hyperparameters that only that part reads, would otherwise be there and count for
# nothing.


def check_supported(model: Any, hparams: Any, problem: Any, spec: RunSpec) -> None:
    """Raises DeclarationError for what would be trained otherwise than by Tensor2Tensor."""
    _check_methods(model, "T2TModel", _OF_A_MODEL)
    _check_methods(type(problem), "Problem", _OF_A_PROBLEM)
    if any(kind.__module__ in _MIXTURES for kind in type(problem).__mro__):
        raise DeclarationError(
            f"{problem.name} mixes several problems, by a schedule that counts its steps in every worker for itself",
            fix="Train one of its problems.",
        )
    for name in _BEGINNINGS:
        if hparams.get(name):
            raise DeclarationError(
                f"no variables are loaded from {hparams.get(name)!r}",
                where=name,
                fix="--resume goes on from a run.",
            )
    if hparams.get("gpu_automatic_mixed_precision"):
        raise DeclarationError(
            "TensorFlow no longer rewrites graphs so", where="gpu_automatic_mixed_precision"
        )
    if (scaler := hparams.get("mixed_precision_optimizer_loss_scaler")) not in (
        None,
        "",
        "0",
        "exponential",
        False,
    ):
        what = f"there is no loss scaler {scaler!r}"
        raise DeclarationError(
            what, where="mixed_precision_optimizer_loss_scaler", fix="Take exponential."
        )
    if spec.ps_shards > 1 and str(hparams.get("optimizer")).lower() == "adafactor":
        raise DeclarationError(
            "Adafactor looks at whole variables, and --ps-shards cuts them",
            where="--ps-shards",
            fix="Leave --ps-shards out, or choose another optimizer.",
        )


def _check_methods(kind: type, base: str, names: tuple[str, ...]) -> None:
    for name in names:
        owner = next((each for each in kind.__mro__ if name in vars(each)), None)
        if owner is None or owner.__name__ == base or (owner.__module__, name) in _HARMLESS:
            continue
        raise DeclarationError(
            f"{owner.__name__}.{name} would never be called: it belongs to TensorFlow's estimator, which is gone",
            fix="Take it out; a model's body, loss, optimize and metrics are its own.",
        )
