"""Revocations that a plan or a forecast assumes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...errors import DeclarationError, PlanError
from ..text import count as text_count

if TYPE_CHECKING:
    from ...planner.choices import Lifetimes
    from ...planner.lifetimes.parametric import LifetimeModel

RISKS = ("published", "own", "none")
"""Values of `--revocations`, besides a number, `emulated`, and a CSV file."""


def foreseen(revocations: int | str) -> tuple[Lifetimes, int | None, str]:
    """Parse the value of `--revocations`.

    Parameters
    ----------
    revocations
        `published`, `own`, `emulated`, `none`, a CSV file, or the number of workers that are lost.

    Returns
    -------
    tuple
        The lifetimes, the number of lost workers (None: by the lifetimes), and both in words.

    Raises
    ------
    DeclarationError
        The value is invalid.
    """
    from ...planner.choices import immortal
    from ...planner.lifetimes.sources import published_lifetimes

    text = str(revocations).strip().lower()
    if text.isdigit():
        count = int(text)
        words = "no revocation"
        if count:
            words = text_count(count, "revocation")
        return immortal, count, words
    if text == "none":
        return immortal, 0, "no revocation"
    if text == "published":
        return published_lifetimes, None, "lifetimes as published in 2019 for preemptible VMs"
    if text in ("own", "emulated"):
        return _observed(text), None, f"lifetimes of your {text} VMs"
    if text.endswith(".csv"):
        return _observed(str(revocations).strip()), None, f"lifetimes in {revocations}"
    raise DeclarationError(
        f"Invalid --revocations '{revocations}'",
        fix=f"Write {', '.join(RISKS)}, or the number of workers that are lost.",
    )


def emulated() -> tuple[Lifetimes, int | None, str]:
    """Return the lifetimes of the emulator's published weather, as `foreseen`."""
    from ...planner.lifetimes.sources import emulated_lifetimes

    return emulated_lifetimes, None, "lifetimes as the emulator's weather has them"


def _observed(source: str) -> Lifetimes:
    """Return lifetimes by GPU and region; of the GPU in all regions if a region has too few VMs.

    For a file, the fallback is all VMs in it.
    """
    from ...planner.lifetimes.sources import Question
    from ...planner.lifetimes.study import study

    @cache
    def lifetimes(gpu: str, place: str) -> LifetimeModel:
        try:
            return study(Question(gpu, place), source).model
        except (PlanError, DeclarationError):
            return study(Question(gpu if source in ("own", "emulated") else None), source).model

    return lifetimes
