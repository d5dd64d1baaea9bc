"""What a step is worth now, and which Spot workers make steps for less: pure."""

from __future__ import annotations

from .seen import SPOT, Net, Seen, Workers, counts

_MOST = 10.0  # times its price: what a step is worth at most where money or a market sells none on demand


def worth_of(seen: Seen, net: Net | None, left: float, to_make: int) -> tuple[float, float, str]:
    """What a step is worth now, and for what the cheapest Spot workers make one, with which GPU."""
    dearer = 1 / max(1 - seen.start / seen.life, 0.1)
    price, gpu = min(
        ((seen.kept + count * kind.spot * dearer) / seen.speeds.mean({kind.gpu: count}), kind.gpu)
        for kind in seen.kinds
        for count in range(1, seen.most + 1)
    )
    most = max(seen.speeds.mean({kind.gpu: seen.most}) for kind in seen.kinds)
    lacks = seen.market.lacking(to_make / (most * max(left, 1.0)), max(left, 1.0))
    without = net.price if net else min(seen.money / max(seen.steps, 1), _MOST * price)
    worth = price + lacks * max(without - price, 0.0)
    return worth, price, gpu


def spot(seen: Seen, worth: float, base: Workers, most: int) -> dict[tuple[str, str], int]:
    """At `most` so many Spot workers beside `base` that make steps for less than they are worth, the cheapest first."""
    found: dict[tuple[str, str], int] = {}
    saved = min(seen.start / seen.life, 0.9)
    for _ in range(most):
        all_, best = counts({**found, **base}), (float("inf"), "")
        for kind in seen.kinds:
            more = seen.speeds.mean({**all_, kind.gpu: all_.get(kind.gpu, 0) + 1}) - seen.speeds.mean(all_)
            there = found.get((kind.gpu, SPOT), 0) < seen.workers.get((kind.gpu, SPOT), 0)
            per = kind.spot * (1 - saved if there else 1 / (1 - saved)) / max(more, 1e-12)
            best = min(best, (per, kind.gpu))
        if best[0] > worth * (1 + 1e-9):
            break
        found[best[1], SPOT] = found.get((best[1], SPOT), 0) + 1
    return found
