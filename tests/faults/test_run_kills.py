"""Kills, notices and full disks in the middle of what a run does with its checkpoints: nothing saved is lost."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import processes
from tests.faults.healing import healed
from tests.faults.rooms import Ward
from tests.runtime.machine_room import MachineRoom, free_ports, isolated, until
from tests.runtime.test_training import DIGITS, assignment

pytestmark = [pytest.mark.training, pytest.mark.nightly]

MEGABYTES = 24
"""Of a checkpoint: long enough that one is met while it is written."""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[MachineRoom]:
    with closing(MachineRoom(tmp_path)) as room:
        yield room


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", 0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))


def restarts(ward: Ward, killed: float, least: int, fault: str, moment: str) -> dict[str, Any]:
    """See training begin again from a checkpoint of step `least` or later, and every worker step."""
    found = lambda: [line for line in ward.events("train.started") if line["time"] / 1e9 > killed]  # noqa: E731
    started = until(found, "training again")[0]
    assert least <= started["step"]
    healed(fault, moment, ward.trains(killed))
    assert not ward.events("train.failed")
    return started


def test_a_server_killed_while_saving_and_a_full_disk_lose_no_checkpoint(room: MachineRoom) -> None:
    if not isolated():
        pytest.skip("a small disk takes mounts of one's own")
    ward = Ward(room, megabytes=MEGABYTES, keep=2)
    ward.checkpoints = room.small_disk(ward.folder / "checkpoints", 5 * MEGABYTES << 10)
    ward.assign("ps-0")
    until(lambda: len(ward.steps_at_disk()) > 1, "two checkpoints")

    half = ward.while_saving(ward.kill_server)
    killed, whole = time.time(), ward.steps_at_disk()
    assert half not in whole
    started = restarts(ward, killed, whole[-1], "kill -9 of the parameter server", "saving")
    assert started["step"] <= whole[-1] + 2
    ward.more("train.checkpoint")
    assert not list(ward.checkpoints.glob("broken-*"))
    parts = {path.name.split(".")[1] for path in ward.checkpoints.glob("model.ckpt-*")}
    assert f"ckpt-{half}" not in parts or half in ward.steps_at_disk(), "what was half there takes room for ever"

    filler = ward.checkpoints / "filler"
    fill(filler)
    until(lambda: ward.events("train.unsaved"), "it is said")
    told, saved = ward.events("train.unsaved"), ward.steps_at_disk()
    ward.trains()
    assert ward.steps_at_disk() == saved
    room.say("ps-0", {"do": "save", "run": "run-1"})
    ward.more("train.unsaved", than=len(told))
    assert [line["step"] > 0 for line in told] == [True]
    filler.unlink()
    freed = time.time()
    after = ward.more("train.checkpoint")
    assert after["step"] > saved[-1]
    healed("full disk of the parameter server", "saving", after["time"] / 1e9 - freed)
    assert len(ward.events("train.unsaved")) == 2, "it is told once, and to who asked"


def test_a_notice_while_saving(room: MachineRoom) -> None:
    ward = Ward(room, ("worker-1", "worker-2"), megabytes=MEGABYTES)
    ward.assign("ps-0")
    until(lambda: len(ward.present()) == 2 and len(ward.steps_at_disk()) > 1, "both train")
    noticed: list[float] = []

    def notice() -> None:
        if not noticed:
            noticed.append(room.preempt("worker-1") / 1e9)

    step = ward.while_saving(notice)
    left = ward.wait("the revoked worker left", "worker.left", worker="worker-1")
    assert left["reason"] == "revoked"
    healed("notice", "saving", ward.trains(noticed[0]))
    until(lambda: step in ward.steps_at_disk(), "the checkpoint")
    assert not ward.events("train.unsaved")
    gaps = [line["gap_seconds"] for line in ward.metrics() if line["worker"] == "worker-2"]
    assert max(gaps) < 5.0, "the other one went on"


def test_a_notice_while_a_worker_joins_and_copies_its_data(room: MachineRoom) -> None:
    declared = {"model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits"}
    ward = Ward(room, cell=DIGITS, **declared)
    ward.assign("ps-0")
    ward.trains()
    ward.place("worker-2")
    ward.assign("worker-2")
    until((room.run_folder("worker-2") / "data").exists, "data on their way")
    noticed = room.preempt("worker-2") / 1e9
    exited = until(lambda: room.reports("worker-2", "process.exited"), "its end")[0]
    assert exited["code"] == 0
    assert exited["time"] / 1e9 - noticed < 30.0, "before the VM is gone"
    assert "worker-2" not in ward.present()
    healed("notice", "copying data to join", ward.trains(noticed))
    assert not ward.events("train.failed")


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_notice_at_the_last_step(room: MachineRoom, mode: str) -> None:
    steps = 60
    ward = Ward(room, ("worker-1", "worker-2"), mode=mode, train_steps=steps, pace_seconds=0.2)
    ward.assign("ps-0")
    until(lambda: len(ward.present()) == 2, "both train")
    until(lambda: any(line["step"] >= steps - 8 for line in ward.metrics()), "the last steps")
    noticed = room.preempt("worker-1") / 1e9
    ended = ward.wait("the end", "train.finished", "train.failed")
    assert ended["kind"] == "train.finished"
    assert ended["step"] >= steps
    assert ward.events("train.checkpoint")[-1]["step"] == ended["step"]
    assert ward.events("train.evaluated")[-1]["step"] == ended["step"]
    if mode == "async":  # where each step is one worker's own
        assert sum(line["steps"] for line in ward.metrics()) == max(line["step"] for line in ward.metrics())
    healed("notice", f"at the last step, {mode}", ended["time"] / 1e9 - noticed)


def test_a_notice_in_a_synchronous_barrier(room: MachineRoom) -> None:
    """worker-2 is slow, and so worker-1 waits at the barrier nearly all of the time."""
    ward = Ward(room, ("worker-1", "worker-2"), mode="sync", pace_seconds=0.2)
    ward.assign("ps-0")
    until(lambda: len(ward.present()) == 2, "both train")
    room.slow_down("worker-2", 10)
    ward.trains()
    ward.trains()
    noticed = room.preempt("worker-1") / 1e9
    left = ward.wait("it left", "worker.left", worker="worker-1")
    assert left["reason"] == "revoked"
    room.slow_down("worker-2", 1)
    healed("notice", "in a synchronous barrier", ward.trains(left["time"] / 1e9))
    exited = until(lambda: room.reports("worker-1", "process.exited"), "its end")[0]
    assert exited["time"] / 1e9 - noticed < 30.0, "before the VM is gone"


@pytest.mark.parametrize("notice", [0.0, 6.0])
def test_a_notice_that_is_shorter_than_a_step(room: MachineRoom, notice: float) -> None:
    ward = Ward(room, ("worker-1", "worker-2"), notice_seconds=notice)
    ward.assign("ps-0")
    until(lambda: len(ward.present()) == 2, "both train")
    room.slow_down("worker-1", 300)
    ward.trains()
    noticed = room.preempt("worker-1") / 1e9
    left = ward.wait("it left", "worker.left", worker="worker-1")
    assert left["reason"] == "revoked"
    healed("notice", f"of {notice:.0f} s, shorter than a step", ward.trains(left["time"] / 1e9))
    exited = until(lambda: room.reports("worker-1", "process.exited"), "its end")[0]
    assert exited["code"] == 0
    assert exited["time"] / 1e9 - noticed < 30.0, "no step of 30 s is waited for"


def test_a_notice_and_then_the_end_of_the_server_or_the_run(room: MachineRoom) -> None:
    """Whose place is taken is told to a chief that starts anew; and the notice does not delay a stop."""
    ward = Ward(room, ("worker-1", "worker-2"), max_workers=2, notice_seconds=300.0)
    ward.assign("ps-0")
    until(lambda: len(ward.present()) == 2, "both train")
    noticed = room.preempt("worker-1") / 1e9
    ward.trains(noticed + 1)
    ward.kill_server()
    until(lambda: ward.events("train.started")[1:], "another one")
    ward.trains()
    ward.place("worker-3")
    ward.assign("worker-3")
    until(lambda: ward.present() == {"worker-1", "worker-2", "worker-3"}, "three train where two were declared")
    stopped = time.time()
    assert room.say("worker-1", {"do": "stop", "run": "run-1"}) == {"ok": True}
    left = ward.wait("it left", "worker.left", worker="worker-1")
    assert left["reason"] == "told to leave"
    healed("notice", "before the server dies and the run is stopped", left["time"] / 1e9 - stopped)
    ward.trains()


def test_a_server_killed_while_it_restores(room: MachineRoom) -> None:
    ward = Ward(room)
    ward.assign("ps-0")
    until(lambda: len(ward.steps_at_disk()) > 1, "checkpoints")
    ward.kill_server()
    step = ward.steps_at_disk()[-1]
    index, data = (ward.checkpoints / f"model.ckpt-{step}.{end}" for end in ("index", "data-00000-of-00001"))
    aside = data.with_name(".aside")
    data.rename(aside)
    os.mkfifo(data)  # whoever opens it, waits

    def restores() -> bool:
        with contextlib.suppress(OSError, KeyError):  # it is not there yet
            return str(index) in map(os.readlink, Path(f"/proc/{room.pids('ps-0')['ps-0']}/fd").iterdir())
        return False

    until(restores, "it restores")
    ward.kill_server()
    killed = time.time()
    aside.replace(data)
    restarts(ward, killed, step, "kill -9 of the parameter server", "restoring")
    assert not list(ward.checkpoints.glob("broken-*"))


def test_another_server_lost_while_the_chief_saves_and_replaced_elsewhere(room: MachineRoom) -> None:
    """As where its VM is lost: nobody answers at its place any more, and then there is another place."""
    ward = Ward(room, workers=(), megabytes=4 * MEGABYTES)
    places = [f"127.0.0.1:{port}" for port in free_ports(3)]
    for name in ("ps-1", "ps-2", "worker-1"):
        ward.place(name)

    def assign(servers: list[str], *names: str) -> None:
        for name in names:
            room.say(name, {**assignment(name, servers, ward.chief), **({"index": 1} if name == "ps-2" else {})})

    assign(places[:2], "ps-0", "ps-1", "worker-1")
    until(lambda: len(ward.steps_at_disk()) > 1, "two checkpoints")
    lost = room.pids("ps-1")["ps-1"]

    def lose() -> None:
        room.kill_agent("ps-1")
        os.kill(lost, signal.SIGKILL)

    half = ward.while_saving(lose)
    whole = ward.steps_at_disk()
    time.sleep(5)  # another VM is rented: meanwhile the chief tries to save on
    starts, moved = len(ward.events("train.started")), time.time()
    assign([places[0], places[2]], "ps-2", "ps-0", "worker-1")
    ended = until(lambda: room.reports("ps-0", "process.exited"), "end of the old chief")[0]["time"] / 1e9 - moved
    healed("VM lost of another parameter server", "saving, end of the chief that knew its old place", ended)
    assert ended < 10, "the old chief was waited for, which has nothing to save any more"
    started = until(lambda: ward.events("train.started")[starts:], "training again")[0]
    assert whole[-1] <= started["step"] <= max(half, whole[-1])
    stepped = started["time"] / 1e9 - moved + ward.trains(started["time"] / 1e9)
    healed("VM lost of another parameter server", "saving, from the new place on", stepped)
    assert not ward.events("train.failed", "train.finished")


def test_a_server_killed_in_the_final_evaluation(room: MachineRoom) -> None:
    ward = Ward(room, train_steps=30)
    ward.assign("ps-0")
    until(lambda: processes("transient_magics.runtime.programs.evaluate", str(ward.folder)), "the evaluation")
    ward.kill_server()
    killed = time.time()
    ended = ward.wait("the end", "train.finished", "train.failed")
    assert ended["kind"] == "train.finished"
    assert ended["step"] >= 30
    assert ended["checkpoint"]
    assert [line["step"] for line in ward.events("train.evaluated")] == [ended["step"]]
    healed("kill -9 of the parameter server", "in the final evaluation", ended["time"] / 1e9 - killed)
    until(lambda: not room.pids("ps-0") and not room.pids("worker-1"), "every role has ended")


@pytest.mark.parametrize("victim", ["worker", "parameter server"])
def test_a_kill_while_a_worker_delivers_a_checkpoint(room: MachineRoom, victim: str) -> None:
    ward = Ward(room, ("worker-1", "worker-2"), megabytes=4 * MEGABYTES, chief="worker")
    ward.assign("ps-0")
    until(lambda: [line for line in ward.events("train.checkpoint") if line["worker"]], "a worker saves")
    until(lambda: len(ward.present()) == 2, "both train")
    saver = ward.events("train.checkpoint")[-1]["worker"]
    whole = ward.steps_at_disk()[-1]
    until(lambda: list(ward.folder.glob("delivered-*/model.ckpt-*")), "a delivery")
    if victim == "worker":
        os.kill(room.pids(saver)[saver], signal.SIGKILL)
    else:
        ward.kill_server()
    killed = time.time()
    if victim == "worker":
        until(lambda: ward.steps_at_disk()[-1] > whole, "another checkpoint")
        healed("kill -9 of the worker that saves", "delivering", ward.trains(killed))
    else:
        restarts(ward, killed, whole, "kill -9 of the parameter server", "taking a worker's checkpoint")
        until(lambda: ward.steps_at_disk()[-1] > whole, "another checkpoint")
    until(lambda: not list(ward.folder.glob("delivered-*")), "nothing half there stays")
    assert not list(ward.checkpoints.glob("broken-*"))


def test_a_full_disk_of_one_worker(room: MachineRoom) -> None:
    if not isolated():
        pytest.skip("a small disk takes mounts of one's own")
    declared = {"model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits"}
    ward = Ward(room, cell=DIGITS, **declared)
    ward.assign("ps-0")
    ward.trains()
    ward.place("worker-2")
    room.small_disk(room.run_folder("worker-2") / "data", 16)
    ward.assign("worker-2")
    began = time.time()
    exited = until(lambda: room.reports("worker-2", "process.exited"), "it cannot join")[0]
    assert os.strerror(errno.ENOSPC) in exited["tail"]
    ward.trains()
    assert not ward.events("train.failed")
    room.small_disk(room.run_folder("worker-2") / "data", 1 << 16)
    ward.wait("it joins", "worker.joined", worker="worker-2")
    healed("full disk of a worker", "copying data to join", time.time() - began)
    assert not ward.events("train.failed")


def test_a_problem_without_records_ends_the_run_in_a_sentence(room: MachineRoom) -> None:
    empty = "\n    def generator(self, data_dir, tmp_dir, is_training):\n        return iter(())\n"
    cell = f"{DIGITS}\n\n@registry.register_problem\nclass NoDigits(ImageDigits):{empty}"
    ward = Ward(room, cell=cell, model="resnet", hparams_set="resnet_digits", problem="no_digits")
    ward.assign("ps-0")
    failed = until(lambda: ward.events("train.failed"), "the failure")[0]
    assert failed["reason"] == "no_digits generates no training records. Check its generator."
