"""The problem: one VM's work within a deadline, in steps of a grid, and the safety set from which it is never late.

At the beginning of each step one sees whether the zone has a Spot VM, and waits, takes Spot or takes on demand. A VM
other than the one that is held first starts: `start` of its first step is paid and makes nothing. A Spot VM is held
until the step at whose beginning the zone has none.

Never late is an induction. A state is safe if on demand alone, taken now, brings the work home in time. An act is
allowed if all its successors are safe, above all the worst, where whatever is Spot is taken. Taking on demand is always
allowed in a safe state. So from a safe state on nothing is ever late. The conditions: on demand there is a VM, it
works within `start`, at the speed that is counted with (the lower bound of the measured), and work that is counted
as done is saved durably.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError

WAIT, SPOT, ON_DEMAND = 0, 1, 2
"""What is held, and what an act takes for the next step."""
ACTS = (WAIT, SPOT, ON_DEMAND)
Acts = NDArray[np.int64]
_Floats = NDArray[np.float64]
_ROUNDING = 1e-9


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
