"""Parsing of a line of a cell or a terminal with the sub-commands and options of `options`.

`split` turns a line into words, and `parse` turns words into a `Command`: a verb and the given
values, under the names of the client's parameters. Options that are not given are missing from the
values, so that the client alone has the defaults. A mistake raises DeclarationError with the
nearest valid word. This module does not print or exit, and reads nothing but the catalog.
"""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..errors import DeclarationError, unknown
from . import options
from .help import Help, Overview, help_of
from .option import Option

__all__ = [
    "Command",
    "Option",
    "explain",
    "parse",
    "split",
    "verbs",
    "without_comment",
    "words_of_table",
]

_TERMINAL_ONLY = ("catalog", "export", "tensorboard")
_UNEXPANDED = re.compile(r"\$[A-Za-z_]\w*|\{[^{}]*\}")
_WIDTH = 110
"""Width of a help text in columns of a terminal."""
_ARGPARSE = re.compile(r"argument (?P<option>[^:]+): (?P<problem>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """The request of one line.

    Attributes
    ----------
    verb : str
        A sub-command, `declare`, `train`, or `help`.
    values : Mapping[str, Any]
        The given values by the name of the parameter. For `help`: the text, as `help`.
    dry_run, wait, json : bool
        Whether `--dry-run`, `--wait` or `--json` was given.
    output : str or None
        The variable that `-o` names.
    """

    verb: str
    values: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    wait: bool = False
    json: bool = False
    output: str | None = None


def verbs(magic: str = "cluster") -> tuple[str, ...]:
    """Return the sub-commands of `cluster`, of `image`, or of the program `transient`."""
    if magic == "cluster":
        return options.CLUSTER_VERBS
    if magic == "image":
        return options.IMAGE_VERBS
    return options.program_verbs()


def parse(verb: str, words: Sequence[str], *, called: str = "", file: bool = False) -> Command:
    """Parse the words after the name of a magic or program.

    Parameters
    ----------
    verb
        `cluster` (followed by a SPEC or a sub-command), `image` (followed by a sub-command; the
        verb of the command is then `image build`, for example), or another sub-command.
    words
        The words.
    called
        The text that the user typed before the words, for messages (default: `transient VERB`).
    file
        Whether the first word is the file with the code, as in a terminal.

    Raises
    ------
    DeclarationError
        An option, a value or a sub-command is invalid or missing.
    """
    called = called or f"transient {verb}"
    if words and words[0] == "help" and verb in ("cluster", "image"):
        words = [*words[1:], "-h"]
    if verb == "cluster":
        if words and words[0] in options.CLUSTER_VERBS:
            return _read(words[0], words[1:], f"{called} {words[0]}")
        _refuse_mistyped_verb(words, called)
        return _read("declare", words, called)
    if verb == "image":
        if not words or words[0] in ("-h", "--help"):
            return _read(verb, ["-h"], called)
        if words[0] not in options.IMAGE_VERBS:
            raise unknown("sub-command", words[0], options.IMAGE_VERBS, where=called)
        return _read(f"image {words[0]}", words[1:], f"{called} {words[0]}")
    return _read(verb, words, called, file=file)


def explain(words: Sequence[str], *, notebook: bool = False) -> Help | Overview:
    """Return the help of a command, or the overview if `words` is empty.

    Parameters
    ----------
    words
        The command, such as `cluster resize`.
    notebook
        Whether to describe magics instead of the terminal's commands.

    Raises
    ------
    DeclarationError
        The command is unknown.
    """
    words = [word for word in words if not word.startswith("-")]
    if not words:
        return Overview(notebook)
    typed = words[0].lstrip("%").removeprefix("transient_")
    if typed in ("help", "version"):  # the overview explains both, and neither has options
        return Overview(notebook)
    verb = options.aliases().get(typed, typed)
    if verb == "emulator":
        raise DeclarationError(
            "emulator works only in a terminal", fix="Type there: transient emulator -h"
        )
    if verb not in options.program_verbs():
        raise unknown("command", typed, [*options.program_verbs(), *options.aliases()])
    file = verb in options.from_files() and not notebook
    called = f"transient {typed}"
    if notebook and verb not in _TERMINAL_ONLY:
        work = options.work_commands().get(verb)
        if work and not work.research:
            called = work.magic
        else:
            called = f"%transient_{verb}"
    return parse(verb, [*words[1:], "-h"], called=called, file=file).values["help"]


def split(line: str) -> list[str]:
    """Split the line of a magic into words.

    Blanks separate words, and quotes keep them together. A trailing `# comment` and `;` are
    removed.

    Raises
    ------
    DeclarationError
        A quote is not closed, or the line has a `$name` or `{expr}` that IPython could not
        evaluate.
    """
    words: list[str] = []
    word: str | None = None
    quote = ""
    opened = 0
    for column, letter in enumerate(without_comment(line), 1):
        if quote:
            if letter == quote:
                quote = ""
            else:
                word = (word or "") + letter
        elif letter in "'\"":
            quote = letter
            opened = column
            word = word or ""
        elif letter.isspace():
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + letter
    if quote:
        raise DeclarationError(f"The quote {quote} has no closing one", where=f"column {opened}")
    if word is not None:
        words.append(word)
    if words and words[-1].endswith(";"):
        words[-1] = words[-1].rstrip(";")
        if not words[-1]:
            words.pop()
    for typed in words:
        if match := _UNEXPANDED.search(typed):
            raise DeclarationError(
                f"'{match[0]}' cannot be evaluated",
                where=typed,
                fix="Define it in a cell above, or write the value.",
            )
    return words


def without_comment(line: str) -> str:
    """Return the line up to a `# comment` that is not within quotes."""
    quote = ""
    for index, letter in enumerate(line):
        if quote:
            if letter == quote:
                quote = ""
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (index == 0 or line[index - 1].isspace()):
            return line[:index]
    return line


def words_of_table(table: Mapping[str, Any]) -> list[str]:
    """Return the words of a line that is equivalent to a TOML table.

    The table has `spec`, or `group` tables, and the options by name.
    """
    words = []
    if groups := table.get("group"):
        words.append("+".join(_group_text(group) for group in groups))
    if spec := table.get("spec"):
        words.append(str(spec))
    for key, value in table.items():
        if key in ("spec", "group"):
            continue
        name = key.replace("_", "-")
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            words.append(f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", ",".join(map(str, value))]
        else:
            words += [f"--{name}", str(value)]
    return words


def _group_text(group: Any) -> str:
    if not isinstance(group, Mapping) or not group.get("gpu"):
        raise DeclarationError(
            "A [[group]] has no gpu",
            fix='For example: gpu = "k80", count = 2, zone = "us-west1-b"',
        )
    if odd := set(group) - {"gpu", "count", "zone"}:
        key = sorted(odd)[0]
        raise unknown("key", key, ("gpu", "count", "zone"), where="[[group]]")
    if group.get("zone"):
        zone = f"@{group['zone']}"
    else:
        zone = ""
    return f"{group['gpu']}x{group.get('count', 1)}{zone}"


def _read(verb: str, words: Sequence[str], called: str, *, file: bool = False) -> Command:
    declared = options.declared(verb, file=file)
    parser = _parser(verb, called, declared)
    if "-h" in words or "--help" in words:
        return Command("help", {"help": help_of(parser, declared)})
    try:
        namespace, others = parser.parse_known_intermixed_args(_joined(words, declared))
    except argparse.ArgumentError as error:
        # argparse raises this in a few places, instead of calling error().
        parser.error(str(error))
    if others:
        _refuse_unknown(others, declared, called)
    values = {
        key: value for key, value in vars(namespace).items() if value is not None and value != []
    }
    for option in declared:
        if option.required and option.name not in values:
            missing = [
                other.flags[-1] for other in declared if other.required and other.name not in values
            ]
            example = options.example(verb)
            if file:
                example = f"cell.py {example}"
            example = f"{called} {example}"
            raise DeclarationError(
                f"{called} needs {' and '.join(missing)}", fix=f"For example: {example}"
            )
    if check := options.check_of(verb):
        check(values, called)
    common = {
        name: values.pop(name) for name in ("dry_run", "wait", "json", "output") if name in values
    }
    return Command(verb, values, **common)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """The formatter of argparse, which keeps line breaks in the help of an option."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [
            part
            for line in text.splitlines()
            for part in super(_Formatter, self)._split_lines(line, width)
        ]


