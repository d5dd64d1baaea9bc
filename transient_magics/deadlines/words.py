"""Why the workers of a run with a deadline change, in one line each."""

from __future__ import annotations

from collections.abc import Mapping

from ..spec import render_duration, render_money, render_small_money, render_workers

Workers = Mapping[tuple[str, str], int]


def held(workers: Workers, left: float, steps: int, ready: float, takes: float) -> str:
    """Why VMs on demand are taken."""
    return (
        f"{machines(workers)} from now on: {render_duration(left)} are left, and the {steps:,} steps behind the last "
        f"checkpoint take them up to {render_duration(takes)}, after {render_duration(ready)} to start"
    )


def kept(workers: Workers, age: float, slack: float) -> str:
    """Why VMs on demand are taken while there is time to wait."""
    return (
        f"{machines(workers)} from now on: no Spot capacity for {render_duration(age)}, and the "
        f"{render_duration(slack)} that could be waited are kept for the next times"
    )


def taken_over(before: Workers, after: Workers, worth: float, price: float, gpu: str) -> str:
    """Why a Spot worker is asked for beside VMs on demand that take all places, or is there no
    more.
    """
    more = {key: count for key, count in after.items() if key not in before}
    if not more:
        return f"{machines(before)} alone: there is no time to come back to Spot"
    return f"{machines(more)} asked for, to take over from {machines(before)}: {_worth(worth, price, gpu)}"


def to_be_measured(workers: Workers) -> str:
    """Why VMs on demand are taken before it is time."""
    return f"{machines(workers)} from now on: only they may be fast enough, and how fast so many are is not measured yet"


def given_up(slack: float) -> str:
    """Why VMs on demand go."""
    return f"none on demand any more: there are {render_duration(slack)} before they would have to start"


def unpaid(money: float) -> str:
    """Why they go though time is short."""
    return f"none on demand any more: the {render_money(max(money, 0.0))} that are left do not pay for it"


def priced(before: Workers, after: Workers, worth: float, price: float, gpu: str) -> str:
    """Why there are more Spot workers, or fewer."""
    return f"{machines(after)} instead of {machines(before)}: {_worth(worth, price, gpu)}"


def _worth(worth: float, price: float, gpu: str) -> str:
    worth_ = render_small_money(worth)
    price_ = render_small_money(price)
    return f"a step is worth {worth_}, and a Spot {gpu.upper()} makes one for {price_}"


def unmeasured(workers: Workers) -> str:
    """Why a VM on demand is taken before any speed is known."""
    return f"{machines(workers)} from now on: there is no Spot capacity, and the run's speed is not measured yet"


def spent(run: str, dollars: float) -> str:
    """Why a run is ended by its limit."""
    return f"{run} is ended and saved: its limit of {render_money(dollars)} is reached, whatever its deadline"


def machines(workers: Workers) -> str:
    """`2 Spot T4s and 1 K80 on demand`."""
    return render_workers((gpu, terms, count) for (gpu, terms), count in workers.items() if count)
