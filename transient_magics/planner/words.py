"""Plans, searches and forecasts as text: what a terminal shows, and the words that panels share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..spec import if_capacity_lasts, render_duration, render_table
from ..spec import render_money as money

if TYPE_CHECKING:
    from .deadlines.cost import DeadlineCost
    from .efficiency import Accuracy
    from .forecast import Forecast
    from .plan import Plan
    from .search import Search

AGAINST = "against Google's on-demand price"
"""To what a saving is compared."""
MOST_ROWS = 8
_HARDLY = 0.01
"""So few workers lost in the mean need no digits."""
_MINUTES = 300.0  # an interval that is shorter is told by the second


def hours(value: float) -> str:
    """`31.2 min`, `3.91 h`, `52.4 h`."""
    return f"{60 * value:.3g} min" if value < 1 else f"{value:,.0f} h" if value >= 100 else f"{value:.3g} h"


def hours_between(low: float, high: float) -> str:
    """`12.1 to 13.5 min`, `58 min to 1.3 h`."""
    said, until = hours(low), hours(high)
    (number, unit), other = said.split(" "), until.split(" ")[1]
    return f"{number} to {until}" if unit == other else f"{said} to {until}"


def row(plan: Plan, *, judged: bool = False) -> tuple[str, ...]:
    """A plan in a table: time and bill with their ranges, how accurate (if plans are `judged`), saved,
    revocations, the line."""
    low, high = plan.interval("hours")
    least, most = plan.interval("dollars")
    saved = f"{plan.saved:.0%}" if plan.saved >= 0.005 else "-"
    return (
        hours(plan.hours), hours_between(low, high), money(plan.dollars), f"{money(least)} to {money(most)}",
        *([accuracy_words(plan.accuracy) if plan.accuracy else "-"] if judged else []),
        saved, lost_words(plan) if plan.choice.transient else "-", plan.line,
    )  # fmt: skip


def header(search: Search) -> tuple[str, ...]:
    """Of a table of `row`s."""
    judged = ["Accuracy"] if search.judged else []
    return ("Time", "Range", "Cost", "Range", *judged, f"Saved{lasts(search.front)}", "Workers lost", "Line")


def accuracy_words(accuracy: Accuracy) -> str:
    """`91.2% (90.1% to 92.3%)`, `91.2% (one run)`."""
    between = "one run" if accuracy.guess else f"{accuracy.low:.1%} to {accuracy.high:.1%}"
    return f"{accuracy.value:.1%} ({between})"


def lasts(plans: Sequence[Plan]) -> str:
    """Return what plans with Spot or preemptible VMs take for granted."""
    return next(filter(None, (if_capacity_lasts(plan.choice.provisioning) for plan in plans)), "")


def plan_text(plan: Plan) -> str:
    """A plan in some lines."""
    low, high = plan.interval("hours")
    least, most = plan.interval("dollars")
    counted = "from the first step" if plan.workload.from_first_step else "from the request"
    lines = [
        plan.line,
        f"{plan.train_steps:,} steps of {plan.workload.called}: {hours(plan.hours)} ({hours_between(low, high)}), "
        f"{money(plan.dollars)} ({money(least)} to {money(most)}){lasts([plan])}; "
        f"estimates and their ranges{_guessed(plan)}, counted {counted}.",
        f"On demand: {hours(plan.on_demand_hours)}, {money(plan.on_demand_dollars)}"
        + (f"; {plan.saved:.0%} saved {AGAINST}." if plan.saved >= 0.005 else "."),
        f"{plan.steps_per_second:,.3g} steps/s, {money(plan.hourly)} per hour; {plan.risk}{_lost(plan)}.",
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
    runs = f"{plan.accuracy.runs} runs" if plan.accuracy.runs > 1 else "a run"
    told = f"as {runs} with as many workers and steps had; the range is that of such runs"
    if plan.accuracy.guess:
        told = f"as {runs} with as many workers and steps had: how others differ it does not tell"
    return [f"Accuracy {accuracy_words(plan.accuracy)}, {told}."]


def deadline_words(told: DeadlineCost) -> list[str]:
    """What a deadline costs, what others cost, and on what that rests."""
    wanted = told.wanted
    in_time = "all" if wanted.chance == 1 else f"{wanted.chance:.0%}"
    others = ", ".join(
        f"{hours(each.hours)} {roughly(each.dollars)}" + ("" if each.chance == 1 else f" ({each.chance:.0%} in time)")
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
    return f"${rounded:,.0f}" if rounded >= 10 else f"${rounded:g}"


def _guessed(plan: Plan) -> str:
    return f" that are a guess ({plan.workload.guess})" if plan.workload.guess else ""


def left_out(plan: Plan) -> list[str]:
    """What a declaration may add to the price; nothing where prices are those of a publication."""
    if plan.workload.from_first_step:
        return []
    hourly = plan.choice.prices(plan.workload).controller_price(plan.choice.home_zone).on_demand
    return [f"A VM for the controller (--service-account) is not in it; it adds {money(hourly)} per hour."]


def lost_words(plan: Plan) -> str:
    """How many workers are lost: `6.1 (2 to 11)`; the number alone where it is given, or where it is below 0.01."""
    low, high = plan.interval("revocations")
    mean = f"{plan.revocations:.2g}" if plan.revocations >= _HARDLY else f"under {_HARDLY:g}"
    if not plan.revocations:
        mean = "0"
    return mean if low == high else f"{mean} ({low:.0f} to {high:.0f})"


def _lost(plan: Plan) -> str:
    """How many workers lifetimes cost; nothing where their number was given."""
    return "" if plan.revocations == round(plan.revocations) else f", {lost_words(plan)} workers lost"


def search_text(search: Search) -> str:
    """A search: the table of its front, and what it means."""
    lines = [
        f"{steps_of(search)}{lasts(search.front)}: {len(search.front)} of {search.considered:,} clusters "
        f"that no other beats in time and in cost; > marks {marked(search)}.",
        *render_table(("", *(name.upper() for name in header(search))), rows(search)),
    ]
    if hidden := len(search.front) - len(shown(search)):
        lines.append(f"{hidden} more between them.")
    return "\n".join([*lines, *notes(search)])


def marked(search: Search) -> str:
    """What the best one is: `the knee`, `the fastest`, `the cheapest`."""
    return {"knee": "the knee", "time": "the fastest", "cost": "the cheapest"}[search.objective]


def steps_of(search: Search) -> str:
    """`64,000 steps of run-1`; where they depend on the workers, from the fewest to the most."""
    counts = sorted({plan.train_steps for plan in search.front})
    said = " to ".join(f"{each:,}" for each in dict.fromkeys([counts[0], counts[-1]]))
    return f"{said} steps of {search.front[0].workload.called}"


def shown(search: Search) -> Sequence[Plan]:
    """The plans that a table has room for: both ends, the best one, and others evenly between."""
    front = search.front
    if len(front) <= MOST_ROWS:
        return front
    step = (len(front) - 1) / (MOST_ROWS - 1)
    chosen = {round(index * step) for index in range(MOST_ROWS)} | {front.index(search.best)}
    return [plan for index, plan in enumerate(front) if index in chosen]


def rows(search: Search) -> list[tuple[str, ...]]:
    """The front as rows, with `>` before the best one."""
    return [(">" if plan is search.best else "", *row(plan, judged=search.judged)) for plan in shown(search)]


def notes(search: Search) -> list[str]:
    """What a reader must know of these figures."""
    first = search.front[0]
    counted = "from the first step" if first.workload.from_first_step else "from the request"
    said = [
        f"Hours and dollars are estimates with their ranges{_guessed(first)}, counted {counted}; "
        f"Spot VMs with {first.risk}.",
        f"What is saved is {AGAINST}{lasts(search.front)}.",
        *search.notes,
    ]
    return list(dict.fromkeys([*said, *left_out(search.best), *_of_plans(shown(search))]))


def _of_plans(plans: Sequence[Plan]) -> Iterator[str]:
    """What is said of them; what is said of one among several names its cluster."""
    said = Counter(note for plan in plans for note in plan.notes)
    for plan in plans:
        spec = plan.line.split()[1]
        yield from (f"{spec}: {note}" if said[note] == 1 < len(plans) else note for note in plan.notes)


def forecast_words(forecast: Forecast) -> str:
    """`finishes in 12 min (11 min to 14 min), at 14:03, if Spot capacity lasts; this run $1.23 at its end ($1.20 to
    $1.31)`; an interval whose ends read the same is left out."""
    low, high = forecast.interval("seconds")
    at = time.strftime("%H:%M", time.localtime(forecast.finishes_at))
    return (
        f"finishes in {render_duration(forecast.seconds)}{_range(render_duration(low), render_duration(high))}, "
        f"at {at}{forecast.provided}; this run {forecast.cost}{_but(forecast)}"
    )


def _range(low: str, high: str) -> str:
    return f" ({low} to {high})" if low != high else ""


def _but(forecast: Forecast) -> str:
    """What else must be known of it: how sure it is that the run ends, whether the intervals are measured, whose
    lifetimes stand in, and whether it is slower than expected."""
    lost = 1 - forecast.finished
    unless = f", unless all workers are lost before ({max(lost, 0.01):.0%})" if lost >= 0.0005 else ""
    guess = f"a guess: {forecast.guess}" if forecast.guess else ""
    behind = str(forecast.behind) if forecast.behind else ""
    return unless + "".join(f"; {each}" for each in (guess, forecast.stand_in, behind) if each)


def ending_words(forecast: Forecast) -> str:
    """`ends about 14:32 (14:20 to 14:55), if Spot capacity lasts; this run $0.610 at its end ($0.553 to $0.704)`.

    Moments have the day where that is not today's, and seconds where minutes would say the same twice.
    """
    low, high = forecast.interval("seconds")
    today = time.localtime(forecast.at)[:3]
    later = time.localtime(forecast.at + high)[:3] != today
    clock = "%H:%M:%S" if high - low < _MINUTES else "%a %H:%M" if later else "%H:%M"

    def moment(seconds: float) -> str:
        return time.strftime(clock, time.localtime(forecast.at + seconds))

    return (
        f"ends about {moment(forecast.seconds)}{_range(moment(low), moment(high))}"
        f"{forecast.provided}; this run {forecast.cost}{_but(forecast)}"
    )
