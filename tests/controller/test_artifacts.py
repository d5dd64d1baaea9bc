"""An artifact from elsewhere takes its place whole and checked, or leaves everything as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from transient_magics.controller import artifacts
from transient_magics.controller.artifacts import Artifact, bring
from transient_magics.errors import ForeignError, RoomError
from transient_magics.works.bags import artifacts as of_bags
from transient_magics.works.bags.events import BagResult

NEW = b"new"
FILE = Artifact("result", ("jobs/job-1/result",), most=10, digest=hashlib.sha256(NEW).hexdigest())


class Elsewhere:
    """A folder elsewhere, with these files."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    async def get(self, name: str, target: Path, *, most: int) -> bool:
        if name not in self.files:
            return False
        if len(self.files[name]) > most:
            raise ForeignError(f"{name} is too large")
        target.write_bytes(self.files[name])
        return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cluster's folder with what came before."""
    for name in (*FILE.files, "second"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"old")
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuse(*paths: Path) -> None:
    assert all(path.read_bytes() == NEW for path in paths), "all of it has arrived"
    raise ValueError("it holds no numbers")


@pytest.mark.parametrize(
    ("artifact", "there", "error"),
    [
        (replace(FILE, digest="0" * 64), NEW, "its SHA-256 differs from the reported one"),
        (replace(FILE, digest=""), NEW, "its SHA-256 differs from the reported one"),
        (replace(FILE, check=refuse), NEW, "it holds no numbers"),
        (FILE, 11 * b"n", "is too large"),
    ],
)
async def test_what_is_not_as_it_was_told_is_refused(
    folder: Path, artifact: Artifact, there: bytes, error: str
) -> None:
    before = content(folder)
    with pytest.raises(ForeignError, match=error):
        await bring(artifact, folder, Elsewhere(dict.fromkeys(artifact.files, there)))
    assert content(folder) == before


async def test_without_room_nothing_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "room", lambda folder: 2)
    source = Elsewhere(dict.fromkeys(FILE.files, NEW))
    with pytest.raises(RoomError, match="no room for another 3 bytes"):
        await bring(replace(FILE, size=3), folder, source)
    assert await bring(replace(FILE, size=2), folder, source)


async def test_files_that_count_together_come_together_or_not_at_all(folder: Path) -> None:
    both = replace(FILE, files=(*FILE.files, "second"), digest=None)
    before = content(folder)
    assert not await bring(both, folder, Elsewhere({FILE.files[0]: NEW}))
    assert content(folder) == before
    assert await bring(both, folder, Elsewhere(dict.fromkeys(both.files, NEW)))
    assert content(folder) == dict.fromkeys(before, NEW)


async def test_arrays_and_surrogates_that_hold_anything_else_are_refused(folder: Path) -> None:
    result = BagResult(
        bag="bag-1", job=0, attempt=1, returned={"p": 1.0}, seconds=1.0, arrays="0.npz", bytes=3, digest=FILE.digest
    )
    for artifact in (of_bags.arrays(result), of_bags.surrogate("bag-1", 4)):
        with pytest.raises(ForeignError):
            await bring(artifact, folder, Elsewhere(dict.fromkeys(artifact.files, NEW)))
    assert "bags/bag-1/results/0.npz" not in content(folder)
