"""Open Compute Engine for a cluster, and settle what must be known before its first request.

These are a free name, a correct local clock, today's prices, the zones with the GPUs, and one image
for all VMs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import AlreadyExistsError, CloudError, CredentialsError
from ..journal import ClusterState, events, now
from ..journal.declared import agreed, was_governed
from ..spec import ClusterSpec
from .host import controller_vm
from .record import Recorder
from .vms import lookup
from .vms.access import Access
from .vms.lookup import choose_image, find_zones, name_conflict, needs_image
from .vms.machines import save_owner, saved_owner
from .works import Works

log = logging.getLogger(__name__)

_FIRST_WAIT = 2.0
_LONGEST_WAIT = 60.0

_WHY = "its history was lost with the removed journal"


class Setup:
    """Setup of the cluster in `directory` at Compute Engine, which is `access`."""

    def __init__(self, directory: Path, recorder: Recorder, access: Access) -> None:
        self._directory = directory
        self._recorder = recorder
        self._access = access
        self._prepared: set[str] = set()

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    async def open(self) -> bool:
        """Retry until Compute Engine is open.

        Returns False if the cluster was deleted before it had any VM.
        """
        access = self._access
        wait = _FIRST_WAIT
        expired = False
        while True:
            try:
                await access.reopen()
                if expired:
                    await access.renew()
                # A VM's own credentials are not the user's.
                if not controller_vm():
                    await save_owner(access.engine, self._directory)
                await self.prepare()
                # On a VM both exist already.
                if self._state.phase != "deleting" and not controller_vm():
                    await access.protect(saved_owner(self._directory))
                    self._recorder.note("public bucket", await access.ensure_bucket())
            except CloudError as error:
                expired = isinstance(error, CredentialsError)
                self._recorder.note("access", str(error))
                if isinstance(error, AlreadyExistsError) and not self._state.vms:
                    # A resource that the cluster needs belongs to another owner.
                    self._recorder.begin_deletion(str(error))
            else:
                self._recorder.note("access", "")
                return True
            # If VMs were ever requested, Compute Engine decides: one may exist whose request
            # counted as refused.
            if self._state.phase == "deleting" and not self._state.vms:
                await self._unprotect()
                self._recorder.record(events.ClusterDeleted())
                return False
            await self._recorder.change(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    async def prepare(self) -> None:
        """Settle each point once, before the first VM.

        If one cannot be settled, the cluster is deleted.
        """
        spec = self._state.spec
        engine = self._access.engine
        if spec is None or self._state.vms or self._state.phase == "deleting":
            return
        if "name" not in self._prepared and (why := await name_conflict(spec, engine)):
            self._recorder.begin_deletion(why)
            return
        self._prepared.add("name")
        # By the clock in the answers so far.
        if why := lookup.clock_error(engine.ahead) or lookup.date_error(spec.declared_at):
            self._recorder.begin_deletion(why)
            return
        if "prices" not in self._prepared and (priced := await lookup.find_prices(spec, engine)):
            self._recorder.record(priced)
            spec = ClusterSpec.from_dict(priced.spec)
        self._prepared.add("prices")
        if "zones" not in self._prepared and (found := await find_zones(spec, engine)):
            self._recorder.record(found)
        self._prepared.add("zones")
        if "image" not in self._prepared and needs_image(spec):
            self._recorder.record(await choose_image(spec, engine))
        self._prepared.add("image")

    async def _unprotect(self) -> None:
        """Delete firewall rules, of which some may exist.

        Rules that cannot be deleted cost nothing and block nothing.
        """
        try:
            await self._access.unprotect()
        except CloudError as error:
            log.warning("%s", error)


# ---------------------------------------------------------------- a journal that was removed
#
# The bill begins with the highest possible cost so far, so that `--max-cost` holds. The work in the
# folder counts as failed: whether it ended is unknown, and it must not be computed and paid twice.


def begin_without_journal(directory: Path, recorder: Recorder, works: Iterable[Works[Any]]) -> None:
    """Write the first lines of a new journal, if the cluster in `directory` had one before."""
    if not was_governed(directory):
        return
    spec = agreed(directory)
    dollars = spec.most_hourly * max(now() - spec.declared_at, 0.0) / 3600
    if spec.max_cost is not None:
        dollars = min(dollars, spec.max_cost)
    recorder.record(events.ClusterForgotten(dollars=dollars))
    for kind in works:
        kind.fail_waiting(_WHY)
    what = f"The journal of {spec.name} was removed, and its history is lost"
    recorder.note(
        "journal removed",
        f"{what}: its bill begins with ${dollars:.2f}, the most that it can have cost",
    )
