"""Workloads: what a plan needs of a model for speed, traffic and parameter servers.

They are published ones, measured runs, or counted graphs. A workload has the seconds of a step on
the GPUs on which it was measured. For other GPUs `step` estimates them, from the line of its family
over floating-point operations, else from the ratio of the GPUs' peak speeds. Each estimate has an
error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...catalog import ICAC19, PriceList, accelerator, disk_speed, worker_entry
from ...errors import PlanError
from ...spec import Source
from ..stalls.terms import Change, StallMeasurement, VmResources
from . import throughput
from .fitting import BY_PEAK_ERROR, Draws
from .throughput import (
    PREPARATION_ERROR,
    SCALING,
    SERVICE_ERROR,
    SMALLER_ERROR,
    bytes_per_step,
    gpu_of,
    kind_of,
    service_by_size,
    vcpus_of,
)

PLACES: Mapping[Source, str] = {
    "own": "on Compute Engine",
    "emulated": "on the emulator",
    "published": "by others",
}

BEYOND_ERROR = 0.35
_MOST_ERROR = 1.0
"""Relative error of a step beyond the measured FLOPs of a mini-batch, and the largest one.

`BEYOND_ERROR` is per natural logarithm of the ratio to the measured FLOPs. Lines through half of
the networks miss the other half by 0.1 to 0.35.
"""

_PER_PARAMETER_AND_TOKEN = 6
"""FLOPs of a training step of a language model per parameter and token, with the backward pass.

The source is Kaplan et al., "Scaling laws for neural language models", 2020, arXiv 2001.08361,
section 2.1.

Kaplan et al. leave out the parameters of vocabulary and positional embeddings. The counted
parameters include them, so the FLOPs of a model with a large vocabulary come out too high.
"""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a step without the parameter server's part, and their source.

    `kind` is the kind of worker whose measured seconds they follow from; the draws of the workload
    hold the uncertainty of those. `error` is the relative standard deviation beyond that.
    """

    seconds: float
    error: float
    source: str
    kind: str = ""

    @property
    def measured(self) -> bool:
        """Whether the seconds were measured; False where they were computed."""
        return self.source.startswith("measured")


