"""An evaluation finds what Tensor2Tensor finds of the same checkpoint (benchmarks/bench_t2t_evaluation.py)."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.runtime.machine_room import PROJECT

pytestmark = pytest.mark.training


def test_metrics_and_means_of_checkpoints_are_tensor2tensors() -> None:
    command = [sys.executable, "benchmarks/bench_t2t_evaluation.py", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400, cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = {name: float(value) for name, value in re.findall(r"^(.+?)  +(\d+\.\d+)", done.stdout, re.MULTILINE)}
    for model in ("transformer", "resnet"):
        assert figures[f"{model}: metrics"] >= 4
        assert figures[f"{model}: largest deviation from Tensor2Tensor's"] < 10, "in millionths"
        assert figures[f"{model}: of the mean of two checkpoints"] < 1
