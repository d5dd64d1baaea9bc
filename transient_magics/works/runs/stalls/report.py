"""The report of a measurement of stalls: a pure function of a cluster's state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....catalog import disk_speed
from ....client import text
from ....journal import ClusterState, RunState
from ....kinds import load
from ....planner.speeds.throughput import kind_of, vcpus_of
from ....planner.stalls import parts as measured
from ....planner.stalls.parts import Apart, Estimate, Part, Stalls, apart, by_kind
from ....planner.stalls.terms import StallMeasurement, VmResources, advice, milliseconds
from ....protocol.machines import WHOLE, Share
from ..words import work_words

_NOISY = 0.12
"""The share of a step by which equal steps may vary before the machine counts as busy."""


@dataclass(frozen=True)
class Bar:
    """A kind of VM with its measured parts and advice (empty until enough was measured).

    `hourly` is the price of one VM in US dollars.
    """

    label: str
    stalls: Stalls
    hourly: float
    """The price of one VM, in US dollars."""
    advice: str

    @property
    def lines(self) -> tuple[tuple[str, str, str, str], ...]:
        """The name, seconds with interval, share and cost of each part."""
        lines = []
        for part in (self.stalls.compute, *self.stalls.parts):
            # Adding 0 makes -0.0 positive.
            share = f"{round(part.share, 2) + 0.0:.0%}"
            lines.append((part.name, milliseconds(part.seconds), share, self._cost_words(part)))
        return tuple(lines)

    @property
    def heading(self) -> str:
        """The line above the bar."""
        stalls = self.stalls
        workers = text.count(len(stalls.workers), "worker")
        examples = text.count(stalls.examples, "example")
        repeats = text.count(len(stalls.repeats), "repeat")
        vms = f"{self.label} ({workers}, {text.money(self.hourly)} an hour each)"
        return f"{vms}: a step takes {milliseconds(stalls.step)} ({examples}, {repeats})"

    def _cost_words(self, part: Part) -> str:
        """Return `$0.41 of each dollar`, or why it is unknown."""
        if part.name == measured.COMPUTE or part.measured:
            return f"${max(part.share, 0.0):.2f} of each dollar"
        if part.name == "fetch" and not self.stalls.bytes:
            return "no file is read"
        if part.surely > 0:
            return "less than 2 % of a step"
        return "within the noise"


@dataclass(frozen=True)
class Report:
    """The report of a measurement so far.

    Attributes
    ----------
    name, phase, words
        The name, phase and progress of the measurement.
    bars
        The kinds of VMs.
    straggler
        How much later the slowest worker of a step is than the mean one.
    apart
        Workers that differ from others of the same kind.
    notes
        Sentences about the quality of the measurement.
    """

    name: str
    phase: str
    words: str
    bars: tuple[Bar, ...]
    straggler: Estimate | None
    apart: tuple[Apart, ...]
    notes: tuple[str, ...]

    @property
    def below(self) -> tuple[str, ...]:
        """The sentences below the bars."""
        notes = []
        for worker in self.apart:
            longer = f"{worker.share:.0%} of a step longer than that of its equals"
            notes.append(f"{worker.worker}: its {worker.what} takes {longer}.")
        if self.straggler and self.straggler.low > 0:
            late = f"{milliseconds(self.straggler)} later than the mean one"
            slowest = f"The slowest worker of a step is {late}"
            notes.append(f"{slowest}: --mode sync would wait for it.")
        return (*notes, *self.notes)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dict for each kind of VM and part, in seconds."""
        return [
            {
                "vm": bar.label,
                "part": part.name,
                "seconds": part.seconds.mean,
                "low": part.seconds.low,
                "high": part.seconds.high,
                "share": part.share,
                "measured": part.measured or part.name == measured.COMPUTE,
            }
            for bar in self.bars
            for part in (bar.stalls.compute, *bar.stalls.parts)
        ]

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.words}"]
        for bar in self.bars:
            lines += ["", bar.heading, *text.table(("part", "a step", "share", ""), bar.lines)]
            lines += [bar.advice] if bar.advice else []
        return "\n".join([*lines, *([""] if self.below else []), *self.below])

    def _repr_html_(self) -> str:
        return load(RunState.kind, "stalls.view").stalls_html(self)


