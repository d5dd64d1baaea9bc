"""The same door onto the emulator: a VM's whole life through Google's own client, without an account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import BadRequest
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1
from google_hosts import mounted
from scripted_api import ZONE

from tests.conftest import Emulate
from transient_magics.cli.arguments import parse
from transient_magics.client import Declaration, specify
from transient_magics.cloud import ComputeEngine, VmRequest, request_id
from transient_magics.controller.programs.preflight import first_requests
from transient_magics.errors import AlreadyExistsError, GoneError


@pytest.fixture(scope="module")
def url(emulate: Emulate) -> Iterator[str]:
    with emulate("--boot", "0.3", "--notice", "0.5") as url:
        yield url


@pytest.fixture
def _at_googles_names(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with mounted(url, tmp_path, monkeypatch):
        yield


@pytest.fixture
async def emulated(_at_googles_names: None) -> AsyncIterator[ComputeEngine]:
    async with ComputeEngine("emulated-project") as engine:
        yield engine
        for vm in await engine.list({}):
            await engine.delete(vm.zone, vm.name, {})


@pytest.mark.slow
async def test_a_vm_lives_and_is_deleted(emulated: ComputeEngine, wanted: VmRequest) -> None:
    await emulated.check()
    vm = await emulated.insert(wanted)
    assert (vm.name, vm.zone, vm.status, vm.preemptible) == (wanted.name, ZONE, "RUNNING", True)
    assert vm.address.startswith("10.128.")
    assert await emulated.get(ZONE, wanted.name) == vm
    assert await emulated.list({"cluster": "c1"}) == [vm]
    assert await emulated.list({"cluster": "c2"}) == []
    assert (await emulated.host_keys(ZONE, wanted.name))[0].startswith("ssh-ed25519 AAAA")
    await emulated.delete(ZONE, wanted.name, wanted.labels)
    assert await emulated.get(ZONE, wanted.name) is None
    await emulated.delete(ZONE, wanted.name, wanted.labels)


async def test_the_same_request_again_is_the_same_vm(emulated: ComputeEngine, wanted: VmRequest) -> None:
    vm = await emulated.insert(replace(wanted, name="c1-again", request_id=request_id("again")))
    assert await emulated.insert(replace(wanted, name="c1-again", request_id=request_id("again"))) == vm
    assert await emulated.insert(replace(wanted, name="c1-again", request_id=request_id("another"))) == vm
    with pytest.raises(AlreadyExistsError):
        await emulated.insert(replace(wanted, name="c1-again", labels={"cluster": "c2"}, request_id=request_id("c2")))


async def test_a_cancelled_insert_is_continued_by_the_same_request(emulated: ComputeEngine, wanted: VmRequest) -> None:
    request = replace(wanted, name="c1-cancelled", request_id=request_id("cancelled"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await emulated.insert(request)
    vm = await emulated.insert(request)
    assert [each.id for each in await emulated.list({"cluster": "c1"})] == [vm.id]


@pytest.mark.slow
async def test_vms_are_made_side_by_side(emulated: ComputeEngine, wanted: VmRequest) -> None:
    names = [f"c1-many-{number}" for number in range(8)]
    requests = [replace(wanted, name=name, request_id=request_id(name)) for name in names]
    vms = await asyncio.gather(*map(emulated.insert, requests))
    assert len({vm.address for vm in vms}) == 8
    await asyncio.gather(*(emulated.delete(ZONE, name, {}) for name in names))
    assert await emulated.list({"cluster": "c1"}) == []


@pytest.mark.slow
async def test_a_preempted_vm_goes_and_is_remembered(emulated: ComputeEngine, wanted: VmRequest) -> None:
    vm = await emulated.insert(replace(wanted, name="c1-preempted", request_id=request_id("preempted")))
    before = datetime.now(UTC) - timedelta(milliseconds=1)  # Compute Engine's times have milliseconds
    await emulated.preempt(ZONE, "c1-preempted")
    async with asyncio.timeout(60):
        while await emulated.get(ZONE, "c1-preempted") is not None:  # noqa: ASYNC110 (the API has no events)
            await asyncio.sleep(0.1)
    assert before <= (await emulated.endings(ZONE))[vm.id] < datetime.now(UTC)
    with pytest.raises(GoneError):
        await emulated.host_keys(ZONE, "c1-preempted")


async def test_a_vm_with_local_ssds_is_stopped_as_google_demands(
    emulated: ComputeEngine, url: str, wanted: VmRequest
) -> None:
    request = replace(wanted, name="c1-local", machine_type="a2-ultragpu-1g", request_id=request_id("local"))
    await emulated.insert(replace(request, accelerator="", accelerator_count=0))
    client = compute_v1.InstancesClient(
        credentials=AnonymousCredentials(), client_options=ClientOptions(api_endpoint=url)
    )
    where = {"project": "emulated-project", "zone": ZONE, "instance": "c1-local"}
    with pytest.raises(BadRequest, match="undefined value for `discard-local-ssd`"):
        client.stop_unary(**where)
    await emulated.power.stop(ZONE, "c1-local")
    assert (await emulated.get(ZONE, "c1-local")).status == "TERMINATED"  # type: ignore[union-attr]


async def test_a_declared_machine_and_disk_are_what_the_vm_has(emulated: ComputeEngine, url: str) -> None:
    """From the line in a cell to what Google's client is told of the VM and of its disk."""
    line = "t4 --zone us-central1-a --name big --machine-type n1-standard-16 --disk 200GB:ssd --ps-zone us-central1-c"
    spec = specify(Declaration(**parse("cluster", line.split()).values))
    for request in first_requests(spec):
        vm = await emulated.insert(replace(request, image=""))
        disks = compute_v1.DisksClient(
            credentials=AnonymousCredentials(), client_options=ClientOptions(api_endpoint=url)
        )
        disk = disks.get(project="emulated-project", zone=request.zone, disk=request.name)
        assert (disk.size_gb, disk.type_.rpartition("/")[2]) == (200, "pd-ssd")
        machine = {
            "big-ps-0": ("us-central1-c", "n1-custom-4-16384"),
            "big-worker-0": ("us-central1-a", "n1-standard-16"),
        }
        assert (vm.zone, vm.machine_type) == machine[vm.name]
