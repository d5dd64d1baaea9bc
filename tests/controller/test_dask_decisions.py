"""Dask clusters as the controller has them: whose the VMs are, when one begins and ends, who has which key."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.client.text import screens
from transient_magics.controller.decisions.ledger import leases
from transient_magics.errors import ForeignError
from transient_magics.journal import ClusterState, Event, bill, events, replay
from transient_magics.protocol import layout
from transient_magics.works.dask import certificates
from transient_magics.works.dask.conduct import Dasks, _Part
from transient_magics.works.dask.decisions import END_SECONDS, Begin, End, Stop, decide, parts
from transient_magics.works.dask.events import DaskBegan, DaskClosed, DaskCrashed, DaskLeft, DaskServing, from_dask
from transient_magics.works.dask.on_vm.versions import mismatch, versions
from transient_magics.works.dask.spec import DaskSpec
from transient_magics.works.dask.state import DaskState
from transient_magics.works.jobs.spec import JobSpec

AT = 1_800_000_000
NOBODY = frozenset[str]()
VERSIONS = {"python": "3.11.7", "dask": "2026.8.0", "distributed": "2026.8.0", "cloudpickle": "3.1.2"}


def cluster(*more: Event, workers: int = 3, wanted: int = 2) -> ClusterState:
    """A cluster with ready VMs and a Dask cluster declared on it; each event a second after the one before."""
    spec = replace(specify(Declaration(f"cpux{workers}", name="one")), declared_at=float(AT))
    history: list[Event] = [events.ClusterDeclared(spec=spec.to_dict())]
    for role, slot in (("ps", 0), *(("worker", each) for each in range(workers))):
        name = f"{role}-{slot}"
        history += [
            events.VmRequested(
                vm=name, role=role, slot=slot, zone="us-central1-a", accelerator="", machine_type="n1-standard-1",
                provisioning_model="spot" if role == "worker" else "standard", hourly=0.1, on_demand_hourly=0.2,
            ),
            events.VmRunning(vm=name, address=f"10.0.0.{len(history)}"),
            events.VmReady(vm=name),
        ]  # fmt: skip
    history.append(events.WorkDeclared(of="dask", work="dask-1", spec=DaskSpec("dask-1", wanted).to_dict()))
    return after(ClusterState(), *history, *more)


def after(state: ClusterState, *more: Event) -> ClusterState:
    stamped = (replace(each, seq=state.seq + 1 + place, time=int((AT + state.seq + place) * 1e9))
               for place, each in enumerate(more))  # fmt: skip
    return replay(stamped, state)


def leased(state: ClusterState) -> ClusterState:
    found = leases(state, dict.fromkeys(range(3), "cpu"))
    workers = {str(slot): name for slot, name in found.workers.items()}
    return after(state, events.ClusterLeased(ports=found.ports, workers=workers))


def test_it_has_workers_beside_runs_and_jobs_and_gives_them_back() -> None:
    state = leased(cluster())
    assert state.leases == {0: "dask-1", 1: "dask-1"}
    job = events.WorkDeclared(of="job", work="job-1", spec=JobSpec("job-1", "true", workers=2).to_dict())
    state = leased(after(state, job))
    assert state.leases == {0: "dask-1", 1: "dask-1"}, "nothing is taken from it"
    state = leased(after(state, events.WorkEnded(work="dask-1", of="dask", state="finished")))
    assert state.leases == {0: "job-1", 1: "job-1"}
    assert state.of(DaskState)["dask-1"].over
    assert leased(cluster(wanted=9)).leases == {0: "dask-1", 1: "dask-1", 2: "dask-1"}, "it does with fewer"


def test_it_begins_on_the_first_parameter_server_and_ends_with_it() -> None:
    state = cluster()
    assert decide(state.of(DaskState)["dask-1"], state, NOBODY, AT) == [], "it has no workers yet"
    state = leased(state)
    assert decide(state.of(DaskState)["dask-1"], state, NOBODY, AT) == [Begin("ps-0")]
    state = after(state, DaskBegan(dask="dask-1", vm="ps-0"))
    assert [vm.name for vm in parts(state.of(DaskState)["dask-1"], state)] == ["ps-0"], "its scheduler first"
    serving = DaskServing(dask="dask-1", port=8786, dashboard=0, versions=VERSIONS)
    state = after(state, serving, events.VmPreemptionNotice(vm="worker-1", noticed=AT * 10**9))
    dask = state.of(DaskState)["dask-1"]
    assert [vm.name for vm in parts(dask, state)] == ["ps-0", "worker-0", "worker-1"], "also one that just leaves"
    assert decide(dask, state, NOBODY, AT) == []
    assert state.idle_since == 0.0
    assert "dask-1  Dask on 1 of 2 workers" in screens.status(state, bill(state, AT + 60), 0.0)
    gone = after(state, events.VmDeleted(vm="ps-0", reason="it is gone"))
    [stop] = decide(gone.of(DaskState)["dask-1"], gone, NOBODY, AT)
    assert isinstance(stop, Stop)
    assert stop.state == "failed"
    crashed = after(state, DaskCrashed(dask="dask-1", vm="ps-0", reason="signal 9"))
    assert decide(crashed.of(DaskState)["dask-1"], crashed, NOBODY, AT) == [
        Stop("its scheduler ended: signal 9", "failed")
    ]
    alone = after(state, DaskClosed(dask="dask-1", reason="its client has disconnected"))
    assert decide(alone.of(DaskState)["dask-1"], alone, NOBODY, AT) == [Stop("its client has disconnected")]


def test_its_vms_are_free_when_they_say_so_or_a_while_later() -> None:
    state = leased(cluster())
    serving = DaskServing(dask="dask-1", port=8786, dashboard=0, versions=VERSIONS)
    state = after(state, DaskBegan(dask="dask-1", vm="ps-0"), serving,
                  events.WorkStopping(
                      work="dask-1", of="dask", reason="its client was closed", state="finished"
                  ))  # fmt: skip
    dask = state.of(DaskState)["dask-1"]
    some, every = frozenset({"ps-0", "worker-0"}), frozenset({"ps-0", "worker-0", "worker-1"})
    assert decide(dask, state, some, dask.stopping_at + 1) == []
    ended = [End("finished", "its client was closed")]
    assert decide(dask, state, every, dask.stopping_at + 1) == ended
    assert decide(dask, state, NOBODY, dask.stopping_at + END_SECONDS + 1) == ended


def test_a_vm_tells_what_is_its_own() -> None:
    def line(**values: object) -> bytes:
        return json.dumps({"time": AT * 10**9, "dask": "dask-1", **values}).encode()

    about = AT * 10**9
    left = line(kind="dask.left", worker="worker-1", seconds=1.0, moved=1, moved_bytes=8, lost=0, interrupted=0)
    assert isinstance(from_dask(left, "dask-1", "ps-0", True, about, about), DaskLeft)
    crashed = line(kind="dask.crashed", vm="worker-0", reason="memory")
    assert isinstance(from_dask(crashed, "dask-1", "worker-0", False, about, about), DaskCrashed)
    for wrong, vm, schedules in (
        (left, "worker-0", False), (crashed, "worker-1", False), (line(kind="work.ended"), "ps-0", True),
        (line(kind="dask.serving", port=70_000, dashboard=0, versions={}), "ps-0", True),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"this VM must not report|unexpected kind|port"):
            from_dask(wrong, "dask-1", vm, schedules, about, about)


def test_another_python_or_dask_is_refused_with_what_to_install() -> None:
    assert mismatch(VERSIONS, {**VERSIONS, "python": "3.11.2"}) == ("", "")
    assert versions().keys() == VERSIONS.keys()
    what, fix = mismatch({**VERSIONS, "python": "3.12.1"}, VERSIONS)
    assert what == "This kernel has Python 3.12 and the VMs have 3.11"
    assert fix == "Use a kernel with Python 3.11."
    what, fix = mismatch({**VERSIONS, "distributed": "2025.1.0"}, VERSIONS)
    assert what == "This kernel has distributed 2025.1.0 and the VMs have distributed 2026.8.0"
    assert fix == "pip install distributed==2026.8.0, and restart the kernel."


def test_each_part_has_a_key_of_its_own_that_soon_holds_no_more(tmp_path: Path) -> None:
    certificates.make(tmp_path, "dask-1", AT + 3600)
    authority = x509.load_pem_x509_certificate((tmp_path / layout.TLS_CA).read_bytes())
    before = (tmp_path / layout.TLS_KEY).read_bytes()
    certificates.make(tmp_path, "dask-1", AT + 3600)
    assert (tmp_path / layout.TLS_KEY).read_bytes() == before, "another controller makes no other"
    told, key = certificates.issued(tmp_path, "worker-0", AT + 3600)
    assert key != before
    certificate = x509.load_pem_x509_certificate(told)
    certificate.verify_directly_issued_by(authority)
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    assert certificate.not_valid_after_utc.timestamp() == AT + 3600
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert all(each.stat().st_mode & 0o77 == 0 for each in (tmp_path / "tls").iterdir())
    certificates.forget(tmp_path)
    assert not list((tmp_path / "tls").iterdir())


async def test_a_dask_cluster_fails_when_its_schedulers_vm_reports_more_than_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recorder:
        state = after(leased(cluster()), DaskBegan(dask="dask-1", vm="ps-0"))

        def record(self, event: Event) -> None:
            self.state = after(self.state, event)

        def note(self, key: str, what: str) -> None:
            """Drop the note."""

    async def exceed(_: object) -> None:
        raise ForeignError("too many events")

    recorder = Recorder()
    dasks = Dasks(tmp_path, cast("Any", recorder), lambda vm: None)
    monkeypatch.setattr(_Part, "_begin_and_follow", exceed)
    part = _Part(dasks, recorder.state.of(DaskState)["dask-1"], recorder.state.vms["ps-0"])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await part.conduct()
    stop = recorder.state.of(DaskState)["dask-1"].stop
    assert stop is not None
    assert (stop.state, stop.reason) == ("failed", "its VM has reported more than is read from a VM")
