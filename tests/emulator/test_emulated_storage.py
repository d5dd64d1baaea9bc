from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from discovery import faults, refusal_faults
from emulated_cloud import Cloud, Running, eventually, http_request, start
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1, storage
from google.cloud.storage import transfer_manager
from googleapiclient.discovery import build
from googleapiclient.http import MediaInMemoryUpload

from transient_magics.cloud import Reach, bounded_token

BUCKET = "a-bucket"


@pytest.fixture(scope="module")
def client(running: Running) -> storage.Client:
    """Google's client with nothing but the endpoint."""
    return _client(running.url)


@pytest.fixture
def bucket(client: storage.Client) -> Iterator[storage.Bucket]:
    made = client.create_bucket(BUCKET)
    yield made
    for blob in made.list_blobs():
        blob.delete()
    made.delete()


def _client(url: str) -> storage.Client:
    options = {"api_endpoint": url}
    return storage.Client(project="p", credentials=AnonymousCredentials(), client_options=options)


def test_the_environment_variable_is_enough(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", http_request(running.url, "GET", "/emulator/v1")[1]["storage"])
    own = storage.Client(project="p")
    made = own.create_bucket("by-variable", location="us-central1")
    assert (made.location, made.location_type) == ("US-CENTRAL1", "region")
    blob = made.blob("x")
    blob.upload_from_string("text")
    assert blob.download_as_text() == "text"
    made.delete(force=True)


def test_buckets(client: storage.Client, bucket: storage.Bucket) -> None:
    with pytest.raises(exceptions.Conflict):
        client.create_bucket(BUCKET)
    with pytest.raises(exceptions.NotFound):
        client.get_bucket("no-bucket")
    with pytest.raises(exceptions.BadRequest):
        client._connection.api_request("POST", "/b", query_params={"project": "p"}, data={"name": "No"})
    assert bucket.exists()
    assert not client.bucket("no-bucket").exists()
    bucket.labels = {"run": "1"}
    bucket.patch()
    assert client.get_bucket(BUCKET).labels == {"run": "1"}
    assert client.get_bucket(BUCKET).metageneration == 2
    with pytest.raises(exceptions.PreconditionFailed):
        client.get_bucket(BUCKET).patch(if_metageneration_match=1)
    others = [client.create_bucket(f"other-{number}") for number in range(3)]
    assert [each.name for each in client.list_buckets(prefix="other-", page_size=2)] == [each.name for each in others]
    for each in others:
        each.delete()
    bucket.blob("x").upload_from_string(b"")
    with pytest.raises(exceptions.Conflict, match="not empty"):
        bucket.delete()


@pytest.mark.parametrize("size", [0, 1, 5_000_000, 12_000_000])
def test_contents_come_back_with_checksums(bucket: storage.Bucket, size: int) -> None:
    content = os.urandom(size)
    blob = bucket.blob("a folder/ünï %2F?#&+ .bin", chunk_size=1 << 20 if size > 10**7 else None)
    blob.metadata = {"step": "7"}
    blob.upload_from_file(io.BytesIO(content), content_type="application/x-thing", checksum="crc32c")
    assert blob.size == size
    assert base64.b64decode(blob.md5_hash) == hashlib.md5(content).digest()
    assert base64.b64decode(blob.crc32c) == google_crc32c.Checksum(content).digest()
    again = bucket.get_blob(blob.name)
    assert again is not None
    assert (again.content_type, again.metadata, again.generation) == (
        "application/x-thing",
        {"step": "7"},
        blob.generation,
    )
    assert again.download_as_bytes(checksum="md5") == content
    assert again.download_as_bytes(raw_download=True, checksum="crc32c") == content
    if size > 10:
        assert again.download_as_bytes(start=3, end=9) == content[3:10]
        assert again.download_as_bytes(start=size - 4) == content[-4:]
        with pytest.raises(exceptions.RequestRangeNotSatisfiable):
            again.download_as_bytes(start=size)


def test_wrong_checksums_are_refused(client: storage.Client, bucket: storage.Bucket, running: Running) -> None:
    blob = bucket.blob("x")
    blob.md5_hash = base64.b64encode(bytes(16)).decode()
    with pytest.raises(exceptions.BadRequest, match="doesn't match"):
        blob.upload_from_string(b"text", checksum=None)
    assert not bucket.blob("x").exists()


def test_of_many_who_create_an_object_one_wins(bucket: storage.Bucket, client: storage.Client) -> None:
    ready = threading.Barrier(8)

    def create(number: int) -> bool:
        blob = client.bucket(BUCKET).blob("lock")
        ready.wait()
        try:
            blob.upload_from_string(f"{number}", if_generation_match=0, retry=None)
        except exceptions.PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert bucket.blob("lock").download_as_text() == str(won.index(True))


def test_preconditions(bucket: storage.Bucket) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string("one")
    first = blob.generation
    assert first
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string("two", if_generation_match=first - 1)
    blob.upload_from_string("two", if_generation_match=first)
    assert blob.generation
    assert blob.generation > first
    for arguments in ({"if_generation_match": first}, {"if_metageneration_match": 7}):
        with pytest.raises(exceptions.PreconditionFailed):
            blob.reload(**arguments)
        with pytest.raises(exceptions.PreconditionFailed):
            blob.download_as_bytes(**arguments)
        with pytest.raises(exceptions.PreconditionFailed):
            blob.delete(**arguments)
    with pytest.raises(exceptions.NotModified):
        bucket.blob("x").reload(if_generation_not_match=blob.generation)
    with pytest.raises(exceptions.NotFound):
        bucket.blob("x", generation=first).reload()
    blob.metadata = {"a": "1"}
    blob.patch(if_metageneration_match=1)
    blob.metadata = {"a": None, "b": "2"}
    blob.patch(if_metageneration_match=2)
    assert bucket.get_blob("x").metadata == {"b": "2"}
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=2)
    blob.delete(if_generation_match=blob.generation)
    assert not blob.exists()
    with pytest.raises(exceptions.NotFound):
        blob.delete()


