"""Pure decisions: which workers a run with a deadline has next, and why.

- A step has a worth (`worth_of`): the price of the last of the remaining steps. That is a Spot
  worker's price if Spot capacity will suffice and the on-demand price if not, weighted by their
  probabilities. A Spot worker is added while its steps cost less than they are worth, start-up
  included. One is released when they cost more, the saved start-up included. So no change is undone
  by the next.
- On-demand VMs are requested before the moment at which they alone could no longer meet the
  deadline if all Spot VMs were preempted. For that, work counts up to the last durable save, speeds
  at their lower bound, and the start with its 99th percentile and the observed wait for on-demand
  capacity. The last save is part of the work. They are released when two starts are won. If only an
  unmeasured speed suffices, they are requested as soon as no Spot worker arrives that would measure
  more. Unsaved work is saved before they are requested.
- They are requested no earlier if Spot workers have room beside them. If they take all places,
  slack that was spent on waiting does not come back. Then a spell without capacity is waited for at
  most `patience` seconds, and on-demand VMs work until a Spot worker does. It starts beside them;
  this requires one won start.
- Money precedes time: on-demand VMs are not requested if the remaining money does not pay for the
  rest of the work.

Without room for both, Spot workers and on-demand VMs replace each other. Slack is the time left
beyond what the work takes on demand. Slack that is spent on waiting does not come back, because
on-demand VMs that work alone win none. Each loss of Spot capacity also costs slack: the wait, and
the start of the next workers. So slack is spread evenly over the expected losses, and is used up on
average. Many spells without capacity end soon, so each is waited for at first. Spells that last are
likely to continue, so none is waited for to its end unless the slack suffices for all.

Then on-demand VMs work until a Spot worker does, which starts beside them and so costs no slack.
Capacity is observed by requesting a worker: a refused request costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..spec import render_duration, render_money, render_small_money, render_workers
from .situation import ON_DEMAND, SPOT, Net, Situation, Workers, counts, seconds_of

# The price of more speed: how much dearer a step may be than with the cheapest number of workers.
_DEARER = 1.5
# Starts that must be won before on-demand VMs are released, and before a Spot worker replaces them.
_STARTS_WON = 2.0
_START_WON = 1.0
# The slack, as a share of the remaining time, with which an unmeasured speed is relied on.
_PATIENCE = 0.25
# The largest lasting drop of the speed for which time is reserved, if there was enough of it when
# training began.
_DROP = 0.1
# The share of the planned time that is spent on waiting for Spot before any is reserved.
_SPARE = 0.02


# The reasons for changes of workers, in one line each.


def needed_reason(workers: Workers, left: float, steps: int, ready: float, takes: float) -> str:
    """Return why on-demand VMs are requested in time."""
    return (
        f"{workers_text(workers)} from now on: {render_duration(left)} are left; the {steps:,} steps after the last "
        f"checkpoint take them up to {render_duration(takes)}, and their start {render_duration(ready)}"
    )


def slack_reason(workers: Workers, age: float, slack: float) -> str:
    """Return why on-demand VMs are requested while there is time to wait."""
    return (
        f"{workers_text(workers)} from now on: no Spot capacity for {render_duration(age)}, and the "
        f"remaining {render_duration(slack)} of slack are kept for later shortages"
    )


def beside_reason(before: Workers, after: Workers, worth: float, price: float, gpu: str) -> str:
    """Return why Spot workers start or stop beside on-demand VMs that take all places."""
    more = {key: count for key, count in after.items() if key not in before}
    if not more:
        return f"{workers_text(before)} alone: there is no time to return to Spot"
    return f"requesting {workers_text(more)} to replace {workers_text(before)}: {_worth_text(worth, price, gpu)}"


def trial_reason(workers: Workers) -> str:
    """Return why on-demand VMs are requested to measure their speed."""
    return f"{workers_text(workers)} from now on: only they may be fast enough, and their speed is not measured yet"


def release_reason(slack: float) -> str:
    """Return why on-demand VMs are released."""
    return f"no on-demand workers from now on: {render_duration(slack)} remain before they would have to start"


def unpaid_reason(money: float) -> str:
    """Return why on-demand VMs are released although time is short."""
    return f"no on-demand workers from now on: the remaining {render_money(max(money, 0.0))} do not pay for them"


def spot_reason(before: Workers, after: Workers, worth: float, price: float, gpu: str) -> str:
    """Return why the number of Spot workers changes."""
    return (
        f"{workers_text(after)} instead of {workers_text(before)}: {_worth_text(worth, price, gpu)}"
    )


def _worth_text(worth: float, price: float, gpu: str) -> str:
    value = render_small_money(worth)
    cost = render_small_money(price)
    return f"a step is worth {value}, and a Spot {gpu.upper()} makes one for {cost}"


def unmeasured_reason(workers: Workers) -> str:
    """Return why an on-demand VM is requested before any speed is measured."""
    return f"{workers_text(workers)} from now on: there is no Spot capacity, and the run's speed is not measured yet"


def limit_reason(run: str, dollars: float) -> str:
    """Return why a run ends at its money limit."""
    return f"stopping and saving {run}: its limit of {render_money(dollars)} is reached, whatever its deadline"


def workers_text(workers: Workers) -> str:
    """Return workers in words: `2 Spot T4s and 1 K80 on demand`."""
    return render_workers((gpu, terms, count) for (gpu, terms), count in workers.items() if count)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision.

    Attributes
    ----------
    workers
        The workers from now on.
    reason
        Why they change; '' if they do not.
    worth, price, gpu
        US dollars that a step is worth, what it costs on the cheapest Spot workers, and their GPU.
    late
        The end of the run (seconds since 1970) if it certainly misses the deadline, else 0.
    save
        Whether to save the work now.
    """

    workers: Workers
    reason: str = ""
    worth: float = 0.0
    price: float = 0.0
    gpu: str = ""
    late: float = 0.0
    save: bool = False


