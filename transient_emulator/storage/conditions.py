"""Preconditions: the generation or metageneration that a request requires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..rest import wire


class NotModified(Exception):
    """The outcome of a conditional read of something that has not changed."""


@dataclass(frozen=True)
class Conditions:
    """The preconditions of a request. The generation 0 means that there is no object."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str], prefix: str = "if") -> Conditions:
        """Return the preconditions in a request's parameters.

        Parameters
        ----------
        query
            The parameters.
        prefix
            `if`, or `ifSource` for the source of a copy.

        Raises
        ------
        ApiError
            400 if one is not a number.
        """
        return cls(
            number(query, f"{prefix}GenerationMatch"),
            number(query, f"{prefix}GenerationNotMatch"),
            number(query, f"{prefix}MetagenerationMatch"),
            number(query, f"{prefix}MetagenerationNotMatch"),
        )

    def check(self, present: Mapping[str, Any] | None, *, reading: bool = False) -> None:
        """Check the preconditions against the present state.

        Parameters
        ----------
        present
            The bucket or object; None if it does not exist.
        reading
            Whether the request only reads.

        Raises
        ------
        ApiError
            412 if a precondition does not hold.
        NotModified
            In its place for reads, where the state is still the excluded one.
        """
        generation = 0
        metageneration = 0
        if present:
            generation = int(present.get("generation", 0))
            metageneration = int(present["metageneration"])
        if self.generation not in (None, generation):
            raise failed()
        if self.metageneration not in (None, metageneration):
            raise failed()
        excluded = generation == self.not_generation or (
            present and metageneration == self.not_metageneration
        )
        if excluded:
            raise NotModified if reading else failed()


def number(query: Mapping[str, str], name: str) -> int | None:
    """Return a numeric parameter; None if it is missing.

    Raises ApiError 400 if it is not a number.
    """
    text = query.get(name)
    # 0 is a value: it asks that no object exists.
    if text is None or text == "":
        return None
    if not text.lstrip("-").isdigit():
        raise wire.ApiError(400, "invalid", f"Invalid value for parameter '{name}': '{text}'.")
    return int(text)


def failed() -> wire.ApiError:
    """Return the 412 for a precondition that does not hold."""
    message = "At least one of the pre-conditions you specified did not hold."
    return wire.ApiError(412, "conditionNotMet", message)
