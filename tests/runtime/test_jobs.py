"""What looks after a job on a VM: real processes under it, killed, told to end, too talkative, too large."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.processes import until
from transient_magics.protocol import layout
from transient_magics.protocol.agent_commands import Begin, End, Warn
from transient_magics.runtime import process_record
from transient_magics.runtime.agent.processes import Processes
from transient_magics.runtime.files import archive
from transient_magics.works.jobs.on_vm import runner
from transient_magics.works.jobs.on_vm.command import CommandProcesses, Output
from transient_magics.works.jobs.on_vm.runner import Notices
from transient_magics.works.jobs.on_vm.task import JobTask
from transient_magics.works.jobs.spec import JobSpec

PATIENCE = 60.0
ADDRESSES = ("10.0.0.5",)


def begin(attempt: int, *, rank: int = 0, addresses: tuple[str, ...] = ADDRESSES, **task: Any) -> Begin:
    """The command that begins an attempt of job-1."""
    what = JobTask(rank, addresses, **task).to_dict()
    return Begin(kind="job", work="job-1", attempt=attempt, task=what)


class OneJob:
    """A job in the root of an agent that is this test."""

    def __init__(self, root: Path, command: str, **fields: Any) -> None:
        self.root, self.folder = root, root / layout.JOBS / "job-1"
        self.folder.mkdir(parents=True)
        spec = JobSpec(name="job-1", command=command, **fields)
        (self.folder / layout.JOB).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
        self.begin = begin(1)

    def told(self, kind: str = "") -> list[dict[str, Any]]:
        path = self.folder / layout.job_events(1)
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        return [line for line in lines if kind in ("", line["kind"])]

    async def until(self, kind: str) -> dict[str, Any]:
        await until(lambda: self.told(kind))
        return self.told(kind)[-1]

    async def said(self, what: str) -> None:
        await until(lambda: what in self.output)

    @property
    def output(self) -> str:
        path = self.folder / layout.OUTPUT / layout.output(1, 0)
        return path.read_text(encoding="utf-8") if path.exists() else ""


@asynccontextmanager
async def running(job: OneJob) -> AsyncIterator[Processes]:
    agent = Processes(job.root)
    await agent.begin(job.begin)
    try:
        yield agent
    finally:
        agent.detach()
        if found := process_record.running(job.folder):
            os.kill(found[0], signal.SIGKILL)
        process_record.kill_marked(job.folder)


def is_in_session(pid: int, session: int) -> bool:
    """Return whether a process belongs to a session; one that has ended belongs to none."""
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False


@pytest.mark.slow
async def test_a_command_ends_with_its_code_and_all_that_it_has_started(tmp_path: Path) -> None:
    away = f"{sys.executable} -c 'import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)'"
    job = OneJob(
        tmp_path, f"env -u {process_record.MARK} {away} & sleep 1; echo $RANK of $WORLD_SIZE; cd nowhere; exit 7"
    )
    async with running(job):
        ended = await job.until("job.exited")
    assert (ended["code"], ended["noticed"], ended["reason"]) == (7, False, "")
    child, ranks, *_ = job.output.splitlines()
    assert ranks == "0 of 1"
    assert "nowhere" in ended["tail"]
    assert not Path(f"/proc/{child}").exists(), "though it had a session of its own and not the job's mark"


@pytest.mark.slow
async def test_its_folder_is_packed_as_it_changes_and_restored_in_the_next_attempt(tmp_path: Path) -> None:
    command = "ls kept; echo $TRANSIENT_ATTEMPT > kept/new && mv kept/new kept/step"
    job = OneJob(tmp_path, command, keep="kept", keep_seconds=3600.0)
    async with running(job) as agent:
        await job.until("job.exited")
        [packed] = job.told("job.packed")
        assert (packed["number"], packed["files"], packed["bytes"]) == (1, 1, 2)
        await agent.begin(job.begin)  # the same again, as after a lost answer
        assert len(job.told("job.started")) == 1
        await agent.begin(begin(2, kept=1))
        second = job.folder / layout.job_events(2)
        await until(lambda: second.exists() and "job.exited" in second.read_text(encoding="utf-8"))
        # A newer archive than the one that it goes on from was told of, and lost with its machine.
        await agent.begin(begin(3, kept=1, packed=4))
        third = job.folder / layout.job_events(3)
        await until(lambda: third.exists() and "job.exited" in third.read_text(encoding="utf-8"))
    assert (job.folder / layout.OUTPUT / layout.output(2, 0)).read_text(encoding="utf-8") == "step\n"
    assert '"number":2' in second.read_text(encoding="utf-8")
    assert '"number":5' in third.read_text(encoding="utf-8")


@pytest.mark.slow
async def test_who_is_told_to_end_saves_what_it_has_and_that_is_packed(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n    time.sleep(0.5); pathlib.Path('kept/last').write_text('42'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); print('ready', flush=True); time.sleep(600)\n"
    )
    job = OneJob(tmp_path, "python cell.py", cell=True, keep="kept", keep_seconds=3600.0)
    (job.folder / layout.CELL).write_text(code, encoding="utf-8")
    async with running(job) as agent:
        await job.said("ready")
        await agent.end(End(kind="job", work="job-1", attempt=1))
        ended = await job.until("job.exited")
    assert ended["noticed"], "an orderly end is none of its own"
    [packed] = job.told("job.packed")
    archive.unpack(job.folder / layout.KEPT / layout.archive(packed["number"]), tmp_path / "there")
    assert (tmp_path / "there" / "last").read_text(encoding="utf-8") == "42"


@pytest.mark.slow
async def test_a_command_that_ignores_the_notice_is_packed_and_killed_before_its_vm_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    job = OneJob(
        tmp_path / "root",
        f"trap '' TERM; echo half > kept/step; echo > {ready}; exec sleep 600",
        keep="kept",
        keep_seconds=3600.0,
    )
    seconds = 0.0  # since the notice
    packed_at = list[float]()
    killed_at = list[float]()

    class CommandsSession(CommandProcesses):
        """The processes of the command's session: others of this program belong to other tests."""

        def members(self) -> list[int]:
            return [pid for pid in super().members() if is_in_session(pid, self.command)]

        def reap(self) -> None:
            """Let three seconds pass with each look at them."""
            nonlocal seconds
            seconds += 3.0

        def kill(self) -> None:
            killed_at.append(seconds)
            super().kill()

    def record_and_pack(folder: Path, target: Path, since: int) -> archive.Packed:
        packed_at.append(seconds)
        return archive.pack(folder, target, since)

    async def notice_once_it_runs(notice: Callable[[], None]) -> None:
        await asyncio.to_thread(ready.read_text)
        notice()

    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: seconds, sleep=time.sleep))
    monkeypatch.setattr(runner, "CommandProcesses", CommandsSession)
    monkeypatch.setattr(runner, "adopt_orphans", lambda: None)
    monkeypatch.setattr(runner, "pack", record_and_pack)
    monkeypatch.setattr(runner, "watch_preemption", notice_once_it_runs)
    try:
        await runner.Runner(job.folder, job.begin).run()
    finally:
        process_record.kill_marked(job.folder)
    assert 15 <= packed_at[0] < killed_at[0] < 30, "a VM under notice has 30 seconds"
    [ended] = job.told("job.exited")
    assert (ended["code"], ended["noticed"]) == (-signal.SIGKILL, True)
    [packed] = job.told("job.packed")
    archive.unpack(job.folder / layout.KEPT / layout.archive(packed["number"]), tmp_path / "there")
    assert (tmp_path / "there" / "step").read_text(encoding="utf-8") == "half\n"


