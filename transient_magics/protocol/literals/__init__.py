"""Values of parameters: Python literals, read from text, written as text, and as JSON.

A value is True, False, None, a number, a text, or a list or tuple of values. A text without quotes
(`relu`) stands for itself. JSON has no tuples, NaN, infinities or integers of unlimited size, so
such values are written as `{"literal": "..."}`.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, cast

from .. import checks

Value = bool | int | float | str | None | list[Any] | tuple[Any, ...]
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_LITERAL = "literal"
_NUMBERS = {"nan": math.nan, "inf": math.inf}
_SPELLED = {
    "true": "True",
    "false": "False",
    "none": "None",
    "nan": "nan",
    "inf": "inf",
    "infinity": "inf",
}
"""Python's spellings of values that are often written differently."""
_BEGIN_OF_NUMBER = re.compile(r"[+-]?\.?\d", re.ASCII)
_EXPONENT_OF_WHOLE = re.compile(r"[+-]?[\d_]+[eE][+-]?[\d_]+", re.ASCII)
_QUOTED_OR_BRACKETED = re.compile(r"[\[\](){}'\"]")
_SEPARATES = re.compile(r"[\s,:=]")
_KINDS = "a value must be True, False, None, a number, a text, or a list or tuple of these"


def checked_value(value: object) -> Value:
    """Check a value of a parameter, or its form from `as_json`. Raises ValueError."""
    if isinstance(value, Mapping):
        return _literal(checks.text(cast("Mapping[object, object]", value).get(_LITERAL)))
    found = _of_these_kinds(value)
    if isinstance(found, str):
        return checks.text(found)
    if len(repr(found)) > checks.LONGEST_TEXT:
        raise ValueError(f"the value has more than {checks.LONGEST_TEXT} characters")
    return found


CheckedValue = Annotated[Value, checks.Alone(checked_value)]
"""The checked value of a parameter."""


def as_json(value: Value) -> object:
    """Return the value as finite JSON; `checked_value` reads it back with the same type."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float) and abs(value) < checks.LARGEST:  # false for NaN
        return value
    return {_LITERAL: repr(value)}


def all_as_json(values: Mapping[str, Value]) -> dict[str, object]:
    """Return the values by name, each as JSON."""
    return {name: as_json(value) for name, value in values.items()}


def parse_value(text: str) -> Value:
    """Read a Python literal, or a word without quotes as itself. Raises ValueError, a clause."""
    text = text.strip()
    if spelled := _SPELLED.get(text.lstrip("+-").lower()):
        sign = text[: len(text) - len(text.lstrip("+-"))]
        if text != sign + spelled:
            raise ValueError(
                f"'{text}' is ambiguous: write {sign}{spelled}, or quotes around the text"
            )
        return _literal(text)
    quoted = _QUOTED_OR_BRACKETED.search(text)
    if not quoted and not _BEGIN_OF_NUMBER.match(text):
        return text
    return _literal(text)


def value_text(value: Value) -> str:
    """Return the value as text that `parse_value` reads."""
    if isinstance(value, str):
        if _is_a_word(value):
            return value
        return repr(value)
    if isinstance(value, float) and value.is_integer():
        if abs(value) < 2**53:
            return f"{value:.1f}"
        if "." in repr(value):
            return repr(value)
        return repr(value).replace("e", ".0e")
    return repr(value)


def same(one: Value, other: Value) -> bool:
    """Return whether both are the same value of the same type; NaN is the same as NaN."""
    return type(one) is type(other) and repr(one) == repr(other)


def as_number(value: Value) -> float:
    """Return the value as a float; NaN if it is not a number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return math.nan


def is_whole_with_exponent(text: str) -> bool:
    """Return whether the text is a float that looks like a whole number, such as 1e3."""
    return bool(_EXPONENT_OF_WHOLE.fullmatch(text)) and float(text).is_integer()


def split(text: str, separator: str) -> list[str]:
    """Return the parts between separators (one character) outside of quotes and brackets.

    Blanks around the parts are removed. Raises ValueError, a clause, if quotes or brackets do not
    match.
    """
    parts = list[str]()
    begin = 0
    for place, letter in enumerate(mask(text)):
        if letter == separator:
            parts.append(text[begin:place].strip())
            begin = place + 1
    return [*parts, text[begin:].strip()]


def mask(text: str) -> str:
    """Return the text with `_` for quotes, brackets, and every character inside them.

    Raises ValueError, a clause, if quotes or brackets do not match.
    """
    shown = list[str]()
    closing = list[str]()
    quote = ""
    escaped = False
    for letter in text:
        inside = bool(quote or closing)
        if quote:
            if not escaped and letter == quote:
                quote = ""
            escaped = letter == "\\" and not escaped
        elif letter in "'\"":
            quote = letter
            escaped = False
            inside = True
        elif letter in _CLOSING:
            closing.append(_CLOSING[letter])
            inside = True
        elif letter in _CLOSING.values():
            if not closing or closing.pop() != letter:
                raise ValueError(f"{_shown(text)} has a {letter} without an opening bracket")
            inside = True
        shown.append("_" if inside else letter)
    if quote:
        raise ValueError(f"{_shown(text)} has an opening quote {quote} without a closing one")
    if closing:
        raise ValueError(f"{_shown(text)} has no closing {closing[-1]}")
    return "".join(shown)


def _is_a_word(text: str) -> bool:
    """Return whether the text stands for itself without quotes."""
    if not text or _SEPARATES.search(text) or not text.isprintable():
        return False
    return not (
        text.lstrip("+-").lower() in _SPELLED
        or _QUOTED_OR_BRACKETED.search(text)
        or _BEGIN_OF_NUMBER.match(text)
    )


def _literal(text: str) -> Value:
    """Return the value of a Python literal. Raises ValueError, a clause."""
    if len(split(text, ",")) > 1:
        raise ValueError(
            f"{_shown(text)} is more than one value; write a list in brackets, such as [1,2]"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about odd spellings.
            # The added parentheses keep a comment from hiding the end of the text.
            tree = ast.parse(f"({text})", mode="eval")
        value = ast.literal_eval(_Numbers().visit(tree))
    except OverflowError:
        raise ValueError(f"{_shown(text)} is too large") from None
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError(
            f"{_shown(text)} is not a Python literal; write a text in quotes, such as 'a text'"
        ) from None
    return _of_these_kinds(value)


class _Numbers(ast.NodeTransformer):
    """A transformer that reads `nan` and `inf` as numbers.

    Raises OverflowError for numbers that only rounding makes infinite.
    """

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in _NUMBERS:
            return ast.Constant(_NUMBERS[node.id])
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, float) and math.isinf(node.value):
            raise OverflowError
        return node


def _shown(text: str) -> str:
    return repr(text[:40])[:60]


def _of_these_kinds(value: Any) -> Value:
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a scalar of NumPy
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if type(value) in (list, tuple):
        return type(value)(map(_of_these_kinds, value))
    raise ValueError(f"{value!r:.40} has the type {type(value).__name__}, but {_KINDS}")
