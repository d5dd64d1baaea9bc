"""What a step would take if something were bigger or faster: a model with nothing fitted but what was measured.

The step without its input, g = S3, and the input of a mini-batch by itself, i, go on beside each other as far as the
measured step says: it takes max(g, i) + h min(g, i). With h = 0 that is the pipelined form, 1 / min(1/g, 1/i); with
h = 1 the serial one, g + i (J. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021,
section 3.4, whose what-if has h = 0). The input of a mini-batch of which the share x is cached takes
x R4 + (1 - x) R5, which is their D x / C + D (1 - x) / S for a cache that never evicts.

The change comes in another run, which differs from the run that was measured as runs do. So three errors add up in the
seconds of its step: that of the measure, that of the model, and how far runs differ.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, fields

from ...errors import DeclarationError
from ...protocol.measures.stalls import Measure
from ..ranges import next_run_error
from .parts import Estimate, Repeat, Stalls

WHAT_IF_ERROR = 0.1
"""How far off, relatively, the part of a step is that a change takes away. Nine cases of `benchmarks/bench_stalls.py`
missed a step by 10 % in the root mean square, where the change took away about as much as it left."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is asked: `cache`, the share of the data that is cached; all others are how many times as much there is:
    cores, the disk's and the links' bytes a second, the GPU's speed, examples in a mini-batch, parameter servers."""

    cache: float = 0.0
    cores: float = 1.0
    disk: float = 1.0
    link: float = 1.0
    gpu: float = 1.0
    batch: float = 1.0
    ps: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.cache <= 1:
            raise DeclarationError(f"cache={self.cache:g} is no share of the data", fix="Name one from 0 to 1.")
        for each in fields(self)[1:]:
            if not 0.01 <= getattr(self, each.name) <= 100:
                what = f"{each.name}={getattr(self, each.name):g} is no number of times"
                raise DeclarationError(what, fix="1 is as it was measured; name one from 0.01 to 100.")


@dataclass(frozen=True, slots=True)
class Prediction:
    """The step with a change, and the 90 % intervals of its figures."""

    change: Change
    seconds: Estimate
    """Of a step in another run on VMs like these."""
    times: Estimate
    """How many times as many examples a second the change brings in the mean over runs (1: as many)."""
    parts: Mapping[str, Estimate]
    """Of the step, in seconds: computing, serialisation, network, contention, waiting for input."""

    def __str__(self) -> str:
        asked = ", ".join(
            f"{each.name}={value:g}" for each in fields(Change)
            if (value := getattr(self.change, each.name)) != each.default
        )  # fmt: skip
        spread = f" ({self.times.low:.2f} to {self.times.high:.2f})" if math.isfinite(self.times.high) else ""
        low, high = (1000 * end for end in (self.seconds.low, self.seconds.high))
        between = f" ({low:.1f} to {high:.1f} in another run)" if math.isfinite(high) else ""
        step = f"{1000 * self.seconds.mean:.1f} ms a step{between}"
        return f"{asked}: {step}, {self.times.mean:.2f}{spread} times as fast" if asked else f"as measured: {step}"


def what_if(stalls: Stalls, change: Change) -> Prediction:
    """What the change would bring, for workers like these."""
    before = [seconds(each, Change()) for each in stalls.repeats]
    after = [seconds(each, change) for each in stalls.repeats]
    times = [change.batch * was / now if now else 1.0 for was, now in zip(before, after, strict=True)]
    step, faster = Estimate.of(after), Estimate.of(times)
    model = WHAT_IF_ERROR * abs(step.mean - statistics.fmean(before)) / step.mean if step.mean else 0.0
    measured = step.error / step.mean if step.mean else 0.0
    return Prediction(
        change, Estimate.about(step.mean, math.hypot(model, next_run_error(stalls.lasted, measured))),
        Estimate.about(faster.mean, math.hypot(faster.error / faster.mean, model) if faster.mean else 0.0),
        parts(stalls, change),
    )  # fmt: skip


def parts(stalls: Stalls, change: Change) -> dict[str, Estimate]:
    """What a step is made of with the change, in seconds: computing, serialisation, network, contention, and waiting
    for its mini-batch. Their means sum to the step's, those within the noise too."""
    told = [_parts(each, change) for each in stalls.repeats]
    return {name: Estimate.of([each[name] for each in told]) for name in told[0]}


def seconds(repeat: Repeat, change: Change) -> float:
    """A step with the change, by the measures of one repeat; without one, the measured step itself."""
    at = _possible(repeat)
    busy = sum(_busy(at, change).values())
    warm, cold = at["R4"], at["R5"]
    prepared = warm * change.batch / change.cores
    fetched = (1 - change.cache) * (cold - warm) * change.batch / change.disk
    unhidden = change.cache * _unhidden(at["S4"], at["S3"], warm) + (1 - change.cache) * _unhidden(
        at["S5"], at["S3"], cold
    )
    return _beside(max(busy, 0.0), prepared + fetched, unhidden)


def _possible(repeat: Repeat) -> dict[Measure, float]:
    """The measures, of which none is longer than one that has it in it: where it was, others were busy then."""
    at = repeat.seconds
    warm = min(at["R4"], at["S4"], at["S5"])
    return {**at, "S3": min(at["S3"], at["S4"], at["S5"]), "R4": warm, "R5": min(max(at["R5"], warm), at["S5"])}


def _busy(at: Mapping[Measure, float], change: Change) -> dict[str, float]:
    return {
        "computing": at["S0"] * change.batch / change.gpu, "serialisation": at["S1"] - at["S0"],
        "network": (at["S2"] - at["S1"]) / change.link, "contention": (at["S3"] - at["S2"]) / change.ps,
    }  # fmt: skip


def _parts(repeat: Repeat, change: Change) -> dict[str, float]:
    busy = _busy(_possible(repeat), change)
    return {**busy, "waiting for input": seconds(repeat, change) - sum(busy.values())}


def _beside(busy: float, input: float, unhidden: float) -> float:
    return max(busy, input) + unhidden * min(busy, input)


def _unhidden(step: float, busy: float, input: float) -> float:
    """Of what could go on beside the other, the share that did not, as the step says."""
    return (step - max(busy, input)) / min(busy, input) if min(busy, input) > 0 else 0.0
