"""A Compute Engine that fails in every way, on a clock that a test moves, under the controller's pure core.

The core decides; this carries out as the controller's edge does it: it records a request before it is made, retries it
under the same identity, looks at what exists every few seconds, and forgets all but the journal when it is killed.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, fields

from transient_magics.controller.core import BeginDeletion, DeleteVm, RequestVm, Situation, decide
from transient_magics.journal import ClusterState, Event, VmState, events, replay
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup

PRICE = PriceLine("n1-standard-8", 1.0, 3.0, "test")
ZONES = ("us-west1-a", "us-west1-b", "us-central1-a")
FAULTS = ("stockout", "quota", "forbidden", "lost before", "lost after", "slow", "preempted in creation")


@dataclass
class Instance:
    """A VM that exists, and since when."""

    zone: str
    made: float
    standard: bool


@dataclass
class Call:
    """A request under way: when it ends, and as what."""

    vm: str
    ends: float
    outcome: str


@dataclass
class World:
    """One cluster and its cloud. `rate`: how likely a request, a VM or the controller meets a fault."""

    chance: random.Random
    rate: float
    spec: ClusterSpec = field(
        default_factory=lambda: ClusterSpec(
            name="c", groups=(WorkerGroup("v100", 3), WorkerGroup("p100", 1, ZONES[2])), zones=ZONES[:1],
            prices={"v100": PRICE, "p100": PRICE, "parameter-server": PRICE}, candidates={"v100": ZONES},
            declared_at=1e9, max_seconds=1e7, idle_seconds=1e7, fallback_seconds=1800.0,
        )
    )  # fmt: skip
    now: float = 1e9
    state: ClusterState = field(default_factory=ClusterState)
    instances: dict[str, Instance] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    kills: int = 0

    def __post_init__(self) -> None:
        self._seq = itertools.count(1)
        self._looked = self.now
        self.happens(events.ClusterDeclared(spec=self.spec.to_dict()))

    def happens(self, event: Event) -> None:
        """Append to the journal; now and then a fact is delivered twice."""
        for _ in range(2 if self.chance.random() < 0.05 and not isinstance(event, events.VmRequested) else 1):
            given = {each.name: getattr(event, each.name) for each in fields(event)}
            given |= {"seq": next(self._seq), "time": int(self.now * 1e9)}
            self.state = replay([type(event)(**given)], self.state)

    def step(self, seconds: float) -> None:
        """Time passes: calls end, VMs are taken, the controller is killed; then it decides."""
        self.now += seconds
        for call in [each for each in self.calls.values() if each.ends <= self.now]:
            self._ends(call)
        self._weather(seconds)
        if self.now - self._looked >= 5:
            self._looked = self.now
            self._compare()
        for decision in decide(Situation(self.now, self.state)):
            match decision:
                case RequestVm():
                    self._request(decision)
                case DeleteVm():
                    self.calls.setdefault(f"delete {decision.vm}", Call(decision.vm, self.now + 3, "deleted"))
                case BeginDeletion():
                    self.happens(events.ClusterDeleting(reason=decision.reason))
                case _:
                    pass

    def settle(self) -> None:
        """No fault any more, for as long as the longest wait."""
        self.rate = 0.0
        for _ in range(90):
            self.step(60.0)

    def _weather(self, seconds: float) -> None:
        for name, instance in list(self.instances.items()):
            if not instance.standard and self.chance.random() < self.rate * seconds / 600:
                vm = self.state.vms.get(name)
                if vm and vm.running_at and self.chance.random() < 0.5:
                    self.happens(events.VmPreemptionNotice(vm=name))
                del self.instances[name]
        if self.chance.random() < self.rate * seconds / 120:
            self.kills += 1
            self.calls.clear()  # what was asked for may have happened or not; nobody waits for the answer

    def _request(self, decision: RequestVm) -> None:
        if decision.vm in self.calls:
            return
        self.names.append(decision.vm)
        given = {name: getattr(decision, name) for name in RequestVm.__slots__}
        self.happens(events.VmRequested(**given, machine_type="n1-standard-8", hourly=1.0, on_demand_hourly=3.0))
        self._insert(self.state.vms[decision.vm])

    def _insert(self, vm: VmState) -> None:
        """One logical request; the same one again finds the VM that it made."""
        fault = self.chance.choice(FAULTS) if self.chance.random() < self.rate else ""
        seconds = 300.0 if fault == "slow" else self.chance.uniform(1, 30)
        if vm.name in self.instances:
            fault = ""
        if fault in ("", "slow", "lost after"):
            # It exists from early on, whoever hears of it.
            self.instances.setdefault(vm.name, Instance(vm.zone, self.now, vm.provisioning_model == "standard"))
        self.calls[vm.name] = Call(vm.name, self.now + seconds, fault or "runs")

    def _ends(self, call: Call) -> None:
        key = call.vm if call.outcome != "deleted" else f"delete {call.vm}"
        self.calls.pop(key, None)
        match call.outcome:
            case "deleted":
                self.instances.pop(call.vm, None)
                self.happens(events.VmDeleted(vm=call.vm, reason="asked"))
            case "runs" | "slow" | "lost after":
                if call.vm in self.instances:
                    self.happens(events.VmRunning(vm=call.vm, address="10.128.0.2"))
                    self.happens(events.VmReady(vm=call.vm))
                else:
                    self.happens(events.VmRevoked(vm=call.vm, signal="api"))
            case "preempted in creation":
                self.happens(events.VmRevoked(vm=call.vm, signal="api"))
            case "lost before":
                self._insert(self.state.vms[call.vm])  # the retry
            case cause:
                known = {"stockout": "stockout", "quota": "quota"}.get(cause, "other")
                self.happens(events.VmRefused(vm=call.vm, reason=cause, cause=known))

    def _compare(self) -> None:
        """What Google lists against what the journal says."""
        for vm in self.state.living:
            if vm.name in self.calls or f"delete {vm.name}" in self.calls:
                continue
            if not vm.running_at:
                self._insert(vm)  # an earlier controller asked for it
            elif vm.name not in self.instances:
                self.happens(events.VmRevoked(vm=vm.name, signal="api"))
        living = {vm.name for vm in self.state.living}
        for name in list(self.instances):
            if name not in living and name not in self.calls:
                del self.instances[name]
