"""Compute Engine's advice on Spot capacity: when it is asked for, and how it ranks the zones of a
GPU.

Asked for once when a controller starts and, after a stockout, again when the last question is a
quarter of an hour old; only about GPUs that may be in several zones, and only for transient VMs.
The answer is an event of the journal, so that the ranking is a pure function of the cluster's
state:

- zones with little capacity come last, however cheap;
- else the declared order holds, but among zones that cost the same (the VM, and its traffic with
  the parameter servers) the one where a request is likelier to be served comes first, then the one
  where fewer VMs were taken away lately, then the one where they run longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from ...catalog import accelerator
from ...journal import ClusterState, events
from ...spec import ClusterSpec

AGAIN_SECONDS = 900.0
"""After a stockout, the least time between two questions about one GPU."""
HOLDS_SECONDS = 3600.0
"""For so long advice, and what was measured, tells something of now."""
_LOW = 0.3  # the obtainability below which a request is more a hope than a plan
_HOUR = 3600.0


def ranked(
    spec: ClusterSpec,
    kind: str,
    zones: tuple[str, ...],
    given: events.ClusterAdvised | None,
    now: float,
) -> tuple[str, ...]:
    """`zones` (best first) in the order in which to ask for Spot VMs with the GPU `kind`, as advice
    has it.
    """
    if given is None or now - given.at > HOLDS_SECONDS or kind != given.accelerator:
        return zones
    if given.preempted:
        usual = fmean(given.preempted.values())
    else:
        usual = 0.0
    costs = [(spec.transfer_prices.get(zone, 0.0), spec.price(kind, zone).hourly) for zone in zones]

    def rank(zone: str) -> tuple[bool, int, float, float, float]:
        obtainability, uptime = given.zones.get(
            zone, (_LOW, 0.0)
        )  # not asked about: neither good nor bad
        tied_with = costs.index(costs[zones.index(zone)])
        # Rounded, or noise in one would outweigh all that comes after it.
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
    """The GPUs about whose zones there is something to ask, and these zones."""
    if spec.provisioning_model == "standard":
        return {}
    kinds = dict.fromkeys(group.accelerator for group in spec.groups if not group.zone)
    several = {
        kind: spec.zones_for(kind) for kind in kinds if accelerator(kind).compute_engine_name
    }
    return {kind: zones for kind, zones in several.items() if len(zones) > 1}


def due(state: ClusterState, asked: Mapping[str, float], now: float) -> list[str]:
    """The GPUs to ask about at `now`; `asked`: when that was done last, by this controller."""
    if state.spec is None or state.phase in ("deleting", "deleted"):
        return []
    sold_out = {
        vm.accelerator: vm.ended_at for vm in state.vms.values() if vm.cause == "stockout"
    }  # the latest
    return [
        kind
        for kind in questions(state.spec)
        if kind not in asked
        or (sold_out.get(kind, 0.0) > asked[kind] and now - asked[kind] >= AGAIN_SECONDS)
    ]


def phrase(given: events.ClusterAdvised, zones: tuple[str, ...]) -> str:
    """What `given` says about the first of `zones` (as ranked), and which zone is likelier to have
    VMs.
    """
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
        taken = f", {given.preempted[zone]:.0%} preempted lately"
    else:
        taken = ""
    return f"{zone} ({obtainability:.0%} likely{taken}{hours})"
