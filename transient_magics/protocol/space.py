"""The search space of a study or a bag: its dimensions, and the text that defines them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, Self

from .checks import LARGEST
from .literals import (
    CheckedValue,
    Value,
    as_json,
    as_number,
    is_whole_with_exponent,
    mask,
    parse_value,
    same,
    split,
    value_text,
)
from .run import parameter_name

_DIMENSION = re.compile(r"(?:\s*[=,:]\s*|[^\s=,:])+")
"""Blanks separate dimensions in the text of a space, except around `=`, `,` and `:`."""
_FORMS = "write name=a,b,c or name=low:high, optionally followed by :log or :int"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parameter and its possible values: one of `choices`, or from `low` to `high`, inclusive.

    `kind`: `choice`; `float`, uniform; `log`, uniform in the logarithm; `int`, whole numbers.
    """

    name: Annotated[str, parameter_name]
    kind: Literal["choice", "float", "log", "int"]
    choices: tuple[CheckedValue, ...] = ()
    low: float = 0.0
    high: float = 0.0

    def __post_init__(self) -> None:
        if why := self._wrong():
            raise ValueError(f"{self.name}: {why}")

    def _wrong(self) -> str:
        if self.kind == "choice":
            if not self.choices:
                return "there are no values to choose from"
            for place, choice in enumerate(self.choices):
                if any(choice == other or same(choice, other) for other in self.choices[:place]):
                    return f"{value_text(choice):.80} occurs twice"
            return ""
        if self.choices:
            return "a range cannot have choices"
        if not self.low < self.high:
            return (
                f"the range is empty: {value_text(self.low)} is not below {value_text(self.high)}"
            )
        if self.kind == "log" and self.low <= 0:
            return f"the low end of a :log range must be greater than 0, not {value_text(self.low)}"
        if self.kind == "int" and not (self.low.is_integer() and self.high.is_integer()):
            return "both ends of an :int range must be whole numbers"
        return ""

    def __str__(self) -> str:
        if self.kind == "choice":
            return f"{self.name}={','.join(map(value_text, self.choices))}"
        if self.kind == "int":
            return f"{self.name}={self.low:.0f}:{self.high:.0f}:int"
        ends = f"{self.name}={value_text(self.low)}:{value_text(self.high)}"
        if self.kind == "float":
            return ends
        return f"{ends}:{self.kind}"

    def has(self, value: Value) -> bool:
        """Return whether the parameter may take this value."""
        if self.kind == "choice":
            return any(same(value, choice) for choice in self.choices)
        if type(value) is int or (type(value) is float and self.kind != "int"):
            return self.low <= value <= self.high
        return False

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {**asdict(self), "choices": [as_json(choice) for choice in self.choices]}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `name=a,b,c` or `name=low:high[:log|:int]`.

        Raises ValueError, a clause that says what is wrong.
        """
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name or not values:
            raise ValueError(f"{text[:40]!r} has no values: {_FORMS}")
        parameter_name(name)
        try:
            return cls._of_values(name, values)
        except ValueError as error:
            text = str(error)
            raise ValueError(text if text.startswith(f"{name}: ") else f"{name}: {text}") from None

    @classmethod
    def _of_values(cls, name: str, values: str) -> Self:
        parts = split(values, ",")
        ends = split(values, ":")
        if len(ends) == 1 or len(parts) > 1:
            return cls(name, "choice", _choices(parts))
        low, high, *how = ends
        match how:
            case []:
                kind = "float"
            case ["log" | "int" as kind]:
                pass
            case [other]:
                raise ValueError(f"unknown suffix {other[:20]!r} of a range: {_FORMS}")
            case _:
                raise ValueError(f"{values[:40]!r} is not a range: {_FORMS}")
        return cls(name, kind, (), _end(low, values), _end(high, values))


def parse_space(text: str) -> tuple[Dimension, ...]:
    """Read the dimensions of a space, separated by blanks. Raises ValueError, a clause."""
    found: dict[str, Dimension] = {}
    for part in _DIMENSION.finditer(mask(text)):
        dimension = Dimension.parse(text[part.start() : part.end()])
        if dimension.name in found:
            raise ValueError(f"{dimension.name} occurs twice")
        found[dimension.name] = dimension
    if not found:
        raise ValueError(f"there are no parameters: {_FORMS}")
    return tuple(found.values())


def count_points(space: Sequence[Dimension]) -> int:
    """Return the number of different points; 0: infinitely many."""
    if any(dimension.kind in ("float", "log") for dimension in space):
        return 0
    return math.prod(
        len(dimension.choices)
        if dimension.kind == "choice"
        else int(dimension.high - dimension.low) + 1
        for dimension in space
    )


def _choices(texts: Sequence[str]) -> tuple[Value, ...]:
    """Read the values of a dimension. Raises ValueError, a clause."""
    if "" in texts:
        raise ValueError("a value is empty")
    values = tuple(map(parse_value, texts))
    floats = [text for text, value in zip(texts, values, strict=True) if type(value) is float]
    mixed = 0 < len(floats) < len(values) and all(type(value) in (int, float) for value in values)
    # Units and batch sizes may not be floats, and the table of a study would show both as whole
    # numbers.
    if mixed and all(map(is_whole_with_exponent, floats)):
        whole = int(float(floats[0]))
        raise ValueError(f"{floats[0]} is a float among whole numbers: write {whole}, or {whole}.0")
    return values


def _end(text: str, values: str) -> float:
    """Read one end of a range. Raises ValueError, a clause."""
    value = as_number(parse_value(text))
    if math.isnan(value):
        raise ValueError(f"{values[:40]!r} is not a range: {_FORMS}")
    if abs(value) >= LARGEST:
        raise ValueError(f"{text:.40} is too large")
    return value
