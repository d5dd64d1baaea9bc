"""How long transient VMs live, for people to read: the answer of `transient lifetimes`.

The answer is plain numbers and words. What computes them needs NumPy and SciPy and is loaded when
it is asked.
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
"""Of the band around the survival that was observed."""
_AGES = (0, 1, 2, 4, 8, 12, 18, 24, 48, 96, 192, 384)
_RISK = 0.1
_HOUR = 3600.0
_POINTS = 240
_WIDTH = 79


@dataclass(frozen=True)
class Job:
    """Work that is lost with its VM: its length, the VM's age at its begin, what a checkpoint
    takes, and what passes until it goes on elsewhere. Seconds.
    """

    work: float
    age: float = 0.0
    checkpoint_cost: float = 60.0
    restart: float = 300.0


@dataclass(frozen=True)
class Lifetimes:
    """What is known about the lives of some VMs. `study` has the models themselves."""

    study: Study
    job: Job | None = None

    @property
    def model(self) -> LifetimeModel:
        """Survival as it was observed, to plan with; beyond that Spot VMs keep the hazard of their
        later hours.
        """
        return self.study.model

    @property
    def title(self) -> str:
        """Whose lifetimes they are, and of when."""
        source = self.study.source
        if source.dated:
            return f"{source.title} ({source.dated})"
        return source.title

    @property
    def counted(self) -> str:
        """`156 VMs, 72 revoked, 84 not, watched up to 24 h`."""
        vms, revoked = self.study.counts
        if self.study.question.capped:
            watched = min(self.study.watched, 24)
        else:
            watched = self.study.watched
        return f"{count(vms, 'VM')}, {revoked} revoked, {vms - revoked} not; watched up to {number(watched)} h"

    @cached_property
    def rows(self) -> list[dict[str, float]]:
        """One dict per `age` in hours.

        `alive`: the share of VMs that live longer; `low`, `high`: between which it lies with 90%;
        `hazard`: revocations per hour of a VM's life since the age before; `trusted_hours`: for how
        long a VM of that age may be trusted before the risk passes one in ten.
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
        """What the table says, in a sentence or two."""
        lived = [
            f"{row['alive']:.0%} live {row['age']:g} h" for row in self.rows if row["age"] == 1
        ]
        lived += (
            [f"{self.rows[-1]['alive']:.0%} live {self.rows[-1]['age']:g} h"]
            if self.rows[-1]["age"] > 1
            else []
        )
        known = [row for row in self.rows if math.isfinite(row["trusted_hours"])]
        if lived:
            said = f"Of fresh VMs {' or longer, '.join(lived)} or longer."
        else:
            said = ""
        if known and (best := max(known, key=lambda row: row["trusted_hours"]))["age"]:
            within = _hours(best["trusted_hours"])
            said += f" Of those that have lived {best['age']:g} h, the safest, one in ten is gone within the next {within}."
        return said.strip()

    @property
    def fits(self) -> list[dict[str, Any]]:
        """One dict per formula, the likeliest first: its name, aic, distance (Kolmogorov-Smirnov),
        parameters.
        """
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
        """What to bear in mind, a sentence each: of the source, of what Spot VMs are, of a change,
        of the job.
        """
        study = self.study
        notes = [*study.source.caveats]
        if not study.question.capped:
            notes.append(
                f"Spot VMs have no time limit; beyond {number(study.watched)} h nothing was observed."
            )
        else:
            notes.append(
                "Compute Engine ends preemptible VMs at 24 h, which counts as no revocation."
            )
        if study.change:
            notes.append(_change_words(self))
        return [*notes, *(self._job_words(self.job) if self.job else ())]

    @property
    def alarm(self) -> bool:
        """Whether the latest VMs live otherwise than what was learned says."""
        return bool(self.study.change and self.study.change.alarm)

    @cached_property
    def drawing(self) -> Mapping[str, Any]:
        """What a figure draws, as lists of (hours, share): `observed`, `low`, `high`, and by name
        `fits`.

        `hazard`: (from hours, to hours, per hour); `end`: where the axis ends; `stepwise`: whether
        the share falls in steps, because ages are known exactly.
        """
        observed = self.study.observed
        end = self.study.watched
        ages, shares = (list(map(float, values)) for values in observed.steps)
        if observed.observed.grouped:  # its band has a corner at both sides of each age
            edges = _array(
                [
                    edge
                    for age in ages
                    for edge in (math.nextafter(age, 0.0), math.nextafter(age, math.inf))
                ]
            )
        else:
            edges = _array(ages)
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
        if age:
            whose = f"A VM of {_hours(age)}"
        else:
            whose = "A fresh VM"
        said = [
            f"{whose} is revoked within the {_hours(work)} of the job with a risk of {mine:.0%}."
        ]
        if age:
            if keep(self.model, age, work):
                what = "it is the one to trust"
            else:
                what = "take a fresh one"
            said = [f"{said[0][:-1]}, a fresh one with {fresh:.0%}: {what}."]
        if age + work > self.study.watched and not self.study.question.capped:
            rests = f"it rests on {count(self.study.late_events, 'revocation')}"
            said.append(
                f"Beyond {number(self.study.watched)} h the hazard of the later hours is taken to go on; {rests}."
            )
        when = ", ".join(_hours(after) for after in best.checkpoints[:8]) + (
            ", ..." if len(best.checkpoints) > 8 else ""
        )
        if best.checkpoints:
            plan = f"Checkpoints after {when} of work"
        else:
            plan = "No checkpoint is worth its time"
        said.append(
            f"{plan}: the job then takes {_hours(best.hours)} in the mean, {best.overhead:.1%} more than its work. "
            f"With one every {_hours(usual)} (Young and Daly's rule) it takes {fixed.overhead:.1%} more, without any "
            f"{none.overhead:.1%}."
        )
        said.append(
            "A run on a cluster needs none of this: its model lives on parameter servers on demand, and a revoked "
            "worker takes a step with it at most."
        )
        return said

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
    """How long `spot` or `preemptible` VMs with a GPU (of all kinds) live in a region (in all).

    `source`: `own` (your VMs on Compute Engine), `emulated`, `published`, or a CSV file; by default
    your own where they are enough, else the published ones. `fit`: formulas to fit (all that make
    sense). `job` and what follows, in seconds: plan work that is lost with its VM. Raises
    PlanError, below 30 revocations or without NumPy and SciPy, and DeclarationError.
    """
    from ...planner.lifetimes.sources import Question
    from ...planner.lifetimes.study import study

    question = Question(gpu.lower() if gpu else None, region, provisioning_model)
    if job:
        asked = Job(job, age, checkpoint_cost)
    else:
        asked = None
    answer = Lifetimes(study(question, source, tuple(fit)), asked)
    _ = answer.notes  # a job that cannot be planned is said now, not when the answer is shown
    return answer


