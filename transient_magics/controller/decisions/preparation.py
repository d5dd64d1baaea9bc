"""Decide how many VMs prepare the mini-batches of a run: a pure function of its workers' waits.

A run begins with one VM. If other runs have all that the cluster may have, the run with the most
gives one up for it. While steps wait, the number is doubled, up to the requested one, each time the
present VMs have worked for a while. When no worker has waited for longer, one VM is given up. A run
that then waits again keeps the number that it gets, so that VMs do not come and go in turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...journal import ClusterState, RunState
from ...spec import PREPARATION

WAITS = 0.10
NO_WAITS = 0.02
"""Shares of a step: at the first or more the run waits, below the second it does not."""
SETTLED_SECONDS = 10.0
ADD_AFTER = 2
GIVE_BACK_AFTER = 6
"""Reports in a row, ten seconds apart, before a VM is given up."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """New slots of a run, whose steps have waited for this share."""

    run: str
    slots: tuple[int, ...]
    waiting: float


def scaled(state: ClusterState) -> list[Scaled]:
    """Return the changes. Together, runs have at most the VMs for preparation of the cluster."""
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
        waited = _waited(state, run)
        target = min(
            count(len(have), run.spec.preparers, run.preparation.least, waited),
            len(have) + max(room, 0),
        )
        if begins and room <= 0 and run is richest and len(have) > 1:
            # A run that begins gets one of them.
            target = len(have) - 1
        room -= max(target - len(have), 0)
        if target == len(have):
            continue
        more = max(target - len(have), 0)
        found.append(
            Scaled(
                run.name,
                (*have[:target], *range(number, number + more)),
                waited[-1] if waited else 0.0,
            )
        )
        number += more
    return found


def preparing(state: ClusterState) -> Iterable[RunState]:
    """Return the runs that have VMs prepare their mini-batches now."""
    return (
        run for run in state.turns if run.spec.preparers and state.has_begun(run) and not run.made
    )


def count(have: int, most: int, least: int, waited: Sequence[float]) -> int:
    """Return the number of VMs to have, given the shares waited since the present ones work."""
    if not have:
        return 1
    if have < most and len(waited) >= ADD_AFTER and min(waited[-ADD_AFTER:]) >= WAITS:
        return min(2 * have, most)
    if (
        have > least
        and len(waited) >= GIVE_BACK_AFTER
        and max(waited[-GIVE_BACK_AFTER:]) < NO_WAITS
    ):
        return have - 1
    return have


def _waited(state: ClusterState, run: RunState) -> list[float]:
    """Return the shares reported since all of the run's VMs work; empty if one is missing."""
    ready = {
        vm.slot: vm.ready_at
        for vm in state.serving
        if vm.role == PREPARATION and vm.state == "ready"
    }
    preparation = run.preparation
    if any(slot not in ready for slot in preparation.slots):
        return []
    since = max([preparation.since, *(ready[slot] for slot in preparation.slots)]) + SETTLED_SECONDS
    return [share for at, share in preparation.waited if at >= since]
