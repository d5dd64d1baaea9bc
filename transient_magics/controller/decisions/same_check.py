"""Decide whether the check of one run also holds for another, which then needs none.

For example, it holds for the trials of a study: for the same code and packages
(`works/runs/checking.py`), if the declarations differ only in values that do not change a graph's
shape. Any remaining error occurs at the start of such a run, and fails it with the same sentence.
"""

from __future__ import annotations

import re
from typing import Any

from ...protocol.literals import all_as_json
from ...protocol.run import RunSpec

_ASIDE = frozenset(
    {
        "name",
        "train_steps",
        "pip_build",
        "checkpoint_steps",
        "checkpoint_seconds",
        "checkpoint_auto",
        "keep",
        "deadband",
        "batch_smoothing",
        "max_workers",
        "workers",
        "least_workers",
        "most_workers",
        "machines",
        "chief",
        "alarm_below",
        "alarm_after",
        "noise_share",
        "eval_steps",
        "eval_batches",
        "epoch_steps",
        "first_epoch",
        "callbacks",
        "seed",
        "resume",
        "pace_seconds",
        "notice_seconds",
        "when_done",
        "line_offset",
        "declared_at",
        "store",
        "resume_store",
        "threads",
        "token",
        "study",
        "trial",
        "repeat",
        "per_vm",
    }
)
"""Fields that do not change a graph. All other fields are compared."""
_FRACTION = re.compile(r"=\s*[+-]?(?:\d+\.\d*|\.\d+|\d+(?:\.\d*)?[eE][+-]?\d+)\s*(?=,|$)")
"""Value such as 0.1 or 1e-3. Unlike whole numbers, which may be sizes, it changes no shape."""


def alike(checked: RunSpec, other: RunSpec) -> bool:
    """Return whether both runs have the same check, according to their declarations."""
    return _looked_at(checked) == _looked_at(other)


def _looked_at(spec: RunSpec) -> dict[str, Any]:
    fields = {name: value for name, value in spec.to_dict().items() if name not in _ASIDE}
    fields["hparams"] = _FRACTION.sub("=#", spec.hparams)
    values = all_as_json(spec.params)
    fields["params"] = {
        name: "#" if isinstance(spec.params[name], float) else value
        for name, value in values.items()
    }
    return fields
