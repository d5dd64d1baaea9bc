"""Decide where to request a VM next: what Compute Engine's refusals imply. Pure.

The rules:

- A stockout closes its zone for that machine: for half a minute at first, then twice as long each
  time, up to a quarter of an hour. VMs that were requested together meet one stockout together. A
  VM that starts to run there opens the zone again.
- An exhausted quota closes the whole region for that machine, for five minutes at first. A quota
  of all regions closes every zone, on any terms. A VM that was requested before opens nothing,
  because it already has its part of the quota.
- A VM under notice holds its quota until it is gone. A refusal for quota until then closes only
  until that VM's end, sends its replacement to no other region, and does not start the time of
  `--fallback`.
- Zones that a stockout named as having capacity are tried first for a while. Then the declared
  order applies again, unless advice on Spot capacity changes it (`ranked`).
- A missing permission or a policy delays only the place in the cluster: for half a minute at
  first, up to a quarter of an hour. Any other refusal delays it for two seconds at first, up to
  five minutes.
- With `--fallback`, a place that got no Spot capacity for that time is requested on demand, with
  Spot as the second choice, unless its GPU is sold as Spot only.

Waits vary by a quarter either way. They depend on the VM's name and not on chance, so that a new
controller waits for the same moments.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from ...catalog import accelerator, region
from ...journal import ClusterState, VmState, events
from ...spec import ClusterSpec, price_kind

STOCKOUT = "stockout"
QUOTA = "quota"
QUOTA_EVERYWHERE = "quota everywhere"
ACCESS = "access"
_HINT_SECONDS = 300.0
# The first wait and the longest, in seconds.
_CLOSED = {STOCKOUT: (30.0, 900.0), QUOTA: (300.0, 3600.0), QUOTA_EVERYWHERE: (300.0, 3600.0)}
_DELAYED = (2.0, 300.0)
_DENIED = (30.0, 900.0)
_TERMS = ("spot", "preemptible", "standard")
_FREED_SECONDS = 5.0
"""Seconds from the end of a VM until its quota can be used again."""
_MOST_HELD_SECONDS = 300.0
"""Seconds from a preemption notice until a remaining VM is deleted (`core.LEAVE_SECONDS`)."""

AGAIN_SECONDS = 900.0
"""Least time, in seconds, between two requests for advice on one GPU after a stockout."""
HOLDS_SECONDS = 3600.0
"""Seconds for which advice and measurements are valid."""
# Obtainability below which a request will probably fail.
_LOW = 0.3
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Offer:
    """Zone and terms (`spot`, `preemptible`, `standard`) of a request."""

    zone: str
    provisioning_model: str


class Capacity:
    """Knowledge about capacity at `now` (seconds since 1970) from the requests so far.

    `advice` is Compute Engine's advice, by GPU.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        vms: Iterable[VmState],
        now: float,
        advice: Mapping[str, events.ClusterAdvised] | None = None,
    ) -> None:
        self._spec = spec
        self._advice = advice or {}
        self._now = now
        self._open_at: dict[tuple[str, str, str], float] = {}
        self._hints: dict[str, tuple[str, ...]] = {}
        self._places: dict[tuple[str, int, str], list[VmState]] = {}
        # Number of refusals in a row, and when the last one was.
        rows: dict[tuple[str, str, str], tuple[int, float]] = {}
        used_up_at: dict[tuple[str, str, str], float] = {}
        vms = list(vms)
        self._noticed = [vm for vm in vms if vm.noticed_at]
        self._place_opens_at: dict[tuple[str, int, str], float] = {}
        for vm in sorted(vms, key=_answered_at):
            trail = self._places.setdefault((vm.role, vm.slot, vm.accelerator), [])
            if vm.running_at:
                own = (price_kind(vm.role, vm.accelerator), vm.provisioning_model, vm.zone)
                # A VM that was requested before the quota was exhausted has its part of that quota.
                if vm.requested_at >= used_up_at.get(own, 0.0):
                    rows.pop(own, None)
                    self._open_at.pop(own, None)
                trail.clear()
            elif vm.state == "refused":
                trail.append(vm)
                self._learn(vm, rows)
                if vm.cause in (QUOTA, QUOTA_EVERYWHERE) and self._quota_is_free_at(vm) is None:
                    used_up_at[
                        price_kind(vm.role, vm.accelerator), vm.provisioning_model, vm.zone
                    ] = vm.ended_at

    def offer(
        self, role: str, slot: int, gpu: str, zones: tuple[str, ...], provisioning_model: str
    ) -> Offer | None:
        """Return what to request now for this place of the cluster; None if it has to wait.

        `zones` are those where it may be.
        """
        trail = self._places.get((role, slot, gpu), [])
        if self._now < self._place_opens_at.get((role, slot, gpu), self._now):
            return None
        others = [vm for vm in trail if vm.cause not in _CLOSED]
        if others:
            last = others[-1]
            bounds = _DENIED if others[-1].cause == ACCESS else _DELAYED
            if self._now < last.ended_at + _wait(bounds, len(others), last.name):
                return None
        if self._falls_back(trail, gpu):
            models = ("standard", provisioning_model)
        else:
            models = (provisioning_model,)
        kind = price_kind(role, gpu)
        hinted = [zone for zone in self._hints.get(kind, ()) if zone in zones]
        for model in models:
            order = zones
            if model != "standard":
                order = ranked(self._spec, gpu, zones, self._advice.get(gpu), self._now)
            for zone in dict.fromkeys([*hinted, *order]):
                if self._now >= self._open_at.get((kind, model, zone), self._now):
                    return Offer(zone, model)
        return None

    def _learn(self, vm: VmState, rows: dict[tuple[str, str, str], tuple[int, float]]) -> None:
        if vm.cause not in _CLOSED:
            return
        kind = price_kind(vm.role, vm.accelerator)
        own = (kind, vm.provisioning_model, vm.zone)
        if (free_at := self._quota_is_free_at(vm)) is not None:
            self._close(vm, free_at)
            self._place_opens_at[vm.role, vm.slot, vm.accelerator] = free_at
            return
        count, since = rows.get(own, (0, vm.requested_at))
        if vm.requested_at >= since:
            count += 1
        rows[own] = count, vm.ended_at
        self._close(vm, vm.ended_at + _wait(_CLOSED[vm.cause], count, vm.zone))
        if vm.hints and self._now - vm.ended_at < _HINT_SECONDS:
            self._hints[kind] = vm.hints

    def _quota_is_free_at(self, refused: VmState) -> float | None:
        """Return when the first VM under notice frees the missing quota.

        None if no VM held it.
        """
        if refused.cause not in (QUOTA, QUOTA_EVERYWHERE):
            return None
        ends: list[float] = []
        for vm in self._noticed:
            end = (vm.ended_at or vm.noticed_at + _MOST_HELD_SECONDS) + _FREED_SECONDS
            same_quota = refused.cause == QUOTA_EVERYWHERE or (
                vm.provisioning_model == refused.provisioning_model
                and region(vm.zone) == region(refused.zone)
            )
            if (
                vm.accelerator == refused.accelerator
                and same_quota
                and vm.noticed_at <= refused.ended_at < end
            ):
                ends.append(end)
        return min(ends, default=None)

    def _close(self, vm: VmState, until: float) -> None:
        """Close the zones or regions of a refused request, for VMs of its kind."""
        kind = price_kind(vm.role, vm.accelerator)
        closed = [vm.zone]
        terms = (vm.provisioning_model,)
        if vm.cause == QUOTA:
            closed += [zone for zone in self._spec.all_zones if region(zone) == region(vm.zone)]
        if vm.cause == QUOTA_EVERYWHERE:
            closed = [*closed, *self._spec.all_zones]
            terms = _TERMS
        for zone, model in itertools.product(closed, terms):
            key = (kind, model, zone)
            self._open_at[key] = max(until, self._open_at.get(key, until))

    def _falls_back(self, trail: list[VmState], gpu: str) -> bool:
        if gpu and accelerator(gpu).spot_only:
            return False
        short = (vm for vm in trail if vm.cause in _CLOSED and self._quota_is_free_at(vm) is None)
        since = next((vm.requested_at for vm in short), None)
        seconds = self._spec.fallback_seconds
        return seconds is not None and since is not None and self._now - since >= seconds