def report(state: ClusterState, run: RunState) -> Report:
    """Return the report of a measurement.

    Parameters
    ----------
    state, run
        The states of the cluster and of the run that measures.
    """
    kinds = dict[str, str]()
    labels = dict[str, str]()
    hourly = dict[str, float]()
    for name in {worker for measure in run.measured for worker in measure.seconds}:
        if vm := state.vms.get(name):
            then = vm.ran_at(run.ended_at or math.inf)
            kind = kinds[name] = f"{vm.accelerator or 'cpu'}/{then.machine_type}"
            labels[kind] = f"{vm.accelerator.upper() or 'CPU'} on {then.machine_type}"
            hourly[kind] = then.hourly
    servers = state.spec.parameter_servers if state.spec else 1
    found = by_kind(run.measured, kinds)
    bars = tuple(
        Bar(labels[stalls.kind], stalls, hourly[stalls.kind], advice(stalls, servers))
        for stalls in found
    )
    return Report(
        run.name,
        run.phase,
        work_words(run, state),
        bars,
        measured.straggler(run.measured),
        tuple(apart(run.measured, kinds)),
        (*_disturbed(state, run), *_notes(found)),
    )


def _disturbed(state: ClusterState, run: RunState) -> list[str]:
    notes = [f"{disturbance}." for disturbance in disturbances(state, run)]
    if notes:
        notes.append("Plans do not use this measure: take it again with nothing beside it.")
    return notes


def _notes(found: list[Stalls]) -> list[str]:
    if not found:
        return []
    if max(len(stalls.repeats) for stalls in found) < measured.LEAST_REPEATS:
        return ["Three repeats are needed before anything is claimed."]
    compute = [stalls.compute.seconds for stalls in found]
    if any(seconds.half > _NOISY * seconds.mean for seconds in compute):
        return [
            "Steps varied much from repeat to repeat: a stall may be hidden in the noise. "
            "Use more --repeats or longer --seconds."
        ]
    return []


def terms(
    state: ClusterState, run: RunState, model: Mapping[str, Any] | None = None
) -> dict[str, StallMeasurement]:
    """Return what later plans need of a measurement, by kind of worker; empty if it was disturbed.

    Parameters
    ----------
    state, run
        The states of the cluster and of the run that measured.
    model
        What was counted of its model, from the run's folder.
    """
    if disturbances(state, run):
        return {}
    spec = state.spec
    counted = model or {}
    found = dict[str, StallMeasurement]()
    for bar in report(state, run).bars:
        gpu, _, machine = bar.stalls.kind.partition("/")
        kind = kind_of(gpu, machine)
        vcpus = vcpus_of(kind)
        disk = ""
        if spec and spec.disk_gb:
            disk = f"{spec.disk_gb}GB:{spec.disk_type}"
        found[kind] = StallMeasurement(
            run.name,
            bar.stalls,
            VmResources(vcpus, disk_speed(disk, vcpus)),
            spec.source if spec else "emulated",
            len(bar.stalls.workers),
            spec.parameter_servers if spec else 1,
            run.spec.wire,
            int(counted.get("parameters", 0)),
            float(counted.get("gigaflops", 0.0)),
        )
    return found


# Disturbances of a measurement: it is then about these circumstances, not about its VMs.


def disturbances(state: ClusterState, run: RunState) -> list[str]:
    """Return a sentence for each disturbance of a measurement.

    These are other runs at the same time, and VMs that were deflated, or stopped and started.
    """
    if not run.measured:
        return []
    since = run.started_at
    until = run.ended_at or math.inf
    sentences = [
        f"{other.name} ran on this cluster at the same time: its use of parameter servers and "
        "links counts as network and contention"
        for other in state.of(RunState).values()
        if other.name != run.name
        and other.started_at
        and _overlap(other.started_at, other.ended_at, since, until)
    ]
    took = {name for measure in run.measured for name in measure.seconds}
    for name, vm in state.vms.items():
        if name in took or vm.role == "ps":
            if any(since < stretch.since < until for stretch in vm.stretches[1:]):
                sentences.append(f"{name} was stopped and started again while it was measured")
            least = _least(vm.shares, since, until)
            if not least.whole:
                sentences.append(f"{name} had {text.share_words(least)} while it was measured")
    return sentences


def _overlap(began: float, ended: float, since: float, until: float) -> bool:
    return began < until and (ended or math.inf) > since


def _least(shares: tuple[tuple[float, Share], ...], since: float, until: float) -> Share:
    """Return the smallest share of itself that a VM had in that time."""
    least = WHOLE
    for number, (at, share) in enumerate(shares):
        ended = math.inf
        if number + 1 < len(shares):
            ended = shares[number + 1][0]
        if _overlap(at, ended, since, until):
            least = least.least_of(share)
    return least
