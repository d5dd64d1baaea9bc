"""A plan: what one cluster would take for a run, as distributions of its time and of its bill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..catalog import larger_shapes, never_on_demand, region, transfer_price, worker_entry
from ..errors import PlanError
from ..spec import WorkerGroup, if_capacity_lasts, render_duration, render_money
from .choices import Choice, Lifetimes, immortal
from .efficiency import Accuracies, Accuracy
from .lifetimes.kaplan_meier import Continued
from .lifetimes.sources import stand_in
from .ranges import middle
from .simulate import Course, Outcome, simulate
from .speeds.workloads import Workload
from .stalls.terms import terms_words

if TYPE_CHECKING:
    from .deadlines.cost import DeadlineCost

RUNS = 10_000
_FEW = 10
_WORTH = 1.05
_AS_FAST = 0.98
"""A machine is worth a word that is so many times as fast; of those about as fast as the fastest
the cheapest is told.
"""
_NEAR_LIMIT = 0.5  # of what servers are said to take: where that is estimated, it may hold workers back from there on
_HARDLY = 0.01
"""So few workers lost in the mean need no digits."""

AGAINST = "against Google's on-demand price"
"""To what a saving is compared."""


@dataclass(frozen=True, repr=False)
class Plan:
    """What `choice` takes for `train_steps` steps of `workload`. Hours from the request on, or from
    the first step where the workload is a published one; dollars with parameter servers and data
    transfer.
    """

    choice: Choice
    workload: Workload
    train_steps: int
    outcome: Outcome
    hourly: float
    """Dollars per hour of the declared cluster, data transfer included."""
    steps_per_second: float
    """Of the undisturbed cluster."""
    revocations: float
    """How many workers are lost, in the mean."""
    seed: int
    """Of the simulation."""
    risk: str
    """Which revocations the simulation had."""
    notes: tuple[str, ...] = ()
    deadline: DeadlineCost | None = None
    """What its deadline and others cost; None where none was given."""
    accuracy: Accuracy | None = None
    """How accurate runs like it became; None where none is known."""

    @property
    def hours(self) -> float:
        """The mean until a course has come to its end, with those before it that lost every worker."""
        return float(self._done.hours.mean())

    @property
    def dollars(self) -> float:
        """The mean until a course has come to its end, with those before it that lost every worker."""
        return float(self._done.dollars.mean())

    @property
    def finished(self) -> float:
        """The share of courses that come to their end; below 1 where all workers may be lost and
        none is replaced.
        """
        return self.outcome.finished

    @property
    def on_demand_hours(self) -> float:
        """The mean that the same cluster would take on demand, where nothing is revoked."""
        return float(self._on_demand.hours.mean())

    @property
    def on_demand_dollars(self) -> float:
        """The mean that the same cluster would cost on demand."""
        return float(self._on_demand.dollars.mean())

    @property
    def saved(self) -> float:
        """The share of the cost on demand that is saved, 0 to 1."""
        if self.on_demand_dollars:
            return 1 - self.dollars / self.on_demand_dollars
        return 0.0

    @property
    def line(self) -> str:
        """The line that declares the cluster."""
        return self.choice.line

    def interval(self, what: str = "hours", level: float = 0.9) -> tuple[float, float]:
        """The middle `level` of the `hours`, `dollars` or `revocations`, or where the share
        `finished` lies with that probability, as far as lifetimes are known. Raises PlanError for
        anything else.
        """
        if what not in ("hours", "dollars", "revocations", "finished") or not 0 < level < 1:
            raise PlanError(
                "An interval is of hours, dollars, revocations or finished, with a level between 0 and 1",
                fix='For example: plan.interval("hours", 0.9)',
            )
        if what == "finished":
            return self.outcome.finished_between(level)
        return middle(getattr(self._done, what), level)

    def within(self, hours: float | None = None, dollars: float | None = None) -> float:
        """The probability to be done within so many hours and dollars."""
        quick = self._done.hours <= (np.inf if hours is None else hours)
        return float(
            (quick & (self._done.dollars <= (np.inf if dollars is None else dollars))).mean()
        )

    def __str__(self) -> str:
        return plan_text(self)

    __repr__ = __str__

    @cached_property
    def _on_demand(self) -> Outcome:
        # With the same draws: where the speed is a guess, both are as far off.
        course = self.choice.course(self.workload, self.train_steps, on_demand=True)
        return simulate(course, runs=len(self.outcome.hours), seed=self.seed)

    @cached_property
    def _done(self) -> Outcome:
        return self.outcome.until_done()


def make_plan(
    choice: Choice,
    workload: Workload,
    train_steps: int,
    lifetimes: Lifetimes = immortal,
    *,
    lost: int | None = None,
    replaced: bool = True,
    risk: str = "no revocations",
    runs: int = RUNS,
    seed: int = 0,
    notes: Sequence[str] = (),
    accuracies: Accuracies | None = None,
) -> Plan:
    """Simulate it. `lost`: exactly so many workers are revoked, instead of by `lifetimes`. Raises
    PlanError.
    """
    workers = choice.workers
    if lost is not None and lost >= workers and not replaced:
        raise PlanError(
            f"{lost} revocations leave none of {workers} workers",
            where="revocations",
            fix="Plan for fewer, or with replacements.",
        )
    if choice.far() and not workload.guess:
        workload = replace(
            workload, guess="no run was measured at this distance from its parameter servers"
        )
    course = choice.course(workload, train_steps, lifetimes, replace=replaced)
    outcome = simulate(course, runs=runs, seed=seed, revocations=lost)
    if not outcome.finished:
        raise PlanError(
            "No course of this run comes to its end: its workers are revoked before they train",
            fix="Take other VMs, or --provisioning-model standard.",
        )
    speed = choice.steps_per_second(workload)
    return Plan(
        choice=choice,
        workload=workload,
        train_steps=train_steps,
        outcome=outcome,
        hourly=_hourly(choice, workload, speed),
        steps_per_second=speed,
        revocations=float(outcome.revocations.mean()),
        seed=seed,
        risk=risk,
        notes=(
            *notes,
            *_notes(choice, workload),
            *_stand_ins(course),
            *_few(choice, course, outcome),
        ),
        accuracy=accuracies.at(workers, train_steps) if accuracies else None,
    )


def _transfer_words(choice: Choice, group: WorkerGroup, dollars_per_step: float) -> str:
    """The cost of data between zones; to two digits where the price is not confirmed."""
    dollars = 1e6 * dollars_per_step
    said = f"Data between {group.zone} and the parameter servers in {choice.home_zone} costs"
    if transfer_price(group.zone or "", choice.home_zone).confirmed:
        return f"{said} ${dollars:,.2f} per million steps."
    digits = 1 - math.floor(math.log10(dollars))
    about = f"{round(dollars, digits):,.{max(digits, 0)}f}"
    return f"{said} about ${about} per million steps, by a price that is not confirmed."


def _distance_words(choice: Choice, workload: Workload, group: WorkerGroup) -> str:
    """How a distant worker's speed is estimated."""
    away = choice.round_trip(group)
    added = choice.added_seconds(workload, group)
    return (
        f"The distance from {group.zone} to the parameter servers in {choice.home_zone} is estimated, not measured: "
        f"{1000 * away:.0f} ms there and back, which adds about {1000 * added:.0f} ms to a step. Most simulated "
        "courses draw between a sixth and six times that."
    )


