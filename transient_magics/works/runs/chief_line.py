"""The connection to the chief of one run, on its VM or on one that replaces it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable

from ...controller.vms.link import Link
from ...errors import ConnectionLostError, RemoteError
from ...journal import metrics, now
from ...protocol import layout
from ...protocol.agent_commands import Evaluate, Save
from ...remote import Allowance, Connection, follow_across, follow_blocks_across

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_CLOCK_SECONDS = 5.0
_CLOCK_ERROR = 5.0
"""The limit of the question for a VM's time, and the error that is tolerated, in seconds."""


class ChiefLine:
    """The connection to the chief of a run.

    Parameters
    ----------
    run
        The name of the run.
    link
        Returns the link of a VM; None: not there yet.
    """

    def __init__(self, run: str, link: Callable[[str], Link | None]) -> None:
        self._run = run
        self._link = link
        self._vm: str | None = None
        self._has_chief = asyncio.Event()

    @property
    def has_chief(self) -> bool:
        """Whether the run has or had a chief."""
        return self._has_chief.is_set()

    def leads_to(self, vm: str) -> None:
        """Connect to this VM from now on."""
        self._vm = vm
        self._has_chief.set()

    async def until_known(self) -> None:
        """Wait until the run has a chief."""
        await self._has_chief.wait()

    def link(self) -> Link:
        """Return the link of the chief's VM. Raises ConnectionLostError if that is gone."""
        link = self._link(self._vm) if self._vm else None
        if link is None:
            raise ConnectionLostError(
                "The parameter server has no VM; the controller waits for a new one"
            )
        return link

    async def ask(self, command: Save | Evaluate) -> None:
        """Send the chief a command. Raises RemoteError."""
        await self.link().ask(command)

    async def connection(self) -> Connection:
        """Return the connection to the VM with the chief, which may be another VM than before.

        It waits until such a VM has the run.
        """
        while True:
            link = self._link(self._vm) if self._vm else None
            if link is None:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                async with asyncio.timeout(_RETRY_SECONDS):
                    return await link.connection(self._run)
            except TimeoutError:
                # The link may be that of a VM that is gone.
                continue

    async def lines(self, name: str, offset: int, allowance: Allowance) -> AsyncIterator[bytes]:
        """Yield the lines of a file of the run as they are written, from byte `offset` on."""
        await self._has_chief.wait()
        path = f"{layout.run_on_vm(self._run)}/{name}"
        async for _, line in follow_across(self.connection, path, offset, allowance=allowance):
            yield line

    async def blocks(self, name: str, offset: int, allowance: Allowance) -> AsyncIterator[bytes]:
        """Yield the same lines, with their newlines and many at a time."""
        await self._has_chief.wait()
        path = f"{layout.run_on_vm(self._run)}/{name}"
        async for block in follow_blocks_across(self.connection, path, offset, allowance=allowance):
            yield metrics.joined(block)

    async def ahead(self) -> float:
        """Return how many seconds the VM's clock is ahead; 0 if it is right or unknown."""
        ahead = 0.0
        try:
            async with asyncio.timeout(_CLOCK_SECONDS):
                ahead = float(await (await self.connection()).run("date +%s.%N")) - now()
        except (RemoteError, OSError, ValueError) as error:
            log.warning("%s: the time of its chief's VM is unknown: %s", self._run, error)
        if abs(ahead) < _CLOCK_ERROR or not math.isfinite(ahead):
            return 0.0
        return ahead
