"""A wall clock that jumps when a test says so, for the programs that are started with it.

The library that the package `libfaketime` carries is preloaded; it reads from a file how far the clock is from the true
one. Clocks that only count on (`time.monotonic`) are left alone, as a kernel leaves them whose time is set. Not for
TensorFlow's programs: the library ended them now and then, as it could not make out the time in that file.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


class WallClock:
    """`environment` is what the programs are started with."""

    def __init__(self, folder: Path) -> None:
        found = find_spec("libfaketime")
        libraries = [Path(place) / "vendor/libfaketime/src/libfaketime.so.1" for place in _places(found)]
        if not libraries or not libraries[0].exists():
            pytest.skip("the package libfaketime carries no library for this machine")
        self._file = folder / "wall-clock"
        self.jump(0)
        self.environment = {
            "LD_PRELOAD": str(libraries[0]), "FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip

    def jump(self, seconds: float) -> None:
        """From now on the clock shows so many seconds more than the true time (0: that)."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{seconds:+.0f}\n", encoding="utf-8")
        beside.replace(self._file)


def _places(spec: object) -> list[str]:
    return list(getattr(spec, "submodule_search_locations", None) or ())
