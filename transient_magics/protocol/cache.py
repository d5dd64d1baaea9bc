"""What `--cache 2GB:disk` says: how much of the records a worker keeps near it, and where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Place = Literal["memory", "shm", "disk"]
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FORM = re.compile(r"(\d+(?:\.\d+)?)(KB|MB|GB|TB)?(?::(\w+))?", re.ASCII)


@dataclass(frozen=True)
class Cache:
    """So many `bytes` at most: in the worker's own `memory`, which ends with its process, in `shm` (/dev/shm), where
    its successor on the VM finds them again, or on the VM's `disk`, where it finds them as well."""

    bytes: int
    place: Place = "disk"

    @classmethod
    def parse(cls, text: str) -> Cache:
        """`2GB`, `500MB:memory`, `0`. Raises ValueError for anything else."""
        found = _FORM.fullmatch(text)
        size = float(found[1]) * _UNITS.get(found[2] or "", 0) if found else -1.0
        if not found or (not found[2] and float(found[1])) or size >= 2**62:
            raise ValueError(f"'{text:.40}' is no size: write 2GB or 500MB:memory")
        for place in get_args(Place):
            if place == (found[3] or "disk"):
                return cls(int(size), place)
        raise ValueError(f"'{text:.40}' has an unknown place: write one of {', '.join(get_args(Place))}")


def cache_or_none(text: str) -> str:
    """A check: what `Cache.parse` reads, or the empty text. Raises ValueError."""
    if text:
        Cache.parse(text)
    return text
