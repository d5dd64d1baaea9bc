"""The `filter` of list requests: a predicate on resources, made from text.

Compute Engine has two styles: AIP-160 (`= != > < >= <= :`, AND, OR, NOT, parentheses; adjacent
terms are combined by AND) and older regular expressions (`eq`, `ne`). Both are supported. A text
that mixes them is refused, as there.
"""

from __future__ import annotations

import fnmatch
import operator as operators
import re
from collections.abc import Callable
from typing import Any

from . import wire

Predicate = Callable[[dict[str, Any]], bool]
_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[()]|!=|<=|>=|=|<|>|:)"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'"""
    r"""|(?P<word>[^\s()!=<>:"']+))"""
)
_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operators.gt,
    "<": operators.lt,
    ">=": operators.ge,
    "<=": operators.le,
}
_REGULAR = ("eq", "ne")
_OPERATORS = {"=", "!=", ":", *_ORDERINGS, *_REGULAR}
_END = ("end", "")


def parse(text: str) -> Predicate:
    """Return the predicate that `text` describes. An empty text matches every resource.

    Raises
    ------
    ApiError
        400 if the text is not a filter.
    """
    if not text.strip():
        return lambda resource: True
    parser = _Parser(text)
    predicate = parser.expression()
    if parser.next() != _END:
        raise parser.failure()
    return predicate


class _Parser:
    """A recursive descent parser. OR binds tighter than AND, as AIP-160 defines it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        # True for regular expressions, False for AIP-160.
        self._styles: set[bool] = set()
        self._position = 0
        end = len(text.rstrip())
        position = 0
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.failure()
            group = match.lastgroup or ""
            kind = "string" if group in ("double", "single") else group
            self._tokens.append((kind, match[group]))
            position = match.end()

    def failure(self) -> wire.ApiError:
        """Return the API's answer to an invalid filter."""
        return wire.invalid("filter", self._text, "Invalid list filter expression.")

    def next(self) -> tuple[str, str]:
        """Return the next token without consuming it."""
        if self._position == len(self._tokens):
            return _END
        return self._tokens[self._position]

    def expression(self) -> Predicate:
        """Parse `factor (AND? factor)*`."""
        factors = [self._factor()]
        while True:
            if self._next_is("AND"):
                self._consume()
            elif self.next() in (_END, ("mark", ")")):
                return _all(factors)
            factors.append(self._factor())

    def _factor(self) -> Predicate:
        terms = [self._term()]
        while self._next_is("OR"):
            self._consume()
            terms.append(self._term())
        return _any(terms)

    def _term(self) -> Predicate:
        if self._next_is("NOT"):
            self._consume()
            return _not(self._simple())
        kind, value = self.next()
        if kind == "word" and value.startswith("-") and len(value) > 1:
            # `-name=x` is the short form of `NOT name=x`.
            self._tokens[self._position] = (kind, value[1:])
            return _not(self._simple())
        return self._simple()

    def _simple(self) -> Predicate:
        if self.next() == ("mark", "("):
            self._consume()
            inside = self.expression()
            if self._consume() != ("mark", ")"):
                raise self.failure()
            return inside
        kind, field = self._consume()
        _, operator = self._consume()
        value_kind, value = self._consume()
        operands = ("word", "string")
        if kind not in operands or operator not in _OPERATORS or value_kind not in operands:
            raise self.failure()
        self._styles.add(operator in _REGULAR)
        if len(self._styles) == 2:
            raise self.failure()
        # The colons of a URL or a time belong to the value.
        while value_kind == "word" and self.next() == ("mark", ":"):
            self._consume()
            value += ":" + self._consume()[1]
        path = field.split(".")
        if operator in _REGULAR:
            return self._regular(path, operator, value)
        if value_kind == "string":
            # A backslash escapes the next character. Regular expressions keep theirs, which have a
            # meaning.
            value = re.sub(r"\\(.)", r"\1", value)
        return lambda resource: _compare(_values(resource, path), operator, value)

    def _regular(self, path: list[str], operator: str, value: str) -> Predicate:
        try:
            pattern = re.compile(value)
        except re.error:
            raise self.failure() from None

        def matches(resource: dict[str, Any]) -> bool:
            # A missing field counts as an empty text.
            texts = [_text(found) for found in _values(resource, path)] or [""]
            return any(pattern.fullmatch(text) for text in texts) == (operator == "eq")

        return matches

    def _next_is(self, word: str) -> bool:
        return self.next() == ("word", word)

    def _consume(self) -> tuple[str, str]:
        token = self.next()
        if token != _END:
            self._position += 1
        return token


def _all(parts: list[Predicate]) -> Predicate:
    if len(parts) == 1:
        return parts[0]
    return lambda resource: all(part(resource) for part in parts)


def _any(parts: list[Predicate]) -> Predicate:
    if len(parts) == 1:
        return parts[0]
    return lambda resource: any(part(resource) for part in parts)


def _not(part: Predicate) -> Predicate:
    return lambda resource: not part(resource)


def _values(resource: Any, path: list[str]) -> list[Any]:
    """Return the values at `path`. A list on the way stands for each of its members."""
    if isinstance(resource, list):
        values: list[Any] = []
        for member in resource:
            values += _values(member, path)
        return values
    if not path:
        return [resource]
    if not isinstance(resource, dict) or path[0] not in resource:
        return []
    return _values(resource[path[0]], path[1:])


def _compare(values: list[Any], operator: str, operand: str) -> bool:
    if operator == "!=":
        return not _compare(values, "=", operand)
    if operator == ":" and operand == "*":
        # `field:*` asks whether the field has a value.
        return any(value not in ("", None, [], {}) for value in values)
    return any(_holds(value, operator, operand) for value in values)


def _holds(value: Any, operator: str, operand: str) -> bool:
    if isinstance(value, dict):
        return operator == ":" and operand in value
    text = _text(value)
    if operator == ":":
        return operand.lower() in text.lower()
    if operator == "=":
        if "*" in operand:
            # Only `*` is a wildcard of the API. `[` would start a set of characters here.
            return fnmatch.fnmatchcase(text, operand.replace("[", "[[]"))
        return text == operand
    compare = _ORDERINGS[operator]
    try:
        return compare(float(text), float(operand))
    except ValueError:
        # Times are compared as text, which is their order for RFC 3339 in one time zone.
        return compare(text, operand)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
