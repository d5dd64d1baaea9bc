"""The data of a run on its chief's machine, with a problem that writes a vocabulary and one file of records."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server.records import Records
from transient_magics.runtime.parameter_server.variables import Keeper

VOCABULARY = "vocab.words.256.subwords"
SPEC = RunSpec.from_dict({"name": "r", "model": "m", "hparams_set": "h", "problem": "words", "train_steps": 5})


class WordProblem:
    """Generates as Tensor2Tensor does: a vocabulary that is there is used, else another one is made each time."""

    def __init__(self, words: bytes) -> None:
        self.words = words

    def generate(self, directory: Path, temporary: Path) -> None:
        vocabulary = directory / VOCABULARY
        if not vocabulary.exists():
            vocabulary.write_bytes(self.words)
        (directory / "words-train-00000-of-00001").write_bytes(vocabulary.read_bytes())

    def has_records(self) -> bool:
        return True

    def record_files(self) -> list[Path]:
        return []


def make_records(folder: RunFolder, words: bytes) -> bytes:
    """Make the data and keep the vocabulary as a chief does; return the records."""
    records = Records(folder, SPEC, cast("Keeper", WordProblem(words)))
    records.make()
    records.keep_vocabularies()
    return (folder.data / "words-train-00000-of-00001").read_bytes()


def test_a_run_on_another_machine_uses_the_vocabulary_that_came_with_its_checkpoints(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "first"), RunFolder(tmp_path / "second")
    assert make_records(first, b"learnt") == b"learnt"
    first.checkpoints.rename(tmp_path / "checkpoints")
    second.path.mkdir()
    (tmp_path / "checkpoints").rename(second.checkpoints)
    assert make_records(second, b"another") == b"learnt"
    (kept,) = second.checkpoints.glob(f"*{VOCABULARY}")
    assert kept.read_bytes() == b"learnt"


def test_a_new_run_makes_its_own_vocabulary_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert make_records(folder, b"first") == b"first"
    assert make_records(folder, b"second") == b"first"
