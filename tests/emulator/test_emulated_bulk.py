from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from discovery import faults
from emulated_cloud import PROJECT, ZONE, Cloud, http_request, start, vm
from google.api_core import exceptions
from google.cloud import compute_v1

_BASE = f"/compute/v1/projects/{PROJECT}"
_ZONE = f"{_BASE}/zones/{ZONE}"


def _properties(machine: str) -> compute_v1.InstanceProperties:
    like = vm("any")
    return compute_v1.InstanceProperties(
        machine_type=machine, scheduling=like.scheduling, disks=like.disks, metadata=like.metadata,
        network_interfaces=like.network_interfaces, labels={"run": "bulk"},
        guest_accelerators=[compute_v1.AcceleratorConfig(accelerator_type="nvidia-tesla-k80", accelerator_count=1)],
    )  # fmt: skip


def _bulk(cloud: Cloud, request_id: str | None = None, machine: str = "n1-standard-4", **fields: Any) -> dict[str, Any]:
    resource = compute_v1.BulkInsertInstanceResource(instance_properties=_properties(machine), **fields)
    request = compute_v1.BulkInsertInstanceRequest(
        project=PROJECT, zone=ZONE, bulk_insert_instance_resource_resource=resource, request_id=request_id
    )
    operation = cloud.instances.bulk_insert_unary(request)
    return _wait(cloud, f"{_ZONE}/operations/{operation.name}")


def _wait(cloud: Cloud, path: str) -> dict[str, Any]:
    operation: dict[str, Any] = {}
    while operation.get("status") != "DONE":
        operation = http_request(cloud.running.url, "POST", f"{path}/wait")[1]
        assert faults("Operation", operation) == []
    return operation


def _siblings(cloud: Cloud, bulk: dict[str, Any]) -> list[dict[str, Any]]:
    path = f"{_ZONE}/operations?filter=operationGroupId={bulk['operationGroupId']}"
    found = http_request(cloud.running.url, "GET", path)[1]["items"]
    return [each for each in found if each["operationType"] == "insert"]


def _counts(operation: dict[str, Any], zone: str = ZONE) -> tuple[int, int, int, int]:
    status = operation["instancesBulkInsertOperationMetadata"]["perLocationStatus"][f"zones/{zone}"]
    assert status["status"] == "DONE"
    keys = ("targetVmCount", "createdVmCount", "failedToCreateVmCount", "deletedVmCount")
    return tuple(status[key] for key in keys)  # type: ignore[return-value]


def test_one_operation_makes_many_vms(cloud: Cloud) -> None:
    request = str(uuid.uuid4())
    operation = _bulk(cloud, request, count=5, name_pattern="b-##")
    assert (operation["operationType"], operation.get("error")) == ("bulkInsert", None)
    assert _counts(operation) == (5, 5, 0, 0)
    assert cloud.names() == {f"b-0{number}" for number in range(1, 6)}
    assert {cloud.get(name).status for name in cloud.names()} == {"RUNNING"}
    assert {each["status"] for each in _siblings(cloud, operation)} == {"DONE"}
    assert len(_siblings(cloud, operation)) == 5
    assert _bulk(cloud, request, count=5, name_pattern="b-##")["name"] == operation["name"]
    assert len(cloud.names()) == 5
    _bulk(cloud, count=1, name_pattern="b-##")
    assert "b-06" in cloud.names()


def test_what_fails_is_told_by_an_operation_of_the_same_group(cloud: Cloud) -> None:
    cloud.create("taken")
    names = {name: {} for name in ("x1", "taken", "x2")}
    operation = _bulk(cloud, count=3, min_count=1, per_instance_properties=names)
    assert operation.get("error") is None
    assert _counts(operation) == (3, 2, 1, 0)
    assert cloud.names() == {"taken", "x1", "x2"}
    (failed,) = [each for each in _siblings(cloud, operation) if each.get("error")]
    assert failed["targetLink"].endswith("/instances/taken")
    assert failed["error"]["errors"][0]["code"] == "RESOURCE_ALREADY_EXISTS"
    assert failed["httpErrorStatusCode"] == 409


