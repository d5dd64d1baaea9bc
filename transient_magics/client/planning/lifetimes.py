"""Lifetimes of transient VMs as tables and text: the answer of `transient lifetimes`.

NumPy and SciPy are loaded only when the lifetimes are computed.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...spec import render_duration
from ..text import count, number, table

if TYPE_CHECKING:
    from ...planner.lifetimes.parametric import LifetimeModel
    from ...planner.lifetimes.study import Study

LEVEL = 0.9
"""The level of the band around the observed survival."""
_AGES = (0, 1, 2, 4, 8, 12, 18, 24, 48, 96, 192, 384)
_RISK = 0.1
_HOUR = 3600.0
_POINTS = 240
_WIDTH = 79


@dataclass(frozen=True)
class Job:
    """A job that is lost with its VM. All values are in seconds.

    Attributes
    ----------
    work : float
        The time that the job takes without interruptions.
    age : float
        The age of the VM on which it starts.
    checkpoint_cost : float
        The time of a checkpoint.
    restart : float
        The time until it continues on another VM.
    """

    work: float
    age: float = 0.0
    checkpoint_cost: float = 60.0
    restart: float = 300.0


@dataclass(frozen=True)
class Lifetimes:
    """Observed lifetimes of VMs, and formulas fitted to them.

    Attributes
    ----------
    study : Study
        The observations and models.
    job : Job or None
        The job to plan.

    Examples
    --------
    >>> tm.lifetimes("k80", source="published").rows
    """

    study: Study
    job: Job | None = None

    @property
    def model(self) -> LifetimeModel:
        """The observed survival, for plans. Beyond it, Spot VMs keep the hazard of later hours."""
        return self.study.model

    @property
    def title(self) -> str:
        """The source and the date of the lifetimes."""
        source = self.study.source
        if source.dated:
            return f"{source.title} ({source.dated})"
        return source.title

    @property
    def counted(self) -> str:
        """The numbers of VMs, such as `156 VMs, 72 revoked, 84 not; observed up to 24 h`."""
        vms, revoked = self.study.counts
        watched = self.study.watched
        if self.study.question.capped:
            watched = min(watched, 24)
        kept = vms - revoked
        return (
            f"{count(vms, 'VM')}, {revoked} revoked, {kept} not; observed up to {number(watched)} h"
        )

    @cached_property
    def rows(self) -> list[dict[str, float]]:
        """One dict per `age` in hours.

        Its keys are `alive` (the share of VMs that live longer), `low` and `high` (the 90% band of
        it), `hazard` (revocations per hour since the age before), and `trusted_hours` (the time in
        which one in ten VMs of that age is revoked).
        """
        from ...planner.checkpoints import trusted_hours

        study = self.study
        ages = [age for age in _AGES if age <= study.watched]
        low, high = study.observed.band(_array(ages), LEVEL)
        hazards = {after: hazard for _, after, hazard in study.hazard()}
        return [
            {
                "age": age,
                "alive": float(alive),
                "low": float(least),
                "high": float(most),
                "hazard": hazards.get(age, math.nan),
                "trusted_hours": trusted_hours(
                    study.observed, age, _RISK, max(study.watched - age, 0.0)
                ),
            }
            for age, alive, least, most in zip(
                ages, study.observed.survival(_array(ages)), low, high, strict=True
            )
        ]

    @property
    def summary(self) -> str:
        """The table in a sentence or two."""
        shown = [row for row in self.rows if row["age"] == 1]
        if self.rows[-1]["age"] > 1:
            shown.append(self.rows[-1])
        sentences: list[str] = []
        if shown:
            lived = [f"{row['alive']:.0%} live {row['age']:g} h or longer" for row in shown]
            sentences.append(f"Of fresh VMs {', '.join(lived)}.")
        finite = [row for row in self.rows if math.isfinite(row["trusted_hours"])]
        if finite:
            best = max(finite, key=lambda row: row["trusted_hours"])
            if best["age"]:
                within = _hours(best["trusted_hours"])
                sentences.append(
                    f"VMs of {best['age']:g} h are the safest: one in ten is revoked within the "
                    f"next {within}."
                )
        return " ".join(sentences)

    @property
    def fits(self) -> list[dict[str, Any]]:
        """Formulas, best first, as dicts: name, aic, distance (Kolmogorov-Smirnov), parameters."""
        return [
            {
                "name": fit.name,
                "aic": fit.aic,
                "distance": fit.distance,
                "parameters": dict(fit.parameters),
            }
            for fit in self.study.fits
        ]

    @cached_property
    def notes(self) -> list[str]:
        """Sentences about the source, the time limit of VMs, a change of lifetimes, and the job."""
        study = self.study
        notes = [*study.source.caveats]
        if not study.question.capped:
            notes.append(
                "Spot VMs have no time limit; there are no observations beyond "
                f"{number(study.watched)} h."
            )
        else:
            notes.append(
                "Compute Engine ends preemptible VMs at 24 h, which does not count as a revocation."
            )
        if study.change:
            notes.append(_change_words(self))
        if self.job:
            notes += self._job_words(self.job)
        return notes

    @property
    def alarm(self) -> bool:
        """Whether the lifetimes of the latest VMs differ from earlier ones."""
        return bool(self.study.change and self.study.change.alarm)

    @cached_property
    def drawing(self) -> Mapping[str, Any]:
        """The data of a figure.

        Lists of (hours, share): `observed`, `low`, `high`, and `fits` by name. `hazard` has (from
        hours, to hours, per hour). `end` is the end of the axis in hours, and `stepwise` whether
        the share falls in steps, because ages are exact.
        """
        observed = self.study.observed
        end = self.study.watched
        ages, shares = (list(map(float, values)) for values in observed.steps)
        edges = ages
        if observed.observed.grouped:  # its band has a corner on both sides of each age
            edges = [math.nextafter(age, side) for age in ages for side in (0.0, math.inf)]
        edges = _array(edges)
        low, high = observed.band(edges, LEVEL)
        smooth = [end * place / _POINTS for place in range(_POINTS + 1)]
        curves = {fit.name: fit.model.survival(_array(smooth)) for fit in self.study.fits}
        return {
            "end": end,
            "stepwise": not observed.observed.grouped,
            "observed": list(zip(ages, shares, strict=True)),
            "low": list(zip(map(float, edges), map(float, low), strict=True)),
            "high": list(zip(map(float, edges), map(float, high), strict=True)),
            "fits": {
                name: list(zip(smooth, map(float, curve), strict=True))
                for name, curve in curves.items()
            },
            "hazard": self.study.hazard(),
        }

    def _job_words(self, job: Job) -> list[str]:
        from ...planner.checkpoints import Planner, keep, risk, young_daly

        work, age, cost, restart = (
            seconds / _HOUR for seconds in (job.work, job.age, job.checkpoint_cost, job.restart)
        )
        planner = Planner(self.model, work, cost, restart)
        best = planner.plan(age)
        none = planner.every(work, age)
        _, revoked = self.study.counts
        usual = young_daly(cost, self.study.source.observed.watched_hours / revoked)
        fixed = planner.every(usual, age)
        mine = risk(self.model, age, work)
        fresh = risk(self.model, 0.0, work)
        within = f"is revoked within the {_hours(work)} of the job with a risk of {mine:.0%}"
        sentences = [f"A fresh VM {within}."]
        if age:
            choice = "use a fresh VM"
            if keep(self.model, age, work):
                choice = "use the old VM"
            sentences = [f"A VM of {_hours(age)} {within}, a fresh one with {fresh:.0%}: {choice}."]
        if age + work > self.study.watched and not self.study.question.capped:
            late = count(self.study.late_events, "revocation")
            sentences.append(
                f"Beyond {number(self.study.watched)} h, the hazard of the later hours is "
                f"assumed, from {late}."
            )
        plan = "No checkpoint is worth its time"
        if best.checkpoints:
            times = [_hours(after) for after in best.checkpoints[:8]]
            if len(best.checkpoints) > 8:
                times.append("...")
            plan = f"Checkpoints after {', '.join(times)} of work"
        sentences.append(
            f"{plan}: the job then takes {_hours(best.hours)} on average, {best.overhead:.1%} "
            f"more than its work. With one every {_hours(usual)} (Young and Daly's rule) it takes "
            f"{fixed.overhead:.1%} more, without any "
            f"{none.overhead:.1%}."
        )
        sentences.append(
            "A run on a cluster needs no such plan: its model is on on-demand parameter servers, "
            "and a revoked worker loses one step at most."
        )
        return sentences

    def __str__(self) -> str:
        title = textwrap.wrap(self.title, _WIDTH)
        summary = textwrap.wrap(self.summary, _WIDTH)
        parts = [
            *title,
            f"{self.counted}.",
            *summary,
            "",
            *_survival(self.rows),
            "",
            *_formulas(self.fits),
            "",
        ]
        return "\n".join(
            [*parts, *(line for note in self.notes for line in textwrap.wrap(note, _WIDTH))]
        )

    def __repr__(self) -> str:
        return str(self)


def lifetimes(
    gpu: str | None = None,
    region: str | None = None,
    source: str | None = None,
    provisioning_model: str = "spot",
    fit: Sequence[str] = (),
    job: float | None = None,
    age: float = 0.0,
    checkpoint_cost: float = 60.0,
) -> Lifetimes:
    """Return lifetimes of transient VMs.

    Parameters
    ----------
    gpu
        The GPU of the VMs, or `cpu` (default: all).
    region
        The region (default: all).
    source
        `own` (your VMs on Compute Engine), `emulated`, `published`, or a CSV file (default: `own`
        if there are enough, else `published`).
    provisioning_model
        `spot` or `preemptible`.
    fit
        The formulas to fit (default: all that are suitable).
    job
        The time of a job to plan, in seconds.
    age
        The age of the VM on which the job starts, in seconds.
    checkpoint_cost
        The time of a checkpoint of the job, in seconds.

    Returns
    -------
    Lifetimes
        The observed survival and the fitted formulas, shown as tables.

    Raises
    ------
    PlanError
        There are fewer than 30 revocations, or NumPy or SciPy is not installed.
    DeclarationError
        An option is invalid.

    Examples
    --------
    >>> tm.lifetimes("k80", source="published", job=4 * 3600)
    """
    from ...planner.lifetimes.sources import Question
    from ...planner.lifetimes.study import study

    if gpu:
        gpu = gpu.lower()
    question = Question(gpu or None, region, provisioning_model)
    planned = None
    if job:
        planned = Job(job, age, checkpoint_cost)
    answer = Lifetimes(study(question, source, tuple(fit)), planned)
    _ = answer.notes  # computed now, so that a job that cannot be planned raises here
    return answer


def _array(values: Sequence[float]) -> Any:
    import numpy as np

    return np.array(values, float)


def _hours(hours: float) -> str:
    seconds = hours * _HOUR
    if seconds >= 60:
        seconds = round(seconds / 60) * 60
    return render_duration(seconds)


def _change_words(answer: Lifetimes) -> str:
    from ...planner.lifetimes.kaplan_meier import VMS_PER_FALSE_ALARM

    change = answer.study.change
    assert change
    latest = (
        f"Of your latest {count(change.vms, 'VM')}, {change.revoked} were revoked; "
        f"{number(change.expected)} "
        f"were expected"
    )
    if change.alarm:
        return f"CHANGED: {latest}. By chance, this happens once in {VMS_PER_FALSE_ALARM:,} VMs."
    return f"{latest}: no sign of a change."


def _survival(rows: list[dict[str, float]]) -> list[str]:
    header = ("AGE", "STILL ALIVE", "90% BAND", "REVOKED PER HOUR", "ONE IN TEN IS REVOKED WITHIN")
    return table(
        header,
        [
            (
                f"{row['age']:g} h",
                f"{row['alive']:.0%}",
                f"{row['low']:.0%} to {row['high']:.0%}",
                "" if math.isnan(row["hazard"]) else f"{row['hazard']:.2%}",
                _trust(row),
            )
            for row in rows
        ],
    )


def _trust(row: Mapping[str, float]) -> str:
    """Return the time in which one in ten VMs is revoked; empty if it is longer than observed."""
    if math.isinf(row["trusted_hours"]):
        return ""
    return _hours(row["trusted_hours"])


def _formulas(fits: list[dict[str, Any]]) -> list[str]:
    """Return the table of formulas, with Akaike's criterion and Kolmogorov-Smirnov distances."""
    best = min((fit["aic"] for fit in fits), default=0.0)
    rows: list[tuple[str, ...]] = []
    for fit in fits:
        aic = f"{best:.1f}"
        if fit["aic"] > best:
            aic = f"best + {fit['aic'] - best:.1f}"
        parameters = [f"{name} {number(value)}" for name, value in fit["parameters"].items()]
        rows.append((fit["name"], aic, f"{fit['distance']:.1%}", ", ".join(parameters)))
    return table(("FORMULA", "AIC (LESS IS BETTER)", "LARGEST GAP (KS)", "PARAMETERS"), rows)
