"""What the controller tells of a bag; what its driver tells is in `protocol.bag.events`."""

from __future__ import annotations

from ...protocol.checks import Name
from ...protocol.events import FACT, Event, event


@event("bag.began", FACT)
class BagBegan(Event):
    """Its driver is beside the scheduler of the Dask cluster `dask`, whose workers are the bag's; a
    later one takes the place of one that was lost.
    """

    bag: Name
    dask: Name