@dataclass(frozen=True, slots=True)
class Workload:
    """One model on one problem, with a mini-batch per worker.

    `compute` has estimates by kind of worker (`throughput.kind_of`), at `batch_size`. `service_seconds` is
    the time of a parameter server for a step (0: unknown; speeds then add up without a limit); n
    servers serve n**`scaling` times as many steps. `parameters`, and `gigaflops` of the training
    graph at a batch of one, are 0 where not counted. `join_seconds` is from a usable VM to its
    first step. With `from_first_step` hours and dollars are counted from the first step, without
    start-up, as in the papers.
    """

    name: str
    compute: Mapping[str, Estimate]
    service_seconds: float = 0.0
    scaling: float = SCALING
    batch_size: int = 0
    parameters: int = 0
    gigaflops: float = 0.0
    family: str = ""
    join_seconds: float = 0.0
    speed_error: float = 0.0
    """Relative error of a cluster's speed as a whole: workers and servers alike.

    The error of one GPU is in its estimate.
    """
    limit_error: float = 0.3
    """Relative error of the limit of one server."""
    scaling_error: float = 0.2
    """Additional error per doubling of the servers, the largest of `throughput.SCALING`."""
    limit_measured: bool = True
    """Whether the servers limited some run; False where their part follows from the parameters."""
    steps_error: float = 0.0
    """Relative error of the planned steps, where they are an estimate."""
    waits: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of a step that workers wait for their mini-batch, by observed kind of worker."""
    preparation: float = 0.0
    """vCPU-seconds to prepare a mini-batch; 0 where no step waited for it."""
    stalls: Mapping[str, StallMeasurement] = field(default_factory=dict[str, StallMeasurement])
    """Measured stalls by kind of worker."""
    asked: Change = field(default_factory=Change)
    """Differences from the measured conditions: a cache, links."""
    wire: str = "fp32"
    synchronous: bool = False
    """Whether workers take their steps together.

    Each step has a mini-batch of every worker except the `backup_workers` slowest.
    """
    backup_workers: int = 0
    prices: PriceList = field(default_factory=PriceList)
    from_first_step: bool = False
    source: Source | None = None
    """Where its seconds were measured; None: they follow from the counts of its graph."""
    guess: str = ""
    """Why intervals are a guess, without a measured error of speed or steps; else empty."""
    notes: tuple[str, ...] = ()
    draws: Draws | None = field(default=None, compare=False, repr=False)
    """Joint draws of seconds, the servers' part and scaling, from measured runs of your own.

    They replace `limit_error` and `scaling_error`.
    """

    @property
    def called(self) -> str:
        """The name, and where it was measured: `run-1, measured on the emulator`."""
        return (
            f"{self.name}, "
            f"{f'measured {PLACES[self.source]}' if self.source else 'counted, never measured'}"
        )

    @property
    def bytes_per_step(self) -> float:
        """Bytes that a worker and its parameter servers exchange in one step; 0 without a count."""
        return bytes_per_step(self.parameters, self.wire)

    @property
    def megabytes(self) -> float:
        """The size of the variables in a checkpoint (with one slot of the optimizer's), in MiB."""
        return 8 * self.parameters / 2**20

    def step(self, gpu: str, machine: str = "", disk: str = "") -> Estimate:
        """Return the seconds of a step on a GPU in a machine, with a `disk` as in `--disk`.

        An empty `machine` is the catalog's default. Raises PlanError without data for an estimate.
        """
        kind = kind_of(gpu, machine)
        if (terms := self.terms(kind)) and (measured := self._nearest(kind)):
            return self._by_terms(terms, measured, kind, disk)
        if estimate := self.compute.get(kind):
            return estimate
        return self._prepared(self._in_other_machine(kind) or self._unmeasured(gpu), kind)

    def terms(self, kind: str) -> StallMeasurement | None:
        """Return the stalls of a kind of worker, else of its GPU in another machine, or None."""
        like = [stall for stall in self.stalls if gpu_of(stall) == gpu_of(kind)]
        if like:
            return self.stalls[_nearest(like, kind)]
        return None

    def change(self, terms: StallMeasurement, kind: str, disk: str = "") -> Change:
        """Return the change from the conditions of `terms` to a kind of worker with a disk."""
        vcpus = vcpus_of(kind)
        return terms.change(
            VmResources(vcpus, disk_speed(disk, vcpus)), self.asked, self.batch_size
        )

    def _nearest(self, kind: str) -> str:
        """Return the measured kind of worker with the same GPU, or an empty string."""
        like = [candidate for candidate in self.compute if gpu_of(candidate) == gpu_of(kind)]
        if like:
            return _nearest(like, kind)
        return ""

    def _by_terms(self, terms: StallMeasurement, measured: str, kind: str, disk: str) -> Estimate:
        """Return the seconds on the `measured` kind, adjusted for another machine and disk."""
        estimate = self.compute[measured]
        before = terms.change(
            VmResources(vcpus_of(measured), terms.place.disk), None, self.batch_size
        )
        more, error = terms.added_seconds(before, self.change(terms, kind, disk))
        if not more:
            of = worker_entry(*measured.partition("/")[::2]).machine_type
            if kind == measured:
                return estimate
            return replace(estimate, source=f"{estimate.source}, in {of}")
        seconds = max(estimate.seconds + more, estimate.seconds / 10)
        off = math.hypot(estimate.error, error / seconds)
        source = f"computed from the stalls that {terms.run} measured"
        return Estimate(seconds, off, source, estimate.kind)

    def _in_other_machine(self, kind: str) -> Estimate | None:
        """Return the estimate of the same GPU in another machine: only waiting differs there."""
        like = [candidate for candidate in self.compute if gpu_of(candidate) == gpu_of(kind)]
        if not like:
            return None
        vcpus = vcpus_of(kind)
        nearest = _nearest(like, kind)
        estimate = self._without_waits(nearest)
        of = worker_entry(*nearest.partition("/")[::2]).machine_type
        if vcpus < vcpus_of(nearest) and not self.preparation:
            error = math.hypot(estimate.error, SMALLER_ERROR)
            return Estimate(estimate.seconds, error, f"taken from that in {of}", estimate.kind)
        return replace(estimate, source=f"{estimate.source}, in {of}")

    def _without_waits(self, kind: str) -> Estimate:
        estimate = self.compute[kind]
        return replace(
            estimate,
            seconds=max(estimate.seconds - self.waits.get(kind, 0.0), estimate.seconds / 10),
        )

    def _prepared(self, estimate: Estimate, kind: str) -> Estimate:
        """Return the estimate, at least as long as these vCPUs prepare a mini-batch."""
        if self.preparation:
            vcpus = vcpus_of(kind)
        else:
            vcpus = 1
        least = self.preparation / vcpus - self.service_seconds
        if least <= estimate.seconds:
            return estimate
        error = math.hypot(estimate.error, PREPARATION_ERROR)
        return Estimate(least, error, f"from what preparing a mini-batch takes, on {vcpus} vCPUs")

    def _unmeasured(self, gpu: str) -> Estimate:
        if self.gigaflops and (line := throughput.line(self.family, gpu)):
            seconds = max(
                line.seconds(self.gigaflops, self.batch_size or throughput.BATCH_SIZE), 1e-4
            )
            return Estimate(
                max(seconds - self.service_seconds, seconds / 10),
                line.error,
                f"from FLOPs, by the line of {self.family} networks",
            )
        if not (found := by_peak({kind: self._without_waits(kind) for kind in self.compute}, gpu)):
            measured = (
                ", ".join(dict.fromkeys(gpu_of(kind).upper() for kind in self.compute)) or "no GPU"
            )
            raise PlanError(
                f"The speed of {self.name} on {gpu.upper()} is unknown; measured: {measured}",
                fix="Train it there for a minute, then plan with that run: workload='RUN' on "
                f"{gpu}.",
            )
        return found

    def knows(self, gpu: str) -> bool:
        """Return whether `step` has an estimate."""
        try:
            self.step(gpu)
        except PlanError:
            return False
        return True

    def with_batch(self, batch_size: int) -> Workload:
        """Return the workload with another mini-batch.

        The seconds grow with the examples, except for the fixed part of the family's line.
        """
        if not self.batch_size or batch_size == self.batch_size:
            return self
        scaled = {
            kind: self._rebatched(gpu_of(kind), estimate, batch_size)
            for kind, estimate in self.compute.items()
        }
        times = batch_size / self.batch_size
        waits = {kind: seconds * times for kind, seconds in self.waits.items()}
        return replace(
            self,
            compute=scaled,
            batch_size=batch_size,
            waits=waits,
            preparation=self.preparation * times,
        )

    def _rebatched(self, gpu: str, estimate: Estimate, batch_size: int) -> Estimate:
        if self.gigaflops:
            line = throughput.line(self.family, gpu)
        else:
            line = None
        if line:
            fixed = line.fixed / line.seconds(self.gigaflops, self.batch_size)
        else:
            fixed = 0.0
        factor = fixed + (1 - fixed) * batch_size / self.batch_size
        error = math.hypot(estimate.error, 0.1 * abs(math.log(batch_size / self.batch_size)))
        return Estimate(
            estimate.seconds * factor, error, f"from a batch of {self.batch_size}", estimate.kind
        )


def _nearest(kinds: Iterable[str], kind: str) -> str:
    """Return the one of the `kinds` whose vCPUs are closest to those of `kind`."""
    vcpus = vcpus_of(kind)
    return min(kinds, key=lambda candidate: abs(math.log(vcpus_of(candidate) / vcpus)))


def by_peak(estimates: Mapping[str, Estimate], gpu: str) -> Estimate | None:
    """Return the seconds of a step on a GPU from the GPU with the nearest peak speed.

    Return None where peaks are unknown.
    """
    peak = accelerator(gpu_of(gpu)).teraflops
    peaks = {kind: accelerator(gpu_of(kind)).teraflops for kind in estimates}
    near = [kind for kind in estimates if peaks[kind] and peak]
    if not near:
        return None
    nearest = min(near, key=lambda kind: abs(math.log(peaks[kind] / peak)))
    seconds = estimates[nearest].seconds * peaks[nearest] / peak
    error = math.hypot(estimates[nearest].error, BY_PEAK_ERROR)
    return Estimate(
        seconds, error, f"from {gpu_of(nearest).upper()}'s, by peak TFLOPS", estimates[nearest].kind
    )


def published(name: str) -> Workload | None:
    """Return the published workload with that name and the prices of its time, or None."""
    return PUBLISHED.get(name.strip().lower())


def _published(
    name: str,
    seconds: tuple[float, float, float],
    service: float,
    scaling: float,
    error: float,
    gigaflops: float,
    parameters: int,
    family: str,
    join_seconds: float,
    source: str,
) -> Workload:
    return Workload(
        name=name,
        service_seconds=service,
        scaling=scaling,
        batch_size=throughput.BATCH_SIZE,
        parameters=parameters,
        compute={
            gpu: Estimate(step_seconds, 0.0, f"measured, {source}")
            for gpu, step_seconds in zip(("k80", "p100", "v100"), seconds, strict=True)
        },
        gigaflops=gigaflops,
        family=family,
        join_seconds=join_seconds,
        prices=ICAC19,
        source="published",
        from_first_step=True,
        speed_error=error,
        limit_error=0.05,
        scaling_error=0.1,
    )


# ICAC'19's constants are fitted to the 39 durations of its tables (K80, P100, V100, one and two
# parameter servers). CM-DARE's are fitted to its cluster speeds by size (12 to 24 cells a model),
# and the V100's to its single speed. They have six and four parameters. `speeds.fitting` computes
# them and the errors, and a test compares them. The join time is CM-DARE's cold start of a
# replacement.
_ICAC = "ICAC'19"

_CMDARE = "CM-DARE"

PUBLISHED: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        _published(
            "icac19/resnet-32",
            (0.1949, 0.0633, 0.0508),
            0.02247,
            0.832,
            0.032,
            1.659,
            1_857_722,
            "resnet",
            78.7,
            _ICAC,
        ),
        _published(
            "cmdare/resnet-15",
            (0.0942, 0.0361, 0.0269),
            0.00964,
            1.141,
            0.037,
            0.631,
            693_818,
            "resnet",
            75.6,
            _CMDARE,
        ),
        _published(
            "cmdare/resnet-32",
            (0.1972, 0.0655, 0.0427),
            0.02135,
            0.901,
            0.0415,
            1.659,
            1_857_722,
            "resnet",
            78.7,
            _CMDARE,
        ),
        _published(
            "cmdare/shake-shake-small",
            (0.3592, 0.1156, 0.0790),
            0.03461,
            0.325,
            0.030,
            2.587,
            2_926_986,
            "shake-shake",
            89.1,
            _CMDARE,
        ),
        _published(
            "cmdare/shake-shake-big",
            (1.3245, 0.3565, 0.3001),
            0.15862,
            0.043,
            0.041,
            22.865,
            26_204_362,
            "shake-shake",
            90.8,
            _CMDARE,
        ),
    )
}


