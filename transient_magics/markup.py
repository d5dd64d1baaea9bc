"""HTML of values in a notebook, in the colours of JupyterLab's theme.

It has fallbacks for other front ends. It is well-formed XML, so that a parser finds mistakes.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Mapping, Sequence

STYLE = (
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);"
    "font-size:var(--jp-ui-font-size1,13px);"
    "line-height:1.5;color:var(--jp-ui-font-color1,inherit)"
)
FAINT = "color:var(--jp-ui-font-color2,inherit)"
_LINE = "border-bottom:1px solid var(--jp-border-color2,#dcdfe3)"
_CELL = "padding:2px 12px 2px 0;vertical-align:top;white-space:normal"


def escape(text: str) -> str:
    """Return text as HTML.

    JupyterLab reads text between two dollar signs as a formula, unless tags separate them.
    """
    return html.escape(text).replace("$", "<span>$</span>")


def code(text: str) -> str:
    """Return text as HTML in the font of code."""
    return f"<code>{escape(text)}</code>"


def block(*parts: str) -> str:
    """Return parts that are HTML, each as a paragraph, in the font and the colour of the theme."""
    paragraphs = "".join(f"<div>{part}</div>" for part in parts if part)
    return f"<div style='{STYLE}'>{paragraphs}</div>"


def title(text: str) -> str:
    """Return the cell of a row that has the title of the rows below it."""
    style = f"text-align:left;padding:8px 12px 2px 0;{_LINE}"
    return f"<th colspan='9' style='{style}'>{escape(text)}</th>"


def cells(parts: Sequence[str], tag: str = "td", numbers: Collection[int] = ()) -> str:
    """Return the cells of a row from parts that are HTML; right-aligned at indices in `numbers`."""
    row = ""
    for place, part in enumerate(parts):
        side = "right" if place in numbers else "left"
        row += f"<{tag} style='text-align:{side};{_CELL}'>{part}</{tag}>"
    return row


def table(rows: Iterable[str]) -> str:
    """Return a table of rows, each given as its cells."""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table style='{STYLE};border-collapse:collapse'>{body}</table>"


def facts(heading: str, values: Mapping[str, str], numbers: Collection[int] = ()) -> str:
    """Return a heading and a table of named values, as HTML. All texts are escaped."""
    rows = [cells([escape(name), escape(value)], numbers=numbers) for name, value in values.items()]
    return block(f"<b>{escape(heading)}</b>", table(rows))


def lines(heading: str, values: Mapping[str, str]) -> str:
    """Return a heading and named values as lines of text, the values below each other."""
    width = max(map(len, values), default=0)
    rows = [f"  {name:<{width}}  {value}" for name, value in values.items()]
    return "\n".join([heading, *rows])
