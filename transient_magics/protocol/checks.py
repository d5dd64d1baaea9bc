"""Checks of foreign values: the annotations of a class define which field values are accepted.

`of` makes a check from an annotation, and `fields_of` makes the checks of a dataclass. A check
returns the value (a list as a tuple) or raises ValueError. Numbers are finite and below 2**63. A
text has at most 4 KiB, a mapping or sequence at most 1,024 entries, and JSON is at most 16 levels
deep. `Annotated[int, at_least(0)]` adds further checks. `plain` makes a foreign text safe to show.
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
"""Maximum length of a line from any sender, in bytes."""
LONGEST_TEXT = 4096
MOST_ENTRIES = 1024
DEEPEST = 16
LARGEST = 2**63
"""Exclusive upper limit of accepted numbers."""
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
    """A marker in an annotation: use only this check, and skip the check that the type implies."""

    check: Check


def at_least(least: float) -> Callable[[float], float]:
    """Return a check that a number is not below `least`."""

    def check(value: float) -> float:
        if value < least:
            raise ValueError(f"must be at least {least}, not {value!r}")
        return value

    return check


def within(least: float, most: float) -> Callable[[float], float]:
    """Return a check that a number lies between `least` and `most`, inclusive."""

    def check(value: float) -> float:
        if not least <= value <= most:
            raise ValueError(f"must be from {least} to {most}, not {value!r}")
        return value

    return check


def _name_or_none(value: str) -> str:
    if value:
        return checked_name(value)
    return value


Count = Annotated[int, at_least(0)]

Amount = Annotated[float, at_least(0)]


def checked_name(value: object) -> str:
    """Return the value if it is a valid name. Raises ValueError."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError(f"{value!r:.80} is not a valid name")


Name = Annotated[str, checked_name]

NameOrNone = Annotated[str, _name_or_none]
"""A name, or the empty text."""

KindOfWork = Annotated[str, checked_kind]
"""The name of a kind of work (`kinds.KINDS`)."""


def parsed(line: bytes | str) -> object:
    """Parse the JSON value of one line. Raises ValueError if it is invalid or too large."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"the line has {len(line)} bytes, more than {LONGEST_LINE}")
    try:
        return json.loads(line, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("the JSON has too many levels") from None


def parsed_object(line: bytes | str) -> dict[str, object]:
    """Parse a line that holds a JSON object. Raises ValueError, as `parsed` does."""
    values = parsed(line)
    if not isinstance(values, dict):
        raise ValueError("the line is not a JSON object")
    return cast("dict[str, object]", values)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def text(value: object) -> str:
    """Check a text: at most 4 KiB, and encodable as UTF-8. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {value!r:.80}")
    if len(value) > LONGEST_TEXT or (not value.isascii() and len(value.encode()) > LONGEST_TEXT):
        raise ValueError(f"must have at most {LONGEST_TEXT} bytes, and has {len(value)} characters")
    return value


def an_object(value: object) -> Mapping[str, object]:
    """Check that a value is a JSON object, without checking its values. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must be an object, not {value!r:.80}")
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            raise ValueError(f"a key must be a text, not {key!r:.80}")
    return cast("Mapping[str, object]", value)


def clipped(value: str) -> str:
    """Return the part of a text that may be sent: its first 4 KiB, encodable as UTF-8."""
    return value.encode(errors="replace")[:LONGEST_TEXT].decode(errors="ignore")


def plain(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return foreign text with a bounded length and without control characters.

    Terminal sequences are removed. Other control characters, direction marks and surrogates become
    `\ufffd`. Lines and tabs stay. A carriage return starts a new line, so each state of a progress
    bar gets its own line. A text longer than `most` characters is cut and ends with an ellipsis.
    """
    text = _ESCAPES.sub("", text[: 4 * most]).replace("\r\n", "\n").replace("\r", "\n")
    text = _UNSEEN.sub("\ufffd", text)
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…"


def all_plain(text: str) -> str:
    """Return foreign text without control characters, at any length."""
    return plain(text, most=len(text) + 1)


def _integer(value: object) -> int:
    if type(value) is not int or not -LARGEST < value < LARGEST:
        raise ValueError(f"must be a whole number, not {value!r:.80}")
    return value


def _number(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not -LARGEST < value < LARGEST
    ):
        raise ValueError(
            f"must be a number, not {value!r:.80}"
        )  # This also covers infinity and NaN.
    return value


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"must be true or false, not {value!r:.80}")
    return value


