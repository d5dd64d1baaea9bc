"""Numbers, counts, times, scores and foreign texts as one reads them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ...protocol.literals import value_text
from ...protocol.machines import Share
from ...protocol.measures.step_parts import examples_words
from ...protocol.run import Value


def number(value: float | None) -> str:
    """A measured value in three significant digits, without an exponent where that reads well."""
    if value is None:
        return "-"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def scores(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that a reader looks for first: accuracy and loss, else the first three."""
    chosen = {name: metrics[name] for name in ("accuracy", "loss") if name in metrics}
    if "accuracy" in chosen:
        return chosen
    return dict(list(metrics.items())[:3])


def scores_words(metrics: Mapping[str, float]) -> str:
    """`accuracy 0.986, loss 0.085`."""
    return ", ".join(f"{name} {number(value)}" for name, value in scores(metrics).items())


def evaluated_words(examples: int, complete: bool, of: int = 0, endless: bool = False) -> str:
    """` (1,000 of 50,000 examples)`, behind an evaluation; nothing where it was not told."""
    if examples:
        return f" ({examples_words(examples, complete, of, endless)})"
    return ""


def clock(at: float) -> str:
    """The local time of day of a moment."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def value_words(value: Value) -> str:
    """A parameter's value in text, with quotes where it would be another value without them."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value_text(value)


def params_words(params: Mapping[str, Value]) -> str:
    """`learning_rate 0.02, batch_size 64`."""
    return ", ".join(f"{name} {value_words(value)}" for name, value in params.items())


def count(many: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def size(many: float) -> str:
    """`12 MB`, of bytes."""
    unit = "bytes"
    for larger in ("kB", "MB", "GB"):
        if many < 1000:
            break
        many = many / 1000
        unit = larger
    if many < 1000:
        return f"{many:.3g} {unit}"
    return f"{many:,.0f} {unit}"


def share_words(share: Share) -> str:
    """What is left to a VM: `50% of its CPU and 20% of its network`, or `all of its CPU and
    network`.
    """
    parts = {"CPU": share.cpu, "network": share.network}
    less = [f"{part:.0%} of its {name}" for name, part in parts.items() if part < 1]
    return " and ".join(less) or "all of its CPU and network"
