"""Restart of dead controllers by commands that read a journal once.

A notebook's follower restarts the controllers of the clusters that it follows. A command in a
terminal would show the last recorded state of a cluster as its present one, so it reports a dead
controller and starts another one. For the same reason, `status` asks the controller for its present
trouble: a journal on a full disk does not have it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ControllerError, HomeError
from ...journal import ClusterState
from ...journal.declared import ATTACHED, unreadable
from ...journal.lock import LOCK
from ...protocol import layout
from .. import commands
from ..text import time_words

if TYPE_CHECKING:
    from .cluster import BaseCluster

_STARTING_SECONDS = 20.0
"""In a younger folder that was never locked, another process is starting the controller."""
_TAKES_OVER_SECONDS = 5.0
_POLL_SECONDS = 0.02


@dataclass
class _Unattended:
    """A cluster without a controller, and the attempt to start another one."""

    name: str
    directory: Path
    since: float
    seat: str
    process: subprocess.Popen[bytes] | None = None
    refusal: str = ""

    def start(self) -> None:
        self.refusal = unreadable(self.directory)
        if self.refusal:
            return
        try:
            self.process = commands.start_controller(self.directory)
        except (ControllerError, HomeError) as error:
            self.refusal = str(error)

    @property
    def is_starting(self) -> bool:
        ended = self.process is None or self.process.poll() is not None
        return not ended and not commands.in_charge(self.directory)

    def report(self, now: float) -> str:
        since = time_words(self.since, now)
        if self.seat:
            gap = (
                f"No process of this machine has followed {self.name} since {since}; its "
                f"controller is on {self.seat}"
            )
        else:
            gap = f"No controller of {self.name} has been running since {since}"
        return f"{gap}. The following state is from that time. {self._outcome}"

    @property
    def _outcome(self) -> str:
        if self.seat:
            what = "process follows it"
        else:
            what = "controller is running"
        if self.refusal:
            return f"Another one cannot be started: {self.refusal}"
        if commands.in_charge(self.directory):
            return f"Another {what} now."
        if self.is_starting:
            return "Another one is starting."
        return (
            f"Another one was started and ended. Its log: {self.directory / layout.CONTROLLER_LOG}"
        )


def revive(clusters: Iterable[BaseCluster]) -> list[str]:
    """Start a controller for each cluster that has none and is not deleted.

    Wait until the new controllers hold their locks, for at most 5 seconds, so that the next command
    finds them running.

    Parameters
    ----------
    clusters
        The clusters.

    Returns
    -------
    list of str
        A sentence for each cluster that had no controller.
    """
    found = [dead for cluster in clusters if (dead := _unattended(cluster))]
    for dead in found:
        dead.start()
    deadline = time.monotonic() + _TAKES_OVER_SECONDS
    while any(dead.is_starting for dead in found) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    now = time.time()
    return [dead.report(now) for dead in found]


def present(cluster: BaseCluster) -> ClusterState:
    """Return the state in the cluster's journal, with the present trouble of its controller."""
    state = cluster.state
    if state.over or not commands.in_charge(cluster.directory):
        return state
    return replace(state, trouble=commands.trouble(cluster.directory) or state.trouble)


def _unattended(cluster: BaseCluster) -> _Unattended | None:
    """Return the cluster if it needs a controller, or a follower of one, and has none."""
    directory = cluster.directory
    if commands.in_charge(directory):
        return None
    state = cluster.state  # read after the lock: a controller writes the deletion before it ends
    if state.over:
        return None
    if (directory / ATTACHED).exists() and not state.seat and state.phase != "deleting":
        return None  # this machine follows the cluster, whose controller is not on a VM
    since = _last_sign(directory)
    if not (directory / LOCK).exists() and time.time() - since < _STARTING_SECONDS:
        return None
    return _Unattended(cluster.name, directory, since, state.seat)


def _last_sign(directory: Path) -> float:
    """Return the last time at which a controller touched its lock or wrote the journal."""
    times: list[float] = []
    for name in (LOCK, layout.JOURNAL, layout.SPEC):
        with suppress(OSError):
            times.append((directory / name).stat().st_mtime)
    return max(times, default=0.0)
