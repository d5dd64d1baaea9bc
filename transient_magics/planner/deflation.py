"""The cost of lost and shrunk workers: seconds of a step and dollars. Pure.

The model is data-parallel training with parameter servers and K workers, of which worker k has lost
the part d_k of its processors. A step's examples take W seconds without loss, and

- W / (1 - max d) in synchronous steps on equal mini-batches, where all wait for the slowest
- W / (1 - mean d) with adapted mini-batches (`--batching dynamic`), and in asynchronous steps,
  where no worker waits
- W K / (K - 1) without one of the workers; no worker stops for one that leaves, so a loss has no
  further cost

So shrinking is never slower than losing as much, if mini-batches adapt, if the rest of a step is
small, and if memory is not affected. A shrunk VM keeps its price; a lost one costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..spec import render_money, render_table


@dataclass(frozen=True)
class Choice:
    """One way to give up processors.

    Attributes
    ----------
    what
        The way in words.
    seconds
        Seconds for the examples of a step.
    dollars
        US dollars for those of a thousand steps.
    """

    what: str
    seconds: float
    dollars: float


@dataclass(frozen=True)
class Measured:
    """A measurement: seconds for a step's examples `before` and `after`."""

    what: str
    before: float
    after: float


@dataclass(frozen=True)
class Advice:
    """The ways to give up processors, the fastest first, and the present state; as text a table."""

    now: Choice
    choices: tuple[Choice, ...]
    measured: tuple[Measured, ...] = ()

    def __str__(self) -> str:
        header = ("", "seconds a step", "a thousand steps", "slower by")
        rows = [
            (
                choice.what,
                f"{choice.seconds:.3g}",
                render_money(choice.dollars),
                f"{choice.seconds / self.now.seconds - 1:.0%}",
            )
            for choice in (self.now, *self.choices)
        ]
        seen = [
            f"{result.what}: measured {result.before:.3g} s before, {result.after:.3g} s after."
            for result in self.measured
        ]
        return "\n".join([*render_table(header, rows), *seen])

    def __repr__(self) -> str:
        return str(self)


def shrunk(seconds: float, deflated: Sequence[float], *, mode: str, balanced: bool) -> float:
    """Return the new time for what took `seconds`, after each worker lost a part `deflated`.

    Parts are from 0 to below 1.
    """
    if mode == "sync" and not balanced:
        return seconds / (1 - max(deflated))
    return seconds * len(deflated) / sum(1 - part for part in deflated)


def advise(
    seconds: float,
    hourly: Sequence[float],
    rest_hourly: float,
    workers: float,
    *,
    mode: str,
    balanced: bool,
) -> Advice:
    """Return what giving up `workers` means (0.5: half of one), fewer than there are.

    Parameters
    ----------
    seconds
        Seconds for the examples of a step.
    hourly
        US dollars per hour of each worker.
    rest_hourly
        US dollars per hour of all else.
    workers
        Number of workers to give up.
    mode
        `sync` or `async`.
    balanced
        Whether mini-batches adapt to the workers.
    """
    count = len(hourly)
    whole = sum(hourly) + rest_hourly

    def choice(what: str, takes: float, per_hour: float = whole) -> Choice:
        return Choice(what, takes, per_hour * 1000 * takes / 3600)

    def shrink(what: str, *deflated: float) -> Choice:
        return choice(what, shrunk(seconds, deflated, mode=mode, balanced=balanced))

    part = workers / count
    found = [shrink(f"shrink all by {part:.0%}", *[part] * count)]
    if workers == int(workers):
        lost = whole - sum(hourly) * part
        name = "lose one" if workers == 1 else f"lose {workers:g}"
        found.append(choice(name, seconds / (1 - part), lost))
    if workers < 1:
        found.append(shrink(f"shrink one by {workers:.0%}", workers, *[0.0] * (count - 1)))
    else:  # one worker cannot give all of itself: two give half of it each, and so on
        halves = 2 * round(workers + 0.49)
        if halves < count:
            part = workers / halves
            parts = [*[part] * halves, *[0.0] * (count - halves)]
            found.append(shrink(f"shrink {halves} by {part:.0%}", *parts))
    return Advice(choice("as it is", seconds), tuple(sorted(found, key=lambda one: one.seconds)))
