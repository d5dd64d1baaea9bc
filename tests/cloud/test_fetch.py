"""What comes home from a run's place in a bucket, whoever has written there."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.machine_room import isolated
from transient_magics.cloud import CloudStorage
from transient_magics.controller.programs.fetch import fetch
from transient_magics.errors import CloudError, TrainingError
from transient_magics.runtime.files.manifest import NAME, Manifest, described

BUCKET = "results-and-others"
STORE = f"gs://{BUCKET}/c/run-1"
HOSTILE = (
    ".envrc",
    "sitecustomize.py",
    "../x",
    "..",
    "cell.py/x",
    "conftest.py",
    "checkpoints/.envrc",
    "a\\b",
    "run.json ",
)


@pytest.fixture
async def storage(url: str) -> AsyncIterator[CloudStorage]:
    async with CloudStorage("p", url, patience=3) as opened:
        await opened.ensure_bucket(BUCKET, "us-central1")
        await opened.delete_prefix(BUCKET, "c/")
        yield opened


async def put(storage: CloudStorage, folder: Path, step: int) -> dict[str, Any]:
    """A checkpoint in the bucket, and what its manifest says of it."""
    files = []
    for name in (f"model.ckpt-{step}.data-00000-of-00001", f"model.ckpt-{step}.index", "vocabulary.vocab.words.12"):
        (folder / name).write_bytes(os.urandom(100))
        await storage.upload(BUCKET, f"c/run-1/checkpoints/{step}-ab/{name}", folder / name)
        file = described(folder / name)
        files.append({"name": file.name, "size": file.size, "crc32c": file.crc32c})
    return {"step": step, "folder": f"checkpoints/{step}-ab", "files": files}


def brought(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_only_what_a_run_has_comes_home(storage: CloudStorage, tmp_path: Path) -> None:
    told = await put(storage, tmp_path, 7)
    await storage.write_json(BUCKET, f"c/run-1/{NAME}", {"checkpoints": [told]})
    for name in (*HOSTILE, "cell.py", "run.json", "result.json", "metrics.jsonl", "events.jsonl"):
        await storage.write_json(BUCKET, f"c/run-1/{name}", {"poison": name})
    home = tmp_path / "deep" / "home"
    assert await fetch(storage, STORE, home) == {"steps": [7], "refused": []}
    own = {"cell.py", "run.json", "result.json", "metrics.jsonl", "events.jsonl", "checkpoints/checkpoint"}
    assert brought(home) == own | {f"checkpoints/{file['name']}" for file in told["files"]}
    assert brought(tmp_path / "deep") == {f"home/{name}" for name in brought(home)}, "beside it"


async def test_what_is_larger_than_it_says_is_not_downloaded(
    storage: CloudStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, gone = [await put(storage, tmp_path, step) for step in (7, 8, 9)]
    await storage.write_json(BUCKET, f"c/run-1/{NAME}", {"checkpoints": [good, bad, gone]})
    (tmp_path / "large").write_bytes(bytes(5 << 20))
    await storage.upload(BUCKET, "c/run-1/checkpoints/8-ab/model.ckpt-8.index", tmp_path / "large")
    await storage.delete(BUCKET, "c/run-1/checkpoints/9-ab/model.ckpt-9.index")
    await storage.upload(BUCKET, "c/run-1/metrics.jsonl", tmp_path / "large")
    monkeypatch.setattr("transient_magics.controller.programs.fetch._MOST_BYTES", 1 << 20)
    downloaded: list[str] = []
    download = storage.download

    async def watched(bucket: str, name: str, path: Path, **how: Any) -> None:
        downloaded.append(name)
        await download(bucket, name, path, **how)

    monkeypatch.setattr(storage, "download", watched)
    answer = await fetch(storage, STORE, tmp_path / "home")
    assert answer["steps"] == [7]
    assert ["differs from the manifest" in why or "is missing" in why for why in answer["refused"]] == [True, True]
    assert not [name for name in downloaded if name.endswith(("8.index", "9.index", "metrics.jsonl"))]
    monkeypatch.setattr("transient_magics.runtime.files.manifest.MOST_BYTES", 100)
    for step in (7, 8):
        await storage.delete(BUCKET, f"c/run-1/checkpoints/{step}-ab/model.ckpt-{step}.index")
    with pytest.raises(TrainingError, match="too large"):
        await fetch(storage, STORE, tmp_path / "home")


async def test_a_manifest_that_is_none_is_one_sentence(storage: CloudStorage, tmp_path: Path) -> None:
    for content in ("[" * 200_000, "{", "[]", "7", '{"checkpoints": 7}', '{"checkpoints": [7]}'):
        (tmp_path / "manifest").write_text(content, encoding="utf-8")
        await storage.upload(BUCKET, f"c/run-1/{NAME}", tmp_path / "manifest")
        with pytest.raises((TrainingError, CloudError), match=r"JSON|cannot be read"):
            await fetch(storage, STORE, tmp_path / "home")
    assert not brought(tmp_path / "home")


@pytest.mark.parametrize("damage", ["lost", "torn"])
async def test_results_whose_manifest_is_damaged_come_home_as_they_lie_there(
    storage: CloudStorage, tmp_path: Path, damage: str
) -> None:
    told = [await put(storage, tmp_path, step) for step in (7, 80)]
    await storage.upload(BUCKET, "c/run-1/checkpoints/90-ab/model.ckpt-90.index", tmp_path / "model.ckpt-7.index")
    await storage.upload(BUCKET, "c/run-1/checkpoints/99-ab/sitecustomize.py", tmp_path / "model.ckpt-7.index")
    if damage == "torn":
        (tmp_path / "manifest").write_text('{"checkpoints": [{"step": 7,', encoding="utf-8")
        await storage.upload(BUCKET, f"c/run-1/{NAME}", tmp_path / "manifest")
    assert await fetch(storage, STORE, tmp_path / "home") == {"steps": [7, 80], "refused": []}
    names = {file["name"] for each in told for file in each["files"]} | {"checkpoint"}
    assert brought(tmp_path / "home") == {f"checkpoints/{name}" for name in names}


FULL = """
import asyncio
import json
import subprocess
import sys
from pathlib import Path