def test_lists_have_pages_prefixes_and_patterns(bucket: storage.Bucket) -> None:
    names = ["a", "b/1", "b/2", "b/c/3", "d", "é"]
    for name in names:
        bucket.blob(name).upload_from_string(name)
    assert [each.name for each in bucket.list_blobs()] == names
    assert [each.name for each in bucket.list_blobs(page_size=2)] == names
    assert [each.name for each in bucket.list_blobs(prefix="b/")] == ["b/1", "b/2", "b/c/3"]
    for size in (None, 1, 2):
        found = bucket.list_blobs(delimiter="/", page_size=size)
        assert [each.name for each in found] == ["a", "d", "é"]
        assert found.prefixes == {"b/"}
        found = bucket.list_blobs(prefix="b/", delimiter="/", page_size=size)
        assert [each.name for each in found] == ["b/1", "b/2"]
        assert found.prefixes == {"b/c/"}
    assert [each.name for each in bucket.list_blobs(start_offset="b/2", end_offset="d")] == ["b/2", "b/c/3"]
    assert [each.name for each in bucket.list_blobs(match_glob="b/*")] == ["b/1", "b/2"]
    assert [each.name for each in bucket.list_blobs(match_glob="**{1,3}")] == ["b/1", "b/c/3"]
    assert [each.name for each in bucket.list_blobs(fields="items(name),nextPageToken", page_size=4)] == names


