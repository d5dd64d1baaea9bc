"""Whatever is killed, frozen or taken away, training goes on wherever workers are left, and the cluster heals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults.conftest import LINE_CELL, PATIENCE, Patient, stand_still, take_away
from tests.faults.healing import healed
from transient_magics import client
from transient_magics.errors import TrainingError
from transient_magics.journal import ClusterState, events, metrics
from transient_magics.protocol.vm_events import (
    TrainCheckpoint,
    TrainEvaluated,
    TrainStarted,
    TrainUnsaved,
    WorkerJoined,
    WorkerLeft,
)

pytestmark = pytest.mark.training


def test_a_killed_worker_costs_nobody_else_a_step(patient: Patient) -> None:
    mark, victim, killed = patient.mark(), patient.workers()[0], time.time()
    patient.kill(victim, "worker")
    patient.event(mark, WorkerLeft, worker=victim)
    joined = patient.event(mark, WorkerJoined, worker=victim)
    healed("kill -9 of a worker", "training", joined.at - killed)
    patient.others_trained({victim}, killed, joined.at)
    assert not patient.since(mark, TrainStarted), "nothing was restarted"
    numbers = [each.number for each in patient.cluster.events("worker.joined")]  # type: ignore[attr-defined]
    assert len(numbers) == len(set(numbers)), "a number was used twice"
    assert joined.run == "run-1"  # type: ignore[attr-defined]


def test_the_fork_servers_of_emulated_vms_are_forked_from_a_zygote(patient: Patient) -> None:
    for vm in (patient.server(), *patient.workers()):
        assert "zygote_program.py" in parent_line(patient.process(vm, "agent.fork_server"))


def test_what_the_cell_prints_is_in_the_log_of_a_worker_that_still_trains(patient: Patient) -> None:
    assert patient.run
    assert "printed by the cell" in patient.run.logs(patient.workers()[0], lines=1000)


def parent_line(process: int) -> str:
    """The command line of the parent of a process."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return Path(f"/proc/{fields[1]}/cmdline").read_text(encoding="utf-8")


def test_a_killed_agent_is_followed_by_one_that_adopts_the_worker(patient: Patient) -> None:
    vm = patient.workers()[0]
    worker = patient.process(vm, "worker")
    patient.another_agent(vm)
    patient.goes_on()
    assert patient.process(vm, "worker") == worker, "the worker was not adopted"


def places(patient: Patient, vm: str, file: str) -> list[tuple[str, ...]]:
    """The beginnings of the paths below a VM's home that lead to this file. Other files come and go meanwhile."""
    home = patient.home(vm)
    return [Path(folder).relative_to(home).parts[:4] for folder, _, files in os.walk(home) if file in files]


def test_a_package_is_installed_on_every_vm_in_a_place_of_its_own(patient: Patient) -> None:
    assert patient.run
    for vm in (patient.server(), *patient.workers()):
        assert places(patient, vm, "tiny_package.py") == [("transient", "runs", patient.run.name, "packages")]
    assert find_spec("tiny_package") is None


def test_a_folder_that_is_sent_along_is_what_every_vm_trains_with(patient: Patient) -> None:
    assert patient.run
    assert "from own_layers import SIZE" in (patient.run.directory / "cell.py").read_text(encoding="utf-8")
    for vm in (patient.server(), *patient.workers()):
        assert places(patient, vm, "sizes.py") == [("transient", "runs", patient.run.name, "include")]
    assert find_spec("own_layers") is None


def test_a_resize_takes_a_worker_from_the_run_and_brings_one_to_it(patient: Patient) -> None:
    assert patient.run
    first = mark = patient.mark()
    before = set(patient.workers())
    patient.cluster.resize("k80")
    patient.until(lambda state: sum(vm.role == "worker" for vm in state.living) == 1, "one VM of a worker")
    patient.whole()
    (gone,) = before - set(patient.workers())
    left = [(each.worker, each.reason) for each in patient.since(mark, WorkerLeft)]  # type: ignore[attr-defined]
    assert left == [(gone, "told to leave")]
    assert not patient.since(mark, events.WorkerReplaced)
    patient.goes_on()

    mark = patient.mark()
    patient.cluster.resize("k80x2")
    joined = patient.event(mark, WorkerJoined).worker  # type: ignore[attr-defined]
    patient.whole()
    assert set(patient.workers()) == before - {gone} | {joined}
    patient.trains(joined)
    rows = patient.run.history()
    assert rows.steps[rows.worker == joined].sum() > 0
    patient.goes_on()
    assert not patient.since(first, TrainStarted), "nothing was restarted"


def test_it_is_saved_and_evaluated_when_asked_for(patient: Patient) -> None:
    assert patient.run
    mark = patient.mark()
    patient.run.save()
    saved = patient.event(mark, TrainCheckpoint)
    scores = patient.run.evaluate(now=True)
    assert 0 <= scores["accuracy"] <= 1
    evaluated = patient.event(mark, TrainEvaluated)
    assert evaluated.step >= saved.step  # type: ignore[attr-defined]
    patient.goes_on()