def _prices(choice: Choice, workload: Workload) -> list[str]:
    """How old the Spot prices are that dollars rest on."""
    if not choice.transient:
        return []
    return list(
        filter(None, [choice.worker_price(workload, group).age_words for group in choice.placed])
    )


def held_back(choice: Choice, workload: Workload) -> list[str]:
    """What holds the workers back, as far as that is known: parameter servers, mini-batches, parts
    of a step.
    """
    return [
        *filter(None, [bound(choice, workload)]),
        *prepared(choice, workload),
        *stalled(choice, workload),
    ]


def bound(choice: Choice, workload: Workload) -> str:
    """Where parameter servers hold the workers back from the first step, how far, and what one more
    would give; else nothing. They do where workers alone would make more steps than the servers
    take.
    """
    if workload.synchronous or choice.load(workload) < 1:
        return ""
    more = replace(choice, servers=choice.servers + 1)
    speed = choice.steps_per_second(workload)
    then = more.steps_per_second(workload)
    if choice.servers == 1:
        servers = "The parameter server holds"
    else:
        servers = f"{choice.servers} parameter servers hold"
    return (
        f"{servers} the workers back from the first step: {speed:.3g} steps/s, where they could make "
        f"{choice.offered(workload):.3g}. With --ps {more.servers}: {then:.3g} steps/s, {then / speed - 1:.0%} more."
    )


