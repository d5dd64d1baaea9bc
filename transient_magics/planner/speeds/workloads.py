"""What is trained, as far as speed, traffic and parameter servers go: published workloads, and the
shape of your own.

A workload knows the seconds of a step on the GPUs on which it was measured. For another one `step`
estimates: from its family's line over floating-point operations, else from the ratio of the GPUs'
peak speeds. Each estimate says how far off such estimates are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...catalog import ICAC19, PriceList, accelerator, disk_speed, worker_entry
from ...errors import PlanError
from ...spec import Source
from ..stalls.terms import Change, Place, Terms
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
"""How far off, relatively, a step may be for each natural logarithm of how many times the FLOPs of
its mini-batch are beyond what was measured: 0.1 to 0.35 where lines through half of the networks
were asked for the rest. The second value is the largest error.
"""

_PER_PARAMETER_AND_TOKEN = 6
"""FLOPs of a training step of a language model for each parameter and token, its backward pass
included (Kaplan et al., "Scaling laws for neural language models", 2020, arXiv 2001.08361, section
2.1).

Kaplan et al. leave out the parameters of vocabulary and positional embeddings. They are in the
counted parameters, so the FLOPs of a model with a large vocabulary come out too high.
"""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a step without the parameter server's part, and their source.

    `kind`: the kind of worker from whose measured seconds they follow, which are uncertain as the
    workload's draws are; `error`: their relative standard deviation beyond that.
    """

    seconds: float
    error: float
    source: str
    kind: str = ""

    @property
    def measured(self) -> bool:
        """False where it was computed from something else."""
        return self.source.startswith("measured")


