"""What the controller knows: the journal and the state that it folds into, with the disk full or
not.

Every fact goes through `record`. When the journal cannot be written, facts are kept, acted upon and
written as soon as there is room; only what would cost money (a new VM) waits, because it could be
forgotten. Troubles are things that the controller goes on trying; each has a source, and the
journal says once that there is one and once that it is over. A source whose sentence changes again
and again writes at most one event a minute after the first few.
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
"""Without a failure, until there is room again: a VM that could not be asked for is asked for every
second.
"""
_JOURNAL = ("journal", "")
_MOST_EVENTS = 5.0
_EVENT_SECONDS = 60.0
"""Events that a source may write without a pause, and the seconds after which it may write another
one.
"""
_NUMBER = re.compile(r"(?<![\w-])\d[\d,.]*(?![\w-])")
"""A number that is a word by itself, not one in a name as `worker-1`."""
_EARLIER = "an earlier controller"
"""The source of what was the trouble when this one began; whether it still is one, this one finds
out.
"""


class Recorder:
    """The one way into the journal. `changed` is set whenever the state is another one."""

    def __init__(
        self, journal: Journal, state: ClusterState, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = state
        self.changed = asyncio.Event()
        self._journal = journal
        self._kept: collections.deque[Event] = collections.deque()
        self._failed = 0.0  # the moment of the last failure
        self._clock = clock
        self._troubles = {(_EARLIER, ""): state.trouble}
        self._recorded = state.trouble
        """The troubles as the last event has them."""
        self._credits: dict[tuple[str, str], tuple[float, float]] = {}
        """Events that a source may write, as of a moment."""
        self._late: set[tuple[str, str]] = set()
        """Sources whose present sentence waits for its event."""

    @property
    def spec(self) -> ClusterSpec:
        """What was declared: the first event of every journal."""
        assert self.state.spec
        return self.state.spec

    @property
    def trouble(self) -> str:
        """All present troubles as one line, empty when there are none."""
        return "; ".join(filter(None, self._troubles.values()))

    def record(self, event: Event) -> bool:
        """Append and fold. False where the event may not be acted upon: a request for a VM that
        could be forgotten.

        Nor one that makes no sense in this state: it is not written, so that nobody meets it again.
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
        """Append; not before what is kept already, of which it was said why."""
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
        """Make the state what these events add up to, and the journal consist of them.

        Return False where the journal could not be written. The state holds all the same.
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
        """Wait until the state is another one, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return
        finally:
            self.changed.clear()

    def begin_deletion(self, reason: str) -> None:
        """Write down that the cluster is to be deleted, unless that was written already."""
        if self.state.phase not in ("deleting", "deleted"):
            self.record(events.ClusterDeleting(reason=reason))

    def note(self, source: str, what: str, *, run: str = "") -> None:
        """Say that `source` (of a run) has a trouble, in one sentence, or none any more (empty).

        `trouble` has the sentence immediately. The journal has it too, unless only its numbers
        differ, or the source has written too many events; then the present sentence follows within
        a minute.
        """
        self._troubles.pop((_EARLIER, ""), None)
        self._troubles[source, run] = what
        self._record_trouble((source, run))

    def forget(self, runs: Collection[str]) -> None:
        """Say no more what was in the way of these runs: of what could not be brought home, say."""
        for source in [source for source in self._troubles if source[1] in runs]:
            del self._troubles[source]
            self._credits.pop(source, None)
            self._late.discard(source)
        self._record_change()

    def record_late_troubles(self) -> None:
        """Write the sentences that came too soon after others of their source, as far as they may
        be written now.
        """
        for source in list(self._late):
            self._record_trouble(source)

    def _record_trouble(self, source: tuple[str, str]) -> None:
        """Write an event about the present sentence of a source, now or as soon as it may write
        again.
        """
        self._late.discard(source)
        # The end of a trouble is written immediately: there are no more ends than begins.
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
        """All present troubles but that of the journal, which is over when an event about it can be
        written.
        """
        return "; ".join(
            what for source, what in self._troubles.items() if what and source != _JOURNAL
        )

    @property
    def _is_recorded(self) -> bool:
        return _NUMBER.sub("", self._to_record) == _NUMBER.sub("", self._recorded)

    def _may_write(self, source: tuple[str, str]) -> bool:
        """Whether a source has an event left; it gets another one each minute."""
        at = self._clock()
        left, since = self._credits.get(source, (_MOST_EVENTS, at))
        left = min(left + (at - since) / _EVENT_SECONDS, _MOST_EVENTS)
        may = left >= 1.0
        self._credits[source] = (left - 1.0 if may else left, at)
        return may

    async def keep_writing(self) -> None:
        """Write what a full disk kept back, and make everything durable once a second. Lives until
        cancelled.
        """
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
                    # Folded already, so only the count goes on.
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
