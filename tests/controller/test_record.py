"""What a controller knows while its disk is full."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import full_disk
from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.controller.record import Recorder
from transient_magics.journal import ClusterState, Journal, events, read


class Troubled:
    """A recorder with a clock of its own, and what it writes about troubles."""

    def __init__(self, journal: Journal) -> None:
        self.at, self._path = 1000.0, journal.path
        self.recorder = Recorder(journal, ClusterState(), clock=lambda: self.at)
        self.recorder.record(events.ClusterDeclared(spec=specify(Declaration("k80", name="full")).to_dict()))

    @property
    def written(self) -> list[str]:
        return [event.what for event in read(self._path) if isinstance(event, events.ControllerTrouble)]


@pytest.fixture
def troubled(tmp_path: Path) -> Iterator[Troubled]:
    with Journal(tmp_path / "journal.jsonl") as journal:
        yield Troubled(journal)


def test_a_trouble_whose_numbers_change_is_one_event(troubled: Troubled) -> None:
    for number in range(20, 3020):
        troubled.recorder.note("job a", f"The folder of a is not here yet: no room for another {number:,} bytes")
    assert troubled.written == ["The folder of a is not here yet: no room for another 20 bytes"]
    assert troubled.recorder.trouble.endswith("no room for another 3,019 bytes")
    troubled.recorder.note("job a", "The folder of a was not taken from worker-1")
    troubled.recorder.note("job a", "The folder of a was not taken from worker-2")
    assert [what[-8:] for what in troubled.written[1:]] == ["worker-1", "worker-2"], "a name is not a number"


def test_two_that_disagree_about_a_trouble_write_an_event_a_minute_and_the_last_word_is_kept(
    troubled: Troubled,
) -> None:
    for second in range(600):
        troubled.at += 1.0
        troubled.recorder.note("job a", "no room" if second % 2 else "no files")
        troubled.recorder.record_late_troubles()
    assert 10 <= len(troubled.written) <= 15
    troubled.recorder.note("poll", "Compute Engine does not answer")
    assert troubled.written[-1] == "no room; Compute Engine does not answer", "other sources do not wait"
    troubled.recorder.note("job a", "no right")
    troubled.at += 60.0
    troubled.recorder.record_late_troubles()
    assert troubled.written[-1] == "no right; Compute Engine does not answer"


def test_the_end_of_a_trouble_is_written_immediately(troubled: Troubled) -> None:
    for _ in range(100):
        troubled.recorder.note("job a", "no room")
        troubled.recorder.note("job a", "")
    assert len(troubled.written) <= 10
    assert troubled.written[-1] == ""
    troubled.at += 60.0
    troubled.recorder.record_late_troubles()
    assert troubled.written[-1] == ""


@pytest.mark.slow
async def test_a_full_disk_is_told_by_its_reason_however_much_happens_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    spec = specify(Declaration("k80", name="full"))
    request = events.VmRequested(
        vm="worker-0", role="worker", slot=0, zone="us-west1-b", accelerator="k80", machine_type="n1-standard-4",
        provisioning_model="spot", hourly=0.1, on_demand_hourly=0.5,
    )  # fmt: skip
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder, said = Recorder(journal, ClusterState()), set[str]()
        recorder.record(events.ClusterDeclared(spec=spec.to_dict()))
        writing = asyncio.create_task(recorder.keep_writing())

        async def look(seconds: float) -> None:
            said.add(recorder.trouble)
            await asyncio.sleep(seconds)
            said.add(recorder.trouble)

        with full_disk(os.getpid(), journal.path):
            for _ in range(3):
                assert not recorder.record(request), "it could be forgotten"
                await look(0.5)
            for number in range(3):
                assert recorder.record(events.ControllerRecovered(pid=number, vms=0))
                await look(0.1)
                assert not recorder.record(request)
                await look(0.4)
        (why,) = said
        assert "The journal cannot be written: File too large" in why
        async with asyncio.timeout(30):
            while recorder.trouble:
                recorder.changed.clear()
                await recorder.changed.wait()
        writing.cancel()
        assert [getattr(event, "pid", None) for event in read(journal.path)[1:]] == [0, 1, 2]
        assert recorder.state.seq == 4
