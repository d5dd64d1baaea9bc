"""`transient doctor`: is everything here that training on Google Cloud needs?

The checks run in a program of the controller's, which imports Google's client. Nothing is created.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from ..errors import TransientError
from ..protocol.doctor import BAD, WORDS, Check
from ..spec import EMULATED_PROJECT, own_bucket
from .commands import run_program
from .declaring import Declaration, specify

SPEC = "cpu+t4"
"""The cluster that is checked by default: a worker without a GPU, and one with the cheapest GPU,
both on Spot.
"""
_LIMIT_SECONDS = 180.0


@dataclass(frozen=True)
class Diagnosis:
    """The checks of one call, in the order in which to fix them.

    Attributes
    ----------
    project : str or None
        The project that was checked; None for the emulator.
    checks : tuple of Check
        Each has `name`, `question`, `result`, `found` and `fix`.
    """

    project: str | None
    checks: tuple[Check, ...]

    @property
    def well(self) -> bool:
        """Whether no check is bad."""
        return not self._bad

    @property
    def rows(self) -> list[dict[str, str]]:
        """One dict for each check: check, question, result, found, fix."""
        return [
            {
                "check": check.name,
                "question": check.question,
                "result": WORDS[check.result],
                "found": check.found,
                "fix": check.fix,
            }
            for check in self.checks
        ]

    @property
    def end(self) -> str:
        """The last sentence: how many checks are bad."""
        if self.project:
            where = f"project {self.project}"
        else:
            where = "the emulator"
        if not self._bad:
            return f"All is well in {where}."
        return f"{len(self._bad)} to fix in {where}. Start at the top: the first may cause others."

    @property
    def _bad(self) -> list[Check]:
        return [check for check in self.checks if check.result == BAD]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checks), self.end])

    def __repr__(self) -> str:
        return str(self)


def doctor(spec: str = "", **options: Any) -> Diagnosis:
    """Check everything that a cluster like `spec` needs. Nothing is created.

    Parameters
    ----------
    spec
        The workers, such as `t4x4`; `SPEC` by default.
    options
        The other fields of `Declaration`, such as `project` and `zone`. Without a project the
        emulator is checked.

    Raises
    ------
    DeclarationError
        If the declaration is invalid. A check that fails is in the answer instead.
    """
    declaration = _with_bucket(Declaration(spec=spec or SPEC, **options))
    declared = specify(declaration)
    try:
        answer = run_program(
            "doctor", "The doctor", stdin=json.dumps(declared.to_dict()), timeout=_LIMIT_SECONDS
        )
    except TransientError as error:
        failed = Check("the doctor", "Whether its program ran to its end.", BAD, str(error))
        return Diagnosis(declaration.project, (failed,))
    return Diagnosis(declaration.project, tuple(Check(**check) for check in answer["checks"]))


def _with_bucket(declaration: Declaration) -> Declaration:
    """Return the declaration, on the emulator with a bucket, so that the checks of buckets run
    there too.
    """
    if declaration.bucket or declaration.project:
        return declaration
    region = specify(declaration).home_zone.rpartition("-")[0]
    return replace(declaration, bucket=own_bucket(EMULATED_PROJECT, region))
