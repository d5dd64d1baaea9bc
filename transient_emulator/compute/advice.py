"""Advice on capacity: the odds of a request, the lifetimes of Spot VMs, and their prices.

The answers agree with the weather. What is sold out is nearly unobtainable. Spot VMs live as long,
and were preempted as often, as the declared revocations let them. In fair weather the answers are
invented, but the same for the same question. They follow what is known of the real ones: large
requests and large GPUs are harder to get, zones differ, prices change seldom. Each zone and machine
has a scarcity from 0 to 1, a digest of their names; everything else follows from it.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from transient_magics import catalog

from ..rest import calls, tables, wire
from ..weather.weather import Weather, gpu_called

_LONGEST_HOURS = 24.0
# The obtainability where every request is refused.
_SOLD_OUT = 0.02
_HISTORY_DAYS = 30
# Days between two changes of a price.
_PRICE_DAYS = 10
# Spot prices are about this part of the price on demand.
_SPOT_SHARE = 0.35
_DAY = timedelta(days=1)
_MODEL = "instanceProperties.scheduling.provisioningModel"
_MODELS = ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND")


@dataclass(frozen=True, order=True)
class _Choice:
    """A machine type in a zone that would serve a request. The best choice is the smallest.

    Attributes
    ----------
    rank
        The client's preference, 0 first.
    scarcity
        From 0 to 1, where 1 is sold out.
    zone, machine, gpu
        The zone, the machine type, and the catalog's name of the GPU (empty: none).
    """

    rank: int
    scarcity: float
    zone: str
    machine: str
    gpu: str


class Advice:
    """`regions/R/advice`, in this weather."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather

    def routes(self) -> list[calls.Route]:
        """Return the routes, in version 1 and in beta."""
        routes: list[calls.Route] = []
        for base in (calls.BASE, calls.BASE.replace("/v1/", "/beta/")):
            advice = f"{base}/regions/{{region}}/advice"
            routes.append(("POST", f"{advice}/capacity", self._capacity))
            routes.append(("POST", f"{advice}/capacityHistory", self._history))
        return routes

    async def _capacity(self, request: web.Request) -> calls.Answer:
        project = calls.project(request)
        region = calls.scope(request).partition("/")[2]
        body = await calls.body(request)
        size = body.get("size") or 1
        if not isinstance(size, int) or not 1 <= size <= 1000:
            raise wire.invalid("size", size, "Must be between 1 and 1000.")
        scheduling = (body.get("instanceProperties") or {}).get("scheduling") or {}
        model = scheduling.get("provisioningModel") or "STANDARD"
        if model not in _MODELS:
            raise wire.invalid(_MODEL, model, "Unknown value.")
        _refuse_spot_in_version_1(request, model)
        spot = model == "SPOT"
        distribution = body.get("distributionPolicy") or {}
        zones = _zones(region, distribution)
        choices = self._choices(project, zones, body.get("instanceFlexibilityPolicy") or {}, spot)
        if not choices:
            field = "instanceFlexibilityPolicy.instanceSelections"
            raise wire.invalid(field, "", "No zone offers any of them.")
        # The preferred machines come first, and of those the least scarce.
        choices.sort()
        if (distribution.get("targetShape") or "ANY_SINGLE_ZONE") == "ANY_SINGLE_ZONE":
            best = choices[:1]
        else:
            best = choices[:size]
        counts = [size // len(best) + (index < size % len(best)) for index in range(len(best))]
        scarcity = sum(choice.scarcity for choice in best) / len(best)
        obtainability = _obtainability(scarcity, max(counts), spot)
        scores: dict[str, Any] = {"obtainability": round(obtainability, 2)}
        if spot:
            uptimes = [self._uptime(region, choice.gpu, choice.scarcity) for choice in best]
            scores["estimatedUptime"] = f"{round(min(uptimes))}s"
        shards = [
            {
                "zone": wire.link(project, "zones", choice.zone),
                "machineType": choice.machine,
                "instanceCount": count,
                "provisioningModel": model,
            }
            for choice, count in zip(best, counts, strict=True)
        ]
        return {"recommendations": [{"scores": scores, "shards": shards}]}

    def _choices(
        self, project: str, zones: list[str], policy: dict[str, Any], spot: bool
    ) -> list[_Choice]:
        """Return everything that would serve the request."""
        selections = policy.get("instanceSelections") or {}
        if not selections:
            raise wire.required("instanceFlexibilityPolicy.instanceSelections")
        choices: list[_Choice] = []
        for selection in selections.values():
            rank = int(selection.get("rank") or 0)
            gpus = _gpus(selection)
            gpu = gpu_called(gpus[0] if gpus else "")
            for machine in selection.get("machineTypes") or ():
                # An unknown machine type is the client's mistake, not a lack of capacity.
                _machine(project, zones, machine)
                for zone in zones:
                    if not _offers(project, zone, machine, gpus):
                        continue
                    scarcity = _scarcity(zone, machine, *gpus)
                    if self._weather.sold_out(zone, gpu, spot):
                        scarcity = 1.0
                    choices.append(_Choice(rank, scarcity, zone, machine, gpu))
        return choices

    def _uptime(self, region: str, gpu: str, scarcity: float) -> float:
        """Return the seconds for which most Spot VMs run."""
        lifetime = self._weather.lifetime(gpu, region)
        if lifetime is None:
            return _LONGEST_HOURS * (1 - scarcity) * 3600
        return lifetime

    async def _history(self, request: web.Request) -> calls.Answer:
        project = calls.project(request)
        region = calls.scope(request).partition("/")[2]
        body = await calls.body(request)
        properties = body.get("instanceProperties") or {}
        model = (properties.get("scheduling") or {}).get("provisioningModel")
        if model != "SPOT":
            raise wire.invalid(_MODEL, model, "Must be SPOT.")
        _refuse_spot_in_version_1(request, model)
        if not properties.get("machineType"):
            raise wire.required("instanceProperties.machineType")
        kinds = body.get("types") or []
        if not kinds or set(kinds) - {"PREEMPTION", "PRICE"}:
            raise wire.invalid("types", kinds, "Must be some of PREEMPTION and PRICE.")
        zones = _zones_of(region)
        place = wire.last((body.get("locationPolicy") or {}).get("location") or region)
        if place != region and place not in zones:
            raise wire.invalid("locationPolicy.location", place, f"It is not in region {region}.")
        name = wire.last(properties["machineType"])
        machine = _machine(project, zones, name)
        gpus = _gpus(properties)
        scarcity = _scarcity(place, name, *gpus)
        collection = "regions" if place == region else "zones"
        answer: dict[str, Any] = {
            "location": wire.link(project, collection, place),
            "machineType": name,
        }
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if "PREEMPTION" in kinds:
            share = self._weather.revoked_share(gpu_called(gpus[0] if gpus else ""), region)
            # Up to 0.2 more on some days, see `_preemptions`.
            rate = 0.1 + 0.6 * scarcity if share is None else 0.9 * share
            answer["preemptionHistory"] = _preemptions(today, rate, place + "/" + name)
        if "PRICE" in kinds:
            answer["priceHistory"] = _prices(today, _on_demand(machine), scarcity, place + name)
        return answer


def _zones_of(region: str) -> list[str]:
    return [zone for zone in tables.ZONES if catalog.region(zone) == region]


def _zones(region: str, distribution: dict[str, Any]) -> list[str]:
    """Return the zones of the region that the request allows."""
    zones = _zones_of(region)
    listed = [wire.last(entry.get("zone", "")) for entry in distribution.get("zones") or ()]
    for zone in listed:
        if zone not in zones:
            raise wire.invalid("distributionPolicy.zones", zone, f"It is not in region {region}.")
    return listed or zones


def _gpus(properties: dict[str, Any]) -> list[str]:
    """Return Google's names of the accelerators of a machine."""
    accelerators = properties.get("guestAccelerators") or ()
    return [wire.last(str(gpu.get("acceleratorType"))) for gpu in accelerators]


def _refuse_spot_in_version_1(request: web.Request, model: str) -> None:
    # Compute Engine refuses this, although its version 1 has these methods.
    if model == "SPOT" and "/beta/" not in request.path:
        raise wire.invalid(_MODEL, model, "Not supported in this version of the API.")


def _preemptions(today: datetime, rate: float, seed: str) -> list[dict[str, Any]]:
    """Return the share of VMs that were preempted on each day of the history."""
    history: list[dict[str, Any]] = []
    for days_ago in range(_HISTORY_DAYS, 0, -1):
        day = today - timedelta(days=days_ago)
        share = min(0.98, rate + 0.2 * _digest(seed, str(day)))
        history.append({"interval": _interval(day, day + _DAY), "preemptionRate": round(share, 3)})
    return history


def _prices(today: datetime, on_demand: float, scarcity: float, seed: str) -> list[dict[str, Any]]:
    """Return the dollars per hour that the machine cost, one entry per change of the price."""
    # Changes fall on the same days at each request.
    days = _HISTORY_DAYS + (today.toordinal() - _HISTORY_DAYS) % _PRICE_DAYS
    first = today - timedelta(days=days)
    begins = [first + timedelta(days=step) for step in range(0, days + 1, _PRICE_DAYS)]
    ends = [*begins[1:], today + _DAY]
    history: list[dict[str, Any]] = []
    for begin, end in zip(begins, ends, strict=True):
        share = _SPOT_SHARE * (0.7 + 0.4 * scarcity + 0.2 * _digest(seed, str(begin.date())))
        nanos = round(on_demand * share * 1e9)
        price = {"currencyCode": "USD", "units": str(nanos // 10**9), "nanos": nanos % 10**9}
        history.append({"interval": _interval(begin, end), "listPrice": price})
    return history


def _on_demand(machine: dict[str, Any]) -> float:
    """Return the approximate price on demand, in dollars per hour."""
    gpus = sum(gpu["guestAcceleratorCount"] for gpu in machine.get("accelerators", ()))
    gpu_price = 0.56 if machine["name"].startswith("g2") else 3.0
    memory_gb = machine["memoryMb"] / 1024
    return 0.0316 * machine["guestCpus"] + 0.0042 * memory_gb + gpu_price * gpus


def _machine(project: str, zones: list[str], name: str) -> dict[str, Any]:
    """Return the machine type from the first of these zones that has it. Raises ApiError 400."""
    for zone in zones:
        with suppress(wire.ApiError):
            return tables.machine_type(project, zone, name)
    raise wire.invalid("machineType", name, "The referenced resource does not exist.")


def _offers(project: str, zone: str, machine: str, gpus: list[str]) -> bool:
    """Return whether a zone has these GPUs and this machine."""
    try:
        tables.machine_type(project, zone, machine)
    except wire.ApiError:
        return False
    return set(gpus) <= {gpu["name"] for gpu in tables.accelerator_types(project, zone)}


def _scarcity(place: str, machine: str, *gpus: str) -> float:
    """Return the scarcity of what is not sold out. Machines with GPUs are scarcer than others."""
    accelerated = bool(gpus) or machine.startswith(("a2", "a3", "g2"))
    # At most 0.4: only what the weather declares is sold out.
    return 0.1 * accelerated + 0.3 * _digest(place, machine, *gpus)


def _obtainability(scarcity: float, count: int, spot: bool) -> float:
    """Return how likely a zone has `count` VMs at the same time, from 0 to 1."""
    if scarcity >= 1:
        return _SOLD_OUT
    if spot:
        return max(0.01, (1 - scarcity) ** (1 + count / 50))
    return max(0.05, (1 - scarcity / 2) ** (1 + count / 100))


def _interval(begin: datetime, end: datetime) -> dict[str, str]:
    return {"startTime": _utc(begin), "endTime": _utc(end)}


def _utc(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _digest(*names: str) -> float:
    """Return a number from 0 to 1 that looks random, the same for the same names."""
    return (zlib.crc32("/".join(names).encode()) % 1000) / 1000
