"""Places for workers: one on the VM of each slot, or several on one that trials of a study share (`--per-vm`).

A place is a number. The first one of a slot has the slot's own, and each further one lies `_APART` higher, so that who
knows of no shared VMs reads the first places as the slots that they are.
"""

from __future__ import annotations

from ..protocol.study import MOST_PER_VM

_APART = 100_000
"""More than slots there are."""


def place(slot: int, number: int) -> int:
    """The `number`-th place, from 0 on, on the VM in a slot."""
    return slot + number * _APART


def places(slot: int) -> list[int]:
    """All that there can be on it."""
    return [place(slot, number) for number in range(MOST_PER_VM)]


def slot_of(place: int) -> int:
    """The slot in whose VM a place is."""
    return place % _APART