def _started(choice: Choice, workload: Workload) -> list[str]:
    """Where start-up is that of your own VMs."""
    said: list[str] = []
    for group in choice.placed:
        start = choice.start(
            workload, group.accelerator, choice.transient, region(group.zone or "")
        )
        if start.own:
            seconds = start.startup.running + start.startup.usable
            if group.accelerator == "cpu":
                what = "VMs without a GPU"
            else:
                what = f"VMs with the {group.accelerator.upper()}"
            said.append(
                f"{what} take {render_duration(seconds)} until they can be used, as your last {start.own} did."
            )
    return said


def prepared(choice: Choice, workload: Workload) -> list[str]:
    """For workers that wait for their mini-batches: for how much of a step, and the machine with
    which they would not any more, or least; nothing for others.
    """
    said: list[str] = []
    for group in choice.placed:
        step = choice.step(workload, group)
        wait = workload.waits.get(choice.kind(group), 0.0)
        whole = step.seconds + workload.service_seconds
        if not step.measured or not wait:
            continue
        name = group.accelerator.upper()
        waits = f"Steps on the {name} wait for their mini-batches for {min(wait / whole, 1):.0%} of the time"
        if not (better := _faster_machines(choice, workload, group, whole)):
            said.append(f"{waits}, and no larger machine has it.")
            continue
        fastest = max(times for times, *_ in better)
        times, more, machine = min(
            (each for each in better if each[0] > _AS_FAST * fastest), key=lambda each: each[1]
        )
        said.append(
            f"{waits}: with --machine-type {machine} they would be {times:.2g} times as fast, for "
            f"{render_money(more)} per hour more for each worker, if preparation is spread over all its vCPUs."
        )
    return list(dict.fromkeys(said))


def stalled(choice: Choice, workload: Workload) -> list[str]:
    """What a step is made of, of workers whose stalls were measured, or those of their GPU in
    another machine.
    """
    said: list[str] = []
    for group in choice.placed:
        kind = choice.kind(group)
        if terms := workload.terms(kind):
            which = f"{group.accelerator.upper()} in {worker_entry(*kind.partition('/')[::2]).machine_type}"
            said += filter(
                None, [terms_words(which, terms, workload.change(terms, kind, choice.disk))]
            )
    return list(dict.fromkeys(said))


def _faster_machines(
    choice: Choice, workload: Workload, group: WorkerGroup, whole: float
) -> list[tuple[float, float, str]]:
    """Larger machines with which a worker is faster: how many times, for how many dollars per hour
    more, which.
    """
    now = choice.worker_price(workload, group)
    found = list[tuple[float, float, str]]()
    for machine in larger_shapes(group.accelerator):
        other = replace(choice, machines={**choice.machines, group.accelerator: machine})
        price = other.worker_price(workload, group)
        if choice.transient:
            more = price.transient - now.transient
        else:
            more = price.on_demand - now.on_demand
        times = whole / (other.step(workload, group).seconds + workload.service_seconds)
        if times > _WORTH and more > 0:
            found.append((times, more, machine))
    return found


def _stand_ins(course: Course) -> list[str]:
    """A sentence for each GPU and region without published lifetimes."""
    return list(dict.fromkeys(filter(None, [stand_in(group.lifetimes) for group in course.groups])))


def _few(choice: Choice, course: Course, outcome: Outcome) -> list[str]:
    """Of runs longer than VMs were watched: where few revocations tell of such ages."""
    longest = float(np.quantile(outcome.hours[np.isfinite(outcome.hours)], 0.95))
    return [
        f"Beyond {model.watched:g} h the risk of the {placed.accelerator.upper()} in {region(placed.zone or '')} "
        f"rests on {model.seen.events:g} revocation{'' if model.seen.events == 1 else 's'}, and on its other regions."
        for placed, group in zip(choice.placed, course.groups, strict=True)
        if isinstance(model := group.lifetimes, Continued)
        and model.watched < longest
        and model.seen.events < _FEW
    ]


