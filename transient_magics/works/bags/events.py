"""What the driver of a bag tells: which job began where, was lost, gave which result, and what was
learnt from them.

The driver runs on a VM, so its lines are foreign: these classes are all that is taken of it
(`from_driver`), and what follows from them is one fold. A key is (job, attempt):
whatever comes twice counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from ...protocol.checks import Amount, Count, Name, at_least, checked_file
from ...protocol.events import FACT, Event, event, taken
from ...protocol.literals import CheckedValue, all_as_json
from ...protocol.outputs import MOST_ARRAY_BYTES, MOST_OUTPUTS, MOST_SAID, Values, output_name
from ...protocol.run import parameter_name

MOST_POINT = 64
"""Parameters of a point."""
_AtLeastOne = Annotated[int, at_least(1)]


def _few(value: Mapping[str, object]) -> Mapping[str, object]:
    if len(value) > MOST_POINT:
        raise ValueError(f"{len(value)} parameters")
    return value


def _file_or_none(value: str) -> str:
    if value:
        return checked_file(value)
    return value


def _digest_or_none(value: str) -> str:
    if value and not (len(value) == 64 and {*value} <= {*"0123456789abcdef"}):
        raise ValueError(f"no digest: {value!r:.80}")
    return value


def _array_bytes(value: int) -> int:
    if value > MOST_ARRAY_BYTES:
        raise ValueError(f"arrays of {value} bytes, where {MOST_ARRAY_BYTES} are let in")
    return value


def _outputs(value: Mapping[str, object]) -> Mapping[str, object]:
    if len(value) > MOST_OUTPUTS:
        raise ValueError(f"{len(value)} outputs")
    return value


def _few_words(value: str) -> str:
    if len(value) > MOST_SAID:
        raise ValueError(
            f"{len(value)} characters of what was printed, where {MOST_SAID} are let in"
        )
    return value


_Said = Annotated[str, _few_words]
Point = Annotated[Mapping[Annotated[str, parameter_name], CheckedValue], _few]
_Output = Annotated[str, output_name]
_Amounts = Annotated[Mapping[_Output, Amount], _outputs]
_Predictions = Annotated[Mapping[_Output, tuple[float, Amount]], _outputs]
OWN_FAULTS = ("crashed", "memory", "raised", "invalid", "timeout")
"""The ends of an attempt that count against a job; the others are its VM's."""


@event("bag.proposed", FACT)
class BagProposed(Event):
    """A job was chosen: its number is never used twice. `filling`: to fill the space, not because
    it tells most.

    `predicted`: by output what the surrogate said of it before, mean and standard deviation, where
    there was one.
    """

    bag: Name
    job: Count
    point: Point
    batch: Count = 0
    filling: bool = False
    predicted: _Predictions = field(default_factory=dict[str, tuple[float, float]])

    @property
    def values(self) -> Mapping[str, object]:
        return {**super().values, "point": all_as_json(self.point)}


@event("bag.started", FACT)
class BagStarted(Event):
    """An attempt of a job began on a VM that had run for `age` seconds, from what was saved `done`
    seconds into it.
    """

    bag: Name
    job: Count
    attempt: _AtLeastOne
    vm: Name
    age: Amount
    done: Amount = 0.0


@event("bag.saved", FACT)
class BagSaved(Event):
    """What the job has made in `done` seconds of computing is safe; saving it took `seconds`."""

    bag: Name
    job: Count
    attempt: _AtLeastOne
    done: Amount
    seconds: Amount = 0.0


@event("bag.lost", FACT)
class BagLost(Event):
    """An attempt ended without a result. `why`: its VM was revoked or lost, or a fault of the job's
    own.

    `said`: the last that it printed, where that is known.
    """

    bag: Name
    job: Count
    attempt: _AtLeastOne
    why: Literal["revoked", "lost", "crashed", "memory", "raised", "invalid", "timeout"]
    reason: str = ""
    said: _Said = ""


@event("bag.result", FACT)
class BagResult(Event):
    """An attempt gave a result, after `seconds` of computing over all attempts that it continues.

    `said`: the last that it printed. `arrays`: the file with what else it returned (empty:
    nothing), of so many `bytes` with this SHA-256 `digest`.
    """

    bag: Name
    job: Count
    attempt: _AtLeastOne
    returned: Values
    seconds: Amount
    arrays: Annotated[str, _file_or_none] = ""
    bytes: Annotated[Count, _array_bytes] = 0
    digest: Annotated[str, _digest_or_none] = ""
    said: _Said = ""


@event("bag.gave_up", FACT)
class BagGaveUp(Event):
    """A VM without a job, which had run for `age` seconds, is worth none any more by the policy of
    reuse: it is to go, and a fresh one to come in its place as soon as a job waits for one.
    """

    bag: Name
    vm: Name
    age: Amount = 0.0


@event("bag.learnt", FACT)
class BagLearnt(Event):
    """A surrogate was learnt from so many `results`.

    Of the `judged` results that came since the one before, and before they were learnt from, by
    output: the share inside the 90 % intervals (`coverage`) and the median residual in its own
    standard deviations (`residual`); and the largest standard deviation anywhere in the space
    (`largest`).
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
    """No further job begins, and none that runs is waited for.

    `why`: all results are there (counted), the surrogate is good enough (converged), a limit, the
    user (asked), or jobs that fail.
    """

    bag: Name
    why: Literal["counted", "converged", "limit", "asked", "failed"]
    reason: str = ""


BagEvent = (
    BagProposed | BagStarted | BagSaved | BagLost | BagResult | BagGaveUp | BagLearnt | BagStopped
)
_KINDS: Mapping[str, type[Event]] = {
    each.kind: each
    for each in (
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
    """The event on a line of the driver of `bag`, told of a moment from `since` to `until` (ns),
    give or take a day.

    Raises ValueError for everything else, whatever it is.
    """
    found = taken(line, _KINDS, "a driver", since, until)
    assert isinstance(found, BagEvent)
    if found.bag != bag:
        raise ValueError(f"a {found.kind} event of another bag")
    return found


@event("bag.began", FACT)
class BagBegan(Event):
    """Its driver is beside the scheduler of the Dask cluster `dask`, whose workers are the bag's; a
    later one takes the place of one that was lost.
    """

    bag: Name
    dask: Name
