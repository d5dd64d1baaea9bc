"""How long training may go on between two checkpoints, planned from what a checkpoint was measured to cost.

The interval that loses least to saving and to work done again is sqrt(2 * cost * mean time between losses) (Young 1974,
doi 10.1145/361147.361115; Daly 2006, doi 10.1016/j.future.2004.11.016). Here nothing is lost with a worker; only a
parameter server takes work with it, and of an on-demand VM nobody knows how long it lasts. So the two sides that the
formula balances get a limit each: saving takes one part in a hundred of the time, and ten minutes of work are at risk.
For a checkpoint of `cost` seconds that is the formula's answer where a server lasts 5000 * cost: two hours for 1.5 s.
Up to six seconds it stays within a hundredth of the time of the best interval for any server that lasts five hours or
more, so nobody's lifetimes are asked for; work that is lost with a transient VM is planned by `planner.checkpoints`.
"""

from __future__ import annotations

SHARE = 0.01
LONGEST = 600.0
SHORTEST = 30.0
"""Seconds: a checkpoint is also brought away from the VM, which takes longer than writing it."""


def seconds_between(cost: float) -> float:
    """Seconds from one checkpoint to the next when writing one takes `cost` seconds.

    Where both limits cannot be kept, because a checkpoint takes more than six seconds, the work at risk counts.
    """
    return min(max(cost / SHARE, SHORTEST), LONGEST)
