"""Two users in one project: nobody's VMs, rules, builds and images are touched by another's cluster.

Both are homes of this user's on one emulator, with everything real: its API, Google's client, detached controllers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import transient_magics as tm
from transient_magics import emulator, places
from transient_magics.client import specify
from transient_magics.cloud import ComputeEngine, VmRequest
from transient_magics.controller.machines import ID_LABEL, labels
from transient_magics.errors import ClusterError
from transient_magics.spec import EMULATED_PROJECT

ZONE = "us-central1-a"
STRANGER = VmRequest("x", ZONE, "n1-standard-4", "", provisioning_model="standard", labels={"team": "production"})
PATIENCE = 200.0


@pytest.fixture(scope="module")
def alice() -> Iterator[Path]:
    """Her home, in which this process lives."""
    with pytest.MonkeyPatch.context() as patch:
        folder = Path(tempfile.mkdtemp(prefix="tm-"))
        patch.setenv("TRANSIENT_MAGICS_HOME", str(folder))
        yield folder
        for each in tm.clusters():
            each.delete()
        if url := emulator.running():
            os.kill(emulator.about(url)["pid"], signal.SIGTERM)
            deadline = time.monotonic() + PATIENCE
            while emulator.running():
                assert time.monotonic() < deadline, "the emulator goes on"
                time.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def bob(alice: Path, tmp_path: Path) -> Callable[[str], str]:
    """Runs a program of his in a home of his own, and gives what it prints."""
    own = {"TRANSIENT_MAGICS_HOME": str(tmp_path), "TRANSIENT_MAGICS_EMULATOR": str(places.emulator())}

    def run(code: str) -> str:
        command = [
            sys.executable,
            "-c",
            f"import transient_magics as tm\nfrom transient_magics.errors import *\n{code}",
        ]
        environment = {**os.environ, **own}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.fixture
async def engine(alice: Path) -> AsyncIterator[ComputeEngine]:
    async with ComputeEngine(EMULATED_PROJECT, emulator.ensure()) as opened:
        yield opened


async def test_a_second_cluster_of_a_name_is_refused_and_touches_nothing(
    engine: ComputeEngine, bob: Callable[[str], str]
) -> None:
    hers = tm.declare(tm.Declaration("cpu", name="shared"))
    state = hers.wait(PATIENCE)
    assert state.spec
    before = await engine.list(labels(state.spec))
    said = bob(
        "his = tm.declare(tm.Declaration('cpu', name='shared'))\n"
        "try: his.wait(120)\nexcept ClusterError as error: print(error)\n"
        "his.wait(120, until='deleted')\n"
    )
    assert "There is another cluster shared" in said
    assert "--name" in said
    assert await engine.list(labels(state.spec)) == before
    assert {vm.labels[ID_LABEL] for vm in before} == {state.spec.id}

    # Not even one that had passed that question would find or delete what is hers, whatever it has heard of.
    for vm in before:
        await engine.delete(vm.zone, vm.name, {ID_LABEL: "0badcafe"})
    assert [vm.id for vm in await engine.list(labels(state.spec))] == [vm.id for vm in before]
    hers.delete()


async def test_a_name_whose_vms_are_somebody_elses_is_refused(engine: ComputeEngine) -> None:
    vm = await engine.insert(VmRequest(**{**vars(STRANGER), "name": "web-worker-7"}))
    with pytest.raises(ClusterError, match="The name web is taken by a VM that is not ours, web-worker-7"):
        tm.declare(tm.Declaration("cpu", name="web")).wait(PATIENCE)
    assert await engine.get(ZONE, "web-worker-7") == vm
    await engine.delete(ZONE, vm.name, STRANGER.labels)
    tm.cluster("web").wait(PATIENCE, until="deleted")


def test_what_has_no_id_is_deleted_by_name_only_when_that_is_asked_for(alice: Path) -> None:
    spec = replace(specify(tm.Declaration("t4", name="old", project="some-project")), id="")
    folder = places.private(places.cluster("old"))
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()))
    try:
        with pytest.raises(ClusterError, match=r"known by name and owner alone.*delete old --by-name") as refused:
            tm.cluster("old").delete()
        assert "by_name=True" in refused.value.fix
    finally:
        shutil.rmtree(folder)
