"""Advice on capacity: how likely a request is to be served, how long Spot VMs live, what they have cost.

The answers agree with the weather: what is sold out is next to unobtainable, and Spot VMs are said to live as long, and
to have been taken away as often, as the revocations that are set let them. In fair weather they are made up, but always
the same for the same question, and follow what is known of the real ones: large requests and large GPUs are harder to
get, zones differ, prices change seldom. Each zone and machine has a scarcity between 0 and 1 from a digest of their
names; all else follows from it.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from transient_magics import catalog

from ..rest import calls, tables, wire
from ..weather.weather import Weather, gpu_called

_LONGEST_HOURS = 24.0
_SOLD_OUT = 0.02  # the obtainability of what every request for is refused
_DAYS = 30  # of history
_PRICE_DAYS = 10  # that a price lasts
_SPOT_SHARE = 0.35  # of the price on demand, about
_MODEL = "instanceProperties.scheduling.provisioningModel"
_MODELS = ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND")


class Advice:
    """`regions/R/advice`, in this weather."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather

    def routes(self) -> list[calls.Route]:
        """What clients can ask for."""
        bases = [f"{base}/regions/{{region}}/advice" for base in (calls.BASE, calls.BASE.replace("/v1/", "/beta/"))]
        asked = {"capacity": self._capacity, "capacityHistory": self._history}
        return [("POST", f"{base}/{what}", answer) for base in bases for what, answer in asked.items()]

    async def _capacity(self, request: web.Request) -> calls.Answer:
        region, body = calls.scope(request).partition("/")[2], await calls.body(request)
        project, size = calls.project(request), body.get("size") or 1
        if not isinstance(size, int) or not 1 <= size <= 1000:
            raise wire.invalid("size", size, "Must be between 1 and 1000.")
        model = ((body.get("instanceProperties") or {}).get("scheduling") or {}).get("provisioningModel") or "STANDARD"
        if model not in _MODELS:
            raise wire.invalid(_MODEL, model, "Unknown value.")
        _refuse_spot_in_version_1(request, model)
        policy = body.get("distributionPolicy") or {}
        shape = policy.get("targetShape") or "ANY_SINGLE_ZONE"
        zones = [zone for zone in tables.ZONES if catalog.region(zone) == region]
        if listed := [wire.last(each.get("zone", "")) for each in policy.get("zones") or ()]:
            for zone in listed:
                if zone not in zones:
                    raise wire.invalid("distributionPolicy.zones", zone, f"It is not in region {region}.")
            zones = listed
        choices = self._choices(project, zones, body.get("instanceFlexibilityPolicy") or {}, model == "SPOT")
        if not choices:
            raise wire.invalid("instanceFlexibilityPolicy.instanceSelections", "", "No zone offers any of them.")
        # The least scarce zone and machine, of the preferred machines first.
        choices.sort()
        best = choices[:1] if shape == "ANY_SINGLE_ZONE" else choices[: max(1, min(size, len(choices)))]
        shares = [size // len(best) + (index < size % len(best)) for index in range(len(best))]
        scarcity = sum(choice[1] for choice in best) / len(best)
        obtainability = _SOLD_OUT if scarcity >= 1 else _obtainability(scarcity, max(shares), model == "SPOT")
        scores: dict[str, Any] = {"obtainability": round(obtainability, 2)}
        if model == "SPOT":
            uptime = min(self._uptime(region, gpu, scarcity) for _, scarcity, _, _, gpu in best)
            scores["estimatedUptime"] = f"{round(uptime)}s"
        shards = [
            {"zone": wire.link(project, "zones", zone), "machineType": machine, "instanceCount": count,
             "provisioningModel": model}
            for (_, _, zone, machine, _), count in zip(best, shares, strict=True)
        ]  # fmt: skip
        return {"recommendations": [{"scores": scores, "shards": shards}]}

    def _choices(
        self, project: str, zones: list[str], policy: dict[str, Any], spot: bool
    ) -> list[tuple[int, float, str, str, str]]:
        """Rank, scarcity (1: sold out), zone, machine type and GPU of all that would do."""
        selections = policy.get("instanceSelections") or {}
        if not selections:
            raise wire.required("instanceFlexibilityPolicy.instanceSelections")
        found: list[tuple[int, float, str, str, str]] = []
        for each in selections.values():
            gpus = _gpus(each)
            for machine in each.get("machineTypes") or ():
                _machine(project, zones, machine)
                for zone in zones:
                    if _offers(project, zone, machine, gpus):
                        gpu = gpu_called(gpus[0] if gpus else "")
                        sold_out = self._weather.sold_out(zone, gpu, spot)
                        scarcity = 1.0 if sold_out else _scarcity(zone, machine, *gpus)
                        found.append((int(each.get("rank") or 0), scarcity, zone, machine, gpu))
        return found

    def _uptime(self, region: str, gpu: str, scarcity: float) -> float:
        """For how many seconds most Spot VMs run."""
        lifetime = self._weather.lifetime(gpu, region)
        return _LONGEST_HOURS * (1 - scarcity) * 3600 if lifetime is None else lifetime

    async def _history(self, request: web.Request) -> calls.Answer:
        region, body = calls.scope(request).partition("/")[2], await calls.body(request)
        project, properties = calls.project(request), body.get("instanceProperties") or {}
        model = (properties.get("scheduling") or {}).get("provisioningModel")
        if model != "SPOT":
            raise wire.invalid(_MODEL, model, "Must be SPOT.")
        _refuse_spot_in_version_1(request, model)
        machine = properties.get("machineType")
        if not machine:
            raise wire.required("instanceProperties.machineType")
        kinds = body.get("types") or []
        if not kinds or set(kinds) - {"PREEMPTION", "PRICE"}:
            raise wire.invalid("types", kinds, "Must be some of PREEMPTION and PRICE.")
        zones = [zone for zone in tables.ZONES if catalog.region(zone) == region]
        place = wire.last((body.get("locationPolicy") or {}).get("location") or region)
        if place != region and place not in zones:
            raise wire.invalid("locationPolicy.location", place, f"It is not in region {region}.")
        machine = wire.last(machine)
        made = _machine(project, zones, machine)
        gpus = _gpus(properties)
        scarcity = _scarcity(place, machine, *gpus)
        where = ("regions", place) if place == region else ("zones", place)
        answer: dict[str, Any] = {"location": wire.link(project, *where), "machineType": machine}
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if "PREEMPTION" in kinds:
            taken = self._weather.revoked_share(gpu_called(gpus[0] if gpus else ""), region)
            rate = 0.1 + 0.6 * scarcity if taken is None else 0.9 * taken
            answer["preemptionHistory"] = [
                {"interval": _interval(day, day + timedelta(days=1)),
                 "preemptionRate": round(min(0.98, rate + 0.2 * _digest(place, machine, str(day))), 3)}
                for day in (today - timedelta(days=ago) for ago in range(_DAYS, 0, -1))
            ]  # fmt: skip
        if "PRICE" in kinds:
            answer["priceHistory"] = _prices(today, _on_demand(made), scarcity, place + machine)
        return answer


def _gpus(properties: dict[str, Any]) -> list[str]:
    """Google's names of the accelerators of a machine."""
    return [wire.last(str(gpu.get("acceleratorType"))) for gpu in properties.get("guestAccelerators") or ()]


def _refuse_spot_in_version_1(request: web.Request, model: str) -> None:
    """As the real one does, though its version 1 has these methods."""
    if model == "SPOT" and "/beta/" not in request.path:
        raise wire.invalid(_MODEL, model, "Not supported in this version of the API.")


def _prices(today: datetime, on_demand: float, scarcity: float, seed: str) -> list[dict[str, Any]]:
    """What the machine cost per hour, in as many steps as prices changed."""
    # Changes fall on the same days whenever one asks.
    first = today - timedelta(days=_DAYS + (today.toordinal() - _DAYS) % _PRICE_DAYS)
    begins = [first + timedelta(days=step) for step in range(0, (today - first).days + 1, _PRICE_DAYS)]
    history: list[dict[str, Any]] = []
    for begin, end in zip(begins, [*begins[1:], today + timedelta(days=1)], strict=True):
        share = _SPOT_SHARE * (0.7 + 0.4 * scarcity + 0.2 * _digest(seed, str(begin.date())))
        nanos = round(on_demand * share * 1e9)
        price = {"currencyCode": "USD", "units": str(nanos // 10**9), "nanos": nanos % 10**9}
        history.append({"interval": _interval(begin, end), "listPrice": price})
    return history


def _on_demand(machine: dict[str, Any]) -> float:
    """Dollars per hour, about: by vCPUs and memory, and by the GPUs that the machine comes with."""
    gpus = sum(each["guestAcceleratorCount"] for each in machine.get("accelerators", ()))
    by_gpus = gpus * (0.56 if machine["name"].startswith("g2") else 3.0)
    return 0.0316 * machine["guestCpus"] + 0.0042 * machine["memoryMb"] / 1024 + by_gpus


def _machine(project: str, zones: list[str], name: str) -> dict[str, Any]:
    """The machine type as the first of these zones that has it tells. ApiError 400 where none does."""
    for zone in zones:
        with suppress(wire.ApiError):
            return tables.machine_type(project, zone, name)
    raise wire.invalid("machineType", name, "The referenced resource does not exist.")


def _offers(project: str, zone: str, machine: str, gpus: list[str]) -> bool:
    """Whether a zone has these GPUs and this machine."""
    try:
        tables.machine_type(project, zone, machine)
    except wire.ApiError:
        return False
    return set(gpus) <= {each["name"] for each in tables.accelerator_types(project, zone)}


def _scarcity(place: str, machine: str, *gpus: str) -> float:
    """Of what is not sold out, from the names; machines with GPUs are scarcer than others."""
    accelerated = bool(gpus) or machine.startswith(("a2", "a3", "g2"))
    return 0.1 * accelerated + 0.3 * _digest(place, machine, *gpus)


def _obtainability(scarcity: float, count: int, spot: bool) -> float:
    """How likely a zone has so many at once."""
    return max(0.01, (1 - scarcity) ** (1 + count / 50)) if spot else max(0.05, (1 - scarcity / 2) ** (1 + count / 100))


def _interval(begin: datetime, end: datetime) -> dict[str, str]:
    return {"startTime": begin.isoformat().replace("+00:00", "Z"), "endTime": end.isoformat().replace("+00:00", "Z")}


def _digest(*names: str) -> float:
    """A number from 0 to 1 that looks drawn by lot."""
    return (zlib.crc32("/".join(names).encode()) % 1000) / 1000
