"""Images from the user's side, on the real emulator: a start-up script runs in a VM, and its disk becomes an image."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import transient_magics as tm
from tests.ends import ends
from tests.homes import own_home
from transient_magics import emulator, places
from transient_magics.cli import arguments
from transient_magics.errors import CloudError, ClusterError, DeclarationError
from transient_magics.journal import events
from transient_magics.magics.completion import candidates

PROGRAM = [sys.executable, "-m", "transient_magics.cli.program"]
WHOLE = "/compute/v1/projects/emulated-project"


@pytest.fixture
def home() -> Iterator[Path]:
    with own_home() as folder:
        yield folder


def eventually(check: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 200
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def listed(kind: str) -> list[dict[str, Any]]:
    """What the emulator has of a kind, in all zones."""
    with urllib.request.urlopen(f"{emulator.ensure()}{WHOLE}/aggregated/{kind}") as answer:
        return [each for scope in json.load(answer)["items"].values() for each in scope.get(kind, ())]


@pytest.mark.training
@pytest.mark.nightly
def test_an_image_is_baked_and_a_cluster_boots_from_it(home: Path) -> None:
    shell = InteractiveShell()
    shell.run_cell("%load_ext transient_magics")
    result = shell.run_cell("build = %transient_image build baked --no-gpu --for jobs")
    result.raise_error()
    build = shell.user_ns["build"]
    assert build.state == "building", "the cell does not wait for the build"
    with pytest.raises(ClusterError, match="The image baked is already being built"):
        tm.build_image("baked")
    assert next(build.steps()).startswith("starting a VM from projects/debian-cloud")
    build.wait(200)
    assert build.state == "built"
    (built,) = [event for event in build.events if isinstance(event, events.ImageBuilt)]
    assert listed("instances") == listed("disks") == []
    answer = shell.run_cell("%transient_image list")
    (row,) = answer.result.images
    assert (row["name"], row["base"], row["disk_gb"], row["gpu"], row["current"]) == (
        "baked",
        "debian-12",
        50,
        False,
        True,
    )
    assert "(this version)" in repr(answer.result)
    shell.run_cell("%unload_ext transient_magics")

    cluster = tm.declare(tm.Declaration("cpu", name="c1", image="family/transient-magics-jobs", purpose="jobs"))
    cluster.wait(200)
    assert {disk["sourceImageId"] for disk in listed("disks")} == {built.image_id}, "the id that was noted"
    assert {(disk["sourceImage"].rpartition("/")[2], disk["sizeGb"]) for disk in listed("disks")} == {("baked", "50")}
    cluster.delete()

    ended = subprocess.run(
        [*PROGRAM, "image", "delete", "baked"], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert ended.stdout == "The image baked is deleted.\n"
    with pytest.raises(CloudError, match=r"Unknown image 'baked' \(the emulator\)\. There are no images\."):
        tm.delete_image("baked")


@pytest.mark.nightly
@pytest.mark.training
def test_an_interrupted_build_leaves_nothing_and_a_killed_one_is_swept(home: Path) -> None:
    def begun() -> tuple[tm.Build, int]:
        build = tm.build_image("baked")
        eventually(lambda: any("starting TensorFlow" in getattr(event, "what", "") for event in build.events))
        return build, int((build.directory / "controller.lock").read_text(encoding="utf-8"))

    build, process = begun()
    assert ends("") == {build.spec.vm: pytest.approx(build.spec.declared_at + 3600, abs=60)}
    os.kill(process, signal.SIGTERM)
    with pytest.raises(CloudError, match="it was asked to end"):
        build.wait(200)
    assert listed("instances") == listed("disks") == []

    build, process = begun()
    os.kill(process, signal.SIGSTOP)  # else it may be through before the sweep is
    assert tm.sweep(yes=True).names == [], "a build under way is no orphan"
    os.kill(process, signal.SIGKILL)
    eventually(lambda: build.state == "interrupted")
    assert "was interrupted" in str(tm.images())
    assert tm.sweep(yes=True).names == [build.spec.vm]
    assert listed("disks") == []
    assert tm.delete_image("baked") == "The record of the failed build of baked is deleted."


def test_what_is_typed_is_read_completed_and_explained(home: Path) -> None:
    line = "build stack --project a-project --zone us-west1-b --base family/mine --no-gpu --disk-gb 80 --wait"
    words = arguments.split(line)
    command = arguments.parse("image", words)
    assert command.verb == "image build"
    assert command.wait
    assert command.values == {
        "name": "stack", "project": "a-project", "zone": "us-west1-b", "base": "family/mine", "gpu": False,
        "disk_gb": 80,
    }  # fmt: skip
    assert "build, list, delete" in str(arguments.parse("image", []).values["help"])
    assert "--base IMAGE" in str(arguments.parse("image", ["build", "-h"]).values["help"])
    with pytest.raises(DeclarationError, match=r"Unknown sub-command 'biuld' \(%transient_image\). Did you mean build"):
        arguments.parse("image", ["biuld"], called="%transient_image")
    with pytest.raises(DeclarationError, match="must be a whole number of at least 10"):
        arguments.parse("image", ["build", "--disk-gb", "5"])
    directory = places.private(places.build("stack"))
    (directory / "spec.json").write_text("{}", encoding="utf-8")
    assert candidates("transient_image", "", "") == ["build", "list", "delete"]
    assert "--machine-type" in candidates("transient_image", "build ", "--m")
    assert "us-west1-b" in candidates("transient_image", "build --zone ", "")
    assert candidates("transient_image", "delete ", "") == ["stack"]
