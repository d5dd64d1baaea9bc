"""What may be declared of a run, in a user's words: the record itself is `protocol.run.RunSpec`,
which VMs read.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import DeclarationError, unknown
from ..protocol import checks
from ..protocol.run import RunSpec, choices, contradiction, option

BYTES_EACH_WAY = {"fp32": 4, "bf16": 2}
"""What crosses for each parameter and step, by `--wire`: its value to the worker, and as much, its
gradient, back.
"""


def check_run(given: Mapping[str, object]) -> None:
    """Check the options that were given for a run (fields of RunSpec). Raises DeclarationError.

    Here and nowhere else it is decided what excludes what; a reader of an option's text only makes
    a value of it.
    """
    for name, value in given.items():
        allowed = choices(name)
        if allowed and value is not None and value not in allowed:
            what = f"Invalid {option(name)} '{value}'"
            raise DeclarationError(what, fix=f"Choose from {', '.join(allowed)}.")
    what, fix = contradiction(given)
    if what:
        raise DeclarationError(what, fix=fix)


def make_run(values: Mapping[str, object]) -> RunSpec:
    """The declaration of a run. Raises DeclarationError for a field that is not as it should be, or
    unknown.
    """
    other = next((name for name in values if name not in RunSpec.__dataclass_fields__), "")
    if other:
        fix = "help(transient_magics.train) names them."
        raise unknown("option of a run", other, RunSpec.__dataclass_fields__, otherwise=fix)
    try:
        return checks.built(RunSpec, values)
    except ValueError as error:
        name, _, why = str(error).partition(": ")
        raise DeclarationError(f"Invalid {option(name)}: {why}") from None


def parse_workers(text: str) -> dict[str, int]:
    """The least and the most workers of a run, as `2:4`; `2` is both. Raises DeclarationError."""
    least, colon, most = (each.strip() for each in text.partition(":"))
    numbers = [int(each) if each.isdecimal() else 0 for each in (least, most if colon else least)]
    if not 0 < numbers[0] <= numbers[1]:
        raise DeclarationError(f"Invalid --workers '{text}'", fix="For example: 2, or 2:4")
    return {"least_workers": numbers[0], "most_workers": numbers[1]}
