"""Tokens that reach one cluster's place in a bucket: what they open, and all that they do not."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.oauth2.credentials import Credentials

from transient_emulator.storage.tokens import Tokens
from transient_magics.cloud import CloudStorage, Reach, bounded_token
from transient_magics.errors import AccessError, CloudError

BUCKET, OTHER = "one-for-all", "somebody-elses"
MINE, THEIRS = "mine-20260101", "mine-20260101-2"  # one name is the beginning of the other


@pytest.fixture(scope="module")
def owner(url: str) -> storage.Client:
    client = storage.Client(project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": url})
    for bucket in (BUCKET, OTHER):
        client.create_bucket(bucket)
        for place in (MINE, THEIRS):
            client.bucket(bucket).blob(f"{place}/model").upload_from_string(f"{bucket}/{place}")
    return client


def holder(url: str, token: str) -> storage.Client:
    """Google's client with nothing but a token."""
    return storage.Client(project="p", credentials=Credentials(token), client_options={"api_endpoint": url})


@pytest.mark.slow
async def test_a_clusters_token_opens_its_own_place_and_no_other(url: str, owner: storage.Client) -> None:
    token = await bounded_token([Reach(f"gs://{BUCKET}/{MINE}/", "objectUser")], "p", url)
    assert 3000 < token.expires - time.time() <= 3600
    client = holder(url, token.text)
    own = client.bucket(BUCKET)
    blob = own.blob(f"{MINE}/large")
    blob.upload_from_string(b"x" * 9_000_000)  # in pieces
    assert blob.download_as_bytes() == b"x" * 9_000_000
    assert [each.name for each in client.list_blobs(BUCKET, prefix=f"{MINE}/")] == [f"{MINE}/large", f"{MINE}/model"]
    blob.upload_from_string("again")
    blob.delete()
    neighbour, elsewhere = own.blob(f"{THEIRS}/model"), client.bucket(OTHER).blob(f"{MINE}/model")
    attacks: list[Callable[[], Any]] = [
        neighbour.download_as_bytes,
        neighbour.reload,
        neighbour.delete,
        lambda: neighbour.upload_from_string("poison"),
        lambda: neighbour.upload_from_string(b"p" * 9_000_000),
        lambda: own.blob(f"{THEIRS}/new").upload_from_string("poison", if_generation_match=0),
        lambda: own.copy_blob(neighbour, own, f"{MINE}/stolen"),
        lambda: own.copy_blob(own.blob(f"{MINE}/model"), own, f"{THEIRS}/model"),
        lambda: own.blob(f"{MINE}/stolen").compose([neighbour]),
        lambda: own.blob(f"{MINE}/stolen").rewrite(neighbour),
        lambda: list(client.list_blobs(BUCKET)),
        lambda: list(client.list_blobs(BUCKET, prefix=MINE)),
        lambda: list(client.list_blobs(BUCKET, prefix=f"{THEIRS}/")),
        elsewhere.download_as_bytes,
        lambda: elsewhere.upload_from_string("poison"),
        lambda: list(client.list_buckets()),
        own.reload,
        own.delete,
        lambda: client.create_bucket("a-new-one"),
        lambda: own.blob("above").upload_from_string("poison"),
    ]
    for number, attack in enumerate(attacks):
        with pytest.raises(exceptions.Forbidden):
            print(number, attack())
    with pytest.raises(exceptions.NotFound):  # names are no paths
        own.blob(f"{MINE}/../{THEIRS}/model").download_as_bytes()
    with pytest.raises(Exception, match="403"), client.batch():
        neighbour.delete()
    contents = {f"{each.bucket.name}/{each.name}": each.download_as_text() for bucket in (BUCKET, OTHER)
                for each in owner.list_blobs(bucket)}  # fmt: skip
    assert contents == {f"{b}/{p}/model": f"{b}/{p}" for b in (BUCKET, OTHER) for p in (MINE, THEIRS)}


async def test_a_viewer_reads_and_a_creator_adds_and_neither_replaces(url: str, owner: storage.Client) -> None:
    owner.bucket(OTHER).blob("records/digits.records.json").upload_from_string("{}")
    reaches = [Reach(f"gs://{OTHER}/records/", "objectViewer"), Reach(f"gs://{OTHER}/records/text", "objectCreator")]
    bucket = holder(url, (await bounded_token(reaches, "p", url)).text).bucket(OTHER)
    assert bucket.blob("records/digits.records.json").download_as_text() == "{}"
    bucket.blob("records/text-1").upload_from_string("new", if_generation_match=0)
    assert [each.name for each in bucket.list_blobs(prefix="records/")] == [
        "records/digits.records.json", "records/text-1",
    ]  # fmt: skip
    for refused in (
        lambda: bucket.blob("records/text-1").upload_from_string("replaced"),
        bucket.blob("records/text-1").delete,
        bucket.blob("records/digits.records.json").delete,
        lambda: bucket.blob("records/more").upload_from_string("new"),
    ):
        with pytest.raises(exceptions.Forbidden):
            refused()


