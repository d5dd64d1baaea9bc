"""Numbers, counts, times, scores and sizes as people read them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ...protocol.literals import value_text
from ...protocol.machines import Share
from ...protocol.run import Value
from ...protocol.step_parts import examples_words

_SOON_SECONDS = 600


def number(value: float | None) -> str:
    """Return a value in three significant digits, such as `0.0123` or `12,345`; `-` for None."""
    if value is None:
        return "-"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def scores(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics to show first: accuracy and loss, without accuracy the first three."""
    chosen = {name: metrics[name] for name in ("accuracy", "loss") if name in metrics}
    if "accuracy" in chosen:
        return chosen
    return dict(list(metrics.items())[:3])


def scores_words(metrics: Mapping[str, float]) -> str:
    """Return the metrics to show first, such as `accuracy 0.986, loss 0.085`."""
    return ", ".join(f"{name} {number(value)}" for name, value in scores(metrics).items())


def evaluated_words(examples: int, complete: bool, of: int = 0, endless: bool = False) -> str:
    """Return ` (1,000 of 50,000 examples)` for an evaluation; empty where it is unknown."""
    if examples:
        return f" ({examples_words(examples, complete, of, endless)})"
    return ""


def clock(at: float) -> str:
    """Return the local time of day, such as `14:05:09`. `at`: seconds since 1970."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def time_words(at: float, now: float) -> str:
    """Return a local time: with seconds within ten minutes, with the day on another day.

    Parameters
    ----------
    at, now
        Seconds since 1970.
    """
    local = time.localtime(at)
    pattern = "%H:%M:%S" if abs(at - now) < _SOON_SECONDS else "%H:%M"
    words = time.strftime(pattern, local)
    if local[:3] == time.localtime(now)[:3]:
        return words
    return f"{words} on {local.tm_mday} {time.strftime('%b', local)}"


def value_words(value: Value) -> str:
    """Return the value of a parameter, in quotes where it would read as another type."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value_text(value)


def params_words(params: Mapping[str, Value]) -> str:
    """Return parameters and values, such as `learning_rate 0.02, batch_size 64`."""
    return ", ".join(f"{name} {value_words(value)}" for name, value in params.items())


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 worker` or `2 workers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(size_bytes: float) -> str:
    """Return a size in bytes with its unit, such as `12 MB`."""
    unit = "bytes"
    for larger in ("kB", "MB", "GB"):
        if size_bytes < 1000:
            break
        size_bytes = size_bytes / 1000
        unit = larger
    if size_bytes < 1000:
        return f"{size_bytes:.3g} {unit}"
    return f"{size_bytes:,.0f} {unit}"


def share_words(share: Share) -> str:
    """Return what a deflated VM has left, such as `50% of its CPU and 20% of its network`."""
    parts = {"CPU": share.cpu, "network": share.network}
    less = [f"{part:.0%} of its {name}" for name, part in parts.items() if part < 1]
    return " and ".join(less) or "all of its CPU and network"
