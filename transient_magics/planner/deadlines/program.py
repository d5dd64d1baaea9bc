"""Our policy: the program that knows its market's chain, solved for each, and the act that is best by belief.

Bellman's equation for one chain, backwards over the steps left: the least expected cost by work left, what is held, and
the spell's kind and class of age. A run does not know its chain; it takes the act whose cost, weighted by its belief in
each chain, is the least (QMDP: Littman, Cassandra and Kaelbling 1995), among those that the safety set allows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .chains import Belief, Chains
from .problem import ACTS, ON_DEMAND, SPOT, WAIT, Acts, Problem
from .running import Seen

Values = NDArray[np.float32]
_NEVER = np.float32(1e9)


def values(problem: Problem, chains: Chains, lost: float = 0.0) -> Values:
    """The least expected cost, in steps of Spot, `[left, held, open, class, chain, work]`: work left in whole steps.

    They hold for every shorter deadline and every smaller work, too. `lost`: how likely the Spot VM that is held is
    taken within a step in which the market stays open, as where zones are one market.
    """
    classes, count = chains.ends.shape[2], len(chains.weight)
    found = np.full((problem.deadline + 1, len(ACTS), 2, classes, count, int(np.ceil(problem.work)) + 1), _NEVER)
    found[0, ..., 0] = 0.0
    ends = np.moveaxis(chains.ends, 0, -1)[..., np.newaxis].astype(np.float32)
    grows = chains.grows[:, np.newaxis, np.newaxis].astype(np.float32)
    start, (kept, fee, price) = np.float32(problem.start), (np.float32(rate) for rate in problem.rates)
    for left in range(1, problem.deadline + 1):
        then, now = found[left - 1], found[left]
        older = np.concatenate([then[:, :, 1:], then[:, :, -1:]], axis=2)
        goes_on = then + grows * (older - then)
        expected = goes_on + ends * (then[:, ::-1, :1] - goes_on)
        begun = _after_start(expected, start)
        now[:] = np.minimum(kept + expected[WAIT], price + begun[ON_DEMAND])
        now[:, 1] = np.minimum(now[:, 1], fee + begun[SPOT, 1])
        now[SPOT, 1, ..., 1:] = np.minimum(now[SPOT, 1, ..., 1:], fee + expected[SPOT, 1, ..., :-1])
        now[ON_DEMAND, ..., 1:] = np.minimum(now[ON_DEMAND, ..., 1:], price + expected[ON_DEMAND, ..., :-1])
        now[..., 0] = 0.0
        now[SPOT, 1] += np.float32(lost) * (now[WAIT, 1] - now[SPOT, 1])
        np.minimum(now, _NEVER, out=now)
    return found


def _after_start(expected: Values, start: np.float32) -> Values:
    """What is expected after a first step, of which the part `start` makes nothing."""
    if start >= 1:
        return expected
    less = np.concatenate([expected[..., :1], expected[..., :-1]], axis=-1)
    return (start * expected + (1 - start) * less).astype(np.float32)


class Weighted:
    """The policy, for runs that begin together. `table`: `values` of this problem, or of one with more work and a later
    deadline."""

    def __init__(self, problem: Problem, chains: Chains, runs: int, table: Values | None = None) -> None:
        self._problem, self._chains = problem, chains
        self._table = values(problem, chains) if table is None else table
        self._belief = Belief(chains, runs)

    def __call__(self, seen: Seen) -> Acts:
        self._belief.see(seen.open)
        left = np.full(len(seen.work), seen.left)
        costs = np.stack([self._cost(seen, act) for act in ACTS])
        for act in (WAIT, SPOT):
            possible = self._problem.allowed(left, seen.work, seen.held, np.full(len(left), act))
            costs[act][~possible if act == WAIT else ~(possible & seen.open)] = np.inf
        return costs.argmin(axis=0)

    def _cost(self, seen: Seen, act: int) -> NDArray[np.float64]:
        """The belief's mean of what an act and all after it cost."""
        made = self._problem.made(seen.held, np.full(len(seen.work), act))
        work = np.maximum(seen.work - made, 0.0)
        low = np.floor(work + 1e-9).astype(int)
        share = np.clip(work - low, 0.0, 1.0)[:, np.newaxis]
        then = self._table[seen.left - 1, act]

        def expected(kind: NDArray[np.int64], age: NDArray[np.int64]) -> NDArray[np.float64]:
            near = then[kind, age, :, low].astype(float)
            if not share.any():
                return near
            return near + share * (then[kind, age, :, np.minimum(low + 1, then.shape[-1] - 1)] - near)

        belief, kind = self._belief, seen.open.astype(int)
        goes_on = expected(kind, self._chains.class_of(belief.age + 1))
        ends = expected(1 - kind, np.zeros_like(kind))
        mean = (belief.share * (goes_on + belief.ending() * (ends - goes_on))).sum(axis=1)
        return mean + self._problem.paid(seen.work, made) * self._problem.rates[act]