def _hourly(choice: Choice, workload: Workload, speed: float) -> float:
    course = choice.course(workload, 1)
    vms = (
        sum(group.count * group.hourly for group in course.groups)
        + course.servers * course.server_hourly
    )
    made = choice.shares(
        workload
    )  # of the steps: distant workers make fewer of them, and pay for fewer
    per_step = sum(
        share * group.transfer_dollars for share, group in zip(made, course.groups, strict=True)
    )
    return vms + 3600 * speed * per_step


def _notes(choice: Choice, workload: Workload) -> list[str]:
    said = [*workload.notes]
    mixed = len({group.accelerator for group in choice.placed}) > 1
    if workload.synchronous:
        counted = max(choice.workers - workload.backup_workers, 1)
        said.append(
            f"A step is taken together and counts {counted} mini-batches; it waits for the slowest of them."
        )
        if mixed:
            said.append(
                "With --batching dynamic slower GPUs take fewer examples, and it waits less than computed here."
            )
    elif mixed:
        said.append(
            "Unequal GPUs are as fast as the sum of their speeds. With --batching dynamic the slower ones take fewer "
            "examples a step, so that their gradients come no later than others'."
        )
    said += filter(None, [never_on_demand(group.accelerator for group in choice.placed)])
    for group in choice.placed:
        estimate = choice.step(workload, group)
        if not estimate.measured:
            said.append(
                f"The {group.accelerator.upper()}'s step time is not measured but {estimate.source}: "
                f"it may be {estimate.error:.0%} off."
            )
        if price := choice.transfer_dollars(workload, group):
            said.append(_transfer_words(choice, group, price))
    said += [_distance_words(choice, workload, group) for group in choice.far()]
    said += _prices(choice, workload)
    said += _started(choice, workload)
    said += held_back(choice, workload)
    if not workload.limit_measured and choice.load(workload) > _NEAR_LIMIT:
        said.append(
            f"How much its parameter servers take is not measured but computed from {workload.parameters:,} "
            f"parameters: it may be {workload.limit_error:.0%} off."
        )
    return list(dict.fromkeys(said))


def row(plan: Plan, *, judged: bool = False) -> tuple[str, ...]:
    """A plan in a table: time and bill with their ranges, how accurate (if plans are `judged`),
    saved, revocations, the line.
    """
    low, high = plan.interval("hours")
    least, most = plan.interval("dollars")
    if plan.saved >= 0.005:
        saved = f"{plan.saved:.0%}"
    else:
        saved = "-"
    accuracy = [accuracy_words(plan.accuracy) if plan.accuracy else "-"]
    return (
        hours(plan.hours),
        hours_between(low, high),
        render_money(plan.dollars),
        f"{render_money(least)} to {render_money(most)}",
        *(accuracy if judged else []),
        saved,
        lost_words(plan) if plan.choice.transient else "-",
        plan.line,
    )


def lasts(plans: Sequence[Plan]) -> str:
    """Return what plans with Spot or preemptible VMs take for granted."""
    return next(filter(None, (if_capacity_lasts(plan.choice.provisioning) for plan in plans)), "")


def plan_text(plan: Plan) -> str:
    """A plan in some lines."""
    low, high = plan.interval("hours")
    least, most = plan.interval("dollars")
    if plan.workload.from_first_step:
        counted = "from the first step"
    else:
        counted = "from the request"
    lines = [
        plan.line,
        f"{plan.train_steps:,} steps of {plan.workload.called}: {hours(plan.hours)} ({hours_between(low, high)}), "
        f"{render_money(plan.dollars)} ({render_money(least)} to {render_money(most)}){lasts([plan])}; "
        f"estimates and their ranges{guessed(plan)}, counted {counted}.",
        f"On demand: {hours(plan.on_demand_hours)}, {render_money(plan.on_demand_dollars)}"
        + (f"; {plan.saved:.0%} saved {AGAINST}." if plan.saved >= 0.005 else "."),
        f"{plan.steps_per_second:,.3g} steps/s, {render_money(plan.hourly)} per hour; {plan.risk}{_lost(plan)}.",
    ]
    lines += deadline_words(plan.deadline) if plan.deadline else []
    if plan.finished < 0.9995:
        least, most = plan.interval("finished")
        between = f"{1 - most:.1%} to {1 - least:.1%} as far as lifetimes are known"
        lost = f"{1 - plan.finished:.1%} of the courses ({between})"
        lines.append(f"{lost} lose every worker; time and cost count the run begun again.")
    return "\n".join([*lines, *_accuracy(plan), *left_out(plan), *plan.notes])


