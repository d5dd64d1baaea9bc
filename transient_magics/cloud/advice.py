"""What Compute Engine advises about capacity: how likely a zone has a Spot VM, how long most run,
and how many were taken away lately.

Advice is nice to have and nothing more: projects without access to it, an API that lacks it and one
that is slow all give the same answer, none. The first zone is asked alone, so that a refusal costs
one request (of each version of the API); nothing is tried twice. The client of Google's that we
have speaks version 1 alone, so these are plain requests. What Spot VMs have cost is in the same
history, but neither its unit nor whether attached GPUs are part of it is documented, so it is not
asked for.
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
"""Of the API, in the order in which they are asked: version 1 has these methods, and refuses SPOT
(as of 2026).
"""
_NOT_SERVED = (400, 404, 501)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked about: a machine type with one `accelerator` attached (empty: none, or it is
    part of it).
    """

    machine_type: str
    accelerator: str = ""


@dataclass(frozen=True, slots=True)
class Chance:
    """Of Spot VMs in one zone: how likely there is one (0 to 1), for how many seconds most run (0:
    unknown), and of those that ended within the last week the share that was preempted (None:
    unknown).
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
        """By zone, what is advised about `count` Spot VMs; empty where there is no advice. Never
        raises CloudError.
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
        """The answers by zone; none where the first zone's is a refusal, or all of them take too
        long.
        """
        found: dict[str, T | None] = {}

        async def other(zone: str) -> None:
            # Where there is advice at all, a zone about which there is none takes away nothing from
            # the others.
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
        return await self._answer(zone, "capacity", _question(shape, zone, count), _recommended)

    async def _past(self, shape: Shape, zone: str) -> float | None:
        """One attempt at the share that was preempted. None where Compute Engine remembers nothing."""
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
        """What the first version of the API says that takes the question; it is the only one asked
        from then on.
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
                "This advice has a form that is not known", where=f"zone {zone}"
            ) from error


def _recommended(answer: Any) -> Chance | None:
    for each in answer.get("recommendations", ())[:1]:
        scores = each["scores"]
        return Chance(
            float(scores.get("obtainability", 0)), _seconds(scores.get("estimatedUptime", ""))
        )
    return None


def _preempted(answer: Any) -> float | None:
    records = sorted(
        answer.get("preemptionHistory", ()), key=lambda each: each["interval"]["endTime"]
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
    """Seconds of a duration as the API writes it (`3600s`); 0 for what is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", duration)
    if found:
        return float(found[1])
    return 0.0


WITHDRAWN = ("OBSOLETE", "DELETED")
"""States in which Compute Engine makes no VM any more."""


def end_of(name: str, said: compute_v1.DeprecationStatus) -> str:
    """What Compute Engine says of the end of a machine type or GPU, a clause; nothing where it says
    nothing.
    """
    last = min(filter(None, (said.obsolete, said.deleted)), default="").partition("T")[0]
    instead = said.replacement.rpartition("/")[2]
    clauses = [
        f"is {said.state.lower()}" if said.state not in ("", "ACTIVE") else "",
        f"ends on {last}" if last else "",
        f"has {instead} for its successor" if instead else "",
    ]
    told = [clause for clause in clauses if clause]
    if told:
        return f"{name} {' and '.join(told)}"
    return ""


async def zones_with(calls: Calls, project: str, shape: Shape) -> frozenset[str]:
    """The zones that have the GPU of `shape`, or its machine type if that has no GPU attached.
    Raises CloudError.

    One request, whatever the number of zones. That a zone has something does not say that it has
    some left.
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
            for each in (listed.accelerator_types if shape.accelerator else listed.machine_types)
            if each.name == name and each.deprecated.state not in WITHDRAWN
        )

    return await calls.call(f"the zones of {name}", all_pages)
