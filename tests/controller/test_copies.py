"""What jobs and bags left on a controller's VM, copied through Google's own client into an emulated bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from transient_magics.cloud import CloudStorage
from transient_magics.controller.remote_controller.bucket_backup import BucketBackup, keep_copies
from transient_magics.protocol import layout

STORE = "gs://copies-of-one/c/"


@pytest.mark.slow
async def test_a_bucket_that_takes_nothing_is_told_and_what_was_left_is_there_once_it_does(
    url: str, tmp_path: Path
) -> None:
    kept, bag = tmp_path / layout.JOBS / "job-1" / layout.KEPT, tmp_path / layout.BAGS / "bag-1"
    kept.mkdir(parents=True)
    bag.mkdir(parents=True)
    (kept / layout.archive(1)).write_text("half of it", encoding="utf-8")
    (bag / layout.SURROGATE).write_text("a surrogate", encoding="utf-8")
    async with CloudStorage("a-project", url, patience=3) as storage:
        copies = BucketBackup(storage, STORE)
        told = await keep_copies(copies, tmp_path)
        assert told.startswith("What jobs and bags left is not in the bucket, and goes with the controller's VM: ")
        assert "bucket or object does not exist" in told
        await storage.ensure_bucket("copies-of-one", "us-central1")
        assert await keep_copies(copies, tmp_path) == ""
        (kept / layout.archive(2)).write_text("all of it", encoding="utf-8")
        (kept / layout.archive(1)).unlink()
        assert await keep_copies(copies, tmp_path) == ""
        there = [each.name for each in await storage.list("copies-of-one", "c/")]
        archive = f"{layout.JOBS}/job-1/{layout.KEPT}/{layout.archive(2)}"
        assert there == [f"c/{layout.BAGS}/bag-1/{layout.SURROGATE}", f"c/{archive}"]
        assert await copies.get(archive, tmp_path / "back", most=100)
    assert (tmp_path / "back").read_text(encoding="utf-8") == "all of it"
