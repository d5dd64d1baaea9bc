"""What the function of a bag returns: numbers by name, each with its error, and arrays.

The function is computed on VMs, by jobs. Its outputs are learnt by surrogates and used by plans.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from .run import parameter_name

MOST_JOBS = 10_000
MOST_OUTPUTS = 32
ERROR = "_error"
"""Behind an output's name: its standard error, as the job itself estimated it."""
_NO_FUNCTION = "a result is a dict of numbers, as {'pressure': p, 'pressure_error': e}"
MOST_ARRAY_BYTES = 64 * 2**20
"""Of the arrays that one job returns, as a file."""
MOST_SAID = 2000
"""Characters of what an attempt printed: its last ones."""
Policy = Literal["reuse", "memoryless"]
"""How a job is given to a VM: by the VM's age, or to any."""


def output_name(text: str) -> str:
    """A check: a name of something that a job returns. Raises ValueError."""
    return parameter_name(text)


def checked_values(values: Mapping[str, float]) -> Mapping[str, float]:
    """A check: what a job returned, finite numbers by name, each error beside what it is of and not
    below zero.

    Raises ValueError, a clause.
    """
    if not 0 < len(values) <= 2 * MOST_OUTPUTS:
        raise ValueError(f"{len(values)} values: {_NO_FUNCTION}")
    for name, value in values.items():
        output_name(name)
        if name.endswith(ERROR):
            if name.removesuffix(ERROR) not in values:
                raise ValueError(f"{name} is the error of nothing that is returned")
            if value < 0:
                raise ValueError(f"{name} is below zero: {value!r}")
    return values


Values = Annotated[Mapping[str, float], checked_values]


def outputs_of(values: Collection[str]) -> tuple[str, ...]:
    """The names of the outputs among the names of a result's values, without their errors."""
    return tuple(name for name in values if not name.endswith(ERROR))


def jobs_of(spec_jobs: int, spare: float) -> int:
    """N (1 + p): how many jobs are begun so that N results come, without waiting for any."""
    return math.ceil(round(spec_jobs * (1 + spare), 9))
