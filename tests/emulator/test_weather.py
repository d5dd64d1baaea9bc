"""The weather of a running emulator, as its clients meet it. Each test begins and ends in fair weather."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from discovery import faults
from emulated_cloud import (
    PROJECT,
    ZONE,
    Cloud,
    Running,
    ask_metadata,
    ask_with_etag,
    eventually,
    http_request,
    start,
)
from google.api_core import exceptions
from google.cloud import compute_v1

from transient_emulator.vms.machine import visible_gpus
from transient_emulator.weather.reclaiming import Reclaim, Reclaiming
from transient_emulator.weather.revocations import Due, Nothing, Transient
from transient_magics.cloud import ComputeEngine, VmRequest, request_id
from transient_magics.errors import QuotaError, StockoutError

WEATHER = "/emulator/v1/weather"
DELETE = {"scheduling__instance_termination_action": "DELETE"}


@pytest.fixture(scope="module")
def open_air(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An emulator of these tests' own, with short notices."""
    running = start(tmp_path_factory.mktemp("open-air"), "--port", "0", "--notice", "0.3")
    yield running
    running.process.terminate()
    assert running.process.wait(60) == 0


@pytest.fixture
def sky(open_air: Running) -> Iterator[Cloud]:
    cloud = Cloud(open_air)
    yield cloud
    fair = http_request(open_air.url, "PATCH", WEATHER, {"reset": True})
    assert fair[0] == 200
    assert fair[1]["description"] == []
    for scope, listed in list(cloud.instances.aggregated_list(project=PROJECT)):
        zone = scope.removeprefix("zones/")
        for instance in listed.instances:
            with suppress(exceptions.NotFound):  # a revoked VM is deleted automatically
                begun = cloud.instances.delete_unary(project=PROJECT, zone=zone, instance=instance.name)
                cloud.wait(begun, zone)


def weather(cloud: Cloud, **given: Any) -> dict[str, Any]:
    status, answer = http_request(cloud.running.url, "PATCH", WEATHER, given)
    assert status == 200, answer
    return answer


def operation(cloud: Cloud, name: str) -> dict[str, Any]:
    path = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/operations/{name}"
    status, content = http_request(cloud.running.url, "GET", path)
    assert status == 200
    assert faults("Operation", content) == []
    return content


def test_fair_weather_says_nothing_and_bad_orders_change_nothing(sky: Cloud) -> None:
    status, fair = http_request(sky.running.url, "GET", WEATHER)
    assert (status, fair["rate"], fair["revocations"], fair["description"]) == (200, 1.0, "none", [])
    status, refused = http_request(sky.running.url, "PATCH", WEATHER, {"api_errors": 0.5, "boot": "sometime"})
    assert (status, refused["error"]["errors"][0]["reason"]) == (400, "invalid")
    assert refused["error"]["message"] == "Invalid duration 'sometime' (--boot). Write 90s, 30m, 24h or 2d."
    assert http_request(sky.running.url, "GET", WEATHER) == (200, fair)


@pytest.mark.slow
def test_weather_survives_the_emulators_death(state: Path) -> None:
    first = start(state, "--notice", "0.3")
    cloud = Cloud(first)
    csv = {"name": "f.csv", "csv": "lifetime_hours\n1\n"}
    before = weather(cloud, revocations=csv, hours_per_minute=2, stockout=["us-west1-b,for=1h"], seed=9)
    cloud.create("w0", **DELETE)
    assert before["seed"] == 9
    first.process.kill()
    first.process.wait()
    second = start(state, "--notice", "0.3")
    status, after = http_request(second.url, "GET", WEATHER)
    assert status == 200
    assert {**after, "description": 0} == {**before, "description": 0}
    assert any("f.csv" in line for line in after["description"])
    weather(cloud, hours_per_minute=360)
    eventually(lambda: cloud.names() == set())
    second.process.terminate()
    assert second.process.wait(60) == 0


