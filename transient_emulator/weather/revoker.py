"""Takes VMs away when the weather says so, on the same path as any preemption."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from ..instances import Record
from ..rest import wire
from .revocations import Transient
from .weather import Weather, gpu_of

_LOG = logging.getLogger(__name__)
_LONGEST, _AGAIN = 3600.0, 1.0


class Preemptible(Protocol):
    """The fleet, as far as it is needed here."""

    def records(self, project: str | None = None) -> list[Record]:
        """All VMs."""
        ...

    def preempt(self, record: Record) -> None:
        """Take one away."""
        ...


class Revoker:
    """Runs the weather's policy. `stir` makes it look again at once."""

    def __init__(self, weather: Weather, fleet: Preemptible) -> None:
        self._weather, self._fleet = weather, fleet
        self._stirred = asyncio.Event()
        self._policy = weather.policy()
        weather.on_change(self._renew)

    def stir(self) -> None:
        """A VM has come, or runs by now."""
        self._stirred.set()

    def _renew(self) -> None:
        self._policy = self._weather.policy()
        self._stirred.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._stirred.clear()
            try:
                wait = self._look()
            except OSError:
                _LOG.exception("a VM cannot be taken away")
                wait = _AGAIN
            try:
                async with asyncio.timeout(wait):
                    await self._stirred.wait()
            except TimeoutError:
                continue

    def _look(self) -> float:
        living = [each for each in self._fleet.records() if each.transient and not (each.ending or each.refusal)]
        records = {each.identity: each for each in living}
        before = repr(self._weather.progress)
        due = self._policy.due([_seen(each) for each in records.values()], time.time())
        if repr(self._weather.progress) != before:
            try:
                self._weather.save()
            except OSError:
                # A full disk must not stop the weather; at worst a row of a file counts twice after a kill -9.
                _LOG.exception("the weather cannot be written")
        for vm in due.take:
            self._fleet.preempt(records[vm.identity])
        # The end of a VM stirs again; what is due is never asked for more often than the loop can turn.
        return _LONGEST if due.again is None else min(max(due.again - time.time(), 0.005), _LONGEST)


def _seen(record: Record) -> Transient:
    started = record.resource.get("lastStartTimestamp") if record.status == "RUNNING" else None
    began = wire.moment(started, "lastStartTimestamp") if started else None
    limited = record.resource["scheduling"]["provisioningModel"] != "SPOT"
    return Transient(record.identity, record.zone, record.name, gpu_of(record), began, limited)
