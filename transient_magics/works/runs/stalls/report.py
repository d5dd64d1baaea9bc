"""What a measure of stalls came to, in numbers and words: a pure function of a cluster's state."""

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
from ....planner.stalls.terms import Place, Terms, advice, milliseconds
from ....protocol.machines import WHOLE, Share
from ..words import work_words

_NOISY = 0.12
"""Of S0: where the same steps in one process vary by more from repeat to repeat, the machine is
busy with else.
"""


@dataclass(frozen=True)
class Bar:
    """One kind of VM: its label, what was measured of it, and what to do (empty: too little was
    measured).
    """

    label: str
    stalls: Stalls
    hourly: float
    """Of one VM, in US dollars."""
    advice: str

    @property
    def lines(self) -> tuple[tuple[str, str, str, str], ...]:
        """Of each part: name, seconds with interval, share, and what of a dollar it takes."""
        return tuple(
            (
                each.name,
                milliseconds(each.seconds),
                f"{round(each.share, 2) + 0.0:.0%}",
                self._said(each),
            )
            for each in (self.stalls.compute, *self.stalls.parts)
        )

    @property
    def heading(self) -> str:
        """What stands above it."""
        made = self.stalls
        of = text.count(len(made.workers), "worker")
        counted = (
            f"{text.count(made.examples, 'example')}, {text.count(len(made.repeats), 'repeat')}"
        )
        what = f"{self.label} ({of}, {text.money(self.hourly)} an hour each)"
        return f"{what}: a step takes {milliseconds(made.step)} ({counted})"

    def _said(self, part: Part) -> str:
        """As `$0.41 of each dollar`, or why not."""
        if part.name == measured.COMPUTE or part.measured:
            return f"${max(part.share, 0.0):.2f} of each dollar"
        if part.name == "fetch" and not self.stalls.bytes:
            return "no file is read"
        if part.surely > 0:
            return "less than 2 % of a step"
        return "within the noise"


@dataclass(frozen=True)
class Report:
    """What `name` came to so far: `taken` of `planned` measures."""

    name: str
    phase: str
    words: str
    bars: tuple[Bar, ...]
    straggler: Estimate | None
    apart: tuple[Apart, ...]
    notes: tuple[str, ...]

    @property
    def below(self) -> tuple[str, ...]:
        """What is said below the bars."""
        said = [
            f"{each.worker}: its {each.what} takes {each.share:.0%} of a step longer than that of its equals"
            for each in self.apart
        ]
        if self.straggler and self.straggler.low > 0:
            late = milliseconds(self.straggler)
            said.append(
                f"The slowest worker of a step is {late} later than the mean one: --mode sync would wait for it"
            )
        return (*(f"{each}." for each in said), *self.notes)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per kind of VM and part, in seconds."""
        return [
            {
                "vm": bar.label,
                "part": each.name,
                "seconds": each.seconds.mean,
                "low": each.seconds.low,
                "high": each.seconds.high,
                "share": each.share,
                "measured": each.measured or each.name == measured.COMPUTE,
            }
            for bar in self.bars
            for each in (bar.stalls.compute, *bar.stalls.parts)
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
    """The measures of `run` that were taken so far."""
    kinds = dict[str, str]()
    labels = dict[str, str]()
    hourly = dict[str, float]()
    for name in {who for each in run.measured for who in each.seconds}:
        if vm := state.vms.get(name):
            then = vm.ran_at(run.ended_at or math.inf)
            kind = kinds[name] = f"{vm.accelerator or 'cpu'}/{then.machine_type}"
            labels[kind] = f"{vm.accelerator.upper() or 'CPU'} on {then.machine_type}"
            hourly[kind] = then.hourly
    servers = state.spec.parameter_servers if state.spec else 1
    found = by_kind(run.measured, kinds)
    bars = tuple(
        Bar(labels[each.kind], each, hourly[each.kind], advice(each, servers)) for each in found
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
    said = [f"{disturbance}." for disturbance in disturbances(state, run)]
    if said:
        return [*said, "Plans do not use this measure: take it again with nothing beside it."]
    return []


def _notes(found: list[Stalls]) -> list[str]:
    few = max((len(each.repeats) for each in found), default=0) < measured.LEAST_REPEATS
    noisy = [
        each
        for each in found
        if not few and each.compute.seconds.half > _NOISY * each.compute.seconds.mean
    ]
    if found and few:
        notes = ["Three repeats are needed before anything is claimed."]
    else:
        notes = []
    return [
        *notes,
        *(
            [
                "Steps varied much from repeat to repeat: what is within the noise may be a stall all the same. "
                "Take more --repeats, or longer --seconds."
            ]
            if noisy
            else []
        ),
    ]


def terms(
    state: ClusterState, run: RunState, model: Mapping[str, Any] | None = None
) -> dict[str, Terms]:
    """What plans to come need of it, by kind of worker; nothing where it was disturbed. `model`:
    what was counted of it, as a run's folder has it.
    """
    if disturbances(state, run):
        return {}
    spec = state.spec
    counted = model or {}
    found = dict[str, Terms]()
    for bar in report(state, run).bars:
        gpu, _, machine = bar.stalls.kind.partition("/")
        kind = kind_of(gpu, machine)
        vcpus = vcpus_of(kind)
        if spec and spec.disk_gb:
            disk = f"{spec.disk_gb}GB:{spec.disk_type}"
        else:
            disk = ""
        found[kind] = Terms(
            run.name,
            bar.stalls,
            Place(vcpus, disk_speed(disk, vcpus)),
            spec.source if spec else "emulated",
            len(bar.stalls.workers),
            spec.parameter_servers if spec else 1,
            run.spec.wire,
            int(counted.get("parameters", 0)),
            float(counted.get("gigaflops", 0.0)),
        )
    return found


# What went on beside a measure of stalls, so that it tells of these circumstances and not of its VMs: pure.


def disturbances(state: ClusterState, run: RunState) -> list[str]:
    """A sentence for each other run that went on meanwhile, and each VM that was deflated, or
    stopped and started.
    """
    if not run.measured:
        return []
    since = run.started_at
    until = run.ended_at or math.inf
    said = [
        f"{other.name} ran on this cluster meanwhile: what it takes of parameter servers and links is in network "
        "and contention"
        for other in state.of(RunState).values()
        if other.name != run.name
        and other.started_at
        and _overlap(other.started_at, other.ended_at, since, until)
    ]
    took = {name for each in run.measured for name in each.seconds}
    for name, vm in state.vms.items():
        if name in took or vm.role == "ps":
            if any(since < stretch.since < until for stretch in vm.stretches[1:]):
                said.append(f"{name} was stopped and started again while it was measured")
            least = _least(vm.shares, since, until)
            if not least.whole:
                said.append(f"{name} had {text.share_words(least)} while it was measured")
    return said


def _overlap(began: float, ended: float, since: float, until: float) -> bool:
    return began < until and (ended or math.inf) > since


def _least(shares: tuple[tuple[float, Share], ...], since: float, until: float) -> Share:
    """The least that a VM had of itself in that time, by the moments from which on it had so much."""
    least = WHOLE
    for number, (at, share) in enumerate(shares):
        if number + 1 < len(shares):
            ended = shares[number + 1][0]
        else:
            ended = math.inf
        if _overlap(at, ended, since, until):
            least = least.least_of(share)
    return least
