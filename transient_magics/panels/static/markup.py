"""The few pieces of HTML that everything static is made of: text, tables, and colours that read on
light and dark.

All of it is well-formed XML too, so that a mistake is found by a parser and not by a reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape as _escape

from ...markup import escape

__all__ = ["COLOURS", "FAINT", "FONT", "attribute", "escape", "picture", "row", "table"]

COLOURS = {
    "good": "#278f54",
    "busy": "#3f83c8",
    "warn": "#b87400",
    "bad": "#cf4436",
    "quiet": "#7d8186",
}
FONT = "font:13px/1.5 system-ui,sans-serif;max-width:760px"
FAINT = "opacity:.7"


def attribute(said: str) -> str:
    """As the value of an attribute, between quotes of either kind."""
    return _escape(said)


def row(cells: Iterable[str], tag: str = "td") -> str:
    """A table's row of cells that are HTML already; JupyterLab and nbconvert align cells to the
    right by themselves.
    """
    return (
        "<tr>"
        + "".join(f"<{tag} style='text-align:left'>{cell}</{tag}>" for cell in cells)
        + "</tr>"
    )


def table(rows: Iterable[str], style: str = "font-size:13px;margin:4px 0") -> str:
    """A table of such rows."""
    return f"<table cellpadding='3' style='{style}'>{''.join(rows)}</table>"


def picture(drawn: str, place: str) -> str:
    """The static picture of the panel that a page draws at `place`."""
    return f"<div class='transient-picture {attribute(place)}'>{drawn}</div>"
