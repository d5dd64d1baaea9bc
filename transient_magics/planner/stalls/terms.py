"""What a measure of stalls tells plans: what other vCPUs, another disk, a faster link or a cache
make of a step.

Only what stands out of the noise is a stall; what does not is as if it were not there. So a plan
stays as it is where nothing was measured, and nothing makes a step shorter that waits for nothing.
What changes is computed by `what_if`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from ...errors import DeclarationError
from ...protocol.step_parts import MEASURES, Measure
from ...spec import Source
from ..ranges import next_run_error
from .parts import LEAST_REPEATS, LEAST_SECONDS, STALLS, Estimate, Repeat, Stalls

_MOST = 100.0

WHAT_IF_ERROR = 0.1
"""How far off, relatively, the part of a step is that a change takes away. Nine cases of
`benchmarks/bench_stalls.py` missed a step by 10 % in the root mean square, where the change took
away about as much as it left.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """What of a VM decides how long its steps wait: its vCPUs, and what its disk reads in a second."""

    vcpus: int
    disk: float


@dataclass(frozen=True, slots=True)
class Terms:
    """The result of the measurement `run` for one kind of VM, at `place`, of one `source`.

    `workers` took part, with so many `servers`; numbers crossed as `wire` says. `parameters` and
    `gigaflops` of the model: 0 where not counted.
    """

    run: str
    stalls: Stalls
    place: Place
    source: Source
    workers: int = 1
    servers: int = 1
    wire: str = "fp32"
    parameters: int = 0
    gigaflops: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what is kept of it."""
        told = self.stalls
        return {
            "source": self.source,
            "vcpus": self.place.vcpus,
            "disk": self.place.disk,
            "workers": self.workers,
            "servers": self.servers,
            "wire": self.wire,
            "parameters": self.parameters,
            "gigaflops": self.gigaflops,
            "kind": told.kind,
            "names": [*told.workers],
            "examples": told.examples,
            "bytes": told.bytes,
            "lasted": told.lasted,
            "repeats": [dict(repeat.seconds) for repeat in told.repeats],
        }

    @classmethod
    def from_dict(cls, run: str, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote. Raises KeyError, TypeError or ValueError."""
        repeats = tuple(
            Repeat({name: _number(each, name, LEAST_SECONDS) for name in MEASURES})
            for each in values["repeats"]
        )
        if not repeats:
            raise ValueError("a measure of stalls without a repeat")
        stalls = Stalls(
            values["kind"],
            tuple(values["names"]),
            repeats,
            int(_number(values, "examples")),
            int(_number(values, "bytes")),
            _number({"lasted": 0.0, **values}, "lasted"),
        )
        return cls(
            run,
            stalls,
            Place(int(_number(values, "vcpus", 1)), _number(values, "disk", 1)),
            values["source"],
            int(_number(values, "workers", 1)),
            int(_number(values, "servers")),
            str(values["wire"]),
            int(_number(values, "parameters")),
            _number(values, "gigaflops"),
        )

    @property
    def waited(self) -> float:
        """The seconds for which a step as measured waits for its mini-batch."""
        at = claimed(self.stalls).seconds
        return at["S4" if self.stalls.fits else "S5"] - at["S3"]

    @property
    def input(self) -> float:
        """The seconds that a mini-batch takes by itself."""
        return claimed(self.stalls).seconds["R4" if self.stalls.fits else "R5"]

    @property
    def step(self) -> float:
        """The seconds of a step as measured, beside those of the other workers."""
        return claimed(self.stalls).seconds["S3"] + self.waited

    def change(self, place: Place, asked: Change | None = None, examples: int = 0) -> Change:
        """From what was measured to that place, with what else is `asked`, and mini-batches of so
        many `examples`. Data that fit into memory are cached after the first pass.
        """
        asked = replace(asked or Change(), **({"cache": 1.0} if self.stalls.fits else {}))
        if examples and self.stalls.examples:
            batch = examples / self.stalls.examples
        else:
            batch = 1.0
        found = replace(
            asked,
            cores=asked.cores * place.vcpus / self.place.vcpus,
            disk=asked.disk * place.disk / self.place.disk,
            batch=asked.batch * batch,
        )
        return replace(
            found, **{name: min(max(getattr(found, name), 1 / _MOST), _MOST) for name in _TIMES}
        )

    def longer(self, before: Change, after: Change) -> tuple[float, float]:
        """By how many seconds a step is longer after than before, and the standard deviation of
        that.
        """
        known = claimed(self.stalls)
        more = seconds(known, after) - seconds(known, before)
        if not more:
            return 0.0, 0.0
        spread = Estimate.of(
            [seconds(repeat, after) - seconds(repeat, before) for repeat in self.stalls.repeats]
        ).error
        if math.isfinite(spread):
            measured = spread
        else:
            measured = abs(more)
        return more, math.hypot(measured, WHAT_IF_ERROR * more)

    def parts(self, change: Change) -> dict[str, Estimate]:
        """What a step is made of with the change (`what_if.parts`)."""
        return parts(self.stalls, change)


