"""The phases of a run beside its checkpoints, and what the chief decides between two of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.runtime.test_chief_state import Story, kinds
from transient_magics.errors import TrainingError
from transient_magics.protocol import chief_messages as messages
from transient_magics.protocol.run import FitDeclaration, RunSpec
from transient_magics.runtime.files.manifest import Manifest
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server.chief import events as events
from transient_magics.runtime.phases import Phase, Phases, phase_files
from transient_magics.runtime.programs.next_phase import epochs_between, history, rate
from transient_magics.runtime.training.user_model.structure import read_arrays, write_arrays

DECLARED = FitDeclaration(steps=30, epoch_steps=5, phase_steps=10)
"""Two phases, of 10 and 20 steps."""
SECOND = Phase(11, FitDeclaration(steps=20, epoch_steps=4), {"val_loss": (0.5, 0.25)}, 31)


def folder_of(place: Path, cell: str = "model.fit(x, y)\nmodel.fit(x, y)\n", train_steps: int = 0) -> RunFolder:
    folder = RunFolder(place)
    folder.checkpoints.mkdir(parents=True)
    folder.cell.write_text(cell, encoding="utf-8")
    (place / "run.json").write_text(json.dumps({"name": "run-1", "train_steps": train_steps}), encoding="utf-8")
    return folder


def parts(spec: RunSpec) -> tuple[int, int, int]:
    return spec.phase_begin, spec.train_steps, spec.phase_steps


def test_a_run_ends_its_first_phase_where_the_cells_first_call_ends(tmp_path: Path) -> None:
    phases = Phases(folder_of(tmp_path))
    assert parts(phases.completed(DECLARED)) == (0, 10, 10)
    assert parts(phases.completed(FitDeclaration(steps=30))) == (0, 30, 0)


def test_a_phase_that_began_is_the_present_one_until_the_next(tmp_path: Path) -> None:
    phases = Phases(folder_of(tmp_path))
    phases.begin(SECOND)
    assert parts(phases.completed(DECLARED)) == (11, 31, 20)
    assert phases.later() == [SECOND]
    phases.begin(Phase(31, FitDeclaration(steps=3), {}, 34))
    assert parts(phases.completed(DECLARED)) == (31, 34, 3)
    assert [len(phases.until(step)) for step in (11, 12, 31, 32, None)] == [0, 1, 1, 2, 2]


def test_declared_steps_end_the_run_in_the_phase_that_reaches_them(tmp_path: Path) -> None:
    phases = Phases(folder_of(tmp_path, train_steps=25))
    assert parts(phases.completed(DECLARED)) == (0, 10, 10)
    phases.begin(SECOND)
    assert parts(phases.completed(DECLARED)) == (11, 25, 0)


def test_phases_of_another_cell_do_not_count(tmp_path: Path) -> None:
    """A run may resume another one with a changed cell."""
    folder = folder_of(tmp_path)
    Phases(folder).begin(SECOND)
    folder.cell.write_text("model.fit(x, y, epochs=9)\n", encoding="utf-8")
    assert Phases(folder).later() == []
    assert parts(Phases(folder).completed(DECLARED)) == (0, 10, 10)


def test_damaged_files_of_phases_end_the_run_with_their_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    phases = Phases(folder)
    weights = phases.weights(1)
    with pytest.raises(TrainingError, match=r"phase-1\.npz cannot be read: .*No such file"):
        read_arrays(weights)
    write_arrays(weights, {"bias": numpy.zeros(100)})
    whole = weights.read_bytes()
    for damaged in (b"", b"no archive", whole[:200], whole[:60] + b"damaged" + whole[67:]):
        weights.write_bytes(damaged)
        with pytest.raises(TrainingError, match=r"phase-1\.npz cannot be read: "):
            read_arrays(weights)
    (folder.checkpoints / "phases.json").write_text('{"cell": ', encoding="utf-8")
    with pytest.raises(TrainingError, match=r"the phases of the run cannot be read.*phases\.json"):
        phases.completed(DECLARED)


def test_weights_come_back_by_name(tmp_path: Path) -> None:
    weights = Phases(folder_of(tmp_path)).weights(1)
    write_arrays(weights, {"dense/kernel": numpy.eye(2), "file": numpy.zeros(3)})
    found = read_arrays(weights)
    assert {name: value.tolist() for name, value in found.items()} == {
        "dense/kernel": [[1, 0], [0, 1]],
        "file": [0, 0, 0],
    }


def test_files_of_phases_go_where_checkpoints_go(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    phases = Phases(folder)
    write_arrays(phases.weights(1), {"bias": numpy.zeros(1)})
    phases.begin(SECOND)
    (folder.checkpoints / "phase-x.npz").touch()
    names = [path.name for path in phase_files(folder.checkpoints)]
    assert names == ["phase-1.npz", "phases.json"]
    checkpoint = ["model.ckpt-20.data-00000-of-00001", "model.ckpt-20.index"]
    objects = [(f"checkpoints/20-ab/{name}", 1, "AAAAAA==") for name in (*names, *checkpoint)]
    (stored,) = Manifest.from_objects(objects).checkpoints
    assert {file.name for file in stored.files} == {*names, *checkpoint}


def test_a_history_has_the_epochs_of_its_phase_once() -> None:
    def epoch(number: int, step: int, loss: float, rate: float = 1.0, **more: float) -> Mapping[str, Any]:
        return {"kind": "train.epoch", "epoch": number, "step": step, "logs": {"loss": loss, **more}, "rate": rate}

    reports = [
        {"kind": "train.evaluated", "step": 11, "metrics": {"loss": 7.0}},
        epoch(0, 11, 9.0),
        epoch(0, 16, 4.0, val_loss=3.0),
        epoch(1, 21, 2.5, val_loss=2.0, accuracy=0.5),
        epoch(1, 21, 2.0, 0.25, val_loss=1.0),
        epoch(0, 26, 1.0),
    ]
    ended = epochs_between(reports, 11, 21)
    assert history(ended) == {"loss": (4.0, 2.0), "val_loss": (3.0, 1.0)}
    assert rate(ended) == 0.25
    assert history(epochs_between(reports, 30, 40)) == {}


# What the chief decides.


def ended(**declared: Any) -> Story:
    """Return the story of a chief whose phase has made its steps, with a worker that trained."""
    story = Story(**{"train_steps": 10, "phase_steps": 10, **declared})
    story(events.Prepared(story.state.spec.phase_begin))
    story(events.SaveDone(0, "checkpoints/model.ckpt-0", 0.1, 9))
    story.joins(1, "worker-1")
    story(events.StepSeen(story.state.spec.train_steps))
    return story


def evaluated(story: Story) -> list[Any]:
    """Save and evaluate the phase's last checkpoint; return what follows."""
    step = story.state.spec.train_steps
    story(events.Leaving(1, "finished"))
    assert events.Save() in story.done
    assert kinds(story(events.SaveDone(step, f"checkpoints/model.ckpt-{step}", 0.1, 9))) == ["train.checkpoint"]
    return story(events.EvaluationDone(step, {"loss": 1.0}))


