"""Blocks of records straight from their bucket, by Google's own client, and from the chief where the bucket fails."""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.road import Road, road
from tests.runtime.machine_room import until
from tests.runtime.test_blocks import Chief, taken, write
from transient_magics.cloud import Reach
from transient_magics.cloud.storage import bounded_token
from transient_magics.errors import TrainingError
from transient_magics.runtime.files.blocks import indexed
from transient_magics.runtime.files.bucket import Bucket
from transient_magics.runtime.worker import blocks
from transient_magics.runtime.worker.blocks import Blocks, BucketBlocks

FILE = "p-train-00000-of-00001"
RECORDS, OTHER = "gs://records-here/digits", "gs://records-here/other"


@pytest.fixture(scope="module")
def url(url: str) -> str:
    storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": url}).create_bucket("records-here")
    return url


@pytest.fixture
def way(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Road]:
    with road(url) as way:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", way.url)
        yield way


class Reader:
    """A worker that reads blocks of records which lie beside its chief and in a bucket."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        (folder / "data").mkdir()
        write(folder / "data" / FILE, [90_000] * 120)
        self.index = indexed(folder / "data", [folder / "data" / FILE])
        client = storage.Client("p", AnonymousCredentials(), client_options={"api_endpoint": url})
        self._blob = client.bucket("records-here").blob(f"digits/{FILE}")
        self.put()
        self.chief = Chief(folder / "data", self.index)
        self.bucket = BucketBlocks(RECORDS, "p", self.chief.address, "t")
        self.chief.worker = Blocks(self.chief.address, "t", folder, "0", self.chief.hear, self.bucket)
        self.grant(RECORDS)

    def put(self, content: bytes | None = None) -> None:
        """Replace the file in the bucket, by what it was."""
        self._blob.upload_from_string(content or (self._folder / "data" / FILE).read_bytes())

    def remove(self) -> None:
        self._blob.delete()

    def grant(self, place: str) -> None:
        """Bring the chief a token that opens this place for reading."""
        token = asyncio.run(bounded_token([Reach(f"{place}/", "objectViewer")], "p", self._url))
        (self._folder / "records-token.json").write_text(json.dumps(token.to_dict()), encoding="utf-8")

    def close(self) -> None:
        self.chief.worker.close(leaving=True)
        self.chief.close()

    @property
    def straight(self) -> int:
        return self.chief.lending.summary.straight_bytes

    def read(self, many: int = 1) -> None:
        """Read so many chunks; each block is what the chief has a copy of."""
        whole = (self._folder / "data" / FILE).read_bytes()
        for _ in range(many):
            chunk = taken(self.chief.worker)
            for number, path in zip(chunk.numbers, chunk.paths, strict=True):
                block = self.index.blocks[number]
                assert Path(path).read_bytes() == whole[block.offset : block.offset + block.size]
            self.chief.worker.used(chunk)

    def goes_straight(self) -> None:
        """See blocks come from the bucket, from now on."""
        before = self.straight

        def straight() -> bool:
            self.read()
            return self.straight > before

        until(straight, "blocks straight from the bucket")


@pytest.fixture
def reader(
    tmp_path: Path, url: str, way: Road, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Reader]:
    monkeypatch.setattr(blocks, "_FIRST_PAUSE", 0.3)
    monkeypatch.setattr(blocks, "_LEAST", getattr(request, "param", 60.0))  # a busy machine is no slow bucket
    with closing(Reader(tmp_path, url)) as reader:
        reader.chief.worker.start()
        yield reader


@pytest.mark.slow
def test_a_worker_begins_with_its_chief_and_goes_on_with_the_bucket(reader: Reader) -> None:
    reader.read()
    reader.goes_straight()
    before = reader.chief.lending.summary
    reader.read(many=12)
    now = reader.chief.lending.summary
    assert now.straight_bytes - before.straight_bytes > 0.7 * (now.fetched_bytes - before.fetched_bytes) > 0
    assert not reader.chief.told


def test_a_file_that_was_replaced_in_the_bucket_costs_the_way_around_it_and_is_said_once(reader: Reader) -> None:
    reader.goes_straight()
    reader.put(bytes(120 * 90_016))  # somebody has replaced the file
    before = reader.straight
    until(lambda: reader.read() or reader.chief.told, "the detour is said")
    reader.read(many=12)
    assert reader.straight - before < reader.index.bytes
    (told,) = reader.chief.told
    assert told.worker == "worker-1"
    assert "differs from the copy on ps-0" in told.reason


@pytest.mark.slow
@pytest.mark.parametrize("reader", [3.0], indirect=True)
def test_a_slow_bucket_is_tried_seldom_and_no_block_waits_for_it(
    reader: Reader, way: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.goes_straight()
    whole, tries = Bucket.read_range, list[str]()

    def counted(bucket: Bucket, name: str, *how: Any) -> None:
        tries.append(name)
        whole(bucket, name, *how)

    monkeypatch.setattr(Bucket, "read_range", counted)
    way.rate = 30_000.0  # a piece takes half a second, a block would take nine

    def detour() -> object:
        # However busy this machine is, the chief counts as fast: blocks may take the least patience alone.
        for _ in range(50):
            reader.bucket.compare(270_048, 0.01)
        reader.read()
        return reader.chief.told

    until(detour, "the detour is reported")
    before = reader.chief.lending.summary.misses
    reader.read(many=8)
    assert len(tries) < (reader.chief.lending.summary.misses - before) / 2
    (told,) = reader.chief.told
    assert re.search("the bucket did not send it within|timed out", told.reason)
    way.open()
    reader.goes_straight()
    assert len(reader.chief.told) == 1


class _All(BaseHTTPRequestHandler):
    """Answers as if nobody had asked for a part, and sends nothing of it."""

    def do_GET(self) -> None:
        assert isinstance(self.server, _Whole)
        self.send_response(200)
        self.send_header("Content-Length", str(2**40))
        self.end_headers()
        self.server.over.wait()


class _Whole(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _All)
        self.over = Event()


def test_of_a_server_that_has_no_parts_the_whole_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with _Whole() as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        bucket = Bucket(RECORDS, lambda: {"token": "t", "expires": time.time() + 600})
        with pytest.raises(TrainingError, match="ignores the requested range"):  # who reads it hears nothing
            bucket.read_range(FILE, 0, 100, io.BytesIO(), patience=20.0)
        server.over.set()
        server.shutdown()


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["forbidden", "silent", "cut", "no token", "no such file"])
def test_whatever_is_wrong_with_the_bucket_blocks_go_on_and_back_when_it_is_well(
    tmp_path: Path, url: str, way: Road, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(blocks, "_FIRST_PAUSE", 0.3)
    with closing(Reader(tmp_path, url)) as reader:
        if fault == "forbidden":
            reader.grant(OTHER)
        elif fault == "no token":
            (tmp_path / "records-token.json").unlink()
        elif fault == "no such file":
            reader.remove()
        reader.chief.worker.start()
        if fault in ("silent", "cut"):
            reader.goes_straight()
            way.silent = fault == "silent"
            if fault == "cut":
                way.close_down()
        until(lambda: reader.read() or reader.chief.told, "the detour is said")
        reader.read(many=12)
        way.open()
        reader.put()
        reader.grant(RECORDS)
        reader.goes_straight()
        assert len(reader.chief.told) == 1