def test_fewer_than_the_least_is_none(cloud: Cloud) -> None:
    kept = cloud.create("taken").id
    operation = _bulk(cloud, per_instance_properties={name: {} for name in ("x1", "taken", "x2")})
    codes = [each["code"] for each in operation["error"]["errors"]]
    assert codes == ["VM_MIN_COUNT_NOT_REACHED", "RESOURCE_ALREADY_EXISTS"]
    assert operation["error"]["errors"][0]["message"] == "Requested minimum count of 3 VMs could not be created."
    assert operation["httpErrorStatusCode"] == 409
    assert _counts(operation) == (3, 2, 1, 2)
    assert cloud.names() == {"taken"}
    assert cloud.get("taken").id == kept


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"count": 2}, "namePattern"),
        ({"count": 2, "name_pattern": "no-hash"}, "namePattern"),
        ({"count": 100, "name_pattern": "b-#"}, "no room"),
        ({"count": 2, "min_count": 3, "name_pattern": "b-#"}, "minCount"),
        ({"count": 1001, "name_pattern": "b-####"}, "count"),
        ({"count": 3, "per_instance_properties": {"a": {}}}, "count"),
        ({"count": 2, "name_pattern": "B-#"}, "resource.name"),
        ({"count": 2, "name_pattern": "b-#", "machine": "n9-standard-4"}, "machineType"),
    ],
)
def test_an_illegal_request_makes_nothing(cloud: Cloud, fields: dict[str, Any], word: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=word):
        _bulk(cloud, **fields)
    assert cloud.names() == set()


@pytest.mark.slow
def test_a_region_chooses_the_zones(cloud: Cloud) -> None:
    regions = cloud.client(compute_v1.RegionInstancesClient)

    def insert(prefix: str, **policy: Any) -> dict[str, Any]:
        resource = compute_v1.BulkInsertInstanceResource(
            per_instance_properties={f"{prefix}-{number}": {} for number in range(4)},
            instance_properties=_properties("n1-standard-4"), location_policy=compute_v1.LocationPolicy(**policy),
        )  # fmt: skip
        operation = regions.bulk_insert_unary(
            project=PROJECT, region="us-central1", bulk_insert_instance_resource_resource=resource
        )
        return _wait(cloud, f"{_BASE}/regions/us-central1/operations/{operation.name}")

    allow = {f"zones/us-central1-{letter}": {"preference": preference} for letter, preference in
             {"a": "DENY", "b": "ALLOW", "c": "ALLOW"}.items()}  # fmt: skip
    try:
        # Zone b has no K80.
        assert _counts(insert("one", locations=allow)) == (4, 4, 0, 0)
        spread = insert("all", target_shape="BALANCED")
        assert (_counts(spread, "us-central1-a"), _counts(spread)) == ((2, 2, 0, 0), (2, 2, 0, 0))
        cloud.create("cut-3")
        moved = insert("cut", locations={"zones/us-central1-c": {"preference": "ALLOW"}})
        assert moved.get("error") is None
        assert (_counts(moved), _counts(moved, "us-central1-a")) == ((4, 3, 1, 3), (4, 4, 0, 0))
        with pytest.raises(exceptions.BadRequest):
            insert("no", locations={"zones/us-east1-c": {"preference": "ALLOW"}})
    finally:
        for operation in [
            cloud.instances.delete_unary(project=PROJECT, zone="us-central1-a", instance=each.name)
            for each in cloud.instances.list(project=PROJECT, zone="us-central1-a")
        ]:
            cloud.wait(operation, "us-central1-a")


@pytest.mark.slow
def test_a_bulk_insert_survives_the_death_of_the_emulator(state: Path) -> None:
    first = start(state)
    cloud = Cloud(first)
    body = {
        "count": "6", "namePattern": "b-#",
        "instanceProperties": {
            "machineType": "n1-standard-1", "disks": [{"boot": True, "autoDelete": True}], "networkInterfaces": [{}],
        },
    }  # fmt: skip
    operation = http_request(first.url, "POST", f"{_ZONE}/instances/bulkInsert", body)[1]
    first.process.kill()
    first.process.wait()
    second = start(state)
    operation = _wait(cloud, f"{_ZONE}/operations/{operation['name']}")
    assert (operation.get("error"), _counts(operation)) == (None, (6, 6, 0, 0))
    assert cloud.names() == {f"b-{number}" for number in range(1, 7)}
    second.process.terminate()
    assert second.process.wait(60) == 0
