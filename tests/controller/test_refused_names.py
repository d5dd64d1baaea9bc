"""Names that a controller refuses, of every kind: taken ones as work is declared, unknown ones as it is stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.journal.test_taken_names import DECLARED
from tests.panels.stories import declaration
from transient_magics.controller.cluster import Controller
from transient_magics.controller.record import Recorder
from transient_magics.errors import NameTakenError, UnknownWorkError
from transient_magics.journal import Journal, events, read, replay
from transient_magics.kinds import KINDS
from transient_magics.protocol import layout
from transient_magics.protocol.cluster_commands import Stop
from transient_magics.protocol.vm_events import TrainFinished

SPEC = declaration("lab", 2)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Journal(tmp_path / layout.JOURNAL) as journal:
        yield Recorder(journal, replay([events.ClusterDeclared(spec=SPEC.to_dict())]))


@pytest.fixture
def controller(recorder: Recorder, tmp_path: Path) -> Controller:
    (tmp_path / layout.SPEC).write_text(json.dumps(SPEC.to_dict()), encoding="utf-8")
    controller = Controller(tmp_path)
    controller._create_works(recorder)
    return controller


@pytest.mark.parametrize(("there", "new"), [pair for pair in product(KINDS, KINDS) if pair[0] != pair[1]])
def test_work_whose_name_other_work_has_is_refused(
    controller: Controller, recorder: Recorder, there: str, new: str
) -> None:
    recorder.record(DECLARED[there]("night"))
    with pytest.raises(NameTakenError, match=rf"^lab has a {KINDS[there]} night already\. Choose another --name\.$"):
        controller._works[new].declare("night")
    assert recorder.state.kind_by_name == {"night": there}


def test_a_waiting_run_whose_name_is_taken_is_reported_and_never_fails_other_work(
    controller: Controller, recorder: Recorder, tmp_path: Path
) -> None:
    recorder.record(DECLARED["job"]("night"))
    folder = tmp_path / layout.RUNS / "night"
    folder.mkdir(parents=True)
    (folder / layout.RUN).write_text(json.dumps({"train_steps": 1}), encoding="utf-8")
    controller._works["run"].declare_waiting()
    assert "lab has a job night already" in recorder.trouble
    assert recorder.state.kind_by_name == {"night": "job"}
    assert not [event for event in read(tmp_path / layout.JOURNAL) if event.kind.startswith("train.")]


ENDED: dict[str, events.Event] = {
    "run": TrainFinished(run="night", step=10),
    "study": events.WorkStopping(work="night", of="study"),
    "job": events.WorkEnded(work="night", of="job", state="finished"),
    "bag": events.WorkEnded(work="night", of="bag", state="finished"),
    "dask": events.WorkEnded(work="night", of="dask", state="finished"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_stopping_unknown_work_is_an_error_and_stopping_ended_work_is_not(
    controller: Controller, recorder: Recorder, kind: str
) -> None:
    recorder.record(DECLARED[kind]("night"))
    with pytest.raises(UnknownWorkError, match=rf"^Unknown {KINDS[kind]} 'nigth' \(lab\)\. Did you mean night\?$"):
        await controller._command(Stop(kind=kind, name="nigth"))
    recorder.record(ENDED[kind])
    written = recorder.state.seq
    assert await controller._command(Stop(kind=kind, name="night")) == {}
    assert recorder.state.seq == written
