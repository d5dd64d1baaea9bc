"""How agent, chief, workers and controller talk: JSON lines, an assignment, and what exit codes mean.

One message is one JSON object on one line. The first message on a connection to the chief carries the run's token.
Nothing here opens a socket.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import TrainingError
from ..protocol.names import checked_name

LONGEST_LINE = 1 << 20

DONE = 0
"""A role ended as it should; it is not started again."""
FAILED = 65
"""The run cannot go on and train.failed says why; it is not started again."""
STUCK = 75
"""A worker's watchdog ended it; it is started again and gets a new number."""
UNFIT = 69
"""This VM cannot do what it was rented for, as the last line of the log says; the role is not started again here."""


@dataclass(frozen=True)
class Assignment:
    """What the controller asks this VM to be in a run."""

    run: str
    role: str
    name: str
    address: str
    ps: tuple[str, ...]
    chief: str
    index: int = 0
    gpu: str = ""
    """A worker's GPU; empty: none is to be looked for."""

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Assignment:
        """Take an assignment out of a message; says what is wrong with it otherwise."""
        try:
            run, role, name = named(message)
            address, chief, ps = message["address"], message["chief"], message["ps"]
            if isinstance(ps, str) or not isinstance(ps, Sequence) or not ps:
                raise ValueError("ps must be a list of addresses")
            if not all(isinstance(value, str) and value for value in (address, chief, *ps)):
                raise ValueError("address, chief and ps must be text")
            index, gpu = int(message.get("index", 0)), str(message.get("gpu", ""))
            return cls(run, role, name, address, tuple(ps), chief, index, gpu)
        except (KeyError, TypeError, ValueError) as error:
            detail = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise TrainingError(f"not an assignment: {detail}") from error

    def to_dict(self) -> dict[str, Any]:
        """The assignment as it is sent and kept."""
        return {**asdict(self), "ps": list(self.ps)}

    def arguments(self) -> list[str]:
        """The assignment as a role's command line."""
        return ["--assignment", json.dumps(self.to_dict(), separators=(",", ":"))]


def named(message: Mapping[str, Any]) -> tuple[str, str, str]:
    """Run, role and name out of a message. Raises TrainingError where they cannot be."""
    run, role, name = (message.get(key) for key in ("run", "role", "name"))
    if role not in ("ps", "worker"):
        raise TrainingError("not an assignment: role must be ps or worker")
    try:
        return checked_name(run), role, checked_name(name)
    except ValueError as error:
        raise TrainingError(f"not an assignment: {error}") from None


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as a line."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


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


def token_fits(message: Mapping[str, Any], token: str) -> bool:
    """Whether the message carries the run's token; compared in constant time."""
    given = message.get("token")
    return isinstance(given, str) and bool(token) and hmac.compare_digest(given.encode(), token.encode())
