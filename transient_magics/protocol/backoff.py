"""Pauses between attempts that stamina cannot wrap.

VMs do not have stamina, and an attempt there may yield values.
"""

from __future__ import annotations

import math
import random

_JITTER = 0.2


def backoff(failures: int, first: float, longest: float = math.inf) -> float:
    """Return the seconds to wait after `failures` in a row, from 1: doubled each time, jitter 20 %.

    Parameters
    ----------
    first
        The seconds after the first failure.
    longest
        The maximum number of seconds.
    """
    seconds = min(first * 2 ** min(failures - 1, 30), longest)
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)
