"""A run and its bucket: whatever becomes of the way there, training goes on, it is said, and nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.conftest import Emulate
from tests.faults.healing import healed
from tests.faults.rooms import Ward
from tests.road import Road, road
from tests.runtime.machine_room import MachineRoom, until
from tests.runtime.test_training import DIGITS
from transient_magics.runtime.files.bucket import Bucket
from transient_magics.runtime.programs.shipping import read_manifest, restore

pytestmark = pytest.mark.training

PLACE = "gs://runs-here/c/run-1"


@pytest.fixture
def way(emulate: Emulate) -> Iterator[Road]:
    """The road to an emulator with a bucket."""
    with emulate() as url, road(url) as way, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": url}).create_bucket("runs-here")
        yield way


@pytest.fixture
def ward(way: Road, tmp_path: Path) -> Iterator[Ward]:
    """A run that ships its checkpoints."""
    with closing(MachineRoom(tmp_path, way.socket)) as room:
        ward = Ward(room, store=PLACE)
        ward.bring_token(PLACE)
        ward.assign("ps-0")
        until(lambda: len(ward.events("train.shipped")) > 1, "checkpoints in the bucket")
        yield ward


def trains_on_and_saves(ward: Ward, saved: int) -> None:
    """See steps, and checkpoints on the machine, after the one of step `saved`."""
    ward.trains()
    until(lambda: ward.steps_at_disk()[-1] > saved, "checkpoints on the machine")


def lose_machine(ward: Ward) -> None:
    """End the run's processes, and put the declaration on a machine that has nothing of the parameter server's."""
    for name in ("ps-0", "worker-1"):
        ward.room.say(name, {"do": "stop", "run": "run-1"})
    ward.folder.rename(ward.folder.with_name("lost"))
    ward.room.put("ps-0", ward.declared, ward.cell)


def is_shipped_again(ward: Ward, fault: str, since: float, least: int = 0) -> None:
    """See a checkpoint in the bucket that was saved since, of step `least` or a later one."""
    saved = max(ward.steps_at_disk()[-1], least)
    found = lambda: [line for line in ward.events("train.shipped") if line["step"] >= saved]  # noqa: E731
    shipped = until(found, "a newer one in the bucket")[0]
    healed(fault, "training", shipped["time"] / 1e9 - since)
    manifest, _ = read_manifest(Bucket(PLACE))
    assert manifest.newest
    assert manifest.newest.step >= saved


def test_a_bucket_forbidden_while_training_and_a_server_killed_while_shipping_lose_nothing(
    ward: Ward, way: Road, tmp_path: Path
) -> None:
    ward.bring_token("gs://runs-here/c/another")
    told = ward.more("train.unshipped")
    assert "the VM has no right to use the bucket" in told["reason"]
    trains_on_and_saves(ward, ward.steps_at_disk()[-1])
    ward.bring_token(PLACE)
    is_shipped_again(ward, "bucket forbidden (403)", time.time())

    way.hold_up(3000)
    assert way.held.wait(120)
    saved, starts = ward.steps_at_disk()[-1], len(ward.events("train.started"))
    killed = time.time()
    ward.kill_server()
    started = until(lambda: ward.events("train.started")[starts:], "training again")[0]
    assert started["step"] >= saved
    healed("kill -9 of the parameter server", "shipping", ward.trains(killed))
    way.open()
    # It began behind the checkpoint from which it goes on, which may be the newest one yet.
    is_shipped_again(ward, "kill -9 of the parameter server, bucket held up", time.time(), started["step"])
    step = restore(Bucket(PLACE), tmp_path / "elsewhere")["step"]
    assert step >= started["step"]

    lose_machine(ward)
    ward.bring_token(PLACE)
    ward.assign("ps-0")
    ward.assign("worker-1")
    began = ward.wait("training on another machine", "train.started", "train.failed")
    assert began["kind"] == "train.started"
    assert began["step"] >= step
    ward.trains()


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["cut", "silent", "slow"])
def test_a_bucket_unreachable_while_training(ward: Ward, way: Road, fault: str) -> None:
    began, saved = time.time(), ward.steps_at_disk()[-1]
    if fault == "cut":
        way.close_down()
    elif fault == "silent":
        way.silent = True
    else:
        way.rate = 2000.0
    trains_on_and_saves(ward, saved)
    if fault != "slow":
        told = ward.more("train.unshipped")
        assert told["time"] / 1e9 - began < 240, "two minutes of trying again, and one without a word"
        assert PLACE in told["reason"]
    trains_on_and_saves(ward, ward.steps_at_disk()[-1])
    way.open()
    is_shipped_again(ward, f"bucket {fault}", time.time())


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["slow", "silent"])
def test_a_bucket_that_stops_sending_records_holds_steps_up_for_seconds(way: Road, tmp_path: Path, fault: str) -> None:
    registered = {"model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits"}
    with closing(MachineRoom(tmp_path, way.socket)) as room:
        ward = Ward(room, cell=DIGITS, data_dir="gs://runs-here/digits", cache="1KB:memory", **registered)
        ward.bring_token(None)
        ward.assign("ps-0")
        straight = lambda: max((line["straight_bytes"] for line in ward.events("train.data")), default=0)  # noqa: E731
        before = until(straight, "records straight from the bucket")
        assert not ward.events("train.detour")
        way.rate, way.silent = (1000.0 if fault == "slow" else None), fault == "silent"
        began = time.time()
        told = ward.more("train.detour", than=0)
        assert told["worker"] == "worker-1"
        ward.trains()
        ward.trains()
        steps = [line["time"] / 1e9 for line in ward.metrics() if line["steps"] and line["time"] / 1e9 > began]
        assert max(after - step for step, after in pairwise([began, *steps])) < 30
        way.open()
        until(lambda: straight() > before, "records straight from the bucket again")
        assert len(ward.events("train.detour")) == 1
        healed(f"bucket of the records {fault}", "training", steps[0] - began)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["kill -9 of the parameter server", "bucket cut"])
def test_a_server_that_begins_on_another_machine_while_it_restores_from_the_bucket(
    ward: Ward, way: Road, fault: str, tmp_path: Path
) -> None:
    """The first machine and all that was on it are lost."""
    shipped = ward.events("train.shipped")[-1]["step"]
    began = time.time()
    lose_machine(ward)
    ward.bring_token(PLACE)
    way.hold_up(0)
    ward.assign("ps-0")
    assert way.held.wait(120)
    if fault == "bucket cut":
        way.close_down()
        time.sleep(5)
    else:
        os.kill(until(lambda: ward.room.pids("ps-0").get("ps-0"), "its process"), signal.SIGKILL)
    assert not ward.events("train.started"), "it begins from nothing"
    way.open()
    ward.assign("worker-1")
    started = ward.wait("training", "train.started", "train.failed")
    assert started["kind"] == "train.started"
    assert started["step"] >= shipped
    healed(fault, "restoring from the bucket", ward.trains(began))


@pytest.mark.nightly
def test_a_run_whose_bucket_never_answers_when_it_begins_never_starts_from_nothing(ward: Ward, way: Road) -> None:
    lose_machine(ward)
    ward.assign("ps-0")  # without any token
    failed = ward.wait("the end", "train.started", "train.failed")
    assert failed["kind"] == "train.failed"
    assert "no token" in failed["reason"]
