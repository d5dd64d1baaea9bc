"""The format of messages: one line of JSON with `do`, which names the kind, and the kind's fields.

Each kind has a class, whose annotations are the checks of its fields. A union of such classes
defines one interface, and `kinds` makes the lookup table for `read` from it. The same word may thus
have different meanings for a controller and an agent. Fields that are None are not sent; unknown
fields (of newer versions) are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import ClassVar, TypeVar, dataclass_transform

from . import checks


@dataclass(frozen=True, eq=False, repr=False)
class Line:
    """One line of JSON, a message or an event, equal to others of its class with the same fields.

    The methods are defined here once. More than a hundred classes inherit them, and compiling them
    for each class would take an eighth of a program's start-up time.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is type(self):
            return vars(self) == vars(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        shown = (
            f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr
        )
        return f"{type(self).__qualname__}({', '.join(shown)})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Message(Line):
    """Base class of all messages."""

    do: ClassVar[str] = ""

    def to_dict(self) -> dict[str, object]:
        """Return the message as JSON values, `do` first, with texts cut to the accepted length."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return {"do": self.do, **{name: _clipped(value) for name, value in values.items()}}

    @property
    def encoded(self) -> bytes:
        """The message as a line to send. Raises ValueError for NaN and infinite numbers."""
        return encode(self.to_dict())


_Message = TypeVar("_Message", bound=Message)
_Class = TypeVar("_Class", bound=type[Message])


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def message(do: str) -> Callable[[_Class], _Class]:
    """Return a decorator that makes a class the message of kind `do`."""

    def named(cls: _Class) -> _Class:
        cls = dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        cls.do = do
        return cls

    return named


class UnknownWord(ValueError):
    """A message whose `do` is unknown here: of another interface, or of a newer version."""


def kinds(*classes: type[_Message]) -> dict[str, type[_Message]]:
    """Return the classes of an interface's union (`typing.get_args`) by their `do`."""
    return {message_class.do: message_class for message_class in classes}


def read(line: bytes, classes: Mapping[str, type[_Message]]) -> _Message:
    """Read the message on a line as one of the classes in `classes`, and check each field.

    Raises ValueError for any other line: UnknownWord if the kind is not in `classes`.
    """
    values = checks.parsed_object(line)
    do = values.get("do")
    if not isinstance(do, str):
        raise ValueError("the message has no kind (do)")
    if (cls := classes.get(do)) is None:
        raise UnknownWord(f"unknown kind of message {do!r:.80}")
    try:
        return checks.built(cls, values)
    except ValueError as error:
        raise ValueError(f"{do}: {error}") from None


def _clipped(value: object) -> object:
    if isinstance(value, str):
        return checks.clipped(value)
    return value


def encode(values: Mapping[str, object]) -> bytes:
    """Encode plain values as one line."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"
