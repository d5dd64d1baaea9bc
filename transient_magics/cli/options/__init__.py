"""All options of cells and terminals: their sub-command, help, group and checks.

Each kind of work has the options of its own sub-commands in its part `options` (see `work.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from ...kinds import load
from ..option import Entry, Option, word
from . import clusters, planning, project, weather
from .planning import WORKLOADS
from .words import (
    AFTER_WORK,
    BEFORE_WORK,
    CLUSTER_VERBS,
    DESCRIPTIONS,
    EPILOGS,
    EXAMPLES,
    IMAGE_VERBS,
    OTHER_CELLS,
    OTHER_VERBS,
    RESEARCH_ENTRIES,
)
from .work import Code, WorkCommand, kind_of, work_commands

__all__ = [
    "CLUSTER_VERBS",
    "IMAGE_VERBS",
    "WORKLOADS",
    "Code",
    "Entry",
    "WorkCommand",
    "aliases",
    "check_of",
    "declared",
    "description",
    "epilog",
    "example",
    "from_files",
    "grouped",
    "kind_of",
    "lines",
    "program_verbs",
    "tiers",
    "work_commands",
]


def program_verbs() -> tuple[str, ...]:
    """Return the sub-commands of the program `transient`."""
    return "cluster", *work_commands(), *OTHER_VERBS


def aliases() -> Mapping[str, str]:
    """Return the sub-command for each alias of the program `transient`."""
    return {command.typed: verb for verb, command in work_commands().items() if command.typed}


def from_files() -> tuple[str, ...]:
    """Return the sub-commands of the program `transient` that take their code from a file."""
    return tuple(verb for verb, command in work_commands().items() if command.from_file)


def lines() -> Mapping[str, tuple[str, str]]:
    """Return the first words of commands that have many options, in a cell and in a terminal."""
    core = {verb: command for verb, command in work_commands().items() if not command.research}
    return {
        "declare": ("%transient_cluster", "transient cluster"),
        **{verb: (command.magic, f"transient {command.name}") for verb, command in core.items()},
        **OTHER_CELLS,
    }


def tiers() -> Mapping[str, tuple[Entry, ...]]:
    """Return the commands of the overview by tier."""
    core: list[Entry] = []
    research: list[Entry] = []
    for command in work_commands().values():
        if command.research:
            research.extend(command.entries)
        else:
            core.extend(command.entries)
    return {
        "Core commands": (*BEFORE_WORK, *core, *AFTER_WORK),
        "Research": (*research, *RESEARCH_ENTRIES),
    }


def description(verb: str) -> str:
    """Return the description of a sub-command."""
    found = work_commands().get(verb)
    if found:
        return found.description
    return DESCRIPTIONS[verb]


def epilog(verb: str) -> str:
    """Return the text below the options in the help of a sub-command."""
    found = work_commands().get(verb)
    if found:
        return found.epilog
    return EPILOGS.get(verb, "")


def example(verb: str) -> str:
    """Return the arguments of an example of a sub-command."""
    found = work_commands().get(verb)
    if found:
        return found.example
    return EXAMPLES[verb]


def check_of(verb: str) -> Callable[[dict[str, Any], str], None] | None:
    """Return the function that checks the values of a sub-command together, or None."""
    found = work_commands().get(verb)
    if found:
        return found.check
    return _CHECKS.get(verb)


def declared(verb: str, *, file: bool = False) -> tuple[Option, ...]:
    """Return the options of a sub-command in the order of its help."""
    options = _table()[verb]
    if file:
        return (word("source", "FILE", "the code, a Python file", completes="path"), *options)
    return options


def grouped(options: Iterable[Option]) -> list[tuple[str, list[Option]]]:
    """Return the options by title of their group, in the order of the help."""
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.group, []).append(option)
    return list(groups.items())


@cache
def _table() -> Mapping[str, tuple[Option, ...]]:
    # A function, so that importing this module costs nothing before the first cell uses it.
    return {
        "declare": clusters.declare(),
        **{verb: command.options() for verb, command in work_commands().items()},
        **clusters.verbs(),
        **clusters.work(),
        "catalog": planning.catalog(),
        **load("run", "options").results(),
        "plan": planning.plan(),
        "doctor": project.doctor(),
        "weather": weather.weather(),
        "deflate": weather.deflate(),
        "measure": weather.measure(),
        "lifetimes": planning.lifetimes(),
        **project.images(),
    }


_CHECKS: Mapping[str, Callable[[dict[str, Any], str], None]] = {
    "declare": clusters.check_declare,
    "resize": clusters.check_resize,
    "relocate": clusters.check_relocate,
    "delete": clusters.check_delete,
    "doctor": project.check_doctor,
    "plan": planning.check_plan,
    "catalog": planning.check_catalog,
    "lifetimes": planning.check_lifetimes,
    "weather": weather.check_weather,
    "deflate": weather.check_deflate,
}
