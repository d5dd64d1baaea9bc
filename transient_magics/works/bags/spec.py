"""The declaration of a bag: one function, the points at which it is computed, and when it ends.

No job of a bag is special: `jobs` results are required, some spare jobs are started, and no single
job is waited for. Clients, the driver and plans share one record, which is JSON in `bag.json`. The
space has the form of a study's space.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal, Self

from ...protocol import checks
from ...protocol.checks import Amount, Count, Name, within
from ...protocol.literals import as_number
from ...protocol.machines import MOST_LEASED
from ...protocol.outputs import MOST_JOBS, Policy, jobs_of, output_name
from ...protocol.run import Value
from ...protocol.space import Dimension

MOST_RETRIES = 100
GIVEN = ("seed", "checkpoint")
"""Arguments that a job's function receives beside the parameters, if it accepts them."""


def _output_or_none(text: str) -> str:
    if text:
        return output_name(text)
    return text


def _above_zero(value: float) -> float:
    if value <= 0:
        raise ValueError(f"must be greater than 0, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class BagSpec:
    """A declared bag: the first `jobs` results at points of the `space` are its results.

    `spare` is the share of additional jobs that are started. `surrogate` is learnt from the results
    and chooses further points. The bag ends before its last job if the surrogate's standard
    deviation is below `until` everywhere: absolute, by output (empty name: the only output).
    `policy` selects the VM of a job (`bags.policy.placement`).

    `workers` is the number of VMs (0: all).

    `job_seconds` is the duration of a job on one VM (0: unknown), `save_seconds` that of a
    checkpoint. `timeout_seconds` limits one job over all attempts (None: no limit), `memory_bytes`
    its memory (0: that of the VM). A revocation is not a failure; a job that fails is retried
    `retries` times. `pip` and `include` are those of a run.
    """

    name: Name
    space: tuple[Dimension, ...]
    jobs: Annotated[int, within(1, MOST_JOBS)]
    spare: Annotated[float, within(0, 1)] = 0.1
    surrogate: Literal["gp", "ensemble", "none"] = "gp"
    until: Mapping[Annotated[str, _output_or_none], Annotated[float, _above_zero]] = field(
        default_factory=dict[str, float]
    )
    policy: Policy = "reuse"
    workers: Annotated[int, within(0, MOST_LEASED)] = 0
    seed: Annotated[int, within(0, 2**31 - 1)] = 0
    job_seconds: Amount = 0.0
    save_seconds: Amount = 0.0
    timeout_seconds: Amount | None = None
    memory_bytes: Count = 0
    retries: Annotated[int, within(0, MOST_RETRIES)] = 1
    max_cost: Amount | None = None
    max_hours: Amount | None = None
    pip: tuple[str, ...] = ()
    pip_build: bool = False
    include: tuple[str, ...] = ()
    declared_at: float = 0.0

    def __post_init__(self) -> None:
        if why := contradiction(self):
            raise ValueError(why)

    @property
    def begun(self) -> int:
        """The largest number of jobs to start, spare jobs included."""
        return jobs_of(self.jobs, self.spare)

    def has(self, point: Mapping[str, Value]) -> bool:
        """Return whether `point` is a point of the space."""
        return {*point} == {dimension.name for dimension in self.space} and all(
            dimension.has(point[dimension.name]) for dimension in self.space
        )

    def job_seed(self, job: int) -> int:
        """Return the seed of a job, which is the same in all attempts."""
        return int.from_bytes(hashlib.sha256(f"{self.seed} {job}".encode()).digest()[:4]) >> 1

    def tolerances(self, outputs: Collection[str]) -> Mapping[str, float]:
        """Return the standard deviations below which the bag may end, by output.

        Raises ValueError, a clause, if `until` refers to other outputs.
        """
        if "" in self.until:
            if len(outputs) != 1:
                raise ValueError(
                    f"the jobs return {', '.join(outputs)}: name the output of --until, such as "
                    f"{min(outputs)}=0.02"
                )
            return {next(iter(outputs)): self.until[""]}
        if lost := [name for name in self.until if name not in outputs]:
            raise ValueError(f"--until names {lost[0]}, but the jobs return {', '.join(outputs)}")
        return self.until

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, from which `from_dict` creates an equal spec."""
        return {**asdict(self), "space": [dimension.to_dict() for dimension in self.space]}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Create a spec from the values of `to_dict`; unknown fields are ignored.

        Raises ValueError with the invalid field.
        """
        return checks.built(cls, values)


def _is_finite(value: Value) -> bool:
    return math.isfinite(as_number(value))


def parse_until(text: str) -> Mapping[str, float]:
    """Parse `0.01` or `pressure=0.02,energy=0.01`. Raises ValueError, a clause."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.rpartition("="))
        if equals:
            output_name(name)
        if name in found or (found and not (name and next(iter(found)))):
            raise ValueError(f"'{text:.80}' must name different outputs")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not 0 < value < 2**63:
            raise ValueError(
                f"'{number:.40}' must be a number greater than 0: write 0.01, or "
                "pressure=0.02,energy=0.01"
            )
        found[name] = value
    return found


def contradiction(spec: BagSpec) -> str:
    """Return which options exclude each other and what to do, as a clause; else an empty text."""
    names = [dimension.name for dimension in spec.space]
    if not names:
        return "over: a bag needs parameters, such as density=0.3:0.9"
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        return f"over: {twice[0]} occurs twice"
    if given := [name for name in names if name in GIVEN]:
        return f"over: {given[0]} is reserved, because every job receives it; use another name"
    if spec.surrogate == "none":
        if spec.until:
            return "until: only a bag with a surrogate can reach it (--surrogate gp)"
        return ""
    for dimension in spec.space:
        if dimension.kind == "choice" and not all(map(_is_finite, dimension.choices)):
            return (
                f"surrogate: {dimension.name} has choices that are not numbers; "
                "use --surrogate none"
            )
    if "" in spec.until and len(spec.until) > 1:
        return (
            "until: a number without a name is for the only output; name all outputs, such as "
            "pressure=0.02,energy=0.01"
        )
    return ""
