"""State that survives the emulator's death: one small JSON file per VM and per operation.

Files are replaced atomically. A caller writes before it answers, so every answer that a client
received is still true after a kill -9.
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
    """A folder of JSON files, one per key.

    Iterating yields the values in the order of their keys.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        places.private(directory)

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Store `value`, replacing an earlier value of the key."""
        # Not durable: the value has to survive a kill, not a power failure, which ends the VMs as
        # well.
        write_atomically(self._directory / f"{key}.json", json.dumps(value), durable=False)

    def drop(self, key: str) -> None:
        """Delete `key`. Does nothing if it is unknown."""
        (self._directory / f"{key}.json").unlink(missing_ok=True)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self._directory.glob("*.json")):
            try:
                value = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                # A power failure may leave such a file. Losing one entry is better than an emulator
                # that never starts again.
                _LOG.error("cannot read %s: the entry is dropped", path)
                path.unlink()
            else:
                yield value


def remove_folder(folder: Path) -> None:
    """Remove a VM's folder, even if its programs took the permissions from parts of it."""
    # A program that was killed a moment ago may still finish a file while the folder is being
    # removed.
    for _attempt in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        for place, _folders, _files in os.walk(folder):
            os.chmod(place, 0o700)
    _LOG.error("cannot remove the folder %s", folder)
