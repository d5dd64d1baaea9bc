"""Several kernels at one cluster, kernels and controllers killed in the middle of something, damaged journals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import CELL, PATIENCE, Patient
from tests.faults.healing import healed
from tests.faults.test_controller_on_a_vm import on_vm, until, vms
from tests.faults.test_starting import Deaths
from transient_magics import client
from transient_magics.client import commands
from transient_magics.journal import RunState, events
from transient_magics.protocol.cluster_commands import Ping

TRAIN = (
    "from transient_magics import client\n"
    "from tests.faults.conftest import CELL\n"
    "run = client.train(source=CELL, cluster={cluster!r}, model='resnet', hparams_set='resnet_digits',\n"
    "    problem='image_digits', train_steps={steps}, checkpoint_steps=20, checkpoint_seconds=None,\n"
    "    pace_seconds=0.1, check=False)\n"
)


def kernel(code: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A program beside this one."""
    return subprocess.Popen(
        [sys.executable, "-c", code, "a kernel"], env={**os.environ, **(environment or {})}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2], encoding="utf-8",
    )  # fmt: skip


def nothing_is_doubled(cluster: client.Cluster) -> None:
    """No event is lost, and no VM was asked for twice."""
    history = cluster.events()
    assert [event.seq for event in history] == list(range(1, len(history) + 1))
    asked = [event.vm for event in history if isinstance(event, events.VmRequested)]
    assert len(asked) == len(set(asked))


def test_two_kernels_resize_and_delete_one_cluster_at_once(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpu", name="shared", max_workers=3))
    cluster.wait(PATIENCE)
    resizes = (
        "from transient_magics import client\n"
        "cluster = client.cluster('shared')\n"
        "for spec in {specs!r}: cluster.resize(spec)\n"
        "print('resized', flush=True)\n"
        "input()\n"
        "cluster.delete(300)\n"
        "print(cluster.state.phase)\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", resizes.format(specs=specs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, encoding="utf-8",
        )
        for specs in (["cpux2", "cpu", "cpux3"] * 3, ["cpux3", "cpux2", "cpu"] * 3)
    ]  # fmt: skip
    for each in both:
        assert each.stdout
        assert each.stdout.readline() == "resized\n", each.communicate()
    patient, wanted = Patient(cluster), cluster.state.spec
    assert wanted
    patient.until(
        lambda state: [vm.state for vm in state.living if vm.role == "worker"] == ["ready"] * wanted.worker_count,
        f"{wanted.spec}",
    )
    began = time.monotonic()
    ended = [each.communicate("\n", timeout=PATIENCE) for each in both]
    assert [said for said, _ in ended] == ["deleted\n"] * 2, ended
    healed("two kernels delete", "idle", time.monotonic() - began)
    assert cluster.state.over
    assert not vms("shared")
    nothing_is_doubled(cluster)


@pytest.fixture(scope="module")
def busy(home: Path) -> Iterator[client.Cluster]:
    """A cluster whose runs are declared by others."""
    cluster = client.declare(client.Declaration("k80", name="busy"))
    cluster.wait(PATIENCE)
    yield cluster
    cluster.delete(PATIENCE)


@pytest.mark.training
@pytest.mark.nightly
def test_a_kernel_killed_at_any_step_of_a_launch_has_launched_the_run_or_has_not(
    busy: client.Cluster, tmp_path: Path
) -> None:
    deaths = Deaths("a kernel", range(30), tmp_path)
    while not deaths.over:
        before = set(busy.state.of(RunState))
        launched = kernel(TRAIN.format(cluster="busy", steps=10**6), deaths.environment)
        ended, _ = launched.wait(PATIENCE), launched.communicate()
        time.sleep(3)  # the controller looks every second
        folders = {path.parent.name for path in (busy.directory / "runs").glob("[a-z]*/run.json")}
        assert folders == set(busy.state.of(RunState)), deaths.lines
        for name in set(busy.state.of(RunState)) - before:
            busy.run(name).stop()
            busy.run(name).wait(PATIENCE)
        if ended != -signal.SIGKILL:
            break
    assert len(deaths.lines) > 3
    assert any("socket.connect" in line for line in deaths.lines), "none was killed before it told the controller"
    nothing_is_doubled(busy)


@pytest.mark.training
@pytest.mark.nightly
def test_a_kernel_killed_beside_a_run_is_missed_by_nobody(busy: client.Cluster) -> None:
    beside = kernel(TRAIN.format(cluster="busy", steps=10**6) + "run.reach(20)\nprint('there', flush=True)\ninput()\n")
    assert beside.stdout
    assert beside.stdout.readline() == "there\n"
    beside.kill()
    beside.communicate()
    began, mark = time.monotonic(), busy.state.seq
    run = busy.run()
    run.reach(run.state.step + 10, PATIENCE)
    healed("kill -9", "kernel, training", time.monotonic() - began)
    assert not [event for event in busy.events("train.started") if event.seq > mark]
    run.stop()
    assert run.wait(PATIENCE).step


@pytest.mark.training
@pytest.mark.nightly
@pytest.mark.parametrize("again", [0.3])
def test_a_controller_killed_while_results_come_home_brings_them_once(busy: client.Cluster, again: float) -> None:
    patient = Patient(busy)
    run = client.train(
        source=CELL, cluster=busy, model="resnet", hparams_set="resnet_digits", problem="image_digits",
        train_steps=60, checkpoint_steps=20, checkpoint_seconds=None, pace_seconds=0.05, check=False,
    )  # fmt: skip
    told = patient.home("ps-0") / "transient" / "runs" / run.name / "events.jsonl"
    patient.run = run
    patient.sees(lambda: told.exists() and '"train.finished"' in told.read_text(encoding="utf-8"), "end of the run")
    began, mark = time.monotonic(), patient.mark()
    os.kill(patient.controller(), signal.SIGKILL)
    if again:
        patient.event(mark, events.ControllerRecovered)
        time.sleep(again)
        os.kill(patient.controller(), signal.SIGKILL)
    result = run.wait(PATIENCE)
    healed("kill -9", f"controller, results come home{', twice' if again else ''}", time.monotonic() - began)
    assert result.step == 60
    ended = [event for event in busy.events("train.finished") if event.run == run.name]  # type: ignore[attr-defined]
    assert len(ended) == 1
    assert patient.saved_at_home() == 60
    steps = run.history().groupby("worker")["steps"].sum()
    assert 40 <= steps.sum() <= 60 + 5, "metrics are doubled or lost"
    nothing_is_doubled(busy)


@pytest.mark.nightly
def test_a_controller_killed_in_its_hand_over_is_started_where_it_was_to_go(home: Path) -> None:
    cluster = client.declare(client.Declaration("k80", name="halfway", controller="cluster"))
    patient = Patient(cluster)
    try:
        journal = cluster.directory / "journal.jsonl"
        until(lambda: journal.exists() and '"controller.moved"' in journal.read_text(encoding="utf-8"), "moved")
        os.kill(patient.controller(), signal.SIGKILL)
        began = time.monotonic()
        patient.until(lambda _: cluster.events("controller.recovered"), "in charge on its VM")
        patient.until(lambda state: state.phase == "ready", "ready")
        healed("kill -9", "controller, hand-over", time.monotonic() - began)
        assert len(on_vm("halfway")) == 1
        mark = patient.mark()
        cluster.revoke("worker-0")
        patient.event(mark, events.WorkerReplaced, worker="worker-0")
        nothing_is_doubled(cluster)
    finally:
        cluster.delete(PATIENCE)
    assert not vms("halfway")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["vm.requested", "vm.running", "vm.ready", "cluster.ready", "cluster.declared"])
