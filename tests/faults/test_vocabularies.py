"""A text model's subword vocabulary is made on a VM, and is here when the cluster is gone: it goes with checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from tests.faults.conftest import PATIENCE
from transient_magics import client

pytestmark = pytest.mark.training

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


def train(cluster: client.Cluster, steps: int, resume: str | None = None) -> client.Run:
    """A run of so many steps, which is over, of a cluster that is gone."""
    try:
        run = client.train(
            source=CELL, cluster=cluster, name=f"to-{steps}", model="transformer", hparams_set="smallest_transformer",
            problem="lower_to_upper", train_steps=steps, check=False, resume=resume,
        )  # fmt: skip
        run.wait(PATIENCE)
    finally:
        cluster.delete(PATIENCE)
    return run


def vocabulary(folder: Path) -> bytes:
    (path,) = (folder / "checkpoints").glob("vocabulary.vocab.lower_to_upper.*")
    return path.read_bytes()


def test_texts_of_a_subword_vocabulary_after_the_cluster_a_resumption_and_from_a_bucket(
    home: Path, tmp_path: Path
) -> None:
    first = train(client.declare(client.Declaration("cpu", name="words")), 5)
    (answer,) = first.decode(["abc def"])
    assert isinstance(answer, str)
    again = train(client.declare(client.Declaration("cpu", name="stored", bucket="gs://words-results")), 10, "to-5")
    assert not (again.directory / "checkpoints" / "model.ckpt-10.index").exists(), "it is in the bucket alone"
    logits = again.predict({"inputs": ["abc def"], "targets": ["ABC DEF"]})
    assert isinstance(logits, numpy.ndarray)
    assert numpy.isfinite(logits).all()
    exported = again.export(tmp_path / "exported")
    assert (exported / "saved_model.pb").stat().st_size
    assert vocabulary(again.fetch(tmp_path / "fetched")) == vocabulary(first.directory), "the one it had learnt with"
