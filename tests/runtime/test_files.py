"""Files that are followed, replaced and copied, through crashes and full disks."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.machine_room import lines
from transient_magics.files import write_atomically
from transient_magics.protocol.agent_commands import Assignment
from transient_magics.protocol.chief_messages import read_fetch, read_first
from transient_magics.protocol.jsonl import append
from transient_magics.protocol.messages import encode
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime import role
from transient_magics.runtime.files import data_files
from transient_magics.runtime.files.checkpoints import (
    MOST_VOCABULARY_BYTES,
    Checkpoints,
    keep_vocabularies,
    lay_out_vocabularies,
)
from transient_magics.runtime.files.manifest import Manifest
from transient_magics.runtime.folder import Lines


def test_a_torn_line_is_closed_before_the_next(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"whole":1}\n{"torn":', encoding="utf-8")
    append(path, {"next": 2})
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if "torn" not in line] == [
        {"whole": 1},
        {"next": 2},
    ]


def test_events_wait_in_order_until_the_disk_takes_them(tmp_path: Path):
    place = tmp_path / "not there yet" / "events.jsonl"
    waiting = Lines(place)
    waiting.write("first", {"a": 1})
    waiting.write("second", {})
    place.parent.mkdir()
    waiting.flush()
    assert [line["kind"] for line in lines(place)] == ["first", "second"]


def test_each_event_is_later_than_those_before_also_where_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    moments = [100, 40, 41, 300]
    monkeypatch.setattr(time, "time_ns", lambda: moments.pop(0))
    told = Lines(tmp_path / "events.jsonl")
    for kind in ("first", "second", "third", "fourth"):
        told.write(kind, {})
    assert [line["time"] for line in lines(tmp_path / "events.jsonl")] == [100, 101, 102, 300]


def test_a_file_is_replaced_whole_and_only_for_us(tmp_path: Path):
    path = tmp_path / "chief.json"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("shared", "words"), [(False, ["vocab.x.256.subwords", "words.txt"]), (True, ["vocab.x.256.subwords"])]
)
def test_vocabularies_are_kept_beside_checkpoints_and_laid_out_again(tmp_path: Path, shared: bool, words: list[str]):
    data, checkpoints, again = (tmp_path / name for name in ("data", "checkpoints", "again"))
    for folder in (data / "folder", again):
        folder.mkdir(parents=True)
    for name in ("vocab.x.256.subwords", "words.txt", "x-train-00000-of-00010", ".complete"):
        (data / name).write_bytes(b"\xff of " + name.encode())
    with (data / "vocab.huge").open("wb") as file:
        file.truncate(MOST_VOCABULARY_BYTES + 1)
    keep_vocabularies(data, checkpoints, shared=shared)
    lay_out_vocabularies(checkpoints, again)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        name: (data / name).read_bytes() for name in words
    }
    assert Checkpoints(checkpoints).steps() == []


def test_a_declaration_of_a_newer_controller_is_read():
    declared: dict[str, Any] = {"name": "r", "model": "m", "hparams_set": "h", "problem": "p", "train_steps": 5}
    spec = RunSpec.from_dict({**declared, "something_new": 1, "checkpoint_steps": None, "max_workers": None})
    assert (spec.checkpoint_steps, spec.checkpoint_seconds, spec.max_workers) == (None, 600, 0)
    with pytest.raises(ValueError, match="train_steps"):
        RunSpec.from_dict({"name": "r"})


@pytest.mark.parametrize("change", [{"role": "king"}, {"run": "../etc"}, {"ps": "10.0.0.1:1"}, {"name": None}])
def test_an_assignment_that_makes_no_sense_is_refused(change: dict[str, Any]):
    message = {"run": "r", "role": "ps", "name": "ps-0", "address": "a", "ps": ["a:1"], "chief": "a:2", "index": 0}
    assert Assignment.from_dict(Assignment.from_dict(message).to_dict()).ps == ("a:1",)
    with pytest.raises(ValueError, match="not an assignment"):
        Assignment.from_dict({**message, **change})


def test_only_the_last_checkpoints_are_kept_and_the_state_file_is_relative(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    for step in (0, 9, 10):
        saved = checkpoints.write(
            step, lambda prefix: [Path(prefix + end).write_text("x", encoding="utf-8") for end in (".index", ".d")]
        )
    assert (saved.step, saved.name, saved.bytes) == (10, "checkpoints/model.ckpt-10", 2)
    assert checkpoints.steps() == [10, 9]
    assert (tmp_path / "checkpoints" / "checkpoint").read_text(encoding="utf-8").splitlines() == [
        'model_checkpoint_path: "model.ckpt-10"',
        'all_model_checkpoint_paths: "model.ckpt-9"',
        'all_model_checkpoint_paths: "model.ckpt-10"',
    ]


def test_a_checkpoint_that_is_held_is_not_dropped_before_it_is_let_go(tmp_path: Path):
    def write(step: int) -> list[int]:
        Checkpoints(tmp_path, keep=2).write(step, lambda prefix: Path(f"{prefix}.index").touch())
        return Checkpoints(tmp_path).steps()

    write(0)
    with Checkpoints(tmp_path).locked(0), Checkpoints(tmp_path).locked(0):
        assert [write(step) for step in (1, 2, 3)] == [[1, 0], [2, 1, 0], [3, 2, 0]]
    assert write(4) == [4, 3]
    with Checkpoints(tmp_path).locked(0):
        assert write(5) == [5, 4], "there is nothing to hold any more"


def test_half_made_records_are_made_again_and_finished_ones_are_not(tmp_path: Path):
    made: list[int] = []

    def generate(directory: Path, _temporary: Path) -> None:
        made.append(1)
        (directory / "train-0").write_bytes(b"records")

    directory = tmp_path / "data"
    directory.mkdir()
    (directory / "half").write_bytes(b"rec")
    files = data_files.make(directory, generate)
    assert [file["name"] for file in files] == ["train-0"]
    assert data_files.make(directory, generate) == files
    assert made == [1]


async def test_records_are_copied_whole_and_a_damaged_copy_is_fetched_again(tmp_path: Path):
    source, target = tmp_path / "data", tmp_path / "copy"
    content = bytes(range(256)) * 4000
    files = data_files.make(source, lambda directory, _: (directory / "train-0").write_bytes(content) and None)

    async def chief(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert role.token_fits(read_first(await reader.readline()).token, "secret")
        writer.write(encode({"ok": True, "files": files}))
        while line := await reader.readline():
            await data_files.serve(source, files, read_fetch(line).name, writer)
        writer.close()

    server = await asyncio.start_server(chief, "127.0.0.1", 0)
    place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.to_thread(data_files.copy, place, "secret", target)
    assert (target / "train-0").read_bytes() == content
    (target / "train-0").write_bytes(b"\0" * len(content))
    await asyncio.to_thread(data_files.copy, place, "secret", target)
    assert (target / "train-0").read_bytes() == content
    server.close()


def test_a_token_must_be_the_run_s_own():
    assert role.token_fits("abc", "abc")
    for given in ("", "abd", "ab", "abcd", "äbc"):
        assert not role.token_fits(given, "abc")
    assert not role.token_fits("", "")


def stored(step: int, *names: str) -> list[tuple[str, int, str]]:
    """Objects of one checkpoint in a run's place in a bucket, as Cloud Storage lists them."""
    return [(f"checkpoints/{step}-ab/model.ckpt-{step}.{name}", 100, "AAAAAA==") for name in names]


