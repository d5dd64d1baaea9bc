"""What work leaves on the VM of the controller comes home, whatever becomes of the first try."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.processes import until
from transient_magics import places
from transient_magics.client import Cluster, Declaration
from transient_magics.client.declaring import specify
from transient_magics.controller import artifacts
from transient_magics.controller.remote_controller import result_sync
from transient_magics.controller.remote_controller.bucket_backup import BucketBackup
from transient_magics.controller.remote_controller.result_sync import ResultSync
from transient_magics.controller.tasks import Tasks
from transient_magics.errors import AgreementError, ConnectionLostError
from transient_magics.journal import ClusterState, Event, RunState, events, fold
from transient_magics.journal.declared import declared_run
from transient_magics.protocol import layout
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.space import parse_space
from transient_magics.protocol.vm_events import TrainCheckpoint, TrainFinished, TrainStarted
from transient_magics.runtime.files.archive import pack, path_of
from transient_magics.works.jobs.events import JobKept
from transient_magics.works.jobs.spec import JobSpec
from transient_magics.works.studies.events import StudyAsked
from transient_magics.works.studies.spec import StudySpec

SPEC = specify(Declaration("cpux2", name="afar", purpose="jobs"))


class There:
    """The VM of the controller: its folder of the cluster, and a connection that is lost at the first tries."""

    def __init__(self, folder: Path, lost: int) -> None:
        self.folder, self.lost, self.tries, self.coming = folder, lost, 0, set[Path]()

    def _of(self, path: str) -> Path:
        return self.folder / path.partition(f"clusters/{SPEC.name}/")[2]

    async def run(self, command: str) -> str:
        folder = self._of(command.split()[2])
        return "".join(f"{each.name} {each.stat().st_size}\n" for each in folder.iterdir())

    async def exists(self, path: str) -> bool:
        return self._of(path).exists()

    async def get(self, path: str, target: Path, *, most: int) -> None:
        assert target not in self.coming, "brought twice at once, into one file"
        self.coming.add(target)
        self.tries, content = self.tries + 1, self._of(path).read_bytes()
        lost = self.tries <= self.lost
        await asyncio.sleep(0.1)
        self.coming.remove(target)
        if lost:
            raise ConnectionLostError("The connection to controller-0 was lost")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    async def get_tree(self, path: str, target: Path, *, without: Collection[str] = ()) -> None:
        names = sorted(str(each.relative_to(self._of(path))) for each in self._of(path).rglob("*") if each.is_file())
        for name in sorted(set(names) - set(without), key=lambda name: name != layout.RUN):
            await self.get(f"{path}/{name}", target / name, most=2**20)

    async def follow_blocks(
        self, path: str, offset: int = 0, *, allowance: object = None
    ) -> AsyncGenerator[list[tuple[int, bytes]], None]:
        while True:
            content = self._of(path).read_bytes() if self._of(path).exists() else b""
            block: list[tuple[int, bytes]] = []
            for line in content[offset:].splitlines():
                offset += len(line) + 1
                block.append((offset, line))
            if block:
                yield block
            await asyncio.sleep(0.01)


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
        path.open("ab").write(lines)

    def hears(self, event: Event) -> Event:
        self.seq += 1
        known = type(event)(**{**vars(event), "seq": self.seq, "time": time.time_ns()})
        self.state = fold(self.state, known)
        return known


def kept(folder: Path, number: int) -> JobKept:
    """An archive of job-1 below the folder, and the word of it."""
    target = path_of(folder / layout.JOBS / "job-1", number)
    target.parent.mkdir(parents=True, exist_ok=True)
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out" / "step").write_text(f"{number}", encoding="utf-8")
    packed = pack(folder / "out", target)
    return JobKept(job="job-1", attempt=1, number=number, files=packed.files, bytes=packed.bytes, digest=packed.digest)


def reached(there: There, directory: Path, group: asyncio.TaskGroup) -> tuple[Here, ResultSync]:
    """The VM is reached, and an archive of job-1 was told of before."""
    host = Here(there, group)
    home = ResultSync(directory, SPEC, host)
    host.hears(events.WorkDeclared(of="job", work="job-1", spec=JobSpec("job-1", "true", keep="out").to_dict()))
    host.hears(kept(there.folder, 1))
    home.catch_up()
    return host, home


@pytest.mark.parametrize("lost", [0, 2])
async def test_the_last_archive_of_a_job_comes_though_nothing_tells_of_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Told of at the moment at which the VM is reached, when what was there already is being brought; and where the
    connection fails meanwhile."""
    monkeypatch.setattr(result_sync, "_AGAIN_SECONDS", 0.05)
    there, directory = There(tmp_path / "there", lost), tmp_path / "here"
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host, home = reached(there, directory, group)
        await asyncio.sleep(0)
        home.react(host.hears(kept(there.folder, 2)))
        newest = path_of(directory / layout.JOBS / "job-1", 2)
        await until(newest.exists)
        host.tasks.cancel_all()
    assert newest.read_bytes() == path_of(there.folder / layout.JOBS / "job-1", 2).read_bytes()
    assert not path_of(newest.parents[1], 1).exists()


