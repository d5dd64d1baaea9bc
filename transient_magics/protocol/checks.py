"""Checks of foreign values: what a class says of its fields is what is let in.

`of` makes a check from an annotation, `fields_of` those of a dataclass. A check returns the value
(lists as the tuples they were) or raises ValueError. Numbers are finite and below 2**63, texts have
4 KiB at most, mappings and sequences 1,024 entries, and JSON is no deeper than 16. `Annotated[int,
at_least(0)]` adds checks of one's own. What is shown of a foreign text is `plain`.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Literal, NoReturn, TypeVar, Union, cast

from ..kinds import checked_kind

LONGEST_LINE = 1 << 20
"""Of a line that is taken from anybody, in bytes."""
LONGEST_TEXT = 4096
MOST_ENTRIES = 1024
DEEPEST = 16
LARGEST = 2**63
"""Above all numbers that are let in."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
MOST_CHARACTERS = 400

Check = Callable[[object], object]
_Class = TypeVar("_Class")

LONGEST_NAME = 40
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class Alone:
    """In an annotation: this check alone, and none that follows from the type."""

    check: Check


def at_least(least: float) -> Callable[[float], float]:
    """A number no less than this."""

    def check(value: float) -> float:
        if value < least:
            raise ValueError(f"{value!r} is less than {least}")
        return value

    return check


def within(least: float, most: float) -> Callable[[float], float]:
    """A number from `least` to `most`."""

    def check(value: float) -> float:
        if not least <= value <= most:
            raise ValueError(f"{value!r} is not from {least} to {most}")
        return value

    return check


def _name_or_none(value: str) -> str:
    if value:
        return checked_name(value)
    return value


Count = Annotated[int, at_least(0)]

Amount = Annotated[float, at_least(0)]


def checked_name(value: object) -> str:
    """The same, if it is a name. Raises ValueError."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError(f"no name: {value!r:.80}")


Name = Annotated[str, checked_name]

NameOrNone = Annotated[str, _name_or_none]
"""A name, or the empty text."""

KindOfWork = Annotated[str, checked_kind]
"""The name of a kind of work (`kinds.KINDS`)."""


def parsed(line: bytes | str) -> object:
    """The JSON value of one line. Raises ValueError where there is none, or too much of it."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"a line of {len(line)} bytes")
    try:
        return json.loads(line, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("JSON that is too deep") from None


def parsed_object(line: bytes | str) -> dict[str, object]:
    """As `parsed`, of a line that holds an object."""
    values = parsed(line)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    return cast("dict[str, object]", values)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def text(value: object) -> str:
    """A text of 4 KiB at most that UTF-8 can hold."""
    if not isinstance(value, str):
        raise ValueError(f"no text: {value!r:.80}")
    if len(value) > LONGEST_TEXT or (not value.isascii() and len(value.encode()) > LONGEST_TEXT):
        raise ValueError(f"a text of {len(value)} characters")
    return value


def an_object(value: object) -> Mapping[str, object]:
    """A JSON object, whose values are not checked."""
    if not isinstance(value, Mapping):
        raise ValueError(f"no object: {value!r:.80}")
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            raise ValueError(f"no key: {key!r:.80}")
    return cast("Mapping[str, object]", value)


def clipped(value: str) -> str:
    """What of a text may be told: its begin, where it is too long, and nothing that UTF-8 cannot
    hold.
    """
    return value.encode(errors="replace")[:LONGEST_TEXT].decode(errors="ignore")


def plain(said: str, most: int = MOST_CHARACTERS) -> str:
    """What a VM (or anybody) said, as text that steers no terminal, turns no direction of writing,
    and ends.

    Terminal sequences go; other control characters, marks of direction and halves of characters
    become `\ufffd`; lines and tabs stay, and what a terminal would write over the line before (a
    progress bar) is a line of its own; behind `most` characters there is an ellipsis.
    """
    said = _ESCAPES.sub("", said[: 4 * most]).replace("\r\n", "\n").replace("\r", "\n")
    said = _UNSEEN.sub("\ufffd", said)
    if len(said) <= most:
        return said
    return f"{said[: most - 1]}…"


def all_plain(said: str) -> str:
    """As `plain`, of any length."""
    return plain(said, most=len(said) + 1)


def _integer(value: object) -> int:
    if type(value) is not int or not -LARGEST < value < LARGEST:
        raise ValueError(f"no whole number: {value!r:.80}")
    return value


def _number(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not -LARGEST < value < LARGEST
    ):
        raise ValueError(f"no number: {value!r:.80}")  # infinite ones and NaN among them
    return value


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"neither true nor false: {value!r:.80}")
    return value


def _nothing(value: object) -> None:
    if value is not None:
        raise ValueError(f"something: {value!r:.80}")