@pytest.mark.slow
async def test_what_looks_after_it_is_killed_and_the_command_goes_on_where_its_folder_is(tmp_path: Path) -> None:
    job = OneJob(tmp_path, "echo begins >> kept/log; cat kept/log; sleep 600", keep="kept")
    async with running(job):
        await job.said("begins\n")
        found = process_record.running(job.folder)
        assert found
        before = process_record.find_marked(job.folder)
        os.kill(found[0], signal.SIGKILL)
        await job.said("begins\nbegins\nbegins\n")
        assert not set(before) & set(process_record.find_marked(job.folder)), "no process of before is left"
        assert len(job.told("job.started")) == 2


@pytest.mark.slow
async def test_an_agent_that_is_killed_is_followed_by_one_that_adopts(tmp_path: Path) -> None:
    job = OneJob(tmp_path, "echo here; sleep 3; echo there")
    async with running(job) as first:
        await job.said("here")
        first.detach()
        second = Processes(tmp_path)
        second.adopt()
        await job.until("job.exited")
        assert job.output == "here\nthere\n", "and it was not begun again"
        second.detach()


@pytest.mark.slow
async def test_what_it_says_is_bounded_and_its_last_lines_are_there(tmp_path: Path) -> None:
    job = OneJob(tmp_path, "yes 'a line that says nothing' | head -c 30000000; echo; echo the end; exit 3")
    async with running(job):
        ended = await job.until("job.exited")
    assert ended["code"] == 3
    assert ended["tail"].endswith("the end")
    said = job.output
    assert 8 * 2**20 < len(said) < 9 * 2**20
    assert said.endswith("the end\n")
    assert "bytes were left out here" in said