class _Parser(argparse.ArgumentParser):
    """A parser that neither exits nor prints."""

    def error(self, message: str) -> NoReturn:
        if match := _ARGPARSE.match(message):
            problem = re.sub(
                r"expected (one|at least one) argument", "a value must follow", match["problem"]
            )
            message = f"{match['option'].split('/')[-1]}: {problem}"
        message = message.replace("the following arguments are required:", "missing")
        raise DeclarationError(f"{self.prog}: {message}", fix="-h lists its arguments.")


def _parser(verb: str, called: str, declared: Sequence[Option]) -> _Parser:
    def formatter(prog: str) -> argparse.HelpFormatter:
        return _Formatter(prog, max_help_position=30, width=_WIDTH)

    by_position = [option for option in declared if option.is_position]
    words = [_placeholder(option) for option in by_position]
    parser = _Parser(
        prog=called,
        usage=" ".join([called, *words, "[options]"]).replace("%", "%%"),
        description=textwrap.fill(options.description(verb), _WIDTH),
        epilog=options.epilog(verb).format(called=called),
        allow_abbrev=False,
        add_help=False,
        formatter_class=formatter,
    )
    for title, listed in options.grouped(declared):
        group = parser.add_argument_group(title)
        for option in listed:
            group.add_argument(*option.flags, **option.for_argparse())
    return parser


