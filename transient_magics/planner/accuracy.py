"""How accurate runs became that are like a planned one: the third axis beside hours and dollars.

Nothing is extrapolated. Like it are runs of the same mode, mini-batch and other settings, with as many workers in the
mean, that were evaluated after as many steps: asynchronous workers cost accuracy by their number, and so does a batch
(Li et al., ICAC'19: 93.1 % with one worker, 88.8 % with eight). What one more such run will have is as uncertain as
these differ, and as they are few.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import special

from .measured import Record
from .speeds.fitting import spread

METRIC = "accuracy"
_ALIKE = 0.1  # relatively: of workers, some of whom come and go, and of steps
_USUAL, _BY_WORKERS, _PRIOR = 0.0025, 0.83, 4.0
"""By how much runs differ (standard deviation) before any tell: `_USUAL` of one worker, of more by a power of them.

Fitted to the accuracy of 251 runs of 35 of ICAC'19's clusters, from 0.002 of one worker to 0.01 to 0.02 of eight; about
that law their variances have 13 degrees of freedom. They are of one model, so for others `_PRIOR` of them count.
"""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What `runs` of them had in the mean, 0 to 1, and between which values one more lies with 90 %; of one run that is
    a `guess`."""

    value: float
    low: float
    high: float
    runs: int

    @property
    def guess(self) -> bool:
        """Whether one run alone tells it, and nothing how others differ."""
        return self.runs == 1


class Accuracies:
    """What a model's runs tell of those with one mini-batch, mode and settings."""

    def __init__(self, records: Iterable[Record], batch: int, mode: str = "async", settings: str = "") -> None:
        self._like = [
            each for each in records
            if each.batch_size == batch and each.mode == mode and each.settings == settings and each.workers
            and any(METRIC in metrics for _, metrics in each.evaluations)
        ]  # fmt: skip

    def __bool__(self) -> bool:
        """Whether anything is known for some number of workers and steps."""
        return bool(self._like)

    def at(self, workers: int, steps: int) -> Accuracy | None:
        """After so many steps of so many workers; None where no run was like that."""
        found = [
            value for each in self._like
            if abs(each.workers / workers - 1) <= _ALIKE and (value := _evaluated(each, steps)) is not None
        ]  # fmt: skip
        if not found:
            return None
        values = np.array(found)
        mean = float(values.mean())
        usual = _USUAL * workers**_BY_WORKERS
        off = float(special.ndtri(0.95)) * spread(values - mean, 1, np.ones(len(values)), usual, _PRIOR)
        return Accuracy(mean, max(mean - off, 0.0), min(mean + off, 1.0), len(found))


def _evaluated(record: Record, steps: int) -> float | None:
    """What the run had at its evaluation nearest to so many steps, if one is near."""
    told = [(abs(step - steps), metrics[METRIC]) for step, metrics in record.evaluations if METRIC in metrics]
    away, value = min(told)
    return value if away <= _ALIKE * steps else None
