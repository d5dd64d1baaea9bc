"""Lose a worker, shrink all of them, or shrink one: what each does to the seconds of a step and to
the bill. Pure.

Data-parallel training with parameter servers, K workers, of which worker k has lost the part d_k of
its processors. A step's examples, which take W seconds while nothing is lost, take

- W / (1 - max d) in synchronous steps on equal mini-batches, where everybody waits for the slowest
- W / (1 - mean d) where mini-batches follow (`--batching dynamic`), and in asynchronous steps,
  where nobody waits
- W K / (K - 1) without one of the workers; nobody stops for a worker that leaves, so a loss costs
  nothing once

So to shrink is never slower than to lose as much, where mini-batches follow, what a step costs
beside its examples is small, and memory is no part of what is taken. A VM that shrank has the price
that it had; one that is lost has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..spec import render_money, render_table


@dataclass(frozen=True)
class Choice:
    """One way to give up processors: `what` in words, seconds for the examples of a step, and US
    dollars for those of a thousand.
    """

    what: str
    seconds: float
    dollars: float


@dataclass(frozen=True)
class Measured:
    """What came of it when it was done: seconds for a step's examples `before` and `after`."""

    what: str
    before: float
    after: float


@dataclass(frozen=True)
class Advice:
    """What giving up so much means, the fastest first; `now`: as it is. As text a table."""

    now: Choice
    choices: tuple[Choice, ...]
    measured: tuple[Measured, ...] = ()

    def __str__(self) -> str:
        header = ("", "seconds a step", "a thousand steps", "slower by")
        rows = [
            (
                each.what,
                f"{each.seconds:.3g}",
                render_money(each.dollars),
                f"{each.seconds / self.now.seconds - 1:.0%}",
            )
            for each in (self.now, *self.choices)
        ]
        seen = [
            f"{each.what}: measured {each.before:.3g} s before, {each.after:.3g} s after."
            for each in self.measured
        ]
        return "\n".join([*render_table(header, rows), *seen])

    def __repr__(self) -> str:
        return str(self)


def shrunk(seconds: float, deflated: Sequence[float], *, mode: str, balanced: bool) -> float:
    """Seconds for what took `seconds`, with workers of which each has lost a part `deflated` (from
    0 to below 1).
    """
    if mode == "sync" and not balanced:
        return seconds / (1 - max(deflated))
    return seconds * len(deflated) / sum(1 - each for each in deflated)


def advise(
    seconds: float,
    hourly: Sequence[float],
    rest_hourly: float,
    workers: float,
    *,
    mode: str,
    balanced: bool,
) -> Advice:
    """What to give up so many `workers` means (0.5: half of what one has), which are fewer than
    there are.

    `hourly`: US dollars of each worker per hour; `rest_hourly`: of all else.
    """
    count = len(hourly)
    whole = sum(hourly) + rest_hourly

    def choice(what: str, takes: float, per_hour: float = whole) -> Choice:
        return Choice(what, takes, per_hour * 1000 * takes / 3600)

    def shrink(what: str, *deflated: float) -> Choice:
        return choice(what, shrunk(seconds, deflated, mode=mode, balanced=balanced))

    each = workers / count
    found = [shrink(f"shrink all by {each:.0%}", *[each] * count)]
    if workers == int(workers):
        lost = whole - sum(hourly) * each
        found.append(
            choice("lose one" if workers == 1 else f"lose {workers:g}", seconds / (1 - each), lost)
        )
    if workers < 1:
        found.append(shrink(f"shrink one by {workers:.0%}", workers, *[0.0] * (count - 1)))
    else:  # one cannot give all that it has: two give half of it each, and so on
        halves = 2 * round(workers + 0.49)
        if halves < count:
            part = workers / halves
            found.append(
                shrink(
                    f"shrink {halves} by {part:.0%}", *[part] * halves, *[0.0] * (count - halves)
                )
            )
    return Advice(choice("as it is", seconds), tuple(sorted(found, key=lambda one: one.seconds)))