def anything(value: object, depth: int = DEEPEST) -> object:
    """Any JSON value: of plain types, finite, not deep. Its size is that of its line."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        return _number(value)
    if depth <= 0:
        raise ValueError("JSON that is too deep")
    if isinstance(value, (list, tuple)):
        inner = cast("Sequence[object]", value)
    elif isinstance(value, Mapping):
        inner = an_object(cast("object", value)).values()
    else:
        raise ValueError(f"no JSON value: {type(value).__name__}")
    for each in inner:
        anything(each, depth - 1)
    return cast("object", value)


_PLAIN: dict[object, Check] = {
    int: _integer,
    float: _number,
    str: text,
    bool: _boolean,
    type(None): _nothing,
    None: _nothing,
    object: anything,
}


def of(annotation: object) -> Check:
    """The check of what is annotated so."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin = typing.get_origin(annotation)
    inner = typing.get_args(annotation)
    if origin is Annotated and isinstance(inner[1], Alone):
        return inner[1].check
    if origin is Annotated:
        return _all(of(inner[0]), *inner[1:])
    if origin in (Union, types.UnionType):
        return _either([of(each) for each in inner])
    if origin is Literal:
        return _one_of(inner)
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return _sequence(of(inner[0]))
        return _row([of(each) for each in inner])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(of(inner[0]), of(inner[1]))
    if isinstance(annotation, type) and is_dataclass(annotation):
        return lambda value: built(annotation, value)
    raise TypeError(f"nothing checks {annotation!r}")


@cache
def fields_of(cls: type) -> Mapping[str, Check]:
    """The checks of a dataclass' fields by their names."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: of(hints[field.name]) for field in fields(cls)}


def built(cls: type[_Class], values: object) -> _Class:
    """An instance of a dataclass from plain values. Fields that it does not know (of newer
    versions) are passed over.

    Raises ValueError with the field that is not as it should be.
    """
    try:
        return cls(**known(cls, an_object(values)))
    except TypeError as error:
        raise ValueError(str(error)) from None


def known(cls: type, values: Mapping[str, object]) -> dict[str, object]:
    """Of plain values, the fields of a dataclass, checked as in `built`; some may be missing."""
    checks = fields_of(cls)
    checked: dict[str, object] = {}
    for name, value in values.items():
        if check := checks.get(name):
            try:
                checked[name] = check(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    return checked


def _all(first: Check, *others: Check) -> Check:
    def check(value: object) -> object:
        value = first(value)
        for other in others:
            value = other(value)
        return value

    return check


def _either(checks: list[Check]) -> Check:
    def check(value: object) -> object:
        for each in checks[:-1]:
            with suppress(ValueError):
                return each(value)
        return checks[-1](value)

    return check


def _one_of(values: tuple[object, ...]) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, str) or value not in values:
            raise ValueError(f"none of {', '.join(map(str, values))}: {value!r:.80}")
        return value

    return check


def _few(value: Sized) -> None:
    if len(value) > MOST_ENTRIES:
        raise ValueError(f"{len(value)} entries")


def _sequence(each: Check) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"no list: {value!r:.80}")
        entries = cast("Sequence[object]", value)
        _few(entries)
        return tuple(map(each, entries))

    return check


def _row(checks: list[Check]) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, (list, tuple)) or len(cast("Sequence[object]", value)) != len(
            checks
        ):
            raise ValueError(f"no list of {len(checks)}: {value!r:.80}")
        return tuple(
            each(part) for each, part in zip(checks, cast("Sequence[object]", value), strict=True)
        )

    return check


def _mapping(key: Check, each: Check) -> Check:
    def check(value: object) -> object:
        entries = an_object(value)
        _few(entries)
        return {key(name): each(part) for name, part in entries.items()}

    return check


# The one check for names: of clusters, runs, images, VMs and workers.
#
# Whatever passes can be a part of a path, of a label and of a VM's name, and nothing else.


def is_name(value: object) -> bool:
    """Whether it is a name as Compute Engine allows them: a-z, 0-9 and '-', a letter first, 40
    characters at most.
    """
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def is_path(value: object) -> bool:
    """Whether it is a relative path, of names of files that lead nowhere else."""
    try:
        return isinstance(value, str) and all(checked_file(part) for part in value.split("/"))
    except ValueError:
        return False


def checked_file(value: object) -> str:
    """The same, if it names one file or folder and leads nowhere else. Raises ValueError.

    For files that others name; there is no reason for them to have a name that a shell or a
    terminal trips over.
    """
    if (
        isinstance(value, str)
        and 0 < len(value) <= 255
        and value not in (".", "..")
        and value.isprintable()
        and not {"/", "\\"} & {*value}
    ):
        return value
    raise ValueError(f"no file's name: {value!r:.80}")
