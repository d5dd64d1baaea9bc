"""A Compute Engine that fails in every way, on a simulated clock.

It is asked as the real one is, by calls that take their time and may lose their request or their answer; the same
request again (by its identity) continues the first. What happens in it is reported to the observer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.simulation.clock import Clock
from tests.simulation.observer import Observer
from transient_magics.cloud import VmRequest

NOTICE = 30.0
Answer = Callable[[str, str], None]
"""What an answer goes to: how it ended (`runs`, `gone`, `exists`, or what is short) and the VM's name."""


@dataclass
class Instance:
    """A VM that exists, of anybody."""

    name: str
    zone: str
    labels: dict[str, str]
    status: str = "PROVISIONING"
    spot: bool = False
    request: str = ""
    awaited: list[Callable[[], None]] = field(default_factory=list)
    """What to tell when it runs, or is gone before."""


@dataclass
class Weather:
    """How likely what is to fail. `sold_out`, `no_quota`: (GPU or kind, zone or region or `*`) that cannot be had."""

    sold_out: set[tuple[str, str]] = field(default_factory=set)
    scarce: set[tuple[str, str]] = field(default_factory=set)
    """The same, of which every other one can be had."""
    no_quota: set[tuple[str, str]] = field(default_factory=set)
    forbidden: str = ""
    """`access` or `other`: what every request is refused for."""
    taken: float = 0.0
    """How many times an hour a Spot VM is taken."""
    lost: float = 0.0
    """The share of calls that lose their request or their answer."""
    slow: float = 0.0
    """More seconds until a VM runs, at most."""
    taken_early: float = 0.0
    """The share of Spot VMs that are taken before they run."""
    no_boot: float = 0.0
    """The share of VMs that never answer."""
    signed_out_until: float = 0.0


