"""All that observed lifetimes tell about the VMs in question: survival as seen, formulas, hazard, and a change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...errors import DeclarationError, PlanError
from ...spec.grammar import nearest
from .beyond import continued
from .change import Change, compare
from .fitting import FORMULAS, Fit, fit, formulas
from .kaplan_meier import KaplanMeier
from .model import LifetimeModel
from .observations import CAP_HOURS, CAPPED_BY, LEAST_EVENTS, enough
from .sources import Question, Source, found

_EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 12.0, 18.0, 24.0, 48.0, 96.0, 192.0, 384.0, 768.0)


@dataclass(frozen=True)
class Study:
    """What a source tells. `fits`: the formulas, the likeliest by Akaike's criterion first; `change`: how newer VMs
    compare, where there are some."""

    question: Question
    source: Source
    observed: KaplanMeier
    fits: tuple[Fit, ...]
    change: Change | None

    @property
    def model(self) -> LifetimeModel:
        """What to plan with: survival as it was observed, and beyond that a steady hazard where no contract ends it."""
        return self.observed if self.question.capped else continued(self.observed, self.watched, self.source.kind)

    @property
    def counts(self) -> tuple[int, int]:
        """How many VMs were observed, and how many of them were revoked; an end at the 24-hour limit is none."""
        seen = self.question.counted(self.source.observed)
        return seen.vms, seen.events

    @property
    def watched(self) -> float:
        """Up to which age in hours VMs were watched."""
        return self.observed.observed.end

    @property
    def late_events(self) -> int:
        """On how many revocations the hazard beyond what was watched rests: those in the second half of it."""
        return round(self.observed.observed.between(self.watched / 2, self.watched)[0])

    def hazard(self) -> list[tuple[float, float, float]]:
        """Revocations per hour of a VM's life, between two ages each: (from age, to age, hazard)."""
        end = min(self.watched, CAP_HOURS) if self.question.capped else self.watched
        edges = [*(edge for edge in _EDGES if edge < end), end]
        return [(low, high, self._rate(low, high)) for low, high in pairwise(edges)]

    def _rate(self, low: float, high: float) -> float:
        events, hours = self.observed.observed.between(low, high)
        return events / hours if hours > 0 else 0.0


def study(question: Question, source: str | None = None, chosen: Sequence[str] = ()) -> Study:
    """Learn from a source, with the `chosen` formulas (all that make sense).

    The source: `own`, `emulated`, `published` or a CSV file; by default the user's own VMs on Compute Engine where they
    are enough, else the published ones.

    Raises PlanError where there are fewer than 30 revocations, DeclarationError for what cannot be meant.
    """
    sensible = formulas(capped=question.capped)
    for name in chosen:
        if name not in FORMULAS:
            raise DeclarationError(f"Unknown formula '{name}'", where="--fit", fix=nearest(name, FORMULAS))
    if walled := [name for name in chosen if name not in sensible]:
        what = f"The {walled[0]} has a wall at 24 hours, and Spot VMs have no such limit"
        raise DeclarationError(what, where="--fit", fix="Choose early or weibull, or --provisioning-model preemptible.")
    told = found(source, question) if source else _own_or_published(question)
    seen = told.observed.with_cap() if question.capped else told.observed
    enough(question.counted(told.observed), told.title, told.fix)
    km = KaplanMeier(seen, CAPPED_BY if question.capped else np.inf)
    fits = [fit(name, seen, capped=question.capped) for name in dict.fromkeys(chosen or sensible)]
    return Study(question, told, km, tuple(sorted(fits, key=lambda each: each.aic)), _change(told, question))


def _own_or_published(question: Question) -> Source:
    try:
        own = found("own", question)
    except PlanError:
        return found("published", question)
    return own if question.counted(own.observed).events >= LEAST_EVENTS else found("published", question)


def _change(told: Source, question: Question) -> Change | None:
    """The latest VMs against what was learned without them."""
    if told.latest is None or told.earlier is None:
        return None
    known = question.counted(told.earlier)
    if known.events < LEAST_EVENTS:
        return None
    return compare(KaplanMeier(known), question.counted(told.latest))
