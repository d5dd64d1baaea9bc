"""Which clusters without a controller are reported, and in which words; no controller is started here."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.panels.stories import declaration
from transient_magics import client, places
from transient_magics.client import commands
from transient_magics.errors import ControllerError
from transient_magics.journal import Event, Journal, events
from transient_magics.journal.lock import LOCK, take

LONG_AGO = time.mktime((2020, 1, 2, 3, 4, 5, 0, 0, -1))

SEAT = events.VmRequested(
    vm="controller-0", role="controller", slot=0, zone="us-west1-b", accelerator="", machine_type="e2-small",
    provisioning_model="standard", hourly=0.1, on_demand_hourly=0.1,
)  # fmt: skip


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The clusters for which a controller was to be started; none can be."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    names: list[str] = []

    def start(directory: Path) -> subprocess.Popen[bytes]:
        names.append(directory.name)
        raise ControllerError(f"The controller of {directory.name} could not be started: no memory")

    monkeypatch.setattr(commands, "start_controller", start)
    return names


def declared(name: str, *then: Event, at: float = LONG_AGO) -> client.Cluster:
    """A cluster whose controller was last alive at that time."""
    folder, spec = places.private(places.cluster(name)), declaration(name)
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    with Journal(folder / "journal.jsonl") as journal:
        journal.extend([events.ClusterDeclared(spec=spec.to_dict()), *then])
    for path in (folder / "spec.json", folder / "journal.jsonl"):
        os.utime(path, (at, at))
    return client.Cluster(name)


def test_a_cluster_without_a_controller_is_reported_with_what_stands_in_the_way(started: list[str]) -> None:
    here = declared("here")
    away = declared("away", SEAT, events.ControllerMoved(vm=SEAT.vm))
    broken = declared("broken")
    (broken.directory / "spec.json").write_text("{", encoding="utf-8")
    os.utime(broken.directory / "spec.json", (LONG_AGO, LONG_AGO))
    reports = client.revive([here, away, broken])
    assert started == ["here", "away"]
    assert reports[0] == (
        "No controller of here has been running since 03:04 on 2 Jan. The following state is from that time. "
        "Another one cannot be started: The controller of here could not be started: no memory."
    )
    assert reports[1].startswith(
        "No process of this machine has followed away since 03:04 on 2 Jan; its controller is on controller-0. "
    )
    assert "The folder of broken on this machine cannot be read" in reports[2]


def test_clusters_that_need_no_other_controller_are_left_alone(started: list[str]) -> None:
    over = declared("over", events.ClusterDeleted())
    starting = declared("starting", at=time.time())
    governed = declared("governed")
    lock = take(governed.directory)
    followed = declared("followed")
    (followed.directory / "attached").write_text("a cluster of another machine", encoding="utf-8")
    assert client.revive([over, starting, governed, followed]) == []
    assert started == []
    assert lock is not None
    os.close(lock)
    os.utime(governed.directory / LOCK, (LONG_AGO, LONG_AGO))
    assert len(client.revive([governed])) == 1
