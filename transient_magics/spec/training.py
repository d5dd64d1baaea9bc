"""TrainSpec: everything that was declared about one run, frozen, and as JSON (the `run.json` that VMs read)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from ..errors import DeclarationError


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """A declared run: which Tensor2Tensor model on which problem (none: the cell's own), how long, and how.

    `line_offset` is the line of the notebook's cell at which its body begins, so that errors name the user's own lines.
    `store` is the run's own place in a bucket (`gs://bucket/path`), `resume_store` that of the run it resumes from.
    `pip` has packages as pip reads them; files among them are in the run's folder `pip`, by name.
    `backup_workers` are those whose gradients a synchronous step does not wait for.
    `checkpoint_auto` plans the seconds between checkpoints from what they were measured to cost; the last `keep` stay.
    `deadband`, `batch_smoothing` and `step_time` say how mini-batches follow the measured times (runtime/batching.py);
    `batch_least` and `batch_most` bound them, in examples or tokens (0: 2, and 8 times the declared mini-batch).
    `damping` staleness lowers the learning rate of gradients that come late.
    `alarm_below` is the share of the speed that the workers were seen to reach, below which the run is called slow (0:
    never), `alarm_after` the seconds that each of them warms up before.
    `noise_share` is the share of its time that a worker takes to measure the noise of its gradients (0: none).
    `eval_batches` is how many batches of the dev split an evaluation takes (0: all).
    `pace_seconds` is the least time of one worker step: two cores cannot be eight GPUs, pacing can.
    `chief` is who saves: `ps`, or a `worker`.
    `workers` is how many the cluster had by declaration then: with `batching` their mini-batches make the global batch.
    """

    name: str
    train_steps: int
    model: str = ""
    hparams_set: str = ""
    problem: str = ""
    hparams: str = ""
    data_dir: str | None = None
    include: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    pip_build: bool = False
    checkpoint_steps: int | None = 1000
    checkpoint_seconds: float | None = 600.0
    checkpoint_auto: bool = False
    keep: int = 5
    ps_shards: int = 1
    mode: str = "async"
    backup_workers: int = 0
    batching: str = "uniform"
    deadband: float = 0.05
    batch_smoothing: float = 0.3
    batch_least: int = 0
    batch_most: int = 0
    step_time: str = "affine"
    lr_policy: str = "active"
    damping: str = "none"
    max_workers: int = 0
    workers: int = 0
    chief: str = "ps"
    wire: str = "fp32"
    alarm_below: float = 0.8
    alarm_after: float = 30.0
    noise_share: float = 0.008
    eval_steps: int | None = None
    eval_batches: int = 100
    resume: str | None = None
    pace_seconds: float | None = None
    when_done: str = "keep"
    check: bool = True
    line_offset: int = 1
    declared_at: float = 0.0
    store: str | None = None
    resume_store: str | None = None
    token: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back as an equal spec."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote; fields of newer versions are ignored."""
        known = {field.name for field in fields(cls)}
        chosen = {key: value for key, value in values.items() if key in known}
        for key in ("include", "pip"):
            chosen[key] = tuple(chosen.get(key) or ())
        return cls(**chosen)


def check_model(values: Mapping[str, Any]) -> None:
    """A model of Tensor2Tensor is named by three values, the cell's own by none. Raises DeclarationError."""
    missing = [name for name in ("model", "hparams_set", "problem") if not values.get(name)]
    if len(missing) not in (0, 3):
        raise DeclarationError(
            f"A model of Tensor2Tensor needs {' and '.join(map(_option, missing))} too",
            fix="Without --model, --hparams-set and --problem, the model that the cell defines is trained.",
        )
    for name in ("hparams", "data_dir"):
        if missing and values.get(name):
            fix = "A cell with a model of its own says it in the cell."
            raise DeclarationError("Only a model of Tensor2Tensor takes it", where=_option(name), fix=fix)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
