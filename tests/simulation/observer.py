"""Whoever looks on: what the user declared and what Compute Engine was asked and has, never what the controller thinks.

Its rules are written down here once more, from what README and `controller/decisions/capacity.py` promise, and not
shared with the code under test. Simulated sequences report each call to it as it happens, emulated ones from what the
emulator lists and the times in the journal. What is not as it must be is in `broken`, with the promise that it breaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from transient_magics.spec import PARAMETER_SERVER, WORKER

CLOSED = {"stockout": (30.0, 900.0), "quota": (300.0, 3600.0), "quota everywhere": (300.0, 3600.0)}
DELAYED = {"access": (30.0, 900.0), "other": (2.0, 300.0)}
SHORTEST, LONGEST = 0.75, 1.25
"""Waits are spread by a quarter either way."""
AT_ONCE = 5.0
"""Seconds from the notice of a VM, as a controller hears it, to the request for another one."""
MOST_FAILED = 2

PROMISES = (
    "not healed", "leaked", "places doubled", "names used again", "closed zones asked", "asked for nothing",
    "limits passed", "strangers touched", "steps lost", "numbers used again", "training stands still",
)  # fmt: skip
"""What may never be found."""

Slot = tuple[str, int]


@dataclass(frozen=True)
class Wanted:
    """A VM that is declared: where it may be, and whether it is transient."""

    kind: str
    zones: tuple[str, ...]
    transient: bool


@dataclass
class Seen:
    """One request for a VM and what became of it; times in seconds since 1970, 0 for not yet."""

    name: str
    slot: Slot
    kind: str
    zone: str
    model: str
    asked: float
    hourly: float = 0.0
    made: float = 0.0
    billed: float = 0.0
    ran: float = 0.0
    refused: float = 0.0
    cause: str = ""
    noticed: float = 0.0
    gone: float = 0.0
    written_off: float = 0.0
    """Since when the journal says so."""
    held_until: float = 0.0
    """Of a refusal: when the VM under notice that had its quota is gone, at the latest."""
    useless: float = 0.0
    """Since when it is known to be of no use (its boot failed)."""

    @property
    def coming_or_there(self) -> bool:
        """Neither refused nor gone nor about to be."""
        return not (self.refused or self.gone or self.noticed or self.useless)


@dataclass
class Observer:
    """`wish`: the VMs that are declared now. `grace`: how many seconds may pass from the moment at which something can
    be done until it is."""

    wish: Callable[[], dict[Slot, Wanted]]
    fallback: float | None = None
    grace: float = 90.0
    log: Callable[[str], None] = lambda line: None
    seen: dict[str, Seen] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    found: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    """The longest that a place stayed without a VM that could have been asked for, in seconds."""
    _overdue: dict[str, float] = field(default_factory=dict)
    _rows: dict[tuple[str, str, str], list[Seen]] = field(default_factory=dict)
    _ran_at: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _held: list[Seen] = field(default_factory=list)
    _by_slot: dict[Slot, list[Seen]] = field(default_factory=dict)
    _failed: Counter[str] = field(default_factory=Counter)

    def breaks(self, sort: str, what: str) -> None:
        """Note what is not as it must be."""
        assert sort in PROMISES, sort
        if what not in self.broken:
            self.broken[what] = sort
            self.found[sort] += 1
            self.log(f"BROKEN: {sort}: {what}")

    # --- what happens ------------------------------------------------------------------------------------------------
    def asked(self, name: str, slot: Slot, kind: str, zone: str, model: str, now: float, hourly: float = 0.0) -> None:
        """A VM is asked for that was not asked for before."""
        if name in self.seen:
            self.breaks("names used again", f"{name} is asked for again")
            return
        if slot not in self.wanted:
            self.breaks("asked for nothing", f"{name} is asked for, for no declared place")
        earliest = self._opens(kind, model, zone, SHORTEST)
        if now < earliest - 1e-3:
            self.breaks("closed zones asked", f"{name} is asked for in {zone} {earliest - now:.0f} s before it opens")
        if self._hopeless(slot, kind):
            self.breaks("asked for nothing", f"{name} is asked for though VMs of its kind, or servers, did not boot")
        if rival := next((each.name for each in self._of(slot) if each.kind == kind and each.coming_or_there), ""):
            self.breaks("places doubled", f"{name} is asked for in the place of {rival}, which is there")
        self.seen[name] = Seen(name, slot, kind, zone, model, now, hourly)
        self._by_slot.setdefault(slot, []).append(self.seen[name])

    def made(self, name: str, now: float) -> None:
        """It exists."""
        self.seen[name].made = now

    def runs(self, name: str, now: float) -> None:
        """Compute Engine lists it as RUNNING: it costs money."""
        self.seen[name].billed = now

    def refused(self, name: str, cause: str, now: float) -> None:
        """The controller was told that it cannot be had."""
        vm = self.seen[name]
        vm.refused, vm.cause = now, cause
        holders = [each for each in self.seen.values() if self._holds_quota(each, vm)]
        if holders:
            vm.held_until = min((each.written_off or each.gone or now + 330.0) for each in holders) + 10.0
            self._held.append(vm)
        elif cause in CLOSED:
            self._rows.setdefault((vm.kind, vm.model, vm.zone), []).append(vm)

    def _holds_quota(self, vm: Seen, refused: Seen) -> bool:
        """Return whether a VM under notice had the quota that a request lacked."""
        there = (
            vm.kind == refused.kind and vm.noticed and not (vm.written_off and vm.written_off + 5.0 <= refused.refused)
        )
        if refused.cause == "quota everywhere":
            return bool(there)
        same = vm.model == refused.model and _region(vm.zone) == _region(refused.zone)
        return bool(there and same and refused.cause == "quota")

    def ran(self, name: str, now: float) -> None:
        """The controller was told that it runs: the zone has room, and its place had what it wanted."""
        vm = self.seen[name]
        vm.ran = vm.ran or now
        row = self._rows.get((vm.kind, vm.model, vm.zone), [])
        if any(each.cause.startswith("quota") and each.refused > vm.asked for each in row):
            return  # it has its part of the quota
        self._rows.pop((vm.kind, vm.model, vm.zone), None)
        self._ran_at[vm.kind, vm.model, vm.zone] = now

    def answered(self, name: str) -> None:
        """It answers: VMs of its kind do boot."""
        self._failed.pop(self._boots_as(self.seen[name].slot, self.seen[name].kind), None)

    def failed(self, name: str, now: float) -> None:
        """The controller was told that it will never answer."""
        vm = self.seen[name]
        vm.useless = now
        self._failed[self._boots_as(vm.slot, vm.kind)] += 1

    def noticed(self, name: str, now: float) -> None:
        """The controller was told that it will be taken away."""
        self.seen[name].noticed = self.seen[name].noticed or now

    def gone(self, name: str, now: float) -> None:
        """It does not exist any more, or never will."""
        self.seen[name].gone = self.seen[name].gone or now

    def declared_anew(self) -> None:
        """The user resized the cluster: what did not boot may be tried again."""
        self._failed.clear()

    @property
    def wanted(self) -> dict[Slot, Wanted]:
        """The VMs that are declared now."""
        return self.wish()

    @property
    def given_up(self) -> list[Slot]:
        """Declared places for which no VM is asked any more."""
        return [slot for slot in self.wanted if self._hopeless(slot, self.wanted[slot].kind)]

    # --- what must follow --------------------------------------------------------------------------------------------
    def look(self, now: float, excused: bool = False) -> None:
        """See what is overdue. `excused`: nobody can do anything just now, as while no controller runs."""
        if excused:
            self._overdue.clear()
            return
        wanted = self.wanted
        late = {
            f"{slot[0]} {slot[1]}": "asked for" for slot in wanted if self._may_be_asked_for(slot, wanted[slot], now)
        }
        latest = [made[-1] for made in self._by_slot.values()]
        at_once = {f"{each.slot[0]} {each.slot[1]}" for each in latest if each.noticed and not each.gone}
        late |= dict.fromkeys(self._unwanted(), "deleted")
        for what in [what for what in self._overdue if what not in late]:
            self.slowest = max(self.slowest, now - self._overdue.pop(what))
        for what, due in late.items():
            waits = now - self._overdue.setdefault(what, now)
            # A notice leaves half a minute, and whoever hears of it has nothing to wait for.
            if waits > (AT_ONCE if what in at_once else self.grace):
                self.breaks("not healed" if due == "asked for" else "leaked", f"{what} is not {due}")

    def settled_by(self, now: float) -> float:
        """The moment by which every declared place can be asked for again, if nothing is refused from `now` on."""
        return max([now, *(self._asked_for_by(slot, place) for slot, place in self.wanted.items())])

    def missing(self) -> list[Slot]:
        """Declared places in which no VM runs."""
        there = {(each.slot, each.kind) for each in self.seen.values() if each.ran and each.coming_or_there}
        return [
            slot
            for slot, place in self.wanted.items()
            if (slot, place.kind) not in there and not self._hopeless(slot, place.kind)
        ]

    def existing(self) -> list[str]:
        """What exists."""
        return [each.name for each in self.seen.values() if each.made and not each.gone]

    def cost(self, now: float) -> float:
        """What Compute Engine asks for it all, in US dollars: nothing from the notice on."""
        return sum(
            each.hourly * ((each.noticed or each.gone or now) - each.billed) / 3600
            for each in self.seen.values()
            if each.billed
        )

    # --- the promises ------------------------------------------------------------------------------------------------
    def _of(self, slot: Slot) -> Iterable[Seen]:
        return self._by_slot.get(slot, ())

    def _boots_as(self, slot: Slot, kind: str) -> str:
        return f"{slot[0]} {kind}"

    def _hopeless(self, slot: Slot, kind: str) -> bool:
        """No VM may be asked for in this place: those like it did not boot, or a worker's parameter server did not."""
        return (slot[0] == WORKER and self.stranded) or self._failed[self._boots_as(slot, kind)] >= MOST_FAILED

    @property
    def stranded(self) -> bool:
        """Whether a parameter server is missing that is asked for no more."""
        return bool(self._lost_servers)

    @property
    def stranded_since(self) -> float:
        """Since when the journal says that the last one is gone; 0 where it does not."""
        return max((each.written_off for each in self._lost_servers), default=0.0)

    @property
    def _lost_servers(self) -> list[Seen]:
        latest = [made[-1] for slot, made in self._by_slot.items() if slot[0] == PARAMETER_SERVER]
        given_up = [each for each in latest if self._failed[self._boots_as(each.slot, each.kind)] >= MOST_FAILED]
        return [each for each in given_up if not each.coming_or_there]

    def _unwanted(self) -> list[str]:
        """VMs that exist, were answered for, and have no place or no use."""
        wanted = self.wanted
        return [
            each.name
            for each in self.seen.values()
            if each.made and each.ran and not each.gone and not each.noticed
            and (each.useless or each.slot not in wanted or wanted[each.slot].kind != each.kind)
        ]  # fmt: skip

    def _may_be_asked_for(self, slot: Slot, place: Wanted, now: float) -> bool:
        if any(each.kind == place.kind and each.coming_or_there for each in self._of(slot)) or self._hopeless(
            slot, place.kind
        ):
            return False
        return now >= self._asked_for_by(slot, place)

    def _asked_for_by(self, slot: Slot, place: Wanted) -> float:
        """The latest moment at which some zone is open for this place and the place need not wait itself."""
        tried = self._tried(slot, place.kind)
        waits = [each for each in tried if each.cause in DELAYED]
        own = waits[-1].refused + LONGEST * _wait(DELAYED[waits[-1].cause], len(waits)) if waits else 0.0
        model = "spot" if place.transient else "standard"
        opens = min(self._opens(place.kind, model, zone, LONGEST) for zone in place.zones)
        if (since := self._falls_back_at(place, tried)) is not None:
            opens = min(opens, max(since, min(self._opens(place.kind, "standard", z, LONGEST) for z in place.zones)))
        return max(own, opens)

    def _falls_back_at(self, place: Wanted, tried: list[Seen]) -> float | None:
        short = [each for each in tried if each.cause in CLOSED]
        return short[0].asked + self.fallback if self.fallback is not None and short and place.transient else None

    def _tried(self, slot: Slot, kind: str) -> list[Seen]:
        """The refusals in this place, of the kind that it wants now, since a VM of that kind ran in it."""
        same = [each for each in self._of(slot) if each.kind == kind]
        since = max((each.ran for each in same), default=0.0)
        return sorted((each for each in same if each.refused > since), key=lambda each: each.refused)

    def _opens(self, kind: str, model: str, zone: str, spread: float) -> float:
        """When a zone that refused opens again."""
        opens, ran_at = 0.0, self._ran_at.get((kind, model, zone), 0.0)
        for (k, m, z), row in self._rows.items():
            if k != kind:
                continue
            count, last = 0, 0.0
            for vm in row:
                count, last = count + (vm.asked >= last), vm.refused
                here = z == zone and m == model
                here = here or (vm.cause == "quota" and m == model and _region(z) == _region(zone))
                if last > ran_at and (here or vm.cause == "quota everywhere"):
                    opens = max(opens, last + spread * _wait(CLOSED[vm.cause], count))
        if spread > 1.0 and self._held:
            held = [vm.held_until for vm in self._held if vm.kind == kind and vm.refused > ran_at]
            opens = max([opens, *held])
        return opens


def _wait(bounds: tuple[float, float], count: int) -> float:
    return min(bounds[0] * 2 ** min(count - 1, 30), bounds[1])


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]
