"""What Tensor2Tensor would do for a model or a problem and is not done here: refused by name, never left out silently.

Tensor2Tensor hands models to TensorFlow's estimator, which is gone. What a cell overrides of that part, and
hyperparameters that only that part reads, would otherwise be there and count for nothing.
"""

from __future__ import annotations

from typing import Any

from ....errors import DeclarationError
from ....protocol.run import RunSpec

_OF_A_MODEL = (
    *("estimator_model_fn", "estimator_spec_train", "estimator_spec_eval", "make_estimator_model_fn"),
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
_MIXTURES = ("tensor2tensor.data_generators.multi_problem", "tensor2tensor.data_generators.multi_problem_v2")
_BEGINNINGS = ("warm_start_from_second", "pretrained_model_dir")


def check(model: Any, hparams: Any, problem: Any, spec: RunSpec) -> None:
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
                f"no variables are loaded from {hparams.get(name)!r}", where=name, fix="--resume goes on from a run."
            )
    if hparams.get("gpu_automatic_mixed_precision"):
        raise DeclarationError("TensorFlow no longer rewrites graphs so", where="gpu_automatic_mixed_precision")
    if (scaler := hparams.get("mixed_precision_optimizer_loss_scaler")) not in (None, "", "0", "exponential", False):
        what = f"there is no loss scaler {scaler!r}"
        raise DeclarationError(what, where="mixed_precision_optimizer_loss_scaler", fix="Take exponential.")
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