@pytest.mark.slow
def test_one_vm_is_taken_every_so_often_as_google_takes_it(sky: Cloud) -> None:
    for name in ("w0", "w1", "ps"):
        sky.create(name, spot=name != "ps", **(DELETE if name != "ps" else {}))
    began = time.monotonic()
    weather(sky, revocations="every=0.8s")
    eventually(lambda: len(sky.names()) < 3)
    assert time.monotonic() - began > 0.8
    eventually(lambda: sky.names() == {"ps"})
    assert time.monotonic() - began > 1.6
    listed = sky.operations.list(project=PROJECT, zone=ZONE)
    taken = [each for each in listed if each.operation_type == "compute.instances.preempted"]
    assert {each.target_link.rpartition("/")[2] for each in taken} >= {"w0", "w1"}


@pytest.mark.slow
def test_of_vms_that_are_wanted_back_those_are_taken_that_nobody_has_given_in_time(sky: Cloud) -> None:
    for name in ("w0", "w1", "w2", "else"):
        sky.create(name, **DELETE)
    ids = {name: str(sky.get(name).id) for name in ("w0", "w1", "w2")}
    asked = {"said": "2,within=10m", "vms": [*ids.values()], "cluster": "tour"}
    for said, why in (("two", "Invalid number of VMs"), ("²", "Invalid number"), ("2,by=2s", "Invalid number"),
                      ("4", "tour has only 3 running transient workers (--reclaim)")):  # fmt: skip
        status, refused = http_request(sky.running.url, "PATCH", WEATHER, {"reclaim": {**asked, "said": said}})
        assert status == 400
        assert why in refused["error"]["message"]
    told = weather(sky, reclaim=asked)
    assert told["description"] == [
        "The provider wants 2 of the 3 workers of tour back within 10 min, whichever; then it takes them."
    ]
    assert told["wanted_back"]["number"] == 2
    assert set(told["wanted_back"]["vms"]) == set(ids.values())
    sky.preempt("w1")
    eventually(lambda: http_request(sky.running.url, "GET", WEATHER)[1]["wanted_back"]["number"] == 1)
    eventually(lambda: "w1" not in sky.names())
    assert len(sky.names()) == 3, "the time is not over"
    until = time.time() + 1
    weather(sky, reclaim={**asked, "said": f"2,until={datetime.fromtimestamp(until, UTC).isoformat()}"})
    eventually(lambda: len(sky.names()) == 2)
    assert time.time() > until
    assert "else" in sky.names()
    assert weather(sky, seed=3)["wanted_back"] is None


def test_who_came_later_is_not_taken_and_no_more_are_than_were_wanted() -> None:
    vms = [Transient(str(number), ZONE, f"w{number}", "k80", 1.0) for number in range(4)]
    policy = Reclaiming(Reclaim(2, ("0", "1", "2"), until=100.0), Nothing(), seed=1)
    assert policy.due(vms, 99.0) == Due((), 100.0)
    assert len(policy.due(vms, 100.0).take) == 2
    assert vms[3] not in policy.due(vms, 100.0).take
    (one,) = policy.due(vms[1:], 100.0).take
    assert one in vms[1:3]
    assert policy.due(vms[2:], 100.0).take == (), "two have gone by themselves"
    left = Reclaim(2, ("0", "1", "2"), until=100.0).now({"1", "2", "3"})
    assert left == Reclaim(1, ("1", "2"), until=100.0), "who asks now counts the one that has gone no second time"


@pytest.mark.slow
def test_a_vm_is_taken_so_long_after_its_notice_as_the_weather_says(sky: Cloud) -> None:
    sky.create("w0", **DELETE)
    (said,) = weather(sky, notice="2s")["description"]
    assert said == "VMs are taken 2 s after the notice."
    began = time.monotonic()
    sky.preempt("w0")
    eventually(lambda: sky.names() == set())
    assert time.monotonic() - began > 1.9, "the emulator's own is 0.3 s"


