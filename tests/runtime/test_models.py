"""docs/models.md tells of every model that Tensor2Tensor registers; what it says of the best known is still true."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.runtime.machine_room import PROJECT
from tests.runtime.try_models import problem_of, table
from transient_magics.runtime.t2t.registry import index

PAGE = (PROJECT / "docs" / "models.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
TOLD = {model: told for model, _, _, told in ROWS}
TRIED = ("basic_fc_relu", "lstm_seq2seq", "resnet", "shake_shake", "transformer", "xception")


def test_every_registered_model_is_on_the_page_and_was_tried_to_the_end() -> None:
    assert [model for model, *_ in ROWS] == sorted(name for kind, name in index() if kind == "model")
    assert PAGE.count("\n| `") == len(ROWS)
    assert all(told == "runs" or re.match(r"no: (?!no step within|its process died)", told) for told in TOLD.values())
    runs = list(TOLD.values()).count("runs")
    assert f"registers {len(ROWS)} models." in PAGE
    assert f" {runs} of them make a training step" in PAGE


def test_each_was_tried_with_hparams_and_a_problem_that_there_are() -> None:
    known = set(index())
    assert [hparams_set for _, hparams_set, _, _ in ROWS if ("hparams", hparams_set) not in known] == []
    assert {problem for model, _, problem, _ in ROWS if problem != problem_of(model)} == set()


def test_the_page_is_not_made_of_half_a_trial() -> None:
    with pytest.raises(ValueError, match=r"not tried: .*xception"):
        table([json.dumps({"model": "resnet"})])


@pytest.mark.training
def test_the_best_known_families_make_a_training_step() -> None:
    program = [sys.executable, "-m", "tests.runtime.try_models", *TRIED]
    done = subprocess.run(program, cwd=PROJECT, capture_output=True, text=True, check=True)
    answers = {answer["model"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert {model: answers[model].get("error") for model in TRIED} == dict.fromkeys(TRIED)
    assert {TOLD[model] for model in TRIED} == {"runs"}