async def test_an_archive_waits_for_room_on_the_disk_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_sync, "_AGAIN_SECONDS", 0.05)
    left = [0, 0, 0]
    monkeypatch.setattr(artifacts, "room", lambda folder: left.pop() if left else 2**40)
    there, directory = There(tmp_path / "there", lost=0), tmp_path / "here"
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host, _ = reached(there, directory, group)
        await until(path_of(directory / layout.JOBS / "job-1", 1).exists)
        host.tasks.cancel_all()
    assert not left


async def test_an_archive_that_is_not_what_was_told_is_fetched_once_and_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_sync, "_AGAIN_SECONDS", 0.02)
    there, directory = There(tmp_path / "there", lost=0), tmp_path / "here"
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host, home = reached(there, directory, group)
        path_of(there.folder / layout.JOBS / "job-1", 1).write_bytes(b"another")
        await asyncio.sleep(0.4)  # a fetch takes 0.1 s
        assert there.tries == 1
        home.react(host.hears(kept(there.folder, 2)))
        await until(path_of(directory / layout.JOBS / "job-1", 2).exists)
        host.tasks.cancel_all()
    assert not path_of(directory / layout.JOBS / "job-1", 1).exists()


async def test_an_archive_that_is_not_there_yet_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_sync, "_AGAIN_SECONDS", 0.02)
    there, directory = There(tmp_path / "there", lost=0), tmp_path / "here"
    asked = asyncio.Event()
    looked_for = there.exists

    async def exists(path: str) -> bool:
        found = await looked_for(path)
        asked.set()
        return found

    monkeypatch.setattr(there, "exists", exists)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host, _ = reached(there, directory, group)
        archive = path_of(there.folder / layout.JOBS / "job-1", 1)
        aside = archive.rename(tmp_path / "aside")
        await asked.wait()
        aside.rename(archive)
        await until(path_of(directory / layout.JOBS / "job-1", 1).exists)
        host.tasks.cancel_all()


async def test_what_never_comes_is_asked_for_at_longer_and_longer_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_sync, "_AGAIN_SECONDS", 0.02)
    there, directory = There(tmp_path / "there", lost=0), tmp_path / "here"
    asked: list[float] = []
    looked_for = there.exists

    async def exists(path: str) -> bool:
        asked.append(time.monotonic())
        return await looked_for(path)

    monkeypatch.setattr(there, "exists", exists)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host, _ = reached(there, directory, group)
        path_of(there.folder / layout.JOBS / "job-1", 1).unlink()
        await until(lambda: len(asked) > 6)
        host.tasks.cancel_all()
    # The pauses double from 0.02 s on, less 20 % of jitter: six of them sum to at least 1 s.
    assert asked[6] - asked[0] > 0.8 * 0.02 * (2**6 - 1)


def declared(folder: Path, *names: str) -> Path:
    """The folder of run-1 below that one, with these files and its declaration."""
    run = folder / layout.RUNS / "run-1"
    for name in (*names, layout.RUN):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(f'{{"name": 1, "{name}": 2}}\n', encoding="utf-8")
    return run


RUN = RunSpec("s", 10, eval_steps=10)
DECLARED = events.WorkDeclared(of="run", work="run-1", spec=RUN.without_token())
STARTED = TrainStarted(run="run-1", step=0)
FINISHED = TrainFinished(run="run-1", step=10)


@pytest.mark.slow
@pytest.mark.parametrize("told", ["while it is followed", "before the program began"])
async def test_the_results_of_a_run_come_though_nothing_tells_of_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setattr(result_sync, "_AGAIN_SECONDS", 0.05)
    there, directory = There(tmp_path / "there", lost=2), tmp_path / "here"
    parts = [f"checkpoints/model.ckpt-10.{each}" for each in ("data-00000-of-00001", "index")]
    left = declared(there.folder, layout.METRICS, layout.EVENTS, layout.MODEL, *parts)
    here = declared(directory)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host = Here(there, group)
        home = ResultSync(directory, SPEC, host)
        saved = TrainCheckpoint(run="run-1", step=10, path="checkpoints/model.ckpt-10")
        for each in (DECLARED, STARTED, saved):
            host.hears(each)
        if told == "while it is followed":
            home.catch_up()
            await asyncio.sleep(0.1)
            home.react(host.hears(FINISHED))
        else:
            host.hears(FINISHED)
            home.catch_up()
        await until((here / layout.HOME).exists)
        host.tasks.cancel_all()
    for name in (layout.METRICS, layout.EVENTS, *parts):
        assert (here / name).read_bytes() == (left / name).read_bytes()
    assert json.loads((here / layout.MODEL).read_text(encoding="utf-8")) == {"name": 1, layout.MODEL: 2}