@pytest.mark.slow
async def test_who_needs_more_memory_than_it_may_have_is_ended_with_that_reason(tmp_path: Path) -> None:
    job = OneJob(tmp_path, "python -c 'a = bytearray(400 << 20); import time; time.sleep(600)'", memory_bytes=200 << 20)
    async with running(job):
        ended = await job.until("job.exited")
    assert (ended["code"], ended["noticed"]) == (-9, False)
    assert "it needs more memory than there is" in ended["reason"]
    assert "--memory" in ended["reason"]


async def test_a_job_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    job = OneJob(tmp_path, "true", keep="kept")
    job.begin = begin(1, kept=5)
    async with running(job):
        ended = await job.until("job.exited")
    assert ended["code"] is None
    assert "could not be started" in ended["reason"]


@pytest.mark.parametrize(
    ("at_notice", "own", "warned", "due"),
    [
        (30.0, 0.0, None, 2.0),  # the others know within seconds, or nobody can tell them
        (30.0, 0.0, 0.4, 0.9),  # when the warning has arrived everywhere
        (30.0, 0.0, 5.0, 2.0),
        (30.0, None, 0.4, 0.9),
        (30.0, 7.0, 0.4, 0.9),  # two VMs leave, another one first
        (20.0, 0.0, None, 10.0),
        (20.0, 0.0, 0.4, 10.4),
        (20.0, None, 0.4, 10.4),
        (20.0, None, None, math.inf),
    ],
)
def test_ranks_are_told_at_the_same_moment_before_the_first_of_their_vms_ends(
    at_notice: float, own: float | None, warned: float | None, due: float
) -> None:
    """Moments in seconds: of the VM's own notice, and of one that the controller warned of."""
    notices = Notices(at_notice, several=True)
    notices.own_end = math.inf if own is None else own + 30
    notices.warned_end = math.inf if warned is None else warned + 30
    assert notices.due == pytest.approx(due)
    if own is not None:
        alone = Notices(at_notice, several=False, own_end=own + 30)
        assert alone.due == own + 30 - at_notice, "a job on one VM waits for nobody"


@pytest.mark.slow
async def test_a_warned_rank_works_on_until_it_is_told_and_packs_what_it_changed(tmp_path: Path) -> None:
    command = (
        "cat kept/base; trap 'echo last > kept/state; exit 0' TERM; "
        "until [ -s $TRANSIENT_NOTICE ]; do sleep 0.05; done; echo warned; while :; do sleep 0.05; done"
    )
    job = OneJob(tmp_path, command, keep="kept", keep_seconds=5.0, at_notice_seconds=29.0)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "base").write_text("base\n", encoding="utf-8")
    (job.folder / layout.KEPT).mkdir()
    archive.pack(tmp_path / "base", job.folder / layout.KEPT / layout.archive(4))
    addresses = ("10.0.0.5", "10.0.0.6")
    job.begin = begin(1, rank=1, addresses=addresses, kept=4, at=time.time() + 100)
    path = job.folder / layout.OUTPUT / layout.output(1, 1)
    async with running(job) as agent:
        await until(lambda: path.exists() and "base" in path.read_text(encoding="utf-8"))
        agent.warn(Warn(kind="job", work="job-1", attempt=1, seconds=30.0))
        agent.warn(Warn(kind="job", work="job-1", attempt=1, seconds=3.0))
        await until(lambda: "warned" in path.read_text(encoding="utf-8"))
        assert not job.told("job.exited"), "it is told a second later"
        ended = await job.until("job.exited")
    assert (ended["noticed"], ended["rank"]) == (True, 1)
    [packed] = job.told("job.packed")
    assert (packed["number"], packed["files"]) == (5, 1), "what the attempt began with is here already"
    assert packed["saved"] == pytest.approx(time.time() + 100, abs=20), "by the controller's clock"


