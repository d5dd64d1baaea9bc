"""The rates of the VMs' network: each link both ways, between regions, and after deflation.

What a VM sends is shaped at its own end of the cable, by the region of the receiver if the weather
requires it. What it receives is shaped at the bridge's end. Packets with a latency between regions
pass the delay line. All of it requires Linux's network namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from transient_magics import catalog

from ..network.delay_line import DelayLine
from ..rest import wire
from ..weather.weather import Weather
from .host import Host
from .machine import BRIDGE, Machine
from .shares import share, vcpus

_LOG = logging.getLogger(__name__)
# The arguments of `Machine.shape`.
_Shape = tuple[float | None, float | None, frozenset[str], bool]
_UNSHAPED: _Shape = (None, None, frozenset(), False)
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0


class Links:
    """The control loop that keeps the links of all running VMs as the weather requires.

    `wake` and `settle` start another pass. What failed in a pass is retried with a bounded backoff.

    Parameters
    ----------
    weather
        The weather.
    hosts
        Returns the running VMs by id.
    settle_timeout
        Seconds after which `settle` gives up.
    """

    def __init__(
        self,
        weather: Weather,
        hosts: Callable[[], Mapping[str, Host]],
        settle_timeout: float = 10.0,
    ) -> None:
        self._weather = weather
        self._hosts = hosts
        self._settle_timeout = settle_timeout
        self._settling = set[asyncio.Event]()
        self._changed = asyncio.Event()
        # The first pass runs without a change: VMs of an earlier emulator may exist, but its delay
        # line does not.
        self._changed.set()
        # The keys are machines, not VMs: a reset gives a VM a new machine, whose network is not
        # shaped. The value is None after a failure, which can leave a link half shaped.
        self._shaped: dict[Machine, _Shape | None] = {}
        self._line = DelayLine(BRIDGE, self.wake)
        weather.on_change(self.wake)

    def wake(self) -> None:
        """Start a pass: a VM was added or removed, or the required rate of a link has changed."""
        self._changed.set()

    async def settle(self) -> None:
        """Wait until all links are as the weather requires, including that of a new VM.

        After the timeout, log a warning and return.
        """
        settled = asyncio.Event()
        self._settling.add(settled)
        self.wake()
        try:
            async with asyncio.timeout(self._settle_timeout):
                await settled.wait()
        except TimeoutError:
            _LOG.warning("the links are not shaped within %g s", self._settle_timeout)
        finally:
            self._settling.discard(settled)

    async def run(self) -> None:
        """Keep the links up to date until cancelled."""
        backoff = _FIRST_RETRY_SECONDS
        retry_after: float | None = None
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(retry_after):
                        await self._changed.wait()
                self._changed.clear()
                # Only calls of `settle` from before this pass: it can miss the VM of a later call.
                settling = set(self._settling)
                if await self._sync():
                    backoff = _FIRST_RETRY_SECONDS
                    retry_after = None
                    for settled in settling:
                        settled.set()
                else:
                    retry_after = backoff
                    backoff = min(2 * backoff, _LAST_RETRY_SECONDS)
        finally:
            await self._line.stop()

    async def _sync(self) -> bool:
        """Shape all links that are not as the weather requires.

        Return whether none of them failed.
        """
        link = self._weather.settings.link
        complete = True
        try:
            await self._line.keep(link.round_trip if link else None)
        except OSError as error:
            _LOG.warning("cannot start the line between regions, trying again: %s", error)
            complete = False
        hosts = dict(self._hosts())
        machines = {host.machine for host in hosts.values()}
        self._shaped = {
            machine: shape for machine, shape in self._shaped.items() if machine in machines
        }
        for host in hosts.values():
            # A machine that is not on has no network to shape. The boot calls `settle` when there
            # is one.
            if not host.machine.is_on:
                continue
            if not await self._shape(host, self._required(host, hosts)):
                complete = False
        return complete

    async def _shape(self, host: Host, required: _Shape) -> bool:
        """Give a VM's link its required shape. Return False if it has to be tried again."""
        machine = host.machine
        if self._shaped.get(machine, _UNSHAPED) == required:
            return True
        try:
            await asyncio.to_thread(machine.shape, *required)
        except OSError as error:
            self._shaped[machine] = None
            name = host.record.name
            _LOG.warning("cannot shape the link of VM %s, trying again: %s", name, error)
            return False
        self._shaped[machine] = required
        return True

    def _required(self, host: Host, hosts: Mapping[str, Host]) -> _Shape:
        """Return the shape that the weather and the VM's share require."""
        link = self._weather.settings.link
        part = share(host.record).network
        if link is None:
            if part >= 1:
                return _UNSHAPED
            return part * _usual_rate(host), None, frozenset(), False
        rate = part * link.rate
        if link.far is None:
            return rate, None, frozenset(), False
        region = catalog.region(host.record.zone)
        records = [other.record for other in hosts.values()]
        far = frozenset(vm.address for vm in records if catalog.region(vm.zone) != region)
        return rate, part * link.far, far, link.round_trip is not None


def _usual_rate(host: Host) -> float:
    """Return the bits per second that the VM's machine type may send on Compute Engine."""
    family = wire.last(host.record.resource["machineType"]).partition("-")[0]
    return 8 * catalog.egress(family.replace("custom", "n1"), vcpus(host.record))
