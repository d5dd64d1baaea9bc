"""What a panel says of how the run that it shows will end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...client import text
from ...journal import RunState

Forecasts = Callable[[str, str], str]
"""How a run of a cluster ends, in words; nothing where that cannot be told. May take seconds."""
_CALM_SECONDS = 15.0
_YOUNG_SECONDS = 5.0
_SHARE = 20.0
"""After a forecast nobody asks for so many times as long as it took."""


class Outlook:
    """Asks for forecasts of one run at a time in threads of their own, and tells `changed` of
    another answer.

    `call` has the follower's thread call something; everything here but the asking happens in that
    thread.
    """

    def __init__(
        self,
        cluster: str,
        forecasts: Forecasts,
        call: Callable[..., None],
        changed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._forecasts = forecasts
        self._call = call
        self._changed = changed
        self._run = ""
        self._words = ""
        self._workers: frozenset[str] = frozenset()
        self._asking = False
        self._next = 0.0
        self._answered = 0.0

    def of(self, run: RunState | None) -> str:
        """What was told of the run last; nothing where it does not train, or not any more."""
        trains = run and run.phase == "running" and not text.is_evaluated(run)
        if run and trains and run.name == self._run:
            return self._words
        return ""

    def follow(self, run: RunState | None) -> None:
        """Ask again where it is time to: now and then, and soon where there are other workers."""
        if run is None or run.phase != "running" or self._asking:
            return
        now = time.monotonic()
        workers = frozenset(run.workers)
        others = workers != self._workers and now >= self._answered + _YOUNG_SECONDS
        if run.name == self._run and now < self._next and not others:
            return
        if run.name != self._run:
            self._run = run.name
            self._words = ""
        self._asking = True
        self._workers = workers
        threading.Thread(
            target=self._ask, args=(run.name,), name="transient-forecast", daemon=True
        ).start()

    def _ask(self, run: str) -> None:
        began = time.monotonic()
        words = ""
        try:
            words = self._forecasts(self._cluster, run)
        finally:
            self._call(self._told, words, time.monotonic() - began)

    def _told(self, words: str, took: float) -> None:
        self._asking = False
        self._answered = time.monotonic()
        self._next = self._answered + max(_CALM_SECONDS if words else _YOUNG_SECONDS, _SHARE * took)
        if words != self._words:
            self._words = words
            self._changed()


def nothing(cluster: str, run: str) -> str:
    """The forecasts of clusters that are only told of."""
    return ""