def _nothing(value: object) -> None:
    if value is not None:
        raise ValueError(f"must be null, not {value!r:.80}")


def anything(value: object, depth: int = DEEPEST) -> object:
    """Check any JSON value: plain types, finite numbers, limited depth.

    The limit of its line bounds its size.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        return _number(value)
    if depth <= 0:
        raise ValueError("the JSON has too many levels")
    if isinstance(value, (list, tuple)):
        inner = cast("Sequence[object]", value)
    elif isinstance(value, Mapping):
        inner = an_object(cast("object", value)).values()
    else:
        raise ValueError(f"must be a JSON value, not {type(value).__name__}")
    for entry in inner:
        anything(entry, depth - 1)
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
    """Return the check for an annotation."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin = typing.get_origin(annotation)
    inner = typing.get_args(annotation)
    if origin is Annotated and isinstance(inner[1], Alone):
        return inner[1].check
    if origin is Annotated:
        return _all(of(inner[0]), *inner[1:])
    if origin in (Union, types.UnionType):
        # `None` first: the error of a union is that of its last check.
        parts = sorted(inner, key=lambda part: part is not type(None))
        return _either([of(part) for part in parts])
    if origin is Literal:
        return _one_of(inner)
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return _sequence(of(inner[0]))
        return _row([of(argument) for argument in inner])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(of(inner[0]), of(inner[1]))
    if isinstance(annotation, type) and is_dataclass(annotation):
        return lambda value: built(annotation, value)
    raise TypeError(f"there is no check for the annotation {annotation!r}")


@cache
def fields_of(cls: type) -> Mapping[str, Check]:
    """Return the checks of a dataclass by field name."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: of(hints[field.name]) for field in fields(cls)}


def built(cls: type[_Class], values: object) -> _Class:
    """Build a dataclass instance from plain values. Ignores unknown fields (of newer versions).

    Raises ValueError with the name of the invalid field.
    """
    try:
        return cls(**known_fields(cls, an_object(values)))
    except TypeError as error:
        raise ValueError(str(error)) from None


def known_fields(cls: type, values: Mapping[str, object]) -> dict[str, object]:
    """Return the checked fields of a dataclass among plain values; some fields may be missing.

    Raises ValueError with the name of the invalid field.
    """
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
        for alternative in checks[:-1]:
            with suppress(ValueError):
                return alternative(value)
        return checks[-1](value)

    return check


def _one_of(values: tuple[object, ...]) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, str) or value not in values:
            raise ValueError(f"must be one of {', '.join(map(str, values))}, not {value!r:.80}")
        return value

    return check


def _few(value: Sized) -> None:
    if len(value) > MOST_ENTRIES:
        raise ValueError(f"must have at most {MOST_ENTRIES} entries, not {len(value)}")


def _sequence(part_check: Check) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"must be a list, not {value!r:.80}")
        entries = cast("Sequence[object]", value)
        _few(entries)
        return tuple(map(part_check, entries))

    return check


def _row(checks: list[Check]) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, (list, tuple)) or len(cast("Sequence[object]", value)) != len(
            checks
        ):
            raise ValueError(f"must be a list of {len(checks)} entries, not {value!r:.80}")
        return tuple(
            part_check(part)
            for part_check, part in zip(checks, cast("Sequence[object]", value), strict=True)
        )

    return check


def _mapping(key: Check, part_check: Check) -> Check:
    def check(value: object) -> object:
        entries = an_object(value)
        _few(entries)
        return {key(name): part_check(part) for name, part in entries.items()}

    return check


# The only check of names: of clusters, runs, images, VMs and workers.
#
# A valid name is safe as a part of a path, of a label and of a VM name.


def is_name(value: object) -> bool:
    """Return whether the value is a valid name.

    Compute Engine defines the rule: a-z, 0-9 and '-', a letter first, at most 40 characters.
    """
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def is_path(value: object) -> bool:
    """Return whether the value is a relative path whose parts are safe file names."""
    try:
        return isinstance(value, str) and all(checked_file(part) for part in value.split("/"))
    except ValueError:
        return False


def checked_file(value: object) -> str:
    """Return the value if it is the name of one file or folder. Raises ValueError.

    It checks file names from other machines. They never need characters that confuse a shell or a
    terminal.
    """
    if (
        isinstance(value, str)
        and 0 < len(value) <= 255
        and value not in (".", "..")
        and value.isprintable()
        and not {"/", "\\"} & {*value}
    ):
        return value
    raise ValueError(f"{value!r:.80} is not a valid file name")