@pytest.mark.slow
def test_a_day_in_a_second_ends_preemptible_vms_and_not_spot_vms(sky: Cloud) -> None:
    sky.create("spot")
    sky.create(
        "legacy", scheduling__provisioning_model="STANDARD", scheduling__preemptible=True,
        scheduling__automatic_restart=False,
    )  # fmt: skip
    began = time.monotonic()
    weather(sky, hours_per_minute=1440)
    eventually(lambda: sky.get("legacy").status == "TERMINATED")
    assert time.monotonic() - began > 0.8
    assert sky.get("spot").status == "RUNNING"


@pytest.mark.slow
def test_time_limits_and_boot_times_run_on_the_emulated_clock(sky: Cloud) -> None:
    began = time.monotonic()
    weather(sky, hours_per_minute=12, boot="10m")  # an hour passes in five seconds
    hour = datetime.now(UTC) + timedelta(hours=1)
    sky.create("moment", spot=False, scheduling__termination_time=hour.isoformat(), **DELETE)
    assert time.monotonic() - began < 60, "ten minutes of booting"
    sky.create("long", spot=False, scheduling__max_run_duration=compute_v1.Duration(seconds=7200), **DELETE)
    eventually(lambda: sky.names() == {"long"})
    assert time.monotonic() - began > 4.5
    eventually(lambda: sky.names() == set())


@pytest.mark.slow
def test_published_lifetimes_take_vms_within_their_hour(sky: Cloud) -> None:
    weather(sky, revocations="published", hours_per_minute=60, seed=1)
    operations = [sky.insert(f"w{number}", **DELETE) for number in range(12)]
    for each in operations:
        sky.wait(each)
    eventually(lambda: len(sky.names()) < 12)
    (line,) = [line for line in weather(sky)["description"] if "ICDCS 2020" in line]
    assert "a wave takes 25%" in line
    weather(sky, revocations="none")


