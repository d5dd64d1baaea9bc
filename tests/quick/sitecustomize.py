"""Python imports it at the start of every program below a quick run: who imports TensorFlow there says so in a file."""

from __future__ import annotations

import os
import sys


def is_looked_up() -> bool:
    """Return whether `importlib.util.find_spec` calls the finder that calls this, which imports nothing."""
    return sys._getframe(3).f_globals.get("__name__") == "importlib.util"


class _Noting:
    """A finder of modules that finds none, and notes the import of TensorFlow."""

    def __init__(self, place: str) -> None:
        self._place = place

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "tensorflow" and self._place and not is_looked_up():
            with open(self._place, "a", encoding="utf-8") as file:
                print(os.environ.get("PYTEST_CURRENT_TEST"), *sys.argv, file=file)
            self._place = ""  # once is enough


if place := os.environ.get("TRANSIENT_TESTS_IMPORTS", ""):
    sys.meta_path.insert(0, _Noting(place))  # type: ignore[arg-type]
