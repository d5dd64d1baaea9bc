"""Many VMs by one request: what is asked for, and what becomes of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scripted_api import PROJECT, ZONE, Api, instance, operation, refusal

from transient_magics.cloud import ComputeEngine, Vm, VmRequest
from transient_magics.errors import (
    AccessError,
    AlreadyExistsError,
    CloudError,
    GoneError,
    QuotaError,
    StockoutError,
)

BULK = f"zones/{ZONE}/instances/bulkInsert"
OPERATIONS = f"zones/{ZONE}/operations"
WAIT = f"{OPERATIONS}/operation-1/wait"
ALL = "aggregated/instances"
GROUP = {"operationType": "bulkInsert", "operationGroupId": "group-1"}


@pytest.fixture
def many(wanted: VmRequest) -> list[VmRequest]:
    return [replace(wanted, name=f"c1-worker-{number}", request_id="") for number in (1, 2, 3)]


def listed(*instances: dict[str, Any]) -> dict[str, Any]:
    return {"items": {f"zones/{ZONE}": {"instances": list(instances)}}}


def failed_insert(name: str, code: str) -> dict[str, Any]:
    target = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{name}"
    error = {"errors": [{"code": code, "message": f"The zone '{ZONE}' does not have enough resources available."}]}
    return operation(f"operation-{name}", **GROUP | {"operationType": "insert"}, targetLink=target, error=error)


async def test_one_request_makes_all_of_them(api: Api, engine: ComputeEngine, many: list[VmRequest]) -> None:
    api.on("POST", BULK, operation(status="RUNNING", progress=0, **GROUP))
    api.on("POST", WAIT, operation(**GROUP))
    api.on("GET", OPERATIONS, {"items": []})
    api.on(
        "GET", ALL,
        listed(*(instance(each.name, status="STAGING") for each in many)),
        listed(*(instance(each.name) for each in many)),
    )  # fmt: skip
    made = await engine.insert_many(many)
    assert {name: vm.status for name, vm in made.items() if isinstance(vm, Vm)} == {
        each.name: "RUNNING" for each in many
    }
    ((query, body),) = api.asked("POST", BULK)
    assert query["requestId"]
    assert (body["count"], body["minCount"]) == ("3", "1")
    assert set(body["perInstanceProperties"]) == {each.name for each in many}
    properties = body["instanceProperties"]
    assert properties["machineType"] == "n1-standard-4"
    assert properties["guestAccelerators"][0]["acceleratorType"] == "nvidia-tesla-k80"
    assert properties["disks"][0]["initializeParams"]["diskType"] == "pd-balanced"
    assert properties["labels"] == many[0].labels
    assert not api.asked("GET", f"zones/{ZONE}/instances/.*"), "nothing is asked per VM"


async def test_those_that_cannot_be_had_are_told_one_by_one(
    api: Api, engine: ComputeEngine, many: list[VmRequest]
) -> None:
    api.on("POST", BULK, operation(**GROUP))
    api.on("POST", WAIT, operation(**GROUP))
    api.on("GET", OPERATIONS, {"items": [failed_insert("c1-worker-3", "ZONE_RESOURCE_POOL_EXHAUSTED")]})
    api.on("GET", ALL, listed(instance("c1-worker-1"), instance("c1-worker-2", status="TERMINATED")))
    made = await engine.insert_many(many)
    assert isinstance(made["c1-worker-1"], Vm)
    assert isinstance(made["c1-worker-2"], GoneError)
    assert isinstance(made["c1-worker-3"], StockoutError)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", "not enough resources"),
        ("REGION_RESOURCE_POOL_EXHAUSTED", "not enough resources"),
        ("GPU_STOCKOUT", "none"),
        ("PREEMPTED", "none"),
        ("NEW_CODE", "The zone 'projects/p/zones/z' does not have enough resources available to fulfill the request."),
        ("UNSUPPORTED_OPERATION", "Instance failed to start due to preemption."),
    ],
)
async def test_a_whole_stockout_is_everyones(
    api: Api, engine: ComputeEngine, many: list[VmRequest], code: str, message: str
) -> None:
    error = {"errors": [{"code": code, "message": message}]}
    api.on("POST", BULK, operation(**GROUP))
    api.on("POST", WAIT, operation(**GROUP, error=error, httpErrorStatusCode=503))
    api.on("GET", OPERATIONS, {"items": []})
    api.on("GET", ALL, listed())
    made = await engine.insert_many(many)
    assert [type(each) for each in made.values()] == [StockoutError] * 3


async def test_a_request_that_is_refused_as_a_whole_raises(
    api: Api, engine: ComputeEngine, many: list[VmRequest]
) -> None:
    api.on("POST", BULK, refusal(403, "quotaExceeded", "Quota 'CPUS' exceeded.  Limit: 8.0 in region us-central1."))
    with pytest.raises(QuotaError, match="CPUS"):
        await engine.insert_many(many)


async def test_a_notice_that_is_refused_is_dropped_for_all_of_them(
    api: Api, engine: ComputeEngine, many: list[VmRequest]
) -> None:
    why = "Invalid value for field 'resource.instanceProperties.scheduling.preemptionNoticeDuration': ''."
    api.on("POST", BULK, refusal(400, "invalid", why), operation(status="RUNNING", progress=0, **GROUP))
    api.on("POST", WAIT, operation(**GROUP))
    api.on("GET", OPERATIONS, {"items": []})
    api.on("GET", ALL, listed(), listed(*(instance(each.name) for each in many)))
    made = await engine.insert_many([replace(each, notice_seconds=120) for each in many])
    assert not [each for each in made.values() if isinstance(each, CloudError)]
    first, second = (body["instanceProperties"]["scheduling"] for _, body in api.asked("POST", BULK))
    assert ("preemptionNoticeDuration" in first, "preemptionNoticeDuration" in second) == (True, False)


async def test_so_is_one_that_only_the_operation_refuses(
    api: Api, engine: ComputeEngine, many: list[VmRequest]
) -> None:
    why = "Invalid value for field 'scheduling.preemptionNoticeDuration'."
    error = {"errors": [{"code": "INVALID_FIELD_VALUE", "message": why}]}
    api.on("POST", BULK, operation(**GROUP), operation("operation-2", **GROUP))
    api.on("POST", WAIT, operation(**GROUP, error=error, httpErrorStatusCode=400))
    api.on("POST", f"{OPERATIONS}/operation-2/wait", operation("operation-2", **GROUP))
    api.on("GET", OPERATIONS, {"items": []})
    api.on("GET", ALL, listed(), listed(*(instance(each.name) for each in many)))
    made = await engine.insert_many([replace(each, notice_seconds=120) for each in many])
    assert not [each for each in made.values() if isinstance(each, CloudError)]
    assert "requested without it" in engine.notice_refused


async def test_what_an_earlier_attempt_made_is_taken_over(
    api: Api, engine: ComputeEngine, many: list[VmRequest]
) -> None:
    api.on("POST", BULK, refusal(503, "backendError", "lost"), refusal(409, "alreadyExists", "already exists"))
    api.on("GET", ALL, listed(*(instance(each.name) for each in many)))
    assert all(isinstance(each, Vm) for each in (await engine.insert_many(many)).values())
    assert len({query["requestId"] for query, _ in api.asked("POST", BULK)}) == 1


async def test_what_runs_under_our_labels_but_is_not_what_we_asked_for_is_not_ours(
    api: Api, engine: ComputeEngine, many: list[VmRequest]
) -> None:
    api.on("POST", BULK, refusal(409, "alreadyExists", "The resource 'c1-worker-1' already exists"))
    others = {"items": [{"key": "ssh-keys", "value": "transient:ssh-ed25519 BBBB"}]}
    api.on("GET", ALL, listed(instance(many[0].name, metadata=others), *(instance(each.name) for each in many[1:])))
    made = await engine.insert_many(many)
    assert isinstance(made[many[0].name], AlreadyExistsError)
    assert all(isinstance(made[each.name], Vm) for each in many[1:])


async def test_a_missing_image_is_no_vm_that_went(api: Api, engine: ComputeEngine, many: list[VmRequest]) -> None:
    missing = refusal(404, "notFound", "The resource 'projects/a/global/images/family/b' was not found")
    api.on("POST", BULK, missing)
    api.on("POST", f"zones/{ZONE}/instances", missing)
    api.on("GET", ALL, listed())
    for outcome in (await engine.insert_many(many)).values():
        assert isinstance(outcome, CloudError)
        assert not isinstance(outcome, GoneError)
    with pytest.raises(CloudError, match="A resource that the VM needs does not exist") as raised:
        await engine.insert(many[0])
    assert not isinstance(raised.value, GoneError)


@pytest.mark.slow
@pytest.mark.parametrize("waits", [operation(**GROUP), operation(status="RUNNING", progress=66, **GROUP)])
async def test_one_that_does_not_start_takes_none_of_the_others_along(
    api: Api, engine: ComputeEngine, many: list[VmRequest], waits: dict[str, Any]
) -> None:
    api.on("POST", BULK, operation(**GROUP))
    api.on("POST", WAIT, waits)
    api.on("GET", OPERATIONS, {"items": [failed_insert("c1-worker-3", "ZONE_RESOURCE_POOL_EXHAUSTED")]})
    api.on("GET", ALL, listed(instance("c1-worker-1"), instance("c1-worker-2", status="STAGING")))
    made = await engine.insert_many(many, timeout=1.0)
    assert isinstance(made["c1-worker-1"], Vm)
    assert isinstance(made["c1-worker-2"], CloudError)
    assert "did not start within 1 s" in str(made["c1-worker-2"])
    assert isinstance(made["c1-worker-3"], StockoutError if waits["status"] == "DONE" else CloudError)


async def test_a_list_that_is_refused_later_takes_those_that_run_along_no_more(
    api: Api, engine: ComputeEngine, many: list[VmRequest]
) -> None:
    api.on("POST", BULK, operation(**GROUP))
    api.on("POST", WAIT, operation(**GROUP))
    api.on("GET", OPERATIONS, {"items": []})
    started = listed(instance("c1-worker-1"), instance("c1-worker-2"), instance("c1-worker-3", status="STAGING"))
    api.on("GET", ALL, started, refusal(403, "forbidden", "Required 'compute.instances.list' permission"))
    made = await engine.insert_many(many)
    assert [type(each) for each in made.values()] == [Vm, Vm, AccessError]


@pytest.mark.parametrize("whole", [True, False])
async def test_who_may_not_list_operations_still_learns_what_became_of_the_vms(
    api: Api, engine: ComputeEngine, many: list[VmRequest], whole: bool
) -> None:
    """`whole`: none could be had, which the operation of the request says itself."""
    errors = [
        {"code": "VM_MIN_COUNT_NOT_REACHED", "message": "Requested minimum count of 1 VMs could not be created."},
        {"code": "QUOTA_EXCEEDED", "message": "Quota 'CPUS' exceeded.  Limit: 8.0 in region us-central1."},
    ]
    api.on("POST", BULK, operation(**GROUP))
    api.on("POST", WAIT, operation(**GROUP, **({"error": {"errors": errors}} if whole else {})))
    api.on("GET", OPERATIONS, refusal(403, "forbidden", "Required 'compute.zoneOperations.list' permission"))
    api.on("GET", ALL, listed() if whole else listed(instance("c1-worker-1")))
    made = await engine.insert_many(many)
    if whole:
        assert {type(outcome) for outcome in made.values()} == {QuotaError}
        return
    assert isinstance(made["c1-worker-1"], Vm)
    for name in ("c1-worker-2", "c1-worker-3"):
        assert type(made[name]) is CloudError, "a right would not bring the VM"
        assert "the reason cannot be read" in str(made[name])
        assert "compute.zoneOperations.list" in str(made[name])
