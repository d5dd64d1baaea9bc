"""Shrinking VMs over HTTP: `GET /emulator/v1/shares` tells what each VM has, `POST` changes it.

`{"vms": {ID: PRIORITY, ...}, "cpu": 0.5, "network": 1}` leaves each of these VMs with so much of what is named; with
`"reclaim": 1.5` and `"policy"` in the place of both, all of them together give so many vCPUs (`deflation.policies`).
What cannot be meant is refused whole, with 400 and one sentence.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from transient_magics.errors import DeclarationError, told
from transient_magics.protocol.checks import within
from transient_magics.protocol.machines import LEAST

from ..deflation.policies import POLICIES
from ..instances import Record
from ..rest import wire
from ..rest.calls import answering, body
from .fleet import Fleet
from .shares import share

PATH = "/emulator/v1/shares"
_MOST = 100_000.0  # vCPUs


class SharesApi:
    """The two routes, to be added to an application."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def add_to(self, application: web.Application) -> None:
        """Register the routes."""
        application.router.add_get(PATH, answering(lambda request: self._told()))
        application.router.add_post(PATH, answering(self._change))

    def _told(self) -> dict[str, Any]:
        return {"shares": {each.identity: [share(each).cpu, share(each).network] for each in self._fleet.records()}}

    async def _change(self, request: web.Request) -> dict[str, Any]:
        given = await body(request)
        try:
            vms = given["vms"]
            records = {identity: self._running(identity) for identity in vms}
            priorities = {identity: within(0, 1)(float(each)) for identity, each in vms.items()}
            if "reclaim" in given:
                wanted, policy = within(0, _MOST)(float(given["reclaim"])), given["policy"]
                if policy not in POLICIES:
                    raise ValueError(f"no policy {policy!r:.80}")
                self._fleet.shares.reclaim(wanted, records, priorities, policy)
            else:
                parts = {name: within(LEAST, 1)(float(given[name])) for name in ("cpu", "network") if name in given}
                for record in records.values():
                    self._fleet.shares.ask(record, **parts)
        except DeclarationError as error:
            raise wire.ApiError(400, "invalid", str(error), told(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise wire.ApiError(400, "invalid", f"Invalid value for field 'shares': {error}") from None
        return self._told()

    def _running(self, identity: str) -> Record:
        for record in self._fleet.records():
            if record.identity == identity and record.status in ("STAGING", "RUNNING", "STOPPING"):
                return record
        raise DeclarationError(f"No VM {identity} runs")
