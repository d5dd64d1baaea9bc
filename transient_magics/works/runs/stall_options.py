"""The options of a measure of stalls."""

from __future__ import annotations

from typing import Any

from ...cli.option import Option, duration, flag, group, whole, word
from .options import check_train, train
from ...cli.options.shared import CLUSTER, OUTPUT, name_of, wait_until

_OF_A_RUN = (
    "model", "hparams_set", "problem", "cluster", "hparams", "data_dir", "params", "include", "pip", "pip_build",
    "ps_shards", "workers", "wire", "pace_seconds",
)  # fmt: skip


def stalls() -> tuple[Option, ...]:
    """Return its own options, and those of a run that decide how long a step takes."""
    declared = {option.name: option for option in train()}
    return (
        word(
            "run",
            "RUN",
            "the run whose model and data are measured; without it, a model of Tensor2Tensor or the cell's own",
            many="?",
            completes="run",
        ),
        *group(
            "Measures",
            flag(
                "--repeats",
                "how often to take each measure, 3 or more",
                whole("--repeats", 3),
                default="5",
                metavar="N",
            ),
            flag(
                "--seconds",
                "how long a measure takes each time",
                duration("--seconds", "s"),
                default="2",
                metavar="SECONDS",
            ),
        ),
        *(declared[name] for name in _OF_A_RUN),
        *group(
            CLUSTER,
            name_of("measure", "stalls-1, stalls-2, ..."),
            wait_until("all is measured"),
            OUTPUT,
        ),
    )


def check_stalls(values: dict[str, Any], called: str) -> None:
    """As of a run."""
    own = {name: values.pop(name) for name in ("run", "repeats", "seconds") if name in values}
    check_train(values, called)
    values.update(own)
