"""State of the controller: the journal and the state that it folds into, also with a full disk.

Every fact goes through `record`. While the journal cannot be written, facts are kept, acted upon,
and written as soon as there is disk space. Only an event that would cost money (a new VM) waits,
because it could be forgotten. Troubles are failures that the controller retries. Each has a source,
and the journal records once that a trouble began and once that it ended. A source whose sentence
keeps changing writes at most one event a minute after the first few.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ..errors import JournalError
from ..journal import ClusterState, Event, Journal, events, fold, now, replay
from ..spec import ClusterSpec

log = logging.getLogger(__name__)

_SYNC_SECONDS = 1.0
_QUIET_SECONDS = 3.0
"""Time without a failure, in seconds, after which there is disk space again.

It exceeds a second, because a VM that could not be requested is requested every second.
"""
_JOURNAL = ("journal", "")
_MOST_EVENTS = 5.0
_EVENT_SECONDS = 60.0
"""Events that a source may write without a pause, and the seconds for each further one."""
_NUMBER = re.compile(r"(?<![\w-])\d[\d,.]*(?![\w-])")
"""Number as a separate word, not one in a name such as `worker-1`."""
_EARLIER = "an earlier controller"
"""Source of the trouble at the start of this controller, which checks whether it persists."""


class Recorder:
    """Only writer of the journal. `changed` is set whenever the state changes."""

    def __init__(
        self, journal: Journal, state: ClusterState, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = state
        self.changed = asyncio.Event()
        self._journal = journal
        self._kept: collections.deque[Event] = collections.deque()
        # Time of the last failure.
        self._failed = 0.0
        self._clock = clock
        self._troubles = {(_EARLIER, ""): state.trouble}
        self._recorded = state.trouble
        """Troubles in the last event."""
        self._credits: dict[tuple[str, str], tuple[float, float]] = {}
        """Events that a source may still write, and when that was computed."""
        self._late: set[tuple[str, str]] = set()
        """Sources whose present sentence waits for its event."""

    @property
    def spec(self) -> ClusterSpec:
        """Declaration in the first event of every journal."""
        assert self.state.spec
        return self.state.spec

    @property
    def trouble(self) -> str:
        """All present troubles as one line, empty if there are none."""
        return "; ".join(filter(None, self._troubles.values()))

    def record(self, event: Event) -> bool:
        """Append the event and fold it. Return whether it may be acted upon.

        False for a request of a VM that could be forgotten, and for an event that is invalid in
        this state. An invalid event is not written, so no later reader meets it.
        """
        if not self._kept:
            event = self._journal.stamped(event)
        else:
            event = replace(event, time=event.time or int(now() * 1e9))
        try:
            state = fold(self.state, event)
        except JournalError as error:
            log.error("%s; it is not written: %r", error, event)
            return False
        if not self._written(event):
            if isinstance(event, events.VmRequested):
                return False
            log.error("%s; %s is kept", self._troubles[_JOURNAL], event.kind)
            event = replace(event, seq=0)
            state = replace(state, seq=self.state.seq)
            self._kept.append(event)
        self.state = state
        self.changed.set()
        return True

    def _written(self, event: Event) -> bool:
        """Append the event and return True, unless that fails or earlier events are still kept."""
        if self._kept:
            return False
        try:
            self._journal.append(event)
        except JournalError as error:
            self._cannot(error)
            return False
        return True

    def _cannot(self, error: JournalError | OSError) -> None:
        self._troubles[_JOURNAL] = str(error)
        self._failed = time.monotonic()

    def rewrite(self, history: Sequence[Event]) -> bool:
        """Replace the journal with these events, and the state with their result.

        Return False if the journal could not be written. The state is replaced anyway.
        """
        self.state = replay(history)
        self._recorded = self.state.trouble
        self.changed.set()
        try:
            self._journal.rewrite(history)
        except JournalError as error:
            self._cannot(error)
            return False
        return True

    async def change(self, seconds: float) -> None:
        """Wait until the state changes, at most this many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return
        finally:
            self.changed.clear()

    def begin_deletion(self, reason: str) -> None:
        """Record that deletion of the cluster is requested, unless that is recorded already."""
        if self.state.phase not in ("deleting", "deleted"):
            self.record(events.ClusterDeleting(reason=reason))

    def note(self, source: str, what: str, *, run: str = "") -> None:
        """Record the trouble of a `source` (of a run), in one sentence, or its end (empty).

        `trouble` has the sentence immediately. The journal has it too, unless only its numbers
        differ, or the source has written too many events; then the present sentence follows within
        a minute.
        """
        self._troubles.pop((_EARLIER, ""), None)
        self._troubles[source, run] = what
        self._record_trouble((source, run))

    def forget(self, runs: Collection[str]) -> None:
        """Drop the troubles of these runs, such as results that could not be copied."""
        for source in [source for source in self._troubles if source[1] in runs]:
            del self._troubles[source]
            self._credits.pop(source, None)
            self._late.discard(source)
        self._record_change()

    def record_late_troubles(self) -> None:
        """Write sentences that the limit of their source delayed, as far as it now allows."""
        for source in list(self._late):
            self._record_trouble(source)

    def _record_trouble(self, source: tuple[str, str]) -> None:
        """Write an event with the present sentence of a source, now or when its limit allows."""
        self._late.discard(source)
        # The end of a trouble is written immediately: there are no more ends than beginnings.
        if self._is_recorded or not self._troubles[source] or self._may_write(source):
            self._record_change()
        else:
            self._late.add(source)

    def _record_change(self) -> None:
        if not self._is_recorded:
            self._recorded = self._to_record
            self.record(events.ControllerTrouble(what=self._recorded))

    @property
    def _to_record(self) -> str:
        """All present troubles but that of the journal.

        That one is over when an event about it can be written.
        """
        return "; ".join(
            what for source, what in self._troubles.items() if what and source != _JOURNAL
        )

    @property
    def _is_recorded(self) -> bool:
        return _NUMBER.sub("", self._to_record) == _NUMBER.sub("", self._recorded)

    def _may_write(self, source: tuple[str, str]) -> bool:
        """Return whether a source has an event left; it gets another one each minute."""
        at = self._clock()
        left, since = self._credits.get(source, (_MOST_EVENTS, at))
        left = min(left + (at - since) / _EVENT_SECONDS, _MOST_EVENTS)
        may = left >= 1.0
        self._credits[source] = (left - 1.0 if may else left, at)
        return may

    async def keep_writing(self) -> None:
        """Write what a full disk delayed, and sync the journal once a second, until cancelled."""
        synced = 0
        while True:
            await asyncio.sleep(_SYNC_SECONDS)
            self.record_late_troubles()
            try:
                if self._journal.hold_name():
                    log.warning(
                        "the journal was removed, and is written again: %s", self._journal.path
                    )
                while self._kept:
                    # The event is folded already, so only the count changes.
                    self.state = replace(self.state, seq=self._journal.append(self._kept[0]).seq)
                    self._kept.popleft()
                if synced != self._journal.seq:
                    synced = self._journal.seq
                    await asyncio.to_thread(self._journal.sync)
            except (JournalError, OSError) as error:
                self._cannot(error)
            else:
                quiet = time.monotonic() - self._failed > _QUIET_SECONDS
                if quiet and self._troubles.pop(_JOURNAL, ""):
                    self.changed.set()