@dataclass(frozen=True, slots=True)
class Workload:
    """One model on one problem, with a mini-batch per worker.

    `compute`: estimates by kind of worker (`preparation`), at `batch_size`. `service_seconds`: what
    a parameter server needs for a step (0: not known; speeds then add up without a limit); n
    servers do n**`scaling` times as much. `parameters`, and `gigaflops` of the training graph at a
    batch of one: 0 where not counted. `join_seconds`: from a usable VM to its first step.
    `from_first_step`: hours and dollars are counted from the first step, without start-up, as the
    papers do.
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
    """How far off, relatively, the speed of a cluster may be as a whole: workers and servers alike.
    What is not known of one GPU is in its estimate.
    """
    limit_error: float = 0.3
    """How far off, relatively, the limit of one server may be."""
    scaling_error: float = 0.2
    """How much more that is each time the servers double: `speed.SCALING` is off by up to so much.
    """
    limit_measured: bool = True
    """False where the servers' part was computed from the parameters, because no run was held back
    by it.
    """
    steps_error: float = 0.0
    """How far off, relatively, the steps may be that it is planned with, where they are an estimate
    themselves.
    """
    waits: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of a step for which workers of a kind wait for their mini-batch, of those that were
    seen to.
    """
    preparation: float = 0.0
    """vCPU-seconds that preparing a mini-batch takes; 0 where no step was seen to wait for it."""
    stalls: Mapping[str, Terms] = field(default_factory=dict[str, Terms])
    """By kind of worker, what a measure of its stalls said."""
    asked: Change = field(default_factory=Change)
    """What is to be another than it was measured with: a cache, links."""
    wire: str = "fp32"
    synchronous: bool = False
    """Whether its steps are taken together, each with a mini-batch of every worker but the
    `backup_workers` slowest.
    """
    backup_workers: int = 0
    prices: PriceList = field(default_factory=PriceList)
    from_first_step: bool = False
    source: Source | None = None
    """Where its seconds were measured; None: they were not, but follow from what was counted of its
    graph.
    """
    guess: str = ""
    """Why nothing measured tells how far off speed or steps are, so that intervals are a guess;
    else empty.
    """
    notes: tuple[str, ...] = ()
    draws: Draws | None = field(default=None, compare=False, repr=False)
    """Of seconds, the servers' part and scaling together, where runs of one's own were measured:
    their errors, and not `limit_error` and `scaling_error`.
    """

    @property
    def called(self) -> str:
        """The name, and where it was measured: `run-1, measured on the emulator`."""
        return f"{self.name}, {f'measured {PLACES[self.source]}' if self.source else 'counted, never measured'}"

    @property
    def bytes_per_step(self) -> float:
        """What a worker and its parameter servers exchange in one step; 0 where the parameters were
        not counted.
        """
        return bytes_per_step(self.parameters, self.wire)

    @property
    def megabytes(self) -> float:
        """The size of the variables, as checkpoints have them (with one slot of the optimizer's)."""
        return 8 * self.parameters / 2**20

    def step(self, gpu: str, machine: str = "", disk: str = "") -> Estimate:
        """The seconds of a step on a GPU in a machine (empty: the catalog's) with a `disk` (as
        `--disk` says it).

        Raises PlanError where nothing is known to estimate them from.
        """
        kind = kind_of(gpu, machine)
        if (terms := self.terms(kind)) and (measured := self._nearest(kind)):
            return self._by_terms(terms, measured, kind, disk)
        if known := self.compute.get(kind):
            return known
        return self._prepared(self._in_other_machine(kind) or self._unmeasured(gpu), kind)

    def terms(self, kind: str) -> Terms | None:
        """What was measured of stalls on that kind of worker, else on its GPU in another machine;
        None: nothing.
        """
        like = [stall for stall in self.stalls if gpu_of(stall) == gpu_of(kind)]
        if like:
            return self.stalls[_nearest(like, kind)]
        return None

    def change(self, terms: Terms, kind: str, disk: str = "") -> Change:
        """From what `terms` were measured with to a worker of that kind with that disk."""
        vcpus = vcpus_of(kind)
        return terms.change(Place(vcpus, disk_speed(disk, vcpus)), self.asked, self.batch_size)

    def _nearest(self, kind: str) -> str:
        """The kind of worker with the same GPU whose steps are known, empty for none."""
        like = [each for each in self.compute if gpu_of(each) == gpu_of(kind)]
        if like:
            return _nearest(like, kind)
        return ""

    def _by_terms(self, terms: Terms, measured: str, kind: str, disk: str) -> Estimate:
        """As long as it is known to be on the `measured` kind, and what another machine and disk
        change of its stalls.
        """
        known = self.compute[measured]
        before = terms.change(Place(vcpus_of(measured), terms.place.disk), None, self.batch_size)
        more, error = terms.longer(before, self.change(terms, kind, disk))
        if not more:
            of = worker_entry(*measured.partition("/")[::2]).machine_type
            if kind == measured:
                return known
            return replace(known, source=f"{known.source}, in {of}")
        seconds = max(known.seconds + more, known.seconds / 10)
        off = math.hypot(known.error, error / seconds)
        source = f"computed from the stalls that {terms.run} measured"
        return Estimate(seconds, off, source, known.kind)

    def _in_other_machine(self, kind: str) -> Estimate | None:
        """From the same GPU in another machine: what of its step is not waiting is the same there."""
        like = [each for each in self.compute if gpu_of(each) == gpu_of(kind)]
        if not like:
            return None
        vcpus = vcpus_of(kind)
        nearest = _nearest(like, kind)
        known = self._without_waits(nearest)
        of = worker_entry(*nearest.partition("/")[::2]).machine_type
        if vcpus < vcpus_of(nearest) and not self.preparation:
            error = math.hypot(known.error, SMALLER_ERROR)
            return Estimate(known.seconds, error, f"taken from that in {of}", known.kind)
        return replace(known, source=f"{known.source}, in {of}")

    def _without_waits(self, kind: str) -> Estimate:
        known = self.compute[kind]
        return replace(
            known, seconds=max(known.seconds - self.waits.get(kind, 0.0), known.seconds / 10)
        )

    def _prepared(self, estimate: Estimate, kind: str) -> Estimate:
        """The same, no shorter than the preparation of a mini-batch takes on these vCPUs."""
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
                f"How fast {self.name} is on {gpu.upper()} is not known, measured were {measured}",
                fix=f"Train it there for a minute, then plan with that run: workload='RUN' on {gpu}.",
            )
        return found

    def knows(self, gpu: str) -> bool:
        """Whether `step` has an answer."""
        try:
            self.step(gpu)
        except PlanError:
            return False
        return True

    def with_batch(self, batch_size: int) -> Workload:
        """The same with another mini-batch: what a step does per example grows with it, the
        family's fixed part not.
        """
        if not self.batch_size or batch_size == self.batch_size:
            return self
        scaled = {
            kind: self._rebatched(gpu_of(kind), known, batch_size)
            for kind, known in self.compute.items()
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

    def _rebatched(self, gpu: str, known: Estimate, batch_size: int) -> Estimate:
        if self.gigaflops:
            line = throughput.line(self.family, gpu)
        else:
            line = None
        if line:
            fixed = line.fixed / line.seconds(self.gigaflops, self.batch_size)
        else:
            fixed = 0.0
        factor = fixed + (1 - fixed) * batch_size / self.batch_size
        error = math.hypot(known.error, 0.1 * abs(math.log(batch_size / self.batch_size)))
        return Estimate(
            known.seconds * factor, error, f"from a batch of {self.batch_size}", known.kind
        )


def _nearest(kinds: Iterable[str], kind: str) -> str:
    """The one of the `kinds` whose vCPUs are most like those of `kind`."""
    vcpus = vcpus_of(kind)
    return min(kinds, key=lambda each: abs(math.log(vcpus_of(each) / vcpus)))


def by_peak(known: Mapping[str, Estimate], gpu: str) -> Estimate | None:
    """The seconds of a step on a GPU from those on the known one whose peak speed is nearest; None
    without peaks.
    """
    peak = accelerator(gpu_of(gpu)).teraflops
    peaks = {kind: accelerator(gpu_of(kind)).teraflops for kind in known}
    near = [kind for kind in known if peaks[kind] and peak]
    if not near:
        return None
    nearest = min(near, key=lambda kind: abs(math.log(peaks[kind] / peak)))
    seconds = known[nearest].seconds * peaks[nearest] / peak
    error = math.hypot(known[nearest].error, BY_PEAK_ERROR)
    return Estimate(
        seconds, error, f"from {gpu_of(nearest).upper()}'s, by peak TFLOPS", known[nearest].kind
    )


def published(name: str) -> Workload | None:
    """The published workload of that name, with the prices of its time; None where there is none."""
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
            gpu: Estimate(each, 0.0, f"measured, {source}")
            for gpu, each in zip(("k80", "p100", "v100"), seconds, strict=True)
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


# ICAC'19's: fitted to the 39 durations of its tables (K80, P100, V100, one and two parameter
# servers). CM-DARE's: to its cluster speeds by size (12 to 24 cells a model), the V100's from its
# single speed. Six and four parameters each; `planner.fitting` makes them and the errors, a test
# compares. Join: CM-DARE's cold start of a replacement.
_ICAC = "ICAC'19"

_CMDARE = "CM-DARE"

PUBLISHED: Mapping[str, Workload] = {
    each.name: each
    for each in (
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


# A workload that nobody ever ran, from what was counted of its graph: parameters, and FLOPs of a
# training step.
#
# The seconds of a step on the GPUs of CM-DARE follow from the line of the model's family over
# FLOPs, or from one line for all networks that were measured where its family was not; those on
# other GPUs from peak speeds (`workloads.by_peak`). Beyond the FLOPs that were measured a line is
# worth less: drawn through half of the networks it misses those of the other half by up to twice
# what their distance says (`BEYOND_ERROR`). The FLOPs are those of a mini-batch, because the
# seconds of a step follow from them (`families.Line`).


def counted_workload(name: str, counts: Mapping[str, float], family: str = "") -> Workload:
    """Return the workload of a model of which a check counted `gigaflops`, `parameters` and its
    `batch_size`.

    Where the batch size counts `tokens`, whose texts have no fixed shape, FLOPs follow from the
    parameters, embeddings included. Raises PlanError where FLOPs could not be counted otherwise.
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
        f"{called} was never measured on Compute Engine: {gigaflops:.3g} GFLOPs for an example, {parameters:,} "
        "parameters, counted."
    ]
    if estimated:
        notes = [
            f"{called} was never measured on Compute Engine: {parameters:,} parameters, counted, and {gigaflops:.3g} "
            "GFLOPs for a token, taken as 6 FLOPs for each parameter. Kaplan et al. (2020) count 6 for each parameter "
            "outside of the embeddings, so with a large vocabulary this is too high."
        ]
    if vocabulary:
        notes.append(
            f"Its vocabulary is made with its data: one of {vocabulary:,} entries stands in, the size that the problem "
            "declares."
        )
    guess = "" if family else "its family was never measured"
    if beyond > 1:
        guess = (
            f"the FLOPs of its mini-batch are beyond those that were measured, {least:.2g} to {most:.2g} G for each of "
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


def _error(known: float, beyond: float) -> float:
    return min(math.hypot(known, BEYOND_ERROR * math.log(beyond)), _MOST_ERROR)