class Cloud:
    """One project. `strangers` are VMs of others in it."""

    def __init__(self, clock: Clock, chance: random.Random, observer: Observer, log: Callable[[str], None]) -> None:
        self.clock, self.chance, self.observer, self._log = clock, chance, observer, log
        self.weather = Weather()
        self.instances: dict[tuple[str, str], Instance] = {}
        self._outcomes: dict[str, tuple[float, str]] = {}
        self.doomed: dict[str, None] = {}
        """VMs whose start-up script fails."""
        self.strangers: list[tuple[str, str, str]] = []
        self.on_taken: Callable[[str], None] = lambda name: None
        """Called when a VM is told that it will be taken."""
        self.on_gone: Callable[[str], None] = lambda name: None
        self.ended_at = 0.0
        """When the latest VM met its own end, whatever the weather."""

    def stranger(self, name: str, zone: str, labels: dict[str, str]) -> None:
        """A VM of somebody else."""
        self.instances[zone, name] = Instance(name, zone, labels, "RUNNING")
        self.strangers.append((zone, name, "RUNNING"))

    def touched(self) -> list[str]:
        """Strangers that are not as they were."""
        now = {(zone, name): vm.status for (zone, name), vm in self.instances.items()}
        return [name for zone, name, status in self.strangers if now.get((zone, name)) != status]

    @property
    def loses(self) -> bool:
        """Whether this call, or its answer, is lost."""
        return self.chance.random() < self.weather.lost

    @property
    def signed_out(self) -> bool:
        """Whether nobody is let in just now."""
        return self.clock.now < self.weather.signed_out_until

    # --- the API -----------------------------------------------------------------------------------------------------
    def insert(self, request: VmRequest, vm: str, kind: str, ends_at: float, answer: Answer) -> None:
        """Make a VM; the answer comes when it runs, or why it does not."""
        if request.request_id not in self._outcomes:
            self._outcomes[request.request_id] = self._make(request, vm, kind, ends_at)
        ready, outcome = self._outcomes[request.request_id]

        def ended() -> None:
            how, here = outcome, self.instances.get((request.zone, request.name))
            if outcome == "runs":
                if here and here.request == request.request_id and here.status == "PROVISIONING":
                    here.awaited.append(ended)
                    return
                how = "runs" if here and here.request == request.request_id else "gone"
            self.clock.after(self.chance.uniform(0.1, 2.0), lambda: answer(how, vm))

        self.clock.after(max(0.0, ready - self.clock.now), ended)

    def delete(self, zone: str, name: str, labels: dict[str, str], answer: Callable[[], None]) -> None:
        """Delete the VM of that name if it has these labels; one that is not there is deleted."""
        vm = self.instances.get((zone, name))
        if vm and labels.items() <= vm.labels.items():
            self.clock.after(self.chance.uniform(1.0, 20.0), lambda: self._vanish(vm))
            self.clock.after(21.0, answer)
        else:
            self.clock.after(1.0, answer)

    def list(self, labels: dict[str, str]) -> list[Instance]:
        """All VMs with these labels."""
        return [vm for vm in self.instances.values() if labels.items() <= vm.labels.items()]

    # --- what happens in it ------------------------------------------------------------------------------------------
    def take(self, name: str) -> None:
        """Take a Spot VM: it is told so, and gone half a minute later, or at once."""
        vm = self._ours(name)
        if vm is None or vm.status != "RUNNING" or not vm.spot:
            return
        vm.status = "STOPPING"
        self._log(f"cloud: {name} is taken")
        self.on_taken(name)
        self.clock.after(self.chance.choice([NOTICE, NOTICE, 1.0]), lambda: self._vanish(vm))

    def lose(self, name: str) -> None:
        """A host fails: the VM is gone at once, on whatever terms."""
        if vm := self._ours(name):
            self._vanish(vm)

    def _ours(self, name: str) -> Instance | None:
        strangers = {(zone, each) for zone, each, _ in self.strangers}
        return next((vm for key, vm in self.instances.items() if vm.name == name and key not in strangers), None)

    def storm(self, seconds: float, ours: Iterable[str]) -> None:
        """Take some VMs, as likely as the weather says for so many seconds."""
        for name in list(ours):
            if self.chance.random() < self.weather.taken * seconds / 3600:
                self.take(name)

    def _make(self, request: VmRequest, vm: str, kind: str, ends_at: float) -> tuple[float, str]:
        weather, chance, now = self.weather, self.chance, self.clock.now
        spot = request.provisioning_model != "standard"
        region = request.zone.rpartition("-")[0]
        if weather.forbidden:
            return now + 1, weather.forbidden
        if (kind, "*") in weather.no_quota:
            return now + 1, "quota everywhere"
        if (kind, region) in weather.no_quota:
            return now + 1, "quota"
        scarce = (kind, request.zone) in weather.scarce and chance.random() < 0.5
        if spot and (scarce or (kind, request.zone) in weather.sold_out):
            return now + chance.uniform(1, 20), "stockout"
        if (request.zone, request.name) in self.instances:
            return now + 1, "other"  # it exists, and is somebody else's
        made = Instance(request.name, request.zone, dict(request.labels), spot=spot, request=request.request_id)
        self.instances[request.zone, request.name] = made
        self.observer.made(vm, now)
        if chance.random() < weather.no_boot:
            self.doomed[vm] = None
        seconds = chance.uniform(5, 40) + chance.uniform(0, weather.slow)
        if now >= ends_at:
            self.observer.breaks("limits passed", f"{vm} is made after the cluster's end")
        self.clock.after(max(0.0, ends_at - now), lambda: self._end(made))
        if spot and chance.random() < weather.taken_early:
            self.clock.after(seconds * chance.random(), lambda: self._vanish(made))
        self.clock.after(seconds, lambda: self._runs(made, vm))
        return now, "runs"

    def _runs(self, vm: Instance, name: str) -> None:
        if self.instances.get((vm.zone, vm.name)) is vm:
            self.observer.runs(name, self.clock.now)
            vm.status = "RUNNING"
            self._tell(vm)

    def _tell(self, vm: Instance) -> None:
        awaited, vm.awaited = vm.awaited, []
        for each in awaited:
            each()

    def _end(self, vm: Instance) -> None:
        """Its terminationTime has come, which may be of a declaration that was resized since."""
        if self.instances.get((vm.zone, vm.name)) is vm:
            self.ended_at = self.clock.now
        self._vanish(vm)

    def _vanish(self, vm: Instance) -> None:
        if self.instances.get((vm.zone, vm.name)) is not vm:
            return
        del self.instances[vm.zone, vm.name]
        self._log(f"cloud: {vm.name} is gone")
        self.on_gone(vm.name)
        self._tell(vm)
