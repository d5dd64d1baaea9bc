"""When a command receives SIGTERM for a preemption: pure.

A rank has two sources: the notice of its own VM, and the controller's warning that a VM of the job
leaves. Both give the moment at which a VM ends. The command receives SIGTERM `at_notice` seconds
before that, on all VMs at the same moment: the first rank to end breaks the collectives of the
others, and they could not save any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....protocol.job import NOTICE_SECONDS

TOGETHER_SECONDS = 2.0
"""How much longer the rank whose VM leaves waits for the warning that the others receive, too."""
ON_ITS_WAY_SECONDS = 0.5
"""Until a warning has arrived on all VMs: they act on it after that time."""


@dataclass
class Notices:
    """What one rank has received, in seconds of its monotonic clock (infinite: nothing).

    `own_end`: the end of its VM, by its own notice. `warned_end`: the end of a VM of the job, by
    the controller's warning. `several`: the job has several ranks.
    """

    at_notice: float
    several: bool
    own_end: float = math.inf
    warned_end: float = math.inf

    @property
    def end(self) -> float:
        """When a VM of the job ends."""
        return min(self.own_end, self.warned_end)

    @property
    def due(self) -> float:
        """When the command receives SIGTERM."""
        alone = self.own_end - self.at_notice
        if not self.several:
            return alone
        if self.warned_end < math.inf:
            arrived = self.warned_end - NOTICE_SECONDS + ON_ITS_WAY_SECONDS
            return min(max(self.warned_end - self.at_notice, arrived), alone + TOGETHER_SECONDS)
        return max(alone, self.own_end - NOTICE_SECONDS + TOGETHER_SECONDS)
