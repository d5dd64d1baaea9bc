"""Texts of `-h` and `help`: the options of one sub-command, and the overview of all commands.

Both are text as `str`; a notebook shows their HTML, which has a column for defaults.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .. import markup
from .option import Entry, Option
from .options import grouped, tiers

_EPILOG = "white-space:pre-wrap;font-family:var(--jp-code-font-family,monospace)"


@dataclass(frozen=True, repr=False)
class Help:
    """The help of one sub-command."""

    text: str
    """The text for a terminal."""
    usage: str
    description: str
    epilog: str
    options: Sequence[Option]

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        rows = []
        for name, options in grouped(self.options):
            rows.append(markup.title(name))
            rows.extend(map(_option_cells, options))
        head = markup.cells(["option", "what it does", "default"], "th")
        parts = [markup.block(markup.code(self.usage), markup.escape(self.description))]
        if rows:
            parts.append(markup.table([head, *rows]))
        if self.epilog:
            parts.append(
                f"<pre style='{markup.STYLE};{_EPILOG}'>{markup.escape(self.epilog)}</pre>"
            )
        return "".join(parts)


def _option_cells(option: Option) -> str:
    """Return the cells of an option's row: its name, its help and its default."""
    if option.is_position:
        names = markup.code(option.metavar or option.name)
    else:
        names = ", ".join(option.spellings)
        if option.takes_value and option.metavar:
            names += f" {option.metavar}"
        names = markup.code(names)
    default = option.default
    if option.required:
        default = "required"
    meaning = "<br/>".join(map(markup.escape, option.help.splitlines()))
    return markup.cells([names, meaning, markup.escape(default)])


def help_of(parser: argparse.ArgumentParser, options: Sequence[Option]) -> Help:
    """Return the help of a sub-command from its parser and its options."""
    return Help(
        text=parser.format_help(),
        usage=(parser.usage or parser.prog).replace("%%", "%"),
        description=parser.description or "",
        epilog=parser.epilog or "",
        options=options,
    )


@dataclass(frozen=True, repr=False)
class Overview:
    """The overview of all commands in two tiers, for a terminal or for a notebook."""

    notebook: bool = False

    def __repr__(self) -> str:
        if self.notebook:
            first = "Magics of transient_magics"
        else:
            first = "usage: transient COMMAND ..."
        parts = [first]
        for title, entries in self._tiers():
            typed = [self._typed(entry) for entry in entries]
            width = max(map(len, typed))
            rows = [
                f"  {line:<{width}}  {entry.summary}"
                for line, entry in zip(typed, entries, strict=True)
            ]
            parts.append("\n".join([f"{title}:", *rows]))
        return "\n\n".join([*parts, self._end])

    def _repr_html_(self) -> str:
        rows = []
        for title, entries in self._tiers():
            rows.append(markup.title(title))
            for entry in entries:
                rows.append(
                    markup.cells([markup.code(self._typed(entry)), markup.escape(entry.summary)])
                )
        return markup.table(rows) + markup.block(markup.escape(self._end))

    @property
    def _end(self) -> str:
        if self.notebook:
            return "%transient_help COMMAND, or -h after any magic, lists its options."
        return "`transient help COMMAND`, or -h after any of them, lists its options."

    def _tiers(self) -> Iterable[tuple[str, list[Entry]]]:
        for title, entries in tiers().items():
            yield title, [entry for entry in entries if self._typed(entry)]

    def _typed(self, entry: Entry) -> str:
        if self.notebook:
            return entry.magic
        return entry.line
