"""The token for a run's places in buckets, on its way to the chief's VM over real SSH."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.remote import ssh_server
from tests.remote.vms import Vm
from transient_magics.cloud import BoundedToken, Reach
from transient_magics.errors import AccessError, CloudError
from transient_magics.protocol.run import RunSpec
from transient_magics.remote import Connection, generate_key
from transient_magics.works.runs.bucket_token import FOR_RECORDS, NAME, TokenKeeper, reaches, tokens

FOLDER = "transient/runs/run-1"


@pytest.fixture
async def vm(tmp_path: Path) -> AsyncIterator[tuple[Vm, Path]]:
    home, key = tmp_path / "vm", tmp_path / "key"
    home.mkdir()
    acceptor, host_key = await ssh_server.serve(home, generate_key(key))
    yield Vm(home, key, acceptor.get_port(), host_key), home / FOLDER / NAME
    acceptor.close()


class Service:
    """Makes tokens that live for `lasts` seconds, unless it refuses."""

    def __init__(self, lasts: float = 3600.0) -> None:
        self.lasts, self.made = lasts, 0
        self.refuses: CloudError | None = None
        self.noted: list[tuple[str, str]] = []

    async def mint(self) -> BoundedToken:
        if self.refuses:
            raise self.refuses
        self.made += 1
        return BoundedToken(f"secret-{self.made}", time.time() + self.lasts)

    def note(self, source: str, text: str) -> None:
        self.noted.append((source, text))


async def until(path: Path, text: str) -> None:
    async with asyncio.timeout(60):
        while not (path.exists() and text in path.read_text(encoding="utf-8")):  # noqa: ASYNC110 (a file on a VM)
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def kept(keeper: TokenKeeper) -> AsyncIterator[None]:
    task = asyncio.create_task(keeper.keep())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_vm_has_a_token_before_its_end_another_and_after_a_break_too(vm: tuple[Vm, Path]) -> None:
    machine, place = vm
    service, connections = Service(lasts=1.0), [await machine.connect()]

    async def connection() -> Connection:
        return connections[-1]

    keeper = TokenKeeper(FOLDER, {NAME: service.mint}, connection, service.note)
    keeper.least_seconds = 0.1
    assert await keeper.renew()
    assert json.loads(keeper.files[NAME])["token"] == "secret-1", "goes with the run's files to a VM that has none"
    assert "secret" not in repr(keeper.__dict__), "nor does a log show it"
    async with kept(keeper):
        await until(place, "secret-2")
        assert place.stat().st_mode & 0o777 == 0o600
        assert json.loads(place.read_text(encoding="utf-8"))["expires"] > time.time() - 60
        connections.append(await machine.connect())
        await connections[0].close()
        place.unlink()
        await until(place, "secret-")
    for each in connections:
        await each.close()


async def test_a_refusal_is_told_and_the_next_attempt_comes_by_itself(
    vm: tuple[Vm, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, place = vm
    monkeypatch.setattr("transient_magics.works.runs.bucket_token._FIRST_PAUSE", 0.05)
    service, connection = Service(), await machine.connect()

    async def the_connection() -> Connection:
        return connection

    keeper = TokenKeeper(FOLDER, {NAME: service.mint}, the_connection, service.note)
    service.refuses = AccessError("The Security Token Service gives no token", fix="Enable it.")
    assert not await keeper.renew()
    assert keeper.files == {}
    async with kept(keeper):
        await asyncio.sleep(0)
        assert not place.exists()
        service.refuses = None
        await until(place, "secret-1")
    assert service.noted[0] == ("bucket", "The Security Token Service gives no token. Enable it.")
    assert service.noted[-1] == ("bucket", "")
    await connection.close()


def test_a_chief_reaches_its_own_checkpoints_and_the_records_that_it_was_told_of() -> None:
    store = "gs://results/c-20260101-000000-abc/run-1"
    assert reaches(store, RunSpec("run-1", 1, "m")) == [Reach(f"{store}/checkpoints/", "objectUser")]
    there = {"resume_store": "gs://results/b/run-1", "data_dir": "gs://data/digits"}
    declared = RunSpec("run-1", 1, "m", "h", "image_digits", **there)
    assert reaches(store, declared)[1:] == [
        Reach("gs://results/b/run-1/checkpoints/", "objectViewer"),
        Reach("gs://data/digits/", "objectViewer"),
        Reach("gs://data/digits/image_digits-", "objectCreator"),
        Reach("gs://data/digits/image_digits.records.json", "objectCreator"),
    ]
    assert reaches(None, RunSpec("run-1", 1, data_dir="/on/the/vm")) == []


async def test_workers_have_a_token_of_their_own_that_reads_the_records_and_opens_nothing_else() -> None:
    asked: list[list[Reach]] = []

    async def mint(places: Sequence[Reach]) -> BoundedToken:
        asked.append(list(places))
        return BoundedToken("secret", 0.0)

    run = RunSpec("run-1", 1, "m", "h", "image_digits", data_dir="gs://data/digits")
    made = tokens(mint, "gs://results/c/run-1", run)
    assert list(made) == [NAME, FOR_RECORDS]
    await made[FOR_RECORDS]()
    assert asked == [[Reach("gs://data/digits/", "objectViewer")]]
    assert not tokens(mint, None, RunSpec("run-1", 1))
