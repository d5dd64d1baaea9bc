"""How likely a run with a deadline is in time, and when it ends: pure."""

from __future__ import annotations

from statistics import NormalDist

from .seen import ON_DEMAND, Net, Seen, Workers, counts, seconds_of

_SURE, _TAIL = 0.99, 1.645  # nothing is told as surer; deviations of a band that nine of ten fall into


def outlook(
    seen: Seen, net: Net | None, workers: Workers, left: float, to_make: int, ready: float
) -> tuple[float, tuple[float, float]]:
    """How likely it is in time, and between which moments it ends."""
    whole, off = seen.speeds.mean(counts(workers)), min(_TAIL * seen.speeds.error, 0.9)
    firm = seen.speeds.mean(counts({key: count for key, count in workers.items() if key[1] == ON_DEMAND}))
    mean, deviation = seen.market.share(max(left, 1.0))
    shares = [min(max(mean + sign * _TAIL * deviation, 0.0), 1.0) for sign in (1, -1)]
    fast, slow = (
        (firm + (whole - firm) * share) * (1 + sign * off) for share, sign in zip(shares, (1, -1), strict=True)
    )
    low, high = seen.now + seconds_of(to_make, fast), seen.now + seconds_of(to_make, slow)
    if net and seen.acts:
        speed = seen.speeds.mean({net.gpu: net.count})
        needed = to_make / max(left - ready, 1e-3)
        chance = 1 - NormalDist(speed, max(speed * seen.speeds.error, 1e-12)).cdf(needed)
        high = min(high, max(seen.deadline, seen.now + ready + seconds_of(to_make, speed * (1 - off))))
    else:
        chance = 1 - seen.market.lacking(to_make / max(whole * left, 1e-3), max(left, 1.0))
    return min(chance, _SURE), (min(low, high), min(high, 1e11))
