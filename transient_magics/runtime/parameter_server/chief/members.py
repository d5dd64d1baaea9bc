"""A worker of a run as its chief knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Member:
    """A worker with a number. It is active from its first gradient until it leaves or falls silent."""

    name: str
    number: int
    connection: int | None
    heard: float
    active: bool = False
    lost: bool = False
    stepped: bool = False
    """It made a step, with this chief or the one before: it trains on when it is heard again."""
    noticed: bool = False
    """Its VM is under notice, and another one may be on its way into its place."""
    accelerator: str = ""
    speed: float = 0.0
