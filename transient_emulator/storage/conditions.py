"""Preconditions: on which generation of an object (or metageneration of anything) a request insists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..rest import wire


class NotModified(Exception):
    """What was to be read only if it had changed has not changed."""


@dataclass(frozen=True)
class Conditions:
    """The generation 0 means that there is no object."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], prefix: str = "if") -> Conditions:
        """Those in a request's parameters; `prefix` is `if`, or `ifSource` for the source of a copy."""
        return cls(
            number(query, f"{prefix}GenerationMatch"), number(query, f"{prefix}GenerationNotMatch"),
            number(query, f"{prefix}MetagenerationMatch"), number(query, f"{prefix}MetagenerationNotMatch"),
        )  # fmt: skip

    def check(self, present: Mapping[str, Any] | None, *, reading: bool = False) -> None:
        """ApiError 412 unless they hold for what is there now. For reads, NotModified where that says it better."""
        generation = int(present.get("generation", 0)) if present else 0
        metageneration = int(present["metageneration"]) if present else 0
        if self.generation not in (None, generation) or self.metageneration not in (None, metageneration):
            raise failed()
        if generation == self.not_generation or (present and metageneration == self.not_metageneration):
            raise NotModified if reading else failed()


def number(query: Mapping[str, str], name: str) -> int | None:
    """A parameter that is a number. ApiError 400 where it is none."""
    text = query.get(name)
    if text is None or text == "":
        return None
    if not text.lstrip("-").isdigit():
        raise wire.ApiError(400, "invalid", f"Invalid value for parameter '{name}': '{text}'.")
    return int(text)


def failed() -> wire.ApiError:
    """412 for a precondition that does not hold."""
    return wire.ApiError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
