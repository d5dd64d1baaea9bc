"""Stall measurements in plans: the effect of vCPUs, disks, links and caches on a step.

A part of a step (network, preparation, ...) counts as a stall only if it is statistically
significant. Otherwise its time counts as zero, so that noise never predicts a faster step. `what_if`
computes the effect of changes.

S0 to S5, R4 and R5 are measures: the seconds of a step, or of reading, with more and more parts
(`protocol.step_parts.Measure`). A stall is the difference of two of them (`parts.STALLS`).
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

_MAX_FACTOR = 100.0
"""Maximum factor of a change; its inverse is the minimum."""

WHAT_IF_ERROR = 0.1
"""Relative error of the part of a step that a change removes.

In nine cases of `benchmarks/bench_stalls.py`, the predicted duration of a step had a root mean
square error of 10 %. Their changes removed about half of the step.
"""


@dataclass(frozen=True, slots=True)
class VmResources:
    """The properties of a VM that determine stalls: vCPUs, and the disk's MiB per second."""

    vcpus: int
    disk: float


@dataclass(frozen=True, slots=True)
class StallMeasurement:
    """The stalls that a run measured on one kind of VM.

    Attributes
    ----------
    run
        The name of the run.
    stalls
        The measures of all repeats, and the stalls that follow from them.
    place
        The resources of these VMs.
    source
        Whether the VMs were real or emulated.
    workers, servers
        Number of workers and of parameter servers.
    wire
        Format of gradients on the network.
    parameters, gigaflops
        Of the model; 0 if they were not counted.
    """

    run: str
    stalls: Stalls
    place: VmResources
    source: Source
    workers: int = 1
    servers: int = 1
    wire: str = "fp32"
    parameters: int = 0
    gigaflops: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form, plain JSON values."""
        stalls = self.stalls
        return {
            "source": self.source,
            "vcpus": self.place.vcpus,
            "disk": self.place.disk,
            "workers": self.workers,
            "servers": self.servers,
            "wire": self.wire,
            "parameters": self.parameters,
            "gigaflops": self.gigaflops,
            "kind": stalls.kind,
            "names": [*stalls.workers],
            "examples": stalls.examples,
            "bytes": stalls.bytes,
            "lasted": stalls.lasted,
            "repeats": [dict(repeat.seconds) for repeat in stalls.repeats],
        }

    @classmethod
    def from_dict(cls, run: str, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote. Raises KeyError, TypeError or ValueError."""
        repeats = tuple(
            Repeat({name: _number(values_, name, LEAST_SECONDS) for name in MEASURES})
            for values_ in values["repeats"]
        )
        if not repeats:
            raise ValueError("the measurement of stalls has no repeats")
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
            VmResources(int(_number(values, "vcpus", 1)), _number(values, "disk", 1)),
            values["source"],
            int(_number(values, "workers", 1)),
            int(_number(values, "servers")),
            str(values["wire"]),
            int(_number(values, "parameters")),
            _number(values, "gigaflops"),
        )

    @property
    def input_wait_seconds(self) -> float:
        """Seconds for which a measured step waits for its mini-batch."""
        at = significant(self.stalls).seconds
        return at["S4" if self.stalls.fits else "S5"] - at["S3"]

    @property
    def input_seconds(self) -> float:
        """Seconds to read and prepare a mini-batch when nothing else runs."""
        return significant(self.stalls).seconds["R4" if self.stalls.fits else "R5"]

    @property
    def step_seconds(self) -> float:
        """Seconds of a measured step while all workers train, its wait for input included."""
        return significant(self.stalls).seconds["S3"] + self.input_wait_seconds

    def change(
        self, place: VmResources, requested: Change | None = None, examples: int = 0
    ) -> Change:
        """Return the `Change` from the measured VMs to VMs with other resources.

        `requested` adds further changes, `examples` is the size of mini-batches (0: unchanged).
        Data that fit into memory are cached after the first pass.
        """
        requested = requested or Change()
        if self.stalls.fits:
            requested = replace(requested, cache=1.0)
        batch = 1.0
        if examples and self.stalls.examples:
            batch = examples / self.stalls.examples
        found = replace(
            requested,
            cores=requested.cores * place.vcpus / self.place.vcpus,
            disk=requested.disk * place.disk / self.place.disk,
            batch=requested.batch * batch,
        )
        return replace(
            found,
            **{
                name: min(max(getattr(found, name), 1 / _MAX_FACTOR), _MAX_FACTOR)
                for name in _FACTORS
            },
        )

    def added_seconds(self, before: Change, after: Change) -> tuple[float, float]:
        """Return how much longer a step takes under `after` than under `before`.

        Returns seconds and their standard deviation.
        """
        mean = significant(self.stalls)
        more = seconds(mean, after) - seconds(mean, before)
        if not more:
            return 0.0, 0.0
        spread = Estimate.of(
            [seconds(repeat, after) - seconds(repeat, before) for repeat in self.stalls.repeats]
        ).error
        measured = spread if math.isfinite(spread) else abs(more)
        return more, math.hypot(measured, WHAT_IF_ERROR * more)

    def parts(self, change: Change) -> dict[str, Estimate]:
        """Return the parts of a step with the change."""
        return parts(self.stalls, change)


