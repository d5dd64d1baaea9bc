"""Texts that a trained model answers with, through run.decode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy
import pytest

from tests.runtime import programs
from transient_magics import client
from transient_magics.errors import TrainingError

pytestmark = [pytest.mark.training, pytest.mark.usefixtures("_forked")]

CELL = """
import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import algorithmic, generator_utils, text_encoder
from tensor2tensor.layers import modalities
from tensor2tensor.models import lstm, transformer
from tensor2tensor.utils import registry


@registry.register_problem
class ShortBits(algorithmic.AlgorithmicIdentityBinary40):
    num_shards, train_length, dev_length, train_size, dev_size = 1, 1, 1, 4000, 10


@registry.register_problem
class FirstBit(ShortBits):
    '''Which bit a text begins with.'''

    def generate_data(self, data_dir, _, task_id=-1):
        def examples():
            for bits in self.generator(2, 4, 2000):
                yield {"inputs": [bit + 2 for bit in bits["inputs"]] + [1], "targets": bits["inputs"][:1]}

        train, dev = self.training_filepaths(data_dir, 1, True), self.dev_filepaths(data_dir, 1, True)
        generator_utils.generate_dataset_and_shuffle(examples(), train, examples(), dev, shuffle=False)

    def feature_encoders(self, data_dir):
        return {"inputs": text_encoder.TextEncoder(), "targets": text_encoder.ClassLabelEncoder(["nought", "one"])}

    def hparams(self, defaults, unused_model_hparams):
        super().hparams(defaults, unused_model_hparams)
        defaults.modality["targets"], defaults.vocab_size["targets"] = modalities.ModalityType.CLASS_LABEL, 2

    def example_reading_spec(self):
        fields, decoders = super().example_reading_spec()
        return {**fields, "targets": tf.FixedLenFeature([1], tf.int64)}, decoders


@registry.register_problem
class Alternating(algorithmic.AlgorithmicIdentityBinary40):
    '''Texts without inputs: 0 1 0 1 0 1, from either one on.'''

    num_shards, train_length, dev_length, train_size, dev_size = 1, 6, 6, 2000, 10

    def generator(self, nbr_symbols, max_length, nbr_cases):
        for number in range(nbr_cases):
            yield {"targets": [(number + place) % 2 for place in range(max_length)]}

    def feature_encoders(self, data_dir):
        return {"targets": text_encoder.TextEncoder()}

    def hparams(self, defaults, unused_model_hparams):
        super().hparams(defaults, unused_model_hparams)
        del defaults.modality["inputs"], defaults.vocab_size["inputs"]

    def example_reading_spec(self):
        fields, decoders = super().example_reading_spec()
        del fields["inputs"]
        return fields, decoders


@registry.register_hparams
def small_transformer():
    hparams = transformer.transformer_tiny()
    hparams.hidden_size, hparams.filter_size, hparams.num_hidden_layers = 32, 64, 1
    hparams.batch_size, hparams.learning_rate, hparams.learning_rate_warmup_steps = 64, 1.0, 50
    hparams.label_smoothing = hparams.layer_prepostprocess_dropout = 0.0  # so that it learns it by heart
    hparams.attention_dropout = hparams.relu_dropout = 0.0
    return hparams


@registry.register_hparams
def small_lstm():
    hparams = lstm.lstm_seq2seq()
    hparams.hidden_size, hparams.batch_size, hparams.learning_rate_warmup_steps = 32, 512, 50
    return hparams
"""
TEXTS = ["0 1 1", "1", "0 0 1 0", "1 1"]


def trained(
    model: str, hparams_set: str, problem: str, steps: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> client.Run:
    """A run that is over, of a cluster that is gone."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(home))
    run = client.Run("run-1", client.Cluster("gone"))
    run.directory.mkdir(parents=True)
    (run.directory / "cell.py").write_text(CELL, encoding="utf-8")
    declared = {"name": "run-1", "model": model, "hparams_set": hparams_set, "problem": problem, "train_steps": steps}
    (run.directory / "run.json").write_text(json.dumps(declared), encoding="utf-8")
    programs.run("tests.runtime.text_run", run.directory)
    return run


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[client.Run]:
    """A transformer that has learnt to repeat one bit."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        home = tmp_path_factory.mktemp("home")
        yield trained("transformer", "small_transformer", "short_bits", 2000, home, monkeypatch)


def assert_likeliest(run: client.Run, answers: list[str]) -> None:
    """The answers to TEXTS are what the model's own logits say, token by token."""
    assert all(set(text.split()) <= {"0", "1"} for text in answers)
    logits = run.predict({"inputs": TEXTS, "targets": answers})
    assert isinstance(logits, numpy.ndarray)
    for row, text in zip(logits.argmax(-1), answers, strict=True):
        likeliest = [*(int(bit) + 2 for bit in text.split()), 1]
        assert list(row[: len(likeliest)]) == likeliest


def test_a_transformer_answers_texts_with_texts(repeating: client.Run) -> None:
    answers = repeating.decode(TEXTS)
    assert_likeliest(repeating, answers)
    assert repeating.decode(["0", "1"]) == ["0", "1"], "it has learnt to repeat"
    assert repeating.decode({"inputs": [[2, 3, 1], [3, 1, 0]]}) == repeating.decode(["0 1", "1"])


def test_a_beam_search_and_a_mean_of_checkpoints_are_what_is_asked_for(repeating: client.Run) -> None:
    assert repeating.decode(["0", "1"], beam_size=4) == ["0", "1"], "it has learnt to repeat"
    with pytest.raises(TrainingError, match="only 1 of 3 checkpoints to average are available"):
        repeating.decode(TEXTS, average=3)
    with pytest.raises(TrainingError, match="beam_size must be a whole number of at least 1, not 0"):
        repeating.decode(TEXTS, beam_size=0)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["0 7"], "'0 7' is not in the vocabulary of inputs"),
        (["two"], "'two' is not in the vocabulary of inputs"),
        ({"inputs": ["1"], "context": ["0"]}, "the model has no input of texts 'context'"),
        ("0 1", "inputs must be an array of examples"),
    ],
)
def test_what_a_model_has_no_words_for_is_said(repeating: client.Run, texts: object, said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        repeating.decode(texts)


def test_a_classifier_names_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained("transformer_encoder", "small_transformer", "first_bit", 2000, tmp_path, monkeypatch)
    assert run.decode(TEXTS) == ["nought", "one", "nought", "one"]
    scores = run.predict(TEXTS)
    assert isinstance(scores, numpy.ndarray)
    assert scores.argmax(axis=1).tolist() == [0, 1, 0, 1]


@pytest.mark.nightly
def test_an_lstm_writes_what_its_own_logits_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained("lstm_seq2seq", "small_lstm", "short_bits", 300, tmp_path, monkeypatch)
    assert_likeliest(run, run.decode(TEXTS))


@pytest.mark.nightly
def test_a_language_model_goes_on_from_texts_of_different_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained("transformer", "small_transformer", "alternating", 300, tmp_path, monkeypatch)
    texts = ["0 1 0", "1", "1 0 1 0 1"]
    wholes = [f"{text} {answer}".split() for text, answer in zip(texts, run.decode(texts), strict=True)]
    for whole in wholes:
        assert all(bit != after for bit, after in pairwise(whole)), "it has learnt to alternate"
    assert sum(len(whole) == 6 for whole in wholes) >= 2, "and mostly where to end"
    with pytest.raises(TrainingError, match="one of the texts is empty"):
        run.decode(["0", ""])
