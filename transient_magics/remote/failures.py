"""From asyncssh's failures to our typed errors, in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncssh

from ..errors import ConnectionLostError, RemoteError

_LOST = (
    asyncssh.ConnectionLost,
    asyncssh.SFTPConnectionLost,
    asyncssh.SFTPNoConnection,
    ConnectionError,
    BrokenPipeError,
)


@contextmanager
def explained(name: str, doing: str) -> Iterator[None]:
    """Turn what asyncssh raises inside into ConnectionLostError or RemoteError about the VM `name`."""
    try:
        yield
    except _LOST as error:
        raise lost(name, str(error)) from error
    except asyncssh.ChannelOpenError as error:
        # A channel on a connection that is gone fails like one that the server refuses; only the text differs.
        if "connection closed" in error.reason.lower() or "connection lost" in error.reason.lower():
            raise lost(name, error.reason) from error
        raise RemoteError(f"{name} refused {doing}: {error.reason}", where=name) from error
    except asyncssh.SFTPError as error:
        raise RemoteError(f"{doing} failed: {error.reason}", where=name) from error
    except asyncssh.Error as error:
        raise RemoteError(f"{doing} failed: {error}", where=name) from error


def lost(name: str, reason: str) -> ConnectionLostError:
    """The error for a peer that went away."""
    said = f": {reason}" if reason else ""
    return ConnectionLostError(f"The connection to {name} was lost{said}")
