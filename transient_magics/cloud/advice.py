"""What Compute Engine advises about capacity: how likely a Spot VM is to be had in a zone, how long most run, and how
many were taken away lately.

Advice is nice to have and nothing more: projects without access to it, an API that lacks it and one that is slow all
give the same answer, none. The first zone is asked alone, so that a refusal costs one request; nothing is tried twice.
What Spot VMs have cost is in the same history, but neither its unit nor whether attached GPUs are part of it is
documented, so it is not asked for.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from ..errors import CloudError
from .calls import Calls

log = logging.getLogger(__name__)

T = TypeVar("T")

_SECONDS = 6.0  # for all zones together, and again for their history
_LATEST = 7  # records of the history, which has one for each day
_MOST_ZONES = 16
_ONCE: dict[str, Any] = {"retry": None, "timeout": 5.0}


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked about: a machine type with one `accelerator` attached (empty: none, or it is part of it)."""

    machine_type: str
    accelerator: str = ""


@dataclass(frozen=True, slots=True)
class Chance:
    """Of Spot VMs in one zone: how likely one is to be had (0 to 1), for how many seconds most run (0: unknown), and
    of those that ended within the last week the share that was preempted (None: unknown)."""

    obtainability: float
    uptime: float
    preempted: float | None = None


class CapacityAdvice:
    """Questions about Spot capacity."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls, self._project = calls, project

    async def spot(self, shape: Shape, zones: Sequence[str], count: int = 1) -> dict[str, Chance]:
        """By zone, what is advised about `count` Spot VMs; empty where there is no advice. Never raises CloudError."""
        if self._calls.clients.advice is None or not zones:
            return {}
        zones = zones[:_MOST_ZONES]
        found = await self._ask(zones, lambda zone: self._chance(shape, zone, count))
        preempted = await self._ask([zone for zone in zones if zone in found], lambda zone: self._past(shape, zone))
        return {zone: replace(chance, preempted=preempted.get(zone)) for zone, chance in found.items()}

    async def _ask(self, zones: Sequence[str], question: Callable[[str], Awaitable[T | None]]) -> dict[str, T]:
        """The answers by zone; none where the first zone's is a refusal, or all of them take too long."""
        found: dict[str, T | None] = {}

        async def other(zone: str) -> None:
            # Where there is advice at all, a zone about which there is none takes away nothing from the others.
            try:
                found[zone] = await question(zone)
            except CloudError as error:
                log.info("no advice on %s: %s", zone, error)

        try:
            async with asyncio.timeout(_SECONDS):
                for first in zones[:1]:
                    found[first] = await question(first)
                await asyncio.gather(*map(other, zones[1:]))
        except (CloudError, TimeoutError) as error:
            log.info("no advice on capacity: %s", error)
            return {}
        return {zone: answer for zone in zones if (answer := found.get(zone)) is not None}

    async def _chance(self, shape: Shape, zone: str, count: int) -> Chance | None:
        """One attempt. None where Compute Engine recommends nothing."""
        message = self._message(zone, capacity_advice_request_resource=_question(shape, zone, count))
        answer = await self._answer(zone, self._calls.clients.advice.capacity, message)
        scores = [each.scores for each in answer.recommendations]
        return Chance(scores[0].obtainability, _seconds(scores[0].estimated_uptime)) if scores else None

    async def _past(self, shape: Shape, zone: str) -> float | None:
        """One attempt at the share that was preempted. None where Compute Engine remembers nothing."""
        properties: dict[str, Any] = {
            "machine_type": shape.machine_type,
            "scheduling": {"provisioning_model": "SPOT"},
            "guest_accelerators": _attached(shape),
        }
        message = self._message(
            zone,
            capacity_history_request_resource={
                "types": ["PREEMPTION"],
                "instance_properties": properties,
                "location_policy": {"location": f"zones/{zone}"},
            },
        )
        answer = await self._answer(zone, self._calls.clients.advice.capacity_history, message)
        records = sorted(answer.preemption_history, key=lambda each: each.interval.end_time)[-_LATEST:]
        return fmean(each.preemption_rate for each in records) if records else None

    def _message(self, zone: str, **resource: dict[str, Any]) -> dict[str, Any]:
        return {"project": self._project, "region": zone.rpartition("-")[0], **resource}

    async def _answer(self, zone: str, method: Callable[..., Any], message: dict[str, Any]) -> Any:
        async with self._calls.explaining(f"zone {zone}"):
            return await self._calls.threaded(lambda: method(message, **_ONCE))


def _question(shape: Shape, zone: str, count: int) -> dict[str, Any]:
    selection = {"machine_types": [shape.machine_type], "guest_accelerators": _attached(shape)}
    return {
        "size": count,
        "distribution_policy": {"target_shape": "ANY_SINGLE_ZONE", "zones": [{"zone": f"zones/{zone}"}]},
        "instance_flexibility_policy": {"instance_selections": {"wanted": selection}},
        "instance_properties": {"scheduling": {"provisioning_model": "SPOT"}},
    }


def _attached(shape: Shape) -> list[dict[str, Any]]:
    return [{"accelerator_type": shape.accelerator, "accelerator_count": 1}] if shape.accelerator else []


def _seconds(duration: str) -> float:
    """Seconds of a duration as the API writes it (`3600s`); 0 for what is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", duration)
    return float(found[1]) if found else 0.0
