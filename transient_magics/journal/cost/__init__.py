"""The cost of work and clusters, computed from a cluster's state and never stored."""

from .bills import (
    FORGOTTEN,
    MOVED,
    Bill,
    Cost,
    Projection,
    at_the_end,
    bill,
    charged,
    costs,
    hourly_of,
    total,
)
from .shares import CORRECTIONS, IDLE, NOTICED, START_UP

__all__ = [
    "CORRECTIONS",
    "FORGOTTEN",
    "IDLE",
    "MOVED",
    "NOTICED",
    "START_UP",
    "Bill",
    "Cost",
    "Projection",
    "at_the_end",
    "bill",
    "charged",
    "costs",
    "hourly_of",
    "total",
]
