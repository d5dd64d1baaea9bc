"""What is known of capacity on demand before a run with a deadline begins: what clusters and
measurements here met.

Google tells it of nobody beforehand: its advice on capacity is about Spot VMs (`advice.capacity`, a
preview), calendars about reservations of weeks, and a reservation that is made at once is paid as
the VMs are. So what counts is who asked for a VM and got one, or did not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...deadlines.situation import ON_DEMAND, zones_for
from ...journal import ClusterState, known_states
from ...spec import WORKER, ClusterSpec, RunSpec, render_duration
from ...spec.measurement import Sighting, measurements
from ..text import count

KNOWN_SECONDS = 7 * 86400.0
"""How old what was seen may be."""
_GAP = 7200.0
"""Nobody waits who does not ask for so long."""
_LEAST = 600.0
"""Seconds that were waited at least where no VM came: as often do measurements ask."""
_RECENT = 3600.0
_MOST_ZONES = 3


@dataclass(frozen=True, slots=True)
class OnDemand:
    """What was seen of VMs with a `gpu` on demand in `zones`, in order; of which project, the
    emulator's where None.
    """

    gpu: str
    zones: tuple[str, ...]
    seen: tuple[Sighting, ...]
    project: str | None = None

    def waited(self, now: float, rate: float = 1.0) -> float:
        """The longest that one was waited for until `now`, from the first refusal to the VM that
        came or, where none came, as long as somebody asked. Seconds on a clock that the cloud's
        outpaces so many times (`rate`).
        """
        gap = _GAP / rate
        least = _LEAST / rate
        longest = 0.0
        since = None
        last = 0.0
        for each in (*self.seen, Sighting(now, "", given=False)):
            if since is not None:
                asked = each.at - last <= gap
                came = asked and each.given
                longest = max(longest, (each.at if asked else last) - since, 0.0 if came else least)
                since = since if asked and not came else None
            if not each.given and since is None:
                since = each.at
            last = each.at
        return longest

    def words(self, now: float, rate: float = 1.0) -> str:
        """What is said of it before the run begins: one sentence, or two."""
        if self.gpu == "cpu":
            vms = "VMs without a GPU"
        else:
            vms = f"{self.gpu.upper()}s"
        if len(self.zones) > _MOST_ZONES:
            more = f" and {len(self.zones) - _MOST_ZONES} more"
        else:
            more = ""
        what = f"{vms} on demand in {', '.join(self.zones[:_MOST_ZONES])}{more}"
        if not self.seen:
            look = f"%transient_measure {self.gpu} --zones {','.join(self.zones[:_MOST_ZONES])} "
            look += "--provisioning-model standard --budget 2"
            look += f" --project {self.project}" if self.project else ""
            unknown = f"Nothing is known of capacity for {what}: none was requested from this machine within a week"
            return f"{unknown}. To look: {look}"
        there = sum(each.given for each in self.seen)
        last = self.seen[-1]
        wait = self.waited(now, rate)
        said = f"{what}: {there} of {count(len(self.seen), 'request')} of the last week got one"
        if wait:
            said += f". One was waited for up to {render_duration(wait)}: they are taken that much earlier"
        if not last.given and now - last.at < _RECENT:
            said += f". The last request, {render_duration(now - last.at)} ago, got none"
        return said + "."


def on_demand(cluster: ClusterSpec, run: RunSpec, now: float) -> list[OnDemand]:
    """Of each GPU of which the run may have VMs on demand, where it may have them."""
    gpus = run.gpus or dict.fromkeys(group.accelerator for group in cluster.groups)
    return [_of(cluster, gpu, zones_for(cluster, run, gpu), now) for gpu in gpus]


def _of(cluster: ClusterSpec, gpu: str, zones: Sequence[str], now: float) -> OnDemand:
    found = (
        each
        for each in (*_met(known_states(), cluster.project, gpu), *_measured(cluster.project, gpu))
        if each.zone in zones and now - KNOWN_SECONDS < each.at <= now
    )
    return OnDemand(
        gpu, tuple(zones), tuple(sorted(found, key=lambda each: each.at)), cluster.project
    )


def _met(states: Iterable[ClusterState], project: str | None, gpu: str) -> Iterator[Sighting]:
    """What clusters met when they asked for workers on demand."""
    for state in states:
        if state.spec is None or state.spec.project != project:
            continue
        for vm in state.vms.values():
            if (
                vm.role != WORKER
                or vm.provisioning_model != ON_DEMAND
                or (vm.accelerator or "cpu") != gpu
            ):
                continue
            if vm.running_at:
                yield Sighting(vm.running_at, vm.zone, given=True)
            elif vm.state == "refused" and vm.cause == "stockout":
                yield Sighting(vm.ended_at, vm.zone, given=False)


def _measured(project: str | None, gpu: str) -> Iterator[Sighting]:
    for spec, seen in measurements():
        if (spec.project, spec.gpu, spec.provisioning_model) == (project, gpu, ON_DEMAND):
            yield from seen
