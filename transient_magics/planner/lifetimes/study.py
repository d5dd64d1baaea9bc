"""A study of observed lifetimes: survival as observed, formulas, hazard, and changes.

Formulas are fitted by maximum likelihood. A revocation at a known age counts with the density
there. One that is known by the hour counts with the probability of that hour, and a VM that was not
revoked with the probability of living at least as long. A preemptible VM that reached 24 hours was
ended by contract, not revoked, which does not inform about revocations. It counts as one that lived
at least as long, for every formula, so that formulas with and without a wall can be compared. For
comparison with published results there is also least squares on the distribution of the revoked VMs
only (`as_published`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ...errors import DeclarationError, PlanError, unknown
from .kaplan_meier import Capped, Change, KaplanMeier, compare, continued
from .observations import CAP_HOURS, CAPPED_BY, LEAST_EVENTS, Observations, enough
from .parametric import Bathtub, EarlyThenSteady, LifetimeModel, ParametricModel, Weibull
from .sources import Question, Source, found, published_lifetimes

_EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 12.0, 18.0, 24.0, 48.0, 96.0, 192.0, 384.0, 768.0)


@dataclass(frozen=True)
class Study:
    """The results of a source.

    `fits` has the formulas, the likeliest by Akaike's criterion first. `change` compares newer VMs,
    if there are any.
    """

    question: Question
    source: Source
    observed: KaplanMeier
    fits: tuple[Fit, ...]
    change: Change | None

    @property
    def model(self) -> LifetimeModel:
        """The model for plans: observed survival, then a steady hazard if no contract ends VMs."""
        if self.question.capped:
            return self.observed
        return continued(self.observed, self.watched, self.source.kind)

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of observed and revoked VMs; an end at the 24-hour limit does not count."""
        seen = self.question.counted(self.source.observed)
        return seen.vms, seen.events

    @property
    def watched(self) -> float:
        """The last observed age, in hours."""
        return self.observed.observed.end

    @property
    def late_events(self) -> int:
        """The number of revocations in the second half of the observed ages.

        The hazard beyond these ages is based on them.
        """
        return round(self.observed.observed.between(self.watched / 2, self.watched)[0])

    def hazard(self) -> list[tuple[float, float, float]]:
        """Return revocations per hour of a VM's life as (from age, to age, hazard)."""
        if self.question.capped:
            end = min(self.watched, CAP_HOURS)
        else:
            end = self.watched
        edges = [*(edge for edge in _EDGES if edge < end), end]
        return [(low, high, self._rate(low, high)) for low, high in pairwise(edges)]

    def _rate(self, low: float, high: float) -> float:
        events, hours = self.observed.observed.between(low, high)
        if hours > 0:
            return events / hours
        return 0.0


def study(question: Question, source: str | None = None, chosen: Sequence[str] = ()) -> Study:
    """Return the study of a source, with the `chosen` formulas (default: all that apply).

    The source is `own`, `emulated`, `published` or a CSV file. The default is the user's own VMs on
    Compute Engine if there are enough, else the published ones.

    Raises PlanError with fewer than 30 revocations, and DeclarationError for invalid arguments.
    """
    sensible = formulas(capped=question.capped)
    for name in chosen:
        if name not in FORMULAS:
            raise unknown("formula", name, FORMULAS, where="--fit")
    if walled := [name for name in chosen if name not in sensible]:
        what = f"The {walled[0]} fit ends at 24 hours, but Spot VMs have no such limit"
        raise DeclarationError(
            what, where="--fit", fix="Choose early or weibull, or --provisioning-model preemptible."
        )
    if source:
        data = found(source, question)
    else:
        data = _own_or_published(question)
    if question.capped:
        seen = data.observed.with_cap()
    else:
        seen = data.observed
    enough(question.counted(data.observed), data.title, data.fix)
    km = KaplanMeier(seen, CAPPED_BY if question.capped else np.inf)
    fits = [fit(name, seen, capped=question.capped) for name in dict.fromkeys(chosen or sensible)]
    return Study(
        question,
        data,
        km,
        tuple(sorted(fits, key=lambda formula_fit: formula_fit.aic)),
        _change(data, question),
    )


def _own_or_published(question: Question) -> Source:
    try:
        own = found("own", question)
    except PlanError:
        return found("published", question)
    if question.counted(own.observed).events >= LEAST_EVENTS:
        return own
    return found("published", question)


