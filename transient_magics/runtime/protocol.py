"""How the processes of a VM talk where protocol/ does not say it yet: JSON lines, tokens, and what
exit codes mean.

One message is one JSON object on one line. The first message on a connection to the chief carries
the run's token. Nothing here opens a socket.
"""

from __future__ import annotations

import hmac
import json
from typing import Any

LONGEST_LINE = 1 << 20

DONE = 0
"""A role ended as it should; it is not started again."""
FAILED = 65
"""The run cannot go on and train.failed says why; it is not started again."""
STUCK = 75
"""A worker's watchdog ended it; it is started again and gets a new number."""
UNFIT = 69
"""This VM cannot do what it was rented for, as the last line of the log says; the role is not
started again here.
"""


def decode(line: bytes) -> dict[str, Any]:
    """The message on a line. Raises ValueError if it is none."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message


def host_and_port(address: str) -> tuple[str, int]:
    """Split "10.128.0.2:2221"."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def token_fits(given: str, token: str) -> bool:
    """Whether this is the run's token; compared in constant time."""
    return bool(token) and hmac.compare_digest(given.encode(), token.encode())
