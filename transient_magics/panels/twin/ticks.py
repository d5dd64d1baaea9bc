"""Round values to name on an axis, as the page finds them too (widgets/scale.js)."""

from __future__ import annotations

import math

MANY = 4


def ticks(low: float, high: float) -> list[float]:
    """About MANY round values from `low` to `high`, which is above it."""
    step = 10 ** math.floor(math.log10((high - low) / MANY))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= MANY + 1)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
