"""How likely a run with a deadline is in time, and when it ends: simulated, by the decisions that
govern it. Pure.

Each course continues from what is seen: capacity comes and goes as it may by what was met of it,
and VMs that start take their time. The speed is as far off as its error says, VMs that take over
differ from those that were measured, and so do other numbers of workers. Spells with capacity are
exponential and those without have Lomax's distribution (see `market`). How long they are in the
mean is uncertain, with a gamma prior on their rate.
"""

from __future__ import annotations

import math
import random
import statistics
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..journal.deadlines import DeadlineState
from .decisions import Verdict, decide
from .seen import LASTS, ON_DEMAND, PRIOR_SPELLS, SPOT, Market, Seen, counts, seconds_of
from .world import Capacity, Vm, World

COURSES = 200
"""How many make a band."""
_DECISIONS = 120  # in what is left: a controller decides far more often
# a chance is never shown as surer; the share of courses that end on either side of a band
_SURE = 0.99
_TAIL = 0.05
_LATEST = 4.0  # times as long as it may take: a course that is not done by then ends at `FAR`
_HELD = 0.03  # a worker makes others' steps longer by this share: four in the mean of CM-DARE's rows (ICDCS 2020)
FAR = 1e11
"""When a course ends whose end is not simulated: seconds since 1970."""


def end(seen: Seen, chance: random.Random) -> float:
    """When the run ends, in one course that may come of this."""
    return next(moment for moment in course(seen, chance) if moment is not None)


def course(seen: Seen, chance: random.Random) -> Iterator[float | None]:
    """Simulate a course period by period: None after each, and at last the end.

    A course of many workers takes longer than a controller may be busy with it at once.
    """
    span = _span(seen)
    # The measured speed is that of the mean of the measured VMs: others differ from each other, and
    # from that mean.
    measured = [_effect(seen, chance) for _ in range(max(seen.speeds.vms, 1))]
    rest = max(
        seconds_of(
            seen.steps - seen.unsaved, seen.speeds.mean(counts(seen.working or seen.workers))
        ),
        1.0,
    )
    faster = math.exp(seen.speeds.drift(rest) * chance.gauss(0, 1))
    speeds = seen.speeds.scaled(faster, min(chance.expovariate(1 / _HELD), 0.5))
    usual = math.exp(-statistics.fmean(measured))

    def speed(workers: Mapping[str, int]) -> float:
        return usual * speeds.mean(workers)

    def unchanged(later: Seen) -> Verdict:
        return Verdict(later.workers)

    world = World(
        capacity=_capacity(seen, span, chance),
        deadline=seen.deadline,
        work=seen.steps,
        speed=speed,
        kinds=seen.kinds,
        declared=seen.workers,
        most=seen.most,
        kept=seen.kept,
        begin=seen.begin,
        save=seen.end / 2,
        period=max(span / _DECISIONS, seen.period),
        money=seen.money,
        rate=LASTS / seen.life,
        varies=0.0,
        differ=seen.speeds.differ,
        speeds=speeds,
        overlaps=seen.overlaps,
        seed=chance.getrandbits(32),
        decide=decide if seen.acts else unchanged,
        now=seen.now,
        latest=seen.now + _LATEST * span,
        step=seen.unsaved,
        since=seen.since,
        vms=_vms(seen, measured, chance),
        market=seen.market,
        known=DeadlineState(began=(seen.began, seen.steps - seen.train_steps)),
    )
    yield from world.periods()
    yield world.now if world.step >= world.work else FAR


def band(ends: Sequence[float], deadline: float) -> tuple[float, tuple[float, float]]:
    """How many of these courses are in time, as a share, and between which moments nine of ten end."""
    ordered = sorted(ends)
    # One more of n lies between the k-th and the k-th last with the probability (n + 1 - 2 k) / (n
    # + 1).
    outer = max(round(_TAIL * (len(ordered) + 1)), 1)
    in_time = sum(end <= deadline for end in ordered) / len(ordered)
    return min(in_time, _SURE), (ordered[outer - 1], ordered[-outer])


def _span(seen: Seen) -> float:
    """Seconds until the deadline, or for all that is left to make where that is longer."""
    fastest = max(seen.speeds.mean({kind.gpu: seen.most}) for kind in seen.kinds)
    return max(seen.deadline - seen.now, seen.begin + seconds_of(seen.steps, fastest))


def _effect(seen: Seen, chance: random.Random) -> float:
    """How much a VM adds to the logarithmic speed."""
    return seen.speeds.differ * chance.gauss(0, 1)


def _vms(seen: Seen, measured: Sequence[float], chance: random.Random) -> list[Vm]:
    """The VMs that are there, which are of those that were `measured`, and those that come."""
    found: list[Vm] = []
    effects = iter(measured)
    for kind, count in seen.workers.items():
        here = min(seen.working.get(kind, 0), count)
        for _ in range(here):
            effect = next(effects, None)
            if effect is None:
                effect = _effect(seen, chance)
            found.append(Vm(kind, seen.now, seen.now, math.exp(effect)))
        for _ in range(count - here):
            factor = math.exp(_effect(seen, chance))
            if kind[1] == ON_DEMAND and seen.begun < seen.begin:
                found.append(
                    Vm(kind, seen.now + seen.begun, seen.now - seen.begin + seen.begun, factor)
                )
            elif kind[1] == SPOT and seen.market.open:
                found.append(Vm(kind, seen.now + seen.start, seen.now, factor))
    return found


def _capacity(seen: Seen, span: float, chance: random.Random) -> Capacity:
    """Spot capacity from now on."""
    market = seen.market
    at = seen.now
    opened = seen.market.open
    # The prior of a rate has the shape 1, for markets differ: the chains of `prior.csv` have mean
    # spells of 0.5 to 9 h with capacity, and of 0.5 to 15 h without.
    lasts = (
        market.lasts
        * market.spells[0]
        / chance.gammavariate(market.spells[0] - PRIOR_SPELLS + 1, 1.0)
    )
    lacks = (
        market.lacks
        * market.spells[1]
        / chance.gammavariate(market.spells[1] - PRIOR_SPELLS + 1, 1.0)
    )
    changes: list[float] = []
    until = seen.now + _LATEST * span
    age = market.age
    while at < until:
        at += chance.expovariate(1 / lasts) if opened else _lacking(lacks, age, chance)
        changes.append(at)
        opened = not opened
        age = 0.0
    return _alternating(market, changes, seen.most + 1)


def _lacking(mean: float, age: float, chance: random.Random) -> float:
    """Seconds that a spell without capacity takes on from an age: Lomax, with the shape 3/2."""
    return (mean / 2 + age) * ((1 - chance.random()) ** (-2 / 3) - 1)


def _alternating(market: Market, changes: Sequence[float], most: int) -> Callable[[float], int]:
    return lambda now: most if (bisect(changes, now) % 2 == 0) == market.open else 0
