"""docs/models.md tells of every model that Tensor2Tensor registers; what it says of the best known is still true."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.runtime.machine_room import PROJECT
from transient_magics.runtime.t2t.registry import index

TOLD = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", (PROJECT / "docs" / "models.md").read_text(), re.MULTILINE))
TRIED = ("basic_fc_relu", "lstm_seq2seq", "resnet", "shake_shake", "transformer", "xception")


def test_every_registered_model_is_on_the_page() -> None:
    assert set(TOLD) == {name for kind, name in index() if kind == "model"}
    assert all(told in ("runs", "not tried") or told.startswith("no: ") for told in TOLD.values())


@pytest.mark.training
def test_the_best_known_families_make_a_training_step() -> None:
    program = [sys.executable, "-m", "tests.runtime.try_models", *TRIED]
    done = subprocess.run(program, cwd=PROJECT, capture_output=True, text=True, check=True)
    answers = {answer["model"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert {model: answers[model].get("error") for model in TRIED} == dict.fromkeys(TRIED)
    assert {TOLD[model] for model in TRIED} == {"runs"}