@pytest.mark.slow
def test_a_stockout_is_an_operation_that_fails(sky: Cloud) -> None:
    weather(sky, stockout=[f"{ZONE}:k80,delay=3s", "us-west1-b"])
    began = time.monotonic()
    accepted = sky.insert("w0")
    assert accepted.status == compute_v1.Operation.Status.RUNNING
    assert sky.get("w0").status == "PROVISIONING"
    sky.wait(accepted)
    assert time.monotonic() - began > 2.9
    failed = operation(sky, accepted.name)
    assert (failed["status"], failed["progress"], failed["httpErrorStatusCode"]) == ("DONE", 100, 503)
    assert sky.names() == set()
    (error,) = failed["error"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert error["message"].startswith(f"The zone 'projects/{PROJECT}/zones/{ZONE}' does not have enough resources")
    told = error["errorDetails"][2]["errorInfo"]["metadatas"]
    assert (told["vmType"], told["attachment"], told["zone"]) == ("n1-standard-4", "nvidia-tesla-k80:1", ZONE)
    elsewhere = told["zonesAvailable"].split(",")
    assert elsewhere[0] == "us-central1-a", "its own region first"
    assert not {ZONE, "us-west1-b", "us-west1-a"} & set(elsewhere), "not those stocked out or without a K80"
    sky.create("cpu", spot=False, guest_accelerators=[])


@pytest.mark.slow
def test_a_zone_has_as_many_spot_vms_as_a_trace_says_and_takes_them_back_as_it_falls(sky: Cloud) -> None:
    rows = ["zone,gpu,gpus_per_vm,seconds,available", "far,k80,1,0,2", "far,k80,1,1800,1", "far,k80,1,2700,0"]
    trace = {"zone": ZONE, "gpu": "k80", "name": "market.csv", "csv": "\n".join([*rows, "far,k80,1,3600,"])}
    weather(sky, availability=[trace], hours_per_minute=3)
    began = time.monotonic()
    for name in ("w0", "w1"):
        sky.create(name, **DELETE)
    (error,) = sky.wait(sky.insert("w2")).error.errors
    assert error.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    sky.create("on-demand", spot=False)
    if time.monotonic() - began < 9:
        assert sky.names() == {"w0", "w1", "on-demand"}
    eventually(lambda: sky.names() - {"w2"} in ({"w0", "on-demand"}, {"w1", "on-demand"}))
    assert time.monotonic() - began > 10, "half an emulated hour"
    eventually(lambda: sky.names() == {"on-demand"})
    assert time.monotonic() - began > 15
    eventually(lambda: not sky.wait(sky.insert("w3")).error.errors)
    assert time.monotonic() - began > 20, "the trace has begun again"


@pytest.mark.slow
def test_a_stockout_may_end_and_may_concern_spot_only(sky: Cloud) -> None:
    weather(sky, stockout=[f"{ZONE}:k80,spot,for=3s,delay=0s"])
    assert sky.wait(sky.insert("w0")).error.errors
    sky.create("w1", spot=False)
    eventually(lambda: not sky.wait(sky.insert("w0")).error.errors)


def test_a_stopped_vm_may_find_no_capacity_to_start_again(sky: Cloud) -> None:
    sky.create("w0")
    place = {"project": PROJECT, "zone": ZONE, "instance": "w0"}
    sky.wait(sky.instances.stop_unary(**place))
    weather(sky, stockout=f"{ZONE},delay=0s")
    assert sky.wait(sky.instances.start_unary(**place)).error.errors[0].code.startswith("ZONE_RESOURCE_POOL_EXHAUSTED")
    assert sky.get("w0").status == "TERMINATED"


@pytest.mark.slow
def test_an_operation_that_is_to_fail_fails_also_after_a_kill(state: Path) -> None:
    first = start(state)
    cloud = Cloud(first)
    weather(cloud, stockout=f"{ZONE},delay=0.5s")
    accepted = cloud.insert("w0")
    first.process.kill()
    first.process.wait()
    second = start(state)
    assert cloud.wait(accepted).error.errors[0].code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    eventually(lambda: cloud.names() == set())
    second.process.terminate()
    assert second.process.wait(60) == 0


def test_a_quota_is_said_in_googles_two_ways(sky: Cloud) -> None:
    weather(sky, quota=["k80=1", "cpus@us-central1=6"])
    region = sky.client(compute_v1.RegionsClient).get(project=PROJECT, region="us-central1")
    limits = {quota.metric: quota.limit for quota in region.quotas}
    assert (limits["PREEMPTIBLE_NVIDIA_K80_GPUS"], limits["CPUS"], limits["NVIDIA_P100_GPUS"]) == (1, 6, 5000)
    sky.create("w0")
    accepted = sky.insert("w1")
    sky.wait(accepted)
    failed = operation(sky, accepted.name)
    (error,) = failed["error"]["errors"]
    assert (error["code"], failed["httpErrorStatusCode"]) == ("QUOTA_EXCEEDED", 403)
    assert error["errorDetails"][0]["quotaInfo"]["dimensions"] == {"region": "us-central1"}
    sky.create("on-demand", spot=False, guest_accelerators=[])
    with pytest.raises(exceptions.Forbidden) as refused:
        sky.insert("w2", machine_type=f"zones/{ZONE}/machineTypes/n1-standard-8", guest_accelerators=[])
    assert refused.value.errors[0]["reason"] == "quotaExceeded"
    assert "Quota 'PREEMPTIBLE_CPUS' exceeded.  Limit: 6.0 in region us-central1." in str(refused.value)
    assert sky.names() == {"w0", "on-demand"}


def test_vms_may_be_preempted_before_they_run(sky: Cloud) -> None:
    weather(sky, creation_preemptions=1)
    (error,) = sky.wait(sky.insert("w0", **DELETE)).error.errors
    assert error.code == "UNSUPPORTED_OPERATION"
    assert "preempt" in error.message
    eventually(lambda: sky.names() == set())
    sky.create("ps", spot=False)


@pytest.mark.slow
async def test_published_start_up_leaves_ssh_silent_while_the_vm_runs_already(sky: Cloud) -> None:
    weather(sky, boot="published", hours_per_minute=0.2)
    began = time.monotonic()
    sky.create("w0")
    ran = time.monotonic() - began
    with pytest.raises(exceptions.NotFound):
        sky.host_key("w0")
    eventually(lambda: _has_host_key(sky, "w0"))
    assert 2.5 < ran < 40, "43 s of provisioning and staging, 12 times as fast"
    assert 1 < time.monotonic() - began - ran < 35, "38 s of booting"
    async with await sky.ssh("w0") as connection:
        assert (await connection.run("echo up")).stdout == "up\n"


def _has_host_key(cloud: Cloud, name: str) -> bool:
    try:
        cloud.host_key(name)
    except exceptions.NotFound:
        return False
    return True


@pytest.mark.slow
async def test_a_vm_is_told_the_pace_of_its_gpu_and_that_it_is_but_a_name(sky: Cloud) -> None:
    sky.create("w0")
    async with await sky.ssh("w0") as connection:
        google = {"Metadata-Flavor": "Google"}
        card = "instance/attributes/emulator-gpu"
        assert await ask_metadata(connection, card, "GET", "", google) == (200, "named")
        await asyncio.to_thread(weather, sky, gpu_driver="fails")
        assert (await ask_metadata(connection, card, "GET", "", google))[0] == 404
        await asyncio.to_thread(weather, sky, gpu_driver="works")
        path = "instance/attributes/emulator-pace"
        status, pace, etag = await ask_with_etag(connection, path, "GET", "", google)
        assert (status, pace) == (200, "0 0")
        other = f"{path}?wait_for_change=true&last_etag={etag}"
        waiting = asyncio.create_task(ask_metadata(connection, other, "GET", "", google))
        await asyncio.sleep(0.5)  # most often it hangs by then
        await asyncio.to_thread(weather, sky, gpu_speed="published")
        assert await waiting == (200, "0.2193 1.0000")
        await asyncio.to_thread(weather, sky, gpu_speed="k80=0.5,p100=2")
        assert await ask_metadata(connection, path, "GET", "", google) == (200, "0.4386 2.0000")
    assert "emulator-pace" not in {item.key for item in sky.get("w0").metadata.items}


def test_of_a_machine_that_others_use_too_vms_have_the_gpus_that_the_emulator_was_left() -> None:
    assert visible_gpus(True, {}) == {}
    assert visible_gpus(True, {"CUDA_VISIBLE_DEVICES": "2,3"}) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert visible_gpus(False, {"CUDA_VISIBLE_DEVICES": "2,3"}) == {"CUDA_VISIBLE_DEVICES": "-1"}


async def test_a_vm_without_a_gpu_finds_none_where_the_machine_has_one(sky: Cloud) -> None:
    said = 'echo "${CUDA_VISIBLE_DEVICES-all}"'
    sky.create("w0")
    sky.create("c0", machine_type=f"zones/{ZONE}/machineTypes/e2-standard-2", guest_accelerators=[])
    for name, found in (("w0", os.environ.get("CUDA_VISIBLE_DEVICES", "all")), ("c0", "-1")):
        async with await sky.ssh(name) as connection:
            assert (await connection.run(said)).stdout == f"{found}\n"


def test_requests_fail_as_often_and_in_as_many_ways_as_asked_for(sky: Cloud) -> None:
    path = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}"

    def ask() -> tuple[int, Any]:
        try:
            return http_request(sky.running.url, "GET", path)
        except (ConnectionError, OSError):
            return 0, None
        except ValueError:
            return 502, None  # a page, no JSON

    weather(sky, api_errors=0.5, seed=4)
    answers = [ask() for _ in range(200)]
    counted = Counter(status for status, _ in answers)
    assert set(counted) == {0, 200, 403, 429, 500, 502, 503}
    assert 70 <= counted[200] <= 130
    for status, content in answers:
        if content and status != 200:
            assert set(content) == {"error"}
            assert content["error"]["code"] == status
            assert content["error"]["errors"][0]["message"] == content["error"]["message"]
            limited = content["error"]["errors"][0]["reason"] == "rateLimitExceeded"
            assert limited == (status in (403, 429))
    assert http_request(sky.running.url, "GET", WEATHER)[0] == 200, "the weather itself always answers"


