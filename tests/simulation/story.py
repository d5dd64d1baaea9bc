"""A user, the weather, and a cluster: everything that happens follows from one seed.

`sequence(seed)` is an hour or a few: some minutes of faults, then none, then the cluster is deleted. `whole(seed)` is
the same with runs that are trained: a chief and workers on the VMs.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace

from tests.simulation.clock import Clock
from tests.simulation.cloud import Cloud, Weather
from tests.simulation.observer import Observer, Slot, Wanted
from tests.simulation.steering import Steering
from tests.simulation.training import Training
from transient_magics.controller.decisions import core
from transient_magics.controller.decisions.core import Situation
from transient_magics.journal import Event, RunState, events
from transient_magics.protocol.vm_events import TrainFailed, TrainFinished
from transient_magics.spec import CONTROLLER, PARAMETER_SERVER, WORKER, ClusterSpec, PriceLine, WorkerGroup

START = 1e9
PRICE = PriceLine("n1-standard-8", 1.0, 3.0, "test")
ZONES = ("us-west1-a", "us-west1-b", "us-central1-a")
_LOOK = 10.0
KINDS = ("v100", "p100", "parameter-server")


class Story:
    """One cluster from its declaration to its end."""

    def __init__(self, seed: int, trains: bool = False, **declared: object) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock = Clock(START)
        self.lines: list[str] = []
        spec = self._declaration(**declared)
        self.observer = Observer(self._wanted, spec.fallback_seconds, log=self.log)
        self.cloud = Cloud(self.clock, self.chance, self.observer, self.log)
        for name, labels in (
            ("c-worker-3", {"transient-magics-cluster": "c", "transient-magics-id": "00000001"}),
            ("c-worker-5", {"transient-magics-cluster": "c"}),
            ("c-ps-1", {}),
            ("cc-worker-0", {"transient-magics-cluster": "cc", "transient-magics-id": "00000002"}),
        ):
            self.cloud.stranger(name, ZONES[0], labels)
        self.cut_off: dict[str, float] = {}
        """VMs that do not answer until a moment."""
        self.ready_at, self.run_ended_at, self.runs = 0.0, 0.0, 0
        self.deleted_at = 0.0
        self._training = False
        self._trains, self._resized = trains, False
        self.training: Training | None = None
        self.idle_hands = 0.0
        """Seconds in which nobody was in charge, or nobody was let in."""
        self._declares(spec)
        self.steering = Steering(self.clock, self.chance, self.cloud, spec, self.log)
        self.steering.on_event = self._noted
        self.steering.reaches = lambda vm: self.cut_off.get(vm, 0.0) <= self.clock.now
        self.steering.conduct = self._conduct
        self.cloud.on_gone = self._gone
        self.cloud.on_taken = self._taken
        self.clock.after(_LOOK, self._look)

    def log(self, line: str) -> None:
        """A line of the history."""
        self.lines.append(f"{self.clock.now - START:.3f} {line}")

    def _declaration(self, **declared: object) -> ClusterSpec:
        chance = self.chance
        usual: dict[str, object] = {
            "max_seconds": chance.choice([1e6, 1e6, 5400.0]),
            "max_cost": chance.choice([None, None, 15.0]),
            "idle_seconds": chance.choice([1e6, 900.0]),
            "fallback_seconds": chance.choice([None, 1800.0]),
            "controller": chance.choice(["local", "local", "cluster"]),
        }
        return ClusterSpec(
            name="c", id="0badcafe", groups=(WorkerGroup("v100", 3), WorkerGroup("p100", 1, ZONES[2])), zones=ZONES[:1],
            prices={"v100": PRICE, "p100": PRICE, "parameter-server": PRICE, "controller": PRICE},
            candidates={"v100": ZONES}, declared_at=START, **(usual | declared),  # type: ignore[arg-type]
        )  # fmt: skip

    @property
    def hours(self) -> float:
        """How long it went on."""
        return (self.clock.now - START) / 3600

    # --- what the user wants -----------------------------------------------------------------------------------------
    def _wanted(self) -> dict[Slot, Wanted]:
        now, spec = self.clock.now, self._spec
        idle_from = max(self.ready_at, self.run_ended_at) if self.ready_at and not self._training else now
        idle_from = min(idle_from, self.observer.stranded_since or idle_from)
        if self.deleted_at or now >= self._ends_at or now - idle_from >= 2 * spec.idle_seconds:
            return {}
        if now - idle_from >= spec.idle_seconds:
            return self._on_demand
        return self._numbered() if self._resized else self._all

    def _numbered(self) -> dict[Slot, Wanted]:
        """After a resize VMs that are still wanted keep their places' numbers, which only the controller knows.

        It may choose the numbers, and nothing else.
        """
        chosen = [
            place for place in core.places_now(Situation(self.clock.now, self.steering.state)) if place.role == WORKER
        ]
        mine = {each.kind: each for slot, each in self._all.items() if slot[0] == WORKER}
        if not chosen or any(place.accelerator not in mine for place in chosen):
            return self._all
        numbered = {(WORKER, place.slot): mine[place.accelerator] for place in chosen}
        declared = sorted(each.kind for slot, each in self._all.items() if slot[0] == WORKER)
        if sorted(each.kind for each in numbered.values()) != declared:
            self.observer.breaks("not healed", f"{declared} are declared, and {sorted(numbered)} wanted")
        return self._on_demand | numbered

    def _declares(self, spec: ClusterSpec) -> None:
        """From here on this is what the user wants."""
        self._spec, self._ends_at = spec, spec.ends_at
        kinds = {(PARAMETER_SERVER, 0): "parameter-server"} | (
            {(CONTROLLER, 0): CONTROLLER} if spec.controller_vm else {}
        )
        self._on_demand = {slot: Wanted(kind, ZONES, False) for slot, kind in kinds.items()}
        self._all = dict(self._on_demand)
        each = [group for group in spec.groups for _ in range(group.count)]
        for number, group in enumerate(each):
            zones = (group.zone,) if group.zone else ZONES
            self._all[WORKER, number] = Wanted(group.accelerator, zones, True)

    def resize(self) -> None:
        """Other workers."""
        counts = self.chance.choice([(3, 1), (1, 1), (4, 0), (2, 2), (0, 2)])
        groups = (WorkerGroup("v100", counts[0]), WorkerGroup("p100", counts[1], ZONES[2]))
        self._declares(replace(self._spec, groups=tuple(group for group in groups if group.count)))
        self._resized = True
        self.steering.record(events.ClusterResized(spec=self._spec.to_dict()))
        self.observer.declared_anew()

    def run(self) -> None:
        """Begin a run, or end the one there is."""
        if active := self.steering.state.current_or_next_run:
            if not self.training:
                self.steering.record(TrainFinished(run=active.name, step=1, stopped=True))
        elif self.steering.state.phase not in ("deleting", "deleted"):
            self.runs += 1
            while f"run-{self.runs}" in self.steering.state.of(RunState):
                self.runs += 1
            self.steering.record(events.WorkDeclared(of="run", work=f"run-{self.runs}", spec={"train_steps": 9}))
            if self._trains:
                self.training = Training(self, f"run-{self.runs}", self.chance.choice([20_000, 10**7]))

    def delete(self) -> None:
        """The user has enough."""
        if self.steering.state.phase not in ("deleting", "deleted"):
            self.steering.record(events.ClusterDeleting(reason="asked"))

    def _noted(self, event: Event) -> None:
        match event:
            case events.ClusterReady():
                self.ready_at = self.ready_at or self.clock.now
            case events.WorkDeclared():
                self._training = True
            case TrainFinished() | TrainFailed():
                self.run_ended_at, self._training = self.clock.now, self.steering.state.current_or_next_run is not None
            case events.VmDeleted() | events.VmRevoked() if event.vm in self.observer.seen:
                self.observer.seen[event.vm].written_off = self.clock.now
            case events.ClusterDeleting():
                self.deleted_at = self.deleted_at or self.clock.now
            case _:
                pass

    def _conduct(self) -> None:
        active = self.steering.state.current_or_next_run
        if active and self.training:
            self.training.conduct()
        elif active and self.steering.state.phase == "deleting":
            self.steering.record(TrainFinished(run=active.name, step=1, stopped=True))

    # --- what happens ------------------------------------------------------------------------------------------------
    def _gone(self, instance: str) -> None:
        name = instance.removeprefix("c-")
        if name in self.observer.seen:
            self.observer.gone(name, self.clock.now)

    def _taken(self, instance: str) -> None:
        """The VM's agent tells, if it is heard."""
        name = instance.removeprefix("c-")
        vm = self.steering.state.vms.get(name)
        if vm and vm.ready_at and self.steering.reaches(name) and self.chance.random() < 0.8:
            self.clock.after(0.1, lambda: self.steering.notice(name))

    def _look(self) -> None:
        self.clock.after(_LOOK, self._look)
        now, state = self.clock.now, self.steering.state
        self.cloud.storm(_LOOK, [vm.name for vm in self.cloud.instances.values() if vm.spot])
        powerless = not self.steering.alive or self.cloud.signed_out
        self.idle_hands += _LOOK if powerless else 0.0
        self.observer.look(now, powerless)
        if self._spec.max_cost is not None:
            slack = self._spec.on_demand_hourly * (self.observer.grace + 60 + self.idle_hands) / 3600
            if (cost := self.observer.cost(now)) > self._spec.max_cost + slack:
                self.observer.breaks("limits passed", f"it cost ${cost:.2f} of ${self._spec.max_cost:.2f}")
        ended = state.phase in ("deleting", "deleted")
        if not ended and not powerless and now > self._ends_at + self.observer.grace + self.idle_hands:
            self.observer.breaks("limits passed", "it goes on beyond its limit")

    def weather(self) -> None:
        """Another weather, or one thing more that goes wrong."""
        chance, now = self.chance, self.cloud.weather
        kind, zone = chance.choice(KINDS), chance.choice(ZONES)
        what = chance.choice([
            "fair", "sold out", "sold out", "sold out everywhere", "scarce", "quota", "quota everywhere",
            "access", "other", "taken", "taken", "lost", "slow", "taken early", "no boot", "signed out",
        ])  # fmt: skip
        self.log(f"weather: {what} {kind} {zone}")
        match what:
            case "fair":
                self.cloud.weather = Weather()
            case "sold out":
                now.sold_out.add((kind, zone))
            case "sold out everywhere":
                now.sold_out |= {(kind, zone) for zone in ZONES}
            case "scarce":
                now.scarce |= {(kind, zone) for zone in ZONES}
            case "quota":
                now.no_quota.add((kind, zone.rpartition("-")[0]))
            case "quota everywhere":
                now.no_quota.add((kind, "*"))
            case "taken":
                now.taken = chance.choice([2.0, 20.0, 60.0])
            case "lost":
                now.lost = chance.choice([0.1, 0.3])
            case "slow":
                now.slow = 300.0
            case "taken early":
                now.taken_early = chance.choice([0.2, 0.7])
            case "no boot":
                now.no_boot = chance.choice([0.3, 1.0])
            case "signed out":
                now.signed_out_until = self.clock.now + chance.uniform(10, 600)
            case _:
                now.forbidden = what

    def fault(self) -> None:
        """Something happens to one process or VM."""
        chance, living = self.chance, [vm for vm in self.steering.state.living if vm.running_at]
        if self.training and chance.random() < 0.3:
            chance.choice([self.training.kill_chief, self.training.kill_worker])()
            return
        what = chance.choice(["kill", "kill", "notice", "notice", "host", "cut off"])
        if what == "kill" or not living:
            self.steering.kill(chance.uniform(0.5, 20))
            return
        vm = chance.choice(living)
        if what == "cut off" and not vm.ready_at:
            what = "host"
        self.log(f"fault: {what} {vm.name}")
        match what:
            case "notice":
                self.cloud.take(f"c-{vm.name}")
            case "host":
                self.cloud.lose(f"c-{vm.name}")
            case _:
                self.cut_off[vm.name] = self.clock.now + chance.choice([20.0, 50.0, 1e9])

    def pass_time(self, seconds: float) -> None:
        """Let it pass."""
        self.clock.run(self.clock.now + seconds)

    # --- the sequence ------------------------------------------------------------------------------------------------
    def play(self) -> Story:
        """Faults, then none, then the end; what was not as it must be is with the observer."""
        for _ in range(self.chance.randint(4, 40)):
            self.chance.choices([self.weather, self.fault, self.resize, self.run], [5, 5, 1, 1])[0]()
            self.pass_time(self.chance.choice([5.0, 30.0, 120.0, 600.0]))
        if self.chance.random() < 0.6:
            self.settle()
        if self.chance.random() < 0.5:
            self.cloud.weather = Weather()
        self.delete()
        for _ in range(self.chance.randint(0, 3)):
            self.pass_time(self.chance.uniform(0, 40))
            self.steering.kill(self.chance.uniform(0.5, 20))
        self.pass_time(60)
        self.end()
        return self

    def settle(self) -> None:
        """No fault any more: soon what is declared is there, and nothing else."""
        self.log("weather: fair for good")
        if self.training:
            self.training.crashes = 0.0
        self.cloud.weather = Weather()
        self.pass_time(60)
        due = self.observer.settled_by(self.clock.now)
        heals = self.observer.grace + 450
        self.pass_time(due - self.clock.now + heals)
        while not self.deleted_at and self.clock.now - self.cloud.ended_at < heals:
            self.pass_time(heals)  # a VM met its own end, and is replaced as any that is lost
        missing = self.observer.missing()
        if missing:
            self.observer.breaks("not healed", f"{missing} are missing though nothing is in the way")
        ready = [vm.name for vm in self.steering.state.living if vm.state == "ready"]
        if not missing and not self.deleted_at and len(ready) < len(self.observer.wanted) - len(self.observer.given_up):
            self.observer.breaks("not healed", f"only {ready} answer")
        hands = any(vm.role == WORKER and vm.state == "ready" for vm in self.steering.state.living)
        hands = hands and not self.observer.stranded
        if hands and not missing and self.training and not self.training.over and not self.deleted_at:
            before = self.training.step
            self.pass_time(150)
            if self.clock.now - self.cloud.ended_at < 150:
                return
            moved = self.training.over or self.deleted_at or self.training.step > before
            trains = self.training.active or self.training.at_its_end
            if not moved or not (self.training.over or self.deleted_at or trains):
                self.observer.breaks("training stands still", f"{self.training.active} train, at step {before}")

    def end(self) -> None:
        """After a deletion and without faults nothing is left, and nobody else's VM was touched."""
        self.cloud.weather = Weather()
        self.pass_time(600)
        if left := self.observer.existing():
            self.observer.breaks("leaked", f"{left} are left")
        if not self.steering.state.over:
            self.observer.breaks("not healed", f"the cluster is {self.steering.state.phase} for ever")
        if touched := self.cloud.touched():
            self.observer.breaks("strangers touched", f"{touched} of others are not as they were")


def sequence(seed: int) -> Story:
    """One sequence."""
    return Story(seed).play()


def whole(seed: int) -> Story:
    """One sequence with training."""
    return Story(seed, trains=True).play()


def main() -> None:
    """Print the history of a seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--whole", action="store_true", help="with runs that are trained")
    given = parser.parse_args()
    story = (whole if given.whole else sequence)(given.seed)
    print("\n".join(story.lines))


if __name__ == "__main__":
    main()
