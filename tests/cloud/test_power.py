"""VMs that are stopped, changed and started again, as Compute Engine answers: by its emulator, and by a script."""

from __future__ import annotations

from datetime import datetime

import pytest
from scripted_api import ZONE, Api, instance, operation, refusal

from transient_magics.cloud import ComputeEngine
from transient_magics.errors import CloudError, GoneError, QuotaError

WORKER = f"zones/{ZONE}/instances/c1-worker-1"
WAIT = f"zones/{ZONE}/operations/operation-1/wait"
END = datetime.fromisoformat("2026-09-01T10:00:00+00:00")


async def test_an_end_that_was_lost_is_set_again_and_all_else_of_the_scheduling_stays(
    api: Api, engine: ComputeEngine
) -> None:
    api.on("GET", WORKER, instance("c1-worker-1", status="TERMINATED"))
    api.on("POST", f"{WORKER}/setScheduling", operation())
    api.on("POST", WAIT, operation())
    assert (await engine.get(ZONE, "c1-worker-1")).ends is None  # type: ignore[union-attr]
    await engine.power.set_end(ZONE, "c1-worker-1", END)
    ((query, body),) = api.asked("POST", f"{WORKER}/setScheduling")
    assert query["requestId"]
    assert body == {
        "preemptible": True, "provisioningModel": "SPOT", "terminationTime": "2026-09-01T10:00:00Z",
        "instanceTerminationAction": "DELETE",
    }  # fmt: skip
    api.on("GET", WORKER, instance("c1-worker-1", scheduling=body))
    assert (await engine.get(ZONE, "c1-worker-1")).ends == END  # type: ignore[union-attr]


async def test_a_machine_type_is_named_by_its_zone(api: Api, engine: ComputeEngine) -> None:
    api.on("POST", f"{WORKER}/setMachineType", operation())
    api.on("POST", WAIT, operation())
    await engine.power.set_machine_type(ZONE, "c1-worker-1", "n1-standard-2")
    ((_, body),) = api.asked("POST", f"{WORKER}/setMachineType")
    assert body == {"machineType": f"zones/{ZONE}/machineTypes/n1-standard-2"}


async def test_what_is_refused_is_an_error(api: Api, engine: ComputeEngine) -> None:
    said = "Machine type cannot be changed while instance is running."
    api.on("POST", f"{WORKER}/setMachineType", refusal(400, "invalid", said))
    with pytest.raises(CloudError, match="cannot be changed while"):
        await engine.power.set_machine_type(ZONE, "c1-worker-1", "n1-standard-2")
    with pytest.raises(GoneError):
        await engine.power.start(ZONE, "c1-worker-1")
    api.on("POST", f"{WORKER}/start", operation(status="PENDING"))
    quota = {"code": "QUOTA_EXCEEDED", "message": "Quota 'CPUS' exceeded.  Limit: 8.0 in region us-central1."}
    api.on("POST", WAIT, operation(error={"errors": [quota]}, httpErrorStatusCode=403, httpErrorMessage="FORBIDDEN"))
    with pytest.raises(QuotaError):
        await engine.power.start(ZONE, "c1-worker-1")
    api.on("GET", WORKER, instance("c1-worker-1", status="TERMINATED"))
    lost = {"code": "RESOURCE_NOT_FOUND", "message": "The resource 'projects/p/zones/z/disks/d' was not found"}
    api.on("POST", WAIT, operation(error={"errors": [lost]}, httpErrorStatusCode=404, httpErrorMessage="NOT FOUND"))
    with pytest.raises(GoneError, match="disks/d"):  # the VM is there: it did not start for all that
        await engine.power.start(ZONE, "c1-worker-1")


@pytest.mark.slow
async def test_what_never_ends_is_waited_for_so_long_and_no_longer(api: Api, engine: ComputeEngine) -> None:
    api.on("GET", WORKER, instance("c1-worker-1", status="TERMINATED"))
    for verb in ("setMachineType", "setScheduling"):
        api.on("POST", f"{WORKER}/{verb}", operation(status="PENDING"))
    api.on("POST", WAIT, operation(status="PENDING"))
    with pytest.raises(CloudError, match=r"c1-worker-1 did not become n1-standard-2 within 0\.5 s"):
        await engine.power.set_machine_type(ZONE, "c1-worker-1", "n1-standard-2", timeout=0.5)
    with pytest.raises(CloudError, match=r"The end of c1-worker-1 was not set within 0\.5 s"):
        await engine.power.set_end(ZONE, "c1-worker-1", END, timeout=0.5)


LOCAL = {"type": "SCRATCH", "interface": "NVME", "index": 1}
BOOT = {"type": "PERSISTENT", "boot": True, "index": 0}


@pytest.mark.parametrize(("disks", "discard"), [([BOOT], None), ([BOOT, LOCAL], "true")])
async def test_a_stop_discards_local_ssds_where_there_are_any(
    api: Api, engine: ComputeEngine, disks: list[dict[str, object]], discard: str | None
) -> None:
    stopped = instance("c1-worker-1", disks=disks, status="TERMINATED")
    api.on("GET", WORKER, instance("c1-worker-1", disks=disks), stopped)
    api.on("POST", f"{WORKER}/stop", operation())
    api.on("POST", WAIT, operation())
    await engine.power.stop(ZONE, "c1-worker-1")
    ((query, _),) = api.asked("POST", f"{WORKER}/stop")
    assert query.get("discardLocalSsd") == discard
