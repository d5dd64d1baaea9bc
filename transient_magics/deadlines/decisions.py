"""Which workers a run that has to be done in time has next, and why, as a pure function of what is
seen.

- A step is priced (`worth`): what the last of the steps that are left will cost, a Spot worker's
  price where Spot capacity will do, that on demand where it will not, weighted by how likely each
  is. A Spot worker is added while it makes steps for less than they are worth, its start-up
  included; one is given up when it makes them for more, its start-up saved included. So no change
  is undone by the next.
- In time: VMs on demand are taken before the moment from which they alone could no longer do it,
  should all that is Spot be taken at once. For that, work counts up to the last durable save,
  speeds at their lower bound, the start with its 99th percentile and with the waiting for capacity
  on demand that was seen; the last save is a part of the work. They are given up when two starts
  are won. Where only a speed that nobody measured promises it, they are taken as soon as no Spot
  worker comes that tells more, and so measured. What is not saved yet is saved before they are
  taken.
- They are taken no earlier than that where Spot workers have room beside them. Where they take all
  places, slack that was waited away does not come back: then no spell without capacity is waited
  for longer than its part (`patience`), and they work until a Spot worker does, which starts beside
  them; one start is to be won for that.
- Money wins over time: on demand is not taken where what is left to spend does not pay for the rest
  of the work.

Where there is no room for both, Spot workers and VMs on demand take over from each other. Slack is
the time that is left beyond what the work takes on demand. What is waited away of it does not come
back: those who work by themselves win none. Each time Spot capacity goes, some slack goes too: by
waiting, and by the start of what works next. It is spread evenly over the times that are still to
come, so that all of it is used in the mean. As many spells without capacity are over soon, each is
waited for at first; as those that last are likely to go on, none is waited for to its end unless
there is slack for all of them.

Then VMs on demand work until a Spot worker does, which starts beside them, so that no slack goes.
To ask for it is how capacity is seen: a request that is refused costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..spec import render_duration, render_money, render_small_money, render_workers
from .situation import ON_DEMAND, SPOT, Net, Situation, Workers, counts, seconds_of

_DEARER = (
    1.5  # a step on demand than by the cheapest number of workers: so much may more speed cost
)
# where VMs on demand go at once, and where a Spot worker takes over
_STARTS_WON = 2.0
_START_WON = 1.0
_PATIENCE = (
    0.25  # of what is left: so much slack there is while a speed is relied on that nobody measured
)
_DROP = 0.1  # the largest lasting drop of the speed for which time is kept, where there was enough from the beginning
_SPARE = 0.02  # of the planned time: so much is waited for Spot before any is kept


# Why the workers of a run with a deadline change, in one line each.


def needed_reason(workers: Workers, left: float, steps: int, ready: float, takes: float) -> str:
    """Why VMs on demand are taken."""
    return (
        f"{workers_text(workers)} from now on: {render_duration(left)} are left, and the {steps:,} steps behind the last "
        f"checkpoint take them up to {render_duration(takes)}, after {render_duration(ready)} to start"
    )


def slack_reason(workers: Workers, age: float, slack: float) -> str:
    """Why VMs on demand are taken while there is time to wait."""
    return (
        f"{workers_text(workers)} from now on: no Spot capacity for {render_duration(age)}, and the "
        f"{render_duration(slack)} that could be waited are kept for the next times"
    )


def beside_reason(before: Workers, after: Workers, worth: float, price: float, gpu: str) -> str:
    """Why a Spot worker is asked for beside VMs on demand that take all places, or is there no
    more.
    """
    more = {key: count for key, count in after.items() if key not in before}
    if not more:
        return f"{workers_text(before)} alone: there is no time to come back to Spot"
    return f"{workers_text(more)} asked for, to take over from {workers_text(before)}: {_worth_text(worth, price, gpu)}"


def trial_reason(workers: Workers) -> str:
    """Why VMs on demand are taken before it is time."""
    return f"{workers_text(workers)} from now on: only they may be fast enough, and how fast so many are is not measured yet"


def release_reason(slack: float) -> str:
    """Why VMs on demand go."""
    return f"none on demand any more: there are {render_duration(slack)} before they would have to start"


def unpaid_reason(money: float) -> str:
    """Why they go though time is short."""
    return f"none on demand any more: the {render_money(max(money, 0.0))} that are left do not pay for it"


def spot_reason(before: Workers, after: Workers, worth: float, price: float, gpu: str) -> str:
    """Why there are more Spot workers, or fewer."""
    return (
        f"{workers_text(after)} instead of {workers_text(before)}: {_worth_text(worth, price, gpu)}"
    )


def _worth_text(worth: float, price: float, gpu: str) -> str:
    worth_ = render_small_money(worth)
    price_ = render_small_money(price)
    return f"a step is worth {worth_}, and a Spot {gpu.upper()} makes one for {price_}"


def unmeasured_reason(workers: Workers) -> str:
    """Why a VM on demand is taken before any speed is known."""
    return f"{workers_text(workers)} from now on: there is no Spot capacity, and the run's speed is not measured yet"


def limit_reason(run: str, dollars: float) -> str:
    """Why a run is ended by its limit."""
    return f"{run} is ended and saved: its limit of {render_money(dollars)} is reached, whatever its deadline"


def workers_text(workers: Workers) -> str:
    """`2 Spot T4s and 1 K80 on demand`."""
    return render_workers((gpu, terms, count) for (gpu, terms), count in workers.items() if count)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`workers` from now on, for this `reason` (empty: as they are). `late`: when it ends if that
    is after the deadline for certain, else 0. `save`: the work so far has to be saved now.
    """

    workers: Workers
    reason: str = ""
    worth: float = 0.0
    price: float = 0.0
    gpu: str = ""
    late: float = 0.0
    save: bool = False


