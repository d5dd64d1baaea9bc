"""The size of a model as the check counts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime import programs
from tests.runtime.test_training import DECLARATION, DIGITS
from transient_magics.runtime.tf.graph_mode import GPU

pytestmark = pytest.mark.training


def test_resnet_32_is_counted_as_it_was_published_on_a_machine_with_a_gpu_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CM-DARE counts 1,857,722 parameters and 1.6587 GFLOPs on CIFAR-10's images."""
    monkeypatch.setenv(GPU, "1")
    cell = DIGITS.replace("[8, 8, 1]", "[32, 32, 3]").replace("num_channels = 1", "num_channels = 3")
    (tmp_path / "cell.py").write_text(cell, encoding="utf-8")
    (tmp_path / "run.json").write_text(json.dumps({**DECLARATION, "hparams_set": "resnet_cifar_32"}), encoding="utf-8")
    answer = json.loads(programs.run("transient_magics.runtime.programs.check", "--run", tmp_path))
    assert answer["model"]["parameters"] == 1_857_722
    assert answer["model"]["variable_bytes"] > 2 * 4 * 1_857_722, "with the optimizer's"
    assert answer["model"]["gigaflops"] == pytest.approx(1.6587, rel=0.01)


@pytest.mark.nightly
def test_a_text_model_is_counted_for_a_plan_before_its_vocabulary_is_made(tmp_path: Path) -> None:
    transformer = {"model": "transformer", "hparams_set": "transformer_tiny", "problem": "translate_ende_wmt32k"}
    (tmp_path / "cell.py").write_text("", encoding="utf-8")
    (tmp_path / "run.json").write_text(json.dumps({**DECLARATION, **transformer}), encoding="utf-8")
    program = "transient_magics.runtime.programs.check", "--run", tmp_path
    assert "vocabulary that is made with its data" in json.loads(programs.run(*program))["note"]
    model = json.loads(programs.run(*program, "--planned"))["model"]
    assert (model["vocabulary"], model["tokens"]) == (32_768, 1)
    assert model["parameters"] > 32_768 * 128, "of the embedding"
    assert "gigaflops" not in model
