"""Checkpoints that workers bring to the chief (`--chief worker`): whole or not at all, and never mixed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.runtime.machine_room import until
from transient_magics.protocol.chief_messages import Checkpoint, File, read_first
from transient_magics.protocol.messages import encode
from transient_magics.runtime.files.checkpoints import Checkpoints, Saved, deliver, received_checkpoint
from transient_magics.runtime.role import decode

STEP = 40


class Chief:
    """Takes checkpoints as the chief does, and remembers what became of each delivery, by the worker's number."""

    def __init__(self, run: Path) -> None:
        self.run, self.checkpoints, self.outcomes = run, Checkpoints(run / "checkpoints"), dict[int, str]()
        self.address = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Chief]:
        self.run.mkdir()
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        async with server:
            self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = read_first(await reader.readline())
        assert isinstance(told, Checkpoint)
        try:
            async with received_checkpoint(reader, told, self.run) as paths:
                self.checkpoints.take(told.step, told.seconds, paths)
            self.outcomes[told.number] = "taken"
            writer.write(encode({"ok": True}))
        except (OSError, ValueError) as error:
            self.outcomes[told.number] = str(error)
            writer.write(encode({"ok": False, "error": str(error)}))
        writer.close()

    def arriving(self) -> list[Path]:
        """What lies in the folders of deliveries that are under way."""
        return sorted(self.run.glob("delivered-*/*"))

    def held(self) -> set[bytes]:
        """What the files of the checkpoint hold."""
        return {path.read_bytes() for path in self.checkpoints.files(STEP)}


def content(number: int) -> bytes:
    return bytes([number]) * 700_000


def written(folder: Path, number: int) -> Saved:
    """A checkpoint of that worker, of two files of its own bytes."""
    return Checkpoints(folder).write(
        STEP, lambda prefix: [Path(f"{prefix}.{part}").write_bytes(content(number)) for part in ("data", "index")]
    )


def announced(number: int, damaged: bool = False) -> bytes:
    """The message before those bytes."""
    sum_ = hashlib.sha256(content(number) + b"x" * damaged).hexdigest()
    names = [f"model.ckpt-{STEP}.{part}" for part in ("data", "index")]
    files = tuple(File(name=name, size=700_000, sha256=sum_) for name in names)
    return Checkpoint(token="", number=number, step=STEP, seconds=0.5, files=files).encoded


async def test_two_deliveries_at_once_do_not_mix(tmp_path: Path) -> None:
    async with Chief(tmp_path / "run").serving() as chief:
        host, port = chief.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(announced(1) + content(1)[:300_000])
        await asyncio.to_thread(until, chief.arriving, "the first worker's first file")  # it stays in its middle

        saved = written(tmp_path / "worker-2", 2)
        await asyncio.to_thread(deliver, chief.address, "", 2, saved, tmp_path / "worker-2")
        assert chief.held() == {content(2)}
        assert len(chief.arriving()) == 1, "the other one is still under way"

        writer.write(content(1)[300_000:] + content(1))
        assert decode(await reader.readline()) == {"ok": True}
        writer.close()
        assert chief.held() == {content(2)}, "the step has its checkpoint"
        assert not list(chief.run.glob("delivered-*"))


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (
            announced(1) + content(1) + content(1)[:5],
            "the chief closed the connection 699,995 bytes before the end of model.ckpt-40.index",
        ),
        (announced(1, damaged=True) + 2 * content(1), "model.ckpt-40.data was damaged in transit"),
        (
            announced(1).replace(b"model.ckpt-40.index", b"model.ckpt-41.index") + 2 * content(1),
            "is not a file of the",
        ),
    ],
)
async def test_what_does_not_arrive_whole_leaves_nothing_and_disturbs_nobody(
    tmp_path: Path, sent: bytes, said: str
) -> None:
    async with Chief(tmp_path / "run").serving() as chief:
        saved = written(tmp_path / "worker-2", 2)
        await asyncio.to_thread(deliver, chief.address, "", 2, saved, tmp_path / "worker-2")
        host, port = chief.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        writer.write_eof()
        assert said in decode(await reader.readline())["error"]
        writer.close()
        assert said in chief.outcomes[1]
        assert chief.held() == {content(2)}
        assert not list(chief.run.glob("delivered-*"))


async def test_a_worker_whose_checkpoint_was_not_taken_hears_why(tmp_path: Path) -> None:
    async with Chief(tmp_path / "run").serving() as chief:
        saved = written(tmp_path / "worker-2", 2)
        chief.checkpoints = Checkpoints(tmp_path / "worker-2" / f"model.ckpt-{STEP}.data")  # no folder at all
        with pytest.raises(ValueError, match="exists"):
            await asyncio.to_thread(deliver, chief.address, "", 2, saved, tmp_path / "worker-2")
        assert chief.outcomes[2] != "taken"
