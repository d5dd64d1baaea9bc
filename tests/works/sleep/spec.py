"""The declaration of a sleep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Self

from ...protocol import checks
from ...protocol.checks import Name, within

MOST_SECONDS = 86_400.0
MOST_RETRIES = 100


@dataclass(frozen=True, slots=True)
class SleepSpec:
    """A declared sleep of `seconds` on one VM, restarted `retries` times if its process fails."""

    name: Name
    seconds: Annotated[float, within(0.0, MOST_SECONDS)]
    retries: Annotated[int, within(0, MOST_RETRIES)] = 0
    declared_at: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """Return JSON values that `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` returned. Raises ValueError with the field that is invalid."""
        return checks.built(cls, values)


def events_file(attempt: int) -> str:
    """Return the file with the events of an attempt, in the folder of a sleep on its VM."""
    return f"events-{attempt}.jsonl"


def result_file(attempt: int) -> str:
    """Return the file with the result of an attempt, in the folder of a sleep."""
    return f"slept-{attempt}.txt"
