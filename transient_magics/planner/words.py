"""Hours, dollars, accuracies and deadlines in the words of plans, searches and forecasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .deadlines.cost import DeadlineCost
    from .efficiency import Accuracy

AGAINST = "against Google's on-demand price"
"""To what a saving is compared."""


def hours(value: float) -> str:
    """`31.2 min`, `3.91 h`, `52.4 h`."""
    return f"{60 * value:.3g} min" if value < 1 else f"{value:,.0f} h" if value >= 100 else f"{value:.3g} h"


def hours_between(low: float, high: float) -> str:
    """`12.1 to 13.5 min`, `58 min to 1.3 h`."""
    said, until = hours(low), hours(high)
    (number, unit), other = said.split(" "), until.split(" ")[1]
    return f"{number} to {until}" if unit == other else f"{said} to {until}"


def accuracy_words(accuracy: Accuracy) -> str:
    """`91.2% (90.1% to 92.3%)`, `91.2% (one run)`."""
    between = "one run" if accuracy.guess else f"{accuracy.low:.1%} to {accuracy.high:.1%}"
    return f"{accuracy.value:.1%} ({between})"


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