# --- archives --------------------------------------------------------------------------------------------------------
FULL = """
import asyncio, subprocess, sys
from pathlib import Path

root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(root)], check=True)
from tests.runtime.test_jobs import OneJob, running, until

async def main():
    write = lambda kilobytes: f"head -c {kilobytes}k /dev/zero > kept/big"
    go = lambda number: f"until [ -e {root}/{number} ]; do sleep 0.1; done"
    command = "; ".join([write(550), go(1), write(551), go(2), write(552), go(3), write(900), go(4), write(1100)])
    job = OneJob(root, command, keep="kept", keep_seconds=5.0)
    async with running(job):
        for number in (1, 2, 3):  # there is no room for three archives beside the folder
            await until(lambda: len(job.told("job.packed")) == number)
            (root / str(number)).touch()
        print((await job.until("job.unkept"))["reason"])
        subprocess.run(["mount", "-o", "remount,size=10m", str(root)], check=True)
        (root / "4").touch()
        await job.until("job.exited")
        print(*(line["bytes"] >> 10 for line in job.told("job.packed")), repr(job.told("job.unkept")[-1]["reason"]))

asyncio.run(main())
"""


@pytest.mark.skipif(not shutil.which("unshare"), reason="no namespaces, in which a disk of its own could be mounted")
@pytest.mark.nightly
def test_a_disk_without_room_for_an_archive_is_told_and_older_archives_make_room(tmp_path: Path) -> None:
    inside = ["unshare", "-Urm", sys.executable, "-c", FULL, str(tmp_path)]
    ended = subprocess.run(inside, capture_output=True, text=True, check=False, timeout=2 * PATIENCE, encoding="utf-8")
    assert ended.returncode == 0, ended.stderr
    full, packed = ended.stdout.splitlines()
    assert full == f"it cannot be packed: {os.strerror(errno.ENOSPC)}"
    assert packed.split()[:3] == ["550", "551", "552"]
    assert packed.split()[-2:] == ["1100", "''"], "as soon as there is room"


def test_links_devices_and_odd_names_are_left_out_and_told(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "sub" / "model.npz").write_bytes(b"x" * 1000)
    (folder / "to-passwd").symlink_to("/etc/passwd")
    (folder / "sub" / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    (folder / "two\nlines").write_text("odd", encoding="utf-8")
    (folder / os.fsdecode(b"no-text-\xff")).write_text("odd", encoding="utf-8")
    deep = folder
    for _ in range(9):  # the last of them are further down than an archive may say
        deep = deep / ("d" * 250)
        deep.mkdir()
    packed = archive.pack(folder, tmp_path / "1.tar")
    assert (packed.files, packed.bytes, len(packed.left_out)) == (1, 1000, 7)
    archive.unpack(tmp_path / "1.tar", tmp_path / "again")
    found = {path.relative_to(tmp_path / "again").as_posix() for path in (tmp_path / "again").rglob("*")}
    assert {name for name in found if "ddd" not in name} == {"sub", "sub/empty", "sub/model.npz"}


def test_a_folder_that_is_too_large_or_does_not_hold_still_leaves_the_last_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "a").write_text("whole", encoding="utf-8")
    archive.pack(folder, tmp_path / "1.tar")
    with (folder / "huge").open("wb") as file:
        file.truncate(9 * 2**30)
    with pytest.raises(ValueError, match=r"it has 9\.0 GB, more than 8 GB"):
        archive.pack(folder, tmp_path / "1.tar")
    (folder / "huge").unlink()
    written = archive._write

    def disturbed(*args: Any, **how: Any) -> str:
        (folder / "a").write_text(str(time.time_ns()), encoding="utf-8")  # of the same length or not: another file
        return written(*args, **how)

    monkeypatch.setattr(archive, "_write", disturbed)
    monkeypatch.setattr(archive, "_PAUSE", 0.0)
    with pytest.raises(ValueError, match="it changed while it was packed"):
        archive.pack(folder, tmp_path / "2.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.tar", "kept"]
    archive.unpack(tmp_path / "1.tar", tmp_path / "again")
    assert (tmp_path / "again" / "a").read_text(encoding="utf-8") == "whole"


def test_a_log_that_grows_all_the_time_is_packed_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    written = archive._write

    def growing(*args: Any, **how: Any) -> str:
        with (folder / "log").open("a", encoding="utf-8") as file:
            file.write("line\n")
        return written(*args, **how)

    (folder / "log").write_text("line\n", encoding="utf-8")
    monkeypatch.setattr(archive, "_write", growing)
    monkeypatch.setattr(archive, "_PAUSE", 0.0)
    assert archive.pack(folder, tmp_path / "1.tar").files == 1


