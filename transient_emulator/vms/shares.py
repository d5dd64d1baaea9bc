"""What each VM has of its processors and its network, and seeing to it.

Somebody asks for it (`ask`, `reclaim`), or the weather does (`--pressure`): the lesser of both holds. It stands in the
VM's metadata before it is carried out. Processors are kept by `deflation.throttle`, the network by `links`. A VM
that became one of fewer vCPUs while it was stopped has that part of the processors that it had.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from transient_magics.protocol.machines import KEY, LEAST, WHOLE, Share, share_of

from ..deflation import throttle
from ..deflation.policies import Deflatable, proportional, reclaim
from ..deflation.throttle import Throttle
from ..instances import Record, checked_metadata
from ..rest import tables, wire
from ..weather.weather import Weather
from .host import Host
from .machine import OPERATION_THREADS

_LOG = logging.getLogger(__name__)
_AGAIN = 1.0
"""Seconds until new processes of a VM are looked for, and what could not be done is tried again."""


def vcpus(record: Record) -> int:
    """Of the VM's machine type."""
    return int(tables.machine_type(record.project, record.zone, wire.last(record.resource["machineType"]))["guestCpus"])


def share(record: Record) -> Share:
    """What the VM has at this moment."""
    return share_of(record.attributes().get(KEY, ""))


def _processors(record: Record) -> float:
    """Which part it has of the processors with which it was made."""
    made = record.vcpus or vcpus(record)
    return share(record).cpu * min(vcpus(record) / made, 1.0)


class Shares:
    """Keeps the VMs to their shares. `stir` makes it look again; `changed` is called with a VM whose share is another
    now, before that is carried out."""

    def __init__(
        self, weather: Weather, hosts: Callable[[], Mapping[str, Host]], changed: Callable[[Record], None]
    ) -> None:
        self._weather, self._hosts, self._changed = weather, hosts, changed
        self._stirred = asyncio.Event()
        self._means: Throttle | None = None
        self._held: set[str] = set()
        weather.on_change(self.stir)

    def stir(self) -> None:
        """A VM has come or gone."""
        self._stirred.set()

    def ask(self, record: Record, cpu: float | None = None, network: float | None = None) -> None:
        """Have the VM left with these parts; None: as it was asked for before."""
        before = Share(*record.asked)
        record.asked = [before.cpu if cpu is None else cpu, before.network if network is None else network]
        self._renew()

    def reclaim(
        self, wanted: float, records: Mapping[str, Record], priorities: Mapping[str, float], policy: str
    ) -> None:
        """Take `wanted` vCPUs from these VMs, given by their ids. Raises DeclarationError, and then takes nothing."""
        vms: list[Deflatable] = []
        for identity, record in records.items():
            whole = vcpus(record)
            size = whole * Share(*record.asked).cpu
            vms.append(Deflatable(identity, size, min(whole * LEAST, size), priorities[identity]))
        for identity, given in reclaim(wanted, vms, policy).items():
            record = records[identity]
            asked = Share(*record.asked)
            record.asked = [max(asked.cpu - given / vcpus(record), LEAST), asked.network]
        self._renew()

    def close(self) -> None:
        """Hold nobody any more."""
        for identity in self._held:
            self._release(identity)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._stirred.clear()
            self._renew()
            await asyncio.to_thread(self._keep)
            try:
                async with asyncio.timeout(self._wait()):
                    await self._stirred.wait()
            except TimeoutError:
                continue

    def _wait(self) -> float | None:
        pressure = self._weather.settings.pressure
        if self._held:
            return _AGAIN
        left = pressure.until - time.time() if pressure and pressure.until else 0.0
        return left if left > 0 else None

    def _renew(self) -> None:
        """Write down who has what from now on."""
        pressed = self._pressed()
        for identity, host in self._hosts().items():
            record = host.record
            wanted = Share(*record.asked).least_of(pressed.get(identity, WHOLE))
            if str(wanted) != str(share(record)):
                others = [item for item in record.resource["metadata"].get("items", ()) if item["key"] != KEY]
                items = others if wanted.whole else [*others, {"key": KEY, "value": str(wanted)}]
                record.resource["metadata"] = checked_metadata({"items": items})
                self._changed(record)
                self.stir()

    def _pressed(self) -> dict[str, Share]:
        """What the weather leaves to transient VMs, which all give in proportion to what they have."""
        pressure = self._weather.settings.pressure
        if pressure is None or not pressure.holds(time.time()):
            return {}
        running = [each.record for each in self._hosts().values() if each.record.status == "RUNNING"]
        sizes = {each.identity: vcpus(each) for each in running if each.transient}
        vms = [Deflatable(identity, size, size * LEAST) for identity, size in sizes.items()]
        given = proportional(pressure.cpus, vms)
        return {
            identity: replace(WHOLE, cpu=max(1 - given[identity] / size, LEAST)) for identity, size in sizes.items()
        }

    def _keep(self) -> None:
        hosts = dict(self._hosts())
        wanted = {identity: _processors(host.record) for identity, host in hosts.items()}
        for identity in self._held - {each for each, part in wanted.items() if part < 1}:
            self._release(identity)
        for identity, part in wanted.items():
            if part < 1:
                self._hold(hosts[identity], part)

    def _hold(self, host: Host, part: float) -> None:
        self._means = self._means or throttle.available()
        cores = min(host.record.vcpus or vcpus(host.record), OPERATION_THREADS)
        try:
            self._means.hold(host.record.identity, cores, part, host.machine.processes)
        except OSError:
            # It is going at this moment, or has just come and is looked at again.
            _LOG.warning("the processors of VM %s cannot be kept from it", host.record.name, exc_info=True)
        self._held.add(host.record.identity)

    def _release(self, identity: str) -> None:
        assert self._means
        try:
            self._means.release(identity)
        except OSError:
            _LOG.warning("VM %s is not let go of yet", identity, exc_info=True)
        else:
            self._held = self._held - {identity}