def _number(values: Mapping[Any, Any], name: str, least: float = 0.0) -> float:
    """Return that finite number. Raises KeyError, TypeError, or ValueError for a number below
    `least`.
    """
    number = float(values[name])
    if not least <= number < math.inf:
        raise ValueError(f"{name} is {number:g}, and has to be at least {least:g} and finite")
    return number


# What a step would take if something were bigger or faster: a model with nothing fitted but what
# was measured.
#
# The step without its input, g = S3, and the input of a mini-batch by itself, i, go on beside each
# other as far as the measured step says: it takes max(g, i) + h min(g, i). With h = 0 that is the
# pipelined form, 1 / min(1/g, 1/i); with h = 1 the serial one, g + i (J. Mohan et al., "Analyzing
# and Mitigating Data Stalls in DNN Training", VLDB 2021, section 3.4, whose what-if has h = 0). The
# input of a mini-batch of which the share x is cached takes x R4 + (1 - x) R5, which is their D x /
# C + D (1 - x) / S for a cache that never evicts.
#
# The change comes in another run, which differs from the run that was measured as runs do. So three
# errors add up in the seconds of its step: that of the measure, that of the model, and how far runs
# differ.


@dataclass(frozen=True, slots=True)
class Change:
    """What is asked: `cache`, the share of the data that is cached; all others are how many times
    as much there is: cores, the disk's and the links' bytes a second, the GPU's speed, examples in
    a mini-batch, parameter servers.
    """

    cache: float = 0.0
    cores: float = 1.0
    disk: float = 1.0
    link: float = 1.0
    gpu: float = 1.0
    batch: float = 1.0
    ps: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.cache <= 1:
            raise DeclarationError(
                f"cache={self.cache:g} is no share of the data", fix="Name one from 0 to 1."
            )
        for field in fields(self)[1:]:
            if not 0.01 <= getattr(self, field.name) <= 100:
                what = f"{field.name}={getattr(self, field.name):g} is no number of times"
                raise DeclarationError(
                    what, fix="1 is as it was measured; name one from 0.01 to 100."
                )


_TIMES = [each.name for each in fields(Change) if each.name != "cache"]


def claimed(stalls: Stalls) -> Repeat:
    """The measures in the mean, as if what is within the noise were not there: of a stall that is
    not claimed both measures are the same, no measure with one more part is shorter, and no step is
    shorter than its input alone.
    """
    at: dict[Measure, float] = {
        name: statistics.fmean(repeat.seconds[name] for repeat in stalls.repeats)
        for name in MEASURES
    }
    sure = {each.name for each in stalls.stalled}
    for name, (before, after) in STALLS.items():
        if name in sure:
            at[after] = max(at[after], at[before])
        else:
            at[after] = at[before]
    at["R4"] = min(at["R4"], at["S4"])
    at["R5"] = min(max(at["R5"], at["R4"]), at["S5"])
    return Repeat(at)


_UNEVEN = 0.1
"""Of a step: a part within the noise that takes more in the mean may be a stall all the same."""