def _change(data: Source, question: Question) -> Change | None:
    """Return the comparison of the latest VMs with the model of the earlier ones."""
    if data.latest is None or data.earlier is None:
        return None
    earlier = question.counted(data.earlier)
    if earlier.events < LEAST_EVENTS:
        return None
    return compare(KaplanMeier(earlier), question.counted(data.latest))


_IMPOSSIBLE = 1e12
_AGAIN = 2
# Limit of the search's free numbers, which are logarithms or log-odds.
_FARTHEST = 30.0
_Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """A formula with the parameters of maximum likelihood.

    `aic` is Akaike's criterion, smaller is better (1974, doi 10.1109/TAC.1974.1100705). `distance`
    is the largest difference to the observed survival (Kolmogorov and Smirnov's statistic, against
    Kaplan-Meier).
    """

    model: LifetimeModel
    parameters: Mapping[str, float]
    log_likelihood: float
    distance: float

    @property
    def name(self) -> str:
        """The name of the formula."""
        return self.model.name

    @property
    def aic(self) -> float:
        """Akaike's criterion; smaller is better."""
        return 2 * len(self.parameters) - 2 * self.log_likelihood


@dataclass(frozen=True)
class _Family:
    """A family: its model from the free numbers of the search, and start values from mean hours."""

    build: Callable[[_Vector], ParametricModel]
    starts: Callable[[float], Sequence[Sequence[float]]]
    wall: bool = False


def _bathtub(free: _Vector) -> Bathtub:
    share = special.expit(free[:4])
    a, b, tau1, tau2 = (
        float(least + (most - least) * x) for x, (least, most) in zip(share, _BOUNDS, strict=True)
    )
    return Bathtub(a, b, tau1, tau2, float(np.exp(free[4])) if len(free) > 4 else 0.0, CAPPED_BY)


_BOUNDS = ((0.0, 1.0), (20.0, 28.0), (0.01, 20.0), (0.05, 5.0))
"""Bounds of A, b, tau1 and tau2.

Without them the fit may use the wall for other purposes than an end near 24 hours.
"""
_TUBS = [[-0.5, b, tau1, tau2] for b, tau2 in ((0.2, -2.0), (0.4, -4.0)) for tau1 in (-3.0, -1.5)]


_FAMILIES: Mapping[str, _Family] = {
    "exponential": _Family(
        lambda free: Weibull(float(np.exp(free[0]))), lambda mean: [[np.log(mean)]]
    ),
    "weibull": _Family(
        lambda free: Weibull(float(np.exp(free[0])), float(np.exp(free[1]))),
        lambda mean: [[np.log(mean), -0.1], [np.log(mean), -0.8]],
    ),
    "early": _Family(
        lambda free: EarlyThenSteady(
            *map(float, (special.expit(free[0]), np.exp(free[1]), np.exp(free[2])))
        ),
        lambda mean: [
            [share, tau, -np.log(2 * mean)] for share in (-1.5, 0.0) for tau in (-1.0, 1.0)
        ],
    ),
    "bathtub4": _Family(_bathtub, lambda mean: _TUBS, wall=True),
    "bathtub5": _Family(
        _bathtub, lambda mean: [[*tub, np.log(0.1 / mean)] for tub in _TUBS], wall=True
    ),
}
FORMULAS = tuple(_FAMILIES)
"""Names of the formulas; those with a wall are for preemptible VMs only."""


def formulas(*, capped: bool) -> tuple[str, ...]:
    """Return the formulas for VMs that end at 24 hours (`capped`), or for others."""
    return tuple(name for name, family in _FAMILIES.items() if capped or not family.wall)


