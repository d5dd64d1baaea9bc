"""Shrinking VMs over HTTP: `GET /emulator/v1/shares` returns what each VM has, `POST` changes it.

`{"vms": {ID: PRIORITY, ...}, "cpu": 0.5, "network": 1}` limits each of these VMs to the given
shares. With `"reclaim": 1.5` and `"policy"` instead, the VMs together give that many vCPUs
(`deflation.policies`). An invalid change is refused as a whole, with 400 and one sentence.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from transient_magics.errors import DeclarationError, to_message
from transient_magics.protocol.checks import within
from transient_magics.protocol.machines import LEAST

from ..deflation.policies import POLICIES
from ..instances import Record
from ..rest import wire
from ..rest.calls import answering, body
from .fleet import Fleet
from .shares import share

PATH = "/emulator/v1/shares"
_MOST_VCPUS = 100_000.0
# The states in which a VM has processes.
_RUNNING = ("STAGING", "RUNNING", "STOPPING")


class SharesApi:
    """The two routes of shares."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def add_to(self, application: web.Application) -> None:
        """Register the routes."""
        application.router.add_get(PATH, answering(lambda request: self._shares()))
        application.router.add_post(PATH, answering(self._change))

    def _shares(self) -> dict[str, Any]:
        found = {vm.identity: share(vm) for vm in self._fleet.records()}
        return {"shares": {identity: [vm.cpu, vm.network] for identity, vm in found.items()}}

    async def _change(self, request: web.Request) -> dict[str, Any]:
        change = await body(request)
        try:
            self._apply(change)
        except DeclarationError as error:
            raise wire.ApiError(400, "invalid", str(error), to_message(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"Invalid value for field 'shares': {error}"
            raise wire.ApiError(400, "invalid", message) from None
        return self._shares()

    def _apply(self, change: dict[str, Any]) -> None:
        # Everything is checked before the first VM changes.
        records: dict[str, Record] = {}
        priorities: dict[str, float] = {}
        for identity, priority in change["vms"].items():
            records[identity] = self._running(identity)
            priorities[identity] = within(0, 1)(float(priority))
        if "reclaim" in change:
            amount = within(0, _MOST_VCPUS)(float(change["reclaim"]))
            policy = change["policy"]
            if policy not in POLICIES:
                raise ValueError(f"unknown policy {policy!r:.80}")
            self._fleet.shares.reclaim(amount, records, priorities, policy)
            return
        parts: dict[str, float] = {}
        for name in ("cpu", "network"):
            if name in change:
                parts[name] = within(LEAST, 1)(float(change[name]))
        for record in records.values():
            self._fleet.shares.limit(record, **parts)

    def _running(self, identity: str) -> Record:
        for record in self._fleet.records():
            if record.identity == identity and record.status in _RUNNING:
                return record
        raise DeclarationError(f"VM {identity} is not running")
