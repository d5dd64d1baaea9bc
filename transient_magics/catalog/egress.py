"""What the network of a machine carries at most: Compute Engine's limits on what a VM sends within its network.

By family and number of vCPUs, without the extra tier. The figure of n1-standard-8 was found in Google's pages in 2026;
the others were not looked up. They decide only whether runs may begin beside each other. What a VM receives has no
limit of its own there; it is taken to be the same.
"""

from __future__ import annotations

_GBIT = 1e9 / 8
# By family: from so many vCPUs on, so many Gbit/s.
_EGRESS: dict[str, tuple[tuple[int, float], ...]] = {
    "n1": ((1, 2), (2, 10), (8, 16), (16, 32)),
    "n2": ((2, 10), (8, 16), (16, 32)),
    "e2": ((1, 1), (2, 4), (4, 8), (8, 16)),
}


def egress(family: str, vcpus: int) -> float:
    """Bytes per second that a VM may send; of a family that is not known, what the slowest of them may."""
    steps = _EGRESS.get(family) or min(_EGRESS.values(), key=lambda each: each[-1][1])
    return max(rate for least, rate in steps if vcpus >= least or least == steps[0][0]) * _GBIT
