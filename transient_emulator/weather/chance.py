"""Random numbers that can be drawn again: each is a pure function of the seed and of what it is drawn for.

Nothing is consumed and nothing depends on the order of questions, so a weather that is read back after a kill -9 goes
on with the same numbers, and a run with the same seed meets the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from statistics import NormalDist
from typing import TypeVar

Item = TypeVar("Item")


def uniform(seed: int, *key: object) -> float:
    """A number from 0 to below 1, the same for the same seed and key."""
    digest = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=7).digest()
    return int.from_bytes(digest) / (1 << 56)


def normal(mean: float, deviation: float, seed: int, *key: object) -> float:
    """A normally distributed number, the same for the same seed and key."""
    return mean + deviation * NormalDist().inv_cdf(min(max(uniform(seed, *key), 1e-9), 1 - 1e-9))


def pick(items: Sequence[Item], seed: int, *key: object) -> Item:
    """One of the items, each as likely as any other."""
    return items[int(uniform(seed, *key) * len(items))]
