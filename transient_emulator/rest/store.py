"""What must survive the emulator's own death: one small JSON file per VM and per operation, replaced atomically.

A caller writes before it answers, so whatever a client was told is still true after a kill -9.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transient_magics import places
from transient_magics.files import write_atomically

_LOG = logging.getLogger(__name__)


class Store:
    """A folder of JSON files, one per key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        places.private(directory)

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Write `value` in place of what was there."""
        write_atomically(self._directory / f"{key}.json", json.dumps(value), durable=False)

    def drop(self, key: str) -> None:
        """Forget `key`. No error if it is unknown."""
        (self._directory / f"{key}.json").unlink(missing_ok=True)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self._directory.glob("*.json")):
            try:
                value = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                # Left by a machine that lost its power: better without it than never to start again.
                _LOG.error("%s cannot be read and is forgotten", path)
                path.unlink()
            else:
                yield value


def remove_folder(folder: Path) -> None:
    """Remove a VM's folder, even if its programs took the permissions from parts of it."""
    for _attempt in range(10):
        # A program that was killed a moment ago may still have finished a file.
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        for place, _folders, _files in os.walk(folder):
            os.chmod(place, 0o700)
    _LOG.error("the folder %s cannot be removed", folder)
