"""Record the texts of all courses again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.scenarios.courses import COURSES, play, recorded


def main() -> None:
    """Write the text of each course, and delete texts of courses that are gone."""
    folder = recorded("any").parent
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.txt"):
        if path.stem not in COURSES:
            path.unlink()
    for name in COURSES:
        with tempfile.TemporaryDirectory() as directory:
            recorded(name).write_text(play(name, Path(directory)), encoding="utf-8")


if __name__ == "__main__":
    main()
