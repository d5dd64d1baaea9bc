"""The cost of work and clusters, computed from a cluster's state and never stored."""

from .bills import FORGOTTEN, MOVED, at_the_end, bill, charged, costs, hourly_of, total
from .figures import Bill, Cost, Projection
from .shares import CORRECTIONS
from .vms import IDLE, NOTICED, START_UP

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
