"""What may be said of a measure of stalls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...spec import parse_name
from ..option import Option, duration, flag, whole, word
from .runs import check_train, train
from .shared import OUTPUT, WAIT

_OF_A_RUN = (
    "model", "hparams_set", "problem", "cluster", "hparams", "data_dir", "params", "include", "pip", "pip_build",
    "ps_shards", "workers", "wire", "pace_seconds",
)  # fmt: skip


def stalls() -> tuple[Option, ...]:
    """Its own, and those of a run that decide how long its steps take."""
    declared = {each.name: each for each in train()}
    return (
        word("run", "RUN", "the run whose model and data are measured; without it, a model of Tensor2Tensor or the "
             "cell's own", many="?", completes="run"),
        flag("--repeats", "how often each measure is taken, 3 or more (5)", whole("--repeats", 3), metavar="N"),
        flag("--seconds", "how long a measure takes each time (2)", duration("--seconds", "s"),
             metavar="SECONDS"),
        *(replace(declared[name]) for name in _OF_A_RUN),
        flag("--name", "its name (stalls-1, stalls-2, ...)", lambda text: parse_name(text, "--name")),
        flag("--wait", WAIT.format("all is measured")),
        OUTPUT,
    )  # fmt: skip


def check_stalls(values: dict[str, Any], called: str) -> None:
    """As of a run."""
    own = {name: values.pop(name) for name in ("run", "repeats", "seconds") if name in values}
    check_train(values, called)
    values.update(own)
