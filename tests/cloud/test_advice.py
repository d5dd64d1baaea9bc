"""Advice on Spot capacity through Google's own client: from the emulator in all weathers, and where there is none."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from scripted_api import PROJECT, Api, forever, refusal

from tests.emulator.discovery import faults
from transient_magics.cloud import ComputeEngine, Shape
from transient_magics.cloud import advice as advice_module
from transient_magics.controller.programs.preflight import examine
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup

V100 = Shape("n1-standard-8", "nvidia-tesla-v100")
ZONES = ("us-west1-b", "us-west1-a", "us-central1-a")
BETA = f"compute/beta/projects/{PROJECT}"
PATH = f"({BETA}/)?regions/.*/advice/capacity"
LINE = PriceLine("n1-standard-8", 1.0, 3.0, "test")
SPEC = ClusterSpec(
    name="c", groups=(WorkerGroup("v100", 2),), zones=ZONES[:1], prices={"v100": LINE, "parameter-server": LINE},
    candidates={"v100": ZONES}, declared_at=1e9,
)  # fmt: skip


@pytest.fixture
async def emulated(url: str) -> AsyncIterator[ComputeEngine]:
    async with ComputeEngine("emulated-project", url) as engine:
        yield engine
    weather(url, reset=True)


def weather(url: str, **given: Any) -> None:
    request = urllib.request.Request(f"{url}/emulator/v1/weather", json.dumps(given).encode(), method="PATCH")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


async def test_in_fair_weather_vms_are_likely_to_be_had_everywhere(emulated: ComputeEngine) -> None:
    found = await emulated.advice.spot(V100, ZONES)
    assert tuple(found) == ZONES
    assert all(chance.obtainability > 0.5 and chance.uptime > 3600 for chance in found.values())
    assert await emulated.advice.spot(V100, ZONES) == found


async def test_a_sold_out_zone_is_said_to_have_hardly_any(url: str, emulated: ComputeEngine) -> None:
    await asyncio.to_thread(weather, url, stockout=["us-west1-b:v100,spot", "us-central1-a:t4"])
    found = await emulated.advice.spot(V100, ZONES)
    assert [chance.obtainability > 0.3 for chance in found.values()] == [False, True, True]


async def test_vms_are_said_to_run_as_long_as_the_revocations_let_them(url: str, emulated: ComputeEngine) -> None:
    await asyncio.to_thread(weather, url, revocations="published")
    published = await emulated.advice.spot(V100, ZONES)
    # Of the published V100s of us-central1 two thirds were revoked within an hour; half of us-west1's within two.
    assert [chance.uptime / 3600 for chance in published.values()] == [2.0, 2.0, 1.0]
    await asyncio.to_thread(weather, url, revocations="every=90s")
    often = await emulated.advice.spot(V100, ZONES)
    assert {chance.uptime for chance in often.values()} == {90.0}
    for few, many in zip(published.values(), often.values(), strict=True):
        assert few.preempted is not None
        assert many.preempted is not None
        assert 0.4 < few.preempted < 0.9 <= many.preempted <= 1


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        (refusal(404, "notFound", "not found"), 2),
        (refusal(403, "forbidden", "Required permission"), 1),
        (refusal(501, "notImplemented", "not implemented"), 2),
        (refusal(503, "backendError", "unavailable"), 1),
    ],
)
async def test_an_api_without_advice_is_asked_once(api: Api, engine: ComputeEngine, answer: Any, times: int) -> None:
    api.on("POST", PATH, answer)
    assert await engine.advice.spot(V100, ZONES) == {}
    assert len(api.asked("POST", PATH)) == times, "where it is not served, the other version is asked, too"


@pytest.mark.parametrize("serving", ["beta", "v1"])
async def test_the_version_that_takes_the_question_is_the_only_one_asked_from_then_on(
    api: Api, engine: ComputeEngine, serving: str
) -> None:
    versions = {"beta": f"{BETA}/regions/.*/advice/capacity", "v1": "regions/.*/advice/capacity"}
    api.on("POST", versions[serving], {"recommendations": [{"scores": {"obtainability": 0.8}}]})
    assert tuple(await engine.advice.spot(V100, ZONES)) == ZONES
    counted = {version: len(api.asked("POST", path)) for version, path in versions.items()}
    assert counted == {"beta": 3 if serving == "beta" else 1, "v1": 0 if serving == "beta" else 3}
    for _, body in api.asked("POST", versions[serving]):
        assert faults("CapacityAdviceRequest", body) == []


async def test_what_was_preempted_is_the_mean_of_the_last_week(api: Api, engine: ComputeEngine) -> None:
    days = [
        {"interval": {"startTime": f"2026-01-{day:02}T00:00:00Z", "endTime": f"2026-01-{day + 1:02}T00:00:00Z"},
         "preemptionRate": rate}
        for day, rate in [(12, 0.1), (11, 0.3), *((day, 0.2) for day in range(6, 11)), (5, 1.0), (4, 1.0)]
    ]  # fmt: skip
    api.on("POST", PATH, {"recommendations": [{"scores": {"obtainability": 0.8}}]})
    api.on("POST", f"{PATH}History", {"preemptionHistory": days}, {})
    found = await engine.advice.spot(V100, ZONES[:2])
    assert [chance.preempted for chance in found.values()] == [pytest.approx(0.2), None]
    _, body = api.asked("POST", f"{BETA}/regions/us-west1/advice/capacityHistory")[0]
    assert faults("CapacityHistoryRequest", body) == []
    assert (body["types"], body["locationPolicy"]) == (["PREEMPTION"], {"location": f"zones/{ZONES[0]}"})
    assert body["instanceProperties"]["scheduling"] == {"provisioningModel": "SPOT"}
    assert body["instanceProperties"]["guestAccelerators"][0]["acceleratorType"] == "nvidia-tesla-v100"


async def test_an_api_without_history_is_asked_for_it_once(api: Api, engine: ComputeEngine) -> None:
    api.on("POST", PATH, {"recommendations": [{"scores": {"obtainability": 0.8}}]})
    found = await engine.advice.spot(V100, ZONES)
    assert {(chance.obtainability, chance.preempted) for chance in found.values()} == {(0.8, None)}
    assert len(api.asked("POST", f"{PATH}History")) == 1


async def test_an_api_that_is_slow_gives_no_advice(
    api: Api, engine: ComputeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice_module, "_SECONDS", 0.3)
    monkeypatch.setitem(advice_module._ONCE, "timeout", 0.5)
    api.on("POST", PATH, forever)
    assert await engine.advice.spot(V100, ZONES) == {}


@pytest.mark.parametrize(
    "answer", [[], {"recommendations": [{}]}, {"recommendations": [{"scores": {"obtainability": "high"}}]}]
)
async def test_advice_of_another_form_is_none(api: Api, engine: ComputeEngine, answer: Any) -> None:
    api.on("POST", PATH, answer)
    assert await engine.advice.spot(V100, ZONES) == {}


async def test_a_zone_without_recommendation_is_left_out(api: Api, engine: ComputeEngine) -> None:
    scores = {"obtainability": 0.8, "estimatedUptime": "7200s"}
    api.on("POST", f"{BETA}/regions/us-west1/advice/capacity", {"recommendations": [{"scores": scores}]}, {})
    api.on("POST", f"{BETA}/regions/us-central1/advice/capacity", refusal(400, "invalid", "No zone offers it"))
    found = await engine.advice.spot(V100, ZONES)
    assert {zone: (chance.obtainability, chance.uptime) for zone, chance in found.items()} == {ZONES[0]: (0.8, 7200.0)}


async def test_the_examination_before_a_cluster_says_which_zone_the_advice_prefers(
    url: str, emulated: ComputeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transient_magics import emulator

    monkeypatch.setattr(emulator, "ensure", lambda **_: url)
    await asyncio.to_thread(weather, url, stockout=["us-west1-b:v100"], revocations="published")
    findings = {each.subject: each.text for each in (await examine(SPEC))[0]}
    assert findings["advice on v100"].startswith("prefers us-")
    assert "% preempted lately" in findings["advice on v100"]
    assert "us-west1-b" not in findings["advice on v100"]
    alone, _ = await examine(replace(SPEC, candidates={"v100": ZONES[:1]}))
    assert not [each for each in alone if each.subject.startswith("advice")]
