"""Sub-commands that declare work: each kind has its own in its part `options`, as `COMMANDS`.

They are imported when a cell or a terminal needs the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...kinds import KINDS, parts
from ..option import Entry, Option


@dataclass(frozen=True, slots=True)
class Code:
    """The code that is declared with work, and where it stands.

    Attributes
    ----------
    source : str
        The code; empty where there is none.
    called : str
        What was typed before the options, such as `%%train`, for errors.
    line_offset : int
        The number of lines above the code in its cell.
    notebook : collection of str
        Names that only the notebook has.
    folder : Path or None
        The folder in which the file with the code is.
    """

    source: str = ""
    called: str = ""
    line_offset: int = 0
    notebook: Collection[str] = ()
    folder: Path | None = None

    def check(
        self, values: Mapping[str, Any], tried: Collection[str] = (), *, beside: bool = True
    ) -> None:
        """Check code that defines what is trained. Raises CellError.

        Parameters
        ----------
        values
            The values of the options.
        tried
            The names of parameters that a study tries values of.
        beside
            Whether modules beside the file with the code count as known.
        """
        from ...client import cell

        params = dict.fromkeys(values.get("params", ()), "--param") | dict.fromkeys(tried, "--over")
        cell.check(
            self.source,
            self.notebook,
            line_offset=self.line_offset,
            include=values["include"],
            folder=self.folder if beside else None,
            own_model=not values.get("model"),
            params=params,
        )


@dataclass(frozen=True, slots=True)
class WorkCommand:
    """A sub-command that declares work.

    Attributes
    ----------
    verb : str
        Its name in commands, such as `study`.
    options : callable
        Returns its options, in the order of their help.
    declare : callable
        Declares work with the values of the options and a Code, and returns its handle, or what
        `--dry-run` shows.
    description : str
        What it does, in its help.
    entries : tuple of Entry
        Its lines in the overview of all commands.
    check : callable or None
        Checks values that belong together, and changes them to those that `declare` takes.
    typed : str
        What is typed in a terminal and in a cell (default: the verb).
    example : str
        Options of an example, for errors.
    epilog : str
        The text below the options in its help.
    research : bool
        Whether the overview lists it under Research, and a cell has it under its long name alone.
    from_file : bool
        Whether a terminal takes the code from a file, and a cell needs a body.
    dry_run : bool
        Whether `declare` takes `dry_run`.
    rank : int
        Where it is listed among the others: the lowest first.
    """

    verb: str
    options: Callable[[], tuple[Option, ...]]
    declare: Callable[..., Any]
    description: str
    entries: tuple[Entry, ...]
    check: Callable[[dict[str, Any], str], None] | None = None
    typed: str = ""
    example: str = ""
    epilog: str = ""
    research: bool = False
    from_file: bool = True
    dry_run: bool = False
    rank: int = 10

    @property
    def name(self) -> str:
        """What is typed in a terminal and in a cell."""
        return self.typed or self.verb

    @property
    def magic(self) -> str:
        """Its cell magic, with its signs."""
        if self.research:
            return f"%%transient_{self.name}"
        return f"%%{self.name}"


@cache
def work_commands() -> Mapping[str, WorkCommand]:
    """Return the sub-commands of all kinds by verb, those of research last."""
    found = [command for options in parts("options").values() for command in options.COMMANDS]
    found.sort(key=lambda command: (command.research, command.rank))
    return {command.verb: command for command in found}


@cache
def kind_of(verb: str) -> str:
    """Return what people call the work that a sub-command declares, such as `bag`."""
    for kind, options in parts("options").items():
        if any(command.verb == verb for command in options.COMMANDS):
            return str(KINDS[kind])
    raise KeyError(verb)


def with_included(values: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Return the values with the absolute paths of the files and folders to send along. Raises
    DeclarationError.

    `folder`: where relative paths begin (default: the current folder).
    """
    from ...client.declaring.payload import included

    return {**values, "include": included(values.get("include", ()), folder)}
