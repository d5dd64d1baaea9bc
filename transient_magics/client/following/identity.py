"""The identity of a cluster: its name and its id. A name is used again once its cluster is deleted,
an id never.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self, cast

from ... import places
from ...protocol import layout


class Identity(NamedTuple):
    """One cluster of this machine. An empty `id` is unknown: then the name alone says which cluster
    is meant.
    """

    name: str
    id: str

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the identity of the cluster that has the name now."""
        return cls(name, id_of(places.cluster(name)))

    @property
    def directory(self) -> Path:
        """The folder of the cluster: under its name or, once another cluster took that, among those
        of past ones.
        """
        here = places.cluster(self.name)
        if not self.id or id_of(here) in ("", self.id):
            return here
        for folder in places.past().glob(f"{self.name}-*"):
            if id_of(folder) == self.id:
                return folder
        return places.past() / self.name

    @property
    def is_current(self) -> bool:
        """Whether the name still stands for this cluster."""
        return self.directory == places.cluster(self.name)


def id_of(directory: Path) -> str:
    """Return the id of the cluster in a folder; empty where its declaration is missing or
    unreadable, or has none.
    """
    path = directory / layout.SPEC
    try:
        found = path.stat()
    except OSError:
        return ""
    return _read_id(path, found.st_ino, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=256)
def _read_id(path: Path, *_version: int) -> str:
    """Read the id once for each version of the file: handles ask for it at every turn."""
    try:
        values = cast("object", json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return ""
    if not isinstance(values, dict):
        return ""
    found = cast("dict[str, object]", values).get("id")
    return found if isinstance(found, str) else ""