def decide(seen: Situation) -> Verdict:
    """The verdict of this moment. The same again once its workers are asked for."""
    spots = {key: count for key, count in seen.workers.items() if key[1] == SPOT}
    if not seen.speeds.known:
        alone = not seen.market.open and not seen.working
        first = next((kind for kind in seen.kinds if kind.on_demand is not None), None)
        if alone and first and sum(spots.values()) == sum(seen.workers.values()):
            one: Workers = {(first.gpu, ON_DEMAND): 1}
            return Verdict({**spots, **one}, unmeasured_reason(one))
        return Verdict(seen.workers)
    left = seen.deadline - seen.now - seen.end
    to_make = max(seen.steps - seen.unsaved, 0)
    net = _net(seen, left)
    if net:
        slack = left - seen.begin - seconds_of(seen.steps, net.speed)
    else:
        slack = math.inf
    holds = any(terms == ON_DEMAND for _, terms in seen.workers)
    crowded = net is not None and net.count >= seen.most and seen.overlaps
    margin = seen.period + ((_START_WON if crowded else _STARTS_WON) * seen.begin if holds else 0.0)
    short = holds and net is not None and _spare(seen, net, left) < margin
    due = (
        slack < margin
        or short
        or (net is not None and not net.measured and _to_be_measured(seen, slack, left))
    )
    early = net is not None and crowded and not due and is_early(seen, net, slack)
    if net and (due or early):
        base: Workers = {(net.gpu, ON_DEMAND): net.count}
    else:
        base = {}
    worth, price, gpu = worth_of(seen, net, left, to_make)
    if base and crowded:
        spots = beside(seen, worth, base, seeks=early and slack >= seen.period + seen.begin)
    elif seen.since >= seen.start:  # what was changed last has begun
        spots = spot(seen, worth, base, seen.most - sum(base.values()))
    workers = {**spots, **base}
    last = base if base and crowded else workers  # who goes on with it when others have left
    speed = seen.speeds.mean(counts(last))
    ready = seen.begun if holds else seen.begin
    soonest = min(
        seconds_of(to_make, seen.speeds.mean(counts(seen.working))),
        ready + seconds_of(to_make, seen.speeds.mean({net.gpu: net.count})) if net else math.inf,
        seen.start + seconds_of(to_make, speed),
    )
    reason = ""
    if workers != seen.workers:
        if base and not holds and net and not net.measured:
            reason = trial_reason(base)
        elif early and not holds:
            reason = slack_reason(base, seen.market.age, slack)
        elif base and not holds:
            reason = needed_reason(base, left, seen.steps, ready, left - seen.begin - slack)
        elif holds and not base:
            if net:
                reason = release_reason(slack)
            else:
                reason = unpaid_reason(seen.money)
        elif base and crowded:
            reason = beside_reason(base, workers, worth, price, gpu)
        else:
            reason = spot_reason(seen.workers, workers, worth, price, gpu)
    if soonest > left:
        late = seen.now + soonest + seen.end
    else:
        late = 0.0
    save = not holds and seen.unsaved > 0 and slack < 2 * seen.period + seen.begin / 2
    return Verdict(workers, reason, worth, price, gpu, late, save)