@pytest.mark.slow
def test_expired_credentials_are_refused_until_their_time_is_over(sky: Cloud) -> None:
    path = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}"
    weather(sky, credentials="expired,for=1s")
    status, refused = http_request(sky.running.url, "GET", path)
    assert (status, refused["error"]["errors"][0]["reason"]) == (401, "authError")
    eventually(lambda: http_request(sky.running.url, "GET", path)[0] == 200)
    assert not http_request(sky.running.url, "GET", WEATHER)[1]["description"], "nobody asked for that"
    weather(sky, credentials="expired,for=1h")
    assert http_request(sky.running.url, "GET", path)[0] == 401
    weather(sky, credentials="accepted")
    assert http_request(sky.running.url, "GET", path)[0] == 200


@pytest.mark.slow
def test_answers_are_late(sky: Cloud) -> None:
    weather(sky, api_latency="50ms..80ms")
    began = time.monotonic()
    for _ in range(10):
        sky.names()
    assert time.monotonic() - began > 0.45


WANTED = VmRequest(
    name="c1-worker", zone=ZONE, machine_type="n1-standard-4", accelerator="nvidia-tesla-k80", accelerator_count=1,
    labels={"cluster": "c1"}, ssh_public_key="ssh-ed25519 AAAA transient",
)  # fmt: skip


