"""The journal: nothing that was appended is lost, a torn line is survived, followers see events at once."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.errors import JournalError
from transient_magics.journal import Journal, decode, encode, events, follow, read


def test_what_is_appended_reads_back_in_order(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(events.ControllerStarted(pid=7))
        journal.append(events.VmReady(vm="worker-0"))
    first, second = read(tmp_path / "journal.jsonl")
    assert (first.seq, first.kind, second.seq, second.kind) == (1, "controller.started", 2, "vm.ready")
    assert second.time >= first.time > 0


def test_a_new_writer_goes_on_counting(tmp_path: Path) -> None:
    for _ in range(3):
        with Journal(tmp_path / "journal.jsonl") as journal:
            journal.append(events.ClusterDeleted())
    assert [event.seq for event in read(tmp_path / "journal.jsonl")] == [1, 2, 3]


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, 60))
def test_a_torn_last_line_is_survived(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    for each in tmp_path.iterdir():
        each.unlink()
    with Journal(path) as journal:
        journal.append(events.VmReady(vm="worker-0"))
        journal.append(events.VmRevoked(vm="worker-0", signal="ssh"))
    os.truncate(path, path.stat().st_size - cut)
    with Journal(path) as journal:
        journal.append(events.ClusterDeleted())
    after = read(path)
    assert [event.seq for event in after] == list(range(1, len(after) + 1))
    assert after[-1].kind == "cluster.deleted"


def test_kinds_and_fields_of_newer_versions_are_kept_and_ignored() -> None:
    line = b'{"seq":3,"time":5,"kind":"vm.teleported","vm":"worker-0"}\n'
    assert encode(decode(line)) == line
    known = decode(b'{"seq":4,"time":5,"kind":"vm.ready","vm":"worker-0","mood":"good"}')
    assert known == events.VmReady(seq=4, time=5, vm="worker-0")


def test_a_killed_writer_loses_nothing_that_it_said_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = (
        "import sys; from pathlib import Path; from transient_magics.journal import Journal, events\n"
        f"journal = Journal(Path({str(path)!r}))\n"
        "while True: print(journal.append(events.VmReady(vm='worker-0')).seq, flush=True)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert writer.stdout
    for _ in range(200):
        said = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert [event.seq for event in read(path)][:said] == list(range(1, said + 1))


def test_a_full_disk_is_one_sentence_and_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = (
        "import resource, signal; from pathlib import Path; from transient_magics.journal import Journal, events\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        f"journal = Journal(Path({str(path)!r}))\n"
        "for _ in range(100): journal.append(events.VmReady(vm='worker-0'))"
    )
    assert resource.RLIMIT_FSIZE
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, encoding="utf-8")
    assert "JournalError: The journal cannot be written" in ended.stderr
    assert path.read_bytes().endswith(b"\n")
    assert len(read(path)) > 5


async def test_a_follower_sees_events_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    seen: asyncio.Queue[float] = asyncio.Queue()

    async def watch() -> None:
        async for batch in follow(path):
            for event in batch:
                seen.put_nowait(time.time() - event.at)

    task = asyncio.create_task(watch())
    await asyncio.sleep(0.05)
    with Journal(path) as journal:
        delays = []
        for _ in range(20):
            journal.append(events.VmReady(vm="worker-0"))
            delays.append(await asyncio.wait_for(seen.get(), 60))
    task.cancel()
    assert sorted(delays)[10] < 0.3


@pytest.mark.parametrize("others", [None, b"", b'{"seq":1,"time":1,"kind":"cluster.deleted"}\n'])
@pytest.mark.parametrize("linked", [True, False])
def test_a_journal_that_is_removed_or_replaced_is_written_again_by_its_writer(
    tmp_path: Path, others: bytes | None, linked: bool
) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append(events.VmReady(vm="worker-0"))
        path.unlink()
        if not linked:
            (tmp_path / ".journal.jsonl.kept").unlink()
        if others is not None:
            path.write_bytes(others)
        journal.append(events.VmReady(vm="worker-1"))
        assert [journal.hold_name() for _ in range(4)] == [False, False, True, False]
        journal.append(events.VmReady(vm="worker-2"))
    assert [vars(event)["vm"] for event in read(path)] == ["worker-0", "worker-1", "worker-2"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_journal_that_was_removed_is_there_for_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for number in range(3):
        with Journal(path) as journal:
            journal.append(events.VmReady(vm=f"worker-{number}"))
            journal.rewrite(read(path))
        path.unlink()
    with Journal(path):
        assert [event.seq for event in read(path)] == [1, 2, 3]


def test_a_writer_leaves_a_folder_that_was_removed_or_took_its_folders_name(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    with Journal(folder / "journal.jsonl") as journal:
        journal.append(events.VmReady(vm="worker-0"))
        folder.rename(tmp_path / "former")
        assert not any(journal.hold_name() for _ in range(9))
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(b"another cluster's\n")
        assert not any(journal.hold_name() for _ in range(9))
    assert (folder / "journal.jsonl").read_bytes() == b"another cluster's\n"


def test_a_journal_in_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "nowhere" / "journal.jsonl")