def _to_be_measured(seen: Situation, slack: float, left: float) -> bool:
    """Whether it is time to measure how fast VMs on demand are: the less is left, the less is
    waited for others.
    """
    asked, here = (
        sum(count for (_, terms), count in each.items() if terms == SPOT)
        for each in (seen.workers, seen.working)
    )
    begun = (
        here > 0
        and here == sum(seen.working.values())
        and not seen.speeds.has(counts(seen.working))
    )
    coming = (seen.market.open and here < asked) or begun
    return not coming or slack < _PATIENCE * left


def _net(seen: Situation, left: float) -> Net | None:
    """The workers on demand that bring it home by themselves; None: none may be had.

    Those that are asked for, where they do; else of those whose steps cost little more than the
    cheapest the fastest, that leave as many places to Spot workers, which alone can end it. Where
    measured speeds promise it of none, what they let expect of other numbers of workers counts.
    """
    priced = [
        (price, kind.gpu, count)
        for kind in seen.kinds
        if kind.on_demand is not None
        for count in range(1, seen.most + 1)
        if (mean := seen.speeds.mean({kind.gpu: count}))
        and (price := (seen.kept + count * kind.on_demand) / mean) * seen.steps <= seen.money
    ]
    if not priced:
        return None
    dearest = _DEARER * min(priced)[0]
    now = {gpu: count for (gpu, terms), count in seen.workers.items() if terms == ON_DEMAND}
    most = _after_drop(seen)

    def needs(net: Net) -> float:
        same = (
            now.get(net.gpu) == net.count
        )  # what VMs on demand make since the last save nobody takes
        if same:
            begin = seen.begun
            steps = seen.steps - seen.unsaved
        else:
            begin = seen.begin
            steps = seen.steps
        return begin + seconds_of(steps, net.speed)

    nets: list[Net] = []
    for bound, measured in ((seen.speeds.least, True), (seen.speeds.likely, False)):
        nets = [
            Net(gpu, count, price, min(bound({gpu: count}), most), measured)
            for price, gpu, count in priced
        ]
        in_time = [net for net in nets if needs(net) <= left]
        cheap = [net for net in in_time if net.price <= dearest]
        if in_time:
            kept = [net for net in cheap or in_time if now.get(net.gpu) == net.count]
            roomy = [net for net in cheap if 2 * net.count <= seen.most]
            return min(kept or roomy or cheap or in_time, key=lambda net: (needs(net), net))
    cheap = [net for net in nets if net.price <= dearest or now.get(net.gpu) == net.count]
    return max(
        cheap, key=lambda net: (net.speed, net)
    )  # as fast as it goes, and no slower than now