def test_objects_are_copied_rewritten_moved_and_composed(bucket: storage.Bucket) -> None:
    first, second = bucket.blob("1"), bucket.blob("2")
    first.metadata = {"kept": "yes"}
    first.upload_from_string("one ", content_type="text/x-one")
    second.upload_from_string("two")
    copied = bucket.copy_blob(first, bucket, "copy")
    assert (copied.download_as_text(), copied.metadata, copied.content_type) == ("one ", {"kept": "yes"}, "text/x-one")
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.copy_blob(first, bucket, "copy", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.copy_blob(first, bucket, "other", if_source_generation_match=1)
    token, done, total = bucket.blob("rewritten").rewrite(first)
    assert (token, done, total) == (None, 4, 4)
    whole = bucket.blob("whole")
    whole.compose([first, second, first], if_generation_match=0)
    assert whole.download_as_text() == "one twoone "
    assert (whole.md5_hash, whole.component_count) == (None, 3)
    assert base64.b64decode(whole.crc32c) == google_crc32c.Checksum(b"one twoone ").digest()
    with pytest.raises(exceptions.NotFound):
        whole.compose([first, bucket.blob("nothing")])
    whole.compose([whole, second])
    assert whole.download_as_text() == "one twoone two"
    moved = bucket.move_blob(second, "3")
    assert (moved.download_as_text(), second.exists()) == ("two", False)
    renamed = bucket.rename_blob(moved, "4")
    assert renamed.download_as_text() == "two"
    renamed.update_storage_class("NEARLINE")
    assert bucket.get_blob("4").storage_class == "NEARLINE"


def test_many_calls_go_in_one_batch(client: storage.Client, bucket: storage.Bucket) -> None:
    for number in range(5):
        bucket.blob(f"b {number}").upload_from_string("x")
    with client.batch():
        for number in range(4):
            bucket.blob(f"b {number}").delete()
        kept = bucket.blob("b 4")
        kept.metadata = {"k": "v"}
        kept.patch()
    assert [(each.name, each.metadata) for each in bucket.list_blobs()] == [("b 4", {"k": "v"})]
    batch = client.batch()
    with pytest.raises(exceptions.NotFound), batch:
        bucket.delete_blobs(["b 0", "b 4"])
    assert not bucket.blob("b 4").exists()


def test_files_are_written_and_read_as_streams(bucket: storage.Bucket) -> None:
    lines = [f"line {number}\n" for number in range(100_000)]
    with bucket.blob("stream").open("w", chunk_size=256 * 1024, encoding="utf-8") as file:
        file.writelines(lines)
    with bucket.blob("stream").open("r", encoding="utf-8") as file:
        assert file.readlines() == lines


def test_the_transfer_manager_works(bucket: storage.Bucket, tmp_path: Path) -> None:
    content = os.urandom(9_000_000)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    threads: dict[str, Any] = {"worker_type": transfer_manager.THREAD, "max_workers": 3}
    big = bucket.blob("in/parts")
    transfer_manager.upload_chunks_concurrently(str(source), big, chunk_size=4_000_000, **threads)
    big.reload()
    assert (big.size, big.component_count, big.md5_hash) == (9_000_000, 3, None)
    assert base64.b64decode(big.crc32c) == google_crc32c.Checksum(content).digest()
    transfer_manager.download_chunks_concurrently(big, str(target), chunk_size=2_500_000, **threads)
    assert target.read_bytes() == content
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(20):
        (folder / str(number)).write_text(f"{number}", encoding="utf-8")
    results = transfer_manager.upload_many_from_filenames(
        bucket, [str(number) for number in range(20)], source_directory=str(folder), blob_name_prefix="m/", **threads
    )
    assert results == [None] * 20
    (folder / "7").unlink()
    transfer_manager.download_many_to_path(bucket, ["m/7"], destination_directory=str(folder), **threads)
    assert (folder / "m/7").read_text(encoding="utf-8") == "7"


class _Pieces:
    """A resumable upload, spoken by hand, so that it can break where the test wants it to."""

    def __init__(self, url: str, name: str) -> None:
        self._place = urllib.parse.urlsplit(url).netloc
        path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&ifGenerationMatch=0"
        answer = self.send("POST", path, json.dumps({"name": name}).encode(), {})
        assert answer.status == 200
        self.session = urllib.parse.urlsplit(answer.headers["Location"])._replace(scheme="", netloc="").geturl()

    def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._place, timeout=60)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.text = answer.read()  # type: ignore[attr-defined]
        connection.close()
        return answer

    def put(self, body: bytes, span: str) -> tuple[int, str | None]:
        answer = self.send("PUT", self.session, body, {"Content-Range": f"bytes {span}"})
        return answer.status, answer.headers.get("Range")

    def break_off(self, body: bytes, span: str, promised: int, arrived: Callable[[], bool]) -> None:
        """Send less than was promised, and go when some has arrived: a connection that is gone before is nobody's."""
        connection = http.client.HTTPConnection(self._place, timeout=60)
        connection.putrequest("PUT", self.session)
        connection.putheader("Content-Range", f"bytes {span}")
        connection.putheader("Content-Length", str(promised))
        connection.endheaders(body)
        eventually(arrived)
        connection.close()


def test_an_interrupted_upload_goes_on_where_it_was(bucket: storage.Bucket, running: Running) -> None:
    content = os.urandom(3_000_000)
    upload = _Pieces(running.url, "resumed")
    assert upload.put(b"", "*/3000000") == (308, None)
    assert upload.put(content[:262_144], "0-262143/3000000") == (308, "bytes=0-262143")
    assert upload.put(b"x", "900000-900000/3000000")[0] == 503
    arrived = lambda: upload.put(b"", "*/3000000") != (308, "bytes=0-262143")  # noqa: E731
    upload.break_off(content[262_144:2_000_000], "262144-2999999/3000000", 2_737_856, arrived)
    eventually(lambda: upload.put(b"", "*/3000000") == (308, "bytes=0-1999999"))
    # What has arrived before may be sent once more.
    assert upload.put(content[1_999_000:], "1999000-2999999/3000000")[0] == 200
    assert upload.put(b"", "*/3000000")[0] == 200
    assert bucket.blob("resumed").download_as_bytes() == content
    assert upload.send("DELETE", upload.session, b"", {}).status == 499
    assert upload.put(b"", "*/3000000")[0] == 404


