"""What lies declared in a cluster's folder, also while somebody throws it away."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from transient_magics.journal.declared import declared_below


def test_what_is_declared_is_found_oldest_first_and_what_is_half_made_or_no_name_is_not(tmp_path: Path) -> None:
    for age, name in enumerate(("run-2", "run-10", "run-1", "no name")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
        os.utime(tmp_path / name / "run.json", (1000 - age, 1000 - age))
    (tmp_path / "run-3").mkdir()
    assert declared_below(tmp_path, "run.json") == ["run-1", "run-10", "run-2"]
    assert declared_below(tmp_path / "nowhere", "run.json") == []


def test_a_folder_that_is_thrown_away_meanwhile_ends_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "run.json").touch()

    def glob(folder: Path, pattern: str) -> Iterator[Path]:
        yield folder / "run-1" / pattern.rpartition("/")[2]
        yield folder / "removed" / pattern.rpartition("/")[2]
        raise FileNotFoundError(folder)

    monkeypatch.setattr(Path, "glob", glob)
    assert declared_below(tmp_path, "run.json") == ["run-1"]
