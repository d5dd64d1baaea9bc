"""Sub-commands that declare work. Each kind of work lists its own in `COMMANDS` of `options.py`.

They are imported when a cell or a terminal first needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...kinds import KINDS, parts
from ..option import Entry, Option


@dataclass(frozen=True, slots=True)
class Code:
    """The code of new work, and its place.

    Attributes
    ----------
    source : str
        The code; empty if there is none.
    called : str
        The text typed before the options, such as `%%train`, for errors.
    line_offset : int
        The number of lines above the code in its cell.
    notebook : collection of str
        Names that exist in the notebook only.
    folder : Path or None
        The folder of the file with the code.
    """

    source: str = ""
    called: str = ""
    line_offset: int = 0
    notebook: Collection[str] = ()
    folder: Path | None = None

    def check(
        self, values: Mapping[str, Any], tried: Collection[str] = (), *, beside: bool = True
    ) -> None:
        """Check code that defines a model.

        Parameters
        ----------
        values
            The values of the options.
        tried
            The names of parameters for which a study tries values.
        beside
            Whether the code may import modules that are beside its file, in the same folder.

        Raises
        ------
        CellError
            The code is invalid.
        """
        from ...client import cell

        params = dict.fromkeys(values.get("params", ()), "--param") | dict.fromkeys(tried, "--over")
        folder = None
        if beside:
            folder = self.folder
        cell.check(
            self.source,
            self.notebook,
            line_offset=self.line_offset,
            include=values["include"],
            folder=folder,
            own_model=not values.get("model"),
            params=params,
        )


@dataclass(frozen=True, slots=True)
class WorkCommand:
    """A sub-command that declares work.

    Attributes
    ----------
    verb : str
        The name of the sub-command, such as `study`.
    options : callable
        Returns the options in the order of the help.
    declare : callable
        Declares work from the values of the options and a Code. Returns its handle, or the preview
        of `--dry-run`.
    description : str
        The description in the help.
    entries : tuple of Entry
        Lines of the overview of all commands.
    check : callable or None
        Checks the values together, and converts them for `declare`.
    typed : str
        The name that users type in a terminal and in a cell (default: `verb`).
    example : str
        Arguments of an example, for errors.
    epilog : str
        The text below the options in the help.
    research : bool
        Whether the overview lists the command under Research, and its magic has only the long name.
    from_file : bool
        Whether a terminal takes the code from a file, and a cell needs a body.
    dry_run : bool
        Whether `declare` takes `dry_run`.
    rank : int
        The place in lists of commands, lowest first.
    notes : callable or None
        Returns sentences that are shown after the declaration, from the values of the options and
        the code.
    names : callable or None
        Returns variables that a notebook gets, from the handle and the code.
    guide : str
        The name of the documentation page that explains it.
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
    notes: Callable[[Mapping[str, Any], Code], Sequence[str]] | None = None
    names: Callable[[Any, Code], Mapping[str, object]] | None = None
    guide: str = ""

    @property
    def name(self) -> str:
        """The name in a terminal and in a cell."""
        return self.typed or self.verb

    @property
    def magic(self) -> str:
        """The cell magic, with its percent signs."""
        if self.research:
            return f"%%transient_{self.name}"
        return f"%%{self.name}"


@cache
def work_commands() -> Mapping[str, WorkCommand]:
    """Return the sub-commands of all kinds by verb, Research last."""
    found = [command for options in parts("options").values() for command in options.COMMANDS]
    found.sort(key=lambda command: (command.research, command.rank))
    return {command.verb: command for command in found}


@cache
def kind_of(verb: str) -> str:
    """Return the name of the kind of work that a sub-command declares, such as `bag`."""
    for kind, options in parts("options").items():
        if any(command.verb == verb for command in options.COMMANDS):
            return str(KINDS[kind])
    raise KeyError(verb)


def with_included(values: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Return the values with absolute paths of the files and folders to send along.

    Parameters
    ----------
    values
        The values of the options.
    folder
        The base of relative paths (default: the current folder).

    Raises
    ------
    DeclarationError
        A path does not exist.
    """
    from ...client.declaring.payload import included

    return {**values, "include": included(values.get("include", ()), folder)}
