"""A plan: the time and the bill of a run on one cluster, as distributions."""

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
# Only machines that are at least this much faster are mentioned; of those nearly as fast as the
# fastest it is the cheapest.
_AS_FAST = 0.98
# The load from which on servers may hold workers back if their capacity is estimated.
_NEAR_LIMIT = 0.5
_NEGLIGIBLE = 0.01
"""A mean number of lost workers below which its digits are omitted."""

AGAINST = "against Google's on-demand price"
"""The reference of savings."""


@dataclass(frozen=True, repr=False)
class Plan:
    """The time and cost of `train_steps` steps of `workload` on the cluster `choice`.

    Hours count from the request, for a published workload from the first step. Dollars include
    parameter servers and data transfer.
    """

    choice: Choice
    workload: Workload
    train_steps: int
    outcome: Outcome
    hourly: float
    """Dollars per hour of the declared cluster, data transfer included."""
    steps_per_second: float
    """Steps per second of the undisturbed cluster."""
    revocations: float
    """Mean number of lost workers."""
    seed: int
    """Seed of the simulation."""
    risk: str
    """The simulated revocations, in words."""
    notes: tuple[str, ...] = ()
    deadline: DeadlineCost | None = None
    """The cost of its deadline and of others; None without a deadline."""
    accuracy: Accuracy | None = None
    """The accuracy of similar runs; None if unknown."""

    @property
    def hours(self) -> float:
        """Mean hours until a course finishes, including earlier ones that lost every worker."""
        return float(self._done.hours.mean())

    @property
    def dollars(self) -> float:
        """Mean dollars until a course finishes, including earlier ones that lost every worker."""
        return float(self._done.dollars.mean())

    @property
    def finished(self) -> float:
        """The share of courses that finish; below 1 if all workers may be lost for good."""
        return self.outcome.finished

    @property
    def on_demand_hours(self) -> float:
        """Mean hours of the same cluster on demand, without revocations."""
        return float(self._on_demand.hours.mean())

    @property
    def on_demand_dollars(self) -> float:
        """Mean dollars of the same cluster on demand."""
        return float(self._on_demand.dollars.mean())

    @property
    def saved(self) -> float:
        """The saved share of the on-demand cost, 0 to 1."""
        if self.on_demand_dollars:
            return 1 - self.dollars / self.on_demand_dollars
        return 0.0

    @property
    def line(self) -> str:
        """The line that declares the cluster."""
        return self.choice.line

    def interval(self, what: str = "hours", level: float = 0.9) -> tuple[float, float]:
        """Return a range of the plan.

        Parameters
        ----------
        what
            `hours`, `dollars` or `revocations`: the middle `level` of the values. `finished`: the
            range of this share at that confidence, given what is known of lifetimes.
        level
            Between 0 and 1.

        Returns
        -------
        tuple of float
            The low and the high end.

        Raises
        ------
        PlanError
            For other arguments.
        """
        if what not in ("hours", "dollars", "revocations", "finished") or not 0 < level < 1:
            raise PlanError(
                "An interval needs hours, dollars, revocations or finished, and a level between 0 "
                "and 1",
                fix='For example: plan.interval("hours", 0.9)',
            )
        if what == "finished":
            return self.outcome.finished_between(level)
        return middle(getattr(self._done, what), level)

    def within(self, hours: float | None = None, dollars: float | None = None) -> float:
        """Return the probability of finishing within these hours and dollars."""
        most_hours = np.inf if hours is None else hours
        most_dollars = np.inf if dollars is None else dollars
        quick = self._done.hours <= most_hours
        return float((quick & (self._done.dollars <= most_dollars)).mean())

    def __str__(self) -> str:
        return plan_text(self)

    __repr__ = __str__

    @cached_property
    def _on_demand(self) -> Outcome:
        # With the same draws: if the speed is a guess, both have the same error.
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
    """Simulate a run on a cluster.

    Parameters
    ----------
    choice, workload, train_steps
        The cluster, what it trains, and for how many steps.
    lifetimes
        Lifetimes of VMs, by GPU and region.
    lost
        The exact number of revoked workers; None: by `lifetimes`.
    replaced
        Whether lost workers are replaced.
    risk
        The simulated revocations in words.
    runs
        Number of simulated courses.
    seed
        Seed of the simulation.
    notes
        Further notes of the plan.
    accuracies
        The accuracy of earlier runs.

    Raises
    ------
    PlanError
        If no course finishes.
    """
    workers = choice.workers
    if lost is not None and lost >= workers and not replaced:
        raise PlanError(
            f"{lost} revocations would leave none of {workers} workers",
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
            "This run does not finish in any simulation: its workers are revoked before they train",
            fix="Use other VMs, or --provisioning-model standard.",
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
    """Return the cost of data between zones; two digits of it if the price is unconfirmed."""
    dollars = 1e6 * dollars_per_step
    text = f"Data between {group.zone} and the parameter servers in {choice.home_zone} costs"
    if transfer_price(group.zone or "", choice.home_zone).confirmed:
        return f"{text} ${dollars:,.2f} per million steps."
    digits = 1 - math.floor(math.log10(dollars))
    about = f"{round(dollars, digits):,.{max(digits, 0)}f}"
    return f"{text} about ${about} per million steps, by an unconfirmed price."


def _distance_words(choice: Choice, workload: Workload, group: WorkerGroup) -> str:
    """Return how a distant worker's speed is estimated."""
    away = choice.round_trip(group)
    added = choice.added_seconds(workload, group)
    return (
        f"The distance from {group.zone} to the parameter servers in {choice.home_zone} is "
        f"estimated, not measured: {1000 * away:.0f} ms for a round trip, which adds about "
        f"{1000 * added:.0f} ms to a step. Most simulated "
        "courses draw between a sixth and six times that."
    )


def _prices(choice: Choice, workload: Workload) -> list[str]:
    """Return the age of the Spot prices behind the dollars."""
    if not choice.transient:
        return []
    ages = [choice.worker_price(workload, group).age_words for group in choice.placed]
    return [age for age in ages if age]


def held_back(choice: Choice, workload: Workload) -> list[str]:
    """Return what is known to hold workers back: servers, mini-batches, parts of a step."""
    notes = [bound(choice, workload), *prepared(choice, workload), *stalled(choice, workload)]
    return [note for note in notes if note]


def bound(choice: Choice, workload: Workload) -> str:
    """Return how far parameter servers hold the workers back, and the effect of one more; or ''.

    They do so from the first step if the workers alone would make more steps than they can take.
    """
    if workload.synchronous or choice.load(workload) < 1:
        return ""
    more = replace(choice, servers=choice.servers + 1)
    speed = choice.steps_per_second(workload)
    then = more.steps_per_second(workload)
    servers = f"{choice.servers} parameter servers hold"
    if choice.servers == 1:
        servers = "The parameter server holds"
    return (
        f"{servers} the workers back from the first step: {speed:.3g} steps/s instead of "
        f"{choice.offered(workload):.3g}. With --ps {more.servers}: {then:.3g} steps/s, "
        f"{then / speed - 1:.0%} more."
    )


def _started(choice: Choice, workload: Workload) -> list[str]:
    """Return the start-up times that were measured on the user's own VMs."""
    notes: list[str] = []
    for group in choice.placed:
        start = choice.start(
            workload, group.accelerator, choice.transient, region(group.zone or "")
        )
        if start.own:
            seconds = start.startup.running + start.startup.usable
            what = "VMs without a GPU"
            if group.accelerator != "cpu":
                what = f"VMs with the {group.accelerator.upper()}"
            notes.append(
                f"{what} take {render_duration(seconds)} until they are usable, as your last "
                f"{start.own} did."
            )
    return notes


def prepared(choice: Choice, workload: Workload) -> list[str]:
    """Return how long workers wait for mini-batches, and the machine that shortens it most."""
    notes: list[str] = []
    for group in choice.placed:
        step = choice.step(workload, group)
        wait = workload.waits.get(choice.kind(group), 0.0)
        whole = step.seconds + workload.service_seconds
        if not step.measured or not wait:
            continue
        name = group.accelerator.upper()
        waits = (
            f"Steps on the {name} wait for their mini-batches for {min(wait / whole, 1):.0%} "
            "of the time"
        )
        better = _faster_machines(choice, workload, group, whole)
        if not better:
            notes.append(f"{waits}, and no larger machine has it.")
            continue
        fastest = max(times for times, *_ in better)
        fast = [machine for machine in better if machine[0] > _AS_FAST * fastest]
        times, more, machine = min(fast, key=lambda candidate: candidate[1])
        notes.append(
            f"{waits}: with --machine-type {machine} they would be {times:.2g} times as fast, for "
            f"{render_money(more)} more per hour and worker, if preparation uses all its vCPUs."
        )
    return list(dict.fromkeys(notes))


def stalled(choice: Choice, workload: Workload) -> list[str]:
    """Return the parts of a step for workers with measured stalls, perhaps in another machine."""
    notes: list[str] = []
    for group in choice.placed:
        kind = choice.kind(group)
        if terms := workload.terms(kind):
            entry = worker_entry(*kind.partition("/")[::2])
            which = f"{group.accelerator.upper()} in {entry.machine_type}"
            change = workload.change(terms, kind, choice.disk)
            if words := terms_words(which, terms, change):
                notes.append(words)
    return list(dict.fromkeys(notes))


def _faster_machines(
    choice: Choice, workload: Workload, group: WorkerGroup, whole: float
) -> list[tuple[float, float, str]]:
    """Return larger machines that make a worker faster.

    Each with its speed relative to now, its extra dollars per hour, and its name.
    """
    now = choice.worker_price(workload, group)
    found = list[tuple[float, float, str]]()
    for machine in larger_shapes(group.accelerator):
        other = replace(choice, machines={**choice.machines, group.accelerator: machine})
        price = other.worker_price(workload, group)
        more = price.on_demand - now.on_demand
        if choice.transient:
            more = price.transient - now.transient
        times = whole / (other.step(workload, group).seconds + workload.service_seconds)
        if times > _WORTH and more > 0:
            found.append((times, more, machine))
    return found


def _stand_ins(course: Course) -> list[str]:
    """Return a sentence for each GPU and region without published lifetimes."""
    sentences = [stand_in(group.lifetimes) for group in course.groups]
    return list(dict.fromkeys(sentence for sentence in sentences if sentence))


def _few(choice: Choice, course: Course, outcome: Outcome) -> list[str]:
    """Return where few revocations were observed at the ages that a long run needs."""
    longest = float(np.quantile(outcome.hours[np.isfinite(outcome.hours)], 0.95))
    notes: list[str] = []
    for placed, group in zip(choice.placed, course.groups, strict=True):
        model = group.lifetimes
        if not isinstance(model, Continued) or model.watched >= longest:
            continue
        if model.seen.events < _FEW:
            plural = "" if model.seen.events == 1 else "s"
            notes.append(
                f"Beyond {model.watched:g} h the risk of the {placed.accelerator.upper()} in "
                f"{region(placed.zone or '')} rests on {model.seen.events:g} revocation{plural}, "
                "and on its other regions."
            )
    return notes


def _hourly(choice: Choice, workload: Workload, speed: float) -> float:
    course = choice.course(workload, 1)
    vms = (
        sum(group.count * group.hourly for group in course.groups)
        + course.servers * course.server_hourly
    )
    # Shares of the steps: distant workers make fewer of them, and pay for fewer.
    made = choice.shares(workload)
    per_step = sum(
        share * group.transfer_dollars for share, group in zip(made, course.groups, strict=True)
    )
    return vms + 3600 * speed * per_step


def _notes(choice: Choice, workload: Workload) -> list[str]:
    notes = [*workload.notes]
    mixed = len({group.accelerator for group in choice.placed}) > 1
    if workload.synchronous:
        counted = max(choice.workers - workload.backup_workers, 1)
        notes.append(
            f"A step is synchronous and counts {counted} mini-batches; it waits for the slowest "
            "of them."
        )
        if mixed:
            notes.append(
                "With --batching dynamic slower GPUs get fewer examples, and a step waits less "
                "than computed here."
            )
    elif mixed:
        notes.append(
            "The speeds of unequal GPUs add up. With --batching dynamic the slower ones get fewer "
            "examples per step, so that their gradients arrive no later than others."
        )
    if sentence := never_on_demand(group.accelerator for group in choice.placed):
        notes.append(sentence)
    for group in choice.placed:
        estimate = choice.step(workload, group)
        if not estimate.measured:
            notes.append(
                f"The {group.accelerator.upper()}'s step time is not measured but "
                f"{estimate.source}: "
                f"it may be {estimate.error:.0%} off."
            )
        if price := choice.transfer_dollars(workload, group):
            notes.append(_transfer_words(choice, group, price))
    notes += [_distance_words(choice, workload, group) for group in choice.far()]
    notes += _prices(choice, workload)
    notes += _started(choice, workload)
    notes += held_back(choice, workload)
    if not workload.limit_measured and choice.load(workload) > _NEAR_LIMIT:
        notes.append(
            "The capacity of its parameter servers is not measured but computed from "
            f"{workload.parameters:,} "
            f"parameters: it may be {workload.limit_error:.0%} off."
        )
    return list(dict.fromkeys(notes))


def row(plan: Plan, *, judged: bool = False) -> tuple[str, ...]:
    """Return a plan as a row: time and bill with ranges, savings, revocations, line.

    `judged` plans have an accuracy, too.
    """
    low, high = plan.interval("hours")
    least, most = plan.interval("dollars")
    saved = f"{plan.saved:.0%}" if plan.saved >= 0.005 else "-"
    accuracy: list[str] = []
    if judged:
        accuracy = [accuracy_words(plan.accuracy) if plan.accuracy else "-"]
    return (
        hours(plan.hours),
        hours_between(low, high),
        render_money(plan.dollars),
        f"{render_money(least)} to {render_money(most)}",
        *accuracy,
        saved,
        lost_words(plan) if plan.choice.transient else "-",
        plan.line,
    )


def lasts(plans: Sequence[Plan]) -> str:
    """Return the condition under which plans with Spot or preemptible VMs hold."""
    return next(filter(None, (if_capacity_lasts(plan.choice.provisioning) for plan in plans)), "")


def plan_text(plan: Plan) -> str:
    """Return a plan in some lines."""
    low, high = plan.interval("hours")
    least, most = plan.interval("dollars")
    counted = "from the first step" if plan.workload.from_first_step else "from the request"
    saved = ""
    if plan.saved >= 0.005:
        saved = f"; {plan.saved:.0%} saved {AGAINST}"
    lines = [
        plan.line,
        f"{plan.train_steps:,} steps of {plan.workload.called}: {hours(plan.hours)} "
        f"({hours_between(low, high)}), "
        f"{render_money(plan.dollars)} ({render_money(least)} to "
        f"{render_money(most)}){lasts([plan])}; "
        f"estimates and their ranges{guessed(plan)}, counted {counted}.",
        f"On demand: {hours(plan.on_demand_hours)}, {render_money(plan.on_demand_dollars)}{saved}.",
        f"{plan.steps_per_second:,.3g} steps/s, {render_money(plan.hourly)} per hour; "
        f"{plan.risk}{_lost(plan)}.",
    ]
    if plan.deadline:
        lines += deadline_words(plan.deadline)
    if plan.finished < 0.9995:
        least, most = plan.interval("finished")
        between = f"{1 - most:.1%} to {1 - least:.1%} by what is known of lifetimes"
        lost = f"{1 - plan.finished:.1%} of the courses ({between})"
        lines.append(f"{lost} lose every worker; time and cost include the restarted run.")
    return "\n".join([*lines, *_accuracy(plan), *left_out(plan), *plan.notes])


def _accuracy(plan: Plan) -> list[str]:
    if not plan.accuracy:
        return []
    runs = "a run"
    if plan.accuracy.runs > 1:
        runs = f"{plan.accuracy.runs} runs"
    basis = f"as {runs} with as many workers and steps had; the range is that of such runs"
    if plan.accuracy.guess:
        basis = f"as {runs} with as many workers and steps had; how others differ is unknown"
    return [f"Accuracy {accuracy_words(plan.accuracy)}, {basis}."]


def guessed(plan: Plan) -> str:
    """Return the warning about a guess, a clause; '' for estimates."""
    if plan.workload.guess:
        return f" that are a guess ({plan.workload.guess})"
    return ""


def left_out(plan: Plan) -> list[str]:
    """Return what a declaration may add to the price; nothing for prices of a publication."""
    if plan.workload.from_first_step:
        return []
    hourly = plan.choice.prices(plan.workload).controller_price(plan.choice.home_zone).on_demand
    return [
        "A VM for the controller (--service-account) is not included; it adds "
        f"{render_money(hourly)} per hour."
    ]


def lost_words(plan: Plan) -> str:
    """Return the number of lost workers: `6.1 (2 to 11)`, or without a range if it is fixed."""
    low, high = plan.interval("revocations")
    if not plan.revocations:
        mean = "0"
    elif plan.revocations >= _NEGLIGIBLE:
        mean = f"{plan.revocations:.2g}"
    else:
        mean = f"under {_NEGLIGIBLE:g}"
    if low == high:
        return mean
    return f"{mean} ({low:.0f} to {high:.0f})"


def _lost(plan: Plan) -> str:
    """Return how many workers lifetimes cost, a clause; '' if their number was given."""
    if plan.revocations == round(plan.revocations):
        return ""
    return f", {lost_words(plan)} workers lost"


# Hours, dollars, accuracies and deadlines in the words of plans, searches and forecasts.


def hours(value: float) -> str:
    """Return hours as text: `31.2 min`, `3.91 h`, `52.4 h`."""
    if value < 1:
        return f"{60 * value:.3g} min"
    if value >= 100:
        return f"{value:,.0f} h"
    return f"{value:.3g} h"


def hours_between(low: float, high: float) -> str:
    """Return a range of hours as text: `12.1 to 13.5 min`, `58 min to 1.3 h`."""
    low_text = hours(low)
    high_text = hours(high)
    number, unit = low_text.split(" ")
    if unit == high_text.split(" ")[1]:
        return f"{number} to {high_text}"
    return f"{low_text} to {high_text}"


def accuracy_words(accuracy: Accuracy) -> str:
    """Return an accuracy as text: `91.2% (90.1% to 92.3%)`, `91.2% (one run)`."""
    between = f"{accuracy.low:.1%} to {accuracy.high:.1%}"
    if accuracy.guess:
        between = "one run"
    return f"{accuracy.value:.1%} ({between})"


def deadline_words(cost: DeadlineCost) -> list[str]:
    """Return the cost of a deadline and of others, and the assumptions."""
    requested = cost.requested
    in_time = "all"
    if requested.chance != 1:
        in_time = f"{requested.chance:.0%}"
    points: list[str] = []
    for point in cost.curve:
        words = f"{hours(point.hours)} {roughly(point.dollars)}"
        if point.chance != 1:
            words += f" ({point.chance:.0%} in time)"
        points.append(words)
    others = ", ".join(points)
    return [
        f"Done within {hours(requested.hours)}: {roughly(requested.dollars)} "
        f"({roughly(requested.low)} to "
        f"{roughly(requested.high)}), after {hours(requested.done)} "
        f"({hours_between(requested.done_low, requested.done_high)}); "
        f"of {cost.runs} simulated runs {in_time} in time. On demand alone: "
        f"{roughly(cost.on_demand)}.",
        f"Deadlines: {others}.",
        f"Deadlines are simulated with capacity {cost.market}: an example of a market, not a "
        "forecast of a zone. The simulated clusters decide as yours will. A run is in time if "
        "workers stay as fast as assumed, and if on-demand VMs and their quota are available and "
        f"make steps within {cost.start:.0f} s.",
    ]


def roughly(dollars: float) -> str:
    """Return two digits of a simulated amount: `$21`, `$1.3`."""
    rounded = float(f"{dollars:.2g}")
    if rounded >= 10:
        return f"${rounded:,.0f}"
    return f"${rounded:g}"
