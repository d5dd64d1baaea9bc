"""Results of the function of a bag: numbers by name, each with its error, and arrays.

Jobs compute the function on VMs. Surrogates learn its outputs, and plans use them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from .run import parameter_name

MOST_JOBS = 10_000
MOST_OUTPUTS = 32
ERROR = "_error"
"""Suffix of an output's name for its standard error, as estimated by the job."""
_NO_FUNCTION = "return a dict of numbers, such as {'pressure': p, 'pressure_error': e}"
MOST_ARRAY_BYTES = 64 * 2**20
"""Maximum size of the arrays that one job returns, as a file."""
MOST_PRINTED = 2000
"""Maximum number of characters kept from the end of an attempt's output."""
Policy = Literal["reuse", "memoryless"]
"""The rule that assigns a job to a VM: by the VM's age, or any VM."""


def output_name(text: str) -> str:
    """Check a name of a value that a job returns. Raises ValueError."""
    return parameter_name(text)


def checked_values(values: Mapping[str, float]) -> Mapping[str, float]:
    """Check the values that a job returned: finite numbers by name, and their errors.

    Each error must belong to a returned value and must not be negative. Raises ValueError, a
    clause.
    """
    if not 0 < len(values) <= 2 * MOST_OUTPUTS:
        raise ValueError(
            f"a result must have 1 to {2 * MOST_OUTPUTS} values, not {len(values)}: {_NO_FUNCTION}"
        )
    for name, value in values.items():
        output_name(name)
        if name.endswith(ERROR):
            if name.removesuffix(ERROR) not in values:
                raise ValueError(
                    f"{name} is an error, but the value {name.removesuffix(ERROR)} is missing"
                )
            if value < 0:
                raise ValueError(f"{name} must be at least 0, not {value!r}")
    return values


Values = Annotated[Mapping[str, float], checked_values]


def outputs_of(values: Collection[str]) -> tuple[str, ...]:
    """Return the names of the outputs among the names of a result's values, without errors."""
    return tuple(name for name in values if not name.endswith(ERROR))


def jobs_of(spec_jobs: int, spare: float) -> int:
    """Return N (1 + p), the number of jobs to begin for N results without waiting for any."""
    return math.ceil(round(spec_jobs * (1 + spare), 9))
