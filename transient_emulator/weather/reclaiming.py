"""A provider that wants some VMs back and leaves the choice to the customer, for a while.

It wants a number of certain VMs back by a moment. Any of these VMs that is gone by then counts,
whatever the reason. At that moment the provider takes the missing ones itself, each with the same
probability. Google's Compute Engine, in contrast, chooses the VM.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transient_magics.errors import DeclarationError

from ..rest import wire
from . import chance, reading
from .revocations import Due, Policy, Transient, earlier

_OPTION = "--reclaim"
# The default time for a customer's choice, in seconds.
_WITHIN = 60.0


@dataclass(frozen=True)
class Reclaim:
    """A request of the provider.

    Attributes
    ----------
    number
        VMs that it wants back.
    vms
        The ids of the VMs among which the customer chooses.
    until
        The moment at which it takes them itself, in seconds since 1970.
    cluster
        The name of the cluster that has the VMs.
    """

    number: int
    vms: tuple[str, ...]
    until: float
    cluster: str = ""

    def left(self, running: Collection[str]) -> int:
        """Return how many VMs are still missing. `running` are ids of VMs that are not ending."""
        gone = sum(vm not in running for vm in self.vms)
        return max(self.number - gone, 0)

    def now(self, running: Collection[str]) -> Reclaim | None:
        """Return the rest of the request, for the remaining VMs; None if it is fulfilled."""
        left = self.left(running)
        if not left:
            return None
        remaining = tuple(vm for vm in self.vms if vm in running)
        return replace(self, number=left, vms=remaining)

    def to_json(self) -> dict[str, Any]:
        """Return the form for the cluster that has to choose."""
        return {"number": self.number, "vms": list(self.vms), "until": self.until}

    def to_store(self) -> dict[str, Any]:
        """Return the form that `read` accepts."""
        return {"said": str(self), "vms": list(self.vms), "cluster": self.cluster}

    def __str__(self) -> str:
        return f"{self.number},until={wire.now(self.until)}"


def read(value: Any) -> Reclaim | None:
    """Read the setting.

    Parameters
    ----------
    value
        `{"said": "2,within=60s", "vms": [ids], "cluster": its name}`, or the word `none`.

    Raises
    ------
    DeclarationError
        For anything else, or a number above that of the VMs.
    """
    if value == "none":
        return None
    if not isinstance(value, Mapping):
        raise DeclarationError("A reclaim must name VMs", where=_OPTION)
    vms = tuple(map(str, value.get("vms") or ()))
    cluster = str(value.get("cluster") or "")
    text = reading.text(value.get("said"), _OPTION)
    count, comma, rest = (part.strip() for part in text.partition(","))
    key, _, given = rest.partition("=")
    if not count.isdecimal() or not int(count) or (comma and key not in ("within", "until")):
        what = f"Invalid number of VMs '{value['said']}'"
        raise DeclarationError(what, where=_OPTION, fix="Write 2, or 2,within=60s; or none.")
    number = int(count)
    if number > len(vms):
        what = (
            f"{number} workers cannot be reclaimed, because {cluster or 'the cluster'} has only "
            f"{len(vms)} running transient workers"
        )
        raise DeclarationError(what, where=_OPTION, fix="Write a smaller number.")
    if key == "until":
        return Reclaim(number, vms, reading.moment(given, f"{_OPTION} until="), cluster)
    within = _WITHIN
    if comma:
        within = reading.duration(given, f"{_OPTION} within=")
    # Times are stored and shown with milliseconds.
    return Reclaim(number, vms, round(time.time() + within, 3), cluster)


class Reclaiming:
    """The policy that takes what is missing at the end, and what another policy revokes."""

    def __init__(self, reclaim: Reclaim, other: Policy, seed: int) -> None:
        self._reclaim = reclaim
        self._other = other
        self._seed = seed

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """Return as many VMs as the customer has not chosen in time, see `Policy`."""
        other = self._other.due(vms, now)
        running = [vm for vm in vms if vm.began is not None and vm not in other.take]
        left = self._reclaim.left({vm.identity for vm in running})
        if not left:
            return other
        if now < self._reclaim.until:
            return Due(other.take, earlier(other.again, self._reclaim.until))
        candidates = [vm for vm in running if vm.identity in self._reclaim.vms]
        candidates.sort(key=self._draw)
        return Due((*other.take, *candidates[:left]), other.again)

    def _draw(self, vm: Transient) -> float:
        return chance.uniform(self._seed, "reclaimed", vm.zone, vm.identity)