def test_the_client_recovers_an_upload_whose_connection_breaks(bucket: storage.Bucket, client: storage.Client) -> None:
    content = os.urandom(2_000_000)
    blob = bucket.blob("recovered", chunk_size=512 * 1024)
    real, calls = client._http.request, []

    def flaky(method: str, url: str, **rest: Any) -> Any:
        if method == "PUT" and "data" in rest and len(rest["data"] or b"") > 1000:
            calls.append(url)
            if len(calls) == 2:
                raise ConnectionError("the connection broke")
        return real(method, url, **rest)

    client._http.request = flaky  # type: ignore[method-assign]
    try:
        blob.upload_from_file(io.BytesIO(content))
    finally:
        client._http.request = real  # type: ignore[method-assign]
    assert len(calls) == 5
    assert blob.download_as_bytes() == content


@pytest.mark.slow
def test_what_is_stored_survives_the_death_of_the_emulator(state: Path) -> None:
    first = start(state)
    bucket = _client(first.url).create_bucket(BUCKET)
    content = os.urandom(1_000_000)
    blob = bucket.blob("x/y")
    blob.metadata = {"a": "b"}
    blob.upload_from_string(content)
    upload = _Pieces(first.url, "resumed")
    upload.put(content[:500_000], "0-499999/1000000")
    first.process.kill()
    first.process.wait()
    second = start(state)
    bucket = _client(second.url).bucket(BUCKET)
    (found,) = bucket.list_blobs()
    assert (found.name, found.generation, found.metadata) == ("x/y", blob.generation, {"a": "b"})
    assert found.download_as_bytes() == content
    assert upload.put(b"", "*/1000000") == (308, "bytes=0-499999")
    assert upload.put(content[500_000:], "500000-999999/1000000")[0] == 200
    later = bucket.get_blob("resumed")
    assert later.download_as_bytes() == content
    assert later.generation > blob.generation
    files = [path for path in (state / "storage").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    found.delete()
    later.delete()
    assert not list((state / "storage/contents").iterdir())
    second.process.terminate()
    assert second.process.wait(60) == 0


@pytest.mark.slow
def test_a_large_object_needs_little_memory(bucket: storage.Bucket, running: Running) -> None:
    size, part = 200_000_000, os.urandom(1 << 20)
    pid = http_request(running.url, "GET", "/emulator/v1")[1]["pid"]
    before = _memory(pid)
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(running.url).netloc, timeout=60)
    body = (part[: min(len(part), size - sent)] for sent in range(0, size, len(part)))
    path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=large"
    connection.request("POST", path, body, {"Content-Length": str(size)})
    made = json.loads(connection.getresponse().read())
    assert made["size"] == str(size)
    connection.request("GET", f"/download/storage/v1/b/{BUCKET}/o/large?alt=media")
    answer, received = connection.getresponse(), 0
    while data := answer.read(1 << 20):
        received += len(data)
    connection.close()
    assert received == size
    assert _memory(pid) - before < 60_000_000


def _memory(pid: int) -> int:
    """The most memory that a process has used, in bytes."""
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))[0])


