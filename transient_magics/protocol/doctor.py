"""Results of `transient doctor`: one record for each check.

The controller's program sends them to its client.
"""

from __future__ import annotations

from dataclasses import dataclass

GOOD = "good"
NOTE = "note"
BAD = "bad"
WORDS = {GOOD: "good", NOTE: "note", BAD: "NOT GOOD"}
"""The words that are printed for a result."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the doctor.

    Attributes
    ----------
    name : str
        What the check is about, such as `credentials` or `quotas in us-west1`.
    question : str
        What was checked, one sentence.
    result : str
        `GOOD`, `NOTE` (it works, or could not be checked) or `BAD`.
    found : str
        What was found, one sentence.
    fix : str
        The command that fixes it, or a page, or a sentence if it takes more. Empty if nothing
        helps.
    """

    name: str
    question: str
    result: str
    found: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{WORDS[self.result]}: {self.name}: {self.found}"
        if not self.fix:
            return text
        return f"{text}\n    {self.remedy}"

    @property
    def remedy(self) -> str:
        """The fix as an instruction: a command to type, a page to see, or a sentence as it is."""
        if self.fix[:1].isupper():
            return self.fix
        if self.fix.startswith(("https://", "http://")):
            return f"see: {self.fix}"
        return f"type: {self.fix}"
