"""What the doctor found: lines that a reader goes through from the top, and for notebooks the same as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORDS = {"good": "good", "note": "note", "bad": "NOT GOOD"}
"""What is printed for a verdict."""


_UNKEPT = "\nThere is no report: its file could not be written."


@dataclass(frozen=True)
class Line:
    """The answer to one question, or the end of one stage.

    `verdict`: good, note (it works, or cannot be told, and is worth knowing) or bad; `mend`: the one command that
    helps, or the page, or a sentence where it takes more. `seconds`: how long a stage took. `facts`: what was seen, for
    the report.
    """

    subject: str
    verdict: str
    said: str
    mend: str = ""
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        took = f" ({self.seconds:.0f} s)" if self.seconds else ""
        told = f"{WORDS[self.verdict]}: {self.subject}{took}: {self.said}"
        return f"{told}\n    {self.remedy}" if self.mend else told

    @property
    def remedy(self) -> str:
        """`mend` with what to do with it: a command is typed, a page looked at; a sentence says it itself."""
        return self.mend if self.mend[:1].isupper() else f"{'see' if '://' in self.mend[:8] else 'type'}: {self.mend}"


@dataclass(frozen=True)
class Diagnosis:
    """All answers. `stages` are those of the course; `report` is the file that can be shown to others."""

    project: str | None
    lines: tuple[Line, ...]
    stages: tuple[Line, ...] = ()
    report: Path | None = None

    @property
    def well(self) -> bool:
        """Whether nothing has to be mended."""
        return not any(each.verdict == "bad" for each in (*self.lines, *self.stages))

    @property
    def rows(self) -> list[dict[str, str]]:
        """One dict per answer: verdict, subject, said, mend."""
        every = [*self.lines, *self.stages]
        return [
            {"verdict": WORDS[each.verdict], "subject": each.subject, "said": each.said, "mend": each.mend}
            for each in every
        ]

    @property
    def end(self) -> str:
        """The last words: what it comes to, and where the report is."""
        bad = [each for each in (*self.lines, *self.stages) if each.verdict == "bad"]
        where = f"project {self.project}" if self.project else "the emulator"
        said = (
            f"{len(bad)} to mend in {where}, from the top: the first may be the reason of others."
            if bad
            else f"All is well in {where}."
        )
        kept = f"\nThe report, without names of yours: {self.report} (and .txt)" if self.report else _UNKEPT
        return f"{said}{kept}"

    def __str__(self) -> str:
        return "\n".join([*map(str, unrepeated(self.lines)), *map(str, self.stages), self.end])

    def __repr__(self) -> str:
        return str(self)


def unrepeated(lines: Sequence[Line]) -> list[Line]:
    """As they are shown: without what was said already."""
    return list({(each.subject, each.said): each for each in lines}.values())
