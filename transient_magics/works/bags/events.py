"""Events that the driver of a bag reports: starts, losses and results of jobs, and surrogates.

The driver runs on a VM, so its lines are untrusted. `from_driver` accepts these classes only, and
one fold derives the state from them. The key is (job, attempt): duplicates count once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from ...protocol.checks import Amount, Count, Name, at_least, checked_file
from ...protocol.events import FACT, Event, event, read_foreign
from ...protocol.literals import CheckedValue, all_as_json
from ...protocol.outputs import MOST_ARRAY_BYTES, MOST_OUTPUTS, MOST_PRINTED, Values, output_name
from ...protocol.run import parameter_name

MOST_POINT = 64
"""Limit on the parameters of a point."""
_AtLeastOne = Annotated[int, at_least(1)]


def _few(value: Mapping[str, object]) -> Mapping[str, object]:
    if len(value) > MOST_POINT:
        raise ValueError(f"must have at most {MOST_POINT} parameters, not {len(value)}")
    return value


def _file_or_none(value: str) -> str:
    if value:
        return checked_file(value)
    return value


def _digest_or_none(value: str) -> str:
    if value and not (len(value) == 64 and {*value} <= {*"0123456789abcdef"}):
        raise ValueError(f"{value!r:.80} is not a SHA-256 digest")
    return value


def _array_bytes(value: int) -> int:
    if value > MOST_ARRAY_BYTES:
        raise ValueError(
            f"the arrays have {value} bytes, more than the limit of {MOST_ARRAY_BYTES}"
        )
    return value


def _outputs(value: Mapping[str, object]) -> Mapping[str, object]:
    if len(value) > MOST_OUTPUTS:
        raise ValueError(f"must have at most {MOST_OUTPUTS} outputs, not {len(value)}")
    return value


def _few_words(value: str) -> str:
    if len(value) > MOST_PRINTED:
        raise ValueError(
            f"the output has {len(value)} characters, more than the limit of {MOST_PRINTED}"
        )
    return value


_Printed = Annotated[str, _few_words]
Point = Annotated[Mapping[Annotated[str, parameter_name], CheckedValue], _few]
_Output = Annotated[str, output_name]
_Amounts = Annotated[Mapping[_Output, Amount], _outputs]
_Predictions = Annotated[Mapping[_Output, tuple[float, Amount]], _outputs]
OWN_FAULTS = ("crashed", "memory", "raised", "invalid", "timeout")
"""Ends of an attempt that count as failures of the job; the others are losses of its VM."""


@event("bag.proposed", FACT)
class BagProposed(Event):
    """A job was chosen; its number is never used twice.

    `filling` is whether it was chosen to fill the space, not for its information. `predicted` is
    the surrogate's prediction by output, as mean and standard deviation, if there was one.
    """

    bag: Name
    job: Count
    point: Point
    batch: Count = 0
    filling: bool = False
    predicted: _Predictions = field(default_factory=dict[str, tuple[float, float]])

    @property
    def values(self) -> Mapping[str, object]:
        """All fields of the line."""
        return {**super().values, "point": all_as_json(self.point)}


@event("bag.started", FACT)
class BagStarted(Event):
    """An attempt of a job started on a VM that had run for `age` seconds.

    It continues from the checkpoint after `done` seconds of computing.
    """

    bag: Name
    job: Count
    attempt: _AtLeastOne
    vm: Name
    age: Amount
    done: Amount = 0.0


@event("bag.saved", FACT)
class BagSaved(Event):
    """A checkpoint of a job after `done` seconds of computing; saving it took `seconds`."""

    bag: Name
    job: Count
    attempt: _AtLeastOne
    done: Amount
    seconds: Amount = 0.0


@event("bag.lost", FACT)
class BagLost(Event):
    """An attempt ended without a result.

    `why` is the loss of its VM or a failure of the job. `printed` is its last output, if available.
    """

    bag: Name
    job: Count
    attempt: _AtLeastOne
    why: Literal["revoked", "lost", "crashed", "memory", "raised", "invalid", "timeout"]
    reason: str = ""
    printed: _Printed = ""


@event("bag.result", FACT)
class BagResult(Event):
    """An attempt returned a result, after `seconds` of computing over all attempts it continues.

    `printed` is its last output. `arrays` is the file of the arrays that it returned (empty: none),
    `bytes` the size of the file and `digest` its SHA-256.
    """

    bag: Name
    job: Count
    attempt: _AtLeastOne
    returned: Values
    seconds: Amount
    arrays: Annotated[str, _file_or_none] = ""
    bytes: Annotated[Count, _array_bytes] = 0
    digest: Annotated[str, _digest_or_none] = ""
    printed: _Printed = ""


@event("bag.gave_up", FACT)
class BagGaveUp(Event):
    """A free VM that had run for `age` seconds receives no further job, by the reuse policy.

    It is deleted, and a new VM replaces it as soon as a job waits for one.
    """

    bag: Name
    vm: Name
    age: Amount = 0.0


@event("bag.learnt", FACT)
class BagLearnt(Event):
    """A surrogate was learnt from `results` results.

    The `judged` results since the previous surrogate are compared with its predictions. By output,
    `coverage` is the share inside the 90 % intervals, `residual` the median residual in its own
    standard deviations, and `largest` the largest standard deviation in the space.
    """

    bag: Name
    batch: Count
    results: Count
    model: Literal["gp", "ensemble"]
    judged: Count = 0
    coverage: _Amounts = field(default_factory=dict[str, float])
    residual: _Amounts = field(default_factory=dict[str, float])
    largest: _Amounts = field(default_factory=dict[str, float])


@event("bag.stopped", FACT)
class BagStopped(Event):
    """No further job starts, and running jobs are not waited for.

    `why`: all results are available (counted), the surrogate is good enough (converged), a limit, the
    user (asked), or jobs that fail.
    """

    bag: Name
    why: Literal["counted", "converged", "limit", "asked", "failed"]
    reason: str = ""


BagEvent = (
    BagProposed | BagStarted | BagSaved | BagLost | BagResult | BagGaveUp | BagLearnt | BagStopped
)
_KINDS: Mapping[str, type[Event]] = {
    event_type.kind: event_type
    for event_type in (
        BagProposed,
        BagStarted,
        BagSaved,
        BagLost,
        BagResult,
        BagGaveUp,
        BagLearnt,
        BagStopped,
    )
}


def from_driver(line: bytes, bag: str, since: int, until: int) -> BagEvent:
    """Return the event of a line from the driver of `bag`.

    Its time must be from `since` to `until` (ns), with a tolerance of a day. Raises ValueError for
    any other line.
    """
    found = read_foreign(line, _KINDS, "a driver", since, until)
    assert isinstance(found, BagEvent)
    if found.bag != bag:
        raise ValueError(f"the {found.kind} event belongs to another bag")
    return found


@event("bag.began", FACT)
class BagBegan(Event):
    """A bag started on the Dask cluster `dask`, whose scheduler process runs its driver.

    A later event replaces a lost Dask cluster.
    """

    bag: Name
    dask: Name