def decide(situation: Situation) -> Verdict:
    """Return the present verdict. Once its workers are requested, the verdict stays the same."""
    spots = {key: count for key, count in situation.workers.items() if key[1] == SPOT}
    if not situation.speeds.is_measured:
        alone = not situation.market.open and not situation.working
        first = next((kind for kind in situation.kinds if kind.on_demand is not None), None)
        if alone and first and sum(spots.values()) == sum(situation.workers.values()):
            one: Workers = {(first.gpu, ON_DEMAND): 1}
            return Verdict({**spots, **one}, unmeasured_reason(one))
        return Verdict(situation.workers)
    left = situation.deadline - situation.now - situation.end
    to_make = max(situation.steps - situation.unsaved, 0)
    net = _net(situation, left)
    slack = math.inf
    if net:
        slack = left - situation.begin - seconds_of(situation.steps, net.speed)
    holds = any(terms == ON_DEMAND for _, terms in situation.workers)
    crowded = net is not None and net.count >= situation.most and situation.overlaps
    margin = situation.period
    if holds:
        margin += (_START_WON if crowded else _STARTS_WON) * situation.begin
    short = holds and net is not None and _spare(situation, net, left) < margin
    due = (
        slack < margin
        or short
        or (net is not None and not net.measured and _must_measure(situation, slack, left))
    )
    early = net is not None and crowded and not due and is_early(situation, net, slack)
    base: Workers = {}
    if net and (due or early):
        base = {(net.gpu, ON_DEMAND): net.count}
    worth, price, gpu = worth_of(situation, net, left, to_make)
    if base and crowded:
        spots = beside(
            situation, worth, base, seeks=early and slack >= situation.period + situation.begin
        )
    elif situation.since >= situation.start:  # the last change has taken effect
        spots = spot(situation, worth, base, situation.most - sum(base.values()))
    workers = {**spots, **base}
    # These continue when the others have left.
    last = base if base and crowded else workers
    speed = situation.speeds.mean(counts(last))
    ready = situation.begun if holds else situation.begin
    soonest = min(
        seconds_of(to_make, situation.speeds.mean(counts(situation.working))),
        (
            ready + seconds_of(to_make, situation.speeds.mean({net.gpu: net.count}))
            if net
            else math.inf
        ),
        situation.start + seconds_of(to_make, speed),
    )
    reason = ""
    if workers != situation.workers:
        if base and not holds and net and not net.measured:
            reason = trial_reason(base)
        elif early and not holds:
            reason = slack_reason(base, situation.market.age, slack)
        elif base and not holds:
            reason = needed_reason(
                base, left, situation.steps, ready, left - situation.begin - slack
            )
        elif holds and not base:
            reason = unpaid_reason(situation.money)
            if net:
                reason = release_reason(slack)
        elif base and crowded:
            reason = beside_reason(base, workers, worth, price, gpu)
        else:
            reason = spot_reason(situation.workers, workers, worth, price, gpu)
    late = 0.0
    if soonest > left:
        late = situation.now + soonest + situation.end
    save = (
        not holds and situation.unsaved > 0 and slack < 2 * situation.period + situation.begin / 2
    )
    return Verdict(workers, reason, worth, price, gpu, late, save)


