"""Step times of models that were never run: a line over floating-point operations, one per family
and GPU.

CM-DARE (ICDCS'20) measured twenty convolutional networks on K80 and P100 (batches of 128, one
worker, one parameter server; `speed_data`). One line for all of them misses an unseen model by a
quarter, a line per architecture family by some per cent: a Shake-Shake network spends much of a
step on work that is no floating-point operation. The lines are fitted to relative errors, because a
step of 40 ms and one of 1.4 s are to be met equally well; the error that is told is that of models
left out of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

# (family, GFLOPs of the training graph at batch 1, ms on K80, ms on P100)
_MEASURED: dict[str, tuple[str, float, float, float]] = {
    "resnet-15": ("resnet", 0.631, 105.8, 40.6),
    "custom-1": ("resnet", 0.860, 131.7, 58.2),
    "custom-2": ("resnet", 1.088, 155.0, 68.9),
    "custom-3": ("resnet", 1.543, 203.8, 85.9),
    "resnet-32": ("resnet", 1.659, 217.9, 82.6),
    "custom-9": ("resnet", 2.001, 255.1, 92.6),
    "custom-4": ("resnet", 2.344, 291.2, 118.6),
    "custom-5": ("resnet", 2.916, 348.3, 140.4),
    "custom-6": ("resnet", 3.944, 447.5, 191.0),
    "custom-10": ("resnet", 4.285, 490.8, 177.8),
    "custom-7": ("resnet", 4.971, 561.2, 236.3),
    "custom-8": ("resnet", 5.882, 658.3, 273.2),
    "shake-shake-16": ("shake-shake", 0.664, 232.1, 129.2),
    "shake-shake-small": ("shake-shake", 2.587, 391.5, 145.0),
    "shake-shake-small-32d": ("shake-shake", 3.274, 474.6, 168.8),
    "shake-shake-48": ("shake-shake", 5.768, 608.7, 236.0),
    "shake-shake-64": ("shake-shake", 10.208, 788.3, 313.6),
    "shake-shake-64-32d": ("shake-shake", 12.951, 989.0, 354.5),
    "shake-shake-80": ("shake-shake", 15.907, 1204.2, 416.3),
    "shake-shake-big": ("shake-shake", 22.865, 1405.9, 492.7),
}
GPUS = ("k80", "p100")
"""On which they were measured."""
ALL = "all"
"""All families together, for a model of none of them."""
BATCH_SIZE = 128


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a step of 128 examples: `fixed + per_gigaflop * GFLOPs`. `error`: relative
    standard deviation of unseen models, as each was when it was left out.
    """

    fixed: float
    per_gigaflop: float
    error: float

    def seconds(self, gigaflops: float, batch_size: float = BATCH_SIZE) -> float:
        """Of a model with so many GFLOPs (training graph, batch of 1), with that batch."""
        return self.fixed + self.per_gigaflop * gigaflops * batch_size / BATCH_SIZE


def families() -> tuple[str, ...]:
    """The families that were measured."""
    return tuple(dict.fromkeys(family for family, *_ in _MEASURED.values()))


def extent(family: str) -> tuple[float, float]:
    """The least and the most GFLOPs of a family's networks that were measured."""
    found = [row[1] for row in _MEASURED.values() if family in (row[0], ALL)]
    return min(found), max(found)


@cache
def line(family: str, gpu: str) -> Line | None:
    """The line of a family (or of `ALL`) on a GPU; None where nobody measured it."""
    points = _points(family, gpu)
    if len(points) < 3:
        return None
    errors = [predicted / seconds - 1 for _, seconds, predicted in leave_one_out(family, gpu)]
    return Line(*_fit(points), float(np.sqrt(np.mean(np.square(errors)))))


def leave_one_out(family: str, gpu: str) -> list[tuple[str, float, float]]:
    """For each measured model its name, its seconds, and those predicted from the family's others."""
    names = [name for name, row in _MEASURED.items() if family in (row[0], ALL)]
    points = _points(family, gpu)
    found = []
    for index, (name, (gigaflops, seconds)) in enumerate(zip(names, points, strict=True)):
        fixed, slope = _fit(points[:index] + points[index + 1 :])
        found.append((name, seconds, fixed + slope * gigaflops))
    return found


def _points(family: str, gpu: str) -> list[tuple[float, float]]:
    if gpu not in GPUS:
        return []
    column = 2 + GPUS.index(gpu)
    return [
        (float(row[1]), float(row[column]) / 1000)
        for row in _MEASURED.values()
        if family in (row[0], ALL)
    ]


def _fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """The line with the least sum of squared relative errors."""
    x, y = np.array(points).T
    terms = np.stack([np.ones_like(x), x], axis=1) / y[:, np.newaxis]
    (fixed, slope), *_ = np.linalg.lstsq(terms, np.ones_like(y), rcond=None)
    return float(fixed), float(slope)