def exchanged(url: str, **changes: str) -> tuple[int, dict[str, Any]]:
    rule = Reach(f"gs://{BUCKET}/{MINE}/", "objectUser").rule()
    kind = "urn:ietf:params:oauth:token-type:access_token"
    fields = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": "mine",
        "subject_token_type": kind, "requested_token_type": kind,
        "options": urllib.parse.quote(json.dumps({"accessBoundary": {"accessBoundaryRules": [rule]}})),
    }  # fmt: skip
    body = urllib.parse.urlencode(fields | changes).encode()
    try:
        with urllib.request.urlopen(f"{url}/v1/token", body) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_service_gives_nothing_for_what_it_does_not_understand(url: str) -> None:
    status, answer = exchanged(url)
    assert (status, answer["token_type"], answer["expires_in"]) == (200, "Bearer", 3600)
    rule = Reach(f"gs://{BUCKET}/{MINE}/", "objectUser").rule()
    wrong = {
        "no rules": [],
        "a role of other services": [rule | {"availablePermissions": ["inRole:roles/editor"]}],
        "a condition that is not understood": [rule | {"availabilityCondition": {"expression": "true"}}],
        "a condition without an end": [rule | {"availabilityCondition": {"expression": "resource.name == 'x' ||"}}],
        "no bucket": [rule | {"availableResource": "//storage.googleapis.com/projects/_/buckets/*"}],
        "more rules than there may be": [rule] * 11,
    }
    for what, rules in wrong.items():
        options = urllib.parse.quote(json.dumps({"accessBoundary": {"accessBoundaryRules": rules}}))
        status, answer = exchanged(url, options=options)
        assert (what, status, answer["error"]) == (what, 400, "invalid_request")
    assert exchanged(url, subject_token="")[0] == 400
    assert exchanged(url, grant_type="password")[0] == 400


async def test_a_token_that_was_changed_or_has_expired_is_none(url: str, owner: storage.Client, tmp_path: Path) -> None:
    token = (await bounded_token([Reach(f"gs://{BUCKET}/{MINE}/", "objectUser")], "p", url)).text
    for forged in (token[:-1] + ("0" if token[-1] != "0" else "1"), token[:-70] + "A" + token[-69:], "ya29.other"):
        with pytest.raises(Exception, match=r"401|refresh"):
            holder(url, forged).bucket(BUCKET).blob(f"{MINE}/model").download_as_bytes(retry=None)
    _, given = exchanged(url)
    assert Tokens(tmp_path, lifetime=60).rights(given["access_token"]) is None, "another emulator's"
    short = Tokens(tmp_path, lifetime=-1)
    fields = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": "mine",
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "options": json.dumps({"accessBoundary": {"accessBoundaryRules": [Reach("gs://bbb/x/", "objectUser").rule()]}}),
    }  # fmt: skip
    assert short.rights(short.exchange(fields)["access_token"]) is None, "expired"
    assert Tokens(tmp_path).rights(Tokens(tmp_path).exchange(fields)["access_token"]), "a later process of the same"


async def test_what_is_not_given_is_told_in_a_sentence(url: str) -> None:
    with pytest.raises(AccessError, match=r"refuses a token for the VMs.*sts\.googleapis\.com"):
        await bounded_token([Reach(f"gs://{BUCKET}/{MINE}/", "objectOwner")], "p", url)  # type: ignore[arg-type]
    for place in ("gs://bucket/x' || true || 'y/", "gs://bucket", "gs://Bucket/x", "bucket/x"):
        if place != "gs://bucket":
            with pytest.raises(ValueError, match="not a valid bucket path"):
                Reach(place, "objectUser").rule()
    with pytest.raises(CloudError, match="The token cannot be limited to a folder"):
        await bounded_token([Reach("gs://bucket/x' || true", "objectViewer")], "p", url)
    assert "availabilityCondition" not in Reach("gs://bucket", "objectViewer").rule()
    async with CloudStorage("p", url, patience=3) as own:
        assert await own.list(BUCKET, f"{MINE}/"), "the user's own way"