def test_a_damaged_line_in_the_middle_of_a_journal_costs_no_more_than_what_it_said(home: Path, kind: str) -> None:
    cluster = client.declare(client.Declaration("k80x2", name="damaged"))
    patient, journal = Patient(cluster), cluster.directory / "journal.jsonl"
    try:
        cluster.wait(PATIENCE)
        os.kill(patient.controller(), signal.SIGKILL)
        lines = journal.read_bytes().splitlines(keepends=True)
        at = max(number for number, line in enumerate(lines) if f'"{kind}"'.encode() in line)
        lines[at] = b"\x00" * (len(lines[at]) - 1) + b"\n"
        journal.write_bytes(b"".join(lines))
        began = time.monotonic()
        commands.send(cluster.directory, Ping())
        healthy = ["ps", "worker", "worker"]

        def whole() -> bool:
            living = client.cluster("damaged").state.living
            running = [name for name, status in vms("damaged").items() if status == "RUNNING"]
            ready = all(vm.state == "ready" for vm in living) and sorted(vm.role for vm in living) == healthy
            return ready and sorted(running) == sorted(vm.name for vm in living)

        until(whole, "whole again")
        time.sleep(6)  # another question which VMs there are
        assert whole()
        healed("a damaged line in the journal", kind, time.monotonic() - began)
        cluster.resize("k80")
        until(lambda: sorted(vm.role for vm in client.cluster("damaged").state.living) == healthy[:2], "resized")
    finally:
        cluster.delete(PATIENCE)
    assert not vms("damaged")
