"""Checkpoints on their way into a bucket and back: whatever is interrupted, the manifest tells what is whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.faults.healing import healed
from tests.road import road
from transient_magics.cloud import Reach, bounded_token
from transient_magics.errors import TrainingError
from transient_magics.protocol.objective import Best
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.vm_events import TrainShipped, TrainUnshipped
from transient_magics.runtime.files.bucket import Bucket, OvertakenError
from transient_magics.runtime.files.checkpoints import Checkpoints
from transient_magics.runtime.files.manifest import NAME, File
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server.chief import programs
from transient_magics.runtime.parameter_server.chief.programs import Shipper
from transient_magics.runtime.programs import shared_records, shipping
from transient_magics.runtime.programs.shipping import read_manifest, restore, ship
from transient_magics.works.runs.bucket_token import reaches

BUCKET = "checkpoints-here"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[storage.Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        made = storage.Client(project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": url})
        made.create_bucket(BUCKET)
        yield made


@pytest.fixture
def bucket(client: storage.Client, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(f"gs://{BUCKET}/{request.node.name}/run-1")


def brought(path: Path, places: list[Reach], lasts: float | None = None) -> Path:
    """A token for these places, as the controller brings it; or what is left of one after so many seconds."""
    token = asyncio.run(bounded_token(places, "p", os.environ["STORAGE_EMULATOR_HOST"]))
    values = token.to_dict() | ({} if lasts is None else {"expires": time.time() + lasts, "token": "ya29.expired"})
    path.with_suffix(".new").write_text(json.dumps(values), encoding="utf-8")
    path.with_suffix(".new").replace(path)
    return path


def saved(folder: Path, step: int, size: int = 1000) -> Path:
    """A checkpoint as far as its files go, newer than those before it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"model.ckpt-{step}.data-00000-of-00001").write_bytes(os.urandom(size))
    (folder / f"model.ckpt-{step}.index").write_bytes(os.urandom(100))
    return folder


def contents(folder: Path, step: int) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(f"model.ckpt-{step}.*")}


def objects(client: storage.Client, bucket: Bucket) -> list[str]:
    prefix = bucket.place.removeprefix(f"gs://{BUCKET}/")
    return sorted(each.name.removeprefix(f"{prefix}/") for each in client.list_blobs(BUCKET, prefix=prefix))


@pytest.mark.slow
def test_the_last_few_are_kept_and_the_newest_comes_back(
    client: storage.Client, bucket: Bucket, tmp_path: Path
) -> None:
    for step in (0, 10, 20, 30):
        assert ship(bucket, saved(tmp_path / "vm", step), keep=2)["step"] == step
    assert [each.step for each in read_manifest(bucket)[0].checkpoints] == [20, 30]
    assert len(objects(client, bucket)) == 1 + 2 * 2
    assert restore(bucket, tmp_path / "new")["step"] == 30
    assert contents(tmp_path / "new", 30) == contents(tmp_path / "vm", 30)
    assert 'model_checkpoint_path: "model.ckpt-30"' in (tmp_path / "new" / "checkpoint").read_text(encoding="utf-8")


def test_the_best_is_brought_and_stays_and_comes_back_beside_the_newest(
    client: storage.Client, bucket: Bucket, tmp_path: Path
) -> None:
    here = Checkpoints(tmp_path / "vm")
    for step in (10, 20, 30, 40, 50):
        saved(tmp_path / "vm", step)
        if step == 30:
            continue  # the next one came before it was shipped
        if step == 40:
            here.keep_best(Best("max accuracy", 0.5, 30))
        ship(bucket, tmp_path / "vm", keep=1)
    manifest = read_manifest(bucket)[0]
    assert ([each.step for each in manifest.checkpoints], manifest.best) == ([30, 50], Best("max accuracy", 0.5, 30))
    assert len(objects(client, bucket)) == 1 + 2 * 2
    assert restore(bucket, tmp_path / "new") == {"step": 50, "refused": []}
    there = Checkpoints(tmp_path / "new")
    assert (there.steps(), there.best()) == ([50, 30], manifest.best)
    assert contents(tmp_path / "new", 30) == contents(tmp_path / "vm", 30)
    here.keep_best(Best("max accuracy", 0.6, 50))
    told = ship(bucket, tmp_path / "vm", keep=1)
    assert told["best"] == {"objective": "max accuracy", "value": 0.6, "step": 50, "path": told["path"]}
    ship(bucket, saved(tmp_path / "vm", 60), keep=1)
    assert [each.step for each in read_manifest(bucket)[0].checkpoints] == [50, 60]


