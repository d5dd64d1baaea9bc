"""The revocation of VMs when the weather requires it, on the same path as any preemption."""

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
_LONGEST_WAIT = 3600.0
# What is due is never asked for more often than this.
_SHORTEST_WAIT = 0.005
# Seconds until another try after a failure.
_RETRY = 1.0


class Preemptible(Protocol):
    """The part of the fleet that is needed here."""

    def records(self, project: str | None = None) -> list[Record]:
        """Return all VMs."""
        ...

    def preempt(self, record: Record) -> None:
        """Preempt a VM."""
        ...


class Revoker:
    """The loop that runs the weather's policy."""

    def __init__(self, weather: Weather, fleet: Preemptible) -> None:
        self._weather = weather
        self._fleet = fleet
        self._changed = asyncio.Event()
        self._policy = weather.policy()
        weather.on_change(self._renew)

    def wake(self) -> None:
        """Ask the policy again: a VM was added, or has started to run."""
        self._changed.set()

    def _renew(self) -> None:
        self._policy = self._weather.policy()
        self._changed.set()

    async def run(self) -> None:
        """Revoke VMs until cancelled."""
        while True:
            self._changed.clear()
            try:
                wait = self._revoke_due()
            except OSError:
                _LOG.exception("cannot revoke a VM")
                wait = _RETRY
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _revoke_due(self) -> float:
        """Revoke what is due, and return the seconds until the next question."""
        records = {
            record.identity: record
            for record in self._fleet.records()
            if record.transient and not record.ending and not record.refusal
        }
        before = repr(self._weather.progress)
        vms = [_transient(record) for record in records.values()]
        due = self._policy.due(vms, time.time())
        if repr(self._weather.progress) != before:
            try:
                self._weather.save()
            except OSError:
                # A full disk must not stop the weather. At worst, a row of a file counts twice
                # after a kill -9.
                _LOG.exception("cannot save the weather")
        for vm in due.take:
            self._fleet.preempt(records[vm.identity])
        if due.again is None:
            return _LONGEST_WAIT
        return min(max(due.again - time.time(), _SHORTEST_WAIT), _LONGEST_WAIT)


def _transient(record: Record) -> Transient:
    began = None
    started = record.resource.get("lastStartTimestamp")
    if record.status == "RUNNING" and started:
        began = wire.moment(started, "lastStartTimestamp")
    limited = record.resource["scheduling"]["provisioningModel"] != "SPOT"
    return Transient(record.identity, record.zone, record.name, gpu_of(record), began, limited)
