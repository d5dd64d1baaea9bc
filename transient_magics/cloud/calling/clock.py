"""How far this machine's clock is from a server's, as closely as an HTTP answer tells."""

from __future__ import annotations

import time
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ...journal.steady import counted, now

GOOGLE = "https://compute.googleapis.com/"
_HEARD = 4


class Heard:
    """How far this machine's clock is from a server's, by the dates of the answers that come
    anyway.
    """

    def __init__(self) -> None:
        self._answers: tuple[tuple[float, float], ...] = ()
        """By how many seconds the clock that counts was ahead of the server's: at least, and at
        most. Replaced as a whole, for it is read in one thread while answers come in others.
        """

    def listen(self, session: Any) -> Any:
        """The session of `requests`, whose answers are heard from now on."""
        session.hooks["response"].append(self._hear)
        return session

    @property
    def ahead(self) -> float:
        """By how many seconds this machine's clock is ahead (negative: behind), at least; 0 where
        they may agree.

        Of the latest answers the one counts that says least: this machine may have slept while it
        waited for one.
        """
        shown = now() - counted()
        heard = tuple(self._answers)  # in one step: other threads hear answers meanwhile
        offsets = [max(0.0, least + shown) + min(0.0, most + shown) for least, most in heard]
        return min(offsets, key=abs, default=0.0)

    def _hear(self, response: Any, *_: Any, **__: Any) -> None:
        after = counted()
        try:
            written = _moment(response.headers.get("Date", ""))
        except ValueError:
            return
        ahead = after - response.elapsed.total_seconds() - (written + 1.0), after - written
        self._answers = (*self._answers, ahead)[-_HEARD:]


def offset(
    url: str = GOOGLE, *, direct: bool = False, timeout: float = 10.0
) -> tuple[float, float]:
    """By how many seconds this machine's clock is ahead of the server's: at least, and at most.

    The server's `Date` is in whole seconds, and it was written at some moment between the request
    and its answer. `direct`: past any proxy. Blocks; raises what `requests` raises, and ValueError
    for an answer without a date.
    """
    from requests import Session

    with Session() as session:
        session.trust_env = not direct
        before = time.time()
        answer = session.get(url, timeout=timeout, allow_redirects=False, stream=True)
        after = time.time()
    written = _moment(answer.headers.get("Date", ""))
    return before - (written + 1.0), after - written


def _moment(text: str) -> float:
    try:
        found: datetime = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        raise ValueError(f"the answer has no date: {text!r}") from None
    return found.timestamp()
