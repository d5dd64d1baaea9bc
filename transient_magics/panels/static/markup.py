"""HTML of static pictures: text, tables, and colours that read on light and dark.

All of it is well-formed XML, too, so that tests can parse it.
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


def attribute(text: str) -> str:
    """Return text as the value of an attribute, between quotes of either kind."""
    return _escape(text)


def row(cells: Iterable[str], tag: str = "td") -> str:
    """Return a row of a table with HTML cells, which JupyterLab and nbconvert would align right."""
    return (
        "<tr>"
        + "".join(f"<{tag} style='text-align:left'>{cell}</{tag}>" for cell in cells)
        + "</tr>"
    )


def table(rows: Iterable[str], style: str = "font-size:13px;margin:4px 0") -> str:
    """Return a table of rows."""
    return f"<table cellpadding='3' style='{style}'>{''.join(rows)}</table>"


def picture(drawn: str, place: str) -> str:
    """Return the static picture of the panel that a page draws at `place`."""
    return f"<div class='transient-picture {attribute(place)}'>{drawn}</div>"
