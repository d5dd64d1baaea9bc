"""The base of the handle of a cluster: the journal of the cluster on this machine, read, followed
and waited for.

It does not import any kind of work, so that all modules of the client can use it.
"""

from __future__ import annotations

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
"""How long a wait for work also waits for its results."""
_LOOK_SECONDS = 0.2
_AWAKE_SECONDS = 0.5


class BaseCluster:
    """One cluster as this machine knows it: the one that has the name when this object is made.

    It stays that cluster when another one takes the name. `Cluster` adds what can be done with a
    cluster.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._identity = Identity.of(name)

    @property
    def identity(self) -> Identity:
        """The cluster's name and id."""
        if not self._identity.id:  # it had no folder before
            self._identity = Identity.of(self.name)
        return self._identity

    @property
    def directory(self) -> Path:
        """The folder with the cluster's journal, runs and logs."""
        return self.identity.directory

    @property
    def followed(self) -> str:
        """Of a cluster that another machine declared: what this machine follows, in a sentence;
        else nothing.
        """
        try:
            return (self.directory / ATTACHED).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    @property
    def state(self) -> ClusterState:
        """What the journal says now; what was declared, until its first line is written."""
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
        """All events, or those of one kind (`vm.revoked`) or family (`vm`)."""
        every = read(self.directory / layout.JOURNAL)
        return [event for event in every if is_of(event, kind)]

    def wait(self, timeout: float | None = None, until: str = "ready") -> ClusterState:
        """Block until the cluster is `ready` or `deleted`. Raises ClusterError when that cannot be
        any more.

        Interrupting the wait changes nothing: the cluster goes on.
        """

        def reached(state: ClusterState) -> bool:
            if until == "ready" and state.phase in ("deleting", "deleted"):
                what = "is deleted" if state.over else "is being deleted"
                raise ClusterError(f"{self.name} {what}: {state.reason or 'asked by the user'}")
            return state.phase == until or state.over

        state = self.follow(reached, timeout)
        if state is None:
            now = self.state
            waiting = ", ".join(f"{vm.name} {vm.state}" for vm in now.living if vm.state != "ready")
            what = f"{self.name} is not {until} after {timeout:.0f} s"
            raise ClusterError(f"{what} ({waiting})" if waiting else what, fix=now.trouble)
        return state

    def follow(
        self, reached: Callable[[ClusterState], bool], timeout: float | None = None
    ) -> ClusterState | None:
        """Block until `reached(state)`; None after `timeout` seconds. What `reached` raises is
        raised here.
        """
        states: queue.SimpleQueue[ClusterState] = queue.SimpleQueue()
        end = follower().subscribe(self.identity, lambda state, _: states.put(state))
        if timeout is None:
            deadline = None
        else:
            deadline = time.monotonic() + timeout
        try:
            while True:
                if deadline is None:
                    left = None
                else:
                    left = deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                try:
                    state = states.get(
                        timeout=min(left or 0.5, 0.5)
                    )  # wakes often, so that Ctrl-C is heard
                except queue.Empty:
                    continue
                if reached(state):
                    return state
        finally:
            end()

    def cost(self) -> Bill:
        """Return its bill so far, in US dollars: by work, start-up and idle time, per hour now, and
        on demand.
        """
        return bill(self.state, now())


def until_home(
    cluster: BaseCluster, is_home: Callable[[], bool], *, deadline: float | None = None
) -> bool:
    """Block until `is_home`, while it may come, for at most HOME_SECONDS; whether it is.

    `deadline`: until when the caller waits in any case, on the monotonic clock.
    """
    longest = time.monotonic() + HOME_SECONDS
    if deadline is None:
        deadline = longest
    else:
        deadline = min(deadline, longest)
    while not (home := is_home()) and _may_come(cluster) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return home


def _may_come(cluster: BaseCluster) -> bool:
    """Whether somebody here brings what a controller elsewhere has; of a cluster that is gone, for
    its last moments.
    """
    state = cluster.state
    return bool(state.seat) and (not state.over or commands.in_charge(cluster.directory))


def watch(
    cluster: BaseCluster,
    kind: str | None = None,
    *,
    after: int | None = 0,
    until: Callable[[ClusterState], bool] = lambda state: state.over,
) -> Iterator[Event]:
    """Yield events (of one `kind` or family) with a `seq` above `after` (None: only new ones) until
    `until(state)`.
    """
    arrived: queue.SimpleQueue[tuple[ClusterState, list[Event]]] = queue.SimpleQueue()
    end = follower().subscribe(cluster.identity, lambda state, new: arrived.put((state, new)))
    try:
        # Read after subscribing, so that nothing falls between; what arrives twice is known by its
        # seq.
        before = cluster.events()
        if before and after is None:
            seen = before[-1].seq
        else:
            seen = after or 0
        yield from _fitting(before, kind, seen)
        seen = max(seen, before[-1].seq if before else 0)
        while True:
            try:
                state, new = arrived.get(
                    timeout=_AWAKE_SECONDS
                )  # wakes often, so that Ctrl-C is heard
            except queue.Empty:
                continue
            if new and state.seq < seen:  # the journal has lost its end, and numbers are given anew
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
    """Whether an event is of a kind (`vm.revoked`) or family (`vm`); where none is named, each is."""
    return kind is None or event.kind == kind or event.kind.startswith(f"{kind}.")
