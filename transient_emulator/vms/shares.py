"""The shares of processors and network that VMs have, and their enforcement.

A client limits a VM (`limit`, `reclaim`), or the weather does (`--pressure`): the smaller share
applies. The VM's metadata shows a share before it is enforced. `deflation.throttle` enforces the
shares of processors, `links` those of the network. A VM that got fewer vCPUs while it was stopped
has that part of the processors that it had.
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
from ..instances import Record, check_metadata
from ..rest import tables, wire
from ..weather.weather import Weather
from .host import Host
from .machine import OPERATION_THREADS

_LOG = logging.getLogger(__name__)
# Seconds until the limits include new processes of a VM, and until a failure is retried.
_AGAIN = 1.0


def vcpus(record: Record) -> int:
    """Return the vCPUs of the VM's machine type."""
    name = wire.last(record.resource["machineType"])
    return int(tables.machine_type(record.project, record.zone, name)["guestCpus"])


def share(record: Record) -> Share:
    """Return the share that the VM has now."""
    return share_of(record.attributes().get(KEY, ""))


def _processor_share(record: Record) -> float:
    """Return the part that a VM has of the processors with which it was created."""
    created = record.vcpus or vcpus(record)
    return share(record).cpu * min(vcpus(record) / created, 1.0)


class Shares:
    """The control loop that keeps VMs to their shares.

    Parameters
    ----------
    weather
        The weather.
    hosts
        Returns the running VMs by id.
    changed
        Called with a VM whose share has changed, before that is enforced.
    """

    def __init__(
        self,
        weather: Weather,
        hosts: Callable[[], Mapping[str, Host]],
        changed: Callable[[Record], None],
    ) -> None:
        self._weather = weather
        self._hosts = hosts
        self._on_change = changed
        self._changed = asyncio.Event()
        # Chosen at the first limit: most emulators never need one.
        self._throttle: Throttle | None = None
        # The ids of limited VMs.
        self._limited: set[str] = set()
        weather.on_change(self.wake)

    def wake(self) -> None:
        """Start a pass: a VM was added or removed."""
        self._changed.set()

    def limit(self, record: Record, cpu: float | None = None, network: float | None = None) -> None:
        """Limit a VM to shares of its CPU and network, from 0 to 1; None keeps the present one."""
        present = Share(*record.asked)
        record.asked = [
            present.cpu if cpu is None else cpu,
            present.network if network is None else network,
        ]
        self._update_metadata()

    def reclaim(
        self,
        amount: float,
        records: Mapping[str, Record],
        priorities: Mapping[str, float],
        policy: str,
    ) -> None:
        """Reclaim vCPUs from VMs.

        Parameters
        ----------
        amount
            vCPUs to reclaim in total.
        records, priorities
            The VMs and their priorities, by id.
        policy
            A key of `deflation.policies.POLICIES`.

        Raises
        ------
        DeclarationError
            If the VMs cannot give as much. Then nothing changes.
        """
        vms: list[Deflatable] = []
        for identity, record in records.items():
            whole = vcpus(record)
            size = whole * Share(*record.asked).cpu
            vms.append(Deflatable(identity, size, min(whole * LEAST, size), priorities[identity]))
        for identity, given in reclaim(amount, vms, policy).items():
            record = records[identity]
            present = Share(*record.asked)
            record.asked = [max(present.cpu - given / vcpus(record), LEAST), present.network]
        self._update_metadata()

    def close(self) -> None:
        """Remove all limits of processors."""
        for identity in self._limited:
            self._release(identity)

    async def run(self) -> None:
        """Keep VMs to their shares until cancelled."""
        while True:
            self._changed.clear()
            self._update_metadata()
            await asyncio.to_thread(self._enforce)
            try:
                async with asyncio.timeout(self._wait()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _wait(self) -> float | None:
        """Return the seconds until the next pass; None for the next change."""
        if self._limited:
            return _AGAIN
        pressure = self._weather.settings.pressure
        if not pressure or not pressure.until:
            return None
        remaining = pressure.until - time.time()
        if remaining <= 0:
            return None
        return remaining

    def _update_metadata(self) -> None:
        """Write the shares that VMs have from now on into their metadata."""
        pressed = self._pressed()
        for identity, host in self._hosts().items():
            record = host.record
            required = Share(*record.asked).least_of(pressed.get(identity, WHOLE))
            # Compared in the form of the metadata, which is rounded.
            if str(required) == str(share(record)):
                continue
            items = record.resource["metadata"].get("items", ())
            items = [item for item in items if item["key"] != KEY]
            if not required.whole:
                items.append({"key": KEY, "value": str(required)})
            record.resource["metadata"] = check_metadata({"items": items})
            self._on_change(record)
            self.wake()

    def _pressed(self) -> dict[str, Share]:
        """Return the shares that the weather leaves to transient VMs, by their sizes."""
        pressure = self._weather.settings.pressure
        if pressure is None or not pressure.holds(time.time()):
            return {}
        sizes: dict[str, int] = {}
        for host in self._hosts().values():
            if host.record.status == "RUNNING" and host.record.transient:
                sizes[host.record.identity] = vcpus(host.record)
        vms = [Deflatable(identity, size, size * LEAST) for identity, size in sizes.items()]
        given = proportional(pressure.cpus, vms)
        return {
            identity: replace(WHOLE, cpu=max(1 - given[identity] / size, LEAST))
            for identity, size in sizes.items()
        }

    def _enforce(self) -> None:
        """Limit the processors of VMs, and release those that have all of them again."""
        hosts = dict(self._hosts())
        parts: dict[str, float] = {}
        for identity, host in hosts.items():
            part = _processor_share(host.record)
            if part < 1:
                parts[identity] = part
        for identity in self._limited - parts.keys():
            self._release(identity)
        for identity, part in parts.items():
            self._limit_processors(hosts[identity], part)

    def _limit_processors(self, host: Host, part: float) -> None:
        if self._throttle is None:
            self._throttle = throttle.available()
        record = host.record
        cores = min(record.vcpus or vcpus(record), OPERATION_THREADS)
        try:
            self._throttle.limit(record.identity, cores, part, host.machine.processes)
        except OSError:
            # It is just ending, or has just started and comes in the next pass.
            _LOG.warning("cannot limit the processors of VM %s", record.name, exc_info=True)
        self._limited.add(record.identity)

    def _release(self, identity: str) -> None:
        assert self._throttle
        try:
            self._throttle.release(identity)
        except OSError:
            _LOG.warning("cannot release VM %s yet", identity, exc_info=True)
        else:
            # A new set: `close` iterates over the old one.
            self._limited = self._limited - {identity}
