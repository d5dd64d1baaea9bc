"""How far this machine's clock is from a server's, as closely as an HTTP answer tells."""

from __future__ import annotations

import time
from datetime import datetime
from email.utils import parsedate_to_datetime

GOOGLE = "https://compute.googleapis.com/"


def offset(url: str = GOOGLE, *, direct: bool = False, timeout: float = 10.0) -> tuple[float, float]:
    """By how many seconds this machine's clock is ahead of the server's: at least, and at most.

    The server's `Date` is in whole seconds, and it was written at some moment between the request and its answer.
    `direct`: past any proxy. Blocks; raises what `requests` raises, and ValueError for an answer without a date.
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