def _must_measure(situation: Situation, slack: float, left: float) -> bool:
    """Return whether it is time to measure on-demand VMs: the less is left, the shorter the wait."""
    requested = _spot_count(situation.workers)
    here = _spot_count(situation.working)
    begun = (
        here > 0
        and here == sum(situation.working.values())
        and not situation.speeds.has(counts(situation.working))
    )
    coming = (situation.market.open and here < requested) or begun
    return not coming or slack < _PATIENCE * left


def _spot_count(workers: Workers) -> int:
    return sum(count for (_, terms), count in workers.items() if terms == SPOT)


def _affordable(situation: Situation) -> list[tuple[float, str, int]]:
    """Return price of a step, GPU and number of on-demand workers that the money pays to the end."""
    found: list[tuple[float, str, int]] = []
    for kind in situation.kinds:
        if kind.on_demand is None:
            continue
        for count in range(1, situation.most + 1):
            mean = situation.speeds.mean({kind.gpu: count})
            if not mean:
                continue
            price = (situation.kept + count * kind.on_demand) / mean
            if price * situation.steps <= situation.money:
                found.append((price, kind.gpu, count))
    return found


def _net(situation: Situation, left: float) -> Net | None:
    """Return the on-demand workers that finish the run alone; None if none are affordable.

    These are the requested ones if they suffice. Otherwise it is the fastest choice whose steps
    cost little more than the cheapest; one that leaves as many places to Spot workers is preferred.
    If no measured speed suffices, the expected speed of other numbers of workers counts.
    """
    priced = _affordable(situation)
    if not priced:
        return None
    dearest = _DEARER * min(priced)[0]
    now = {gpu: count for (gpu, terms), count in situation.workers.items() if terms == ON_DEMAND}
    most = _after_drop(situation)

    def needs(net: Net) -> float:
        # A replacement for other VMs repeats what was made since the last save.
        begin = situation.begin
        steps = situation.steps
        if now.get(net.gpu) == net.count:
            begin = situation.begun
            steps = situation.steps - situation.unsaved
        return begin + seconds_of(steps, net.speed)

    nets: list[Net] = []
    for bound, measured in ((situation.speeds.least, True), (situation.speeds.likely, False)):
        nets = [
            Net(gpu, count, price, min(bound({gpu: count}), most), measured)
            for price, gpu, count in priced
        ]
        in_time = [net for net in nets if needs(net) <= left]
        cheap = [net for net in in_time if net.price <= dearest]
        if in_time:
            same = [net for net in cheap or in_time if now.get(net.gpu) == net.count]
            roomy = [net for net in cheap if 2 * net.count <= situation.most]
            return min(same or roomy or cheap or in_time, key=lambda net: (needs(net), net))
    cheap = [net for net in nets if net.price <= dearest or now.get(net.gpu) == net.count]
    # As fast as possible, and no slower than now.
    return max(cheap, key=lambda net: (net.speed, net))


