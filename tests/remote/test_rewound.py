"""A controller's VM that has lost the end of its journal: the copy at home goes on from what both have."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from vms import Vm

from tests.processes import until
from transient_magics import places
from transient_magics.client import commands
from transient_magics.client.following.follower import follower
from transient_magics.controller.remote_controller import proxy as mirror_module
from transient_magics.controller.remote_controller.install import RemoteInstall
from transient_magics.controller.remote_controller.proxy import LOST, ControllerProxy
from transient_magics.errors import RoomError
from transient_magics.journal import ClusterState, Event, Journal, events, kept
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup

PRICE = PriceLine("n1-standard-4", 0.256, 0.723, "test")
SPEC = ClusterSpec(
    name="one", groups=(WorkerGroup("k80", 2),), zones=("us-west1-b",),
    prices={"k80": PRICE, "parameter-server": PRICE},
    declared_at=time.time(), controller="cluster", project="mine", id="0123abcd",
)  # fmt: skip
VM: dict[str, Any] = {
    "slot": 0, "zone": "us-west1-b", "accelerator": "", "machine_type": "n1-standard-4",
    "provisioning_model": "spot", "hourly": 0.2, "on_demand_hourly": 0.2,
}  # fmt: skip


@pytest.mark.parametrize("seen", ["while it is followed", "when it has grown longer again"])
async def test_the_copy_goes_on_from_what_both_have(
    vm: Vm, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "own"))
    monkeypatch.setattr(commands, "in_charge", lambda directory: True)  # no other process mirrors it
    folder = places.private(places.cluster("one"))
    (folder / "spec.json").write_text(json.dumps(SPEC.to_dict()), encoding="utf-8")
    here, there = folder / "journal.jsonl", home / RemoteInstall.folder("one") / "journal.jsonl"
    with Journal(here) as journal:
        journal.append(events.ClusterDeclared(spec=SPEC.to_dict()))
        journal.append(events.VmRequested(vm="ps-0", role="ps", **VM))
        journal.append(events.VmRunning(vm="ps-0", address="10.0.0.1", vm_id="1"))
        journal.append(events.ControllerMoved(vm="ps-0"))
    there.parent.mkdir(parents=True)
    there.write_bytes(here.read_bytes())
    told: list[tuple[ClusterState, list[Event]]] = []
    end = follower().subscribe("one", lambda state, new: told.append((state, new)))
    mirror = ControllerProxy(folder)
    async with await vm.connect() as connection:
        following = asyncio.create_task(mirror._follow_journal(connection))
        with Journal(there) as journal:
            common = there.stat().st_size
            for number in range(5):
                journal.append(events.VmRequested(vm=f"worker-{number}", role="worker", **VM))
        await until(lambda: following.done() or here.read_bytes() == there.read_bytes())
        await until(lambda: bool(told) and "worker-4" in told[-1][0].vms)
        assert "worker-4" in kept(here).read().vms
        lost = here.read_bytes()[common:]

        if seen != "while it is followed":
            following.cancel()
            await asyncio.wait([following])
        os.truncate(there, common + 40)  # in the midst of a line
        with Journal(there) as journal:
            for number in range(5, 15 if seen != "while it is followed" else 6):
                journal.append(events.VmRequested(vm=f"worker-{number}", role="worker", **VM))
        if following.done():
            following = asyncio.create_task(mirror._follow_journal(connection))
        await until(lambda: following.done() or here.read_bytes() == there.read_bytes())
        assert not following.done(), following
        await until(lambda: set(told[-1][0].vms) == set(mirror.state.vms))
        with Journal(there) as journal:
            journal.append(events.VmRequested(vm="last", role="worker", **VM))
        await until(lambda: "last" in told[-1][0].vms)
        following.cancel()
        await asyncio.wait([following])
    end()

    assert (folder / LOST).read_bytes() == lost
    vms = {"ps-0", "worker-5", "last"}
    assert vms <= set(mirror.state.vms) == set(told[-1][0].vms) == set(kept(here).read().vms)
    assert "worker-4" not in mirror.state.vms
    asked = [event.vm for _, new in told for event in new if isinstance(event, events.VmRequested)]
    assert len(asked) == len(set(asked)), "nobody is told anything twice"
    assert {*vms, "worker-4"} <= set(asked)
    assert mirror._known_trouble.startswith("The journal on ps-0 has lost its end")


async def test_the_copy_waits_for_room_for_a_file_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "_ROOM_SECONDS", 0.0)
    (tmp_path / "spec.json").write_text(json.dumps(SPEC.to_dict()), encoding="utf-8")
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(events.ClusterDeclared(spec=SPEC.to_dict()))
        journal.append(events.VmRequested(vm="ps-0", role="ps", **VM))
        journal.append(events.ControllerMoved(vm="ps-0"))
    mirror, said = ControllerProxy(tmp_path), list[str]()

    async def bring() -> None:
        said.append(mirror._known_trouble)
        if len(said) < 3:
            raise RoomError("1.tar on ps-0 has 7 bytes, and this machine's disk has no room for it")

    await mirror._with_room("folder of job-1", bring)
    assert said[0] == mirror._known_trouble == ""
    assert said[1] == said[2]
    assert said[1].startswith(
        "The folder of job-1 cannot be copied to this machine: 1.tar on ps-0 has 7 bytes, and this"
    )