def test_what_is_being_shipped_stays_although_only_one_is_kept(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Checkpoints(tmp_path / "vm", keep=1)
    upload = Bucket.upload

    def slowly(self: Bucket, path: Path, name: str) -> File:
        for step in (11, 12):  # meanwhile
            local.write(step, lambda prefix: saved(tmp_path / "vm", int(prefix.rpartition("-")[2])))
        return upload(self, path, name)

    monkeypatch.setattr(Bucket, "upload", slowly)
    assert ship(bucket, saved(tmp_path / "vm", 10), keep=1)["step"] == 10
    assert local.steps() == [12, 10]


def test_shipping_the_same_again_changes_nothing(client: storage.Client, bucket: Bucket, tmp_path: Path) -> None:
    first = ship(bucket, saved(tmp_path, 5))
    before = objects(client, bucket)
    assert ship(bucket, tmp_path)["path"] == first["path"]
    assert objects(client, bucket) == before


def test_a_step_that_is_saved_anew_takes_the_place_of_the_old(
    client: storage.Client, bucket: Bucket, tmp_path: Path
) -> None:
    ship(bucket, saved(tmp_path / "vm", 5))
    ship(bucket, saved(tmp_path / "vm", 5))
    assert len(objects(client, bucket)) == 1 + 2
    restore(bucket, tmp_path / "new")
    assert contents(tmp_path / "new", 5) == contents(tmp_path / "vm", 5)


def test_a_folder_that_is_ahead_of_the_bucket_is_left_alone(bucket: Bucket, tmp_path: Path) -> None:
    ship(bucket, saved(tmp_path / "vm", 5))
    ahead = contents(saved(tmp_path / "vm", 7), 7)
    assert restore(bucket, tmp_path / "vm")["step"] == 7
    assert contents(tmp_path / "vm", 7) == ahead


def test_nothing_is_there_yet(bucket: Bucket, tmp_path: Path) -> None:
    assert ship(bucket, tmp_path)["step"] is None
    assert restore(bucket, tmp_path)["step"] is None


@pytest.mark.parametrize("damage", ["other content", "missing"])
def test_what_is_not_as_the_manifest_says_is_refused(
    client: storage.Client, bucket: Bucket, tmp_path: Path, damage: str
) -> None:
    ship(bucket, saved(tmp_path / "vm", 10))
    ship(bucket, saved(tmp_path / "vm", 20))
    blobs = list(client.list_blobs(BUCKET, prefix=bucket.place.removeprefix(f"gs://{BUCKET}/")))
    blob = next(each for each in blobs if each.name.endswith("model.ckpt-20.data-00000-of-00001"))
    if damage == "missing":
        blob.delete()
    else:
        blob.upload_from_string(os.urandom(1000))
    answer = restore(bucket, tmp_path / "new")
    assert answer["step"] == 10
    assert "step 20" in answer["refused"][0]
    assert contents(tmp_path / "new", 10) == contents(tmp_path / "vm", 10)
    assert ship(bucket, saved(tmp_path / "new", 15))["step"] == 15, "the broken one stands in the way"
    assert restore(bucket, tmp_path / "newer")["step"] == 15


def test_with_no_good_checkpoint_the_run_does_not_start_from_nothing(
    client: storage.Client, bucket: Bucket, tmp_path: Path
) -> None:
    ship(bucket, saved(tmp_path / "vm", 10))
    for blob in client.list_blobs(BUCKET, prefix=bucket.place.removeprefix(f"gs://{BUCKET}/")):
        if not blob.name.endswith(NAME):
            blob.delete()
    with pytest.raises(TrainingError, match="all checkpoints of the run differ"):
        restore(bucket, tmp_path / "new")
    assert not list((tmp_path / "new").glob("*"))


def hurt_manifest(client: storage.Client, bucket: Bucket, damage: str) -> None:
    blob = client.bucket(BUCKET).blob(f"{bucket.place.removeprefix(f'gs://{BUCKET}/')}/{NAME}")
    if damage == "lost":
        blob.delete()
    else:
        content = blob.download_as_bytes()
        blob.upload_from_string({"torn": content[: len(content) // 2], "emptied": b"", "of others": b"[7]"}[damage])


@pytest.mark.parametrize("damage", ["lost", "torn", "emptied", "of others"])
def test_a_run_whose_manifest_is_damaged_goes_on_from_the_checkpoints_that_lie_there(
    client: storage.Client, bucket: Bucket, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also hours later: none of them is taken for what an unfinished upload left."""
    monkeypatch.setattr(shipping, "_LEFT_OVER_SECONDS", -3600.0)
    for step in (0, 10, 20):
        ship(bucket, saved(tmp_path / "vm", step))
    (tmp_path / "vm" / "vocabulary.words").write_text("a word", encoding="utf-8")
    ship(bucket, saved(tmp_path / "vm", 30))
    half = client.bucket(BUCKET).blob(f"{bucket.place.removeprefix(f'gs://{BUCKET}/')}/checkpoints/40-ab/")
    client.bucket(BUCKET).blob(f"{half.name}model.ckpt-40.data-00000-of-00001").upload_from_string("of an unfinished")
    hurt_manifest(client, bucket, damage)

    began = time.monotonic()
    assert restore(bucket, tmp_path / "new")["step"] == 30
    healed(f"manifest {damage}", "restoring", time.monotonic() - began)
    assert contents(tmp_path / "new", 30) == contents(tmp_path / "vm", 30)
    assert (tmp_path / "new" / "vocabulary.words").read_text(encoding="utf-8") == "a word"
    assert ship(bucket, saved(tmp_path / "new", 50))["step"] == 50
    told, _ = read_manifest(bucket)
    assert [each.step for each in told.checkpoints] == [0, 10, 20, 30, 50]
    there = set(objects(client, bucket))
    assert {f"{each.folder}/{file.name}" for each in told.checkpoints for file in each.files} | {NAME} == there


def test_a_bucket_without_manifest_or_whole_checkpoint_is_that_of_a_run_that_begins(
    client: storage.Client, bucket: Bucket, tmp_path: Path
) -> None:
    """The first upload was killed: of that nothing counts."""
    ship(bucket, saved(tmp_path / "vm", 0))
    hurt_manifest(client, bucket, "lost")
    index = next(name for name in objects(client, bucket) if name.endswith(".index"))
    client.bucket(BUCKET).blob(f"{bucket.place.removeprefix(f'gs://{BUCKET}/')}/{index}").delete()
    assert restore(bucket, tmp_path / "new")["step"] is None


def test_a_manifest_that_leads_elsewhere_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    file = {"name": "../../escaped", "size": 1, "crc32c": ""}
    bucket.write_json(NAME, {"checkpoints": [{"step": 1, "folder": "checkpoints/1-ab", "files": [file]}]}, 0)
    with pytest.raises(TrainingError, match="cannot be read"):
        restore(bucket, tmp_path / "new")


def test_of_two_writers_one_wins_and_the_other_leaves_nothing(
    client: storage.Client, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one ships while we upload."""
    ship(bucket, saved(tmp_path / "one", 10))
    saved(tmp_path / "one", 20)
    saved(tmp_path / "two", 20)
    upload, raced = Bucket.upload, []

    def slow(self: Bucket, path: Path, name: str) -> object:
        if not raced:
            raced.append(True)
            ship(Bucket(bucket.place), tmp_path / "two")
        return upload(self, path, name)

    monkeypatch.setattr(Bucket, "upload", slow)
    with pytest.raises(OvertakenError):
        ship(bucket, tmp_path / "one")
    assert len(objects(client, bucket)) == 1 + 2 * 2
    restore(bucket, tmp_path / "new")
    assert contents(tmp_path / "new", 20) == contents(tmp_path / "two", 20)


def test_a_chief_that_was_overtaken_cannot_go_back(bucket: Bucket, tmp_path: Path) -> None:
    ship(bucket, saved(tmp_path / "new", 30))
    with pytest.raises(TrainingError, match="out of date"):
        ship(bucket, saved(tmp_path / "old", 20))


@pytest.mark.slow
def test_a_killed_upload_counts_for_nothing(client: storage.Client, bucket: Bucket, tmp_path: Path) -> None:
    """At its begin, in the middle of the data, and when all of it is there but what tells of it."""
    run = tmp_path / "run-1"
    declared = {"name": "run-1", "model": "m", "hparams_set": "h", "problem": "p", "train_steps": 1}
    size = 1 << 20
    ship(bucket, saved(run / "checkpoints", 10))
    (run / "run.json").write_text(json.dumps({**declared, "store": bucket.place}), encoding="utf-8")
    brought(run / "bucket-token.json", reaches(bucket.place, RunSpec.from_dict(declared)))
    command = [sys.executable, "-m", "transient_magics.runtime.programs.shipping", "ship", "--run", str(run)]
    with road(os.environ["STORAGE_EMULATOR_HOST"]) as way:
        there = {**os.environ, "STORAGE_EMULATOR_HOST": way.url}
        before = way.passed
        saved(run / "checkpoints", 20, size)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=there)
        beside = way.passed - before - size
        for step, most in ((30, size // 10), (40, size // 2), (50, size + beside // 2)):
            saved(run / "checkpoints", step, size)
            way.hold_up(most)
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=there) as program:
                assert way.held.wait(120)
                program.kill()
            assert program.returncode == -signal.SIGKILL
            way.close_down()
            way.open()
            assert restore(bucket, tmp_path / f"new-{step}")["step"] == 20
        assert [name for name in objects(client, bucket) if "/50-" in name], "nothing of it was there yet"
    began = time.monotonic()
    again = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    assert json.loads(again.stdout)["step"] == 50
    assert restore(bucket, tmp_path / "new")["step"] == 50
    healed("kill -9 of the upload", "shipping", time.monotonic() - began)
    assert not list((tmp_path / "new").glob("*.part"))


def test_a_bucket_that_is_not_there_is_told_in_a_sentence(client: storage.Client, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the bucket or object does not exist"):
        ship(Bucket("gs://no-such-bucket-anywhere/run-1"), saved(tmp_path, 1))


def test_records_are_made_once_for_all(client: storage.Client, tmp_path: Path) -> None:
    place = Bucket(f"gs://{BUCKET}/data")
    assert shared_records.get(place, "digits", tmp_path / "one") == 0
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "digits-train-00000-of-00001").write_bytes(b"first")
    (tmp_path / "two" / "digits-train-00000-of-00001").write_bytes(b"second")
    assert shared_records.put(place, "digits", tmp_path / "one") == 1
    assert shared_records.put(place, "digits", tmp_path / "two") == 0
    assert len(list(client.list_blobs(BUCKET, prefix="data/"))) == 2
    assert shared_records.get(place, "digits", tmp_path / "three") == 1
    assert (tmp_path / "three" / "digits-train-00000-of-00001").read_bytes() == b"first"


def test_records_that_somebody_put_there_are_taken(client: storage.Client, tmp_path: Path) -> None:
    client.bucket(BUCKET).blob("own/digits-train-00000-of-00001").upload_from_string(b"own")
    client.bucket(BUCKET).blob("own/other/ignored").upload_from_string(b"other")
    assert shared_records.get(Bucket(f"gs://{BUCKET}/own/"), "digits", tmp_path) == 1
    assert (tmp_path / "digits-train-00000-of-00001").read_bytes() == b"own"


def test_a_vm_ships_and_restores_with_its_runs_token_and_reaches_nothing_else(
    client: storage.Client, tmp_path: Path
) -> None:
    mine, theirs = f"gs://{BUCKET}/mine/run-1", f"gs://{BUCKET}/theirs/run-1"
    token = brought(tmp_path / "token", reaches(mine, RunSpec("run-1", 1, resume_store=f"gs://{BUCKET}/earlier/run-1")))
    for place in (theirs, f"gs://{BUCKET}/earlier/run-1"):
        ship(Bucket(place), saved(tmp_path / "others", 5))
    own = Bucket(mine, token)
    for step in (10, 20, 30):
        assert ship(own, saved(tmp_path / "vm", step), keep=2)["step"] == step
    assert restore(own, tmp_path / "new")["step"] == 30
    assert len(objects(client, own)) == 1 + 2 * 2, "what is dropped is deleted"
    assert restore(Bucket(f"gs://{BUCKET}/earlier/run-1", token), tmp_path / "earlier", own=False)["step"] == 5
    before = objects(client, Bucket(f"gs://{BUCKET}"))
    for place, what in ((theirs, restore), (theirs, ship), (f"gs://{BUCKET}/earlier/run-1", ship)):
        with pytest.raises(TrainingError, match="has no right to use the bucket"):
            what(Bucket(place, token), saved(tmp_path / "attack", 99))
    with pytest.raises(TrainingError, match="has no right to use the bucket"):
        own.upload(tmp_path / "token", "result.json")  # the controller's own
    assert objects(client, Bucket(f"gs://{BUCKET}")) == before


@pytest.mark.slow
def test_records_are_made_once_by_vms_that_cannot_replace_them(client: storage.Client, tmp_path: Path) -> None:
    data = f"gs://{BUCKET}/bounded-data"
    token = brought(tmp_path / "token", reaches(None, RunSpec("run-1", 1, data_dir=data, problem="digits")))
    place = Bucket(data, token)
    assert shared_records.get(place, "digits", tmp_path / "one") == 0
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "digits-train-00000-of-00001").write_text(name, encoding="utf-8")
    assert shared_records.run("put", data, "digits", tmp_path / "one", token) == 1
    assert shared_records.put(place, "digits", tmp_path / "two") == 0
    assert shared_records.get(place, "digits", tmp_path / "three") == 1
    assert (tmp_path / "three" / "digits-train-00000-of-00001").read_text(encoding="utf-8") == "one"
    manifest = "digits.records.json"
    with pytest.raises(TrainingError, match="another process wrote it first"):
        place.write_json(manifest, {"folder": "poison/", "files": []}, 0)
    for attack in (lambda: place.delete(manifest), lambda: place.write_json("text.records.json", {}, 0)):
        with pytest.raises(TrainingError, match="has no right to use the bucket"):
            attack()


@pytest.mark.slow
def test_without_a_token_nothing_is_shipped_and_with_the_next_one_it_goes_on(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller was away for longer than a token lives, and comes back."""
    monkeypatch.setattr(programs, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(programs, "_TOKEN_SECONDS", 0.1)
    run = RunFolder(tmp_path / "run-1")
    run.path.mkdir()
    declared = {"name": "run-1", "train_steps": 1, "store": bucket.place}
    (run.path / "run.json").write_text(json.dumps(declared), encoding="utf-8")
    brought(run.bucket_token, reaches(bucket.place, RunSpec.from_dict(declared)), lasts=-60)
    saved(run.checkpoints, 7)
    told: list[tuple[str, dict[str, Any]]] = []
    given_up, shipped = asyncio.Event(), asyncio.Event()

    class Watched(Shipper):
        async def _wait_for_new_token(self, before: object) -> None:
            given_up.set()
            await super()._wait_for_new_token(before)

    def report(event: TrainShipped | TrainUnshipped) -> None:
        told.append((event.kind, dict(vars(event))))
        if isinstance(event, TrainShipped):
            shipped.set()

    async def live() -> None:
        ships = Watched("run-1", run, report)
        task = asyncio.create_task(ships.keep_shipping())
        ships.due()
        await asyncio.wait_for(given_up.wait(), 120)
        await ships.settled()
        assert [kind for kind, _ in told] == ["train.unshipped"]
        await asyncio.to_thread(brought, run.bucket_token, reaches(bucket.place, RunSpec.from_dict(declared)))
        await asyncio.wait_for(shipped.wait(), 120)
        task.cancel()

    asyncio.run(live())
    assert "the VM has no valid token for the bucket" in str(told[0][1]["reason"])
    assert [(kind, values.get("step")) for kind, values in told[1:]] == [("train.shipped", 7)]
    assert "ya29" not in json.dumps(told) + "".join(path.read_text(encoding="utf-8") for path in run.logs.iterdir())


@pytest.mark.slow
def test_what_a_chief_ships_as_it_ends_takes_no_other_ones_place(bucket: Bucket, tmp_path: Path) -> None:
    """The result of a run that is stopped names the one before: workers made steps until they were told."""
    run = RunFolder(tmp_path / "run-1")
    run.path.mkdir()
    declared = {"name": "run-1", "train_steps": 1, "store": bucket.place, "keep": 1}
    (run.path / "run.json").write_text(json.dumps(declared), encoding="utf-8")
    brought(run.bucket_token, reaches(bucket.place, RunSpec.from_dict(declared)))

    async def live() -> None:
        ships = Shipper("run-1", run, lambda _: None)
        task = asyncio.create_task(ships.keep_shipping())
        for step in (10, 20, 27):
            saved(run.checkpoints, step)
            ships.ending = step == 27
            ships.due()
            await ships.settled()
        task.cancel()

    asyncio.run(live())
    assert [each.step for each in read_manifest(bucket)[0].checkpoints] == [20, 27]
