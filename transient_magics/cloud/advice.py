"""What Compute Engine advises about capacity: how likely a Spot VM is to be had in a zone, and how long most run.

Advice is nice to have and nothing more: projects without access to it, an API that lacks it and one that is slow all
give the same answer, none. The first zone is asked alone, so that a refusal costs one request; nothing is tried twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CloudError
from .calls import Calls

log = logging.getLogger(__name__)

_SECONDS = 6.0  # for all zones together
_MOST_ZONES = 16
_ONCE: dict[str, Any] = {"retry": None, "timeout": 5.0}


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked about: a machine type with one `accelerator` attached (empty: none, or it is part of it)."""

    machine_type: str
    accelerator: str = ""


@dataclass(frozen=True, slots=True)
class Chance:
    """Of Spot VMs in one zone: how likely one is to be had (0 to 1), for how many seconds most run (0: unknown)."""

    obtainability: float
    uptime: float


class CapacityAdvice:
    """Questions about Spot capacity."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls, self._project = calls, project

    async def spot(self, shape: Shape, zones: Sequence[str], count: int = 1) -> dict[str, Chance]:
        """By zone, what is advised about `count` Spot VMs; empty where there is no advice. Never raises CloudError."""
        if self._calls.clients.advice is None or not zones:
            return {}
        first, *others = zones[:_MOST_ZONES]
        found: dict[str, Chance | None] = {}
        try:
            async with asyncio.timeout(_SECONDS):
                found[first] = await self._zone(shape, first, count)
                answers = await asyncio.gather(*(self._other(shape, zone, count) for zone in others))
                found.update(zip(others, answers, strict=True))
        except (CloudError, TimeoutError) as error:
            log.info("no advice on capacity: %s", error)
            return {}
        return {zone: chance for zone, chance in found.items() if chance}

    async def _other(self, shape: Shape, zone: str, count: int) -> Chance | None:
        """Where there is advice at all, a zone about which there is none takes away nothing from the others."""
        try:
            return await self._zone(shape, zone, count)
        except CloudError as error:
            log.info("no advice on %s: %s", zone, error)
            return None

    async def _zone(self, shape: Shape, zone: str, count: int) -> Chance | None:
        """One attempt. None where Compute Engine recommends nothing."""
        advice, body = self._calls.clients.advice, _question(shape, zone, count)
        region = zone.rpartition("-")[0]
        message = {"project": self._project, "region": region, "capacity_advice_request_resource": body}
        async with self._calls.explaining(f"zone {zone}"):
            answer = await self._calls.threaded(lambda: advice.capacity(message, **_ONCE))
        scores = [each.scores for each in answer.recommendations]
        return Chance(scores[0].obtainability, _seconds(scores[0].estimated_uptime)) if scores else None


def _question(shape: Shape, zone: str, count: int) -> dict[str, Any]:
    selection: dict[str, Any] = {"machine_types": [shape.machine_type]}
    if shape.accelerator:
        selection["guest_accelerators"] = [{"accelerator_type": shape.accelerator, "accelerator_count": 1}]
    return {
        "size": count,
        "distribution_policy": {"target_shape": "ANY_SINGLE_ZONE", "zones": [{"zone": f"zones/{zone}"}]},
        "instance_flexibility_policy": {"instance_selections": {"wanted": selection}},
        "instance_properties": {"scheduling": {"provisioning_model": "SPOT"}},
    }


def _seconds(duration: str) -> float:
    """Seconds of a duration as the API writes it (`3600s`); 0 for what is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", duration)
    return float(found[1]) if found else 0.0
