"""Whether what the check of one run has found holds for another, as for the trials of a study: then
it is not repeated.

It holds for the same code and packages (`works/runs/checking.py`) where the declarations differ in
nothing that a graph's shape follows from. What is left to go wrong with such a run goes wrong at
its start, and fails it with the same sentence.
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
"""What no graph is built of. A field that is not named here is looked at."""
_FRACTION = re.compile(r"=\s*[+-]?(?:\d+\.\d*|\.\d+|\d+(?:\.\d*)?[eE][+-]?\d+)\s*(?=,|$)")
"""A value such as 0.1 or 1e-3: other than whole numbers, which may be sizes, it changes no shape.
"""


def alike(checked: RunSpec, other: RunSpec) -> bool:
    """Whether they are checked for the same, as far as their declarations say."""
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
