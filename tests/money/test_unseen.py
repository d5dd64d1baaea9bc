"""VMs that nobody knew of are on the bill: those that came and went unseen, and those that came after all.

A controller that was killed between asking and seeing finds the first; the second begin to run when the request for
them was taken for failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.steered import steered, swift_emulator, weather
from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.cloud import ComputeEngine
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.fleet import Fleet
from transient_magics.controller.vms.machines import vm_request
from transient_magics.journal import ClusterState, Journal, bill, events, now
from transient_magics.journal.declared import agree
from transient_magics.remote import generate_key
from transient_magics.spec import ClusterSpec

from .catalog_prices import catalog_prices
from .comparing import differences
from .observer import Observer
from .reckoning import reckon

ZONE = "us-west1-b"
WORKER: dict[str, Any] = {
    "role": "worker", "slot": 0, "zone": ZONE, "accelerator": "t4", "machine_type": "n1-standard-4",
    "provisioning_model": "spot", "hourly": 1.0, "on_demand_hourly": 3.0,
}  # fmt: skip
TAKEN, SENT_AWAY = "worker-0", "worker-1"
PATIENCE = 100.0


@pytest.fixture
def url() -> Iterator[str]:
    with swift_emulator() as place:
        yield place


async def killed_before_it_saw_them(
    spec: ClusterSpec, access: Access, recorder: Recorder, key: str
) -> dict[str, tuple[float, float]]:
    """VMs that are asked for and run, the first for ten minutes of the emulated clock; by name, since when and until
    when at least."""
    ran: dict[str, tuple[float, float]] = {}
    for name in (TAKEN, SENT_AWAY):
        event = events.VmRequested(vm=name, **WORKER)
        recorder.record(event)
        vm = await access.engine.insert(vm_request(spec, event, key, {}))
        assert vm.last_start
        ran[vm.name.removeprefix("one-")] = vm.last_start.timestamp(), now()
    await asyncio.sleep(1)
    await access.engine.preempt(ZONE, f"one-{TAKEN}")
    async with asyncio.timeout(PATIENCE):
        while await access.engine.get(ZONE, f"one-{TAKEN}") is not None:  # noqa: ASYNC110 (the API has no events)
            await asyncio.sleep(0.1)
    return ran


@pytest.mark.slow
async def test_vms_that_came_and_went_unseen_are_paid_for(url: str, tmp_path: Path) -> None:
    weather(url, hours_per_minute=10)
    spec = specify(Declaration(f"t4x2@{ZONE}", name="one", max_hours=100))
    agree(tmp_path, spec)
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, ClusterState())
        recorder.record(events.ClusterDeclared(spec=spec.to_dict()))
        key = generate_key(tmp_path / "key")
        async with Access(spec) as access, asyncio.TaskGroup() as group:
            await access.reopen()
            ran = await killed_before_it_saw_them(spec, access, recorder, key)
            tasks = Tasks(group, lambda: None, recorder.note)
            fleet = Fleet(tmp_path, recorder, access, tasks, lambda vm, line: None, lambda _: None)
            fleet.delete(recorder.state.vms[SENT_AWAY], "fewer are wanted")
            tasks.do("poll", fleet.poll)
            async with asyncio.timeout(PATIENCE):
                while recorder.state.living:
                    await recorder.changed.wait()
                    recorder.changed.clear()
            tasks.cancel_all()

    state = recorder.state
    assert [state.vms[name].state for name in (TAKEN, SENT_AWAY)] == ["revoked", "deleted"]
    by_vm = bill(state, now()).by_vm
    for name, (since, until) in ran.items():
        vm = state.vms[name]
        # An insert is done when its VM runs: within the accuracy of two reports of one moment.
        assert vm.started_at == pytest.approx(since, abs=0.5), name
        assert until <= vm.stopping_at <= vm.ended_at, name
        assert by_vm[name] == pytest.approx(state.clock.between(vm.started_at, vm.stopping_at) / 3600), name
        assert by_vm[name] > 0.1, "a second is ten minutes"


@pytest.mark.slow
async def test_vms_that_run_after_they_were_given_up_are_deleted_and_paid_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in (ComputeEngine.insert, ComputeEngine.insert_many):
        monkeypatch.setitem(method.__kwdefaults__, "timeout", 1.0)  # instead of ten minutes
    weather(url, hours_per_minute=10, boot="1500s")  # 2.5 s here
    with Observer(url) as observer:
        async with steered(Declaration(f"t4x2@{ZONE}", name="late", max_hours=100)) as late:
            state = await late.until(
                lambda state: (
                    any(vm.cause == "other" and not vm.running_at for vm in state.vms.values())
                    and any(vm.running_at and vm.state == "deleted" for vm in state.vms.values())
                )
            )
            assert any("did not start within 1 s" in vm.reason for vm in state.vms.values())
            for method in (ComputeEngine.insert, ComputeEngine.insert_many):
                monkeypatch.setitem(method.__kwdefaults__, "timeout", 600.0)
            weather(url, hours_per_minute=10, boot="0.3s")
            await late.until(lambda state: state.phase == "ready")
        observer.look()
    state = late.cluster.state
    reckoned = reckon(observer.vms(), observer.clock(time.time()), catalog_prices())
    compared = {each.vm: each.dollars for each in differences(late.cluster.cost(), reckoned, "late")}
    ran = {vm.name for vm in state.vms.values() if vm.running_at}
    refused = {each.vm for each in late.cluster.events("vm.refused")}  # type: ignore[attr-defined]
    assert refused & ran
    # Half a second of a busy machine, between two reports of one moment, is five minutes of a VM here.
    assert compared == pytest.approx(dict.fromkeys(compared, 0.0), abs=2e-2)
    assert all(late.cluster.cost().by_vm[name] > 0 for name in refused & ran)
