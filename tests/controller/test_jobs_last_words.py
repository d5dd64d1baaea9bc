"""All that a command said is here when its end is, also where a VM or a disk is slow: over real SSH."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import asyncssh
import pytest

from tests.remote import ssh_server
from tests.remote.vms import Vm
from transient_magics.controller import artifacts, on_vm
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.vms.link import Link
from transient_magics.controller.works import Tick
from transient_magics.errors import ConnectionLostError
from transient_magics.journal import ClusterState, Event, events, fold
from transient_magics.protocol import jsonl, layout
from transient_magics.protocol.agent_commands import Begin, End
from transient_magics.remote import Connection, generate_key
from transient_magics.runtime.files import archive
from transient_magics.spec import WORKER
from transient_magics.works.jobs import conduct
from transient_magics.works.jobs.artifacts import CUT, add_tail
from transient_magics.works.jobs.conduct import Jobs
from transient_magics.works.jobs.events import JobBegan, JobInterrupted, JobKept
from transient_magics.works.jobs.on_vm.task import JobTask
from transient_magics.works.jobs.spec import JobSpec
from transient_magics.works.jobs.state import JobState

SAID = "begins\nworks\ndone at 208\n"


@pytest.mark.parametrize(
    ("here", "tail", "then"),
    [
        ("", "a\nb", "a\nb\n"),
        ("a\nb\n", "a\nb\nc", "a\nb\nc\n"),
        ("x\na\nb\nc\n", "b\nc", "x\na\nb\nc\n"),
        ("x\n", "b\nc", f"x\n{CUT}\nb\nc\n"),
        ("a\na\n", "a\na\na", "a\na\na\n"),
        ("a\n", "", "a\n"),
    ],
)
def test_the_tail_of_an_exit_completes_what_came(tmp_path: Path, here: str, tail: str, then: str) -> None:
    path = tmp_path / "output" / "1-0.log"
    path.parent.mkdir()
    path.write_text(here, encoding="utf-8")
    add_tail(path, tail)
    assert path.read_text(encoding="utf-8") == then


class Answering:
    """The link to a VM that has the job already."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def connection(self) -> Connection:
        return self._connection

    async def ask(self, _: object) -> None:
        pass


class Journal:
    """The journal of a cluster with one VM, which has a job to itself."""

    def __init__(self, ranks: int = 1) -> None:
        self.state, self.seq = ClusterState(phase="ready", ready_at=time.time()), 0
        self.recorded: list[Event] = []
        vms = tuple(f"worker-{rank}" for rank in range(ranks))
        for slot, vm in enumerate(vms):
            self.record(events.VmRequested(
                vm=vm, role=WORKER, slot=slot, zone="z", accelerator="", machine_type="m",
                provisioning_model="spot", hourly=0.2, on_demand_hourly=0.6,
            ))  # fmt: skip
            self.record(events.VmRunning(vm=vm, address="127.0.0.1"))
            self.record(events.VmReady(vm=vm))
        self.record(events.WorkDeclared(of="job", work="job-1", spec=JobSpec("job-1", "true", workers=ranks).to_dict()))
        self.record(JobBegan(job="job-1", attempt=1, vms=vms))

    def record(self, event: Event) -> None:
        self.recorded.append(event)
        self.seq += 1
        known = {"seq": self.seq} if event.time else {"seq": self.seq, "time": time.time_ns()}
        self.state = fold(self.state, type(event)(**{**vars(event), **known}))

    def note(self, *_: object) -> None:
        pass


Conducted = Callable[[type[asyncssh.SFTPServer], bool], Awaitable[str]]


