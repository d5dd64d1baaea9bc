"""Models of lifetimes: survival and samples agree, censored VMs count, and published fits come out as published."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.catalog import published as tables
from transient_magics.errors import PlanError
from transient_magics.planner.lifetimes.kaplan_meier import (
    BLOCKS,
    FALSE_ALARMS,
    LATEST,
    Capped,
    KaplanMeier,
    blocks,
    compare,
    continued,
    resampled,
)
from transient_magics.planner.lifetimes.observations import CAP_HOURS, Observations, enough
from transient_magics.planner.lifetimes.parametric import Bathtub, EarlyThenSteady, LifetimeModel, Weibull, drawn
from transient_magics.planner.lifetimes.sources import published_lifetimes
from transient_magics.planner.lifetimes.study import as_published, fit, formulas

from ..catalog.published import published

DRAWS = 4000
hours = st.floats(0.01, 40.0)


@st.composite
def seen(draw: st.DrawFn) -> Observations:
    """A few VMs, some revoked and some not; or hourly counts."""
    if draw(st.booleans()):
        ended = draw(st.lists(st.integers(0, 4), min_size=2, max_size=24))
        return Observations.hourly(sum(ended) + draw(st.integers(1, 9)), [int(each) for each in np.cumsum(ended)])
    lives = draw(st.lists(st.tuples(hours, st.booleans()), min_size=1, max_size=30))
    return Observations.of([each for each, _ in lives], [revoked for _, revoked in lives])


models = st.one_of(
    st.builds(Weibull, st.floats(0.5, 200), st.floats(0.3, 3)),
    st.builds(EarlyThenSteady, st.floats(0.01, 0.9), st.floats(0.05, 10), st.floats(0.001, 0.5)),
    st.builds(
        Bathtub, st.floats(0.1, 0.6), st.floats(23.5, 25), st.floats(0.3, 4), st.floats(0.1, 1.2), st.just(0.004)
    ),
    st.builds(Capped, st.builds(Weibull, st.floats(5, 200)), st.just(24.0)),
    st.builds(KaplanMeier, seen(), st.sampled_from([24.0, math.inf])),
    seen().map(lambda observed: continued(KaplanMeier(observed), observed.end)),
)


@given(models, st.lists(hours, min_size=2, max_size=12))
def test_survival_begins_at_one_and_never_rises(model: LifetimeModel, ages: list[float]) -> None:
    alive = model.survival(np.sort(np.append(0.0, ages)))
    assert alive[0] == 1
    assert np.all(np.diff(alive) <= 1e-12)
    assert np.all((alive >= 0) & (alive <= 1))


@given(models, st.integers(0, 2**32), st.floats(0, 12), st.floats(0.1, 20))
@example(continued(KaplanMeier(Observations.of([0.5], [True])), 0.5), 0, 1.0, 1.0)
@examples(60)
def test_samples_live_on_from_their_age_as_survival_says(
    model: LifetimeModel, seed: int, age: float, more: float
) -> None:
    from scipy import stats  # takes most of a second, of everyone who collects this file

    now, later = model.survival(np.array([age, age + more]))
    lived = drawn(model, np.random.default_rng(seed), (2, DRAWS), np.full((2, DRAWS), age))
    assert lived.shape == (2, DRAWS)
    assert np.all(lived > age)
    if now > 0:
        alive = int(np.sum(lived > age + more))
        assert stats.binomtest(alive, 2 * DRAWS, min(max(later / now, 1e-12), 1 - 1e-12)).pvalue > 1e-9


@given(st.lists(hours, min_size=1, max_size=40))
def test_without_censoring_survival_is_the_share_that_lived_longer(lives: list[float]) -> None:
    observed = KaplanMeier(Observations.of(lives, [True] * len(lives)))
    ages = np.unique(lives)
    expected = [(np.array(lives) > age).mean() for age in ages]
    assert observed.survival(ages) == pytest.approx(expected, abs=1e-12)


@given(seen())
def test_the_band_holds_the_share_and_widens_with_its_level(observed: Observations) -> None:
    model, ages = KaplanMeier(observed), np.linspace(0, 45, 30)
    (low, high), (lower, higher) = model.band(ages, 0.8), model.band(ages, 0.95)
    alive = model.survival(ages)
    assert np.all((lower <= low + 1e-12) & (low <= alive + 1e-12))
    assert np.all((alive <= high + 1e-12) & (high <= higher + 1e-12))


def test_a_worked_example_with_its_greenwood_band() -> None:
    """The leukaemia patients of Freireich (1963), as in every textbook: 21 under 6-MP, in weeks."""
    weeks = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    model = KaplanMeier(Observations.of(weeks, [True] * 9 + [False] * 12))
    assert model.survival(np.array([6.0, 7, 10, 13, 16, 22, 23])) == pytest.approx(
        [0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448], abs=5e-4
    )
    assert np.sqrt(model.variance(np.array([23.0]))) == pytest.approx([0.1346], abs=1e-4)
    low, high = model.band(np.array([23.0]), 0.95)
    assert (low[0], high[0]) == pytest.approx((0.188, 0.680), abs=1e-3)


# lifelines 0.30.3, of these hours and whether each VM was revoked (1) or deleted by its user (0):
#     KaplanMeierFitter(alpha=0.1).fit(hours, revoked): predict(age) and confidence_interval_
#     WeibullFitter().fit(hours, revoked): lambda_, rho_, log_likelihood_
WATCHED = [
    8.5, 4.7, 7.3, 0.6, 6.9, 3.2, 11.8, 2.7, 2.8, 2.1, 0.6, 0.4, 3.7, 0.7, 1.2, 5.9, 3.7, 9.2, 3.3, 1.9,
    2.5, 5.1, 1.8, 0.2, 1.9, 3.2, 10.7, 2.7, 2.5, 12.2, 7.1, 2.2, 3.4, 2.6, 1.4, 2.7, 14.0, 6.1, 1.0, 7.1,
]  # fmt: skip
REVOKED = [each == "1" for each in "1001000110110111101111111110100101111010"]
LIFELINES = {
    0.2: (0.975, 0.87707885, 0.99512477), 1.0: (0.85, 0.72737341, 0.92037361), 1.9: (0.725, 0.58908446, 0.82248517),
    2.7: (0.56964286, 0.43001327, 0.68712195), 3.7: (0.45633592, 0.3200329, 0.58262441),
    10.7: (0.2413315, 0.1037437, 0.40987533),
}  # fmt: skip


def test_survival_its_band_and_a_fit_are_those_of_lifelines() -> None:
    observed = Observations.of(WATCHED, REVOKED)
    model, ages = KaplanMeier(observed), np.array([*LIFELINES])
    found = np.stack([model.survival(ages), *model.band(ages)], axis=1)
    assert found == pytest.approx(np.array([*LIFELINES.values()]), abs=1e-8)
    fitted = fit("weibull", observed, capped=False)
    assert [*fitted.parameters.values()] == pytest.approx([6.6115839, 0.9864793], rel=1e-3)


def test_the_lower_end_falls_while_vms_leave_unrevoked() -> None:
    """At 12 h one in ten is left of those that were watched at the last revocation; the share has stayed."""
    truth, random = Weibull(10.0, 0.6), np.random.default_rng(3)
    held = shown = 0
    for _ in range(1500):
        lived, watched = truth.quantile(random.random(60)), random.exponential(2, 60)
        observed = Observations.of(np.minimum(lived, watched), lived <= watched)
        if observed.end >= 12:
            low, high = KaplanMeier(observed).band(np.array([12.0]))
            held += bool(low[0] <= truth.survival(np.array(12.0)) <= high[0])
            shown += 1
    assert shown > 50
    assert held / shown > 0.85


@given(st.lists(st.tuples(hours, st.booleans()), min_size=3, max_size=40).filter(lambda each: any(r for _, r in each)))
@examples(30)
def test_the_exponential_s_mean_is_the_hours_watched_by_revocation(lives: list[tuple[float, bool]]) -> None:
    observed = Observations.of([each for each, _ in lives], [revoked for _, revoked in lives])
    found = fit("exponential", observed, capped=False).parameters["mean"]
    assert found == pytest.approx(sum(each for each, _ in lives) / sum(revoked for _, revoked in lives), rel=1e-3)


def test_parameters_are_found_again_although_half_of_the_vms_were_deleted_before() -> None:
    random = np.random.default_rng(1)
    lived, watched = drawn(EarlyThenSteady(0.3, 1.5, 0.02), random, 4000), random.uniform(0, 30, 4000)
    observed = Observations.of(np.minimum(lived, watched), lived <= watched)
    best, *others = sorted(
        (fit(name, observed, capped=False) for name in formulas(capped=False)), key=lambda each: each.aic
    )
    assert best.name == "early, then steady"
    assert best.parameters == pytest.approx({"early": 0.3, "tau": 1.5, "steady": 0.02}, rel=0.25)
    assert best.distance < 0.03 < min(each.distance for each in others)
    assert fit("weibull", observed, capped=False).parameters["shape"] < 1


@pytest.mark.parametrize("mean", [20.0, 40.0, 100.0])
def test_what_the_contract_ends_changes_no_formula(mean: float) -> None:
    """Of memoryless VMs that are all ended at 24 h the mean is found again, by the formula with a shape too, and the
    gap to what was observed is that of a sample and not the share that reached the end."""
    random = np.random.default_rng(int(mean))
    lived = drawn(Weibull(mean), random, 600)
    observed = Observations.of(np.minimum(lived, random.uniform(24.0, 24.8, 600)), [True] * 600).with_cap()
    known = observed.without_cap()
    found = fit("exponential", observed, capped=True)
    assert abs(found.parameters["mean"] / mean - 1) < 3 / math.sqrt(known.events)
    assert found.parameters["mean"] == pytest.approx(known.watched_hours / known.events, rel=1e-3)
    assert found.distance < 1.36 / math.sqrt(600), "Kolmogorov's, at 5 %"
    assert found.model.survival(np.array([24.9, 25.0])) == pytest.approx(
        [math.exp(-24.9 / found.parameters["mean"]), 0]
    )
    assert abs(fit("weibull", observed, capped=True).parameters["shape"] - 1) < 3 / math.sqrt(known.events)


@pytest.mark.slow
def test_the_criterion_mostly_chooses_the_law_that_vms_followed() -> None:
    random, right = np.random.default_rng(9), 0
    for name, law in {"weibull": Weibull(60.0, 0.4), "early": EarlyThenSteady(0.35, 0.3, 0.03)}.items():
        for _ in range(3):
            lived = np.minimum(drawn(law, random, 300), 24.5)
            observed = Observations.of(lived, [True] * 300).with_cap()
            scores = {each: fit(each, observed, capped=True).aic for each in ("exponential", "weibull", "early")}
            right += min(scores, key=lambda each: scores[each]) == name
    assert right >= 5


def test_within_an_hour_the_band_says_that_nobody_saw_when() -> None:
    """VMs most of which go in the first minutes, counted by the hour: a straight line through it says nothing."""
    random, law = np.random.default_rng(10), EarlyThenSteady(0.4, 0.1, 0.02)
    ages, inside = np.array([0.1, 0.25, 0.5, 1.0, 2.0, 2.7]), np.zeros(6)
    for _ in range(100):
        lived = drawn(law, random, 120)
        model = KaplanMeier(Observations.hourly(120, [int((lived <= hour).sum()) for hour in range(1, 25)]))
        low, high = model.band(ages)
        inside += (low <= law.survival(ages)) & (law.survival(ages) <= high)
        edges = model.band(np.array([0.0, 1.0]))
        assert (low[2], high[2]) == (edges[0][1], 1.0) == (edges[0][1], edges[1][0])
    assert inside.min() >= 80


def test_hours_instead_of_moments_change_little() -> None:
    random = np.random.default_rng(2)
    lived = drawn(EarlyThenSteady(0.3, 2.0, 0.02), random, 3000)
    exact = Observations.of(np.minimum(lived, 24.0), lived <= 24)
    hourly = Observations.hourly(3000, [int((lived <= hour).sum()) for hour in range(1, 25)])
    ages = np.arange(1.0, 25)
    assert KaplanMeier(hourly).survival(ages) == pytest.approx(KaplanMeier(exact).survival(ages), abs=1e-12)
    assert hourly.each().some(np.arange(3000)).events == hourly.events == exact.events
    ours, theirs = (fit("early", each, capped=False).parameters for each in (exact, hourly))
    assert ours == pytest.approx(theirs, rel=0.1)


def test_published_tables_are_told_as_they_stand() -> None:
    for table in tables.tables():
        model = KaplanMeier(Observations.hourly(table.launched, table.revoked))
        ages = np.array([0.5, 1, 2.5, 12, 23.25, 24, 100])
        assert 1 - model.survival(ages) == pytest.approx([table.fraction(age * 3600) for age in ages], abs=1e-12)
        later = published_lifetimes(table.gpu, table.region).survival(np.array([20.0, 72.0]))
        assert later[1] < later[0], "nobody is immortal"
        assert 1 - later[1] / later[0] == pytest.approx(table.risk(20 * 3600, 72 * 3600)), "as on the emulator"


@pytest.mark.slow
def test_the_published_fits_of_the_bathtub() -> None:
    rows = published("preemption/goog_preemption_lifetimes.csv")
    lived = np.array([float(row["lifetime_s"]) / 3600 for row in rows])
    revoked = np.array([row["end_kind"] == "preempted" for row in rows])
    kind = np.array([row["machine_type"] for row in rows])
    for which, golden in {
        "": (0.4137, 24.453, 0.950, 0.767, 0.968), "n1-highcpu-2": (0.2654, 24.042, 1.711, 0.754, 0.954),
        "n1-highcpu-8": (0.3106, 24.184, 1.276, 0.582, 0.961), "n1-highcpu-32": (0.6905, 25.623, 0.782, 1.227, 0.974),
    }.items():  # fmt: skip
        model, r2 = as_published(lived[revoked & ((kind == which) | (which == ""))])
        assert (*model.parameters.values(), r2) == pytest.approx(golden, rel=2e-3)
    observed = Observations.of(lived, revoked)
    dead = 1 - KaplanMeier(observed).survival(np.array([1, 3, 6, 12, 20, 23.9]))
    assert dead == pytest.approx([0.149, 0.232, 0.276, 0.318, 0.367, 0.386], abs=5e-4), "they left out the censored"
    capped = {
        name: fit(name, observed.with_cap(), capped=True) for name in ("early", "weibull", "bathtub4", "bathtub5")
    }
    order = sorted(capped, key=lambda name: capped[name].aic)
    assert order == ["early", "bathtub5", "weibull", "bathtub4"], "the contract's end is no wall of revocations"
    middle = capped["bathtub5"].model.survival(np.array([8.0, 12.0]))
    assert 0.02 < 1 - middle[1] / middle[0] < 0.07, "4.6 % of those alive at 8 h went by 12 h"


@given(seen())
def test_spot_vms_have_no_wall(observed: Observations) -> None:
    free = observed.without_cap()
    assert free.end <= CAP_HOURS
    assert free.vms == observed.vms
    model = KaplanMeier(free)
    ages = np.array([24.0, 30, 300])
    assert np.all(model.survival(ages) == model.survival(np.array(CAP_HOURS)))


def test_too_few_revocations_are_refused_and_thirty_are_not() -> None:
    few = Observations.of([1.0] * 100, [True] * 29 + [False] * 71)
    with pytest.raises(PlanError, match="29 revocations of 100 VMs are not enough"):
        enough(few, "a test")
    enough(Observations.of([1.0] * 31, [True] * 30 + [False]), "a test")


def test_the_alarm_is_rarely_false_and_hears_a_change() -> None:
    random = np.random.default_rng(3)
    truth, changed = EarlyThenSteady(0.3, 1.0, 0.02), EarlyThenSteady(0.7, 1.0, 0.08)

    def lives(model: LifetimeModel, vms: int) -> Observations:
        lived, watched = drawn(model, random, vms), random.uniform(2, 24, vms)
        return Observations.of(np.minimum(lived, watched), lived <= watched)

    alarms = {"same": 0, "other": 0}
    for _ in range(400):
        known = lives(truth, 150)
        for name, model in (("same", truth), ("other", changed)):
            change = compare(KaplanMeier(known), lives(model, 30))
            alarms[name] += bool(change and change.alarm)
    assert alarms["same"] / 400 <= 2.5 * FALSE_ALARMS
    assert alarms["other"] / 400 > 0.8


def test_a_block_of_vms_raises_no_more_false_alarms_for_being_looked_at_often() -> None:
    """While its VMs grow older, watched for some minutes at first, when most of what is known is of older ones."""
    random, truth, false = np.random.default_rng(8), EarlyThenSteady(0.3, 1.0, 0.02), 0
    for _ in range(300):
        lived, watched = truth.quantile(1 - random.random(150)), random.uniform(2, 24, 150)
        known = KaplanMeier(Observations.of(np.minimum(lived, watched), lived <= watched))
        new = truth.quantile(1 - random.random(30))
        looks = [
            compare(known, Observations.of(np.minimum(new, age), new <= age)) for age in (0.25, 0.5, 1, 2, 4, 8, 16)
        ]
        false += any(look and look.alarm for look in looks)
    assert false / 300 <= 2.5 * FALSE_ALARMS
    assert [blocks(vms) for vms in (7, 30, 59, 60, 95)] == [(0, 7), (0, 30), (0, 30), (30, 60), (60, 90)]
    assert LATEST == 30


def test_other_vms_fall_into_their_interval_as_often_as_it_says() -> None:
    random = np.random.default_rng(4)
    truth, inside, asked = EarlyThenSteady(0.3, 1.0, 0.02), 0, 0
    for _ in range(100):
        lived, watched = drawn(truth, random, 150), random.uniform(1, 30, 150)
        model = KaplanMeier(Observations.of(np.minimum(lived, watched), lived <= watched))
        others = drawn(truth, random, 60)
        for age in (1.0, 4.0, 12.0, 20.0):
            low, high = model.alive_of(60, age)
            inside, asked = inside + (low <= int((others > age).sum()) <= high), asked + 1
    assert 0.85 <= inside / asked <= 0.95


def test_few_old_vms_lean_on_those_of_other_places() -> None:
    """Ten that lived on say as much as ten do; thousands are believed."""
    kind = Observations.of([15.0] * 20 + [24.0] * 80, [True] * 20 + [False] * 80)
    few, many = (Observations.of([24.0] * vms, [False] * vms) for vms in (10, 5000))
    usual = continued(KaplanMeier(kind), 24.0).rate
    alone, leaning, sure = (
        continued(
            KaplanMeier(observed), 24.0, Observations.together([observed, kind] if observed is few else [observed])
        )
        for observed in (few, few, many)
    )
    assert alone.seen.events == leaning.seen.events == 0
    assert usual / 4 < leaning.rate < usual
    assert 0 < sure.rate < usual / 100
    assert np.isfinite(leaning.quantile(np.array([1e-6])))


@pytest.mark.parametrize(("cohort", "end"), [(1, math.inf), (8, math.inf), (1, 24.0)])
def test_blocks_of_courses_differ_as_samples_of_vms_do(cohort: int, end: float) -> None:
    random = np.random.default_rng(5)
    lived = Weibull(12.0).quantile(1 - random.random(80))
    model = KaplanMeier(Observations.of(lived, [True] * 80).in_cohorts([cohort] * 10), end)
    unsure = resampled(model, 3)
    assert resampled(model, 3) is unsure, "plans that are compared take place with the same"
    drawn = unsure.quantile(1 - random.random((200 * BLOCKS, 2)))
    alive = (drawn.reshape(BLOCKS, -1) > 10).mean(axis=1)
    share = float(model.survival(np.array(10.0)))
    assert alive.mean() == pytest.approx(share, abs=0.03)
    chance = share * (1 - share) * (model.observed.design_effect / 80 + 1 / 400)
    assert alive.var() == pytest.approx(chance, rel=0.6)
    assert drawn.max() <= end
    aged = unsure.quantile(1 - random.random((200 * BLOCKS, 2)), np.full((200 * BLOCKS, 2), 8.0))
    assert aged.min() > 8
    assert (aged > 10).mean() == pytest.approx(share / float(model.survival(np.array(8.0))), abs=0.03)
