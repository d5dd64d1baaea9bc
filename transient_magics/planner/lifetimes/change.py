"""Whether new lifetimes still agree with a model: a one-sample log-rank test (Breslow 1975, doi 10.2307/1402659).

Under the model each VM is expected to be revoked as often as its cumulative hazard up to the age at which it was last
seen says. A model that was itself learned from revocations is as uncertain as those are few: given both counts, the new
ones are binomial (Przyborowski and Wilenski 1940, doi 10.1093/biomet/31.3-4.313), which is exact where hazards are
proportional. VMs are taken as independent; revocations that come in waves raise more false alarms than stated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from .model import LifetimeModel
from .observations import Observations

FALSE_ALARMS = 0.01
"""How often the alarm goes where nothing changed."""
LATEST = 30
"""How many VMs are looked at as the new ones."""
_LEAST_EXPECTED = 3.0


@dataclass(frozen=True)
class Change:
    """`revoked` new VMs of `vms`, where the model expects `expected`.

    `chance`: how likely a difference as large is if nothing changed.
    """

    vms: int
    revoked: int
    expected: float
    chance: float

    @property
    def alarm(self) -> bool:
        """Whether they disagree, at the stated rate of false alarms."""
        return self.chance < FALSE_ALARMS


def compare(model: LifetimeModel, learned_from: Observations, new: Observations) -> Change | None:
    """New lifetimes against a model that was `learned_from` others; None where they are too few to say anything."""
    new, known = new.until(learned_from.end), learned_from.events
    age = np.where(new.seen, new.upper, new.lower)
    least = 0.5 / max(learned_from.vms, 1)  # the model may say that nobody lives so long; so many VMs cannot tell
    expected = float(-np.log(np.maximum(model.survival(age), least)) @ new.count)
    if max(expected, float(new.events)) < _LEAST_EXPECTED:
        return None
    chance = stats.binomtest(new.events, new.events + known, expected / (expected + known)).pvalue
    return Change(new.vms, new.events, expected, float(chance))
