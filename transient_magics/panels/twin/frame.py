"""Axes around a picture of points or cells, as SVG: where a place from 0 to 1 is, round values,
names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .markup import escape

Named = Iterable[tuple[float, str]]
"""Places on an axis, from 0 to 1, and what stands there."""


@dataclass(frozen=True, slots=True)
class Box:
    """Where a picture is, in pixels."""

    left: float
    top: float
    width: float
    height: float

    def x(self, at: float) -> float:
        """Across, of a place from 0 (left) to 1."""
        return self.left + at * self.width

    def y(self, at: float) -> float:
        """Down, of a place from 0 (at the bottom) to 1."""
        return self.top + (1 - at) * self.height


def frame(
    box: Box, across: Named, up: Named, name: str, over: str = "", *, lines: bool = True
) -> str:
    """The axes of a box; `name` stands below the right end of the one, `over` above the upper end
    of the other.

    `lines`: at the height of each value that is named.
    """
    bottom = box.top + box.height
    right = box.left + box.width
    parts = [_line(f"M{box.left:g} {box.top:g}V{bottom:g}H{right:g}", 0.4)]
    for at, words in up:
        y = box.y(at)
        parts += [_line(f"M{box.left:g} {y:.1f}H{right:g}", 0.15)] if lines else []
        parts.append(_text(box.left - 6, y + 4, words, "end"))
    for at, words in across:
        x = box.x(at)
        parts += [_line(f"M{x:.1f} {bottom:g}v4", 0.5), _text(x, bottom + 16, words, "middle")]
    parts.append(_text(right, bottom + 31, name, "end"))
    parts += [_text(box.left, box.top - 5, over, "start")] if over else []
    return "".join(parts)


def _line(path: str, opacity: float) -> str:
    return f"<path d='{path}' fill='none' stroke='currentColor' opacity='{opacity:g}'/>"


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' opacity='.7'>{escape(words)}</text>"
    )
