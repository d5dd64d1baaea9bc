"""Controller's side of work on a VM: its connection, retries, and reported events.

A VM runs user code, so each line of its files is checked, and one that is refused is counted and
reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TypeVar

from ..errors import ForeignError, RemoteError, TrainingError
from ..protocol.agent_commands import Command
from ..remote import Allowance, Connection, follow_across
from .trust import RejectedEventError, RejectedLines
from .vms.link import Link

log = logging.getLogger(__name__)

TRY_AGAIN_SECONDS = 1.0
_LINK_SECONDS = 2.0
"""Timeout, in seconds, for the connection of a link before the link is looked up again.

Another VM of that name may have another link by then.
"""

_Event = TypeVar("_Event")
_Value = TypeVar("_Value")


class OnVm:
    """Part of the VM `vm` in the work `name`.

    Parameters
    ----------
    link
        Returns the link of a VM, if it has one.
    note
        Takes one sentence about what hinders the work.
    """

    def __init__(
        self, name: str, vm: str, link: Callable[[str], Link | None], note: Callable[[str], object]
    ) -> None:
        self.name = name
        self.vm = vm
        self.link = link
        self.note = note
        self._refusals = RejectedLines(f"{vm}, about {name}", note)
        self._offset = 0
        """Offset behind the last line whose event was handled."""

    async def connection(self) -> Connection:
        """Return the connection to the VM, and wait for it."""
        while True:
            if link := self.link(self.vm):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LINK_SECONDS):
                        return await link.connection()
            else:
                await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def retried(self, action: Callable[[], Awaitable[_Value]]) -> _Value:
        """Retry an action on the VM until it succeeds, despite errors of the network or the disk.

        Raises ForeignError if the VM reports more than the limit, which no retry changes.
        """
        while True:
            try:
                return await action()
            except ForeignError:
                raise
            except (
                RemoteError,
                TrainingError,
                OSError,
            ) as error:
                # TrainingError: the agent refuses, for example after a preemption notice.
                log.warning("%s on %s: %s", self.name, self.vm, error)
                await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def follow(
        self,
        path: str,
        parse: Callable[[bytes], _Event],
        take: Callable[[_Event], Awaitable[bool]],
        allowance: Allowance,
    ) -> None:
        """Read the events in a file of the VM as they arrive, each once, also over several calls.

        Parameters
        ----------
        parse
            Returns the event on a line. Raises ValueError if the line is refused.
        take
            Takes an event; True ends this. Raises RefusedError for one that does not fit those
            before.

        Raises
        ------
        ForeignError
            The file is longer than the allowance.
        RemoteError
            The file cannot be followed.
        """
        lines = follow_across(self.connection, path, self._offset, allowance=allowance)
        async with aclosing(lines):
            async for offset, line in lines:
                try:
                    event = parse(line)
                except ValueError as error:
                    self._refusals.add(line, error)
                else:
                    try:
                        if await take(event):
                            return
                    except RejectedEventError as error:
                        self._refusals.add(line, error)
                self._offset = offset


async def ask(link: Link | None, command: Command) -> bool:
    """Send a command to a VM's agent, and return whether that succeeded.

    If not, the caller sends it again later.
    """
    if link is None:
        return False
    try:
        await link.ask(command)
    except (RemoteError, TrainingError, OSError) as error:
        log.info("%s: %s", link.vm, error)
        return False
    return True


def is_plain(path: Path) -> bool:
    """Return whether `path` is a regular file. Targets of links are never sent to a VM."""
    return path.is_file() and not path.is_symlink()


def files_below(folder: Path, names: Iterable[str]) -> dict[str, bytes | Path]:
    """Return the regular files in these folders of `folder`, by their paths relative to it."""
    found: dict[str, bytes | Path] = {}
    for name in names:
        for path in sorted((folder / name).rglob("*")):
            if is_plain(path):
                found[str(path.relative_to(folder))] = path
    return found
