"""What users see of every kind of work is as it was recorded."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.scenarios.courses import COURSES, play, recorded


@pytest.mark.parametrize("name", COURSES)
def test_a_course_looks_as_it_was_recorded(name: str, tmp_path: Path) -> None:
    known, found = recorded(name).read_text(encoding="utf-8"), play(name, tmp_path)
    difference = "\n".join(difflib.unified_diff(known.splitlines(), found.splitlines(), "recorded", "now", lineterm=""))
    assert not difference, f"{difference}\nIf this is intended: python -m tests.scenarios"


def test_every_recorded_text_is_of_a_course() -> None:
    assert {path.stem for path in recorded("any").parent.glob("*.txt")} == {*COURSES}
