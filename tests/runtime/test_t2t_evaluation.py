"""An evaluation finds what Tensor2Tensor finds of the same checkpoint (tests/runtime/t2t_evaluation.py)."""

from __future__ import annotations

import re

import pytest

from tests.runtime import programs

pytestmark = [pytest.mark.training, pytest.mark.nightly]


def test_metrics_and_means_of_checkpoints_are_tensor2tensors() -> None:
    said = programs.run("tests.runtime.t2t_evaluation", "--quick")
    figures = {name: float(value) for name, value in re.findall(r"^(.+?)  +(\d+\.\d+)", said, re.MULTILINE)}
    for model in ("transformer", "resnet"):
        assert figures[f"{model}: metrics"] >= 4
        assert figures[f"{model}: largest deviation from Tensor2Tensor's"] < 10, "in millionths"
        assert figures[f"{model}: of the mean of two checkpoints"] < 1
