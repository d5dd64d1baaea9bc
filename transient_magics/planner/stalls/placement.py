"""VMs that should be alike and are not: Stash found the same type placed so that it was several times slower.

Compared is each worker with its equals in the measures that no other worker has a part in: S0, its own computing, and
S2 less S1, its own way to the parameter servers. Of so many comparisons some would be apart by chance, so each interval
is wider by as much (Bonferroni).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...journal.events import TrainMeasured
from ...protocol.measures.stalls import Measure
from .parts import LEAST_REPEATS, LEAST_SECONDS, Estimate

LEAST_APART = 0.05
"""Of a step: VMs that differ by less are alike."""
_Taken = Mapping[Measure, TrainMeasured]


@dataclass(frozen=True, slots=True)
class Apart:
    """A worker whose `what` (computing or network) takes so many seconds `more` a step than that of its equals; `share`
    of their step."""

    worker: str
    what: str
    more: Estimate
    share: float


def apart(measured: Sequence[TrainMeasured], kinds: Mapping[str, str]) -> list[Apart]:
    """Workers that are slower than their equals, the slowest first."""
    repeats: dict[int, dict[Measure, TrainMeasured]] = {}
    for each in measured:
        repeats.setdefault(each.repeat, {})[each.measure] = each
    found = list[Apart]()
    for worker, kind in kinds.items():
        equals = [name for name, its in kinds.items() if its == kind and name != worker]
        for what, of in _WHAT.items():
            told, steps = list[float](), list[float]()
            for taken in repeats.values():
                own = of(taken, worker)
                others = [value for name in equals if (value := of(taken, name)) is not None]
                step = [taken["S2"].seconds[name] for name in equals if "S2" in taken and name in taken["S2"].seconds]
                if own is not None and others and step:
                    told.append(own - statistics.median(others))
                    steps.append(statistics.fmean(step))
            if len(told) < LEAST_REPEATS or statistics.fmean(steps) < LEAST_SECONDS:
                continue
            more = Estimate.of(told, 1 - 0.05 / (len(kinds) * len(_WHAT)))
            share = more.mean / statistics.fmean(steps)
            if more.low > 0 and share >= LEAST_APART:
                found.append(Apart(worker, what, more, share))
    return sorted(found, key=lambda each: -each.share)


def _computing(taken: _Taken, worker: str) -> float | None:
    return taken["S0"].seconds.get(worker) if "S0" in taken else None


def _network(taken: _Taken, worker: str) -> float | None:
    if not {"S1", "S2"} <= taken.keys():
        return None
    near, far = taken["S1"].seconds.get(worker), taken["S2"].seconds.get(worker)
    return None if near is None or far is None else far - near


_WHAT: Mapping[str, Callable[[_Taken, str], float | None]] = {"computing": _computing, "network": _network}
