"""What the controller tells of a bag; what its driver tells is in `protocol.bag.events`."""

from __future__ import annotations

from typing import Literal

from ...protocol.checks import Name
from ...protocol.events import FACT, Event, event


@event("bag.began", FACT)
class BagBegan(Event):
    """Its driver is beside the scheduler of the Dask cluster `dask`, whose workers are the bag's; a
    later one takes the place of one that was lost.
    """

    bag: Name
    dask: Name


@event("bag.ending", FACT)
class BagEnding(Event):
    """It is told to end. `reason`: why, a clause; `limit`: by one of its own."""

    bag: Name
    reason: str
    limit: bool = False


@event("bag.ended", FACT)
class BagEnded(Event):
    """It is over, and its VMs are free. `reason`: why, a clause."""

    bag: Name
    state: Literal["finished", "failed", "stopped"]
    reason: str = ""