_MENDS: Mapping[str, str] = {
    "serialisation": "bigger mini-batches have fewer steps to send (--hparams batch_size=..., or batch_size in the "
    "cell), and --wire bf16 halves what is sent",
    "network": "workers nearer to the parameter servers (--zone with a single zone), fewer and faster GPUs, or --wire "
    "bf16, which halves what is sent",
    "contention": "one more parameter server shares the work (--ps {more})",
    "preparation": "more cores prepare more (--machine-type), or the records hold examples that are prepared already",
    "fetch": "a faster disk (--disk 200GB:ssd), or fewer bytes for each example",
}


def advice(stalls: Stalls, servers: int = 1) -> str:
    """What to do about the stalls of these workers, which have so many parameter `servers`; empty
    where there are too few repeats to claim anything.
    """
    if len(stalls.repeats) < LEAST_REPEATS:
        return ""
    found = [each for each in stalls.stalled if not _once(each.name, stalls)]
    if found:
        first = found[0]
        mend = _MENDS[first.name].format(more=servers + 1)
        return f"{first.share:.0%} of a step is {first.name}: {mend}."
    once = [each for each in stalls.stalled if _once(each.name, stalls)]
    if once:
        fits = f"the data ({stalls.bytes / 1e6:,.0f} MB) fit into the VM's memory"
        return f"Fetching is paid in the first pass only: {fits}. There is no other stall."
    uneven = max(stalls.parts, key=lambda each: each.share)
    if uneven.share >= _UNEVEN:
        often = f"{uneven.name} took {uneven.share:.0%} of a step in the mean, and not evenly"
        return f"No stall stands out of the noise, but {often}: take more --repeats, or longer --seconds."
    share = f"{min(stalls.compute.share, 1):.0%} of a step is computing"
    if stalls.kind.partition("/")[0] == "cpu":
        faster = "A GPU"
    else:
        faster = "A faster GPU"
    return f"No stall stands out of the noise: {share}. {faster} is what would help."


def terms_words(which: str, terms: Terms, change: Change) -> str:
    """What a step on `which` worker is made of with the change, each part with its interval; empty
    where the measure claims no stall, and nothing is changed.
    """
    told = terms.stalls
    parts = terms.parts(change)
    sure = {_PARTS.get(each.name, each.name) for each in told.stalled}
    after = terms.parts(terms.change(terms.place))
    moved = {
        name
        for name, each in parts.items()
        if not math.isclose(each.mean, after[name].mean, rel_tol=1e-3)
    }
    shown = [
        name for name in parts if name in sure or name == "computing" or (sure and name in moved)
    ]
    if not sure:
        return ""
    said = ", ".join(f"{name} {milliseconds(parts[name])}" for name in shown)
    hidden = [name for name in parts if name not in shown]
    if hidden:
        noise = f" ({', '.join(hidden)}: within the noise)"
    else:
        noise = ""
    if "contention" not in shown:
        with_ = ""
    else:
        with_ = f", {terms.workers} workers and --ps {terms.servers}"
    computed = "" if not moved else ", computed for these"
    return (
        f"A step on the {which}: {said}{noise}, as {terms.run} measured on {terms.place.vcpus} vCPUs in "
        f"{len(told.repeats)} repeats{with_}{computed}."
    )


_PARTS = {"preparation": "waiting for input", "fetch": "waiting for input"}


def milliseconds(seconds: Estimate) -> str:
    """As `41.2 ms ± 0.8`."""
    if seconds.half < 1e3:
        spread = f" ± {1000 * seconds.half:.1f}"
    else:
        spread = " ± ?"
    return f"{round(1000 * seconds.mean, 1) + 0.0:.1f} ms{spread}"  # no -0.0


def _once(name: str, stalls: Stalls) -> bool:
    return name == "fetch" and stalls.fits


