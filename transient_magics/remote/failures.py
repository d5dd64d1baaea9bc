"""Conversion of asyncssh's failures to the errors of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import asyncssh

from ..errors import ConnectionLostError, RemoteError


@contextmanager
def explained(name: str, doing: str) -> Generator[None]:
    """Turn what asyncssh raises inside into ConnectionLostError or RemoteError about the VM `name`.

    A cancellation of the caller is kept: closing a lost connection already fails, and would hide
    it.
    """
    try:
        yield
    except (asyncssh.Error, ConnectionError) as error:
        if _hides_cancellation(error):
            raise asyncio.CancelledError from error
        raise _ours(error, name, doing) from error


def _hides_cancellation(error: BaseException | None) -> bool:
    """Return whether an error was raised while a cancellation was on its way out.

    Task.cancelling() does not help: in Python 3.11 a task group cancels its task when another
    fails, and leaves it so.
    """
    while isinstance(error, (asyncssh.Error, ConnectionError)):
        error = error.__context__
    return isinstance(error, asyncio.CancelledError)


def _ours(error: Exception, name: str, doing: str) -> RemoteError:
    match error:
        case (
            asyncssh.ConnectionLost()
            | asyncssh.SFTPConnectionLost()
            | asyncssh.SFTPNoConnection()
            | ConnectionError()
        ):
            return lost(name, str(error))
        case asyncssh.ChannelOpenError():
            # A channel on a lost connection fails like one that the server refuses; only the text
            # differs.
            if (
                "connection closed" in error.reason.lower()
                or "connection lost" in error.reason.lower()
            ):
                return lost(name, error.reason)
            return RemoteError(f"{name} refused {doing}: {error.reason}", where=name)
        case asyncssh.SFTPError():
            return RemoteError(f"{doing} failed: {error.reason}", where=name)
        case _:
            return RemoteError(f"{doing} failed: {error}", where=name)


def lost(name: str, reason: str) -> ConnectionLostError:
    """Return the error for a lost peer."""
    if reason:
        clause = f": {reason}"
    else:
        clause = ""
    return ConnectionLostError(f"The connection to {name} was lost{clause}")