def _answered_at(vm: VmState) -> float:
    """Return when the result of a VM's request arrived.

    Of two requests made together, the later answer is the newer knowledge.
    """
    return vm.running_at or vm.ended_at


def _wait(bounds: tuple[float, float], count: int, name: str) -> float:
    first, longest = bounds
    spread = 0.75 + 0.5 * zlib.crc32(name.encode()) / 2**32
    return min(first * 2 ** min(count - 1, 30), longest) * spread


# ---------------------------------------------------------------- advice on Spot capacity
#
# The controller asks when it starts and, after a stockout, if the last answer is 15 minutes old. It
# asks only about GPUs that may be in several zones, and only for transient VMs. The answer is an
# event of the journal, so that the ranking is a pure function of the cluster's state:
#
# - zones with little capacity come last, however cheap they are;
# - otherwise the declared order holds. Among zones that cost the same (the VM, and its traffic with
#   the parameter servers) the zone with the higher chance of a VM comes first, then the one with
#   fewer recent preemptions, then the one where VMs run longer.


def ranked(
    spec: ClusterSpec,
    kind: str,
    zones: tuple[str, ...],
    given: events.ClusterAdvised | None,
    now: float,
) -> tuple[str, ...]:
    """Return `zones` (best first) in the order in which to request Spot VMs with GPU `kind`.

    The order follows the advice.
    """
    if given is None or now - given.at > HOLDS_SECONDS or kind != given.accelerator:
        return zones
    if given.preempted:
        usual = fmean(given.preempted.values())
    else:
        usual = 0.0
    costs = [(spec.transfer_prices.get(zone, 0.0), spec.price(kind, zone).hourly) for zone in zones]

    def rank(zone: str) -> tuple[bool, int, float, float, float]:
        # Without an answer, a zone is neither good nor bad.
        obtainability, uptime = given.zones.get(zone, (_LOW, 0.0))
        tied_with = costs.index(costs[zones.index(zone)])
        # Rounded, because noise in one value would outweigh all later ones.
        preempted = round(given.preempted.get(zone, usual), 1)
        return (
            obtainability < _LOW,
            tied_with,
            -round(obtainability, 1),
            preempted,
            -round(uptime / _HOUR),
        )

    return tuple(sorted(zones, key=rank))


