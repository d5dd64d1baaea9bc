"""Which revocations a plan or a forecast assumes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...errors import DeclarationError, PlanError

if TYPE_CHECKING:
    from ...planner.choices import Lifetimes
    from ...planner.lifetimes.parametric import LifetimeModel

RISKS = ("published", "own", "none")
"""Which revocations a plan can take, besides a count of them, and lifetimes of the emulator or of a
CSV file.
"""


def foreseen(revocations: int | str) -> tuple[Lifetimes, int | None, str]:
    """Lifetimes, or how many workers are lost, and both in words. Raises DeclarationError."""
    from ...planner.choices import immortal
    from ...planner.lifetimes.sources import published_lifetimes

    text = str(revocations).strip().lower()
    if text.isdigit():
        count = int(text)
        if count == 0:
            said = "no revocation"
        else:
            said = f"{count} revocation{'' if count == 1 else 's'}"
        return immortal, count, said
    if text == "none":
        return immortal, 0, "no revocation"
    if text == "published":
        return published_lifetimes, None, "lifetimes as published in 2019 for preemptible VMs"
    if text in ("own", "emulated"):
        return (
            _observed(text),
            None,
            f"lifetimes of your {'own' if text == 'own' else 'emulated'} VMs",
        )
    if text.endswith(".csv"):
        return _observed(str(revocations).strip()), None, f"lifetimes in {revocations}"
    raise DeclarationError(
        f"Invalid --revocations '{revocations}'",
        fix=f"Write {', '.join(RISKS)}, or how many workers are lost.",
    )


def emulated() -> tuple[Lifetimes, int | None, str]:
    """Return what `foreseen` does, for the published weather of the emulator."""
    from ...planner.lifetimes.sources import emulated_lifetimes

    return emulated_lifetimes, None, "lifetimes as the emulator's weather has them"


def _observed(source: str) -> Lifetimes:
    """What a source tells about a GPU in a region; where it is too little, about the GPU in all of
    them (of a file: about all VMs in it).
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
