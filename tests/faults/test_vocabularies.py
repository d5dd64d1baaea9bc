"""Two text runs as typed in a terminal, one on two parameter servers and one with synchronous steps.

A text model's subword vocabulary is made on a VM, and is here when the cluster is gone: it goes with checkpoints.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from tests.faults.conftest import PATIENCE
from transient_magics import client
from transient_magics.errors import TrainingError

pytestmark = [pytest.mark.training, pytest.mark.nightly]

PROGRAM = [sys.executable, "-m", "transient_magics.cli.program"]

CELL = """
import random

from tensor2tensor.data_generators import text_problems
from tensor2tensor.models import transformer
from tensor2tensor.utils import registry

# Drawn anew on every VM, and so is its vocabulary, unless it finds the one that the model has learnt with.
WORDS = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(100)]


@registry.register_problem
class LowerToUpper(text_problems.Text2TextProblem):
    approx_vocab_size = 2 ** 8
    is_generate_per_split = False

    def generate_samples(self, data_dir, tmp_dir, dataset_split):
        for _ in range(400):
            text = " ".join(random.choices(WORDS, k=3))
            yield {"inputs": text, "targets": text.upper()}


@registry.register_hparams
def smallest_transformer():
    hparams = transformer.transformer_tiny()
    hparams.hidden_size, hparams.filter_size, hparams.num_hidden_layers, hparams.batch_size = 16, 16, 1, 256
    return hparams
"""


def said(*words: str | Path) -> str:
    """What the program printed, which did what it was asked for."""
    ended = subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=2 * PATIENCE, encoding="utf-8"
    )
    assert ended.returncode == 0, ended
    return ended.stdout


def train(cluster: str, file: Path, steps: int, *more: str) -> str:
    """Train so many steps; what the program said meanwhile."""
    model = "--model", "transformer", "--hparams-set", "smallest_transformer", "--problem", "lower_to_upper"
    named = "--name", f"to-{steps}", "--cluster", cluster, "--train-steps", str(steps)
    return said("train", file, *model, *named, "--no-check", *more)


def vocabulary(folder: Path) -> bytes:
    (path,) = (folder / "checkpoints").glob("vocabulary.vocab.lower_to_upper.*")
    return path.read_bytes()


def test_texts_of_a_subword_vocabulary_after_the_cluster_a_resumption_and_from_a_bucket(
    home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "words.py"
    file.write_text(CELL, encoding="utf-8")
    cluster = client.declare(client.Declaration("cpu", name="words", ps=2))
    try:
        assert train("words", file, 5) == "to-5 is declared on words.\n"
        # Where one run has all workers the next waits for its end; its code is checked meanwhile, and no more.
        late = client.train(source="raise ValueError('late')", cluster=cluster, train_steps=1)
        first = cluster.run("to-5")
        assert first.wait(PATIENCE).step >= 5
        with pytest.raises(TrainingError, match="ValueError: late"):
            late.wait(PATIENCE)
        declared, finished = (cluster.events(kind)[-1] for kind in ("work.declared", "train.finished"))
        assert declared.work == late.name  # type: ignore[attr-defined]
        assert declared.seq < finished.seq, "it was not there in time to wait"
        assert not [each for each in cluster.events("train.started") if each.run == late.name]  # type: ignore[attr-defined]
        assert {vm.name for vm in cluster.state.living} == {"ps-0", "ps-1", "worker-0"}
    finally:
        cluster.delete(PATIENCE)
    (answer,) = first.decode(["abc def"])
    assert isinstance(answer, str)
    assert vocabulary(first.fetch(tmp_path / "local")) == vocabulary(first.directory)
    assert (tmp_path / "local" / "checkpoints" / "model.ckpt-5.index").exists()

    cluster = client.declare(client.Declaration("cpu", name="stored", bucket="gs://words-results"))
    try:
        told = train("stored", file, 10, "--resume", "to-5", "--mode", "sync", "--wait")
        assert "first gradient after" in said("cluster", "logs", "stored", "worker-0")
        assert said("cluster", "logs", "stored", "worker-0", "--lines", "1").count("\n") == 1
    finally:
        cluster.delete(PATIENCE)
    assert told.splitlines()[0] == "to-10 is declared on stored."
    assert re.search(r"^to-10: .*step 1\d.*It cost \$0\.", told, re.MULTILINE), told
    again = cluster.run("to-10")
    assert told.splitlines()[-1] == f"Its results are in {again.directory}."
    assert not (again.directory / "checkpoints" / "model.ckpt-10.index").exists(), "it is in the bucket alone"
    (started,) = again.cluster.events("train.started")
    assert started.step == 5, "it goes on from the steps of a run that was copied from this machine"  # type: ignore[attr-defined]
    logits = again.predict({"inputs": ["abc def"], "targets": ["ABC DEF"]})
    assert isinstance(logits, numpy.ndarray)
    assert numpy.isfinite(logits).all()
    assert said("export", "to-10", tmp_path / "exported") == f"{tmp_path / 'exported'}\n"
    assert (tmp_path / "exported" / "saved_model.pb").stat().st_size
    assert vocabulary(again.fetch(tmp_path / "fetched")) == vocabulary(first.directory), "the one it had learnt with"
