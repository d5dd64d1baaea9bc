"""Folders of clusters that nobody can read end no command, and journals that nobody can read keep no VM alive.

Everything is real: the emulator's API, Google's client, detached controllers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import transient_magics as tm
from tests.homes import own_home
from transient_magics import emulator, places
from transient_magics.cli import program
from transient_magics.client import unreadable
from transient_magics.cloud import ComputeEngine, VmRequest
from transient_magics.controller.programs.sweep import Here, _why
from transient_magics.controller.vms.machines import ID_LABEL, LABEL, MACHINE_LABEL, labels, owner_labels
from transient_magics.errors import ClusterError
from transient_magics.journal.lock import LOCK, is_locked
from transient_magics.spec import EMULATED_PROJECT

PATIENCE = 200.0
GARBAGE = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with own_home() as folder:
        yield folder


@pytest.fixture
async def engine(home: Path) -> AsyncIterator[ComputeEngine]:
    async with ComputeEngine(EMULATED_PROJECT, emulator.ensure(linger=200.0)) as opened:
        yield opened


@pytest.fixture
def broken(home: Path) -> Iterator[list[str]]:
    """The names of clusters whose folders cannot be read, each in another way."""
    folders = {name: places.private(places.cluster(name)) for name in ("binary", "folded", "half", "list", "lost")}
    (folders["binary"] / "spec.json").write_bytes(GARBAGE)
    (folders["folded"] / "spec.json").mkdir()
    (folders["half"] / "spec.json").write_text('{"name": "half", "id": "1a2b', encoding="utf-8")
    (folders["list"] / "spec.json").write_text("[1]", encoding="utf-8")
    (folders["lost"] / "spec.json").write_text("{}", encoding="utf-8")
    yield list(folders)
    for folder in folders.values():
        shutil.rmtree(folder)


def test_a_folder_that_cannot_be_read_is_passed_over_and_told(
    broken: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tm.clusters(all=True) == []
    assert program.main(["cluster", "list"]) == 0
    nothing, *told = capsys.readouterr().out.splitlines()
    assert nothing == "No cluster."
    assert told == unreadable()
    for name, each in zip(broken, told, strict=True):
        assert each.startswith(f"The folder of {name} on this machine cannot be read: ")
    for words in (["cluster", "delete", "half"], ["cluster", "delete", "--all"]):
        assert program.main(words) == 1
        said = capsys.readouterr().err
        assert "The folder of half on this machine cannot be read" in said
        assert "To find its VMs: `transient cluster sweep`." in said
        assert "Traceback" not in said


@pytest.mark.slow
async def test_a_sweep_tells_of_folders_that_cannot_be_read_and_of_their_vms(
    engine: ComputeEngine, broken: list[str]
) -> None:
    marks = {**await owner_labels(engine), ID_LABEL: "1a2b3c4d"}
    for cluster in ("half", "left"):
        request = VmRequest(f"{cluster}-worker-0", "us-central1-a", "n1-standard-4", "", provisioning_model="standard")
        await engine.insert(VmRequest(**{**vars(request), "labels": {**marks, LABEL: cluster}}))
    shown = await asyncio.to_thread(tm.sweep)
    assert {each.name: each.why for each in shown.orphans} == {
        "half-worker-0": "the folder of its cluster half on this machine cannot be read",
        "left-worker-0": "its cluster left has no folder on this machine",
    }
    assert list(shown.unreadable) == unreadable()
    assert all(each in str(shown) for each in unreadable())
    half, _ = sorted(await engine.list({}), key=lambda vm: vm.name)
    assert _why(half, marks[MACHINE_LABEL], Here(broken={"half": False}), ())
    assert not _why(half, marks[MACHINE_LABEL], Here(broken={"half": True}), ()), "its controller is at work"
    assert (await asyncio.to_thread(tm.sweep, yes=True)).names == ["half-worker-0", "left-worker-0"]
    assert await engine.list({}) == []


@pytest.mark.slow
async def test_a_journal_that_cannot_be_read_keeps_no_vm_alive(engine: ComputeEngine) -> None:
    clusters = [tm.declare(tm.Declaration("cpu", name=name)) for name in ("garbage", "headless")]
    for cluster in clusters:
        state = await asyncio.to_thread(cluster.wait, PATIENCE)
        assert state.spec
        assert len(await engine.list(labels(state.spec))) == 2
        os.kill(int((cluster.directory / LOCK).read_text(encoding="utf-8")), signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while is_locked(cluster.directory):
            assert time.monotonic() < deadline, "the controller goes on"
            await asyncio.sleep(0.02)
        journal = cluster.directory / "journal.jsonl"
        rest = b"" if cluster.name == "garbage" else b"".join(journal.read_bytes().splitlines(keepends=True)[1:])
        journal.write_bytes(GARBAGE + b"\n" + rest)
    assert (await asyncio.to_thread(tm.sweep, yes=True)).names == [], "they have folders here, and are not over"
    for cluster in clusters:
        await asyncio.to_thread(cluster.delete, PATIENCE)
        assert cluster.state.over
        with pytest.raises(ClusterError, match="is deleted"):
            cluster.resize("cpux2")
    assert await engine.list({}) == []