from transient_magics.cloud import CloudStorage
from transient_magics.controller.programs import print_answer
from transient_magics.controller.programs.fetch import fetch

url, store, home = sys.argv[1:]


async def bring():
    async with CloudStorage("p", url, patience=3) as storage:
        return await fetch(storage, store, Path(home))


for size in (["-t", "tmpfs", "-o", "size=300k"], ["-o", "remount,size=10m"]):
    subprocess.run(["mount", *size, "none", home], check=True)
    print_answer(bring())
    print(json.dumps(sorted(str(path.relative_to(home)) for path in Path(home).rglob("*") if path.is_file())))
"""


@pytest.mark.slow
@pytest.mark.skipif(not isolated(), reason="a small disk takes mounts of one's own")
async def test_on_a_full_disk_what_comes_home_is_whole_and_the_rest_comes_when_there_is_room(
    url: str, storage: CloudStorage, tmp_path: Path
) -> None:
    told = [await put(storage, tmp_path, 7), await put(storage, tmp_path, 80)]
    (tmp_path / "large").write_bytes(os.urandom(1 << 20))
    data = "model.ckpt-80.data-00000-of-00001"
    stored = await storage.upload(BUCKET, f"c/run-1/checkpoints/80-ab/{data}", tmp_path / "large")
    told[1]["files"][0] = {"name": data, "size": stored.size, "crc32c": stored.crc32c}
    await storage.write_json(BUCKET, f"c/run-1/{NAME}", {"checkpoints": told})
    (home := tmp_path / "home").mkdir()
    inside = ["unshare", "-Urm", sys.executable, "-c", FULL, url, STORE, str(home)]
    ended = await asyncio.to_thread(subprocess.run, inside, capture_output=True, check=False)
    assert not ended.returncode, ended.stderr.decode()
    failed, left, brought_then, all_there = map(json.loads, ended.stdout.splitlines())
    assert os.strerror(errno.ENOSPC) in failed["error"]
    whole = {f"checkpoints/{file['name']}" for file in told[0]["files"]}
    assert set(left) <= whole | {"checkpoints/checkpoint"}, "a part of something"
    assert brought_then == {"steps": [7, 80], "refused": []}
    both = {f"checkpoints/{file['name']}" for each in told for file in each["files"]}
    assert set(all_there) == both | {"checkpoints/checkpoint"}


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(HOSTILE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_GOOD = {"name": "model.ckpt-7.index", "size": 1, "crc32c": "AAAAAA=="}


@given(st.data())
def test_no_manifest_names_a_file_that_no_checkpoint_has(data: st.DataObject) -> None:
    """One field of a good one is anything at all."""
    file = {**_GOOD, data.draw(st.sampled_from(sorted(_GOOD))): data.draw(_ANYTHING)}
    known = {"step": 7, "folder": "checkpoints/7-ab", "files": [file]}
    if data.draw(st.booleans()):
        known[data.draw(st.sampled_from(sorted(known)))] = data.draw(_ANYTHING)
    try:
        found = Manifest.from_dict(json.loads(json.dumps({"checkpoints": [known]})))
    except TrainingError:
        return
    for checkpoint in found.checkpoints:
        assert checkpoint.folder.split("/")[0] == "checkpoints"
        for each in checkpoint.files:
            assert each.name in (f"model.ckpt-{checkpoint.step}.index",)
            assert each.size >= 0


def test_names_that_were_tried() -> None:
    names = (*HOSTILE, "checkpoint", "model.ckpt-8.index", "model.ckpt-7.py", "model.ckpt-7.index\n", "vocabulary.",
             "vocabulary..complete", "vocabulary.a/b", "model.ckpt-٧.index")  # fmt: skip
    for name in names:
        known = {"step": 7, "folder": "checkpoints/7-ab", "files": [{**_GOOD, "name": name}]}
        with pytest.raises(TrainingError, match="cannot be read"):
            Manifest.from_dict({"checkpoints": [known]})
