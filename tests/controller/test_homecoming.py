"""What work leaves on the VM of the controller comes home, whatever becomes of the first try."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.controller.placement import homecoming
from transient_magics.controller.placement.homecoming import Homecoming
from transient_magics.controller.tasks import Tasks
from transient_magics.errors import ConnectionLostError
from transient_magics.journal import ClusterState, Event, events, fold
from transient_magics.protocol import layout
from transient_magics.protocol.job import JobSpec
from transient_magics.runtime.jobs.archive import pack, path_of

SPEC = specify(Declaration("cpux2", name="afar", purpose="jobs"))


class There:
    """The VM of the controller: its folder of the cluster, and a connection that is lost at the first tries."""

    def __init__(self, folder: Path, lost: int) -> None:
        self.folder, self.lost, self.tries, self.at_once = folder, lost, 0, 0

    def _of(self, path: str) -> Path:
        return self.folder / path.partition(f"clusters/{SPEC.name}/")[2]

    async def exists(self, path: str) -> bool:
        return self._of(path).exists()

    async def get(self, path: str, target: Path, *, most: int) -> None:
        self.tries, self.at_once = self.tries + 1, self.at_once + 1
        assert self.at_once == 1, "brought twice at once, into one file"
        lost = self.tries <= self.lost
        await asyncio.sleep(0.1)
        self.at_once -= 1
        if lost:
            raise ConnectionLostError("The connection to controller-0 was lost")
        target.write_bytes(self._of(path).read_bytes())


class Here:
    """Who follows that controller."""

    def __init__(self, there: There, group: asyncio.TaskGroup) -> None:
        self.there: Any = there
        self.state, self.seq = ClusterState(phase="ready", name=SPEC.name), 0
        self.tasks = Tasks(group, lambda: None, lambda *_: None)

    async def live(self) -> Any:
        return self.there

    def do(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        async def done() -> None:
            await work()

        self.tasks.do(what, done)

    def cancel(self, what: str) -> None:
        self.tasks.cancel(what)

    def append(self, what: str, path: Path, lines: bytes) -> None:
        raise AssertionError(f"{what} is not followed here")

    def hears(self, event: Event) -> Event:
        self.seq += 1
        known = type(event)(**{**vars(event), "seq": self.seq, "time": time.time_ns()})
        self.state = fold(self.state, known)
        return known


async def soon() -> AsyncIterator[None]:
    while True:
        yield
        await asyncio.sleep(0.01)


def kept(folder: Path, number: int) -> events.JobKept:
    """An archive of job-1 below the folder, and the word of it."""
    target = path_of(folder / layout.JOBS / "job-1", number)
    target.parent.mkdir(parents=True, exist_ok=True)
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out" / "step").write_text(f"{number}")
    packed = pack(folder / "out", target)
    return events.JobKept(
        job="job-1", attempt=1, number=number, files=packed.files, bytes=packed.bytes, digest=packed.digest
    )


@pytest.mark.parametrize("lost", [0, 2])
async def test_the_last_archive_of_a_job_comes_though_nothing_tells_of_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Told of at the moment at which the VM is reached, when what was there already is being brought; and where the
    connection fails meanwhile."""
    monkeypatch.setattr(homecoming, "_AGAIN_SECONDS", 0.05)
    there, directory = There(tmp_path / "there", lost), tmp_path / "here"
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host = Here(there, group)
        home = Homecoming(directory, SPEC, host)
        host.hears(events.JobDeclared(job="job-1", spec=JobSpec("job-1", "true", keep="out").to_dict()))
        host.hears(kept(there.folder, 1))
        home.catch_up()
        await asyncio.sleep(0)
        home.react(host.hears(kept(there.folder, 2)))
        newest = path_of(directory / layout.JOBS / "job-1", 2)
        async for _ in soon():
            if newest.exists():
                break
        host.tasks.cancel_all()
    assert newest.read_bytes() == path_of(there.folder / layout.JOBS / "job-1", 2).read_bytes()
    assert not path_of(newest.parents[1], 1).exists()