@pytest.fixture
def conducted(tmp_path: Path) -> Conducted:
    """Has a command end on a VM whose files are served so, its output not followed until then; what is here then."""

    async def conducted(sftp: type[asyncssh.SFTPServer], noticed: bool) -> str:
        home, key, directory = tmp_path / "vm", tmp_path / "key", tmp_path / "here"
        there = home / layout.work_on_vm("job", "job-1")
        (there / layout.OUTPUT).mkdir(parents=True)
        here = directory / layout.JOBS / "job-1"
        here.mkdir(parents=True)
        acceptor, host_key = await ssh_server.serve(home, generate_key(key), sftp=sftp)
        journal = Journal()
        (there / layout.OUTPUT / "1-0.log").write_text(SAID, encoding="utf-8")
        exited: dict[str, Any] = {
            "time": time.time_ns(), "kind": "job.exited", "job": "job-1", "attempt": 1, "rank": 0, "code": 0,
            "seconds": 1.0, "noticed": noticed, "reason": "", "tail": "works\ndone at 208",
        }  # fmt: skip
        (there / layout.job_events(1)).write_text(json.dumps(exited) + "\n", encoding="utf-8")
        async with await Vm(home, key, acceptor.get_port(), host_key).connect() as connection:
            link = cast("Link", Answering(connection))
            jobs = Jobs(directory, cast("Recorder", journal), lambda _: link)
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                tasks = Tasks(group, lambda: None, lambda _, why: pytest.fail(why))
                while not journal.state.of(JobState)["job-1"].exits:
                    jobs.tick(Tick(tasks, time.time(), dict))
                    await asyncio.sleep(0.05)
                tasks.cancel_all()
        acceptor.close()
        return (here / layout.OUTPUT / "1-0.log").read_text(encoding="utf-8")

    return conducted


class Stumbling(asyncssh.SFTPServer):
    """Fails the first time that the output is asked for."""

    asked = 0

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
        type(self).asked += 1
        if self.asked == 1:
            raise asyncssh.SFTPFailure("busy")
        return super().open(path, pflags, attrs)


class Silent(asyncssh.SFTPServer):
    """Does not come to give what a file has."""

    async def read(self, file_obj: object, offset: int, size: int) -> bytes:
        await asyncio.sleep(3600)
        return b""


@pytest.mark.slow
async def test_a_fetch_that_fails_is_made_again_before_the_end_is_told(conducted: Conducted) -> None:
    assert await conducted(Stumbling, False) == SAID
    assert Stumbling.asked == 2


@pytest.mark.slow
@pytest.mark.parametrize("noticed", [False, True])
async def test_what_does_not_come_in_time_is_taken_from_the_exit(
    conducted: Conducted, noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not noticed:
        monkeypatch.setattr(conduct, "_OUTPUT_SECONDS", 1.0)
    assert (await conducted(Silent, noticed)).endswith("works\ndone at 208\n")


async def told_to_the_vm(tmp_path: Path, journal: Journal, enough: Callable[[list[object]], bool]) -> list[object]:
    """What the agent on the VM is told of its job, until that is `enough`; the folders are those of `tmp_path`."""
    told = list[object]()

    class Told(Answering):
        async def ask(self, command: object) -> None:
            told.append(command)

    acceptor, host_key = await ssh_server.serve(tmp_path / "vm", generate_key(tmp_path / "key"))
    async with await Vm(tmp_path / "vm", tmp_path / "key", acceptor.get_port(), host_key).connect() as connection:
        link = cast("Link", Told(connection))
        jobs = Jobs(tmp_path / "here", cast("Recorder", journal), lambda _: link)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = Tasks(group, lambda: None, lambda _, why: pytest.fail(why))
            while not enough(told):
                jobs.tick(Tick(tasks, time.time(), dict))
                await asyncio.sleep(0.05)
            tasks.cancel_all()
    acceptor.close()
    return told


@pytest.mark.slow
async def test_a_vm_that_tells_too_much_of_a_job_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jobs, "most_event_bytes", 1000)
    home, directory, journal = tmp_path / "vm", tmp_path / "here", Journal()
    there = home / layout.work_on_vm("job", "job-1")
    there.mkdir(parents=True)
    (directory / layout.JOBS / "job-1" / layout.OUTPUT).mkdir(parents=True)
    (there / layout.job_events(1)).write_text("what nobody reads\n" * 100, encoding="utf-8")
    told = await told_to_the_vm(tmp_path, journal, lambda _: journal.state.of(JobState)["job-1"].over)
    job = journal.state.of(JobState)["job-1"]
    assert (job.phase, job.reason) == ("failed", "its VM has reported more about it than is read from a VM")
    assert End(kind="job", work="job-1", attempt=1) in told