def _array(values: Sequence[float]) -> Any:
    import numpy as np

    return np.array(values, float)


def _hours(hours: float) -> str:
    return render_duration(round(hours * _HOUR / 60) * 60 if hours * _HOUR >= 60 else hours * _HOUR)


def _change_words(answer: Lifetimes) -> str:
    from ...planner.lifetimes.kaplan_meier import VMS_PER_FALSE_ALARM

    change = answer.study.change
    assert change
    seen = (
        f"Of your latest {count(change.vms, 'VM')} {change.revoked} were revoked where {number(change.expected)} "
        f"were to be expected"
    )
    if change.alarm:
        return f"CHANGED: {seen}; by accident that happens once in {VMS_PER_FALSE_ALARM:,} VMs."
    return f"{seen}: no sign of a change."


def _survival(rows: list[dict[str, float]]) -> list[str]:
    header = ("AGE", "STILL ALIVE", "90% BAND", "REVOKED PER HOUR", "ONE IN TEN IS GONE WITHIN")
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
    """For how long a VM may be trusted; nothing where it was not watched long enough to say."""
    if math.isinf(row["trusted_hours"]):
        return ""
    return _hours(row["trusted_hours"])


def _formulas(fits: list[dict[str, Any]]) -> list[str]:
    best = min((fit["aic"] for fit in fits), default=0.0)
    """AIC: Akaike's criterion, the less the better. KS: Kolmogorov and Smirnov's, the largest gap
    to the observed.
    """
    return table(
        ("FORMULA", "AIC (LESS IS BETTER)", "LARGEST GAP (KS)", "PARAMETERS"),
        [
            (
                each["name"],
                f"best + {each['aic'] - best:.1f}" if each["aic"] > best else f"{best:.1f}",
                f"{each['distance']:.1%}",
                ", ".join(f"{name} {number(value)}" for name, value in each["parameters"].items()),
            )
            for each in fits
        ],
    )
