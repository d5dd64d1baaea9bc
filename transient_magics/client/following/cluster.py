"""The base of the handle of a cluster: it reads and follows the cluster's journal.

It does not import any kind of work, so that all modules of the client can use it.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...errors import ClusterError, DeclarationError
from ...journal import Bill, ClusterState, Event, bill, events, kept, now, read, replay
from ...journal.declared import ATTACHED, agreed
from ...journal.store import restore
from ...protocol import layout
from .. import commands
from ..folders import Identity
from .follower import follower

HOME_SECONDS = 30.0
"""Time limit for results to arrive after their work has ended, in seconds."""
_POLL_SECONDS = 0.2
_AWAKE_SECONDS = 0.5


class BaseCluster:
    """One cluster in the journals of this machine.

    It is the cluster that has the name when the object is created, even if another cluster gets
    the name later. `Cluster` adds commands.
    """

    def __init__(self, name: str) -> None:
        """Create the object for the cluster that has this name at present."""
        self.name = name
        self._identity = Identity.of(name)

    @property
    def identity(self) -> Identity:
        """The cluster's name and id."""
        if not self._identity.id:  # it had no folder yet
            self._identity = Identity.of(self.name)
        return self._identity

    @property
    def directory(self) -> Path:
        """The folder with the cluster's journal, runs and logs."""
        return self.identity.directory

    @property
    def followed(self) -> str:
        """The followed source of a cluster of another machine, as a clause; else empty."""
        try:
            return (self.directory / ATTACHED).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    @property
    def state(self) -> ClusterState:
        """The present state in the journal, or the declaration alone before its first line."""
        journal = self.directory / layout.JOURNAL
        state = kept(journal).read()
        if not state.seq and restore(journal):
            state = kept(journal).read()
        if state.seq:
            return state
        return replay(self._declared())

    def _declared(self) -> list[Event]:
        try:
            spec = agreed(self.directory)
        except DeclarationError:
            return []
        return [events.ClusterDeclared(spec=spec.to_dict(), time=int(1e9 * spec.declared_at))]

    def events(self, kind: str | None = None) -> list[Event]:
        """Return the events of the cluster.

        Parameters
        ----------
        kind
            Only events of this kind, such as `vm.revoked`, or group of kinds, such as `vm`.
        """
        every = read(self.directory / layout.JOURNAL)
        return [event for event in every if is_of(event, kind)]

    def wait(self, timeout: float | None = None, until: str = "ready") -> ClusterState:
        """Block until the cluster is `ready` or `deleted`.

        An interrupt ends the wait only: the cluster continues.

        Parameters
        ----------
        timeout
            The time limit in seconds (default: none).
        until
            The phase: `ready` or `deleted`.

        Returns
        -------
        ClusterState
            The state of the cluster.

        Raises
        ------
        ClusterError
            The time limit has passed, or the cluster is deleted and cannot become ready.
        """

        def reached(state: ClusterState) -> bool:
            if until == "ready" and state.phase in ("deleting", "deleted"):
                what = "is deleted" if state.over else "is being deleted"
                raise ClusterError(f"{self.name} {what}: {state.reason or 'requested by the user'}")
            return state.phase == until or state.over

        state = self.follow(reached, timeout)
        if state is None:
            now = self.state
            waiting = ", ".join(f"{vm.name} {vm.state}" for vm in now.living if vm.state != "ready")
            what = f"{self.name} is not {until} after {timeout:.0f} s"
            if waiting:
                what += f" ({waiting})"
            raise ClusterError(what, fix=now.trouble)
        return state

    def follow(
        self, reached: Callable[[ClusterState], bool], timeout: float | None = None
    ) -> ClusterState | None:
        """Block until `reached(state)` is true, and return that state.

        Parameters
        ----------
        reached
            Called with each new state. Its exceptions are raised here.
        timeout
            The time limit in seconds (default: none).

        Returns
        -------
        ClusterState or None
            The state; None if the time limit has passed.
        """
        states: queue.SimpleQueue[ClusterState] = queue.SimpleQueue()
        end = follower().subscribe(self.identity, lambda state, _: states.put(state))
        deadline = math.inf
        if timeout is not None:
            deadline = time.monotonic() + timeout
        try:
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                try:
                    # Wakes often: Ctrl-C does not interrupt the wait of a queue.
                    state = states.get(timeout=min(left, _AWAKE_SECONDS))
                except queue.Empty:
                    continue
                if reached(state):
                    return state
        finally:
            end()

    def cost(self) -> Bill:
        """Return the bill so far in US dollars.

        Returns
        -------
        Bill
            The cost by work, of start-up and of idle time, the present cost per hour, and the cost
            at on-demand prices.
        """
        return bill(self.state, now())


def until_home(
    cluster: BaseCluster, is_home: Callable[[], bool], *, deadline: float | None = None
) -> bool:
    """Block until results are on this machine, for at most HOME_SECONDS; return whether they are.

    Parameters
    ----------
    cluster
        The cluster of the work.
    is_home
        Returns whether the results are on this machine.
    deadline
        The end of the caller's wait, on the monotonic clock (default: none).
    """
    longest = time.monotonic() + HOME_SECONDS
    if deadline is None or deadline > longest:
        deadline = longest
    while not (home := is_home()) and _may_come(cluster) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return home


def _may_come(cluster: BaseCluster) -> bool:
    """Return whether a process of this machine still copies results from the controller's VM."""
    state = cluster.state
    return bool(state.seat) and (not state.over or commands.in_charge(cluster.directory))


def watch(
    cluster: BaseCluster,
    kind: str | None = None,
    *,
    after: int | None = 0,
    until: Callable[[ClusterState], bool] = lambda state: state.over,
) -> Iterator[Event]:
    """Yield events, old and new ones, until a state ends the watch.

    Parameters
    ----------
    cluster
        The cluster.
    kind
        Only events of this kind or group of kinds.
    after
        Only events with a higher number than this. None: only new events.
    until
        Called with each new state; the watch ends when it returns true.
    """
    arrived: queue.SimpleQueue[tuple[ClusterState, list[Event]]] = queue.SimpleQueue()
    end = follower().subscribe(cluster.identity, lambda state, new: arrived.put((state, new)))
    try:
        # Read after subscribing, so that no event is missed; numbers tell which arrive twice.
        before = cluster.events()
        last = 0
        if before:
            last = before[-1].seq
        seen = after
        if seen is None:
            seen = last
        yield from _fitting(before, kind, seen)
        seen = max(seen, last)
        while True:
            try:
                state, new = arrived.get(timeout=_AWAKE_SECONDS)  # wakes often, for Ctrl-C
            except queue.Empty:
                continue
            if new and state.seq < seen:
                # The journal has lost its end, and new events get the lost numbers.
                seen = new[0].seq - 1
            yield from _fitting(new, kind, seen)
            seen = max([seen, *(event.seq for event in new)])
            if until(state):
                return
    finally:
        end()


def _fitting(events: list[Event], kind: str | None, after: int) -> Iterator[Event]:
    for event in events:
        if event.seq > after and is_of(event, kind):
            yield event


def is_of(event: Event, kind: str | None) -> bool:
    """Return whether an event is of a kind (`vm.revoked`) or group (`vm`). None fits all events."""
    return kind is None or event.kind == kind or event.kind.startswith(f"{kind}.")
