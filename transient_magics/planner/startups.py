"""How long VMs take from their request until they can be used: as your own did on Compute Engine, else as published.

What a VM boots from decides most of it: one from an image that was baked answers minutes before one that installs what
it needs. So only VMs count that boot from the same as the newest of their kind, and only where they are enough. What is
measured of emulated ones says nothing about Compute Engine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ..catalog.published import startup
from ..journal import ClusterState, VmState, known_states
from ..spec import CONTROLLER
from ..spec.image import image_of
from .simulate import Startup

ENOUGH = 5
"""Own VMs of a kind that tell more than published ones: as many as leave the mean within half a deviation."""
_LONGEST_SECONDS = 3600.0
_NEWEST = 50


@dataclass(frozen=True, slots=True)
class Start:
    """A start-up, and of how many own VMs it is the mean; 0: it was published."""

    startup: Startup
    own: int = 0


Starts = Callable[[str, bool, str], Start]
"""The start-up of VMs with a GPU (`cpu`: none), transient or on demand, in a region."""


def published_starts(gpu: str, transient: bool, place: str) -> Start:
    """As CM-DARE measured them in 2019."""
    provisioning, staging, booting, deviation = startup(gpu, transient, place)
    return Start(Startup(provisioning + staging, booting, deviation))


def own_starts() -> Starts:
    """As the VMs of this machine's clusters took, deleted ones too, where they are enough of that kind."""
    return starts_of(known_states())


def starts_of(states: Iterable[ClusterState]) -> Starts:
    """The same of these clusters."""
    seen: dict[tuple[str, bool], list[_Seen]] = {}
    for state in states:
        for each in _usable(state):
            seen.setdefault((each.gpu, each.transient), []).append(each)
    known = {kind: start for kind, some in seen.items() if (start := _start(some))}

    def starts(gpu: str, transient: bool, place: str) -> Start:
        return known.get((gpu, transient)) or published_starts(gpu, transient, place)

    return starts


@dataclass(frozen=True, slots=True)
class _Seen:
    gpu: str
    transient: bool
    boots_from: tuple[bool, str]
    """Whether it was from an image, and what for: without TensorFlow there is less to install."""
    at: float
    running: float
    usable: float


def _usable(state: ClusterState) -> Iterator[_Seen]:
    spec = state.spec
    if spec is None or spec.emulated:
        return
    for vm in state.vms.values():
        if vm.role == CONTROLLER or not (vm.requested_at and vm.ready_at):
            continue
        running, usable = _began(vm) - vm.requested_at, vm.ready_at - _began(vm)
        if running >= 0 and usable >= 0 and running + usable < _LONGEST_SECONDS:
            image = bool(image_of(spec, vm.accelerator))
            yield _Seen(
                vm.accelerator or "cpu", vm.provisioning_model != "standard", (image, spec.purpose), vm.ready_at,
                running, usable,
            )  # fmt: skip


def _began(vm: VmState) -> float:
    return vm.started_at or vm.running_at


def _start(seen: list[_Seen]) -> Start | None:
    newest = max(seen, key=lambda each: each.at)
    alike = sorted((each for each in seen if each.boots_from == newest.boots_from), key=lambda each: each.at)[-_NEWEST:]
    if len(alike) < ENOUGH:
        return None
    running, usable = (statistics.fmean(getattr(each, part) for each in alike) for part in ("running", "usable"))
    deviation = statistics.stdev(each.running + each.usable for each in alike)
    return Start(Startup(running, usable, deviation), len(alike))
