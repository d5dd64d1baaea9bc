"""Readers of single settings, and the way back to text: numbers, shares, durations, rates, lists.

Every reader takes the name of the option, for its DeclarationError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from transient_magics.errors import DeclarationError, unknown
from transient_magics.spec import parse_duration

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)bit", re.IGNORECASE)
_BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_MILLISECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*ms")
# In bits per second. The kernel takes rates in bytes per second, in 32 bits.
_LOWEST_RATE = 8_000
_HIGHEST_RATE = 32e9


def share(option: str) -> Callable[[Any], float]:
    """Return a reader of numbers from 0 to 1."""

    def read(value: Any) -> float:
        part = number(value, option)
        if not 0 <= part <= 1:
            raise DeclarationError(f"{option} must be a number from 0 to 1, not '{value}'")
        return part

    return read


def choice(option: str, *words: str) -> Callable[[Any], str]:
    """Return a reader of one of these words."""

    def read(value: Any) -> str:
        word = text(value, option)
        if word not in words:
            raise unknown("value", word, words, where=option)
        return word

    return read


def list_of(option: str, read: Callable[[str], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a reader of a text or a list of texts. The word `none` alone is the empty list."""

    def read_all(value: Any) -> tuple[Any, ...]:
        given = [value] if isinstance(value, str) else value
        if not isinstance(given, (list, tuple)):
            raise DeclarationError(f"{option} must be a text or a list of texts, not '{value}'")
        texts = [text(item, option) for item in given]
        if "none" in texts and len(texts) > 1:
            raise DeclarationError(f"{option} none cannot be combined with other values")
        return tuple(read(word) for word in texts if word != "none")

    return read_all


def text(value: Any, option: str) -> str:
    """Return a text in lower case. Raises DeclarationError if it is not a text."""
    if not isinstance(value, str):
        raise DeclarationError(f"{option} must be a text, not '{value}'")
    return value.strip().lower()


def number(value: Any, option: str) -> float:
    """Return a number, or a text that is one. Raises DeclarationError otherwise."""
    read = math.nan
    # In Python, booleans are integers.
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            read = float(value)
        except ValueError:
            read = math.nan
    if math.isnan(read):
        raise DeclarationError(f"{option} must be a number, not '{value}'")
    return read


def duration(given: str, option: str, zero: bool = False) -> float:
    """Return the seconds of `300ms`, `10s`, `5m` and the like; with `zero` also of `0s`.

    Raises DeclarationError.
    """
    match = _MILLISECONDS.fullmatch(given.strip())
    if match:
        return float(match[1]) / 1000
    if zero and re.fullmatch(r"0(\.0*)?\s*s?", given.strip()):
        return 0.0
    return parse_duration(given, option)


def moment(given: str, option: str) -> float:
    """Return the seconds since 1970 of a date and time as in RFC 3339. Raises DeclarationError."""
    try:
        # Settings are in lower case, in which `z` is not understood.
        parsed = datetime.fromisoformat(given.upper())
    except ValueError:
        raise DeclarationError(f"Invalid date and time '{given}'", where=option) from None
    if not parsed.tzinfo:
        parsed = parsed.replace(tzinfo=UTC)
    return parsed.timestamp()


def bit_rate(given: str) -> float:
    """Return the bits per second of `100mbit` and the like. Raises DeclarationError."""
    match = _RATE.fullmatch(given.strip())
    rate = 0.0
    if match:
        rate = float(match[1]) * _BITS[match[2].lower()]
    if not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
        fix = "Write a rate from 8kbit to 32gbit, such as 100mbit."
        raise DeclarationError(f"Invalid rate of a link '{given}'", where="--link", fix=fix)
    return rate


def seconds(span: float) -> str:
    """Return a duration in the form that `duration` reads."""
    if 0 < span < 1:
        return f"{span * 1000:g}ms"
    return f"{span:g}s"


def bits(rate: float) -> str:
    """Return a rate in the form that `bit_rate` reads."""
    for unit in ("g", "m", "k"):
        if rate >= _BITS[unit]:
            return f"{rate / _BITS[unit]:g}{unit}bit"
    return f"{rate:g}bit"