def _spare(seen: Situation, net: Net, left: float) -> float:
    """Seconds that are left beyond what such workers on demand need as are taken first.

    Those that leave half of the places to Spot workers, where their mean speed is enough; else the
    workers of `net`. While their lower bound is not enough, more workers hold on: else a run that
    gave them up would wait for Spot until only the dearest can bring it home.
    """
    most = _after_drop(seen)
    counts_ = range(1, seen.most // 2 + 1)
    roomy = [
        seconds_of(seen.steps, min(seen.speeds.least({net.gpu: count}), most))
        for count in counts_
        if seen.begin + seconds_of(seen.steps, seen.speeds.mean({net.gpu: count})) <= left
    ]
    return left - seen.begin - min(roomy, default=seconds_of(seen.steps, net.speed))


def _after_drop(seen: Situation) -> float:
    """Steps per second of the fastest workers on demand, should the speed drop now and for good.

    A drop d makes the rest take 1 / (1 - d) - 1 longer. Time is kept for it as far as the time that
    there was when training began allows.
    """
    fastest = max(
        (
            seen.speeds.mean({kind.gpu: seen.most})
            for kind in seen.kinds
            if kind.on_demand is not None
        ),
        default=0.0,
    )
    if not fastest or not seen.train_steps:
        return math.inf
    room = (seen.deadline - seen.end - seen.began) * fastest / seen.train_steps - 1
    return fastest * max(1 - _DROP, min(1 / (1 + room - _SPARE), 1.0))


_CALM = 2.0  # times as long as a spell lasts already, or a start, it may last before VMs on demand go for its sake


def patience(seen: Situation, net: Net, slack: float) -> float:
    """Seconds that a spell without capacity is waited for at most; `slack` in seconds, a start on
    demand taken off.
    """
    work = seconds_of(seen.steps, net.speed)
    market = seen.market
    spare = max(slack - seen.begin, 0.0)  # VMs on demand start once more in the end
    # A spell takes a start and `mean` seconds of slack. Between two, Spot workers work, and those
    # on demand for what is left of the spell: work / (lasts - start + lacks - mean) of them are to
    # come, and one at least.
    cycle = max(market.lasts - seen.start, 0.0) + market.lacks
    mean = min((spare * cycle - seen.start * work) / max(spare + work, 1e-9), spare - seen.start)
    return market.patience(max(mean, 0.0))


def is_early(seen: Situation, net: Net, slack: float) -> bool:
    """Whether VMs on demand work though there is time to wait: no Spot worker does, and none is
    waited for any more.
    """
    if any(terms == SPOT for _, terms in seen.working):
        return False
    waits = patience(seen, net, slack)
    if any(terms == ON_DEMAND for _, terms in seen.workers):
        return seen.market.open or waits <= _CALM * max(seen.market.age, seen.begin)
    return not seen.market.open and waits <= seen.market.age


def beside(seen: Situation, worth: float, base: Workers, *, seeks: bool) -> Workers:
    """The Spot workers beside `base`, which takes all places: those that work until it does, then
    one that is to take over from it, if any is (`seeks`).
    """
    here = {key: count for key, count in seen.working.items() if key[1] == SPOT}
    begun = sum(count for (_, terms), count in seen.working.items() if terms == ON_DEMAND) >= sum(
        base.values()
    )
    if here and not begun:
        return here
    if seeks:
        return spot(seen, worth, {}, 1)
    return {}


_MOST = 10.0  # times its price: what a step is worth at most where money or a market sells none on demand


def worth_of(
    seen: Situation, net: Net | None, left: float, to_make: int
) -> tuple[float, float, str]:
    """What a step is worth now, and for what the cheapest Spot workers make one, with which GPU."""
    dearer = 1 / max(1 - seen.start / seen.life, 0.1)
    price, gpu = min(
        ((seen.kept + count * kind.spot * dearer) / seen.speeds.mean({kind.gpu: count}), kind.gpu)
        for kind in seen.kinds
        for count in range(1, seen.most + 1)
    )
    most = max(seen.speeds.mean({kind.gpu: seen.most}) for kind in seen.kinds)
    lacks = seen.market.lacking(to_make / (most * max(left, 1.0)), max(left, 1.0))
    if net:
        without = net.price
    else:
        without = min(seen.money / max(seen.steps, 1), _MOST * price)
    worth = price + lacks * max(without - price, 0.0)
    return worth, price, gpu


def spot(seen: Situation, worth: float, base: Workers, most: int) -> dict[tuple[str, str], int]:
    """At `most` so many Spot workers beside `base` that make steps for less than they are worth,
    the cheapest first.
    """
    found: dict[tuple[str, str], int] = {}
    saved = min(seen.start / seen.life, 0.9)
    for _ in range(most):
        all_ = counts({**found, **base})
        best = (float("inf"), "")
        for kind in seen.kinds:
            more = seen.speeds.mean(
                {**all_, kind.gpu: all_.get(kind.gpu, 0) + 1}
            ) - seen.speeds.mean(all_)
            there = found.get((kind.gpu, SPOT), 0) < seen.workers.get((kind.gpu, SPOT), 0)
            per = kind.spot * (1 - saved if there else 1 / (1 - saved)) / max(more, 1e-12)
            best = min(best, (per, kind.gpu))
        if best[0] > worth * (1 + 1e-9):
            break
        found[best[1], SPOT] = found.get((best[1], SPOT), 0) + 1
    return found
