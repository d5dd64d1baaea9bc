"""Python imports it at the start of every program below a quick run: who imports TensorFlow there says so in a file."""

from __future__ import annotations

import os
import sys

_place = os.environ.get("TRANSIENT_TESTS_IMPORTS", "")


def _heard(event: str, arguments: tuple[object, ...]) -> None:
    global _place
    if _place and event == "import" and str(arguments[0]).partition(".")[0] == "tensorflow":
        said, _place = _place, ""  # once is enough
        with open(said, "a", encoding="utf-8") as file:
            print(os.environ.get("PYTEST_CURRENT_TEST"), *sys.argv, file=file)


if _place:
    sys.addaudithook(_heard)