def test_every_answer_is_what_the_discovery_document_says(bucket: storage.Bucket, running: Running) -> None:
    options = {"api_endpoint": f"{running.url}/storage/v1/"}
    other = build("storage", "v1", static_discovery=True, credentials=AnonymousCredentials(), client_options=options)
    http = {"bucket": BUCKET}
    # This client takes uploads to the host of its discovery document, whatever its options say.
    other._rootDesc["rootUrl"] = other._rootDesc["mtlsRootUrl"] = f"{running.url}/"
    media = MediaInMemoryUpload(b"text", "text/plain", resumable=False)
    pieces = MediaInMemoryUpload(b"t" * 600_000, "text/plain", chunksize=262_144, resumable=True)
    insert = other.objects().insert
    answers = {
        "Object": insert(**http, body={"name": "d/o", "metadata": {"k": "v"}}, media_body=media).execute(),
        "Object ": insert(**http, body={"name": "p"}, media_body=pieces).execute(),
        "Object  ": other.objects().get(**http, object="d/o").execute(),
        "Object   ": other.objects().compose(
            destinationBucket=BUCKET, destinationObject="c", body={"sourceObjects": [{"name": "d/o"}, {"name": "p"}]}
        ).execute(),
        "Objects": other.objects().list(**http, delimiter="/").execute(),
        "Bucket": other.buckets().get(**http).execute(),
        "Buckets": other.buckets().list(project="p").execute(),
        "BucketStorageLayout": other.buckets().getStorageLayout(**http).execute(),
        "ManagedFolders": other.managedFolders().list(**http).execute(),
        "Folders": other.folders().list(**http).execute(),
        "Policy": other.buckets().getIamPolicy(**http).execute(),
        "RewriteResponse": other.objects().rewrite(
            sourceBucket=BUCKET, sourceObject="p", destinationBucket=BUCKET, destinationObject="r", body={}
        ).execute(),
    }  # fmt: skip
    assert {name: wrong for name, answer in answers.items() if (wrong := faults(name.strip(), answer, "storage"))} == {}
    assert other.objects().get_media(**http, object="d/o").execute() == b"text"
    refusals = {
        ("GET", f"b/{BUCKET}/o/nothing"): 404,
        ("GET", "b/no-bucket"): 404,
        ("GET", "nothing"): 404,
        ("POST", "b?project=p"): 400,
        ("DELETE", f"b/{BUCKET}"): 409,
        ("GET", f"b/{BUCKET}/o/p?ifGenerationMatch=1"): 412,
        ("GET", f"b/{BUCKET}/o/p?ifGenerationMatch=x"): 400,
        ("GET", f"b/{BUCKET}/o?pageToken=*"): 400,
        ("GET", f"b/{BUCKET}/o?fields=items("): 400,
        ("POST", f"b/{BUCKET}/o/p/compose"): 400,
    }
    for (method, path), expected in refusals.items():
        status, content = http_request(running.url, method, f"/storage/v1/{path}")
        assert (path, status, refusal_faults(status, content)) == (path, expected, [])


@pytest.mark.slow
async def test_a_vm_finds_the_buckets_at_its_metadata_server(cloud: Cloud, bucket: storage.Bucket) -> None:
    """As far as its service account goes; without one, as far as a token that was given to it."""
    bucket.blob("for vms").upload_from_string("data")
    bucket.blob("given/x").upload_from_string("given")
    scope = "https://www.googleapis.com/auth/devstorage.read_write"
    cloud.create("w0", service_accounts=[compute_v1.ServiceAccount(email="default", scopes=[scope])])
    cloud.create("w1")
    assert cloud.running.about()["storage_of_vms"] == "http://169.254.169.254"
    token = await bounded_token([Reach(f"gs://{BUCKET}/given/", "objectViewer")], "p", cloud.running.url)
    head = (
        "import os, sys, urllib.parse, urllib.request\n"
        "import google.cloud.storage as s\n"
        "from google.api_core.exceptions import GoogleAPICallError\n"
        "from google.auth.exceptions import GoogleAuthError\n"
        "from google.oauth2.credentials import Credentials\n"
        "from urllib.error import HTTPError\n"
        "url = os.environ['STORAGE_EMULATOR_HOST']\n"
        f"b = s.Client(project='p').bucket('{BUCKET}')\n"
    )
    with_account = (
        "print(b.blob('for vms').download_as_text())\n"
        "b.blob('from the vm').upload_from_string('x' * 3000000)\n"
        "for header in ({'Origin': 'http://evil.example'}, {'Host': 'evil.example'}):\n"
        "    try: urllib.request.urlopen(urllib.request.Request(url + '/storage/v1/b?project=p', headers=header))\n"
        "    except HTTPError as error: print(error.code)\n"
    )
    without = (
        f"own = s.Client(project='p', credentials=Credentials('{token.text}')).bucket('{BUCKET}')\n"
        "print(own.blob('given/x').download_as_text())\n"
        "for each in (b.blob('given/x'), own.blob('for vms')):\n"
        "    try: each.download_as_text()\n"
        "    except (GoogleAPICallError, GoogleAuthError) as error: print(getattr(error, 'code', 'nobody'))\n"
    )
    no_tokens = (
        "try: urllib.request.urlopen(url + '/v1/token', urllib.parse.urlencode({'subject_token': 'x'}).encode())\n"
        "except HTTPError as error: print(error.code, 'invalid_grant' in error.read().decode())\n"
    )
    said = {}
    for name, own in (("w0", with_account), ("w1", without)):
        async with await cloud.ssh(name) as connection:
            done = await connection.run("transient-python -", input=head + own + no_tokens)
            assert done.exit_status == 0, done.stderr
            said[name] = str(done.stdout).split()
    assert said["w0"] == ["data", "403", "403", "400", "True"]
    assert said["w1"] == ["given", "nobody", "403", "400", "True"]
    assert bucket.blob("from the vm").download_as_bytes() == b"x" * 3_000_000