def test_a_killed_parameter_server_resumes_from_its_last_checkpoint(patient: Patient) -> None:
    mark = patient.mark()
    saved = patient.event(mark, TrainCheckpoint).step  # type: ignore[attr-defined]
    mark, killed = patient.mark(), time.time()
    patient.kill(patient.server(), "parameter_server")
    started = patient.event(mark, TrainStarted)
    healed("kill -9 of the parameter server", "training", started.at - killed)
    assert started.step >= saved  # type: ignore[attr-defined]
    patient.whole()
    patient.goes_on()


@pytest.mark.nightly
def test_a_lost_parameter_servers_vm_is_replaced_and_training_resumes_from_what_is_at_home(patient: Patient) -> None:
    mark = patient.mark()
    patient.until(lambda _: patient.saved_at_home() > 0, "a checkpoint at home")
    saved, lost, gone = patient.saved_at_home(), patient.server(), time.time()
    take_away(f"patient-{lost}")
    started = patient.event(mark, TrainStarted)
    healed("VM of the parameter server lost", "training", started.at - gone)
    resumed = started.step  # type: ignore[attr-defined]
    assert resumed >= saved
    assert patient.server() != lost
    patient.whole()
    patient.goes_on()
    patient.until(lambda _: patient.saved_at_home() > resumed, "a checkpoint of the new VM at home")
    patient.has_the_chiefs_metrics()


def test_while_google_accepts_no_credentials_training_goes_on(patient: Patient) -> None:
    mark = patient.mark()
    patient.cluster.weather(credentials="expired")
    try:
        patient.until(lambda state: "gcloud auth application-default login" in state.trouble, "told")
        patient.goes_on()
    finally:
        patient.cluster.weather(credentials="accepted")
    patient.until(lambda state: not state.trouble, "over")
    assert not patient.since(mark, events.VmRevoked)
    assert not patient.since(mark, events.VmDeleted)


def test_a_killed_controller_is_revived_with_nothing_lost_and_nothing_doubled(patient: Patient) -> None:
    before = {vm.name for vm in patient.cluster.state.living}
    mark = patient.mark()
    number = patient.controller()
    written = patient.has_the_chiefs_metrics().stat().st_ino
    os.kill(number, signal.SIGKILL)
    # Somebody follows the journal, which revives it, and goes; the new one stays.
    follow = (
        "from transient_magics import client\n"
        "cluster = client.cluster('patient')\n"
        f"cluster.follow(lambda now: any(each.seq > {mark} for each in cluster.events('controller.recovered')))"
    )
    subprocess.run([sys.executable, "-c", follow], check=True, timeout=PATIENCE)
    recovered = patient.event(mark, events.ControllerRecovered)
    assert recovered.pid != number  # type: ignore[attr-defined]
    patient.goes_on()
    time.sleep(5)  # it has told every agent what to do by now
    history = patient.cluster.events()
    assert {vm.name for vm in patient.cluster.state.living} == before
    assert [event.seq for event in history] == list(range(1, len(history) + 1))
    told = [(event.kind, event.time) for event in history if event.kind.startswith(("train.", "worker."))]
    assert len(told) == len(set(told)), "an event is in the journal twice"
    assert patient.has_the_chiefs_metrics().stat().st_ino == written, "the chief's file was replaced"


def test_a_frozen_worker_holds_nobody_up_and_finds_its_way_back(patient: Patient) -> None:
    mark, frozen = patient.mark(), patient.workers()[0]
    number = patient.process(frozen, "worker")
    os.kill(number, signal.SIGSTOP)
    try:
        patient.event(mark, WorkerLeft, worker=frozen)
        patient.goes_on()
    finally:
        os.kill(number, signal.SIGCONT)
    patient.event(mark, WorkerJoined, worker=frozen)
    patient.whole()


@pytest.mark.nightly
def test_two_workers_revoked_at_once_are_replaced_while_the_third_goes_on(patient: Patient) -> None:
    patient.cluster.resize("k80x3")
    patient.settled()
    patient.goes_on()
    mark = patient.mark()
    lost, revoked = patient.workers()[:2], time.time()
    for vm in lost:
        patient.cluster.revoke(vm)
    for vm in lost:
        patient.event(mark, events.VmPreemptionNotice, vm=vm)
    patient.event(mark, events.WorkerReplaced)
    patient.settled()
    joined = patient.since(mark, WorkerJoined)[-1].at
    healed("notice to two of three workers", "training", joined - revoked)
    patient.others_trained(lost, revoked, joined)
    assert not set(lost) & set(patient.workers())
    for vm in lost:
        assert len([each for each in patient.since(mark, events.VmRevoked) if each.vm == vm]) == 1  # type: ignore[attr-defined]
    patient.cluster.resize("k80x2")
    patient.settled()


