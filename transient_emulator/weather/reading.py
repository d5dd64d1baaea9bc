"""How single settings are read from what people type, and written back: numbers, shares, durations, rates, lists.

Every reader takes the name of the option for its DeclarationError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from transient_magics.errors import DeclarationError, unknown
from transient_magics.spec import parse_duration

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)bit", re.IGNORECASE)
_BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_MILLISECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*ms")


def share(option: str) -> Callable[[Any], float]:
    """A reader of numbers from 0 to 1."""

    def read(value: Any) -> float:
        part = number(value, option)
        if not 0 <= part <= 1:
            raise DeclarationError(f"{option} takes a number from 0 to 1, not '{value}'")
        return part

    return read


def choice(option: str, *words: str) -> Callable[[Any], str]:
    """A reader of one of these words."""

    def read(value: Any) -> str:
        word = text(value, option)
        if word not in words:
            raise unknown("value", word, words, where=option)
        return word

    return read


def each(option: str, read: Callable[[str], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A reader of a list of texts, or of one; the word `none` alone is the empty list."""

    def read_all(value: Any) -> tuple[Any, ...]:
        given: Iterable[Any] = [value] if isinstance(value, str) else value
        if not isinstance(given, (list, tuple)):
            raise DeclarationError(f"{option} takes a text or a list of texts, not '{value}'")
        texts = [text(item, option) for item in given]
        if "none" in texts and len(texts) > 1:
            raise DeclarationError(f"{option} none stands alone")
        return tuple(read(word) for word in texts if word != "none")

    return read_all


def text(value: Any, option: str) -> str:
    """A text, in small letters."""
    if not isinstance(value, str):
        raise DeclarationError(f"{option} takes a text, not '{value}'")
    return value.strip().lower()


def number(value: Any, option: str) -> float:
    """A number, or a text that is one."""
    try:
        read = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except ValueError:
        read = math.nan
    if math.isnan(read):
        raise DeclarationError(f"{option} takes a number, not '{value}'")
    return read


def duration(given: str, option: str, zero: bool = False) -> float:
    """Seconds of `300ms`, `10s`, `5m` and the like; with `zero` also of `0s`."""
    if match := _MILLISECONDS.fullmatch(given.strip()):
        return float(match[1]) / 1000
    if zero and re.fullmatch(r"0(\.0*)?\s*s?", given.strip()):
        return 0.0
    return parse_duration(given, option)


def moment(given: str, option: str) -> float:
    """Seconds since 1970 of a date and time as in RFC 3339."""
    try:
        parsed = datetime.fromisoformat(given.upper())
    except ValueError:
        raise DeclarationError(f"Invalid date and time '{given}'", where=option) from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def bit_rate(given: str) -> float:
    """Bits per second of `100mbit` and the like."""
    match = _RATE.fullmatch(given.strip())
    rate = float(match[1]) * _BITS[match[2].lower()] if match else 0.0
    if not 8_000 <= rate <= 32e9:
        fix = "Write 100mbit; from 8kbit to 32gbit."
        raise DeclarationError(f"Invalid rate of a link '{given}'", where="--link", fix=fix)
    return rate


def seconds(span: float) -> str:
    """A duration as `duration` reads it."""
    return f"{span * 1000:g}ms" if 0 < span < 1 else f"{span:g}s"


def bits(rate: float) -> str:
    """A rate as `bit_rate` reads it."""
    unit = next((unit for unit in "gmk" if rate >= _BITS[unit]), "")
    return f"{rate / _BITS[unit]:g}{unit}bit"
