"""The door to Cloud Storage onto the emulator's buckets, through Google's own client."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from google.api_core.exceptions import Forbidden
from google_hosts import mounted
from scripted_api import Api, refusal

from tests.emulator.discovery import faults
from transient_magics.cloud import CloudStorage, Reach, bounded_token
from transient_magics.errors import AccessError, AlreadyExistsError, ChangedError, GoneError, UnreachableError
from transient_magics.runtime.files.bucket import Bucket

BUCKET = "some-results"


@pytest.fixture
def _at_googles_names(
    url: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    with mounted(url, tmp_path_factory.mktemp("login"), monkeypatch):
        yield


@pytest.fixture
async def storage(_at_googles_names: None) -> AsyncIterator[CloudStorage]:
    async with CloudStorage("a-project", patience=3) as opened:
        await opened.ensure_bucket(BUCKET, "us-central1")
        yield opened


async def test_a_bucket_is_made_once_and_closed_to_the_public(url: str, storage: CloudStorage) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage as google

    await asyncio.gather(*(storage.ensure_bucket("made-once", "us-west1", own=True) for _ in range(4)))
    client = google.Client(
        project="a-project", credentials=AnonymousCredentials(), client_options={"api_endpoint": url}
    )
    made = client.get_bucket("made-once")
    assert made.location == "US-WEST1"
    assert made.iam_configuration.uniform_bucket_level_access_enabled
    assert made.iam_configuration.public_access_prevention == "enforced"
    assert made.soft_delete_policy.retention_duration_seconds == 0, "checkpoints that were replaced are billed no more"


async def test_where_a_policy_wants_soft_delete_the_bucket_is_made_with_it_and_that_is_said(api: Api) -> None:
    forbidden = "'0' violates constraint 'constraints/storage.softDeletePolicySeconds'"
    made = {
        "name": "of-ours", "softDeletePolicy": {"retentionDurationSeconds": "604800"},
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
    }  # fmt: skip
    api.on("GET", "storage/v1/b", {"items": []})
    api.on("POST", "storage/v1/b", refusal(412, "conditionNotMet", forbidden), made)
    async with CloudStorage("a-project", api.url, patience=3) as storage:
        said = await storage.ensure_bucket("of-ours", "us-central1", own=True)
        assert "billed for 7 more days; `gcloud storage buckets update gs://of-ours --clear-soft-delete`" in said
        first, second = (body for _, body in api.asked("POST", "storage/v1/b"))
        assert faults("Bucket", second, "storage") == []
        assert first["softDeletePolicy"]["retentionDurationSeconds"] == 0
        assert second == {key: value for key, value in first.items() if key != "softDeletePolicy"}
        api.on("POST", "storage/v1/b", refusal(412, "conditionNotMet", forbidden.replace("'0'", "'604800'")))
        with pytest.raises(AccessError, match=r"policy storage\.softDeletePolicySeconds of project a-project forbids"):
            await storage.ensure_bucket("of-ours", "us-central1", own=True)


async def test_a_derived_name_that_somebody_else_took_is_refused(url: str, storage: CloudStorage) -> None:
    async with CloudStorage("another-project", url, patience=3) as other:
        await other.ensure_bucket("tm-guessed", "us-central1", own=True)
    with pytest.raises(AlreadyExistsError, match="Another project owns the bucket"):
        await storage.ensure_bucket("tm-guessed", "us-central1", own=True)
    await storage.ensure_bucket("tm-guessed", "us-central1")  # named by the user: as wanted


async def test_a_bucket_that_was_made_otherwise_is_refused_or_told(url: str, storage: CloudStorage) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage as google

    client = google.Client(
        project="a-project", credentials=AnonymousCredentials(), client_options={"api_endpoint": url}
    )
    made = client.create_bucket("of-the-user")
    with pytest.raises(AccessError, match=r"have their own rights.*--uniform-bucket-level-access"):
        await storage.ensure_bucket("of-the-user", "us-central1")
    made.iam_configuration.uniform_bucket_level_access_enabled = True
    made.patch()
    said = await storage.ensure_bucket("of-the-user", "us-central1")
    assert "--public-access-prevention" in said
    assert "--clear-soft-delete" in said
    made.iam_configuration.public_access_prevention = "enforced"
    made.soft_delete_policy.retention_duration_seconds = 0
    made.patch()
    assert await storage.ensure_bucket("of-the-user", "us-central1") == ""


async def test_files_go_there_and_come_back(storage: CloudStorage, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"a few bytes")
    (tmp_path / "large").write_bytes(os.urandom(9 << 20))  # large enough for a resumable upload
    for name in ("small", "large"):
        stored = await storage.upload(BUCKET, f"files/{name}", tmp_path / name, generation=0)
        assert stored.size == (tmp_path / name).stat().st_size
    assert [each.name for each in await storage.list(BUCKET, "files/")] == ["files/large", "files/small"]
    for name in ("small", "large"):
        await storage.download(BUCKET, f"files/{name}", tmp_path / "back" / name)
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / name).read_bytes()
    await storage.delete_prefix(BUCKET, "files/")
    assert await storage.list(BUCKET, "files/") == []


async def test_of_many_writers_one_wins(storage: CloudStorage) -> None:
    answers = await asyncio.gather(
        *(storage.write_json(BUCKET, "lock", {"writer": number}, generation=0) for number in range(6)),
        return_exceptions=True,
    )
    won = [number for number, answer in enumerate(answers) if not isinstance(answer, BaseException)]
    assert len(won) == 1
    assert all(isinstance(answer, ChangedError) for number, answer in enumerate(answers) if number not in won)
    value, generation = await storage.read_json(BUCKET, "lock")
    assert value == {"writer": won[0]}
    await storage.write_json(BUCKET, "lock", {"writer": "next"}, generation=generation)
    with pytest.raises(ChangedError):
        await storage.write_json(BUCKET, "lock", {"writer": "late"}, generation=generation)


async def test_what_is_not_there(storage: CloudStorage, tmp_path: Path) -> None:
    assert await storage.read_json(BUCKET, "nothing") == (None, 0)
    await storage.delete(BUCKET, "nothing")
    with pytest.raises(GoneError):
        await storage.download(BUCKET, "nothing", tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(GoneError, match="bucket or object does not exist"):
        await storage.read_json("there-is-no-such-bucket", "nothing")
    with pytest.raises(GoneError) as refused:
        await storage.upload("there-is-no-such-bucket", "file", Path(__file__))
    assert "http" not in str(refused.value)


async def test_to_look_for_results_takes_no_more_than_object_admin(url: str, storage: CloudStorage) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage as google
    from google.oauth2.credentials import Credentials

    await storage.write_json(BUCKET, "of-a-run", [1])
    token = await bounded_token([Reach(f"gs://{BUCKET}", "objectUser")], "a-project")
    options = {"api_endpoint": url}
    anybody = google.Client("a-project", AnonymousCredentials(), client_options=options)
    storage._client = google.Client("a-project", Credentials(token.text), client_options=options)
    assert anybody.get_bucket(BUCKET).name == BUCKET
    with pytest.raises(Forbidden):
        storage._client.get_bucket(BUCKET)
    assert (await storage.read_json(BUCKET, "of-a-run"))[0] == [1]
    assert await storage.read_json(BUCKET, "nothing") == (None, 0)


@pytest.mark.slow
async def test_a_silent_endpoint_is_given_up(unused_port: int) -> None:
    async with CloudStorage("a-project", f"http://127.0.0.1:{unused_port}", patience=0.5) as storage:
        with pytest.raises(UnreachableError, match="does not answer"):
            await storage.list(BUCKET)


async def test_nothing_is_asked_but_what_was_wanted(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's client would look up each bucket in a background thread, which may outlive the client."""
    api.on("GET", "storage/v1/b/mine/o", {"items": []})
    before = set(threading.enumerate())
    with mounted(api.url, tmp_path, monkeypatch):
        async with CloudStorage("a-project", patience=3) as storage:
            assert await storage.list("mine") == []
        assert await asyncio.to_thread(lambda: Bucket("gs://mine").list("")) == []
        for thread in set(threading.enumerate()) - before:
            if not thread.name.startswith(("asyncio", "storage")):  # no thread of a pool, which would not end
                await asyncio.to_thread(thread.join, 5)
    assert [(method, path) for method, path, *_ in api.requests] == [("GET", "storage/v1/b/mine/o")] * 2
