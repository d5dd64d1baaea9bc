"""What went on beside a measure of stalls, so that it tells of these circumstances and not of its
VMs: pure.
"""

from __future__ import annotations

import math

from ...journal import ClusterState, RunState
from ...protocol.machines import WHOLE, Share
from .. import text


def disturbances(state: ClusterState, run: RunState) -> list[str]:
    """A sentence for each other run that went on meanwhile, and each VM that was deflated, or
    stopped and started.
    """
    if not run.measured:
        return []
    since = run.started_at
    until = run.ended_at or math.inf
    said = [
        f"{other.name} ran on this cluster meanwhile: what it takes of parameter servers and links is in network "
        "and contention"
        for other in state.of(RunState).values()
        if other.name != run.name
        and other.started_at
        and _overlap(other.started_at, other.ended_at, since, until)
    ]
    took = {name for each in run.measured for name in each.seconds}
    for name, vm in state.vms.items():
        if name in took or vm.role == "ps":
            if any(since < stretch.since < until for stretch in vm.stretches[1:]):
                said.append(f"{name} was stopped and started again while it was measured")
            least = _least(vm.shares, since, until)
            if not least.whole:
                said.append(f"{name} had {text.share_words(least)} while it was measured")
    return said


def _overlap(began: float, ended: float, since: float, until: float) -> bool:
    return began < until and (ended or math.inf) > since


def _least(shares: tuple[tuple[float, Share], ...], since: float, until: float) -> Share:
    """The least that a VM had of itself in that time, by the moments from which on it had so much."""
    least = WHOLE
    for number, (at, share) in enumerate(shares):
        if number + 1 < len(shares):
            ended = shares[number + 1][0]
        else:
            ended = math.inf
        if _overlap(at, ended, since, until):
            least = least.least_of(share)
    return least
