"""How fast the VMs' network is: each VM's link both ways, between regions, and what is left to one that was deflated.

What a VM sends is shaped at its own end of the cable (by the region of the receiver, where the weather says so), what
it receives at the bridge's end. What takes its time between regions goes through the delay line. Only Linux's network
namespaces allow it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ... import catalog
from ..network.delay_line import DelayLine
from ..rest import wire
from ..weather.weather import Weather
from .host import Host
from .machine import BRIDGE
from .shares import share, vcpus

_LOG = logging.getLogger(__name__)
_Shape = tuple[float | None, float | None, frozenset[str], bool]
_UNSHAPED: _Shape = (None, None, frozenset(), False)
_PATIENCE = 10.0


class Links:
    """Keeps the links of all VMs that run as the weather says. `stir` and `settle` make it look again."""

    def __init__(self, weather: Weather, hosts: Callable[[], Mapping[str, Host]]) -> None:
        self._weather, self._hosts = weather, hosts
        self._looked = list[asyncio.Event]()
        self._stirred = asyncio.Event()
        self._stirred.set()  # an earlier emulator's VMs may be there, and its line is not
        self._shaped: dict[str, _Shape] = {}
        self._line = DelayLine(BRIDGE, self.stir)
        weather.on_change(self.stir)

    def stir(self) -> None:
        """A VM has come or gone."""
        self._stirred.set()

    async def settle(self) -> None:
        """A VM has come: wait until its link and all to it are as the weather says, for some seconds at most."""
        looked = asyncio.Event()
        self._looked.append(looked)
        self.stir()
        try:
            async with asyncio.timeout(_PATIENCE):
                await looked.wait()
        except TimeoutError:
            _LOG.warning("the links are not shaped within %g s", _PATIENCE)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                waiting, self._looked = self._looked, []
                await self._look()
                for each in waiting:
                    each.set()
        finally:
            await self._line.stop()

    async def _look(self) -> None:
        link = self._weather.settings.link
        try:
            await self._line.keep(link.round_trip if link else None)
        except OSError:
            _LOG.warning("the line between regions cannot be started", exc_info=True)
        hosts = dict(self._hosts())
        self._shaped = {identity: shape for identity, shape in self._shaped.items() if identity in hosts}
        for identity, host in hosts.items():
            wanted = self._wanted(host, hosts)
            if wanted != self._shaped.get(identity, _UNSHAPED):
                try:
                    await asyncio.to_thread(host.machine.shape, *wanted)
                except OSError:
                    # It is going at this moment, or has just come and is looked at again.
                    _LOG.warning("the link of VM %s cannot be shaped", host.record.name, exc_info=True)
                else:
                    self._shaped[identity] = wanted

    def _wanted(self, host: Host, hosts: Mapping[str, Host]) -> _Shape:
        link, part = self._weather.settings.link, share(host.record).network
        if link is None:
            return _UNSHAPED if part >= 1 else (part * _usual_rate(host), None, frozenset(), False)
        rate = part * link.rate
        if link.far is None:
            return rate, None, frozenset(), False
        own = catalog.region(host.record.zone)
        far = (each.record.address for each in hosts.values() if catalog.region(each.record.zone) != own)
        return rate, part * link.far, frozenset(far), link.round_trip is not None


def _usual_rate(host: Host) -> float:
    """Bits per second that the VM's machine type may send on Compute Engine, where the weather says nothing."""
    family = wire.last(host.record.resource["machineType"]).partition("-")[0]
    return 8 * catalog.egress(family.replace("custom", "n1"), vcpus(host.record))