@pytest.mark.slow
async def test_our_own_client_gets_exactly_the_vms_that_it_asks_for(sky: Cloud) -> None:
    await asyncio.to_thread(weather, sky, api_errors=0.2, seed=2)
    requests = [replace(WANTED, name=f"c1-{number}", request_id=request_id("chaos", number)) for number in range(12)]
    async with ComputeEngine(PROJECT, sky.running.url) as engine:
        made = await asyncio.gather(*(engine.insert(each) for each in requests))
        listed = await engine.list({"cluster": "c1"})
        assert sorted(vm.name for vm in listed) == sorted(each.name for each in requests)
        assert {vm.id for vm in listed} == {vm.id for vm in made}
        await asyncio.gather(*(engine.delete(ZONE, each.name, {}) for each in requests[:6]))
        assert len(await engine.list({"cluster": "c1"})) == 6
    await asyncio.to_thread(weather, sky, api_errors=0)
    listed = sky.operations.list(project=PROJECT, zone=ZONE)
    inserts = Counter(
        each.target_link for each in listed if each.operation_type == "insert" and "/c1-" in each.target_link
    )
    assert set(inserts.values()) == {1}, "none was made twice"


async def test_our_own_client_understands_stockouts_and_quotas(sky: Cloud) -> None:
    await asyncio.to_thread(weather, sky, stockout=[f"{ZONE}:k80,delay=0s"], quota=["p100=0"])
    async with ComputeEngine(PROJECT, sky.running.url) as engine:
        with pytest.raises(StockoutError, match="us-central1-a"):
            await engine.insert(replace(WANTED, request_id=request_id("stockout")))
        with pytest.raises(QuotaError, match="PREEMPTIBLE_NVIDIA_P100_GPUS"):
            await engine.insert(
                replace(WANTED, name="c1-p", accelerator="nvidia-tesla-p100", request_id=request_id("quota"))
            )


