"""What Compute Engine is asked for when a VM is to be made."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from scripted_api import ZONE, Api, operation, refusal, succeed

from tests.emulator.discovery import faults
from transient_magics.cloud import ComputeEngine, VmRequest, request_id
from transient_magics.protocol.layout import NOTICE_KEY


async def sent(api: Api, engine: ComputeEngine, request: VmRequest) -> Any:
    succeed(api)
    await engine.insert(request)
    ((query, body),) = api.asked("POST", f"zones/{ZONE}/instances")
    assert query["requestId"] == request.request_id
    assert faults("Instance", body) == []
    return body


async def test_a_spot_vm_ends_at_its_time_limit_by_deletion(api: Api, engine: ComputeEngine, wanted: VmRequest) -> None:
    limit = datetime(2026, 5, 6, 9, 8, 7, 999, tzinfo=timezone(timedelta(hours=2)))
    body = await sent(api, engine, replace(wanted, termination_time=limit))
    assert body["scheduling"] == {
        "provisioningModel": "SPOT",
        "preemptible": True,
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "terminationTime": "2026-05-06T07:08:07Z",
    }
    assert body["guestAccelerators"] == [
        {"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-k80", "acceleratorCount": 1}
    ]


async def test_a_spot_vm_requests_a_longer_notice_and_its_metadata_has_it(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    body = await sent(api, engine, replace(wanted, notice_seconds=120))
    assert body["scheduling"]["preemptionNoticeDuration"] == {"seconds": "120"}
    assert {"key": NOTICE_KEY, "value": "120"} in body["metadata"]["items"]


async def test_a_notice_that_compute_engine_refuses_is_dropped_for_good(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    succeed(api)
    why = "Invalid value for field 'resource.scheduling.preemptionNoticeDuration': ''. Not available in this project."
    api.on("POST", f"zones/{ZONE}/instances", refusal(400, "invalid", why), operation())
    for _ in range(2):
        await engine.insert(replace(wanted, notice_seconds=120))
    bodies = [body for _, body in api.asked("POST", f"zones/{ZONE}/instances")]
    assert ["preemptionNoticeDuration" in body["scheduling"] for body in bodies] == [True, False, False]
    assert NOTICE_KEY not in str(bodies[1:])
    assert "requested without it" in engine.notice_refused
    assert "Not available" in engine.notice_refused


async def test_a_legacy_preemptible_vm_carries_no_time_limit(
    api: Api, engine: ComputeEngine, wanted: VmRequest
) -> None:
    body = await sent(
        api, engine, replace(wanted, provisioning_model="preemptible", termination_time=datetime.now(UTC))
    )
    assert body["scheduling"] == {"preemptible": True, "onHostMaintenance": "TERMINATE", "automaticRestart": False}


async def test_an_on_demand_vm_ends_at_its_time_limit_too(api: Api, engine: ComputeEngine, wanted: VmRequest) -> None:
    limit = datetime(2026, 5, 6, tzinfo=UTC)
    body = await sent(
        api, engine, replace(wanted, provisioning_model="standard", accelerator="", termination_time=limit)
    )
    assert body["scheduling"] == {
        "provisioningModel": "STANDARD",
        "onHostMaintenance": "MIGRATE",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "terminationTime": "2026-05-06T00:00:00Z",
    }
    assert "guestAccelerators" not in body
    assert "serviceAccounts" not in body


async def test_labels_keys_and_network_are_sent_whole(api: Api, engine: ComputeEngine, wanted: VmRequest) -> None:
    request = replace(
        wanted,
        metadata={"startup-script": "true", "enable-oslogin": "TRUE"},
        subnet="inner",
        external_ip=False,
        service_account="default",
        image="projects/p/global/images/family/f",
        disk_gb=80,
    )
    body = await sent(api, engine, request)
    assert body["labels"] == {"cluster": "c1"}
    (disk,) = body["disks"]
    assert disk["autoDelete"] is True
    assert disk["initializeParams"] == {
        "sourceImage": "projects/p/global/images/family/f",
        "diskSizeGb": "80",
        "diskType": f"zones/{ZONE}/diskTypes/pd-balanced",
        "labels": {"cluster": "c1"},
    }
    assert body["networkInterfaces"] == [{"subnetwork": "regions/us-central1/subnetworks/inner"}]
    assert {item["key"]: item["value"] for item in body["metadata"]["items"]} == {
        "startup-script": "true",
        "ssh-keys": "transient:ssh-ed25519 AAAA transient",
        "block-project-ssh-keys": "true",
        "enable-guest-attributes": "TRUE",
        "enable-oslogin": "FALSE",
    }
    (account,) = body["serviceAccounts"]
    assert account["scopes"] == ["https://www.googleapis.com/auth/cloud-platform"]


def test_the_identity_of_a_request_follows_from_what_it_is_for() -> None:
    assert request_id("c1", "worker-1", 1) == request_id("c1", "worker-1", 1)
    assert request_id("c1", "worker-1", 1) != request_id("c1", "worker-1", 2)
    assert request_id("c1", "worker-1") != request_id("c1worker", "-1")
