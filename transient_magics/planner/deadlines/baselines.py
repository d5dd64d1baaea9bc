"""Policies to be measured against: greedy, and Uniform Progress by the rules of "Can't Be Late" (Wu et al., NSDI 2024).

R(t) is the time left, C(t) the work left, d the start. Uniform Progress takes on demand when it is idle and behind the
straight line from nothing to all of the work at the deadline; it takes Spot whenever there is some and stays on it;
from on demand it goes to Spot once it is ahead of where the line is in 2d; when R < C + 2d it stays on demand.
"""

from __future__ import annotations

import numpy as np

from .problem import ON_DEMAND, SPOT, WAIT, Acts, Problem
from .running import Seen

_ROUNDING = 1e-9


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
