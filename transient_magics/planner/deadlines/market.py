"""Availability as windows on a grid: what a run that begins at some moment would have met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...catalog.traces import Trace
from ...errors import PlanError

GRID = 720.0
"""Seconds of a step: the 12 minutes that the published traces' slowest sampling still tells apart."""
Open = NDArray[np.bool_]


@dataclass(frozen=True)
class Windows:
    """Stretches of equal length. `open[i, t]`: whether window i has a Spot VM at the beginning of step t; `trace[i]`,
    `day[i]`: which trace it is of, and the day of it on which it begins."""

    open: Open
    trace: NDArray[np.int64]
    day: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.open)


def sampled(trace: Trace, vms: int = 1, grid: float = GRID) -> Open:
    """Whether the zone has `vms` VMs, at the beginning of each step from the trace's start to its end."""
    moments = np.arange(int(trace.end // grid)) * grid
    numbers = np.array(trace.numbers)
    return numbers[np.searchsorted(trace.seconds, moments, side="right") - 1] >= vms


def windows(series: Sequence[Open], steps: int, every: int) -> Windows:
    """Windows of `steps` steps that begin every `every` steps of each series. Raises PlanError where none fits."""
    begins = [(index, start) for index, values in enumerate(series)
              for start in range(0, len(values) - steps + 1, every)]  # fmt: skip
    if not begins:
        raise PlanError(f"No trace lasts {steps * GRID / 3600:g} hours", fix="Take longer traces.")
    return Windows(
        np.array([series[index][start : start + steps] for index, start in begins]),
        np.array([index for index, _ in begins]),
        np.array([int(start * GRID // 86400) for _, start in begins]),
    )