def _number(values: Mapping[Any, Any], name: str, least: float = 0.0) -> float:
    """Return a finite number. Raises KeyError, TypeError, or ValueError below `least`."""
    number = float(values[name])
    if not least <= number < math.inf:
        raise ValueError(f"{name} is {number:g}, but must be at least {least:g} and finite")
    return number


# The duration of a step if something were larger or faster: a model without fitted parameters.
#
# The step without its input, g = S3, and the input of a mini-batch, i, overlap by the amount that
# follows from the measured step: it takes max(g, i) + h min(g, i), where h is the share of the
# shorter one that does not overlap (`_unhidden`). With h = 0 that is the pipelined form,
# 1 / min(1/g, 1/i); with h = 1 the serial one, g + i (J. Mohan et al., "Analyzing and Mitigating
# Data Stalls in DNN Training", VLDB 2021, section 3.4, whose what-if has h = 0). The input of a
# mini-batch of which the share x is cached takes x R4 + (1 - x) R5. That is their D x / C +
# D (1 - x) / S, with the data size D and the rates C of the cache and S of the storage, for a cache
# that never evicts.
#
# The change is applied in another run, and runs vary. So the error of its step time combines three
# errors: of the measurement, of the model, and between runs.


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a step's conditions.

    `cache` is the share of cached data. All others are factors: cores, bytes per second of disk and
    links, the GPU's speed, examples in a mini-batch, parameter servers.
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
                f"cache must be a share of the data from 0 to 1, not {self.cache:g}"
            )
        for field in fields(self)[1:]:
            if not 0.01 <= getattr(self, field.name) <= 100:
                what = (
                    f"{field.name} must be a factor from 0.01 to 100, not "
                    f"{getattr(self, field.name):g}"
                )
                raise DeclarationError(what, fix="Use 1 for no change.")


_FACTORS = [field.name for field in fields(Change) if field.name != "cache"]


def significant(stalls: Stalls) -> Repeat:
    """Return the mean measures, with stalls that are not significant set to zero.

    The two measures whose difference is such a stall are made equal. A measure with an additional
    part is never shorter than the one without it, and no step is shorter than its input alone.
    """
    at: dict[Measure, float] = {
        name: statistics.fmean(repeat.seconds[name] for repeat in stalls.repeats)
        for name in MEASURES
    }
    sure = {part.name for part in stalls.stalled}
    for name, (before, after) in STALLS.items():
        if name in sure:
            at[after] = max(at[after], at[before])
        else:
            at[after] = at[before]
    at["R4"] = min(at["R4"], at["S4"])
    at["R5"] = min(max(at["R5"], at["R4"]), at["S5"])
    return Repeat(at)


