"""The reference, written from the code: options of every sub-command, events, errors, the names that people import.

The page about intervals is written from what `benchmarks/bench_calibration.py` stored. Nothing of the reference is
stored: `make docs` writes it each time, so that an option or an event is described in one place only.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import transient_magics
from transient_magics import errors
from transient_magics.cli import options
from transient_magics.cli.option import Option
from transient_magics.journal import events as of_controller
from transient_magics.kinds import KINDS, parts
from transient_magics.protocol import vm_events as of_vms
from transient_magics.protocol.events import kinds

_WORK = options.work_commands()
_CORE = {command.name: (verb,) for verb, command in _WORK.items() if not command.research}
_RESEARCH = {command.name: (verb,) for verb, command in _WORK.items() if command.research}

_PAGES = {
    "cluster": ("declare", *options.CLUSTER_VERBS),
    "work": ("work", "stop"),
    **_CORE,
    "train": ("train", "export", "tensorboard"),
    "plan": ("plan",),
    "doctor": ("doctor", "catalog", *(f"image {verb}" for verb in options.IMAGE_VERBS)),
    "weather": ("weather",),
    "deflate": ("deflate",),
    **_RESEARCH,
    "measure": ("measure",),
    "lifetimes": ("lifetimes",),
}
"""The sub-commands of the options' table, by the page of the reference that describes them."""

_GUIDES = {
    "cluster": "clusters",
    "work": "clusters",
    "plan": "planning",
    "doctor": "google-cloud",
    "weather": "emulator",
    "deflate": "deflation",
    "measure": "lifetimes",
    "lifetimes": "lifetimes",
    **{command.name: command.guide for command in _WORK.values()},
}
"""The page that explains the commands of a page of the reference; empty for none."""

_MAGICS = ("work", "stop", "plan", "weather", "deflate", "measure", "lifetimes", "doctor")
_LINES = {
    "declare": "%transient_cluster",
    **{verb: f"%transient_cluster {verb}" for verb in options.CLUSTER_VERBS},
    **{verb: f"%transient_{command.name}" if command.research else command.magic for verb, command in _WORK.items()},
    **{verb: f"%transient_{verb}" for verb in _MAGICS},
    **{f"image {verb}": f"%transient_image {verb}" for verb in options.IMAGE_VERBS},
    **{verb: f"transient {verb}" for verb in ("catalog", "export", "tensorboard")},
}
"""The line that people type for a sub-command."""


# The introductions of pages.
_EVENTS = """\
An event is a line of the journal, the file `journal.jsonl` in the cluster's folder.
`cluster.events()` returns the events. Each event has the fields `seq` (its number), `time`
(nanoseconds since 1970, UTC) and `kind`, and the fields below. A version of the package ignores
events of a kind that is unknown to it, and keeps them in the file.

In the descriptions, a clause is a text without a period, such as `the time limit of 24 h`. `ps-0`
is the VM of the first parameter server.
"""
_ERRORS = """\
All errors are in `transient_magics.errors`. A cell shows an error as one sentence without a
traceback. In Python, errors are exceptions with the attributes `what` (the problem), `where` and
`fix`. In the list, each error is a subclass of the error above it with a smaller indent.
"""
_PYTHON = """\
`import transient_magics as tm` makes the following classes and functions available. Each is
imported when it is first used.
"""


def write(folder: Path) -> None:
    """Write the pages of the reference into `folder`, where they have changed."""
    folder.mkdir(exist_ok=True)
    for name, lines in pages().items():
        path, text = folder / f"{name}.md", "\n".join(lines) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def pages() -> dict[str, Iterator[str]]:
    """Return the lines of every page of the reference, by the name of its file."""
    return {
        "options": _options(),
        **{page: _commands(verbs, _GUIDES[page]) for page, verbs in _PAGES.items()},
        "events": _events(),
        "errors": _errors(),
        "python": _python(),
        "intervals": _intervals(_stored("calibration.json"), _stored("calibration-before.json")),
    }


def _cell(text: str) -> str:
    """Text in a table's cell: in one line, and as it is meant."""
    return re.sub(r"([|<>*_\\])", r"\\\1", " ".join(text.split()))


def _options() -> Iterator[str]:
    """The overview of all commands, a row for each."""
    yield "# Commands and options"
    yield ""
    yield "To show the options of a command, add `-h`. The commands of a terminal have the same options:"
    yield "`transient train FILE.py` has those of `%%train`. The {ref}`index <genindex>` lists all options."
    yield ""
    yield "| command | what it does |"
    yield "|---|---|"
    for page, verbs in _PAGES.items():
        for verb in verbs:
            first = _described(verb).partition(". ")[0].rstrip(".")
            place = f"{page}.md" if verb == verbs[0] else f"{page}.md#{_anchor(_LINES[verb])}"
            yield f"| [`{_LINES[verb]}`]({place}) | {_cell(first)} |"
    yield ""
    yield from ("```{toctree}", ":hidden:", "", *_PAGES, "```")


def _anchor(line: str) -> str:
    """The anchor of a heading, as MyST makes it."""
    return re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-")


def _described(verb: str) -> str:
    return " ".join(options.description(verb).split())


def _commands(verbs: tuple[str, ...], guide: str) -> Iterator[str]:
    """The page of a command and its sub-commands: an anchor and an index entry for each option."""
    for number, verb in enumerate(verbs):
        yield from ("", f"{'##' if number else '#'} `{_LINES[verb]}`", "", _cell(_described(verb)), "")
        if guide and not number:
            yield from (f"Guide: [](../{guide}.md).", "")
        program = re.sub(r"^%+(transient_)?", "transient ", _LINES[verb])  # Sphinx takes no "%" in a program's name
        yield from ("```{program} " + program, "```")
        groups = options.grouped(options.declared(verb))
        for title, listed in groups:
            if len(groups) > 1:
                yield from ("", f"{'###' if number else '##'} {title}")
            for option in listed:
                yield from _option(option)