async def test_the_end_of_a_job_whose_vm_reports_too_much_is_recorded_once_its_agent_has_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its command would continue on a VM that other work gets."""
    monkeypatch.setattr(Jobs, "most_event_bytes", 1000)
    monkeypatch.setattr(on_vm, "TRY_AGAIN_SECONDS", 0.01)
    journal = Journal()
    asked = list[object]()

    class Deaf(Answering):
        vm = "worker-0"

        async def ask(self, _: object) -> None:
            asked.append(_)
            if asked.count(end_command) < 3:
                raise ConnectionLostError("The agent on worker-0 does not answer")
            assert not journal.state.of(JobState)["job-1"].exits

    end_command = End(kind="job", work="job-1", attempt=1)
    jobs = Jobs(tmp_path, cast("Recorder", journal), lambda _: cast("Link", Deaf(cast("Connection", None))))
    rank = conduct._Rank(jobs, journal.state.of(JobState)["job-1"], "worker-0", 0)
    await rank._end_unread()
    assert asked == [end_command] * 3
    assert list(journal.state.of(JobState)["job-1"].exits) == ["worker-0"]


async def test_the_events_of_an_earlier_attempt_do_not_end_the_present_one(tmp_path: Path) -> None:
    journal = Journal()
    asked = list[object]()

    class Recording(Answering):
        async def ask(self, command: object) -> None:
            asked.append(command)

    jobs = Jobs(tmp_path, cast("Recorder", journal), lambda _: cast("Link", Recording(cast("Connection", None))))
    rank = conduct._Rank(jobs, journal.state.of(JobState)["job-1"], "worker-0", 0)
    journal.record(JobInterrupted(job="job-1", attempt=1, reason="worker-1 was revoked"))
    journal.record(JobBegan(job="job-1", attempt=2, vms=("worker-0",)))
    await rank._end_unread()
    assert asked == [End(kind="job", work="job-1", attempt=1)]
    assert not journal.state.of(JobState)["job-1"].exits


async def test_an_interrupted_attempt_leaves_no_task_that_waits_for_its_vm(tmp_path: Path) -> None:
    (tmp_path / layout.JOBS / "job-1").mkdir(parents=True)
    journal = Journal()
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, lambda: None, lambda _, why: pytest.fail(why))
        jobs = Jobs(tmp_path, cast("Recorder", journal), lambda _: None)
        jobs.tick(Tick(tasks, time.time(), dict))
        assert "job job-1, attempt 1 on worker-0" in tasks
        journal.record(events.VmRevoked(vm="worker-0", signal="api"))
        jobs.tick(Tick(tasks, time.time(), dict))
        assert journal.state.of(JobState)["job-1"].vms == ()
        await asyncio.sleep(0.01)
        waiting = "job job-1, attempt 1 on worker-0" in tasks
        tasks.cancel_all()
    assert not waiting


async def test_a_flood_of_short_lines_leaves_the_event_loop_its_turns_and_is_written_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(layout.OUTPUT) / "1-0.log"
    home, here = tmp_path / "vm", tmp_path / "here" / layout.JOBS / "job-1" / output
    there = home / layout.work_on_vm("job", "job-1") / output
    for folder in (there.parent, here.parent):
        folder.mkdir(parents=True)
    flood = b"y\n" * 50_000 + b"\n" * 50_000
    there.write_bytes(flood)
    (home / layout.work_on_vm("job", "job-1") / layout.job_events(1)).write_text("", encoding="utf-8")
    turn, lines_of_turn, sizes = 0, Counter[int](), list[int]()
    append = jsonl.append_lines

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def counted(path: Path, lines: bytes) -> None:
        lines_of_turn[turn] += lines.count(b"\n")
        sizes.append(len(lines))
        append(path, lines)

    monkeypatch.setattr(jsonl, "append_lines", counted)
    counting = asyncio.create_task(count_turns())
    await told_to_the_vm(tmp_path, Journal(), lambda _: here.exists() and here.stat().st_size == len(flood))
    counting.cancel()
    assert here.read_bytes() == flood
    assert max(lines_of_turn.values()) <= 2_000
    assert max(sizes) <= 256 * 2**10
    assert len(sizes) <= flood.count(b"\n") / 100, "the file is not opened for each line"


async def test_an_attempt_goes_on_from_what_is_here_and_numbers_behind_what_was_lost(tmp_path: Path) -> None:
    home, journal = tmp_path / "vm", Journal()
    home.mkdir()
    here = tmp_path / "here" / layout.JOBS / "job-1"
    (here / layout.KEPT).mkdir(parents=True)
    (here / layout.JOB).write_text(json.dumps(JobSpec("job-1", "true").to_dict()), encoding="utf-8")
    (here / layout.KEPT / layout.archive(2)).write_bytes(b"what it keeps")
    journal.record(JobKept(job="job-1", attempt=1, number=3, files=1, bytes=13, digest="0" * 64))
    journal.record(JobInterrupted(job="job-1", attempt=1, reason="worker-0 was revoked"))
    journal.record(JobBegan(job="job-1", attempt=2, vms=("worker-0",)))
    told = await told_to_the_vm(tmp_path, journal, bool)
    there = home / layout.work_on_vm("job", "job-1") / layout.KEPT
    assert [path.name for path in there.iterdir()] == [layout.archive(2)]
    [begin] = told
    assert isinstance(begin, Begin)
    assert (begin.kind, begin.work, begin.attempt) == ("job", "job-1", 2)
    task = JobTask.from_dict(begin.task)
    assert task.at == pytest.approx(time.time(), abs=30), "ranks compare by it when they saved"
    assert replace(task, at=0.0) == JobTask(rank=0, addresses=("127.0.0.1",), kept=2, packed=3)


async def test_what_is_kept_waits_for_room_here_and_is_there_before_the_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "_ROOM_SECONDS", 0.1)
    there, kept = tmp_path / "vm" / layout.work_on_vm("job", "job-1"), tmp_path / "kept"
    (there / layout.KEPT).mkdir(parents=True)
    kept.mkdir()
    (kept / "state").write_text("step 7", encoding="utf-8")
    packed = archive.pack(kept, there / layout.KEPT / layout.archive(1))
    about: dict[str, Any] = {"job": "job-1", "attempt": 1, "rank": 0, "time": time.time_ns()}
    packing = about | {"number": 1, "files": packed.files, "bytes": packed.bytes, "digest": packed.digest}
    exited = about | {"code": 0, "seconds": 1.0, "noticed": False, "reason": "", "tail": ""}
    lines = [{"kind": "job.packed", **packing}, {"kind": "job.exited", **exited}]
    (there / layout.job_events(1)).write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")
    (tmp_path / "here" / layout.JOBS / "job-1" / layout.OUTPUT).mkdir(parents=True)
    journal, notes = Journal(), list[str]()
    monkeypatch.setattr(journal, "note", lambda _, what: notes.append(what))

    def room(_: Path) -> int:
        assert not journal.state.of(JobState)["job-1"].exits
        return packed.bytes if len(notes) == 3 else 0

    monkeypatch.setattr(artifacts, "room", room)
    await told_to_the_vm(tmp_path, journal, lambda _: bool(journal.state.of(JobState)["job-1"].exits))
    assert len(set(notes[:3])) == 1, "it says the same as long as it is so"
    assert notes[0].startswith("Cannot copy the folder of job-1 yet: this machine's disk has no room for ")
    assert notes[0].endswith("Free some space; then the copy is retried.")
    assert notes[3:] == [""]
    archive.unpack(tmp_path / "here" / layout.JOBS / "job-1" / layout.KEPT / layout.archive(1), tmp_path / "again")
    assert (tmp_path / "again" / "state").read_text(encoding="utf-8") == "step 7"


async def test_an_archive_that_is_here_is_not_brought_again_when_the_lines_of_its_vm_are_read_again(
    tmp_path: Path,
) -> None:
    there = tmp_path / "vm" / layout.work_on_vm("job", "job-1")
    here = tmp_path / "here" / layout.JOBS / "job-1"
    kept = tmp_path / "kept"
    for folder in (there / layout.KEPT, here / layout.KEPT, here / layout.OUTPUT, kept):
        folder.mkdir(parents=True)
    about: dict[str, Any] = {"job": "job-1", "attempt": 1}
    line = about | {"rank": 0, "time": time.time_ns()}
    journal = Journal()
    lines = list[dict[str, Any]]()
    for number in (1, 2):
        (kept / "state").write_text(f"step {number}", encoding="utf-8")
        packed = archive.pack(kept, there / layout.KEPT / layout.archive(number))
        contents = {"number": number, "files": packed.files, "bytes": packed.bytes, "digest": packed.digest}
        lines.append({"kind": "job.packed", **line, **contents})
        if number == 1:
            shutil.copy(there / layout.KEPT / layout.archive(1), here / layout.KEPT)
            journal.record(JobKept(**about, **contents, packed=number))
    exited = {"code": 0, "seconds": 1.0, "noticed": False, "reason": "", "tail": ""}
    lines.append({"kind": "job.exited", **line, **exited})
    (there / layout.job_events(1)).write_text("".join(f"{json.dumps(values)}\n" for values in lines), encoding="utf-8")

    await told_to_the_vm(tmp_path, journal, lambda _: bool(journal.state.of(JobState)["job-1"].exits))
    brought = [event.number for event in journal.recorded if isinstance(event, JobKept)]
    assert brought == [1, 2], "the first one before its lines are read again"
    assert [path.name for path in (here / layout.KEPT).iterdir()] == [layout.archive(2)]


@dataclass
class Rank:
    """What a rank writes in an attempt: the files, when it saved them, and whether they were taken before."""

    files: dict[str, str]
    saved: float
    taken: bool = False


async def kept_of(tmp_path: Path, ranks: list[Rank]) -> dict[str, str]:
    """The folder that is kept when all ranks have ended; their VMs are told of in turn."""
    journal = Journal(len(ranks))
    here = tmp_path / "here" / layout.JOBS / "job-1"
    (here / layout.OUTPUT).mkdir(parents=True)
    (here / layout.KEPT).mkdir()
    homes: dict[str, Path] = {}
    for rank, wrote in enumerate(ranks):
        there = tmp_path / f"vm-{rank}" / layout.work_on_vm("job", "job-1")
        homes[f"worker-{rank}"] = tmp_path / f"vm-{rank}"
        (there / layout.KEPT).mkdir(parents=True)
        folder = tmp_path / f"folder-{rank}"
        folder.mkdir()
        for name, said in wrote.files.items():
            (folder / name).write_text(said, encoding="utf-8")
        packed = archive.pack(folder, there / layout.KEPT / layout.archive(1))
        about: dict[str, Any] = {"job": "job-1", "attempt": 1, "time": time.time_ns()}
        contents = {"number": 1, "files": packed.files, "bytes": packed.bytes, "digest": packed.digest}
        exited = {"rank": rank, "code": 0, "seconds": 1.0, "noticed": True, "reason": "", "tail": ""}
        lines = [
            {"kind": "job.packed", **about, **contents, "saved": wrote.saved},
            {"kind": "job.exited", **about, **exited},
        ]
        (there / layout.job_events(1)).write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")
        if wrote.taken:
            shutil.copy(there / layout.KEPT / layout.archive(1), here / layout.KEPT)
            journal.record(JobKept(
                job="job-1", attempt=1, **contents, rank=rank, packed=1, saved=wrote.saved
            ))  # fmt: skip
    async with AsyncExitStack() as stack:
        links: dict[str, Answering] = {}
        for vm, home in homes.items():
            acceptor, host_key = await ssh_server.serve(home, generate_key(tmp_path / f"{vm}.key"))
            stack.callback(acceptor.close)
            connecting = await Vm(home, tmp_path / f"{vm}.key", acceptor.get_port(), host_key).connect()
            links[vm] = Answering(await stack.enter_async_context(connecting))
        jobs = Jobs(tmp_path / "here", cast("Recorder", journal), lambda vm: cast("Link", links[vm]))
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = Tasks(group, lambda: None, lambda _, why: pytest.fail(why))
            while len(journal.state.of(JobState)["job-1"].exits) < len(ranks):
                jobs.tick(Tick(tasks, time.time(), dict))
                await asyncio.sleep(0.05)
            tasks.cancel_all()
    kept = journal.state.of(JobState)["job-1"].kept
    assert kept
    archives_here = list((here / layout.KEPT).iterdir())
    assert [path.name for path in archives_here] == [layout.archive(kept.number)]
    archive.unpack(archives_here[0], tmp_path / "again")
    return {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "again").iterdir()}


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("taken", [False, True])
async def test_of_several_ranks_the_state_is_kept_of_the_one_that_saved_last(
    tmp_path: Path, last: int, taken: bool
) -> None:
    """In whatever order their words come; what a controller took before it was killed is not taken again."""
    moment = time.time() - 100
    ranks = [
        Rank({"state": "step 300", "log-0": "0"}, moment + 5 * (last == 0), taken=taken),
        Rank({"state": "step 319"}, moment + 2),
    ]
    kept = await kept_of(tmp_path, ranks)
    assert kept == {"state": ("step 300", "step 319")[last], "log-0": "0"}
