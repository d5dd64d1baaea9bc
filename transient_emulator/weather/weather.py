"""The weather of one emulator: what is set, kept across kill -9, and asked by everything that it touches.

All clusters of the user share it. It is written to `weather.json` in the state directory before a change is answered.
Whoever has to act on a change registers with `on_change`.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transient_magics import catalog
from transient_magics.catalog import published
from transient_magics.clock import Clock, rate_of
from transient_magics.errors import DeclarationError
from transient_magics.files import write_atomically

from ..instances import Record
from ..rest import wire
from . import capacity, chance, reading, startup
from .availability import Falling, Replay
from .capacity import Refusal, Wanted
from .files import LifetimeRow, ScheduleRow
from .links import check_links
from .reclaiming import Reclaiming
from .revocations import Every, FromLifetimes, FromSchedule, Nothing, Policy, Published
from .settings import SCALED_NOTICE, GpuSpeeds, Settings, Stockout
from .startup import Startup

_LOG = logging.getLogger(__name__)
_PROCESS = ("revocations", "availability", "waves", "seed")
PACE_ATTRIBUTE, GPU_ATTRIBUTE = "emulator-pace", "emulator-gpu"


class Weather:
    """What is set, and what follows from it for a VM."""

    def __init__(self, state: Path, boot_seconds: float, notice_seconds: float, own_network: bool) -> None:
        """`boot_seconds` is what VMs take to boot while the weather says nothing about it, `notice_seconds` what they
        then have until their end; with `own_network` the emulator and its VMs have network namespaces of their own."""
        self._own_network = own_network
        self._path, self._boot_seconds = state / "weather.json", boot_seconds
        self.usual_notice = notice_seconds
        self._listeners: list[Callable[[], None]] = []
        self.settings, self.clock = Settings(seed=secrets.randbelow(1_000_000)), Clock()
        self.since = time.time()
        self.progress: dict[str, Any] = {}
        self._made: Counter[tuple[str, str]] = Counter()
        self._load()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have `listener` called whenever something was set."""
        self._listeners.append(listener)

    def change(self, given: Mapping[str, Any]) -> None:
        """Set what is given; `reset` begins with fair weather. Raises DeclarationError and then changes nothing."""
        asked = dict(given)
        reset = asked.pop("reset", False)
        if not isinstance(reset, bool):
            raise DeclarationError(f"reset is true or false, not '{reset}'")
        now = time.time()
        settings = (Settings(seed=self.settings.seed) if reset else self.settings).changed(asked)
        if settings.link and settings.link != self.settings.link:
            check_links(settings.link, self._own_network)
        before = self.settings, self.clock, self.since, self.progress
        self.settings, self.clock = settings, self.clock.running_at(rate_of(settings.hours_per_minute), now)
        if reset or not asked.keys().isdisjoint(_PROCESS):
            self.since, self.progress = now, {}
        try:
            self.save()
        except OSError:
            self.settings, self.clock, self.since, self.progress = before
            raise
        for listener in self._listeners:
            listener()

    def save(self) -> None:
        """Write it down. Raises OSError."""
        content = {
            "settings": self.settings.to_store(), "anchors": self.clock.anchors, "since": self.since,
            "progress": self.progress,
        }  # fmt: skip
        write_atomically(self._path, json.dumps(content), durable=False)

    def _load(self) -> None:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            self.settings = self.settings.changed(content["settings"])
            self.clock = Clock(tuple((float(a), float(b), float(rate)) for a, b, rate in content["anchors"]))
            self.since, self.progress = float(content["since"]), dict(content["progress"])
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, DeclarationError):
            _LOG.exception("%s cannot be read; the weather is fair again", self._path)
            self._path.unlink()

    # What follows from it.

    def policy(self) -> Policy:
        """What takes VMs away, made anew from what is set."""
        policy = self._revocations()
        settings = self.settings
        if settings.availability:
            policy = Falling(self._replay(), policy, settings.seed)
        return Reclaiming(settings.reclaim, policy, settings.seed) if settings.reclaim else policy

    def _replay(self) -> Replay:
        return Replay(self.settings.availability, self.clock, self.since)

    def _revocations(self) -> Policy:
        settings, rained = self.settings, self.settings.revocations
        match rained.kind:
            case "every":
                return Every(rained.period, self.since, settings.seed, time.time())
            case "published":
                return Published(self.clock, self.since, settings.seed, settings.waves)
            case "file":
                rows = rained.rows
                lifetimes = [row for row in rows if isinstance(row, LifetimeRow)]
                schedule = [row for row in rows if isinstance(row, ScheduleRow)]
                if lifetimes:
                    return FromLifetimes(lifetimes, self.clock, self.progress)
                return FromSchedule(schedule, self.clock, self.since, settings.seed, self.progress)
        return Nothing()

    def refusal(self, record: Record, present: list[Record]) -> Refusal | None:
        """How the request for this VM will fail, if it does; ApiError 403 where it does at once."""
        starting = {**record.resource, "status": "PROVISIONING"}
        wanted = Wanted(record.project, record.zone, gpu_of(record), record.transient, starting)
        others = [each for each in present if each is not record]
        own = [each.resource for each in others if each.project == record.project]
        return capacity.over_quota(wanted, self.settings.quota, own) or capacity.no_capacity(
            wanted, self._stockouts(others), time.time()
        )

    def _stockouts(self, present: list[Record]) -> list[Stockout]:
        """Those that are set, and where a trace has no more than is there."""
        held = Counter(
            (each.zone, gpu_of(each))
            for each in present if each.transient and not each.ending and each.status != "TERMINATED"
        )  # fmt: skip
        numbers = self._replay().numbers(time.time())
        full = [Stockout(*place, spot=True) for place, number in numbers.items() if held[place] >= number]
        return [*self.settings.stockout, *full]

    def sold_out(self, zone: str, gpu: str, transient: bool) -> bool:
        """Whether a request for such a VM would meet a stockout now."""
        now = time.time()
        return any(each.holds(zone, gpu, transient, now) for each in self._stockouts([]))

    def lifetime(self, gpu: str, region: str) -> float | None:
        """For how many seconds most transient VMs run, as far as the revocations that are set tell."""
        rained = self.settings.revocations
        match rained.kind:
            case "every":
                return rained.period
            case "published":
                return published.lifetimes(gpu, region).median
        return None

    def revoked_share(self, gpu: str, region: str) -> float | None:
        """Which part of transient VMs is revoked within a day, as far as the revocations that are set tell."""
        match self.settings.revocations.kind:
            case "every":
                return 1.0
            case "published":
                return published.lifetimes(gpu, region).fraction(published.LAST_HOUR * published.HOUR)
        return None

    def startup(self, record: Record) -> Startup:
        """How long this VM takes to start."""
        boot, rate, gpu = self.settings.boot, self.clock.rate, gpu_of(record)
        if boot == "published":
            return startup.as_published(record.zone, record.name, gpu, record.transient, self.settings.seed, rate)
        seconds = boot if isinstance(boot, float) else self._boot_seconds
        return startup.fixed(seconds, rate, fails=boot == "fails", silent=boot == "silent")

    @property
    def notice(self) -> float:
        """Seconds on this machine's clock from the notice of a preemption to the VM's end."""
        match self.settings.notice:
            case None:
                return self.usual_notice
            case float(seconds):
                return seconds
        return SCALED_NOTICE / self.clock.rate

    def requested_notice(self, record: Record) -> float:
        """Return for how many seconds of this machine's clock a VM under notice runs before its shutdown starts."""
        if not self.notice:
            return 0.0
        return record.requested_notice / (self.clock.rate if isinstance(self.settings.notice, str) else 1.0)

    def preempted_in_creation(self, record: Record) -> float | None:
        """At which part of its start this VM is preempted, if it is; drawn anew for each VM of that name."""
        share, seed = self.settings.creation_preemptions, self.settings.seed
        self._made[record.zone, record.name] += 1
        key = ("creation", record.zone, record.name, self._made[record.zone, record.name])
        if not record.transient or chance.uniform(seed, *key) >= share:
            return None
        return chance.uniform(seed, *key, "moment")

    def attributes(self, record: Record) -> dict[str, str]:
        """What the VM's metadata server adds to its attributes: the pace of its steps, and that its GPU is but a name.

        The pace is two numbers: the seconds of a step on its GPU, as published or set, and these relative to a K80's.
        `0 0` is no pace. Nothing is said of the GPU where its driver fails: then it is looked for, and not there.
        """
        name, speeds = gpu_of(record), self.settings.gpu_speed
        seconds = slowest = catalog.ACCELERATORS["k80"].relative_step_seconds
        if isinstance(speeds, GpuSpeeds):
            times = dict(speeds.times).get(name, 0.0)
            seconds = slowest / times if slowest and times else None
        else:
            seconds = catalog.ACCELERATORS[name].relative_step_seconds if speeds == "published" else None
        pace = f"{seconds:g} {seconds / slowest:.4f}" if seconds and slowest else "0 0"
        return {PACE_ATTRIBUTE: pace, **({GPU_ATTRIBUTE: "named"} if self.settings.gpu_driver == "works" else {})}

    def limits(self, region: dict[str, Any]) -> dict[str, Any]:
        """A region's resource with the quotas that are set."""
        limits = capacity.limits(self.settings.quota, region["name"])
        for quota in region["quotas"]:
            quota["limit"] = limits.get(quota["metric"], quota["limit"])
        return region

    # What is told about it.

    def to_json(self, vms: list[Record]) -> dict[str, Any]:
        """The answer to GET: what is set, the clock, and the weather in words."""
        settings = self._as_it_is(vms)
        told, reclaim = settings.to_json(), settings.reclaim
        return {
            **told, "notice": told["notice"] or reading.seconds(self.usual_notice), "rate": self.clock.rate,
            "since": wire.now(self.since), "anchors": self.clock.anchors, "description": self.describe(vms),
            "wanted_back": reclaim.to_json() if reclaim else None,
            "link_bits_per_second": settings.link.rate if settings.link else None,
        }  # fmt: skip

    def describe(self, vms: list[Record]) -> list[str]:
        """The weather in a few sentences; empty where it is fair."""
        from .words import describe

        kinds = sorted({(gpu_of(each), catalog.region(each.zone)) for each in vms if each.transient})
        settings, stand_ins = self._as_it_is(vms), [published.stand_ins(*kind) for kind in kinds]
        return describe(settings, self.clock.rate, stand_ins, time.time())

    def _as_it_is(self, vms: list[Record]) -> Settings:
        """What is set, but for VMs that were wanted back and have gone."""
        reclaim = self.settings.reclaim
        running = {each.identity for each in vms if each.status == "RUNNING" and not each.ending}
        return replace(self.settings, reclaim=reclaim.now(running)) if reclaim else self.settings


def gpu_of(record: Record) -> str:
    """The catalog's name of a VM's GPU; `cpu` for none, and for one that the catalog does not know."""
    attached = record.resource.get("guestAccelerators", ())
    return gpu_called(wire.last(attached[0]["acceleratorType"]) if attached else "")


def gpu_called(name: str) -> str:
    """The catalog's name of what Compute Engine calls `name`; `cpu` for nothing and for what the catalog lacks."""
    return next((key for key, each in catalog.ACCELERATORS.items() if name and each.compute_engine_name == name), "cpu")