def _placeholder(option: Option) -> str:
    """Return the word that stands for an argument in a usage line."""
    if option.many == "?":
        return f"[{option.metavar}]"
    return option.metavar or ""


def _joined(words: Sequence[str], declared: Iterable[Option]) -> list[str]:
    """Join options and values that begin with '-', as `--option=-1`.

    argparse would parse such a value as another option.
    """
    single = {
        flag
        for option in declared
        if option.takes_value
        for flag in option.flags
        if flag.startswith("-")
    }
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in single and re.match(r"-\d", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _refuse_unknown(words: Sequence[str], declared: Iterable[Option], called: str) -> NoReturn:
    flags = [flag for option in declared for flag in option.spellings if flag.startswith("--")]
    for word in words:
        if word.startswith("-"):
            name = word.partition("=")[0]
            if elsewhere := _owners(name, called):
                raise unknown("option", name, (), where=called, otherwise=elsewhere)
            hint = ""
            if not flags:
                hint = _beside(name, called)
            raise unknown("option", name, flags, where=called, otherwise=hint)
    quoted = any(option.name == "command" for option in declared)
    if quoted:
        fix = 'Put the whole command in quotes, such as "python train.py".'
    else:
        fix = "-h lists its arguments."
    raise DeclarationError(f"Unexpected argument '{words[0]}'", where=called, fix=fix)


def _owners(flag: str, called: str) -> str:
    """Return a sentence with the commands that have this flag; empty if none has it."""
    terminal = not called.startswith("%")
    found = [
        names[terminal]
        for verb, names in options.lines().items()
        if any(flag in option.spellings for option in options.declared(verb))
    ]
    *others, last = found or [""]
    if others:
        return f"{', '.join(others)} and {last} have it."
    if last:
        return f"{last} has it."
    return ""


def _beside(flag: str, called: str) -> str:
    """Return a hint for a flag that was given to a sub-command without options."""
    above, _, verb = called.rpartition(" ")
    if verb not in options.CLUSTER_VERBS:
        return "It has none."
    others = [
        cluster_verb
        for cluster_verb in options.CLUSTER_VERBS
        if any(flag in option.spellings for option in options.declared(cluster_verb))
    ]
    if not others:
        return "It has none."
    if len(others) == 1:
        return f"It has none; {above} {others[0]} has it."
    return f"It has none; {above} {' and '.join(others)} have it."


def _refuse_mistyped_verb(words: Sequence[str], called: str) -> None:
    from ..catalog import ACCELERATORS

    first = " ".join(words[:1]).lower()
    if not first.isalpha() or first in ACCELERATORS:
        return
    # A word that is not close to any sub-command may be a mistyped SPEC.
    if difflib.get_close_matches(first, options.CLUSTER_VERBS, n=1, cutoff=0.7):
        raise unknown("sub-command", first, options.CLUSTER_VERBS, where=called)