def questions(spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """Return the GPUs that need advice on their zones, and these zones."""
    if spec.provisioning_model == "standard":
        return {}
    kinds = dict.fromkeys(group.accelerator for group in spec.groups if not group.zone)
    several = {
        kind: spec.zones_for(kind) for kind in kinds if accelerator(kind).compute_engine_name
    }
    return {kind: zones for kind, zones in several.items() if len(zones) > 1}


def due(state: ClusterState, asked: Mapping[str, float], now: float) -> list[str]:
    """Return the GPUs to request advice on at `now`.

    `asked` has the time of this controller's last request.
    """
    if state.spec is None or state.phase in ("deleting", "deleted"):
        return []
    # The latest stockout of each GPU, because later VMs replace earlier ones.
    sold_out = {vm.accelerator: vm.ended_at for vm in state.vms.values() if vm.cause == "stockout"}
    return [
        kind
        for kind in questions(state.spec)
        if kind not in asked
        or (sold_out.get(kind, 0.0) > asked[kind] and now - asked[kind] >= AGAIN_SECONDS)
    ]


def phrase(given: events.ClusterAdvised, zones: tuple[str, ...]) -> str:
    """Return what the advice says about the first of the ranked zones, and the likelier zone."""
    first = zones[0]
    best = max(given.zones, key=lambda zone: (round(given.zones[zone][0], 1), given.zones[zone][1]))
    if (
        best == first
        or first not in given.zones
        or given.zones[first][0] >= round(given.zones[best][0], 1)
    ):
        return f"prefers {_likely(given, first if first in given.zones else best)}"
    return f"prefers {_likely(given, best)}, to {_likely(given, first)}, which is nearer or cheaper"


def _likely(given: events.ClusterAdvised, zone: str) -> str:
    obtainability, uptime = given.zones[zone]
    if uptime:
        hours = f", most run {uptime / _HOUR:.3g} h"
    else:
        hours = ""
    if zone in given.preempted:
        preempted = f", {given.preempted[zone]:.0%} preempted lately"
    else:
        preempted = ""
    return f"{zone} ({obtainability:.0%} likely{preempted}{hours})"
