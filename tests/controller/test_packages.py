"""What --pip comes to: wheels gathered once, installed in a run's own folder, or one sentence about what is wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from transient_magics.controller.packages import gather
from transient_magics.controller.startup import pinned
from transient_magics.errors import TrainingError

PROGRAM = """
import sys
from pathlib import Path
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.packages import provide
provide(RunFolder(Path(sys.argv[1])))
import tiny_package
print(tiny_package.PLACE)
"""


def imported(folder: Path) -> Path:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


async def test_a_package_is_gathered_and_importable_from_the_runs_own_folder(tmp_path: Path, tiny_wheel: Path) -> None:
    await gather([str(tiny_wheel)], tmp_path / "wheels")
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == [tiny_wheel.name]
    for _ in range(2):  # the second process finds it installed
        said = await asyncio.to_thread(imported, tmp_path)
        assert (tmp_path / "packages") in said.parents
    assert not list(tmp_path.glob(".wheels-*"))


async def test_a_name_that_nobody_has_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in every process that a Jupyter kernel starts
    with pytest.raises(TrainingError, match=r"^No matching distribution found for no-such-thing \(--pip\)\.$"):
        await gather(["no-such-thing"], tmp_path / "wheels")
    assert not list(tmp_path.iterdir())


def test_what_every_vm_has_is_known() -> None:
    there = pinned()
    assert {"tensorflow", "tensor2tensor", "numpy", "keras"} <= set(there)
    assert there["tensor2tensor"] == "1.15.7"
