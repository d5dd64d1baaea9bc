"""What a panel shows of jobs: what each does, on which VM, since when what is kept of it, what it has cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from transient_magics.client import text
from transient_magics.client.folders import Identity
from transient_magics.journal import ClusterState, Cost, bill, costs, events, replay
from transient_magics.panels import html, view
from transient_magics.panels.snapshot.view import MOST_LINES
from transient_magics.works.dask.events import DaskBegan, DaskLeft, DaskServing
from transient_magics.works.dask.spec import DaskSpec
from transient_magics.works.jobs.events import JobBegan, JobExited, JobKept, JobStarted, JobUnkept
from transient_magics.works.jobs.spec import JobSpec
from transient_magics.works.jobs.state import JobState
from transient_magics.works.jobs.view import show as show_job

from . import stories
from .test_view import seconds_of

WORKERS = ("worker-0", "worker-1")


def declared(number: int) -> events.Event:
    name = f"job-{number}"
    return events.WorkDeclared(of="job", work=name, spec=JobSpec(name, "<b>train</b>", keep="out").to_dict())


def state_of(*history: events.Event, purpose: str = "jobs") -> ClusterState:
    """Two workers, of which job-1 has the second one; then what happened, a second apart."""
    began = [
        events.ClusterDeclared(spec=stories.declaration(count=2, purpose=purpose).to_dict()),
        *(stories.requested(vm, slot) for vm, slot in (("ps-0", 0), *zip(WORKERS, (0, 1), strict=True))),
        *(events.VmRunning(vm=vm, address="") for vm in ("ps-0", *WORKERS)),
        *(events.VmReady(vm=vm) for vm in ("ps-0", *WORKERS)),
        declared(1),
        events.ClusterLeased(ports={}, workers={"1": "job-1"}),
        JobBegan(job="job-1", attempt=1, vms=("worker-1",)),
        JobStarted(job="job-1", attempt=1, rank=0),
    ]
    return seconds_of([*began, *history])


KEPT = JobKept(job="job-1", attempt=1, number=1, files=3, bytes=12_000_000, digest="0" * 64)


def lines_of(snapshot: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """The lines of the work of a kind on a panel."""
    return next((group["lines"] for group in snapshot["work"] if group["kind"] == kind), [])


def test_a_job_says_where_it_runs_since_when_it_is_kept_and_what_it_costs() -> None:
    state = state_of(KEPT)
    now = 100.0 + 3600
    snapshot = view(state, bill(state, now), now)
    (job,) = lines_of(snapshot, "job")
    assert (job["name"], job["phase"]) == ("job-1", "running")
    assert job["words"].startswith("running on worker-1 (attempt 1), 12 MB kept (at ")
    cost = costs(state, now)["job-1"]
    assert job["words"].endswith(f":15), {text.money(cost.total)} so far")
    assert cost.total == pytest.approx((0.256 + 0.143) * (now - 12) / 3600, rel=1e-3), (
        "its worker, and the scheduler's VM"
    )
    lanes = {lane["name"]: (lane["role"], lane["words"]) for lane in snapshot["vms"]}
    assert lanes == {
        "ps-0": ("scheduler", "ready"), "worker-0": ("worker", "ready"), "worker-1": ("worker", "runs job-1"),
    }  # fmt: skip
    assert "job-1: running on worker-1" in html(snapshot)
    assert view(state, bill(state, now), now, "run-1")["work"] == [], "the panel of one run"
    train = state_of(KEPT, purpose="training")
    assert view(train, bill(train, now), now)["vms"][0]["role"] == "parameter server"


def test_what_is_not_kept_stays_said_when_the_job_is_over() -> None:
    unkept = JobUnkept(job="job-1", attempt=1, reason="it cannot be packed: No space left on device")
    exited = JobExited(job="job-1", attempt=1, rank=0, code=0)
    state = state_of(unkept, exited, events.WorkEnded(work="job-1", of="job", state="finished"))
    (job,) = lines_of(view(state, bill(state, 200.0), 200.0), "job")
    assert "finished; its folder is not copied here: it cannot be packed: No space left on device" in job["words"]
    assert state.of(JobState)["job-1"].unkept


def test_of_many_jobs_those_that_run_come_first_and_the_rest_is_counted() -> None:
    state = state_of(*(declared(number) for number in range(2, 41)))
    lines = lines_of(view(state, bill(state, 200.0), 200.0), "job")
    assert (lines[0]["name"], len(lines)) == ("job-1", MOST_LINES + 1)
    assert (lines[-1]["name"], lines[-1]["words"]) == ("", "and 28 more jobs")
    over = replay([events.ClusterDeleted()], state)
    (latest, *_) = lines_of(view(over, bill(over, 300.0), 300.0), "job")
    assert latest["words"].startswith("ended with its cluster")
    json.dumps(lines, allow_nan=False)


def dask(name: str, bag: str = "") -> list[events.Event]:
    spec = DaskSpec(name, 2, bag=bag).to_dict()
    return [events.WorkDeclared(of="dask", work=name, spec=spec), DaskBegan(dask=name, vm="ps-0")]


def test_a_dask_cluster_says_how_many_workers_it_has_what_it_costs_and_where_its_dashboard_is() -> None:
    ended = events.WorkEnded(work="job-1", of="job", state="finished")
    leased = events.ClusterLeased(ports={}, workers={"0": "dask-1", "1": "dask-1"})
    serving = DaskServing(dask="dask-1", port=8786, dashboard=8787, versions={})
    taken = [
        DaskLeft(dask="dask-1", worker="worker-1", seconds=2.0, moved=3, moved_bytes=99, lost=0, interrupted=0),
        events.VmRevoked(vm="worker-1", signal="notice"),
    ]
    state = state_of(ended, *dask("dask-1"), *dask("dask-2", "bag-1"), leased, serving, *taken)
    snapshot = view(state, bill(state, 200.0), 200.0)
    (line,) = lines_of(snapshot, "dask")
    assert (line["name"], line["phase"]) == ("dask-1", "running"), "a bag's is shown with the bag"
    assert line["words"].startswith("Dask on 1 of 2 workers, after 1 revocation, $")
    assert line["words"].endswith("; its dashboard: dask.client.dashboard_link")
    assert "dask-1: Dask on 1 of 2 workers" in html(snapshot)
    assert {lane["name"]: lane["words"] for lane in snapshot["vms"]}["worker-0"] == "runs dask-1"
    over = replay([events.ClusterDeleted()], state)
    (line,) = lines_of(view(over, bill(over, 300.0), 300.0), "dask")
    assert line["words"].startswith("ended with its cluster, $")


def test_a_cell_shows_its_job_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shell = SimpleNamespace(execution_count=3)
    monkeypatch.setattr("transient_magics.works.jobs.view.current_shell", lambda: shell)
    cluster = SimpleNamespace(name="once", identity=Identity("once", ""), state=state_of())
    job: Any = SimpleNamespace(
        name="job-1", cluster=cluster, cost=lambda: Cost(subject="job-1", total=0.25), output=lambda lines: "step 7"
    )
    show_job(job)  # %job
    show_job(job)  # what it returns is the cell's value
    assert capsys.readouterr().out.count("job-1 on once: running on worker-1") == 1
    shell.execution_count = 4
    show_job(job)
    assert capsys.readouterr().out.count("step 7") == 1