async def test_a_trace_comes_though_the_connection_was_lost_while_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_sync, "_AGAIN_SECONDS", 0.05)
    there, directory = There(tmp_path / "there", lost=2), tmp_path / "here"
    traces = [layout.trace_of(worker) for worker in ("worker-0", "worker-1")]
    declared(there.folder, *traces)
    here = declared(directory)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host = Here(there, group)
        home = ResultSync(directory, SPEC, host)
        for each in (DECLARED, STARTED):
            host.hears(each)
        home.catch_up()
        for worker in ("worker-0", "worker-1"):
            home.react(host.hears(events.TrainTraced(run="run-1", worker=worker)))
        await until(lambda: all((here / each).exists() for each in traces))
        host.tasks.cancel_all()


@pytest.mark.slow
async def test_a_run_of_another_machine_comes_whole_and_each_row_of_its_metrics_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_sync, "_AGAIN_SECONDS", 0.05)
    there, directory = There(tmp_path / "there", lost=2), tmp_path / "here"
    left = declared(there.folder, layout.CELL, layout.METRICS)
    here = directory / layout.RUNS / "run-1"
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host = Here(there, group)
        home = ResultSync(directory, SPEC, host)
        for each in (DECLARED, STARTED):
            host.hears(each)
        home.catch_up()
        for row in range(20):
            with (left / layout.METRICS).open("a", encoding="utf-8") as file:
                file.write(f"{row}\n")
            await asyncio.sleep(0.05)
            assert not (here / layout.RUN).exists() or (here / layout.CELL).exists(), "what counts comes last"
        await until((here / layout.RUN).exists)
        whole = (left / layout.METRICS).read_bytes()
        await until(
            lambda: (here / layout.METRICS).exists() and len((here / layout.METRICS).read_bytes()) >= len(whole)
        )
        host.tasks.cancel_all()
    assert (here / layout.METRICS).read_bytes() == whole
    assert (here / layout.CELL).exists()


async def test_code_that_another_machine_declared_runs_here_only_after_the_user_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))
    there, directory = There(tmp_path / "there", lost=0), places.cluster(SPEC.name)
    declared(there.folder, layout.CELL)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host = Here(there, group)
        home = ResultSync(directory, SPEC, host)
        home.react(host.hears(DECLARED))
        await until((directory / layout.RUNS / "run-1" / layout.RUN).exists)
        host.tasks.cancel_all()
    run = Cluster(SPEC.name).run("run-1")
    with pytest.raises(AgreementError, match=r"came from a VM.*cell\.py.*trust=True"):
        run.predict([[1.0]])


async def test_what_runs_left_on_a_vm_that_was_lost_comes_from_the_bucket(tmp_path: Path) -> None:
    """While nobody was here: a trial that trains yet is one that this machine can go on with, too."""
    directory, bucket = tmp_path / "here", tmp_path / "bucket"
    here = declared(directory)
    (bucket / "run-1").mkdir(parents=True)
    (bucket / "run-1" / layout.METRICS).write_text("whole\n", encoding="utf-8")

    class Storage:
        async def list(self, bucket_: str, name: str, *, most: int) -> list[Any]:
            path = bucket / name.removeprefix("afar/")
            return [SimpleNamespace(name=name, size=path.stat().st_size, generation=1)] if path.exists() else []

        async def download(self, bucket_: str, name: str, target: Path, *, generation: int) -> None:
            target.write_bytes((bucket / name.removeprefix("afar/")).read_bytes())

    study = StudySpec("s", RUN, "max accuracy", parse_space("lr=0.1,0.2"), trials=2, sampler="grid")
    (directory / layout.STUDIES / "s").mkdir(parents=True)
    (directory / layout.STUDIES / "s" / layout.STUDY).write_text(json.dumps(study.to_dict()), encoding="utf-8")
    trial = study.run_name(0)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        host = Here(There(tmp_path / "gone", lost=0), group)
        home = ResultSync(directory, SPEC, host)
        for each in (
            DECLARED,
            STARTED,
            FINISHED,
            events.WorkDeclared(of="study", work="s", spec=study.to_dict()),
            StudyAsked(study="s", trial=0, params={"lr": 0.1}, runs=(trial,)),
            events.WorkDeclared(of="run", work=trial, spec=RUN.without_token()),
        ):
            host.hears(each)
        await home.bring_all(BucketBackup(cast("Any", Storage()), "gs://mine/afar"))
    assert (here / layout.METRICS).read_text(encoding="utf-8") == "whole\n"
    assert declared_run(directory, host.state.of(RunState)[trial]).spec.params == {"lr": 0.1}
