"""Compute Engine's advice on Spot capacity: obtainability, usual uptime, recent preemptions.

Advice is optional: without access to it, with an API that lacks it, and after a timeout, the result
is empty. The first zone is asked alone, so that a refusal costs one request (of each version of the
API). There are no retries. Google's client supports only version 1, so these are plain requests.
The history also contains Spot prices, but neither their unit nor whether attached GPUs are included
is documented, so they are not used.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import CloudError
from .calling.calls import PLAIN, Calls

if TYPE_CHECKING:
    from google.cloud import compute_v1


log = logging.getLogger(__name__)

T = TypeVar("T")

_SECONDS = 6.0  # for all zones together, and again for their history
_LATEST = 7  # records of the history, which has one for each day
_MOST_ZONES = 16
_ONCE: dict[str, Any] = {"timeout": 5.0}
_HOST = "https://compute.googleapis.com"
_VERSIONS = "beta", "v1"
"""Versions of the API in the order of requests: version 1 has these methods, and refuses SPOT
(in 2026).
"""
_NOT_SERVED = (400, 404, 501)


@dataclass(frozen=True, slots=True)
class Shape:
    """A machine type with one `accelerator` attached; '' for none, or for a built-in one."""

    machine_type: str
    accelerator: str = ""


@dataclass(frozen=True, slots=True)
class Chance:
    """The advice on Spot VMs in one zone.

    Attributes
    ----------
    obtainability
        Probability that a VM is available, 0 to 1.
    uptime
        Seconds that most VMs run; 0 if unknown.
    preempted
        Share of preempted VMs among those that ended last week; None if unknown.
    """

    obtainability: float
    uptime: float
    preempted: float | None = None


class CapacityAdvice:
    """Questions about Spot capacity."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls = calls
        self._project = project
        self._versions: tuple[str, ...] = _VERSIONS

    async def spot(self, shape: Shape, zones: Sequence[str], count: int = 1) -> dict[str, Chance]:
        """Return the advice on `count` Spot VMs, by zone; empty without advice.

        Never raises CloudError.
        """
        if not zones:
            return {}
        zones = zones[:_MOST_ZONES]
        found = await self._ask(zones, lambda zone: self._chance(shape, zone, count))
        preempted = await self._ask(
            [zone for zone in zones if zone in found], lambda zone: self._past(shape, zone)
        )
        return {
            zone: replace(chance, preempted=preempted.get(zone)) for zone, chance in found.items()
        }

    async def _ask(
        self, zones: Sequence[str], question: Callable[[str], Awaitable[T | None]]
    ) -> dict[str, T]:
        """Return the answers by zone; empty if the first zone is refused or time is over."""
        found: dict[str, T | None] = {}

        async def other(zone: str) -> None:
            # If there is advice at all, a zone without it does not affect the others.
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
        answers = {zone: found.get(zone) for zone in zones}
        return {zone: answer for zone, answer in answers.items() if answer is not None}

    async def _chance(self, shape: Shape, zone: str, count: int) -> Chance | None:
        """Ask once for a recommendation. None if Compute Engine has none."""
        return await self._answer(zone, "capacity", _question(shape, zone, count), _recommended)

    async def _past(self, shape: Shape, zone: str) -> float | None:
        """Ask once for the preempted share. None if Compute Engine has no history."""
        properties = {
            "machineType": shape.machine_type,
            "scheduling": {"provisioningModel": "SPOT"},
            "guestAccelerators": _attached(shape),
        }
        question = {
            "types": ["PREEMPTION"],
            "instanceProperties": properties,
            "locationPolicy": {"location": f"zones/{zone}"},
        }
        return await self._answer(zone, "capacityHistory", question, _preempted)

    async def _answer(
        self, zone: str, what: str, question: Mapping[str, Any], read: Callable[[Any], T]
    ) -> T:
        """Return the answer of the first API version that accepts the question.

        Only that version is asked afterwards.
        """

        def ask() -> Any:
            from google.api_core import exceptions

            refusal: Exception | None = None
            for version in self._versions:
                place = f"compute/{version}/projects/{self._project}/regions/{zone.rpartition('-')[0]}/advice/{what}"
                answer = self._calls.clients.asking.post(
                    f"{self._calls.endpoint or _HOST}/{place}", json=question, **_ONCE
                )
                if answer.status_code == 200:
                    self._versions = (version,)
                    return answer.json()
                refusal = refusal or exceptions.from_http_response(answer)
                if answer.status_code not in _NOT_SERVED:
                    break
            assert refusal
            raise refusal

        async with self._calls.explaining(f"zone {zone}"):
            answer = await self._calls.threaded(ask)
        try:
            return read(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CloudError(
                "The advice of Compute Engine has an unknown form", where=f"zone {zone}"
            ) from error


def _recommended(answer: Any) -> Chance | None:
    for recommendation in answer.get("recommendations", ())[:1]:
        scores = recommendation["scores"]
        uptime = _seconds(scores.get("estimatedUptime", ""))
        return Chance(float(scores.get("obtainability", 0)), uptime)
    return None


def _preempted(answer: Any) -> float | None:
    records = sorted(
        answer.get("preemptionHistory", ()), key=lambda record: record["interval"]["endTime"]
    )[-_LATEST:]
    if records:
        return fmean(float(record.get("preemptionRate", 0)) for record in records)
    return None


def _question(shape: Shape, zone: str, count: int) -> dict[str, Any]:
    selection = {"machineTypes": [shape.machine_type], "guestAccelerators": _attached(shape)}
    return {
        "size": count,
        "distributionPolicy": {
            "targetShape": "ANY_SINGLE_ZONE",
            "zones": [{"zone": f"zones/{zone}"}],
        },
        "instanceFlexibilityPolicy": {"instanceSelections": {"wanted": selection}},
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
    }


def _attached(shape: Shape) -> list[dict[str, Any]]:
    if shape.accelerator:
        return [{"acceleratorType": shape.accelerator, "acceleratorCount": 1}]
    return []


def _seconds(duration: str) -> float:
    """Return the seconds of a duration in the API's form (`3600s`); 0 for any other text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", duration)
    if found:
        return float(found[1])
    return 0.0


WITHDRAWN = ("OBSOLETE", "DELETED")
"""States in which Compute Engine creates no more VMs."""


def end_of(name: str, status: compute_v1.DeprecationStatus) -> str:
    """Return what Compute Engine announces about a type's end, a clause; '' for nothing."""
    last = min(filter(None, (status.obsolete, status.deleted)), default="").partition("T")[0]
    successor = status.replacement.rpartition("/")[2]
    clauses: list[str] = []
    if status.state not in ("", "ACTIVE"):
        clauses.append(f"is {status.state.lower()}")
    if last:
        clauses.append(f"ends on {last}")
    if successor:
        clauses.append(f"is succeeded by {successor}")
    if not clauses:
        return ""
    return f"{name} {' and '.join(clauses)}"


async def zones_with(calls: Calls, project: str, shape: Shape) -> frozenset[str]:
    """Return the zones that have the GPU of `shape`, or its machine type without a GPU.

    It takes one request for all zones, and tells nothing about capacity. Raises CloudError.
    """
    name = shape.accelerator or shape.machine_type
    if shape.accelerator:
        client: Any = calls.clients.accelerator_types
    else:
        client = calls.clients.machine_types
    message = {"project": project, "filter": f'name = "{name}"', "max_results": 500}

    def all_pages() -> frozenset[str]:
        return frozenset(
            scope.removeprefix("zones/")
            for scope, listed in client.aggregated_list(message, **PLAIN)
            for resource in (
                listed.accelerator_types if shape.accelerator else listed.machine_types
            )
            if resource.name == name and resource.deprecated.state not in WITHDRAWN
        )

    return await calls.call(f"the zones of {name}", all_pages)