PARTS = [f"data-0000{number}-of-00003" for number in range(3)]


def test_without_a_manifest_a_checkpoint_in_several_files_counts_when_all_of_them_are_there():
    found = Manifest.from_objects([*stored(10, *PARTS, "index"), *stored(20, PARTS[2], "index", PARTS[0], PARTS[1])])
    assert [checkpoint.step for checkpoint in found.checkpoints] == [10, 20]
    assert {file.name for file in found.checkpoints[0].files} == {f"model.ckpt-10.{name}" for name in (*PARTS, "index")}


@pytest.mark.parametrize("missing", [*PARTS, "index"])
def test_without_a_manifest_a_checkpoint_that_lacks_one_file_does_not_count(missing: str):
    """Half of the variables would be restored from it, and the run would go on with the others as they began."""
    left = [name for name in (*PARTS, "index") if name != missing]
    found = Manifest.from_objects([*stored(10, *PARTS, "index"), *stored(20, *left)])
    assert [checkpoint.step for checkpoint in found.checkpoints] == [10]


def test_without_a_manifest_files_of_two_savers_do_not_make_one_checkpoint():
    """Two data files, of which one says that there are three."""
    found = Manifest.from_objects(stored(10, "data-00000-of-00002", "data-00001-of-00003", "index"))
    assert found.checkpoints == ()
