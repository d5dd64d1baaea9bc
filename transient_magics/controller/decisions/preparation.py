"""How many VMs prepare the mini-batches of a run: a pure function of what its workers were told to
wait for them.

A run begins with one; where others have all that the cluster may have, the one with the most gives
one back for it. While steps wait, as many again are added, up to what was asked for, once all that
there are have been at work for a while. When nobody has waited for longer, one is given back; a run
that then waits again keeps what it comes to have, so that VMs do not come and go in turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...journal import ClusterState, RunState
from ...spec import PREPARATION

WAITS = 0.10
NOBODY = 0.02
"""Shares of a step: from the first on it waits, below the second it does not."""
SETTLED_SECONDS = 10.0
ADD_AFTER = 2
GIVE_BACK_AFTER = 6
"""Tellings in a row, each of ten seconds."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """The run has these slots from now on, as its steps have waited for this share."""

    run: str
    slots: tuple[int, ...]
    waiting: float


def scaled(state: ClusterState) -> list[Scaled]:
    """What is to change. All runs together have no more VMs than the cluster may have for it."""
    found: list[Scaled] = []
    number = max(state.preparers, default=-1) + 1
    runs = list(preparing(state))
    room = (state.spec.preparation if state.spec else 0) - sum(
        len(run.preparation.slots) for run in runs
    )
    begins = any(not run.preparation.slots for run in runs)
    richest = max(runs, key=lambda run: len(run.preparation.slots), default=None)
    for run in runs:
        have = run.preparation.slots
        told = _waited(state, run)
        wanted = min(
            count(len(have), run.spec.preparers, run.preparation.least, told),
            len(have) + max(room, 0),
        )
        if begins and room <= 0 and run is richest and len(have) > 1:
            wanted = len(have) - 1  # one that begins has one of them
        room -= max(wanted - len(have), 0)
        if wanted == len(have):
            continue
        more = max(wanted - len(have), 0)
        found.append(
            Scaled(
                run.name, (*have[:wanted], *range(number, number + more)), told[-1] if told else 0.0
            )
        )
        number += more
    return found


def preparing(state: ClusterState) -> Iterable[RunState]:
    """The runs that have VMs prepare their mini-batches now."""
    return (
        run for run in state.turns if run.spec.preparers and state.has_begun(run) and not run.made
    )


def count(have: int, most: int, least: int, told: Sequence[float]) -> int:
    """How many there are to be, where these shares were waited for since all that there are were at
    work.
    """
    if not have:
        return 1
    if have < most and len(told) >= ADD_AFTER and min(told[-ADD_AFTER:]) >= WAITS:
        return min(2 * have, most)
    if have > least and len(told) >= GIVE_BACK_AFTER and max(told[-GIVE_BACK_AFTER:]) < NOBODY:
        return have - 1
    return have


def _waited(state: ClusterState, run: RunState) -> list[float]:
    """What was told since all of the run's VMs were at work; nothing while one of them is not
    there.
    """
    ready = {
        vm.slot: vm.ready_at
        for vm in state.serving
        if vm.role == PREPARATION and vm.state == "ready"
    }
    known = run.preparation
    if any(slot not in ready for slot in known.slots):
        return []
    since = max([known.since, *(ready[slot] for slot in known.slots)]) + SETTLED_SECONDS
    return [share for at, share in known.waited if at >= since]