_RECEIVE = """#!/usr/bin/env transient-python
import os, socket, time
size = 0
with socket.create_server(("0.0.0.0", 5000)) as door:
    while not size:  # the sender gives a connection up that takes a busy machine more than a second
        connection, _ = door.accept()
        began = time.monotonic()
        while part := connection.recv(1 << 20):
            size += len(part)
with open(os.path.expanduser("~/rate"), "w") as file:
    file.write(str(size * 8 / (time.monotonic() - began)))
"""
_SEND = """
import socket, time
for attempt in range(600):
    try:
        connection = socket.create_connection(("{}", 5000), 1)
    except OSError:
        time.sleep(0.1)
    else:
        connection.settimeout(60)
        connection.sendall(bytes(3_000_000))
        break
"""


@pytest.mark.slow
async def test_links_are_as_fast_as_asked_for_and_slower_between_regions(sky: Cloud) -> None:
    await asyncio.to_thread(weather, sky, link="80mbit,far=16mbit")
    sky.create("sender", spot=False, guest_accelerators=[])
    rates: dict[str, float] = {}
    async with await sky.ssh("sender") as sender:
        for zone, name in ((ZONE, "near"), ("us-west1-b", "far")):
            path = f"/compute/v1/projects/{PROJECT}/zones/{zone}/instances"
            body = {
                "name": name,
                "machineType": f"zones/{zone}/machineTypes/n1-standard-1",
                "disks": [{"boot": True, "autoDelete": True}],
                "networkInterfaces": [{}],
                "metadata": {"items": [{"key": "startup-script", "value": _RECEIVE}]},
            }
            assert http_request(sky.running.url, "POST", path, body)[0] == 200
            made = http_request(sky.running.url, "GET", f"{path}/{name}")[1]
            await sender.run(
                "transient-python -S -", input=_SEND.format(made["networkInterfaces"][0]["networkIP"]), check=True
            )
            told = sky.running.state / "vms" / name / "home" / "rate"
            eventually(lambda told=told: told.exists() and told.read_text(encoding="utf-8"))
            rates[name] = float(told.read_text(encoding="utf-8"))
            assert http_request(sky.running.url, "DELETE", f"{path}/{name}")[0] == 200
    assert 28e6 < rates["near"] < 120e6
    assert 5e6 < rates["far"] < 25e6


_ECHO = """#!/usr/bin/env transient-python
import socket
with socket.create_server(("", 5000)) as server:
    while True:
        connection = server.accept()[0]
        while data := connection.recv(65536):
            connection.sendall(data)
"""
_PING = """
import socket, time
for attempt in range(200):
    try:
        connection = socket.create_connection(("{}", 5000), 10)
        break
    except OSError:
        time.sleep(0.1)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
took = []
for number in range(20):
    began = time.perf_counter()
    connection.sendall(b"x")
    connection.recv(1)
    took.append(time.perf_counter() - began)
began, got = time.perf_counter(), 0
connection.sendall(bytes(200_000))
while got < 200_000:
    got += len(connection.recv(65536))
print(min(took), sorted(took)[10])
"""


