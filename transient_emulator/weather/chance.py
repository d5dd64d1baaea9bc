"""Reproducible random numbers: each is a pure function of the seed and of a key.

Nothing is consumed, and nothing depends on the order of the draws. A weather that is loaded after a
kill -9 therefore continues with the same numbers, and a run with the same seed meets the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from statistics import NormalDist
from typing import TypeVar

Item = TypeVar("Item")


def uniform(seed: int, *key: object) -> float:
    """Return a number from 0 to below 1, the same for the same seed and key."""
    digest = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=7).digest()
    return int.from_bytes(digest) / (1 << 56)


def normal(mean: float, deviation: float, seed: int, *key: object) -> float:
    """Return a normally distributed number, the same for the same seed and key."""
    # The inverse is infinite at 0 and 1.
    share = min(max(uniform(seed, *key), 1e-9), 1 - 1e-9)
    return mean + deviation * NormalDist().inv_cdf(share)


def pick(items: Sequence[Item], seed: int, *key: object) -> Item:
    """Return one of the items, each with the same probability."""
    return items[int(uniform(seed, *key) * len(items))]
