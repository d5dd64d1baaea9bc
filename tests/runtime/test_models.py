"""docs/models.md tells of every model that Tensor2Tensor registers.

What it says of the best known is still true, and of some for which something stands in for what T2T no longer finds.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.runtime import programs
from tests.runtime.try_models import CHANGES, WHY, hparams_set, listed, problem_of, table
from transient_magics.runtime.training.t2t.registry import index

PAGE = (programs.PROJECT / "docs" / "models.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| `(\w+)`(?: with `(.+)`)? \| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
TOLD = {model: told for model, *_, told in ROWS}
TRIED = ("basic_fc_relu", "lstm_seq2seq")
TRIED_NIGHTLY = ("resnet", "shake_shake", "transformer", "xception")
BRIDGED = ("distillation", "sliced_gan", "vqa_attention_baseline")


def test_every_registered_model_is_on_the_page_and_was_tried_to_the_end() -> None:
    assert [model for model, *_ in ROWS] == sorted(name for kind, name in index() if kind == "model")
    assert PAGE.count("\n| `") == len(ROWS)
    assert all(told == "runs" or re.match(r"no: (?!no step within|its process died)", told) for told in TOLD.values())
    runs = list(TOLD.values()).count("runs")
    assert f"registers {len(ROWS)} models." in PAGE
    assert f" {runs} of them complete a training step." in PAGE


def test_each_was_tried_with_the_hparams_and_the_problem_that_a_new_trial_would_take() -> None:
    known = set(index())
    for model, chosen, changes, problem, _ in ROWS:
        assert ("hparams", chosen) in known
        assert (chosen, changes, problem) == (hparams_set(model), listed(CHANGES.get(model, {})), problem_of(model))


def test_what_makes_no_step_has_a_reason_and_what_makes_one_has_none() -> None:
    explained = {model for model in TOLD if any(model.startswith(begin) for begin in WHY)}
    assert explained == {model for model, told in TOLD.items() if told != "runs"}


def test_the_page_is_not_made_of_half_a_trial() -> None:
    with pytest.raises(ValueError, match=r"not tried: .*xception"):
        table([json.dumps({"model": "resnet"})])


@pytest.mark.training
@pytest.mark.parametrize(
    "models",
    [
        pytest.param(TRIED, id="some of the best known families"),
        pytest.param(TRIED_NIGHTLY, id="the other best known families", marks=pytest.mark.nightly),
        pytest.param(BRIDGED, id="what a bridge is for"),
    ],
)
def test_models_make_a_training_step(models: tuple[str, ...]) -> None:
    said = programs.run("tests.runtime.try_models", *models)
    answers = {answer["model"]: answer for answer in map(json.loads, said.splitlines())}
    assert {model: answers[model].get("error") for model in models} == dict.fromkeys(models)
    assert {TOLD[model] for model in models} == {"runs"}
