"""A provider that wants VMs back and names their number alone: who goes is the customer's choice, for a while.

It wants so many of certain VMs until a moment. Whichever of them goes until then counts, however that comes about; what
is missing at that moment it takes by itself, each as likely as any other. Google's Compute Engine names the VM itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transient_magics.errors import DeclarationError

from ..rest import wire
from . import chance, reading
from .revocations import Due, Policy, Transient

_OPTION = "--reclaim"
_WITHIN = 60.0
"""Seconds that a customer has to choose, where nothing is said."""


@dataclass(frozen=True)
class Reclaim:
    """`number` of these `vms` (their ids; all of them of one `cluster`) are wanted back, `until` then."""

    number: int
    vms: tuple[str, ...]
    until: float
    cluster: str = ""

    def left(self, running: Collection[str]) -> int:
        """How many are wanted still, where these VMs run and are not on their way out."""
        return max(self.number - sum(each not in running for each in self.vms), 0)

    def now(self, running: Collection[str]) -> Reclaim | None:
        """What is left of it, of the VMs that are left; None where that is nothing."""
        left = self.left(running)
        return replace(self, number=left, vms=tuple(each for each in self.vms if each in running)) if left else None

    def to_json(self) -> dict[str, Any]:
        """For the cluster, which is to choose."""
        return {"number": self.number, "vms": list(self.vms), "until": self.until}

    def to_store(self) -> dict[str, Any]:
        """As `read` takes it."""
        return {"said": str(self), "vms": list(self.vms), "cluster": self.cluster}

    def __str__(self) -> str:
        return f"{self.number},until={wire.now(self.until)}"


def read(value: Any) -> Reclaim | None:
    """`{"said": "2,within=60s", "vms": [ids], "cluster": its name}`, or the word `none`. Raises DeclarationError."""
    if value == "none":
        return None
    if not isinstance(value, Mapping):
        raise DeclarationError("A reclaim names the VMs that it is about", where=_OPTION)
    vms, cluster = tuple(map(str, value.get("vms") or ())), str(value.get("cluster") or "")
    said, comma, rest = (part.strip() for part in reading.text(value.get("said"), _OPTION).partition(","))
    key, _, given = rest.partition("=")
    if not said.isdecimal() or not int(said) or (comma and key not in ("within", "until")):
        what = f"'{value['said']}' is no number of VMs"
        raise DeclarationError(what, where=_OPTION, fix="Write 2, or 2,within=60s; or none.")
    if int(said) > len(vms):
        what = f"{cluster or 'The cluster'} has {len(vms)} transient workers that run, and {said} cannot be reclaimed"
        raise DeclarationError(what, where=_OPTION, fix="Write a smaller number.")
    if key == "until":
        return Reclaim(int(said), vms, reading.moment(given, f"{_OPTION} until="), cluster)
    within = reading.duration(given, f"{_OPTION} within=") if comma else _WITHIN
    return Reclaim(int(said), vms, round(time.time() + within, 3), cluster)


class Reclaiming:
    """Takes what is still wanted when the time is over, and else whatever another policy takes."""

    def __init__(self, reclaim: Reclaim, other: Policy, seed: int) -> None:
        self._reclaim, self._other, self._seed = reclaim, other, seed

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """At the end of the time, as many as nobody has chosen."""
        rest = self._other.due(vms, now)
        running = [vm for vm in vms if vm.began is not None and vm not in rest.take]
        left, until = self._reclaim.left({vm.identity for vm in running}), self._reclaim.until
        if not left:
            return rest
        if now < until:
            return Due(rest.take, until if rest.again is None else min(rest.again, until))
        asked = [vm for vm in running if vm.identity in self._reclaim.vms]
        asked.sort(key=lambda vm: chance.uniform(self._seed, "reclaimed", vm.zone, vm.identity))
        return Due((*rest.take, *asked[:left]), rest.again)