@pytest.mark.nightly
def test_all_workers_revoked_during_a_checkpoint_come_back_as_others(patient: Patient) -> None:
    """The parameter server stands still in the middle of a save until all of them have heard of it."""
    assert patient.run
    lost, mark = set(patient.workers()), patient.mark()
    server = patient.server()
    folder = patient.home(server) / "transient" / "runs" / patient.run.name / "checkpoints"
    number = patient.process(server, "parameter_server")

    def frozen() -> Path | None:
        if not (parts := list(folder.glob("*.tempstate*"))):
            return None
        stand_still(number)
        index = folder / f"{parts[0].name.partition('.data')[0].partition('.index')[0]}.index"
        if not index.exists():
            return index
        os.kill(number, signal.SIGCONT)
        return None

    deadline = time.monotonic() + PATIENCE
    while not (index := frozen()):
        assert time.monotonic() < deadline, "no checkpoint is written"
    try:
        for vm in lost:
            patient.cluster.revoke(vm)
        for vm in lost:
            patient.event(mark, events.VmPreemptionNotice, vm=vm)
        assert not index.exists()
    finally:
        os.kill(number, signal.SIGCONT)
    revoked = time.time()
    step = int(index.stem.rpartition("-")[2])
    patient.event(mark, TrainCheckpoint, step=step)
    patient.until(
        lambda state: state.current_or_next_run and not set(state.current_or_next_run.workers) & lost,
        "without the lost",
    )
    patient.settled()
    healed("notice to all workers", "saving", time.time() - revoked)
    assert not set(patient.workers()) & lost
    assert not patient.since(mark, TrainUnsaved)
    patient.goes_on()


@pytest.mark.nightly
def test_a_worker_revoked_before_its_first_step_is_replaced(patient: Patient) -> None:
    mark = patient.mark()
    first = patient.workers()[0]
    patient.cluster.revoke(first)
    asked = patient.event(mark, events.VmRequested)
    early = asked.vm  # type: ignore[attr-defined]

    def running(state: ClusterState) -> bool:
        return state.vms[early].running_at > 0

    patient.until(running, "running")
    patient.cluster.revoke(early)
    patient.event(mark, events.VmRequested, replaces=early)
    patient.settled()
    patient.goes_on()


@pytest.mark.nightly
def test_the_emulator_killed_and_started_again_changes_nothing_for_the_training(patient: Patient) -> None:
    vms = {vm.name for vm in patient.cluster.state.living if vm.state == "ready"}
    number = patient.emulator()
    os.kill(number, signal.SIGKILL)
    patient.goes_on()
    patient.sees(lambda: set(patient.emulators()) - {number}, "another emulator")
    time.sleep(5)  # the controller has asked it which VMs there are by now
    patient.settled()
    assert vms <= {vm.name for vm in patient.cluster.state.living if vm.state == "ready"}


def test_a_step_is_traced_and_the_next_trace_has_to_wait(patient: Patient, tmp_path: Path) -> None:
    assert patient.run
    patient.whole()
    chosen = patient.workers()[0]
    found = json.loads(patient.run.profile(tmp_path / "step.json", chosen).read_text(encoding="utf-8"))
    names = [each["args"]["name"] for each in found["traceEvents"] if each["name"] == "process_name"]
    assert {f"{chosen} CPU:0", "ps-0 CPU:0"} <= set(names)
    kinds = {each["name"] for each in found["traceEvents"] if each["ph"] == "X"}
    assert "RecvTensor" in kinds, "transfers"
    assert any("MatMul" in kind or "Conv2D" in kind for kind in kinds), kinds
    with pytest.raises(TrainingError, match=rf"{chosen} had one recently: the next in (4 min|5 min)"):
        patient.run.profile(tmp_path / "another.json", chosen)
    patient.goes_on()
    told = [row for row in metrics.read(patient.run.directory / "metrics.jsonl") if row.get("traced_seconds")]
    assert [row["worker"] for row in told] == [chosen], "its time is told, and counted nowhere"


@pytest.mark.parametrize(
    ("source", "pip", "words"),
    [
        pytest.param(
            f"{LINE_CELL}\nraise ValueError('not so')\n", (), ["cell line", "not so"], marks=pytest.mark.nightly
        ),
        (LINE_CELL, ("/nowhere/tiny-1.0-py3-none-any.whl",), ["/nowhere/tiny-1.0-py3-none-any.whl", "--pip"]),
    ],
)
def test_a_run_that_cannot_work_fails_in_one_sentence_beside_the_one_that_trains(
    patient: Patient, source: str, pip: tuple[str, ...], words: list[str]
) -> None:
    run = client.train(source=source, pip=pip, cluster=patient.cluster, train_steps=10)
    with pytest.raises(TrainingError) as raised:
        run.wait(PATIENCE)
    assert [word for word in words if word not in str(raised.value)] == []
    assert "\n" not in str(raised.value).strip()
    joined = [event for event in patient.cluster.events() if isinstance(event, WorkerJoined)]
    assert {event.run for event in joined} == {"run-1"}