_UNEVEN = 0.1
"""Share of a step above which a part that is not significant is mentioned to the user."""

_REMEDIES: Mapping[str, str] = {
    "serialisation": "with larger mini-batches there are fewer steps, and so less to send "
    "(--hparams batch_size=..., or batch_size in the cell), and --wire bf16 halves what is sent",
    "network": "workers nearer to the parameter servers (--zone with a single zone), fewer and "
    "faster GPUs, or --wire bf16, which halves what is sent",
    "contention": "one more parameter server shares the work (--ps {more})",
    "preparation": "a VM with more cores prepares examples faster (--machine-type), or the records "
    "could contain "
    "prepared examples",
    "fetch": "a faster disk (--disk 200GB:ssd), or fewer bytes for each example",
}


def advice(stalls: Stalls, servers: int = 1) -> str:
    """Return the remedy for stalls of workers with `servers` parameter servers.

    '' with too few repeats for a result.
    """
    if len(stalls.repeats) < LEAST_REPEATS:
        return ""
    found = [part for part in stalls.stalled if not _only_in_first_pass(part.name, stalls)]
    if found:
        first = found[0]
        remedy = _REMEDIES[first.name].format(more=servers + 1)
        return f"{first.share:.0%} of a step is {first.name}: {remedy}."
    only_first = [part for part in stalls.stalled if _only_in_first_pass(part.name, stalls)]
    if only_first:
        fits = f"the data ({stalls.bytes / 1e6:,.0f} MB) fit into the VM's memory"
        return f"Fetching costs time in the first pass only: {fits}. There are no other stalls."
    uneven = max(stalls.parts, key=lambda part: part.share)
    if uneven.share >= _UNEVEN:
        share = f"{uneven.share:.0%} of a step on average"
        often = f"{uneven.name} took {share}, but varied between repeats"
        return (
            f"No stall is larger than the noise, but {often}: use more --repeats, or longer "
            "--seconds."
        )
    share = f"{min(stalls.compute.share, 1):.0%} of a step is computing"
    faster = "A faster GPU"
    if stalls.kind.partition("/")[0] == "cpu":
        faster = "A GPU"
    return f"No stall is larger than the noise: {share}. {faster} would help."


def terms_words(which: str, terms: StallMeasurement, change: Change) -> str:
    """Describe the parts of a step on the worker `which` after a change; '' if there is no stall."""
    stalls = terms.stalls
    parts = terms.parts(change)
    sure = {_PARTS.get(part.name, part.name) for part in stalls.stalled}
    measured = terms.parts(terms.change(terms.place))
    moved = {
        name
        for name, part in parts.items()
        if not math.isclose(part.mean, measured[name].mean, rel_tol=1e-3)
    }
    shown = [
        name for name in parts if name in sure or name == "computing" or (sure and name in moved)
    ]
    if not sure:
        return ""
    listed = ", ".join(f"{name} {milliseconds(parts[name])}" for name in shown)
    hidden = [name for name in parts if name not in shown]
    noise = f" ({', '.join(hidden)}: within the noise)" if hidden else ""
    with_ = ""
    if "contention" in shown:
        with_ = f", {terms.workers} workers and --ps {terms.servers}"
    computed = ", and recomputed for this plan" if moved else ""
    return (
        f"A step on the {which}: {listed}{noise}. Measured by {terms.run} on {terms.place.vcpus} "
        f"vCPUs in {len(stalls.repeats)} repeats{with_}{computed}."
    )


_PARTS = {"preparation": "waiting for input", "fetch": "waiting for input"}


def milliseconds(seconds: Estimate) -> str:
    """Return seconds in milliseconds as text: `41.2 ms ± 0.8`."""
    spread = " ± ?"
    if seconds.half < 1e3:
        spread = f" ± {1000 * seconds.half:.1f}"
    return f"{round(1000 * seconds.mean, 1) + 0.0:.1f} ms{spread}"  # no -0.0


