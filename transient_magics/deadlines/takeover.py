"""How Spot workers and VMs on demand take over from each other where there is no room for both: pure.

Slack is the time that is left beyond what the work takes on demand. What is waited away of it does not come back: those
who work by themselves win none. Each time Spot capacity goes, some slack goes too: by waiting, and by the start of what
works next. It is spread evenly over the times that are still to come, so that all of it is used in the mean. As many
spells without capacity are over soon, each is waited for at first; as those that last are likely to go on, none is
waited for to its end unless there is slack for all of them.

Then VMs on demand work until a Spot worker does, which starts beside them, so that no slack goes. To ask for it is how
capacity is seen: a request that is refused costs nothing.
"""

from __future__ import annotations

from .pricing import spot
from .seen import ON_DEMAND, SPOT, Net, Seen, Workers, seconds_of

_CALM = 2.0  # times as long as a spell lasts already, or a start, it may last before VMs on demand go for its sake


def patience(seen: Seen, net: Net, slack: float) -> float:
    """Seconds that a spell without capacity is waited for at most; `slack` in seconds, a start on demand taken off."""
    work, market = seconds_of(seen.steps, net.speed), seen.market
    spare = max(slack - seen.begin, 0.0)  # VMs on demand start once more in the end
    # A spell takes a start and `mean` seconds of slack. Between two, Spot workers work, and those on demand for what
    # is left of the spell: work / (lasts - start + lacks - mean) of them are to come, and one at least.
    cycle = max(market.lasts - seen.start, 0.0) + market.lacks
    mean = min((spare * cycle - seen.start * work) / max(spare + work, 1e-9), spare - seen.start)
    return market.patience(max(mean, 0.0))


def is_early(seen: Seen, net: Net, slack: float) -> bool:
    """Whether VMs on demand work though there is time to wait: no Spot worker does, and none is waited for any more."""
    if any(terms == SPOT for _, terms in seen.working):
        return False
    waits = patience(seen, net, slack)
    if any(terms == ON_DEMAND for _, terms in seen.workers):
        return seen.market.open or waits <= _CALM * max(seen.market.age, seen.begin)
    return not seen.market.open and waits <= seen.market.age


def beside(seen: Seen, worth: float, base: Workers, *, seeks: bool) -> Workers:
    """The Spot workers beside `base`, which takes all places: those that work until it does, then one that is to take
    over from it, if any is (`seeks`)."""
    here = {key: count for key, count in seen.working.items() if key[1] == SPOT}
    begun = sum(count for (_, terms), count in seen.working.items() if terms == ON_DEMAND) >= sum(base.values())
    if here and not begun:
        return here
    return spot(seen, worth, {}, 1) if seeks else {}
