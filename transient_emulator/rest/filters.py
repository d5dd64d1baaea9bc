"""The `filter` of list requests: a predicate on resources, made from text.

Both styles of Compute Engine: AIP-160 (`= != > < >= <= :`, AND, OR, NOT, parentheses, side by side = AND) and the older
regular expressions (`eq`, `ne`); a text that mixes them is refused, as there.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Any

from . import wire

Predicate = Callable[[dict[str, Any]], bool]
_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[()]|!=|<=|>=|=|<|>|:)|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'"""
    r"""|(?P<word>[^\s()!=<>:"']+))"""
)
_COMPARE = {"=", "!=", ">", "<", ">=", "<=", ":", "eq", "ne"}
_END = ("end", "")


def parse(text: str) -> Predicate:
    """The predicate that `text` describes. ApiError 400 where it does not describe one."""
    if not text.strip():
        return lambda resource: True
    parser = _Parser(text)
    predicate = parser.expression()
    if parser.next() != _END:
        raise parser.failure()
    return predicate


class _Parser:
    """Recursive descent. OR binds tighter than AND, as AIP-160 says."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self._styles: set[bool] = set()
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.failure()
            kind = match.lastgroup or ""
            self._tokens.append(("string" if kind in ("double", "single") else kind, match[kind]))
            position = match.end()
        self._position = 0

    def failure(self) -> wire.ApiError:
        """What the API answers to a filter that it does not understand."""
        return wire.invalid("filter", self._text, "Invalid list filter expression.")

    def next(self) -> tuple[str, str]:
        """The token to come."""
        return self._tokens[self._position] if self._position < len(self._tokens) else _END

    def expression(self) -> Predicate:
        """factor (AND? factor)*"""
        parts = [self._factor()]
        while True:
            if self._word("AND"):
                self._take()
            elif self.next() == _END or self.next() == ("mark", ")"):
                return _all(parts)
            parts.append(self._factor())

    def _factor(self) -> Predicate:
        parts = [self._term()]
        while self._word("OR"):
            self._take()
            parts.append(self._term())
        return _any(parts)

    def _term(self) -> Predicate:
        if self._word("NOT"):
            self._take()
            return _not(self._simple())
        kind, value = self.next()
        if kind == "word" and value.startswith("-") and len(value) > 1:
            self._tokens[self._position] = (kind, value[1:])
            return _not(self._simple())
        return self._simple()

    def _simple(self) -> Predicate:
        if self.next() == ("mark", "("):
            self._take()
            inside = self.expression()
            if self._take() != ("mark", ")"):
                raise self.failure()
            return inside
        kind, field = self._take()
        operator = self._take()[1]
        value_kind, value = self._take()
        if kind not in ("word", "string") or operator not in _COMPARE or value_kind not in ("word", "string"):
            raise self.failure()
        self._styles.add(operator in ("eq", "ne"))
        if len(self._styles) == 2:
            raise self.failure()
        # A URL or a time has colons in it that belong to the value.
        while value_kind == "word" and self.next() == ("mark", ":"):
            self._take()
            value += ":" + self._take()[1]
        return self._comparison(field, operator, value, value_kind == "string")

    def _comparison(self, field: str, operator: str, value: str, quoted: bool) -> Predicate:
        path = field.split(".")
        if quoted and operator not in ("eq", "ne"):
            # In a regular expression a backslash means what it means there.
            value = re.sub(r"\\(.)", r"\1", value)
        if operator in ("eq", "ne"):
            try:
                pattern = re.compile(value)
            except re.error:
                raise self.failure() from None
            return lambda resource: (
                any(pattern.fullmatch(_text(each)) for each in _values(resource, path) or [""]) == (operator == "eq")
            )
        return lambda resource: _compare(_values(resource, path), operator, value)

    def _word(self, word: str) -> bool:
        return self.next() == ("word", word)

    def _take(self) -> tuple[str, str]:
        token = self.next()
        self._position += 1
        return token


def _all(parts: list[Predicate]) -> Predicate:
    return parts[0] if len(parts) == 1 else lambda resource: all(part(resource) for part in parts)


def _any(parts: list[Predicate]) -> Predicate:
    return parts[0] if len(parts) == 1 else lambda resource: any(part(resource) for part in parts)


def _not(part: Predicate) -> Predicate:
    return lambda resource: not part(resource)


def _values(resource: Any, path: list[str]) -> list[Any]:
    """What lies at `path`; a list on the way stands for each of its members."""
    if isinstance(resource, list):
        return [value for each in resource for value in _values(each, path)]
    if not path:
        return [resource]
    if not isinstance(resource, dict) or path[0] not in resource:
        return []
    return _values(resource[path[0]], path[1:])


def _compare(values: list[Any], operator: str, wanted: str) -> bool:
    if operator == "!=":
        return not _compare(values, "=", wanted)
    if operator == ":" and wanted == "*":
        return any(value not in ("", None, [], {}) for value in values)
    return any(_holds(value, operator, wanted) for value in values)


def _holds(value: Any, operator: str, wanted: str) -> bool:
    if isinstance(value, dict):
        return operator == ":" and wanted in value
    text = _text(value)
    if operator == ":":
        return wanted.lower() in text.lower()
    if operator == "=":
        return fnmatch.fnmatchcase(text, wanted.replace("[", "[[]")) if "*" in wanted else text == wanted
    try:
        left, right = float(text), float(wanted)
    except ValueError:
        left, right = text, wanted  # Times are compared as text, which for RFC 3339 in one zone is their order.
    return {">": left > right, "<": left < right, ">=": left >= right, "<=": left <= right}[operator]  # type: ignore[operator]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
