"""The events of a cluster as they come, in the caller's own thread: for `--wait` and `--follow` in a terminal."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...journal import ClusterState, Event
from .follower import follower

if TYPE_CHECKING:
    from ..handles import Cluster

_AWAKE_SECONDS = 0.5


def watch(
    cluster: Cluster,
    kind: str | None = None,
    *,
    after: int | None = 0,
    until: Callable[[ClusterState], bool] = lambda state: state.over,
) -> Iterator[Event]:
    """Yield events (of one `kind` or family) with a `seq` above `after` (None: only new ones) until `until(state)`."""
    arrived: queue.SimpleQueue[tuple[ClusterState, list[Event]]] = queue.SimpleQueue()
    end = follower().subscribe(cluster.identity, lambda state, new: arrived.put((state, new)))
    try:
        # Read after subscribing, so that nothing falls between; what arrives twice is known by its seq.
        before = cluster.events()
        seen = before[-1].seq if before and after is None else after or 0
        yield from _fitting(before, kind, seen)
        seen = max(seen, before[-1].seq if before else 0)
        while True:
            try:
                state, new = arrived.get(timeout=_AWAKE_SECONDS)  # wakes often, so that Ctrl-C is heard
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
