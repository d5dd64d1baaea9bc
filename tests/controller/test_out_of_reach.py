"""A zone that Compute Engine cannot reach for a while: its VMs are neither lost nor deleted, as far as is known."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.cloud import Vm
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.vms import fleet as fleets
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.fleet import Fleet
from transient_magics.controller.vms.machines import instance_name
from transient_magics.errors import UnreachableError
from transient_magics.journal import Clock, ClusterState, Event, Journal, events, now, replay

HERE, AWAY, UNUSED, ELSEWHERE = "us-central1-a", "us-east1-c", "us-west1-b", "europe-west4-a"
SPEC = specify(Declaration("t4x2", name="one", zone=(HERE, AWAY, UNUSED)))


class Cloud:
    """It lists nothing, for the zone `out` cannot be reached."""

    endpoint, ahead = "", 0.0

    def __init__(self, out: str) -> None:
        self.out = out

    async def list(self, labels: Mapping[str, str], *, within: Collection[str] | None = None) -> list[Vm]:
        if within is None or self.out in within:
            raise UnreachableError(f"Compute Engine does not tell what is in zone {self.out} now")
        return []

    async def endings(self, zone: str) -> dict[str, Any]:
        return {}


def requested(name: str, zone: str) -> Event:
    line = SPEC.prices["t4"]
    return events.VmRequested(
        vm=name, role="worker", slot=0, zone=zone, accelerator="t4", machine_type=line.machine_type,
        provisioning_model="spot", hourly=line.hourly, on_demand_hourly=line.on_demand_hourly,
    )  # fmt: skip


def state(*more: Event) -> ClusterState:
    begin = [
        events.ClusterDeclared(spec=SPEC.to_dict()),
        requested("worker-0", AWAY),
        events.VmRunning(vm="worker-0", address="10.0.0.2", vm_id="7"),
    ]
    return replay([replace(event, time=int(now() * 1e9)) for event in (*begin, *more)])


async def fleet_at(out: str, recorder: Recorder, directory: Path, group: asyncio.TaskGroup) -> tuple[Fleet, Tasks]:
    async def nothing() -> None: ...

    async def weather() -> tuple[Clock, None]:
        return Clock(), None

    access = SimpleNamespace(engine=Cloud(out), reopen=nothing, unprotect=nothing, weather=weather)
    tasks = Tasks(group, recorder.changed.set, recorder.note)
    return Fleet(directory, recorder, cast(Access, access), tasks, lambda *_: None, lambda _: None), tasks


@pytest.mark.parametrize(("out", "deleted"), [(AWAY, False), (UNUSED, False), (ELSEWHERE, True)])
async def test_a_cluster_is_deleted_when_every_zone_says_that_it_has_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, deleted: bool
) -> None:
    monkeypatch.setattr(fleets, "_RETRY_SECONDS", 0.0)
    gone = events.ClusterDeleting(reason="r"), events.VmDeleted(vm="worker-0", reason="r")
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, state(*gone))
        async with asyncio.TaskGroup() as group:
            fleet, _ = await fleet_at(out, recorder, tmp_path, group)
            await fleet.verify_gone()
        assert recorder.state.over == deleted
        assert (f"what is in zone {out}" in recorder.trouble) != deleted


@pytest.mark.parametrize(("out", "seen"), [(AWAY, "booting"), (UNUSED, "revoked"), (ELSEWHERE, "revoked")])
async def test_a_vm_is_lost_when_its_zone_says_so(tmp_path: Path, out: str, seen: str) -> None:
    """A zone that none of its VMs is in, be it that one was, keeps nobody from seeing that."""
    once = requested("worker-1", UNUSED), events.VmDeleted(vm="worker-1", reason="r")
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, state(*once))
        async with asyncio.TaskGroup() as group:
            fleet, tasks = await fleet_at(out, recorder, tmp_path, group)
            tasks.do("poll", fleet.poll)
            await recorder.change(5.0)
            tasks.cancel_all()
        assert recorder.state.vms["worker-0"].state == seen


class Bucket:
    """Cloud Storage that fails the first upload, and stores the next ones."""

    def __init__(self) -> None:
        self.uploads = 0
        self.stored = asyncio.Event()

    async def upload(self, bucket: str, path: str, file: Path) -> None:
        self.uploads += 1
        if self.uploads == 1:
            raise UnreachableError("Cloud Storage does not answer")
        self.stored.set()


async def test_a_backup_of_the_journal_that_failed_is_tried_again_without_another_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "_BACKUP_SECONDS", 0.01)
    bucket = Bucket()
    in_bucket = replace(SPEC, bucket="b")
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, ClusterState())
        recorder.record(events.ClusterDeclared(spec=in_bucket.to_dict()))
        async with asyncio.TaskGroup() as group:
            access = cast(Access, SimpleNamespace(storage=bucket))
            tasks = Tasks(group, recorder.changed.set, recorder.note)
            fleet = Fleet(tmp_path, recorder, access, tasks, lambda *_: None, lambda _: None)
            tasks.do("journal", fleet.backup_journal)
            async with asyncio.timeout(5):
                await bucket.stored.wait()
            await asyncio.sleep(0.1)
            tasks.cancel_all()
    assert bucket.uploads == 2, "once it is stored, only another event makes another upload"


async def test_a_controller_uploads_its_journal_again_before_it_deletes_its_own_vm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(fleets, "controller_vm", lambda: "controller-0")
    bucket, in_bucket = Bucket(), replace(SPEC, bucket="b", id="abc")
    name = instance_name(in_bucket, "controller-0")
    deleted: list[tuple[str, bool]] = []

    class Engine:
        ahead = 0.0

        async def list(self, *_: object, **__: object) -> list[Any]:
            return [SimpleNamespace(name=name, zone=HERE, status="RUNNING")]

        async def delete(self, _: str, vm: str, __: object) -> None:
            deleted.append((vm, bucket.stored.is_set()))

    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, ClusterState())
        recorder.record(events.ClusterDeclared(spec=in_bucket.to_dict()))
        async with asyncio.TaskGroup() as group:
            access = cast(Access, SimpleNamespace(storage=bucket, engine=Engine()))
            tasks = Tasks(group, recorder.changed.set, recorder.note)
            await Fleet(tmp_path, recorder, access, tasks, lambda *_: None, lambda _: None).verify_gone()
    assert deleted == [(name, True)]
