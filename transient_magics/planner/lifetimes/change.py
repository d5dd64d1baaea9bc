"""Whether new lifetimes still agree with a model: a one-sample log-rank test (Breslow 1975, doi
10.2307/1402659).

Under the model each VM is expected to be revoked as often as its cumulative hazard up to the age at
which it was last seen says. What that was learned from is as uncertain as its revocations at those
ages are few: their number, weighted by how much each tells (`_expected`), and the new one are
binomial (Przyborowski and Wilenski 1940, doi
10.1093/biomet/31.3-4.313). Of VMs that began together waves take several, so that fewer count.

VMs are looked at in blocks of `LATEST`, in the order of their begins, each against all before it.
Nobody looks once: a block is looked at again while its VMs grow older, which doubles a chance at
most (revocations less their expectation are a martingale, and the reflection principle holds for
its limit), so each look has half of the stated rate. The rate is that of a block, however often one
looks: a false alarm once in `VMS_PER_FALSE_ALARM` VMs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from .kaplan_meier import KaplanMeier
from .observations import Observations

FALSE_ALARMS = 0.01
"""In how many blocks there is an alarm where nothing changed."""
LATEST = 30
"""How many VMs are a block."""
VMS_PER_FALSE_ALARM = round(LATEST / FALSE_ALARMS)
_LEAST_EXPECTED = 3.0


@dataclass(frozen=True)
class Change:
    """`revoked` new VMs of `vms`, where `expected` were to be.

    `chance`: how likely a block shows a difference as large, at any of the looks at it, if nothing
    changed.
    """

    vms: int
    revoked: int
    expected: float
    chance: float

    @property
    def alarm(self) -> bool:
        """Whether they disagree, at the stated rate of false alarms."""
        return self.chance < FALSE_ALARMS


def blocks(vms: int) -> tuple[int, int]:
    """Where the latest block of so many VMs begins and ends: the last one that is full, or the
    first.
    """
    end = max(vms // LATEST * LATEST, min(vms, LATEST))
    return max(end - LATEST, 0), end


def compare(model: KaplanMeier, new: Observations) -> Change | None:
    """New lifetimes against what was learned from others; None where they are too few to say
    anything.
    """
    known = model.observed
    new = new.until(known.end)
    expected, told = _expected(model, new)
    if max(expected, float(new.events)) < _LEAST_EXPECTED:
        return None
    if not told:  # at these ages none of the known was revoked: half of one, in as many hours as they lived there
        oldest = float(np.where(new.seen, new.upper, new.lower).max())
        expected = 0.5 * new.between(0, oldest)[1] / max(known.between(0, oldest)[1], 1e-9)
        told = 0.5
    revoked = new.events / new.design_effect
    foreseen = expected / new.design_effect
    told = max(told / known.design_effect, 1e-9)
    part = foreseen / (foreseen + told)
    if revoked:
        at_least = special.betainc(revoked, told + 1, part)
    else:
        at_least = 1.0
    at_most = special.betainc(told, revoked + 1, 1 - part)
    return Change(new.vms, new.events, expected, float(min(4 * min(at_least, at_most), 1.0)))


def _expected(model: KaplanMeier, new: Observations) -> tuple[float, float]:
    """How many of the new VMs were to be revoked by the hazard of the known ones (Nelson and
    Aalen), and as how many known revocations that is certain: the square of the one over its
    variance.
    """
    (ages, ended, at_risk), known = model.risks, model.observed
    hazard = ended / at_risk
    if known.grouped:  # within an hour fewer and fewer are left
        hazard = -np.log(np.maximum(1 - hazard, 0.5 / at_risk))
    if known.grouped:
        began = np.append(0.0, ages[:-1])
    else:
        began = ages
    age = np.where(new.seen, new.upper, new.lower)[:, np.newaxis]
    span = np.maximum(ages - began, 1e-12)
    if known.grouped:
        lived = np.clip((age - began) / span, 0, 1)
    else:
        lived = (age >= ages).astype(float)
    exposed = new.count @ lived
    expected = float(exposed @ hazard)
    variance = float((exposed**2) @ (hazard / at_risk))
    return expected, expected**2 / variance if variance > 0 else 0.0
