"""What divides the learning rate, while the workers come and go."""

from __future__ import annotations

import math


def divisor(policy: str, *, synchronous: bool, active: int, slots: int) -> float:
    """The divisor of one update's rate: `policy` is `active`, `slots` (the most workers there may be) or `fixed`.

    Each of n asynchronous workers applies updates of its own, so `active` divides their rate by the square root of how
    many there are now. A synchronous step applies one update, whoever took part: `active` divides by one. `slots` keeps
    to the declared number in both modes.
    """
    match policy:
        case "active" if not synchronous:
            return math.sqrt(max(1, active))
        case "slots":
            return math.sqrt(max(1, slots))
    return 1.0
