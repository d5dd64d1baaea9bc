"""`transient doctor`: checks of the requirements of training on Google Cloud.

The checks run in a program of the controller, which imports Google's client. Nothing is created.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from ..errors import TransientError
from ..protocol.doctor import BAD, WORDS, Check
from ..spec import EMULATED_PROJECT, own_bucket
from . import text
from .commands import run_program
from .declaring import Declaration, specify

SPEC = "cpu+t4"
"""The default SPEC: a Spot worker without a GPU, and one with the cheapest GPU."""
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
        """Whether all checks have passed."""
        return not self._bad

    @property
    def rows(self) -> list[dict[str, str]]:
        """One dict per check: check, question, result, found, fix."""
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
        """The last sentence: the number of failed checks."""
        where = "the emulator"
        if self.project:
            where = f"project {self.project}"
        if not self._bad:
            return f"All checks of {where} passed."
        failed = text.count(len(self._bad), "check")
        return f"{failed} of {where} failed. Start at the top: the first may cause others."

    @property
    def _bad(self) -> list[Check]:
        return [check for check in self.checks if check.result == BAD]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checks), self.end])

    def __repr__(self) -> str:
        return str(self)


def doctor(spec: str = "", **options: Any) -> Diagnosis:
    """Check the requirements of a cluster. Nothing is created.

    Parameters
    ----------
    spec
        The workers, such as `t4x4` (default: `cpu+t4`).
    options
        Other fields of `Declaration`, such as `project` and `zone`. Without a project, the emulator
        is checked.

    Returns
    -------
    Diagnosis
        The checks, shown as a list with the command that fixes each failed one. `well` is whether
        all have passed.

    Raises
    ------
    DeclarationError
        The declaration is invalid. A failed check does not raise.

    Examples
    --------
    >>> tm.doctor("t4x4", project="my-project")
    """
    declaration = _with_bucket(Declaration(spec=spec or SPEC, **options))
    declared = specify(declaration)
    try:
        answer = run_program(
            "doctor", "The doctor", stdin=json.dumps(declared.to_dict()), timeout=_LIMIT_SECONDS
        )
    except TransientError as error:
        failed = Check("the doctor", "Whether its program completed.", BAD, str(error))
        return Diagnosis(declaration.project, (failed,))
    return Diagnosis(declaration.project, tuple(Check(**check) for check in answer["checks"]))


def _with_bucket(declaration: Declaration) -> Declaration:
    """Add a bucket to a declaration on the emulator, so that buckets are checked there too."""
    if declaration.bucket or declaration.project:
        return declaration
    region = specify(declaration).home_zone.rpartition("-")[0]
    return replace(declaration, bucket=own_bucket(EMULATED_PROJECT, region))