@pytest.mark.parametrize("newer", [True, False])
def test_of_what_several_ranks_kept_nothing_is_lost_and_files_of_one_moment_stay_together(
    tmp_path: Path, newer: bool
) -> None:
    first = {"model": "1", "optimizer": "1", "log-0": "0", "sub/shard-0": "0", "part": "file"}
    second = {"model": "2", "optimizer": "2", "log-1": "1", "sub/shard-1": "1", "part/of": "folder"}
    for name, files in (("below", first), ("above", second)):
        for path, said in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(said, encoding="utf-8")
        archive.pack(tmp_path / name, tmp_path / f"{name}.tar")
    packed = archive.overlay(tmp_path / "below.tar", tmp_path / "above.tar", tmp_path / "both.tar", newer=newer)
    archive.unpack(tmp_path / "both.tar", tmp_path / "both")
    both = tmp_path / "both"
    found = {
        path.relative_to(both).as_posix(): path.read_text(encoding="utf-8")
        for path in both.rglob("*")
        if path.is_file()
    }
    newest, oldest = (second, first) if newer else (first, second)
    expected = {**oldest, **newest}
    del expected["part" if newer else "part/of"]
    assert found == expected
    assert (packed.files, packed.bytes) == (len(expected), sum(map(len, expected.values())))


_NAMES = ["../out", "/etc/passwd", "a/../../b", "a\\b", "two\nlines", "", ".", "a//b", "x" * 300]