# A workload without any run, from the counts of its graph: parameters, and FLOPs of a training
# step.
#
# The seconds of a step on the GPUs of CM-DARE follow from the line of the model's family over
# FLOPs, or from one line for all measured networks if its family was not measured. Those on other
# GPUs follow from peak speeds (`workloads.by_peak`). Beyond the measured FLOPs a line is less
# accurate: drawn through half of the networks it misses those of the other half by up to twice the
# distance-dependent error (`BEYOND_ERROR`). The FLOPs are those of a mini-batch, because the
# seconds of a step follow from them (`throughput.Line`).


def counted_workload(name: str, counts: Mapping[str, float], family: str = "") -> Workload:
    """Return the workload of a model from the counts of a check.

    `counts` has `gigaflops`, `parameters` and `batch_size`. Where the batch size counts `tokens`,
    whose texts have no fixed shape, FLOPs follow from the parameters, embeddings included.
    Raises PlanError where FLOPs could not be counted otherwise.
    """
    gigaflops = counts.get("gigaflops", 0.0)
    parameters = int(counts.get("parameters", 0))
    estimated = gigaflops <= 0 and bool(counts.get("tokens"))
    if estimated:
        gigaflops = _PER_PARAMETER_AND_TOKEN * parameters / 1e9
    batch = int(counts.get("batch_size", 0)) or throughput.BATCH_SIZE
    if gigaflops <= 0:
        raise PlanError(
            f"The FLOPs of {name} cannot be counted: the shapes of its examples are not fixed",
            fix="Train it for a minute, then plan with that run.",
        )
    kind = family or throughput.ALL
    least, most = throughput.extent(kind)
    # The networks were measured with mini-batches of 128 examples, and a line takes other sizes in
    # proportion.
    like_measured = gigaflops * batch / throughput.BATCH_SIZE
    beyond = max(least / like_measured, like_measured / most, 1.0)
    if family:
        whose = f"the line of {family} networks"
    else:
        whose = "one line for all networks that CM-DARE measured"
    lines = {gpu: line for gpu in throughput.GPUS if (line := throughput.line(kind, gpu))}
    seconds = {gpu: line.seconds(gigaflops, batch) for gpu, line in lines.items()}
    service = min(service_by_size(parameters), min(seconds.values()) / 2)
    called = f"{name[:1].upper()}{name[1:]}"
    vocabulary = int(counts.get("vocabulary", 0))
    notes = [
        f"{called} was never measured on Compute Engine: {gigaflops:.3g} GFLOPs for an example, "
        f"{parameters:,} "
        "parameters, counted."
    ]
    if estimated:
        notes = [
            f"{called} was never measured on Compute Engine: {parameters:,} parameters, counted, "
            f"and {gigaflops:.3g} "
            "GFLOPs for a token, taken as 6 FLOPs for each parameter. Kaplan et al. (2020) count "
            "6 for each parameter outside of the embeddings, so with a large vocabulary this is "
            "too high."
        ]
    if vocabulary:
        notes.append(
            f"Its vocabulary is made with its data: one of {vocabulary:,} entries stands in, the "
            "size that the problem declares."
        )
    guess = "" if family else "its family was never measured"
    if beyond > 1:
        guess = (
            f"the FLOPs of its mini-batch are beyond those that were measured, {least:.2g} to "
            f"{most:.2g} G for each of "
            f"{throughput.BATCH_SIZE} examples"
        )
    return Workload(
        name=name,
        compute={
            gpu: Estimate(
                seconds[gpu] - service, _error(line.error, beyond), f"from FLOPs, by {whose}"
            )
            for gpu, line in lines.items()
        },
        service_seconds=service,
        batch_size=batch,
        parameters=parameters,
        limit_error=SERVICE_ERROR,
        limit_measured=False,
        guess=guess,
        notes=tuple(notes),
    )


def _error(error: float, beyond: float) -> float:
    return min(math.hypot(error, BEYOND_ERROR * math.log(beyond)), _MOST_ERROR)
