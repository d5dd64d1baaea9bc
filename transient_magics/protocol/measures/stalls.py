"""The measures from which the stalls of a step follow (Stash, ICDCS 2023, translated to parameter
servers).

Six arrangements of one and the same step, each with one more part of what a run does than the one
before it. Two more read mini-batches as fast as they come, and compute nothing with them.
"""

from __future__ import annotations

from typing import Literal, get_args

Measure = Literal["S0", "S1", "S2", "S3", "S4", "S5", "R4", "R5"]
"""S0: the variables in the worker's own process, one mini-batch kept in memory. S1: the variables
in a parameter server on the worker's VM. S2: on the cluster's parameter servers, while no other
worker steps. S3: all workers step. S4: with mini-batches of the records, whose files are in the
page cache. S5: with their pages dropped from it, again and again. R4 and R5 read as S4 and S5 do,
on all workers, without a step.
"""

MEASURES: tuple[Measure, ...] = get_args(Measure)
ALONE = frozenset[Measure](("S0", "S1", "S2"))
"""Taken by one worker after the other; the others by all at once."""
COLD = frozenset[Measure](("S5", "R5"))
MOST_STEPS = 500
"""Of a worker and a measure, whose seconds are told."""
