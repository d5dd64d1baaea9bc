"""Measured markets, policies for one VM's work within a deadline, and the optimum: what `bench_deadline.py` compares.

Time is a grid of steps. At the beginning of each step a policy sees whether the zone has a Spot VM, and waits, takes
Spot or takes on demand. A VM other than the one that is held first starts: `start` of its first step is paid and makes
nothing. A Spot VM is held until the step at whose beginning the zone has none.

Never late is an induction. A state is safe if on demand alone, taken now, finishes the work in time. An act is allowed
if all its successors are safe, above all the worst, where whatever is Spot is taken. Taking on demand is always allowed
in a safe state. So from a safe state on nothing is ever late. The conditions: on demand there is a VM, it works within
`start`, at the speed that is counted with (the lower bound of the measured), and work that is counted as done is saved
durably.

`Greedy` and `UniformProgress` follow "Can't Be Late" (Wu et al., NSDI 2024). R(t) is the time left, C(t) the work left,
d the start. Uniform Progress takes on demand when it is idle and behind the straight line from nothing to all of the
work at the deadline; it takes Spot whenever there is some and stays on it; from on demand it goes to Spot once it is
ahead of where the line is in 2d; when R < C + 2d it stays on demand.

`Weighted` solves Bellman's equation for each chain of a mixture, backwards over the steps left: the least expected cost
by work left, what is held, and the spell's kind and class of age. A run does not know its chain; it takes the act whose
cost, weighted by its belief in each chain, is the least (QMDP: Littman, Cassandra and Kaelbling 1995), among those that
the safety set allows. A belief follows the run's own past, and forgets towards the mixture (`MEMORY`).

The mixture of chains, which plans draw markets from (`planner/deadlines/prior.csv`), is learnt here by
expectation-maximisation from stretches of measured markets (`learnt`).

`optimum` is the clairvoyant bound: what a run would have cost that knew its window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from transient_magics.catalog.traces import Trace
from transient_magics.errors import PlanError
from transient_magics.planner.deadlines.cost import AGES, GRID, Chains, Open

WAIT, SPOT, ON_DEMAND = 0, 1, 2
"""What is held, and what an act takes for the next step."""
ACTS = (WAIT, SPOT, ON_DEMAND)
MEMORY = 240
"""Steps, two days of them: each step the belief goes so much closer to the mixture."""
Acts = NDArray[np.int64]
Values = NDArray[np.float32]
_Floats = NDArray[np.float64]
_ROUNDING = 1e-9
_NEVER = np.float32(1e9)
CHAINS = 8
STRETCH = 240
"""Steps of a stretch that is learnt from as of one chain."""
_PRIOR_SPELLS = 4.0  # of the mean of all chains, with which each chain begins
_ROUNDS = 300
_SETTLED = 1e-6
_AT_ONCE = 32  # windows of the optimum: what fits into a processor's cache


@dataclass(frozen=True)
class Windows:
    """Stretches of equal length. `open[i, t]`: whether window i has a Spot VM at the beginning of step t; `trace[i]`,
    `day[i]`: which trace it is of, and the day of it on which it begins."""

    open: Open
    trace: NDArray[np.int64]
    day: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.open)


def sampled(trace: Trace, vms: int = 1, grid: float = GRID) -> Open:
    """Whether the zone has `vms` VMs, at the beginning of each step from the trace's start to its end."""
    moments = np.arange(int(trace.end // grid)) * grid
    numbers = np.array(trace.numbers)
    return numbers[np.searchsorted(trace.seconds, moments, side="right") - 1] >= vms


def windows(series: Sequence[Open], steps: int, every: int) -> Windows:
    """Windows of `steps` steps that begin every `every` steps of each series. Raises PlanError where none fits."""
    begins = [(index, start) for index, values in enumerate(series)
              for start in range(0, len(values) - steps + 1, every)]  # fmt: skip
    if not begins:
        raise PlanError(f"All traces are shorter than {steps * GRID / 3600:g} hours", fix="Use longer traces.")
    return Windows(
        np.array([series[index][start : start + steps] for index, start in begins]),
        np.array([index for index, _ in begins]),
        np.array([int(start * GRID // 86400) for _, start in begins]),
    )


def as_table(chains: Chains, source: str) -> str:
    """The text of such a file; `source`: what it was learnt from, in a line."""
    rows = [f"# {source}", "chain,weight,open,from_age,ends"]
    for (k, kind, c), chance in np.ndenumerate(chains.ends):
        rows.append(f"{k},{chains.weight[k]:.5f},{kind},{AGES[c]},{chance:.5f}")
    return "\n".join(rows) + "\n"


def learnt(series: Sequence[Open], chains: int = CHAINS) -> Chains:
    """A mixture of so many chains from availability elsewhere. Raises PlanError where there is too little of it."""
    told = [_told(part) for each in series for part in np.array_split(each, max(round(len(each) / STRETCH), 1))]
    if len(told) < 2 * chains:
        raise PlanError(f"{len(told)} stretches of {STRETCH} steps do not tell {chains} chains apart",
                        fix="Learn from more or longer traces.")  # fmt: skip
    ended, stayed = np.array([each[0] for each in told]), np.array([each[1] for each in told])
    order = np.argsort(stayed[:, 1].sum(1) / (stayed.sum((1, 2)) + 1), kind="stable")
    shares = np.zeros((len(told), chains))
    shares[order, np.arange(len(told)) * chains // len(told)] = 1.0  # begin with how open they are
    for _ in range(_ROUNDS):
        found = _mixture(shares, ended, stayed)
        fits = np.tensordot(ended, np.log(found.ends), ((1, 2), (1, 2))) + np.log(found.weight)
        fits += np.tensordot(stayed, np.log1p(-found.ends), ((1, 2), (1, 2)))
        before, shares = shares, np.exp(fits - fits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        if np.abs(shares - before).max() < _SETTLED:
            break
    return _mixture(shares, ended, stayed)


def _mixture(shares: _Floats, ended: _Floats, stayed: _Floats) -> Chains:
    """The chains, given which share of each stretch is of which; each begins with a few spells like the mean of all."""
    mean = (ended.sum(0) + 1) / (ended.sum(0) + stayed.sum(0) + 2)
    up, down = np.tensordot(shares.T, ended, 1), np.tensordot(shares.T, stayed, 1)
    weight = shares.sum(0) + 1
    return Chains(weight / weight.sum(), (up + _PRIOR_SPELLS * mean) / (up + down + _PRIOR_SPELLS))


def _told(series: Open) -> tuple[_Floats, _Floats]:
    """How often spells of each kind and class ended within a step, and how often they went on."""
    age = np.ones(len(series), int)
    for step in range(1, len(series)):
        age[step] += age[step - 1] if series[step] == series[step - 1] else 0
    ended = series[1:] != series[:-1]
    counts = np.zeros((2, 2, len(AGES)))
    np.add.at(counts, (ended.astype(int), series[:-1].astype(int), np.searchsorted(AGES, age[:-1], "right") - 1), 1)
    return counts[1], counts[0]


@dataclass(frozen=True)
class Problem:
    """`work` steps of work within `deadline` steps; `price`: of on demand, where that of Spot is 1; `start`: the part
    of a step, up to 1, until a new VM works; `fragile`: whether a Spot VM that is taken takes its step's work along;
    `kept`: what a step costs besides until the work is done, as parameter servers do.

    Raises PlanError where on demand alone would be late.
    """

    work: float
    deadline: int
    price: float = 3.0
    start: float = 1.0
    fragile: bool = False
    kept: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.start <= 1 and self.work > 0 and self.price > 0 and self.kept >= 0):
            raise PlanError("A deadline needs work, a price, and a start of at most one step",
                            fix="Take a coarser grid.")  # fmt: skip
        if self.deadline < self.least:
            raise PlanError(f"The work takes {self.least} steps on demand, and the deadline leaves {self.deadline}")

    @cached_property
    def least(self) -> int:
        """The nearest deadline that can be met, in steps."""
        return int(np.ceil(self.work + self.start - _ROUNDING))

    @property
    def all_on_demand(self) -> float:
        """What the work costs on demand alone, in steps of Spot."""
        return self.rates[ON_DEMAND] * (self.work + self.start)

    @property
    def rates(self) -> tuple[float, float, float]:
        """What a step costs, by act."""
        return self.kept, self.kept + 1.0, self.kept + self.price

    def safe(self, left: Acts, work: _Floats, held: Acts) -> NDArray[np.bool_]:
        """Whether on demand alone, with `left` steps and `work` left, is in time."""
        needed = work + np.where(held == ON_DEMAND, 0.0, self.start)
        return (work <= _ROUNDING) | (left >= needed - _ROUNDING)

    def made(self, held: Acts, act: Acts) -> _Floats:
        """The work of a step in which nothing is taken."""
        return np.where(act == WAIT, 0.0, np.where(act == held, 1.0, 1.0 - self.start))

    def paid(self, work: _Floats, made: _Floats) -> _Floats:
        """Which part of a step is paid for where a VM is held: all, but for the last one, which ends with the work."""
        return np.minimum(work + 1.0 - made, 1.0)

    def allowed(self, left: Acts, work: _Floats, held: Acts, act: Acts) -> NDArray[np.bool_]:
        """Whether every successor of the act is safe: above all the one in which all that is Spot is taken."""
        kept = np.where(act == SPOT, 0.0, 1.0) if self.fragile else 1.0
        worst = work - self.made(held, act) * kept
        return self.safe(left - 1, worst, np.where(act == SPOT, WAIT, act))


Market = Callable[[int, Acts], Open]
"""Which runs' zones have a Spot VM at the beginning of a step; given the step and what each run holds."""


@dataclass(frozen=True)
class Seen:
    """All that a policy may know at the beginning of a step: nothing of what comes.

    `left` steps until the deadline, and of each run the `work` left, what is `held` (a Spot VM that was taken is not),
    and whether its zone has a Spot VM now (`open`).
    """

    left: int
    work: NDArray[np.float64]
    held: Acts
    open: Open


class Policy(Protocol):
    """Decides. Called once for each step, from the first one on, always for the same runs."""

    def __call__(self, seen: Seen) -> Acts: ...


@dataclass(frozen=True)
class Course:
    """How runs went, one value each: the cost in steps of Spot, whether late, and how often a VM was started."""

    cost: NDArray[np.float64]
    late: NDArray[np.bool_]
    starts: NDArray[np.int64]


def run(problem: Problem, market: Open | Market, policy: Policy, runs: int | None = None) -> Course:
    """Send a policy through windows, a run each, or so many `runs` against a market that answers what they do.

    Where a policy takes Spot and there is none, it waits.
    """
    if not callable(market):
        given = market
        market, runs = (lambda step, held: given[:, step]), len(given)
    assert runs is not None
    work, held = np.full(runs, float(problem.work)), np.full(runs, WAIT)
    cost, starts = np.zeros(runs), np.zeros(runs, int)
    for step in range(problem.deadline):
        now = market(step, held)
        held = np.where((held == SPOT) & ~now, WAIT, held)
        act = policy(Seen(problem.deadline - step, work, held, now))
        act = np.where((work <= _ROUNDING) | ((act == SPOT) & ~now), WAIT, act)
        made = problem.made(held, act)
        cost += problem.paid(work, made) * np.array(problem.rates)[act] * (work > _ROUNDING)
        starts += (act != held) & (act != WAIT)
        work, held = np.maximum(work - made, 0.0), act
    return Course(cost, work > _ROUNDING, starts)


class Greedy:
    """Spot whenever there is some, else waiting; on demand once there is no more time for anything else."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __call__(self, seen: Seen) -> Acts:
        return _within(self._problem, seen, np.where(seen.open, SPOT, WAIT))


class UniformProgress:
    """The four rules."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __call__(self, seen: Seen) -> Acts:
        problem = self._problem
        done = problem.work - seen.work
        slope = problem.work / problem.deadline
        gone = problem.deadline - seen.left
        behind = done < slope * gone - _ROUNDING
        ahead = done >= slope * (gone + 2 * problem.start) - _ROUNDING
        act = np.where(seen.open, SPOT, np.where(behind, ON_DEMAND, WAIT))
        act = np.where((seen.held == ON_DEMAND) & ~ahead, ON_DEMAND, act)
        net = (seen.left < seen.work + 2 * problem.start - _ROUNDING) & (seen.held != SPOT)
        return _within(problem, seen, np.where(net, ON_DEMAND, act))


def _within(problem: Problem, seen: Seen, act: Acts) -> Acts:
    """On demand where anything else might be late."""
    left = np.full(len(act), seen.left)
    return np.where(problem.allowed(left, seen.work, seen.held, act), act, ON_DEMAND)


class Belief:
    """What many runs believe, each by its own past: `share[i, k]` of chain k, and the `age` of the spell it is in."""

    def __init__(self, chains: Chains, runs: int) -> None:
        self.chains = chains
        self.share = np.tile(chains.weight, (runs, 1))
        self.open = np.zeros(runs, bool)
        self.age = np.zeros(runs, int)

    def see(self, open_: Open) -> None:
        """What the next step shows."""
        ended = open_ != self.open
        if self.age.all():
            chance = self.ending()
            self.share *= np.where(ended[:, np.newaxis], chance, 1 - chance)
            self.share /= self.share.sum(1, keepdims=True)
            self.share += (self.chains.weight - self.share) / MEMORY
        self.age = np.where(ended, 1, self.age + 1)
        self.open = open_

    def ending(self) -> _Floats:
        """Of each run and chain, the chance that its spell ends within this step."""
        return self.chains.ends[:, self.open.astype(int), self.chains.class_of(self.age)].T


def values(problem: Problem, chains: Chains, lost: float = 0.0) -> Values:
    """The least expected cost, in steps of Spot, `[left, held, open, class, chain, work]`: work left in whole steps.

    They hold for every shorter deadline and every smaller work, too. `lost`: how likely the Spot VM that is held is
    taken within a step in which the market stays open, as where zones are one market.
    """
    classes, count = chains.ends.shape[2], len(chains.weight)
    found = np.full((problem.deadline + 1, len(ACTS), 2, classes, count, int(np.ceil(problem.work)) + 1), _NEVER)
    found[0, ..., 0] = 0.0
    ends = np.moveaxis(chains.ends, 0, -1)[..., np.newaxis].astype(np.float32)
    # The chance that a spell that lasts is of the next class one step later, as far as its class alone tells.
    grows = np.append(1 / np.diff(AGES), 0.0)[:, np.newaxis, np.newaxis].astype(np.float32)
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


def optimum(problem: Problem, open_: Open) -> NDArray[np.float32]:
    """The least cost of each window, by dynamic programming backwards over (work left, what is held).

    Work is counted in whole steps, and a start takes one: PlanError for another `problem.start`.
    """
    if problem.start != 1 or problem.work % 1:
        raise PlanError("The optimum counts work and starts in whole steps", fix="Take the start as the grid's step.")
    parts = [_optimum(problem, open_[at : at + _AT_ONCE]) for at in range(0, len(open_), _AT_ONCE)]
    return np.concatenate(parts)


def _optimum(problem: Problem, open_: Open) -> NDArray[np.float32]:
    kept, fee, price = (np.float32(rate) for rate in problem.rates)
    costs = np.full((len(ACTS), len(open_), int(problem.work) + 1), np.inf, np.float32)
    costs[:, :, 0] = 0.0
    for step in reversed(range(problem.deadline)):
        spot = np.where(open_[:, step, np.newaxis], fee + costs[SPOT], np.float32(np.inf))
        on_demand = price + costs[ON_DEMAND]
        new = np.minimum(np.minimum(kept + costs[WAIT], on_demand), spot)  # where nothing is held, a start
        costs[:] = new
        costs[SPOT, :, 1:] = np.minimum(new[:, 1:], spot[:, :-1])
        costs[ON_DEMAND, :, 1:] = np.minimum(new[:, 1:], on_demand[:, :-1])
        costs[:, :, 0] = 0.0
    return costs[WAIT, :, int(problem.work)]
