"""What a message is: one line of JSON with `do`, which is its kind, and the fields of that kind.

A class per kind, whose annotations are the checks of what is read. Who may say what to whom is a
union of such classes, of which `kinds` makes the table that `read` goes by: the same word may mean
one thing to a controller and another one to an agent. What is None is not sent, and fields that are
not known (of newer versions) are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import ClassVar, TypeVar, dataclass_transform

from . import checks


@dataclass(frozen=True, eq=False, repr=False)
class Line:
    """What is one line of JSON, a message or an event: equal to another one of its class that says
    the same.

    Written here once: there are more than a hundred such classes, and to have these methods
    compiled for each would be an eighth of what a program of ours takes to start.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is type(self):
            return vars(self) == vars(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Message(Line):
    """What all messages have."""

    do: ClassVar[str] = ""

    def to_dict(self) -> dict[str, object]:
        """The message as plain JSON values, `do` first, and its texts no longer than is let in."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return {"do": self.do, **{name: _clipped(value) for name, value in said.items()}}

    @property
    def encoded(self) -> bytes:
        """The message as the line that is sent. Raises ValueError where a number in it is none."""
        return encode(self.to_dict())


_Message = TypeVar("_Message", bound=Message)
_Class = TypeVar("_Class", bound=type[Message])


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def message(do: str) -> Callable[[_Class], _Class]:
    """Make a class that of the messages which say `do`."""

    def named(cls: _Class) -> _Class:
        cls = dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        cls.do = do
        return cls

    return named


class UnknownWord(ValueError):
    """A message whose `do` is not known here: not of this border, or of a newer version."""


def kinds(*classes: type[_Message]) -> dict[str, type[_Message]]:
    """The classes of a border's union (`typing.get_args`) by what they say."""
    return {each.do: each for each in classes}


def read(line: bytes, known: Mapping[str, type[_Message]]) -> _Message:
    """The message on a line, of one of the classes that are `known`, each field checked.

    Raises ValueError for everything else, whatever it is: UnknownWord for a kind that is none of
    them.
    """
    values = checks.parsed_object(line)
    do = values.get("do")
    if not isinstance(do, str):
        raise ValueError("it does not say what to do")
    if (cls := known.get(do)) is None:
        raise UnknownWord(f"nothing is known of {do!r:.80}")
    try:
        return checks.built(cls, values)
    except ValueError as error:
        raise ValueError(f"{do}: {error}") from None


def _clipped(value: object) -> object:
    if isinstance(value, str):
        return checks.clipped(value)
    return value


def encode(values: Mapping[str, object]) -> bytes:
    """Plain values as one line."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"