@pytest.mark.parametrize("name", _NAMES)
def test_an_archive_with_a_name_that_leads_elsewhere_is_refused_whole(tmp_path: Path, name: str) -> None:
    _hostile(tmp_path / "1.tar", tarfile.TarInfo(name))
    with pytest.raises(ValueError, match=r"name of a file|neither a file"):
        archive.unpack(tmp_path / "1.tar", tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_an_archive_with_a_link_or_device_is_refused_whole(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("innocent")
    member.type, member.linkname = kind, "/etc/passwd"
    _hostile(tmp_path / "1.tar", member)
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        archive.check(tmp_path / "1.tar")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a", "a/b"), "'a' is both a file and a folder"),
        (("a/b/c", "a/b"), "'a/b' is both a file and a folder"),
        (("/".join(["d" * 250] * 31),), "invalid name of a file"),
    ],
    ids=["file-above", "file-above-later", "long-path"],
)
def test_an_archive_that_cannot_be_unpacked_is_no_archive(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    """Else it would take the place of the last one that can."""
    with tarfile.open(tmp_path / "1.tar", "w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(ValueError, match=said):
        archive.check(tmp_path / "1.tar")


@pytest.mark.parametrize("kinds", list(itertools.product([tarfile.REGTYPE, tarfile.DIRTYPE], repeat=2)))
def test_an_archive_that_has_a_name_twice_is_refused_whole(tmp_path: Path, kinds: tuple[bytes, bytes]) -> None:
    path, target = tmp_path / "1.tar", tmp_path / "there"
    with tarfile.open(path, "w") as tar:
        for kind in kinds:
            member = tarfile.TarInfo("model")
            member.type = kind
            tar.addfile(member)
    with pytest.raises(ValueError, match="'model' occurs twice"):
        archive.check(path)
    with pytest.raises(ValueError, match="'model' occurs twice"):
        archive.unpack(path, target)
    assert not target.exists()


def test_an_archive_with_more_than_twice_as_many_members_as_are_packed_is_refused_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is empty: their number alone could fill a disk's table of files."""
    monkeypatch.setattr(archive, "MOST_KEPT_FILES", 5)
    headers = [tarfile.TarInfo(str(number)).tobuf() for number in range(11)]
    allowed, refused = tmp_path / "allowed.tar", tmp_path / "refused.tar"
    allowed.write_bytes(b"".join(headers[:10]) + bytes(1024))
    refused.write_bytes(b"".join(headers) + bytes(1024))
    archive.unpack(allowed, tmp_path / "here")
    assert len(list((tmp_path / "here").iterdir())) == 10
    for read in (archive.check, partial(archive.unpack, folder=tmp_path / "there")):
        with pytest.raises(ValueError, match="too large, or has too many files"):
            read(refused)
    assert not (tmp_path / "there").exists()


def test_a_link_that_takes_the_place_of_a_file_while_it_is_packed_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link is there only while the file is opened: before and after it the folder looks the same."""
    secret, kept, aside = tmp_path / "secret", tmp_path / "kept" / "model", tmp_path / "aside"
    kept.parent.mkdir()
    kept.write_text("public", encoding="utf-8")
    secret.write_text("secret", encoding="utf-8")  # as many bytes
    opens = os.open
    swaps = list[str]()

    def swapped_once(path: os.PathLike[str] | str, *how: Any, **more: Any) -> int:
        if swaps or Path(path) != kept:
            return opens(path, *how, **more)
        swaps.append("swapped")
        kept.rename(aside)
        kept.symlink_to(secret)
        try:
            return opens(path, *how, **more)
        finally:
            kept.unlink()
            aside.rename(kept)

    monkeypatch.setattr(os, "open", swapped_once)
    archive.pack(kept.parent, tmp_path / "1.tar")
    monkeypatch.undo()
    assert swaps
    archive.unpack(tmp_path / "1.tar", tmp_path / "there")
    assert (tmp_path / "there" / "model").read_text(encoding="utf-8") == "public"


@given(some.binary(max_size=2000), some.integers(0, 10_239))
def test_an_archive_that_is_cut_off_or_damaged_raises_nothing_else(damage: bytes, at: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        folder, path = Path(place) / "kept", Path(place) / "1.tar"
        folder.mkdir()
        (folder / "a").write_bytes(b"x" * 3000)
        archive.pack(folder, path)
        whole = path.read_bytes()
        path.write_bytes(whole[:at] + damage)
        try:
            archive.unpack(path, Path(place) / "there")
        except ValueError:
            assert not (Path(place) / "there").exists()


def _block(kind: bytes, content: bytes = b"", size: int | None = None) -> bytes:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, len(content) if size is None else size
    return member.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    "blocks",
    [
        _block(tarfile.XHDTYPE, b"12 path=abc\n") * 3000, _block(tarfile.XGLTYPE, b"12 path=abc\n") * 3000,
        _block(tarfile.GNUTYPE_LONGNAME, b"abc\0") * 3000, _block(tarfile.XHDTYPE, size=2**33),
        _block(tarfile.GNUTYPE_LONGNAME, size=2**33), _block(tarfile.XHDTYPE, size=-512),
        _block(tarfile.REGTYPE, size=2**70), _block(tarfile.REGTYPE, size=-1024), _block(tarfile.GNUTYPE_SPARSE),
        _block(tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n") + _block(tarfile.REGTYPE, b"1\n2\n"),
    ],
    ids=range(10),
)  # fmt: skip
def test_an_archive_that_has_its_reader_take_memory_or_call_itself_is_refused(tmp_path: Path, blocks: bytes) -> None:
    with (tmp_path / "1.tar").open("wb") as file:
        file.write(blocks + bytes(1024))
        file.truncate(2**32)  # a hole: as much as a header may ask for
    with tracing() as most, pytest.raises(ValueError, match=r"it has|it is |has an invalid size"):
        archive.check(tmp_path / "1.tar")
    assert most() < 2**24


@contextmanager
def tracing() -> Iterator[Callable[[], int]]:
    """How many bytes were taken at most meanwhile."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_names_and_times_of_files_come_as_they_were(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    for name in ("é" * 100, "long/" + "n" * 150, "plain"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")
    packed = archive.pack(folder, tmp_path / "1.tar")
    archive.unpack(tmp_path / "1.tar", tmp_path / "there")
    found = {str(path.relative_to(tmp_path / "there")): path.read_text(encoding="utf-8")
             for path in (tmp_path / "there").rglob("*") if path.is_file()}  # fmt: skip
    assert packed.files == 3
    assert found == {name: name for name in ("é" * 100, "long/" + "n" * 150, "plain")}


def _hostile(path: Path, member: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w") as tar:
        plain = tarfile.TarInfo("plain")
        tar.addfile(plain)
        tar.addfile(member)


@given(some.lists(some.binary(max_size=90), max_size=20), some.integers(0, 300))
def test_output_is_what_was_said_as_long_as_it_fits_and_never_much_more(blocks: list[bytes], most: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "output" / "1-0.log"
        output = Output(path, most=most, last=50)
        for block in blocks:
            output.write(block)
        output.close()
        said, found = b"".join(blocks), path.read_bytes()
        assert len(found) <= most + 50 + 80
        assert not found or found.endswith(b"\n")
        if len(said) <= most and b"\r" not in said:
            assert found in (said, said + b"\n")


def test_the_program_ends_at_once_where_nothing_is_wanted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "transient_magics.works.jobs.on_vm", "--folder", str(tmp_path)]
    done = subprocess.run(command, timeout=60, check=False)
    assert done.returncode == 0