def _spare(situation: Situation, net: Net, left: float) -> float:
    """Return the seconds left beyond the need of those on-demand workers that are requested first.

    These are workers that leave half of the places to Spot workers if their mean speed suffices,
    otherwise those of `net`. While their lower bound does not suffice, more workers stay. Otherwise
    a run that released them would wait for Spot until only the dearest could finish it.
    """
    most = _after_drop(situation)
    roomy = [
        seconds_of(situation.steps, min(situation.speeds.least({net.gpu: count}), most))
        for count in range(1, situation.most // 2 + 1)
        if situation.begin + seconds_of(situation.steps, situation.speeds.mean({net.gpu: count}))
        <= left
    ]
    return left - situation.begin - min(roomy, default=seconds_of(situation.steps, net.speed))


def _after_drop(situation: Situation) -> float:
    """Return steps per second of the fastest on-demand workers after a lasting drop of the speed.

    A drop d prolongs the rest by 1 / (1 - d) - 1. Time is reserved for it as far as the time at the
    beginning of training allowed.
    """
    fastest = max(
        (
            situation.speeds.mean({kind.gpu: situation.most})
            for kind in situation.kinds
            if kind.on_demand is not None
        ),
        default=0.0,
    )
    if not fastest or not situation.train_steps:
        return math.inf
    room = (
        situation.deadline - situation.end - situation.began
    ) * fastest / situation.train_steps - 1
    return fastest * max(1 - _DROP, min(1 / (1 + room - _SPARE), 1.0))


# The longest further wait before on-demand VMs are released, in units of the present spell or of a
# start.
_CALM = 2.0


def patience(situation: Situation, net: Net, slack: float) -> float:
    """Return the longest wait for a spell without capacity, in seconds.

    `slack` is in seconds, without the start of on-demand VMs.
    """
    work = seconds_of(situation.steps, net.speed)
    market = situation.market
    spare = max(slack - situation.begin, 0.0)  # on-demand VMs start once more in the end
    # A spell takes a start and `mean` seconds of slack. Between two spells Spot workers work, and
    # on-demand VMs in the rest of a spell. So work / (lasts - start + lacks - mean) spells are
    # expected, and at least one.
    cycle = max(market.lasts - situation.start, 0.0) + market.lacks
    mean = min(
        (spare * cycle - situation.start * work) / max(spare + work, 1e-9), spare - situation.start
    )
    return market.patience(max(mean, 0.0))


def is_early(situation: Situation, net: Net, slack: float) -> bool:
    """Return whether on-demand VMs work although there is time to wait for Spot."""
    if any(terms == SPOT for _, terms in situation.working):
        return False
    waits = patience(situation, net, slack)
    if any(terms == ON_DEMAND for _, terms in situation.workers):
        return situation.market.open or waits <= _CALM * max(situation.market.age, situation.begin)
    return not situation.market.open and waits <= situation.market.age


def beside(situation: Situation, worth: float, base: Workers, *, seeks: bool) -> Workers:
    """Return the Spot workers beside `base`, which takes all places.

    These are the working ones until `base` works; then, if `seeks`, one that can replace it.
    """
    here = {key: count for key, count in situation.working.items() if key[1] == SPOT}
    begun = sum(
        count for (_, terms), count in situation.working.items() if terms == ON_DEMAND
    ) >= sum(base.values())
    if here and not begun:
        return here
    if seeks:
        return spot(situation, worth, {}, 1)
    return {}


# What a step is worth at most, in Spot prices, if money or market offers none on demand.
_MOST = 10.0


def worth_of(
    situation: Situation, net: Net | None, left: float, to_make: int
) -> tuple[float, float, str]:
    """Return what a step is worth, and price and GPU of the cheapest Spot workers' steps."""
    dearer = 1 / max(1 - situation.start / situation.life, 0.1)
    price, gpu = min(
        (
            (situation.kept + count * kind.spot * dearer)
            / situation.speeds.mean({kind.gpu: count}),
            kind.gpu,
        )
        for kind in situation.kinds
        for count in range(1, situation.most + 1)
    )
    most = max(situation.speeds.mean({kind.gpu: situation.most}) for kind in situation.kinds)
    lacks = situation.market.lacking(to_make / (most * max(left, 1.0)), max(left, 1.0))
    without = min(situation.money / max(situation.steps, 1), _MOST * price)
    if net:
        without = net.price
    worth = price + lacks * max(without - price, 0.0)
    return worth, price, gpu


def spot(
    situation: Situation, worth: float, base: Workers, most: int
) -> dict[tuple[str, str], int]:
    """Return at most `most` Spot workers beside `base` whose steps cost less than their worth.

    The cheapest come first.
    """
    found: dict[tuple[str, str], int] = {}
    saved = min(situation.start / situation.life, 0.9)
    for _ in range(most):
        present = counts({**found, **base})
        best = (float("inf"), "")
        for kind in situation.kinds:
            larger = {**present, kind.gpu: present.get(kind.gpu, 0) + 1}
            more = situation.speeds.mean(larger) - situation.speeds.mean(present)
            key = kind.gpu, SPOT
            there = found.get(key, 0) < situation.workers.get(key, 0)
            per = kind.spot * (1 - saved if there else 1 / (1 - saved)) / max(more, 1e-12)
            best = min(best, (per, kind.gpu))
        if best[0] > worth * (1 + 1e-9):
            break
        found[best[1], SPOT] = found.get((best[1], SPOT), 0) + 1
    return found
