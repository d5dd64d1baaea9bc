"""Clusters without training: names, side by side, deleting, revocations while booting, a full disk, a lost folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.conftest import PATIENCE, Patient, full_disk, processes, reboot
from tests.faults.test_controller_on_a_vm import api, place, vms
from transient_magics import client, places
from transient_magics.client import launch
from transient_magics.controller.cluster import Controller
from transient_magics.controller.decisions.core import RequestVm
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.machines import requested
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import ClusterState, Journal, events, read, replay
from transient_magics.journal.lock import is_of, take
from transient_magics.protocol.cluster_commands import Ping
from transient_magics.remote import Connection
from transient_magics.spec import CONTROLLER


@pytest.fixture(scope="module")
def pair(home: Path) -> Iterator[tuple[Patient, Patient]]:
    """Two small clusters side by side, ready; the one on the right has workers that are stopped, not deleted."""
    models = {"left": "spot", "right": "preemptible"}
    clusters = [
        client.declare(client.Declaration("k80", name=each, provisioning_model=models[each], max_workers=4))
        for each in models
    ]
    for cluster in clusters:
        cluster.wait(PATIENCE)
    yield Patient(clusters[0]), Patient(clusters[1])
    for cluster in clusters:
        cluster.delete()


def test_two_clusters_side_by_side_keep_to_themselves(pair: tuple[Patient, Patient]) -> None:
    left, right = pair
    mark = right.mark()
    left.cluster.revoke("worker-0")
    left.cluster.revoke("worker-0")  # before its notice is seen, or after: it is once
    left.event(0, events.VmPreemptionAsked, vm="worker-0")
    left.event(0, events.WorkerReplaced, worker="worker-0")
    left.until(lambda state: state.vms["worker-1"].state == "ready", "replaced")
    left.ends_at_once("ps-0", "worker-1")  # asked for one by one
    assert not right.since(mark, events.VmPreemptionNotice)
    assert {cluster.name for cluster in client.clusters()} >= {"left", "right"}


def test_the_same_name_twice_is_refused_and_harms_nothing(pair: tuple[Patient, Patient]) -> None:
    left, _ = pair
    seq = left.mark()
    with pytest.raises(ClusterError, match=r"The cluster left already exists.*attach left"):
        client.declare(client.Declaration("v100", name="left"))
    assert left.mark() == seq


def test_commands_that_cannot_be_meant_are_refused_in_one_sentence(pair: tuple[Patient, Patient]) -> None:
    left, _ = pair
    with pytest.raises(ClusterError, match="Unknown VM 'worker-77'"):
        left.cluster.revoke("worker-77")
    with pytest.raises(ClusterError, match="on demand"):
        left.cluster.revoke("ps-0")
    with pytest.raises(DeclarationError, match="9 workers exceed the limit of 4 for left"):
        left.cluster.resize("k80x9")
    with pytest.raises(ClusterError, match=r"Unknown VM 'worker-77' .*Known: .*worker-0"):
        left.cluster.logs("worker-77")
    with pytest.raises(ClusterError, match="Unknown cluster 'nowhere'"):
        client.cluster("nowhere")


def test_a_resize_brings_and_takes_workers(pair: tuple[Patient, Patient]) -> None:
    _, right = pair
    right.cluster.resize("k80x2")
    state = right.until(lambda now: sum(vm.state == "ready" for vm in now.living) == 3, "three ready")
    assert state.spec
    assert state.spec.spec == "k80x2"
    right.cluster.resize("k80")
    right.until(lambda now: sum(vm.role == "worker" for vm in now.living) == 1, "one worker")


def test_a_worker_that_compute_engine_stops_is_replaced_and_deleted(pair: tuple[Patient, Patient]) -> None:
    _, right = pair
    (worker,) = [vm.name for vm in right.cluster.state.living if vm.role == "worker"]
    mark = right.mark()
    right.cluster.revoke(worker)
    right.event(mark, events.WorkerReplaced, worker=worker)
    right.event(mark, events.VmRevoked, vm=worker)
    right.sees(lambda: worker not in vms("right"), f"end of {worker}, which is stopped")
    right.until(lambda now: any(vm.replaces == worker and vm.state == "ready" for vm in now.living), "replaced")


def test_a_full_disk_under_the_journal_loses_no_event_and_no_vm(pair: tuple[Patient, Patient]) -> None:
    left, _ = pair
    path = left.cluster.directory / "journal.jsonl"
    worker = next(vm.name for vm in left.cluster.state.living if vm.role == "worker" and vm.state == "ready")
    number = left.controller()
    with full_disk(number, path):
        before = left.mark()
        left.cluster.revoke(worker)
        answer: dict[str, object] = {}
        deadline = time.monotonic() + PATIENCE
        while "journal" not in str(answer.get("trouble")) and time.monotonic() < deadline:
            time.sleep(0.2)
            answer = client.commands.send(left.cluster.directory, Ping())
        assert "The journal cannot be written" in str(answer["trouble"])
        assert left.mark() == before
    left.event(before, events.VmPreemptionNotice, vm=worker)
    left.event(before, events.WorkerReplaced, worker=worker)
    assert left.controller() == number
    left.until(lambda now: any(vm.replaces == worker and vm.state == "ready" for vm in now.living), "replaced")
    history = left.cluster.events()
    assert [event.seq for event in history] == list(range(1, len(history) + 1))


async def test_where_a_vm_may_not_manage_vms_the_controller_stays_here_and_says_why(
    pair: tuple[Patient, Patient], tmp_path: Path
) -> None:
    cluster = pair[1].cluster
    spec, server = cluster.state.spec, cluster.state.vms["ps-0"]
    assert spec
    spec = replace(spec, controller="cluster", prices={**spec.prices, CONTROLLER: spec.prices["parameter-server"]})
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    seat = RequestVm("controller-0", CONTROLLER, 0, "", server.zone, "standard", None)
    told = (
        events.ClusterDeclared(spec=spec.to_dict()), requested(spec, seat),
        events.VmRunning(vm=seat.vm, address=server.address), events.VmReady(vm=seat.vm),
    )  # fmt: skip
    controller = Controller(tmp_path)
    async with Access(spec) as access, asyncio.TaskGroup() as group:
        await access.reopen()
        async with await access.connect(server, cluster.directory / "key") as connection:
            with Journal(tmp_path / "journal.jsonl") as journal:
                recorder = controller._recorder = Recorder(journal, ClusterState())
                controller._tasks = Tasks(group, recorder.changed.set, recorder.note)
                assert all(recorder.record(each) for each in told)

                async def connected() -> Connection:
                    return connection  # to a VM that has no service account

                fleet: Any = SimpleNamespace(link=lambda _: SimpleNamespace(answering=True, connection=connected))
                async with asyncio.timeout(PATIENCE):
                    while not (recorder.trouble or recorder.state.seat):
                        recorder.changed.clear()
                        controller._hand_over(fleet, seat.vm)
                        await recorder.changed.wait()
                controller._tasks.cancel_all()
    history = read(tmp_path / "journal.jsonl")
    (trouble,) = [each.what for each in history if isinstance(each, events.ControllerTrouble)]
    assert trouble.startswith("The controller cannot move to controller-0 yet: ")
    assert "insufficient authentication scopes" in trouble
    assert replay(history).seat == ""


def test_a_vm_taken_away_while_it_boots_is_asked_for_again_and_one_that_reboots_is_not(
    pair: tuple[Patient, Patient],
) -> None:
    left, _ = pair
    mark = left.mark()
    left.cluster.resize("k80x3")
    left.until(lambda _: len(left.since(mark, events.VmRequested)) == 2, "two more are asked for")
    lost, reboots = [each.vm for each in left.since(mark, events.VmRequested)]  # type: ignore[attr-defined]
    left.sees(lambda: lost in vms("left"), "a VM that boots")
    api(place(left.cluster, lost), "DELETE")
    left.event(mark, events.VmRunning, vm=reboots)
    reboot(f"left-{reboots}")
    left.until(lambda now: not now.vms[lost].living, "seen to be gone")
    state = left.until(lambda now: sum(vm.state == "ready" for vm in now.living) == 4, "four ready")
    assert state.vms[lost].state in ("revoked", "refused")
    assert state.vms[reboots].state == "ready"
    assert len(left.since(mark, events.VmRequested)) == 3


def test_a_controller_killed_while_it_provisions_doubles_no_vm(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = client.declare(client.Declaration("k80x2", name="twice", max_hours=3))
    patient = Patient(cluster)
    patient.event(0, events.VmRequested, vm="worker-1")
    os.kill(patient.controller(), signal.SIGKILL)
    state = cluster.wait(PATIENCE)
    assert sorted(vm.name for vm in state.living) == ["ps-0", "worker-0", "worker-1"]
    patient.ends_at_once("ps-0", "worker-0", "worker-1", hours=3)  # the workers by one request, asked for twice
    assert sorted(vms("twice")) == ["ps-0", "worker-0", "worker-1"]
    cluster.delete()
    cluster.delete()
    assert cluster.state.over
    assert not vms("twice")
    _see_that_its_name_is_taken(cluster, monkeypatch)


def _see_that_its_name_is_taken(cluster: client.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """See that the name of a deleted cluster is refused until its controller has ended."""
    lock = None
    while lock is None:
        lock = take(cluster.directory)  # as a controller has it that is still ending
    monkeypatch.setattr(launch, "_END_SECONDS", 0.2)
    with pytest.raises(ClusterError, match=r"controller of the deleted cluster twice has not exited.*--name"):
        client.declare(client.Declaration("cpu", name="twice"))
    assert is_of(lock, cluster.directory)
    os.close(lock)


def test_waiting_can_be_interrupted_and_the_cluster_goes_on(pair: tuple[Patient, Patient]) -> None:
    left, _ = pair
    with contextlib.suppress(KeyboardInterrupt):
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 1.0)
            left.cluster.wait(PATIENCE, until="deleted")
            pytest.fail("was not interrupted")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert left.cluster.state.phase == "ready"


def test_a_name_that_is_used_again_at_once_has_one_controller_at_a_time_which_ends_with_its_folder(home: Path) -> None:
    code = (
        "import os, signal\nfrom transient_magics import client\n"
        "client.declare(client.Declaration('cpu', name='renewed'))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    cluster = client.cluster("renewed")
    cluster.wait(PATIENCE)
    (former,) = (event.pid for event in cluster.events() if isinstance(event, events.ControllerStarted))
    cluster.delete(timeout=None)
    while not cluster.state.over:
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):  # it may have ended at once
        os.kill(former, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (former, signal.SIGCONT)).start()
    cluster = client.declare(client.Declaration("cpu", name="renewed"))
    cluster.wait(PATIENCE)
    began = [event for event in cluster.events() if event.kind.startswith("controller.")]
    assert [event.kind for event in began] == ["controller.started"]
    assert all(isinstance(event, events.ControllerStarted) and event.pid != former for event in began)
    assert list((home / "past").glob("renewed-*/journal.jsonl"))

    number = Patient(cluster).controller()
    with (cluster.directory / "controller.log").open() as log:
        shutil.rmtree(cluster.directory)
        deadline = time.monotonic() + PATIENCE
        while number in processes("transient_magics.controller", "renewed"):
            assert time.monotonic() < deadline, f"the controller goes on:\n{log.read()}"
            time.sleep(0.2)
        left = vms("renewed")
        assert not left, f"{left} are left:\n{log.read()}"


def test_a_controller_leaves_a_folder_that_took_its_folders_name(home: Path, tmp_path: Path) -> None:
    folder = places.private(tmp_path / "cluster")
    lock = take(folder)
    assert lock is not None
    assert is_of(lock, folder)
    folder.rename(tmp_path / "former")
    assert not is_of(lock, folder)
    other = take(places.private(folder))
    assert other is not None
    assert not is_of(lock, folder)
    os.close(other)
    os.close(lock)
