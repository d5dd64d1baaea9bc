"""Every program of a cluster dies while it starts, each time at a later step, and the cluster comes up all the same.

The programs are killed before what others can see of them: tests/faults/mortal says how.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controllers import started_plainly
from tests.faults.conftest import PATIENCE, Patient, processes, started_with
from tests.faults.healing import healed
from transient_magics import client, emulator
from transient_magics.client import commands
from transient_magics.errors import ClusterError
from transient_magics.journal import events
from transient_magics.protocol.vm_events import TrainFailed, TrainStarted, WorkerJoined

MORTAL = Path(__file__).parent / "mortal"


class Deaths:
    """Programs with `mark` in their command line die before each of these steps, one after the other."""

    def __init__(self, mark: str, steps: range, folder: Path) -> None:
        self.steps = steps
        self._file = folder / "died"
        self.environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(MORTAL), os.environ.get("PYTHONPATH", "")])),
            "TRANSIENT_TESTS_MORTAL": mark,
            "TRANSIENT_TESTS_DIED": str(self._file),
            "TRANSIENT_TESTS_STEPS": " ".join(map(str, steps)),
        }

    @property
    def lines(self) -> list[str]:
        """What each of those that died was about to do."""
        return self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []

    @property
    def over(self) -> bool:
        """Whether the last one has died."""
        return len(self.lines) == len(self.steps)


def answers(patient: Patient, vm: str) -> bool:
    """Whether the agent that was started last on a VM is the one that serves, and its VM can be reached."""
    root = patient.home(vm) / "transient"
    told = [json.loads(line) for line in (root / "agent.jsonl").read_text(encoding="utf-8").splitlines()]
    started = [line["pid"] for line in told if line["kind"] == "agent.started"]
    try:
        patient.cluster.logs(vm)
    except ClusterError:
        return False
    return (root / "agent.pid").read_text(encoding="utf-8") == str(started[-1])


@pytest.fixture(scope="module")
def small(home: Path) -> Iterator[Patient]:
    """A cluster without a run."""
    cluster = client.declare(client.Declaration("k80", name="small"))
    cluster.wait(PATIENCE)
    yield Patient(cluster)
    cluster.delete(PATIENCE)


def test_an_agent_that_dies_at_every_step_of_its_start_is_started_until_it_lives(
    small: Patient, tmp_path: Path
) -> None:
    deaths, mark = Deaths("transient_magics.runtime.agent", range(8), tmp_path), small.mark()
    with started_with(small, "worker-0", deaths.environment):
        small.kill("worker-0", "agent")
        small.sees(lambda: deaths.over, "death at every step")
        began = time.monotonic()
        small.sees(lambda: answers(small, "worker-0"), "answer")
    healed("kill -9 at every step of its start", "agent", time.monotonic() - began)
    assert any("agent.sock" in line for line in deaths.lines), deaths.lines
    assert not small.since(mark, events.VmDeleted)


@pytest.mark.nightly
def test_a_controller_that_dies_at_every_step_of_its_start_loses_and_doubles_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = Deaths("transient_magics.controller reborn", range(40), tmp_path)
    with monkeypatch.context() as patch, started_plainly():
        for name, value in deaths.environment.items():
            patch.setenv(name, value)
        cluster = client.declare(client.Declaration("k80x2", name="reborn"))
        patient, deadline = Patient(cluster), time.monotonic() + 2 * PATIENCE
        while not deaths.over:
            assert time.monotonic() < deadline, deaths.lines
            if not commands.in_charge(cluster.directory):
                commands.start_controller(cluster.directory).wait(60) if len(deaths.lines) < 40 else None
            time.sleep(0.1)
    began = time.monotonic()
    cluster.wait(PATIENCE)
    healed("kill -9 at every step of its start", "controller", time.monotonic() - began)
    history = cluster.events()
    assert [event.seq for event in history] == list(range(1, len(history) + 1))
    assert sorted(vm.name for vm in patient.cluster.state.living) == ["ps-0", "worker-0", "worker-1"]
    cluster.delete(PATIENCE)


@pytest.mark.nightly
def test_an_emulator_that_dies_at_every_step_of_its_start_finds_its_vms_again(
    small: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths, mark = Deaths("transient_emulator", range(25), tmp_path), small.mark()
    agent, controller = small.process("worker-0", "agent"), small.controller()
    os.kill(controller, signal.SIGSTOP)  # it would start one that lives
    try:
        with monkeypatch.context() as patch:
            for name, value in deaths.environment.items():
                patch.setenv(name, value)
            os.kill(small.emulator(), signal.SIGKILL)
            deadline = time.monotonic() + PATIENCE
            while not deaths.over and time.monotonic() < deadline:
                code = "from transient_magics import emulator; emulator.ensure()"
                subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
                if emulator.running():
                    break  # it has no more steps than these
        began = time.monotonic()
        emulator.ensure()
    finally:
        os.kill(controller, signal.SIGCONT)
    small.sees(lambda: answers(small, "worker-0"), "answer")
    healed("kill -9 at every step of its start", "emulator", time.monotonic() - began)
    assert len(deaths.lines) > 5, deaths.lines
    assert small.process("worker-0", "agent") == agent
    assert not small.since(mark, events.VmDeleted)
    assert not small.since(mark, events.VmRevoked)


@pytest.mark.training
@pytest.mark.nightly
@pytest.mark.parametrize("first", [0, 5, 10])
@pytest.mark.parametrize("role", ["worker", "parameter_server"])
def test_a_role_that_dies_at_a_step_of_its_start_trains_in_the_end(
    patient: Patient, tmp_path: Path, role: str, first: int
) -> None:
    vm = patient.server() if role == "parameter_server" else patient.workers()[0]
    deaths, mark = Deaths(f"transient_magics.runtime.{role}", range(first, first + 5), tmp_path), patient.mark()
    with started_with(patient, vm, deaths.environment):
        patient.another_agent(vm)  # which starts roles that are mortal
        time.sleep(2)  # it has adopted the role
        began = time.monotonic()
        patient.kill(vm, role)
        patient.sees(lambda: deaths.lines, "death of one")
        patient.event(mark, TrainStarted if role == "parameter_server" else WorkerJoined)
        patient.whole()
        patient.goes_on()
    healed("kill -9 at every step of its start", role.replace("_", " "), time.monotonic() - began)
    assert not patient.since(mark, TrainFailed)
    assert len(processes(str(patient.home(vm)), f"runtime.{role} ")) == 1, "it is there twice"
    patient.another_agent(vm)  # and roles are as ever again
    patient.settled()
