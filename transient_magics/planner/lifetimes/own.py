"""Lifetimes of the user's own VMs, from the journals of all clusters of this machine.

Every transient VM that ran is one: revoked, or not revoked when it was deleted or when its journal ends. Hours count on
the cluster's clock, from RUNNING to the preemption notice, because after the notice time passes as ever. A revocation
that came without a notice happened between the journal's previous line and its discovery: half-way is assumed. One that
the user asked for, or of a VM that the cluster chose itself, says nothing about how long VMs live: it counts as not
revoked. Of one that was stopped and started again the life since its last start is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ... import places
from ...catalog import region
from ...clock import SECONDS_PER_HOUR
from ...errors import JournalError
from ...journal import Event, events, read, replay
from ...protocol import layout

_SAME_ROUND_SECONDS = 5.0


@dataclass(frozen=True)
class Life:
    """One VM's life. `started`: seconds since 1970; `hours` on the cluster's clock, which runs at `rate`."""

    gpu: str
    zone: str
    provisioning_model: str
    emulated: bool
    started: float
    hours: float
    revoked: bool
    rate: float = 1.0

    def of(self, gpu: str | None, place: str | None, provisioning_model: str) -> bool:
        """Whether it had this GPU, in this region, rented like this."""
        return (
            (gpu is None or self.gpu == gpu)
            and (place is None or region(self.zone) == place)
            and self.provisioning_model == provisioning_model
        )


def own_lives() -> list[Life]:
    """Of every cluster of this machine, the deleted ones too, in the order of their starts."""
    found: list[Life] = []
    for folder in (places.clusters(), places.past()):
        for journal in folder.glob(f"[a-z]*/{layout.JOURNAL}"):
            try:
                found += lives(read(journal))
            except JournalError:  # of one that cannot be read nothing is learned
                continue
    return sorted(found, key=lambda life: life.started)


def lives(history: Iterable[Event]) -> Iterator[Life]:
    """Of the transient VMs of one journal."""
    told = list(history)
    state = replay(told)
    if state.spec is None or not told:
        return
    moments = sorted(event.at for event in told)
    noticed: dict[str, float] = {}
    ended: dict[str, tuple[float, bool]] = {}
    asked: set[str] = set()
    for event in told:
        match event:
            case events.VmPreemptionAsked():
                asked.add(event.vm)
            case events.ReclaimAnswered():
                asked.update(event.vms)
            case events.VmPreemptionNotice():
                noticed.setdefault(event.vm, (event.noticed or event.time) / 1e9)
            case events.VmRevoked():
                before = bisect_left(moments, event.at - _SAME_ROUND_SECONDS) - 1
                found_late = (moments[max(before, 0)] + event.at) / 2
                ended.setdefault(event.vm, (noticed.get(event.vm, found_late), event.vm not in asked))
            case events.VmDeleted():
                at = noticed.get(event.vm, event.at)
                ended.setdefault(event.vm, (at, event.vm in noticed and event.vm not in asked))
    for name, vm in state.vms.items():
        if vm.running_at and vm.provisioning_model != "standard":
            end, revoked = ended.get(name, (noticed.get(name, moments[-1]), name in noticed and name not in asked))
            begin, end = vm.ran.since, vm.stopping_at or end  # Compute Engine's own times, if known
            last = vm.stretches[-1]
            if not last.runs:  # it was stopped by us
                end, revoked = last.since, False
            hours = state.clock.between(begin, max(end, begin)) / SECONDS_PER_HOUR
            yield Life(
                vm.accelerator, vm.zone, vm.provisioning_model, state.spec.emulated, vm.running_at, hours, revoked,
                state.clock.rate,
            )  # fmt: skip