def fit(formula: str, observed: Observations, *, capped: bool) -> Fit:
    """Return the fit of a formula with maximum likelihood.

    `capped` VMs are preemptible, so none of them lives beyond 25 hours, and ends from 24 hours on
    are not fitted. Raises PlanError if the formula cannot describe the observations at all.
    """
    # Most plans need no fit, and this import takes as long as that of the rest of the planner.
    from scipy import optimize

    family = _FAMILIES[formula]
    if capped:
        observed = observed.without_cap()
    else:
        observed = observed

    def loss(free: _Vector) -> float:
        if np.abs(free).max() > _FARTHEST:
            return _IMPOSSIBLE
        with np.errstate(all="ignore"):
            value = -log_likelihood(family.build(free), observed)
        return value if np.isfinite(value) else _IMPOSSIBLE

    mean = max(observed.watched_hours / max(observed.events, 1), 1e-3)
    options = {"maxiter": 3000, "maxfev": 3000, "xatol": 1e-5, "fatol": 1e-6}

    def search(start: Sequence[float] | _Vector) -> optimize.OptimizeResult:
        return optimize.minimize(
            loss, np.array(start, float), method="Nelder-Mead", options=options
        )

    best = min((search(start) for start in family.starts(mean)), key=lambda result: result.fun)
    # Restart with a new simplex, because one may have collapsed at an edge.
    for _ in range(_AGAIN):
        best = search(best.x)
    if best.fun >= _IMPOSSIBLE:
        raise PlanError(
            f"The {formula} distribution cannot be fitted to these lifetimes",
            fix="Use the observed survival: --fit km.",
        )
    formula_model = family.build(best.x)
    if capped and not family.wall:
        model = Capped(formula_model, CAPPED_BY)
    else:
        model = formula_model
    return Fit(
        model, formula_model.parameters, -float(best.fun), distance(model, KaplanMeier(observed))
    )


def log_likelihood(model: ParametricModel, observed: Observations) -> float:
    """Return the log likelihood of the observations; minus infinity if one is impossible."""
    exact = observed.exact
    seen = observed.seen
    lived = model.survival(observed.lower)
    chance = np.where(
        exact,
        model.density(observed.lower),
        lived - np.where(seen, model.survival(np.where(seen, observed.upper, 0)), 0),
    )
    # A density where no VM is left is invalid: the bathtub's formula does not stop at 1.
    possible = (chance > 0) & ((lived > 0) | ~exact)
    if not possible.all():
        return -np.inf
    return float(np.log(chance) @ observed.count)


def distance(model: LifetimeModel, observed: KaplanMeier) -> float:
    """Return the largest difference between a model's survival and the observed one.

    It is taken at the ages where the observed one changes: to the share that lived longer, and,
    where ages are exact, to the one just before.
    """
    ages, shares = observed.steps
    expected = model.survival(ages)
    if observed.observed.grouped:
        before = shares
    else:
        before = np.append(1.0, shares[:-1])
    inside = (ages > 0) & (ages < observed.end)
    gaps = np.maximum(np.abs(expected - shares), np.abs(expected - before))[inside]
    return float(gaps.max(initial=0.0))


def as_published(revoked_hours: _Vector) -> tuple[Bathtub, float]:
    """Return the least-squares bathtub of the revoked VMs only, as in HPDC 2020, and its R².

    VMs that were not revoked are left out, so VMs appear to live shorter than they do. Use it for
    comparison, not for plans.
    """
    from scipy import optimize

    hours = np.sort(np.asarray(revoked_hours, float))
    share = np.linspace(0, 1, len(hours))

    def ended(age: _Vector, a: float, b: float, tau1: float, tau2: float) -> _Vector:
        return Bathtub(a, b, tau1, tau2).ended(age)

    found, _ = optimize.curve_fit(
        ended,
        hours,
        share,
        p0=(0.4, 24.0, 1.0, 0.8),
        bounds=list(zip(*_BOUNDS, strict=True)),
        method="dogbox",
        maxfev=20000,
    )
    residual = share - ended(hours, *found)
    return Bathtub(*map(float, found)), 1 - float(residual @ residual) / float(
        ((share - share.mean()) ** 2).sum()
    )


def risk(model: LifetimeModel, age: float, hours: float = 1.0) -> float:
    """Return the probability that a VM at `age` is revoked within `hours`; 1 if none lives on.

    Both are in hours.
    """
    now, then = map(float, model.survival(np.array([age, age + hours])))
    if now > 0:
        return 1 - then / now
    return 1.0


def best_known(provisioning_model: str, *, emulated: bool) -> Callable[[str, str], LifetimeModel]:
    """Return a function for the lifetimes of VMs with a GPU in a region.

    They are those of the user's own VMs if there are enough, else the published ones.
    """

    @cache
    def lifetimes(gpu: str, region: str) -> LifetimeModel:
        question = Question(gpu, region, provisioning_model)
        try:
            return study(question, "emulated" if emulated else "own", ("exponential",)).model
        except PlanError:
            return published_lifetimes(gpu, region)

    return lifetimes