def _only_in_first_pass(name: str, stalls: Stalls) -> bool:
    """Return whether the part costs time in the first pass only: later the data are in memory."""
    return name == "fetch" and stalls.fits


@dataclass(frozen=True, slots=True)
class Prediction:
    """The step with a change, and the 90 % intervals of its figures."""

    change: Change
    seconds: Estimate
    """Seconds of a step in another run on such VMs."""
    times: Estimate
    """The speed-up in examples per second, averaged over runs: 2 is twice as fast."""
    parts: Mapping[str, Estimate]
    """The parts of the step in seconds: computing, serialisation, network, contention, input."""

    def __str__(self) -> str:
        values = {field: getattr(self.change, field.name) for field in fields(Change)}
        changed = ", ".join(
            f"{field.name}={value:g}" for field, value in values.items() if value != field.default
        )
        spread = ""
        if math.isfinite(self.times.high):
            spread = f" ({self.times.low:.2f} to {self.times.high:.2f})"
        low = 1000 * self.seconds.low
        high = 1000 * self.seconds.high
        between = ""
        if math.isfinite(high):
            between = f" ({low:.1f} to {high:.1f} in another run)"
        step = f"{1000 * self.seconds.mean:.1f} ms a step{between}"
        if changed:
            return f"{changed}: {step}, {self.times.mean:.2f}{spread} times as fast"
        return f"as measured: {step}"


def what_if(stalls: Stalls, change: Change) -> Prediction:
    """Predict a step of the measured workers after a change."""
    before = [seconds(repeat, Change()) for repeat in stalls.repeats]
    after = [seconds(repeat, change) for repeat in stalls.repeats]
    times = [
        change.batch * was / now if now else 1.0 for was, now in zip(before, after, strict=True)
    ]
    step = Estimate.of(after)
    faster = Estimate.of(times)
    model = 0.0
    measured = 0.0
    if step.mean:
        model = WHAT_IF_ERROR * abs(step.mean - statistics.fmean(before)) / step.mean
        measured = step.error / step.mean
    return Prediction(
        change,
        Estimate.about(step.mean, math.hypot(model, next_run_error(stalls.lasted, measured))),
        Estimate.about(
            faster.mean, math.hypot(faster.error / faster.mean, model) if faster.mean else 0.0
        ),
        parts(stalls, change),
    )


def parts(stalls: Stalls, change: Change) -> dict[str, Estimate]:
    """Return the parts of a step with the change, in seconds.

    They are computing, serialisation, network, contention and waiting for input. Their means,
    including those within the noise, sum to the step's.
    """
    repeats = [_parts(repeat, change) for repeat in stalls.repeats]
    return {name: Estimate.of([repeat[name] for repeat in repeats]) for name in repeats[0]}


def seconds(repeat: Repeat, change: Change) -> float:
    """Return the seconds of a step with the change, from the measures of one repeat."""
    at = _possible(repeat)
    busy = sum(_busy(at, change).values())
    warm = at["R4"]
    cold = at["R5"]
    prepared = warm * change.batch / change.cores
    fetched = (1 - change.cache) * (cold - warm) * change.batch / change.disk
    warm_part = change.cache * _unhidden(at["S4"], at["S3"], warm)
    cold_part = (1 - change.cache) * _unhidden(at["S5"], at["S3"], cold)
    unhidden = warm_part + cold_part
    return _overlapped(max(busy, 0.0), prepared + fetched, unhidden)


def _possible(repeat: Repeat) -> dict[Measure, float]:
    """Cap each measure at the measures that include it: any excess came from other load."""
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


def _overlapped(busy: float, input: float, unhidden: float) -> float:
    """Return the seconds of two parts that overlap, except for the share `unhidden`."""
    return max(busy, input) + unhidden * min(busy, input)


def _unhidden(step: float, busy: float, input: float) -> float:
    """Return h: the share of the shorter part that did not overlap in the measured step."""
    if min(busy, input) > 0:
        return (step - max(busy, input)) / min(busy, input)
    return 0.0