def _option(option: Option) -> Iterator[str]:
    value = f" {option.metavar}" if option.takes_value and option.metavar and not option.is_position else ""
    spelled = ", ".join(f"{flag}{value}" for flag in option.spellings)
    text = option.help
    if option.is_position:
        text = f"{option.metavar or option.name}: {option.help}"
    text = f"{text[:1].upper()}{text[1:].rstrip('.')}."
    if option.required:
        text += " Required."
    if option.default:
        text += f" Default: {option.default}"
        text += "" if text.endswith(".") else "."
    yield from ("", "```{option} " + spelled, *map(_cell, text.splitlines()), "```")


def _events() -> Iterator[str]:
    yield "# Events"
    yield ""
    yield from _EVENTS.splitlines()
    of_work = [(f"Events of a {KINDS[kind]}", module) for kind, module in parts("events").items()]
    for title, module in (("Events of the controller", of_controller), ("Events of the VMs", of_vms), *of_work):
        yield from ("", f"## {title}")
        for kind in sorted(kind for kind, event in kinds().items() if event.__module__ == module.__name__):
            event = kinds()[kind]
            yield from ("", f"### `{kind}`", "", inspect.getdoc(event) or "", "")
            fields = [each for each in dataclasses.fields(event) if each.name not in ("seq", "time")]
            if fields:
                yield from ("| field | type |", "|---|---|")
                yield from (f"| `{each.name}` | {_cell(_type(each.type))} |" for each in fields)


def _type(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return re.sub(r"^Annotated\[([\w.]+).*\]$", r"\1", text)


def _errors() -> Iterator[str]:
    yield "# Errors"
    yield ""
    yield from _ERRORS.splitlines()
    yield ""
    yield from _branch(errors.TransientError, 0)


def _branch(error: type[errors.TransientError], depth: int) -> Iterator[str]:
    text = re.split(r"\n\n\w+\n-{3,}", inspect.getdoc(error) or "")[0]  # without the NumPy sections
    yield f"{'  ' * depth}- `{error.__name__}`: {' '.join(text.split())}"
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _branch(child, depth + 1)


def _python() -> Iterator[str]:
    yield "# Python"
    yield ""
    yield from _PYTHON.splitlines()
    for name in transient_magics.__all__:
        if name in ("__version__", "errors"):
            continue
        kind = "class" if inspect.isclass(getattr(transient_magics, name)) else "function"
        yield from ("", "```{eval-rst}", f".. auto{kind}:: transient_magics.{name}", "```")
    yield from ("", "```{toctree}", ":hidden:", "", "events", "errors", "```")


def _stored(name: str) -> list[dict[str, Any]]:
    """Rows of the calibration table as `bench_calibration.py --json` wrote them."""
    path = Path(__file__).parent.parent / "benchmarks" / name
    return json.loads(path.read_text(encoding="utf-8"))


def _intervals(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> Iterator[str]:
    """The calibration table, a section for each interval that users see."""
    earlier = {(row["interval"], row["measured"]): row for row in before}
    goals = [row["holds"] for row in rows if row["holds"] is not None]
    yield "# How often intervals hold"
    yield ""
    yield "Each displayed interval should contain the result in 90 of 100 cases. This table shows"
    yield "how often it does in simulation. Where speeds matter, runs differ by 2 to 6%, VMs by 1"
    yield "to 5%, and speed varies over time by 1 to 5%, correlated over 30 s, 10 min, 30 min or"
    yield "2 h. The estimators do not know these numbers."
    yield ""
    yield "The goal of a row has two parts. The interval contains the result in 85 to 95% of the"
    yield "trials. Its median width is at most 1.5 times that of the best possible interval,"
    yield "which knows these numbers. `benchmarks/bench_calibration.py` measures the table again."
    yield ""
    yield "The last column has the same simulations with earlier code (commit 84c3c249): 150"
    yield "trials for plans and forecasts, 400 for all others. Rows without a figure in that"
    yield "column had no interval, had an interval of something else (dollars of forecasts), or"
    yield "were not measured."
    yield ""
    yield f"Of {len(goals)} rows with a goal, {sum(goals)} meet it."
    yield "Nothing in this table was measured on Google Cloud."
    for interval, group in groupby(sorted(rows, key=lambda row: row["interval"]), lambda row: row["interval"]):
        yield from ("", f"## {interval[0].upper()}{interval[1:]}", "")
        yield "| measured before | holds | width / best | trials | goal | holds, before |"
        yield "|---|---|---|---|---|---|"
        for row in group:
            yield _interval(row, earlier.get((row["interval"], row["measured"])))


def _interval(row: dict[str, Any], before: dict[str, Any] | None) -> str:
    goal = {True: "met", False: "**missed**", None: "none"}[row["holds"]]
    ratio = "not computed" if row["ratio"] is None else f"{row['ratio']:.2f}"
    holds = f"{row['coverage']:.1%} ± {row['error']:.1%}" if row["shown"] else "no interval shown"
    was = f"{before['coverage']:.1%}" if before and before["shown"] else "not measured"
    return f"| {_cell(row['measured'])} | {holds} | {ratio} | {row['shown']} | {goal} | {was} |"