@pytest.mark.slow
async def test_the_way_between_regions_takes_its_time_and_goes_on_when_the_line_is_killed(sky: Cloud) -> None:
    await asyncio.to_thread(weather, sky, link="1gbit,far=100mbit/60ms")
    sky.create("sender", spot=False, guest_accelerators=[])
    places = {}
    for zone, name in ((ZONE, "beside"), ("us-west1-b", "away")):
        path = f"/compute/v1/projects/{PROJECT}/zones/{zone}/instances"
        body = {
            "name": name,
            "machineType": f"zones/{zone}/machineTypes/n1-standard-1",
            "disks": [{"boot": True, "autoDelete": True}],
            "networkInterfaces": [{}],
            "metadata": {"items": [{"key": "startup-script", "value": _ECHO}]},
        }
        assert http_request(sky.running.url, "POST", path, body)[0] == 200
        made = http_request(sky.running.url, "GET", f"{path}/{name}")[1]
        places[name] = made["networkInterfaces"][0]["networkIP"]

    async with await sky.ssh("sender") as sender:

        async def ping(name: str) -> float:
            """The least of 20 round trips, in seconds."""
            done = await sender.run("transient-python -S -", input=_PING.format(places[name]), check=True)
            return float(str(done.stdout).split()[0])

        async def becomes(name: str, least: float, most: float) -> None:
            """The way is so long soon after the weather has changed, and as soon as a busy machine has time for it."""
            for attempts_left in reversed(range(20)):
                round_trip = await ping(name)
                if least <= round_trip < most:
                    return
                assert attempts_left, f"{round_trip} s"

        await becomes("beside", 0, 0.03)
        # No retry: from the moment at which a VM answers, no frame arrives early, whichever VMs started together.
        assert await ping("away") >= 0.06
        (line,) = delay_lines(sky)
        os.kill(line, signal.SIGKILL)
        eventually(lambda: delay_lines(sky) not in ([], [line]))
        assert await ping("away") >= 0.06
        await asyncio.to_thread(weather, sky, link="1gbit,far=100mbit/4ms")
        await becomes("away", 0.004, 0.04)
        await asyncio.to_thread(weather, sky, link="none")
        await becomes("away", 0, 0.03)  # directly again
        eventually(lambda: delay_lines(sky) == [])
        await becomes("away", 0, 0.03)


def delay_lines(sky: Cloud) -> list[int]:
    """The processes of the emulator that hold what is under way between regions."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            if int(parent) == sky.running.process.pid and b"delay_line" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.slow
def test_links_need_a_network_of_the_vms_own(state: Path) -> None:
    running = start(state, TRANSIENT_MAGICS_EMULATOR_ISOLATION="off")
    status, refused = http_request(running.url, "PATCH", WEATHER, {"link": "100mbit"})
    assert status == 400
    assert "The emulated VMs share this machine's network" in refused["error"]["message"]
    running.process.terminate()
    assert running.process.wait(60) == 0


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"stockout": f"{ZONE}:k80,delay=0.2s"}, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"),
        ({"quota": "k80=2"}, "QUOTA_EXCEEDED"),
    ],
)
def test_a_bulk_insert_meets_the_same_weather(sky: Cloud, given: dict[str, str], code: str) -> None:
    weather(sky, **given)
    body = {
        "count": "3", "minCount": "1", "namePattern": "b-#", "instanceProperties": {
            "machineType": "n1-standard-4", "disks": [{"boot": True, "autoDelete": True}], "networkInterfaces": [{}],
            "scheduling": {"onHostMaintenance": "TERMINATE"},
            "guestAccelerators": [{"acceleratorType": "nvidia-tesla-k80", "acceleratorCount": 1}]},
    }  # fmt: skip
    path = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}"
    status, begun = http_request(sky.running.url, "POST", f"{path}/instances/bulkInsert", body)
    assert status == 200, begun
    eventually(lambda: operation(sky, begun["name"])["status"] == "DONE")
    made = operation(sky, begun["name"])["instancesBulkInsertOperationMetadata"]["perLocationStatus"][f"zones/{ZONE}"]
    expected = 2 if code == "QUOTA_EXCEEDED" else 0
    assert (made.get("createdVmCount", 0), made["failedToCreateVmCount"]) == (expected, 3 - expected)
    assert len(sky.names()) == expected
    listed = http_request(sky.running.url, "GET", f"{path}/operations")[1]["items"]
    failed = [each for each in listed if "error" in each and each.get("operationGroupId") == begun["operationGroupId"]]
    assert {error["code"] for each in failed for error in each["error"]["errors"]} >= {code}
