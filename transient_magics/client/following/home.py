"""What work has left: with the controller on a VM it comes to this machine a moment after the word of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import commands

if TYPE_CHECKING:
    from ..handles.cluster import Cluster

HOME_SECONDS = 30.0
"""As long somebody waits for it who has waited for the work."""
_LOOK_SECONDS = 0.2


def until_home(cluster: Cluster, is_home: Callable[[], bool], *, deadline: float | None = None) -> bool:
    """Block until `is_home`, while it may come, for at most HOME_SECONDS; whether it is.

    `deadline`: until when the caller waits in any case, on the monotonic clock.
    """
    longest = time.monotonic() + HOME_SECONDS
    deadline = longest if deadline is None else min(deadline, longest)
    while not (home := is_home()) and _may_come(cluster) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return home


def _may_come(cluster: Cluster) -> bool:
    """Whether somebody here brings what a controller elsewhere has; of a cluster that is gone, for its last moments."""
    state = cluster.state
    return bool(state.seat) and (not state.over or commands.in_charge(cluster.directory))