@dataclass(frozen=True, slots=True)
class Prediction:
    """The step with a change, and the 90 % intervals of its figures."""

    change: Change
    seconds: Estimate
    """Of a step in another run on VMs like these."""
    times: Estimate
    """How many times as many examples a second the change brings in the mean over runs (1: as
    many).
    """
    parts: Mapping[str, Estimate]
    """Of the step, in seconds: computing, serialisation, network, contention, waiting for input."""

    def __str__(self) -> str:
        asked = ", ".join(
            f"{field.name}={value:g}"
            for field in fields(Change)
            if (value := getattr(self.change, field.name)) != field.default
        )
        if math.isfinite(self.times.high):
            spread = f" ({self.times.low:.2f} to {self.times.high:.2f})"
        else:
            spread = ""
        low, high = (1000 * end for end in (self.seconds.low, self.seconds.high))
        if math.isfinite(high):
            between = f" ({low:.1f} to {high:.1f} in another run)"
        else:
            between = ""
        step = f"{1000 * self.seconds.mean:.1f} ms a step{between}"
        if asked:
            return f"{asked}: {step}, {self.times.mean:.2f}{spread} times as fast"
        return f"as measured: {step}"


def what_if(stalls: Stalls, change: Change) -> Prediction:
    """What the change would bring, for workers like these."""
    before = [seconds(repeat, Change()) for repeat in stalls.repeats]
    after = [seconds(each, change) for each in stalls.repeats]
    times = [
        change.batch * was / now if now else 1.0 for was, now in zip(before, after, strict=True)
    ]
    step = Estimate.of(after)
    faster = Estimate.of(times)
    if step.mean:
        model = WHAT_IF_ERROR * abs(step.mean - statistics.fmean(before)) / step.mean
    else:
        model = 0.0
    if step.mean:
        measured = step.error / step.mean
    else:
        measured = 0.0
    return Prediction(
        change,
        Estimate.about(step.mean, math.hypot(model, next_run_error(stalls.lasted, measured))),
        Estimate.about(
            faster.mean, math.hypot(faster.error / faster.mean, model) if faster.mean else 0.0
        ),
        parts(stalls, change),
    )


def parts(stalls: Stalls, change: Change) -> dict[str, Estimate]:
    """What a step is made of with the change, in seconds: computing, serialisation, network,
    contention, and waiting for its mini-batch. Their means sum to the step's, those within the
    noise too.
    """
    told = [_parts(repeat, change) for repeat in stalls.repeats]
    return {name: Estimate.of([each[name] for each in told]) for name in told[0]}


def seconds(repeat: Repeat, change: Change) -> float:
    """A step with the change, by the measures of one repeat; without one, the measured step itself."""
    at = _possible(repeat)
    busy = sum(_busy(at, change).values())
    warm = at["R4"]
    cold = at["R5"]
    prepared = warm * change.batch / change.cores
    fetched = (1 - change.cache) * (cold - warm) * change.batch / change.disk
    unhidden = change.cache * _unhidden(at["S4"], at["S3"], warm) + (1 - change.cache) * _unhidden(
        at["S5"], at["S3"], cold
    )
    return _beside(max(busy, 0.0), prepared + fetched, unhidden)


def _possible(repeat: Repeat) -> dict[Measure, float]:
    """The measures, of which none is longer than one that has it in it: where it was, others were
    busy then.
    """
    at = repeat.seconds
    warm = min(at["R4"], at["S4"], at["S5"])
    return {
        **at,
        "S3": min(at["S3"], at["S4"], at["S5"]),
        "R4": warm,
        "R5": min(max(at["R5"], warm), at["S5"]),
    }


def _busy(at: Mapping[Measure, float], change: Change) -> dict[str, float]:
    return {
        "computing": at["S0"] * change.batch / change.gpu,
        "serialisation": at["S1"] - at["S0"],
        "network": (at["S2"] - at["S1"]) / change.link,
        "contention": (at["S3"] - at["S2"]) / change.ps,
    }


def _parts(repeat: Repeat, change: Change) -> dict[str, float]:
    busy = _busy(_possible(repeat), change)
    return {**busy, "waiting for input": seconds(repeat, change) - sum(busy.values())}


def _beside(busy: float, input: float, unhidden: float) -> float:
    return max(busy, input) + unhidden * min(busy, input)


def _unhidden(step: float, busy: float, input: float) -> float:
    """Of what could go on beside the other, the share that did not, as the step says."""
    if min(busy, input) > 0:
        return (step - max(busy, input)) / min(busy, input)
    return 0.0
