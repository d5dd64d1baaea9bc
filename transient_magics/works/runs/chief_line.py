"""The line to the chief of one run: to the VM where it is, or to one that takes its place
meanwhile.
"""

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

_LOOK_AGAIN_SECONDS = 1.0
_CLOCK_SECONDS = 5.0
_CLOCK_ERROR = 5.0
"""For the question what time it is on a VM, and by how much that may be wrong."""


class ChiefLine:
    """To the chief of the run of this name; `link` gives the link of a VM (None: not there yet)."""

    def __init__(self, run: str, link: Callable[[str], Link | None]) -> None:
        self._run = run
        self._link = link
        self._vm: str | None = None
        self._known = asyncio.Event()

    @property
    def known(self) -> bool:
        """Whether the run has a chief, or had one."""
        return self._known.is_set()

    def leads_to(self, vm: str) -> None:
        """The chief is on this VM from now on."""
        self._vm = vm
        self._known.set()

    async def until_known(self) -> None:
        """Wait until the run has a chief."""
        await self._known.wait()

    def link(self) -> Link:
        """The link of its VM. Raises ConnectionLostError where that is gone."""
        if self._vm:
            link = self._link(self._vm)
        else:
            link = None
        if link is None:
            raise ConnectionLostError("The parameter server's VM is not there")
        return link

    async def ask(self, command: Save | Evaluate) -> None:
        """Have the chief do so now. Raises RemoteError."""
        await self.link().ask(command)

    async def connection(self) -> Connection:
        """The connection to its VM, waiting until that, or a VM that takes its place meanwhile, has
        the run.
        """
        while True:
            if self._vm:
                link = self._link(self._vm)
            else:
                link = None
            if link is None:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                continue
            try:
                async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                    return await link.connection(self._run)
            except TimeoutError:
                continue  # the link may be one of a VM that is gone

    async def lines(self, name: str, offset: int, allowance: Allowance) -> AsyncIterator[bytes]:
        """The lines of a file of the run as they are written, from the byte `offset` on."""
        await self._known.wait()
        path = f"{layout.run_on_vm(self._run)}/{name}"
        async for _, line in follow_across(self.connection, path, offset, allowance=allowance):
            yield line

    async def blocks(self, name: str, offset: int, allowance: Allowance) -> AsyncIterator[bytes]:
        """The same lines, with their newlines and many at a time."""
        await self._known.wait()
        path = f"{layout.run_on_vm(self._run)}/{name}"
        async for block in follow_blocks_across(self.connection, path, offset, allowance=allowance):
            yield metrics.joined(block)

    async def ahead(self) -> float:
        """By how many seconds the VM's clock is ahead of this machine's; 0 where it is right, or
        nobody says.
        """
        ahead = 0.0
        try:
            async with asyncio.timeout(_CLOCK_SECONDS):
                ahead = float(await (await self.connection()).run("date +%s.%N")) - now()
        except (RemoteError, OSError, ValueError) as error:
            log.warning("%s: what time it is on its chief's VM is not known: %s", self._run, error)
        if abs(ahead) < _CLOCK_ERROR or not math.isfinite(ahead):
            return 0.0
        return ahead
