"""What a controller knows while its disk is full."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.faults.conftest import full_disk
from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.controller.record import Recorder
from transient_magics.journal import ClusterState, Journal, events, read


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
