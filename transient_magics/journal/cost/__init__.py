"""What work and clusters cost, computed from a cluster's state and never stored."""

from .bills import FORGOTTEN, MOVED, at_the_end, bill, costs, hourly_of
from .figures import Bill, Cost, Projection
from .shares import IDLE, NOTICED, START_UP

__all__ = [
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
    "costs",
    "hourly_of",
]