def test_the_end_of_a_phase_is_not_the_end_of_the_run():
    story = ended()
    assert events.Send(1, messages.Stop(again=True)) in story.done
    assert evaluated(story)[-1] == events.FindPhase(10)
    assert story.emitted("train.finished") == []
    assert story(events.PhaseFound(SECOND)) == [events.BeginPhase(SECOND)]
    assert story(events.Joined(7, "worker-2")) == [], "it asks the next chief"


def test_workers_between_two_phases_wait_and_leave_with_the_run():
    story = ended()
    assert story(events.Joined(2, "worker-1")) == []
    assert story(events.Heartbeat(2)) == []
    assert evaluated(story)[-1] == events.FindPhase(10)
    done = story(events.PhaseFound(None))
    assert events.Send(2, messages.Leave(reason="finished")) in done
    assert done[-1] == events.Finish(0)
    assert story.emitted("train.finished")[0]["step"] == 10
    assert story(events.Joined(3, "worker-3")) == [events.Send(3, messages.Leave(reason="finished"))]


def test_a_cell_that_fails_between_two_phases_fails_the_run():
    story = ended()
    evaluated(story)
    story(events.Failed("cell line 7: NameError: name 'oops' is not defined"))
    assert story.emitted("train.failed")[0]["reason"].startswith("cell line 7")


def test_the_last_phase_ends_the_run():
    story = ended(phase_steps=0)
    assert events.Send(1, messages.Stop()) in story.done
    story(events.Leaving(1, "finished"))
    assert "train.made" in kinds(story(events.SaveDone(10, "checkpoints/model.ckpt-10", 0.1, 9)))
    assert kinds(story(events.EvaluationDone(10, {"loss": 1.0}))) == ["train.evaluated", "train.finished"]


def test_the_next_phase_compares_only_its_own_programs_and_keeps_numbers():
    first = ended()
    first(events.Built({"training": "100"}))
    second = Story(kept=first.state.to_dict(), train_steps=31, phase_begin=11, phase_steps=20)
    assert second(events.Built({"training": "200"})) == []
    assert second.joins(1, "worker-1") == messages.Joined(number=1, active=1, phase=11)
    again = Story(kept=second.state.to_dict(), train_steps=31, phase_begin=11, phase_steps=20)
    assert kinds(again(events.Built({"training": "300"}))) == ["train.failed"], "that is another program"


def test_evaluations_count_from_the_beginning_of_the_phase():
    story = Story(train_steps=31, phase_begin=11, phase_steps=20, eval_steps=10, checkpoint_steps=None)
    story(events.Prepared(11))
    assert story.state.next_mark == 21
    story.joins(1, "worker-1")
    assert events.Save() not in story(events.StepSeen(20))
    assert events.Save() in story(events.StepSeen(21))
