"""The forms of snapshots of a measurement of stalls, which a kernel sends to the page."""

from __future__ import annotations

from typing import TypedDict

from ....panels.snapshot.contract import Figure


class StallPart(TypedDict):
    """A part of a step.

    `seconds` is the mean and `words` the same with its interval. `share` is the share of the step,
    and `dollar` the part of a dollar that it costs, or why that is not shown. `sure`: the part is
    larger than the noise.
    """

    name: str
    seconds: Figure
    words: str
    share: str
    dollar: str
    sure: bool


class StallBar(TypedDict):
    """A kind of VM with the parts of its step.

    `advice` is empty until enough was measured. `reads`: the workers read files, so a cache or a
    disk matters.
    """

    vm: str
    heading: str
    parts: list[StallPart]
    advice: str
    reads: bool


class Stalls(TypedDict):
    """A measurement of stalls so far. `below` are the notes below the bars."""

    name: str
    words: str
    bars: list[StallBar]
    below: list[str]


class StallAnswer(TypedDict):
    """The predicted step with the change that was `asked` for: in words and by part, or an `error`.

    `parts` has names and seconds.
    """

    asked: int
    error: str
    words: str
    parts: list[tuple[str, Figure]]
