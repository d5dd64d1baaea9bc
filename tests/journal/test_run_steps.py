"""A run whose declaration leaves its steps to the cell has those that its check found."""

from __future__ import annotations

import pytest

from transient_magics.errors import DeclarationError
from transient_magics.journal import RunState, events
from transient_magics.journal.folding import fold
from transient_magics.journal.state import ClusterState
from transient_magics.protocol.run import FitDeclaration, RunSpec
from transient_magics.works.runs.declare import train

FIT = "import keras\nmodel = keras.Sequential()\nmodel.compile()\nmodel.fit(1, 2)\n"


def checked(declared: int, found: int) -> int:
    """Return the steps of a run with a declaration, after a check that found others."""
    spec = {"name": "run", "train_steps": declared}
    state = ClusterState(name="demo")
    state = fold(state, events.WorkDeclared(work="run", of="run", spec=spec))
    state = fold(state, events.TrainChecked(run="run", steps=found))
    return state.of(RunState)["run"].train_steps


def test_a_run_without_steps_has_those_of_its_check() -> None:
    assert checked(0, 150) == 150


def test_declared_steps_stay() -> None:
    assert checked(60, 150) == 60
    assert checked(60, 0) == 60


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("x = 1\n", {}, "The number of steps is unknown, because the cell does not call model.fit"),
        (FIT, {"model": "resnet"}, "A run of a Tensor2Tensor model needs --train-steps"),
        (FIT, {"finish_by": "6h"}, "--finish-by needs --train-steps"),
        (FIT, {"stop_when": "loss no better in 3 evaluations"}, "--stop-when needs --train-steps"),
        (FIT, {"check": False}, "--no-check needs --train-steps"),
    ],
)
def test_runs_whose_steps_nothing_tells_are_refused(source: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        train(source=source, **options)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_what_fit_judges_by_holds_where_the_declaration_says_nothing() -> None:
    fit = FitDeclaration(160, 16, 2, 16, "max accuracy", callbacks=True)
    spec = fit.applied(RunSpec("run", 0))
    assert (spec.train_steps, spec.eval_steps, spec.keep_best) == (160, 16, "max accuracy")
    assert (spec.epoch_steps, spec.first_epoch, spec.callbacks) == (16, 2, True)
    assert fit.applied(RunSpec("run", 0, eval_steps=40)).eval_steps == 40
    declared = fit.applied(RunSpec("run", 60))
    assert (declared.train_steps, declared.callbacks) == (60, True)
    assert FitDeclaration().applied(RunSpec("run", 60)) == RunSpec("run", 60)
