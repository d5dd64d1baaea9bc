"""How ComputeEngine takes every way in which Compute Engine answers, refuses or fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from scripted_api import PROJECT, ZONE, Api, forever, instance, operation, refusal, succeed

from transient_magics.cloud import ComputeEngine, Vm, VmRequest
from transient_magics.cloud.values import Life
from transient_magics.errors import (
    AccessError,
    AlreadyExistsError,
    CloudError,
    GoneError,
    QuotaError,
    RateLimitError,
    StockoutError,
    TransientError,
    UnreachableError,
)

INSTANCES = f"zones/{ZONE}/instances"
WORKER = f"{INSTANCES}/c1-worker-1"
WAIT = f"zones/{ZONE}/operations/operation-1/wait"
STOCKOUT = {
    "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "message": f"The zone 'projects/{PROJECT}/zones/{ZONE}' does not have enough resources available.",
    "errorDetails": [
        {"localizedMessage": {"locale": "en-US", "message": "A n1-standard-4 VM with 1 K80 is currently unavailable."}},
        {
            "errorInfo": {
                "reason": "resource_availability",
                "metadatas": {"zonesAvailable": "us-central1-a,us-central1-f"},
            }
        },
    ],
}


async def test_an_insert_returns_the_running_vm(api: Api, engine: ComputeEngine, wanted: VmRequest) -> None:
    succeed(api)
    api.on("POST", WAIT, operation(status="RUNNING", progress=0), operation())
    api.on("GET", WORKER, instance("c1-worker-1", status="STAGING"), instance("c1-worker-1"))
    assert await engine.insert(wanted) == Vm(
        name="c1-worker-1",
        zone=ZONE,
        id="4711",
        status="RUNNING",
        address="10.128.0.5",
        external_address="34.1.2.3",
        labels={"cluster": "c1"},
        created=datetime(2026, 1, 2, 3, 4, 5, 678000, timezone(timedelta(hours=-8))),
        preemptible=True,
        last_start=datetime(2026, 1, 2, 3, 4, 5, 678000, timezone(timedelta(hours=-8))),
        machine_type="n1-standard-4",
        ssh_keys="transient:ssh-ed25519 AAAA transient",
    )


@pytest.mark.parametrize("http_fields", [{"httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE"}, {}])
async def test_a_stockout_names_the_zones_that_have_capacity(
    api: Api, engine: ComputeEngine, wanted: VmRequest, http_fields: dict[str, Any]
) -> None:
    succeed(api)
    api.on("POST", WAIT, operation(error={"errors": [STOCKOUT]}, **http_fields))
    with pytest.raises(StockoutError) as raised:
        await engine.insert(wanted)
    assert str(raised.value) == (
        "The zone has no capacity for this VM now: A n1-standard-4 VM with 1 K80 is currently unavailable "
        f"(c1-worker-1 in zone {ZONE}). These zones have some: us-central1-a, us-central1-f."
    )


QUOTA = "Quota 'PREEMPTIBLE_NVIDIA_K80_GPUS' exceeded.  Limit: 1.0 in region us-central1."


@pytest.mark.parametrize("early", [True, False])
async def test_a_used_up_quota_is_named_however_it_arrives(
    api: Api, engine: ComputeEngine, wanted: VmRequest, early: bool
) -> None:
    succeed(api)
    details = [{"quotaInfo": {"metricName": "compute.googleapis.com/preemptible_nvidia_k80_gpus", "limit": 1.0}}]
    late = {"errors": [{"code": "QUOTA_EXCEEDED", "message": QUOTA, "errorDetails": details}]}
    if early:
        api.on("POST", INSTANCES, refusal(403, "quotaExceeded", QUOTA))
    else:
        api.on("POST", WAIT, operation(error=late, httpErrorStatusCode=403, httpErrorMessage="FORBIDDEN"))
    with pytest.raises(QuotaError) as raised:
        await engine.insert(wanted)
    assert str(raised.value) == (
        "The quota PREEMPTIBLE_NVIDIA_K80_GPUS of project a-project is used up: limit 1.0 in region us-central1 "
        f"(c1-worker-1 in zone {ZONE}). "
        "Declare fewer VMs, or ask for more at https://console.cloud.google.com/iam-admin/quotas?project=a-project."
    )
    assert len(api.asked("POST", INSTANCES)) == 1


@pytest.mark.parametrize(
    "passing",
    [
        refusal(403, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries'"),
        refusal(429, "rateLimitExceeded", "Too many requests"),
        refusal(500, "internalError", "Internal error"),
        refusal(503, "backendError", "Try again"),
    ],
)
async def test_passing_failures_are_tried_again_as_the_same_request(
    api: Api, engine: ComputeEngine, wanted: VmRequest, passing: tuple[int, dict[str, Any]]
) -> None:
    succeed(api)
    api.on("POST", INSTANCES, passing, operation())
    assert (await engine.insert(wanted)).status == "RUNNING"
    assert [query["requestId"] for query, _ in api.asked("POST", INSTANCES)] == [wanted.request_id] * 2


@pytest.mark.slow
async def test_a_rate_limit_that_stays_is_said_in_the_end(api: Api) -> None:
    api.on("GET", WORKER, refusal(403, "rateLimitExceeded", "Quota exceeded for quota metric 'Read requests'"))
    async with ComputeEngine(PROJECT, api.url, patience=0.5) as engine:
        with pytest.raises(RateLimitError, match="rejects requests, because there were too many"):
            await engine.get(ZONE, "c1-worker-1")
    assert 2 <= len(api.asked("GET", WORKER)) <= 10


async def test_a_vm_that_an_earlier_attempt_made_is_taken_over(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    succeed(api)
    api.on("POST", INSTANCES, refusal(503, "backendError", "lost"), refusal(409, "alreadyExists", "already exists"))
    # Its name is taken before the VM itself can be seen.
    missing = refusal(404, "notFound", "was not found")
    api.on("GET", WORKER, missing, instance("c1-worker-1", status="STAGING"), instance("c1-worker-1"))
    assert (await engine.insert(wanted)).id == "4711"


STRANGERS_KEY = {"items": [{"key": "ssh-keys", "value": "transient:ssh-ed25519 BBBB"}]}


@pytest.mark.parametrize(
    "differing", [{"labels": {"cluster": "other"}}, {"machineType": "n1-standard-64"}, {"metadata": STRANGERS_KEY}]
)
async def test_a_vm_of_someone_else_under_the_same_name_is_not_ours(
    api: Api, engine: ComputeEngine, wanted: VmRequest, differing: dict[str, Any]
) -> None:
    api.on("POST", INSTANCES, refusal(409, "alreadyExists", "The resource 'c1-worker-1' already exists"))
    api.on("GET", WORKER, instance("c1-worker-1", **differing))
    with pytest.raises(AlreadyExistsError, match="The name is in use"):
        await engine.insert(wanted)


async def test_a_vm_taken_away_while_it_starts_is_gone(api: Api, engine: ComputeEngine, wanted: VmRequest) -> None:
    succeed(api)
    api.on("GET", WORKER, instance("c1-worker-1", status="STAGING"), instance("c1-worker-1", status="STOPPING"))
    with pytest.raises(GoneError, match="c1-worker-1 was preempted before it ran"):
        await engine.insert(wanted)


async def test_an_operation_that_was_forgotten_is_looked_up_by_its_vm(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    succeed(api)
    api.on("POST", WAIT, refusal(404, "notFound", "operation-1 was not found"))
    assert (await engine.insert(wanted)).status == "RUNNING"


@pytest.mark.slow
async def test_an_insert_that_never_ends_is_given_up(api: Api, engine: ComputeEngine, wanted: VmRequest) -> None:
    succeed(api)
    api.on("POST", WAIT, operation(status="RUNNING"))
    with pytest.raises(CloudError, match="c1-worker-1 did not start within 1 s"):
        await engine.insert(wanted, timeout=1)


async def test_cancelling_an_insert_returns_at_once(api: Api, engine: ComputeEngine, wanted: VmRequest) -> None:
    succeed(api)
    api.on("POST", WAIT, forever)
    inserting = asyncio.create_task(engine.insert(wanted))
    await api.until_asked("POST", WAIT)
    inserting.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await inserting
    assert time.monotonic() - started < 30


async def test_deleting_what_is_not_there_is_success(api: Api, engine: ComputeEngine) -> None:
    await engine.delete(ZONE, "c1-worker-1", {})
    api.on("GET", WORKER, instance("c1-worker-1"))
    await engine.delete(ZONE, "c1-worker-1", {"cluster": "another"})
    assert not api.asked("DELETE", ".*"), "one of the name without the labels is another's"


@pytest.mark.slow
async def test_delete_returns_when_the_vm_is_gone(api: Api, engine: ComputeEngine) -> None:
    busy = f"The resource 'projects/{PROJECT}/{WORKER}' is not ready"
    failed = {"errors": [{"code": "RESOURCE_NOT_READY", "message": busy}]}
    api.on("DELETE", f"{INSTANCES}/4711", refusal(400, "resourceNotReady", busy), operation())
    api.on("POST", WAIT, operation(error=failed, httpErrorStatusCode=400), operation())
    api.on("GET", WORKER, instance("c1-worker-1", status="STOPPING"), instance("c1-worker-1", id="4712"))
    await engine.delete(ZONE, "c1-worker-1", {"cluster": "c1"})
    assert len(api.asked("GET", WORKER)) == 2, "the next VM of that name is another one"
    first, again, anew = (query["requestId"] for query, _ in api.asked("DELETE", f"{INSTANCES}/4711"))
    assert first == again != anew, "an operation that failed is not asked for its answer again"


async def test_list_asks_for_labels_in_every_zone_and_page(api: Api, engine: ComputeEngine) -> None:
    empty = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results"}}
    first = {"items": {f"zones/{ZONE}": {"instances": [instance("a")]}, "zones/z": empty}, "nextPageToken": "2"}
    second = {"items": {f"zones/{ZONE}": {"instances": [instance("b"), instance("c", labels={})]}}}
    api.on("GET", "aggregated/instances", first, second)
    assert [vm.name for vm in await engine.list({"cluster": "c1"})] == ["a", "b"]
    assert [query["filter"] for query, _ in api.asked("GET", "aggregated/instances")] == ["(labels.cluster = c1)"] * 2


UNREACHABLE: dict[str, Any] = {"warning": {"code": "UNREACHABLE", "message": "The scope could not be reached"}}
FAR = "us-east1-c"


@pytest.mark.parametrize(
    "answer",
    [
        {"items": {f"zones/{FAR}": UNREACHABLE}},
        {"unreachables": [f"projects/{PROJECT}/zones/{FAR}"]},
        {"warning": {"code": "PARTIAL_SUCCESS", "data": [{"key": "scope", "value": f"zones/{FAR}"}]}},
    ],
)
async def test_a_zone_that_does_not_answer_has_not_lost_its_vms(
    api: Api, engine: ComputeEngine, answer: dict[str, Any]
) -> None:
    items = {f"zones/{ZONE}": {"instances": [instance("a")]}, **answer.get("items", {})}
    api.on("GET", "aggregated/instances", {**answer, "items": items})
    for asked in (engine.list({"cluster": "c1"}), engine.list({"cluster": "c1"}, within=(ZONE, FAR))):
        with pytest.raises(UnreachableError, match=f"cannot list the resources of zone {FAR} now"):
            await asked
    assert [vm.name for vm in await engine.list({"cluster": "c1"}, within=(ZONE,))] == ["a"], "of no concern"
    with pytest.raises(UnreachableError):
        await engine.named("a", within=(FAR,))


async def test_a_list_that_does_not_say_what_it_lacks_may_lack_anything(api: Api, engine: ComputeEngine) -> None:
    api.on("GET", "aggregated/instances", {"items": {}, "warning": {"code": "PARTIAL_SUCCESS"}})
    with pytest.raises(UnreachableError, match="every zone"):
        await engine.list({"cluster": "c1"}, within=(ZONE,))


async def test_host_keys_are_awaited_until_the_vm_has_told_them(api: Api, engine: ComputeEngine) -> None:
    nothing = refusal(404, "notFound", "The resource 'hostkeys/' of type 'Guest Attribute' was not found.")
    items = [
        {"namespace": "hostkeys", "key": "ssh-rsa", "value": "AAAAB"},
        {"namespace": "hostkeys", "key": "ssh-ed25519", "value": "AAAAC"},
    ]
    partial, whole = {"queryValue": {"items": items[:1]}}, {"queryValue": {"items": items}}
    api.on("GET", WORKER, instance("c1-worker-1"))
    api.on("GET", f"{WORKER}/getGuestAttributes", nothing, partial, whole)
    assert await engine.host_keys(ZONE, "c1-worker-1") == ["ssh-ed25519 AAAAC", "ssh-rsa AAAAB"]


async def test_host_keys_of_a_vm_that_is_gone_are_not_awaited(engine: ComputeEngine) -> None:
    with pytest.raises(GoneError):
        await engine.host_keys(ZONE, "c1-worker-1")


async def test_host_keys_that_never_come_are_an_error(api: Api, engine: ComputeEngine) -> None:
    api.on("GET", WORKER, instance("c1-worker-1"))
    with pytest.raises(CloudError, match=r"did not report its host keys within 0\.6 s"):
        await engine.host_keys(ZONE, "c1-worker-1", timeout=0.6)


async def test_endings_are_read_from_the_operations_of_the_zone(api: Api, engine: ComputeEngine) -> None:
    taken, later = "2026-09-01T10:00:00.123-07:00", "2026-09-01T10:00:30.000-07:00"
    refused = {"errors": [{"code": "RESOURCE_NOT_READY", "message": "It is not ready."}]}
    items = [
        operation("operation-2", operationType="delete", targetId="7", insertTime=later),
        operation("systemevent-1", operationType="compute.instances.preempted", targetId="7", insertTime=taken),
        operation("operation-3", operationType="insert", targetId="8", insertTime=taken),
        operation("operation-4", operationType="delete", targetId="8", insertTime=taken, error=refused),
        operation("operation-5", operationType="stop", targetId="9", insertTime=taken),
        operation("operation-6", operationType="start", targetId="9", insertTime=later),
        operation("operation-7", operationType="stop", targetId="10", insertTime=taken),
        operation("operation-8", operationType="start", targetId="10", insertTime=taken),
        operation("operation-9", operationType="delete", targetId="10", insertTime=later),
    ]
    api.on("GET", f"zones/{ZONE}/operations", {"items": items})
    moment = datetime.fromisoformat
    assert await engine.endings(ZONE) == {"7": moment(taken), "10": moment(later)}, "since they were started last"


async def test_the_life_of_a_vm_that_is_gone_is_read_from_the_operations_of_the_zone(
    api: Api, engine: ComputeEngine
) -> None:
    def at(minute: int) -> str:
        return f"2026-09-01T10:{minute:02}:00.123-07:00"

    def insert(name: str, number: str, done: int, **more: object) -> dict[str, Any]:
        link = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{name}"
        return operation(
            f"insert-{number}", operationType="insert", targetId=number, endTime=at(done), targetLink=link, **more
        )

    refused = {"errors": [{"code": "UNSUPPORTED_OPERATION", "message": "Instance failed to start."}]}
    items = [
        insert("c1-worker-1", "7", 1), operation("taken-7", operationType="delete", targetId="7", insertTime=at(2)),
        insert("c1-worker-1", "8", 10), operation("taken-8", operationType="delete", targetId="8", insertTime=at(20)),
        insert("c1-worker-2", "9", 30), insert("c1-worker-3", "10", 30, error=refused),
        insert("c1-worker-4", "11", 30), operation("first", operationType="delete", targetId="11", insertTime=at(29)),
    ]  # fmt: skip
    api.on("GET", f"zones/{ZONE}/operations", {"items": items})

    async def life(name: str) -> Life | None:
        return await engine.life(ZONE, name)

    moment = datetime.fromisoformat
    assert await life("c1-worker-1") == Life("8", moment(at(10)), moment(at(20))), "the latest of that name"
    assert await life("c1-worker-2") == Life("9", moment(at(30)), None)
    assert await life("c1-worker-3") is await life("c1-worker-4") is None, "they were gone before they ran"


async def test_a_preemption_is_a_simulated_maintenance_event(api: Api, engine: ComputeEngine) -> None:
    api.on("POST", f"{WORKER}/simulateMaintenanceEvent", operation(status="PENDING"))
    await engine.preempt(ZONE, "c1-worker-1")
    assert len(api.asked("POST", f"{WORKER}/simulateMaintenanceEvent")) == 1
    with pytest.raises(GoneError):
        await engine.preempt(ZONE, "c1-worker-2")


@pytest.mark.parametrize(
    ("answer", "error", "to_type"),
    [
        (refusal(401, "authError", "Invalid Credentials"), AccessError, "gcloud auth application-default login"),
        (refusal(403, "forbidden", "Required 'compute.projects.get' permission"), AccessError, "compute.instanceAdmin"),
        (
            refusal(403, "accessNotConfigured", "Compute Engine API has not been used before or it is disabled."),
            AccessError,
            "gcloud services enable compute.googleapis.com --project a-project",
        ),
        (
            refusal(404, "notFound", "The resource 'projects/a-project' was not found"),
            AccessError,
            "gcloud projects list",
        ),
        (refusal(400, "invalid", "Invalid value for field"), CloudError, ""),
    ],
)
async def test_a_project_that_cannot_be_used_says_what_to_type(
    api: Api, engine: ComputeEngine, answer: tuple[int, dict[str, Any]], error: type[TransientError], to_type: str
) -> None:
    api.on("GET", "", answer)
    with pytest.raises(error) as raised:
        await engine.check()
    assert to_type in raised.value.fix


async def test_a_project_that_can_be_used_passes_the_check(api: Api, engine: ComputeEngine) -> None:
    api.on("GET", "", {"kind": "compute#project", "name": PROJECT})
    await engine.check()


@pytest.mark.slow
async def test_an_api_that_does_not_answer_is_unreachable(unused_port: int) -> None:
    async with ComputeEngine(PROJECT, f"http://127.0.0.1:{unused_port}", patience=0.5) as engine:
        with pytest.raises(UnreachableError, match=f"http://127.0.0.1:{unused_port} does not answer"):
            await engine.list({"cluster": "c1"})


async def test_a_connection_refused_for_a_moment_goes_unnoticed(api: Api, unused_port: int) -> None:
    async def late() -> asyncio.Server:
        await asyncio.sleep(0.3)
        host, port = api.url.removeprefix("http://").split(":")

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection(host, int(port))
            back.write(await reader.read(65536))
            writer.write(await there.read(65536))
            writer.close()
            back.close()

        return await asyncio.start_server(relay, "127.0.0.1", unused_port)

    api.on("GET", WORKER, instance("c1-worker-1"))
    async with asyncio.TaskGroup() as tasks:
        server = tasks.create_task(late())
        async with ComputeEngine(PROJECT, f"http://127.0.0.1:{unused_port}/") as engine:
            assert await engine.get(ZONE, "c1-worker-1") is not None
    server.result().close()


async def test_a_proxy_of_the_environment_is_not_used_for_an_emulator(
    api: Api, monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused_port}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    api.on("GET", WORKER, instance("c1-worker-1"))
    async with ComputeEngine(PROJECT, api.url, patience=2) as engine:
        assert await engine.get(ZONE, "c1-worker-1") is not None


async def test_missing_credentials_say_how_to_get_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, unused_port: int
) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(AccessError, match="gcloud auth application-default login"):
        async with ComputeEngine(PROJECT):
            pass


@pytest.mark.slow
async def test_a_hundred_requests_run_side_by_side(api: Api, engine: ComputeEngine) -> None:
    async def slow() -> dict[str, Any]:
        await asyncio.sleep(0.5)
        return instance("c1-worker-1")

    api.on("GET", WORKER, slow)
    started = time.monotonic()
    await asyncio.gather(*(engine.get(ZONE, "c1-worker-1") for _ in range(120)))
    assert time.monotonic() - started < 40, "one after the other takes 60 s"


def test_importing_the_room_imports_nothing_of_google() -> None:
    program = "import sys, transient_magics.cloud; sys.exit(any(m.startswith('google') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