def _accuracy(plan: Plan) -> list[str]:
    if not plan.accuracy:
        return []
    if plan.accuracy.runs > 1:
        runs = f"{plan.accuracy.runs} runs"
    else:
        runs = "a run"
    told = f"as {runs} with as many workers and steps had; the range is that of such runs"
    if plan.accuracy.guess:
        told = f"as {runs} with as many workers and steps had: how others differ it does not tell"
    return [f"Accuracy {accuracy_words(plan.accuracy)}, {told}."]


def guessed(plan: Plan) -> str:
    if plan.workload.guess:
        return f" that are a guess ({plan.workload.guess})"
    return ""


def left_out(plan: Plan) -> list[str]:
    """What a declaration may add to the price; nothing where prices are those of a publication."""
    if plan.workload.from_first_step:
        return []
    hourly = plan.choice.prices(plan.workload).controller_price(plan.choice.home_zone).on_demand
    return [
        f"A VM for the controller (--service-account) is not in it; it adds {render_money(hourly)} per hour."
    ]


def lost_words(plan: Plan) -> str:
    """How many workers are lost: `6.1 (2 to 11)`; the number alone where it is given, or where it
    is below 0.01.
    """
    low, high = plan.interval("revocations")
    if plan.revocations >= _HARDLY:
        mean = f"{plan.revocations:.2g}"
    else:
        mean = f"under {_HARDLY:g}"
    if not plan.revocations:
        mean = "0"
    if low == high:
        return mean
    return f"{mean} ({low:.0f} to {high:.0f})"


def _lost(plan: Plan) -> str:
    """How many workers lifetimes cost; nothing where their number was given."""
    if plan.revocations == round(plan.revocations):
        return ""
    return f", {lost_words(plan)} workers lost"


# Hours, dollars, accuracies and deadlines in the words of plans, searches and forecasts.


def hours(value: float) -> str:
    """`31.2 min`, `3.91 h`, `52.4 h`."""
    if value < 1:
        return f"{60 * value:.3g} min"
    if value >= 100:
        return f"{value:,.0f} h"
    return f"{value:.3g} h"


def hours_between(low: float, high: float) -> str:
    """`12.1 to 13.5 min`, `58 min to 1.3 h`."""
    said = hours(low)
    until = hours(high)
    (number, unit), other = said.split(" "), until.split(" ")[1]
    if unit == other:
        return f"{number} to {until}"
    return f"{said} to {until}"


def accuracy_words(accuracy: Accuracy) -> str:
    """`91.2% (90.1% to 92.3%)`, `91.2% (one run)`."""
    if accuracy.guess:
        between = "one run"
    else:
        between = f"{accuracy.low:.1%} to {accuracy.high:.1%}"
    return f"{accuracy.value:.1%} ({between})"


def deadline_words(told: DeadlineCost) -> list[str]:
    """What a deadline costs, what others cost, and on what that rests."""
    wanted = told.wanted
    if wanted.chance == 1:
        in_time = "all"
    else:
        in_time = f"{wanted.chance:.0%}"
    others = ", ".join(
        f"{hours(each.hours)} {roughly(each.dollars)}"
        + ("" if each.chance == 1 else f" ({each.chance:.0%} in time)")
        for each in told.curve
    )
    return [
        f"Done within {hours(wanted.hours)}: {roughly(wanted.dollars)} ({roughly(wanted.low)} to "
        f"{roughly(wanted.high)}), after {hours(wanted.done)} ({hours_between(wanted.done_low, wanted.done_high)}); "
        f"of {told.runs} simulated runs {in_time} in time. On demand alone: {roughly(told.on_demand)}.",
        f"Deadlines: {others}.",
        f"Deadlines are simulated with capacity {told.market}: an example of a market, no forecast of a zone. "
        "Clusters there decide as yours will. In time as long as workers stay as fast as they are counted, and there "
        f"are VMs on demand, and quota for them, which take steps within {told.start:.0f} s.",
    ]


def roughly(dollars: float) -> str:
    """Two digits of an amount, as simulated: `$21`, `$1.3`."""
    rounded = float(f"{dollars:.2g}")
    if rounded >= 10:
        return f"${rounded:,.0f}"
    return f"${rounded:g}"
