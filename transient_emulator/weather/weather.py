"""The weather of one emulator: its settings, and what follows from them for VMs.

All clusters of the user share it, and it survives a kill -9. A change is written to `weather.json`
in the state directory before it is answered. Parts that react to changes register with `on_change`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transient_magics import catalog
from transient_magics.catalog import published
from transient_magics.clock import Clock, rate_of
from transient_magics.errors import DeclarationError
from transient_magics.files import write_atomically

from ..instances import Record
from ..network import delay_line, netlink
from ..rest import wire
from . import capacity, chance, reading
from .availability import Falling, Replay
from .capacity import Refusal, Request
from .files import LifetimeRow, ScheduleRow
from .reclaiming import Reclaiming
from .revocations import Every, FromLifetimes, FromSchedule, Nothing, Policy, Published
from .settings import SCALED_NOTICE, GpuSpeeds, Link, Settings, Stockout

_LOG = logging.getLogger(__name__)
# A change of these restarts the process of revocations.
_PROCESS = ("revocations", "availability", "waves", "seed")
PACE_ATTRIBUTE = "emulator-pace"
"""The metadata attribute with the pace of steps on a VM's GPU."""
GPU_ATTRIBUTE = "emulator-gpu"
"""The metadata attribute of VMs whose GPU is only a name."""
# The part of a start that a VM spends in PROVISIONING, where only the total is given.
_PROVISIONING_PART = 0.3


@dataclass(frozen=True)
class Startup:
    """The start of a VM, in seconds on this machine's clock.

    Attributes
    ----------
    provisioning, staging
        How long it is PROVISIONING, and then STAGING.
    booting
        How long it is RUNNING until SSH answers.
    fails
        Whether SSH never answers, and the start-up script reports a failure.
    silent
        Whether SSH never answers, without a report.
    """

    provisioning: float
    staging: float
    booting: float = 0.0
    fails: bool = field(default=False, kw_only=True)
    silent: bool = field(default=False, kw_only=True)

    @property
    def answers(self) -> bool:
        """Whether SSH will answer."""
        return not (self.fails or self.silent)


class Weather:
    """The settings of the weather, and what follows from them for a VM.

    Parameters
    ----------
    state
        The emulator's directory.
    boot_seconds
        Seconds from the insert of a VM until it runs, in fair weather.
    notice_seconds
        Seconds from the notice of a preemption to its end, in fair weather.
    own_network
        Whether the emulator and its VMs have network namespaces of their own.

    Attributes
    ----------
    settings, clock
        The settings and the emulated clock.
    since
        When the process of revocations started, in seconds since 1970.
    progress
        The stored progress of policies.
    usual_notice
        `notice_seconds`.
    """

    def __init__(
        self, state: Path, boot_seconds: float, notice_seconds: float, own_network: bool
    ) -> None:
        self._path = state / "weather.json"
        self._boot_seconds = boot_seconds
        self._own_network = own_network
        self.usual_notice = notice_seconds
        self._listeners: list[Callable[[], None]] = []
        self.settings = Settings(seed=secrets.randbelow(1_000_000))
        self.clock = Clock()
        self.since = time.time()
        self.progress: dict[str, Any] = {}
        # By zone and name, the VMs whose preemption in creation was drawn.
        self._drawn: Counter[tuple[str, str]] = Counter()
        self._load()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change of the settings."""
        self._listeners.append(listener)

    def change(self, change: Mapping[str, Any]) -> None:
        """Change settings, and store them.

        Parameters ----------
        change
            Values by setting, see `Settings.changed`. With `reset` true, all others are set to fair
            weather.

        Raises
        ------
        DeclarationError
            If the change is invalid. Then nothing changes.
        OSError
            If it cannot be stored. Then nothing changes.
        """
        values = dict(change)
        reset = values.pop("reset", False)
        if not isinstance(reset, bool):
            raise DeclarationError(f"reset must be true or false, not '{reset}'")
        now = time.time()
        base = Settings(seed=self.settings.seed) if reset else self.settings
        settings = base.changed(values)
        # Tried before anything is stored: a weather that cannot work is refused.
        if settings.link and settings.link != self.settings.link:
            _check_link(settings.link, self._own_network)
        before = (self.settings, self.clock, self.since, self.progress)
        self.settings = settings
        self.clock = self.clock.running_at(rate_of(settings.hours_per_minute), now)
        if reset or not values.keys().isdisjoint(_PROCESS):
            # Progress belongs to the rows and draws of the earlier process.
            self.since = now
            self.progress = {}
        try:
            self.save()
        except OSError:
            self.settings, self.clock, self.since, self.progress = before
            raise
        for listener in self._listeners:
            listener()

    def save(self) -> None:
        """Store the weather. Raises OSError."""
        content = {
            "settings": self.settings.to_store(),
            "anchors": self.clock.anchors,
            "since": self.since,
            "progress": self.progress,
        }
        write_atomically(self._path, json.dumps(content), durable=False)

    def _load(self) -> None:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            self.settings = self.settings.changed(content["settings"])
            anchors = content["anchors"]
            self.clock = Clock(tuple((float(a), float(b), float(rate)) for a, b, rate in anchors))
            self.since = float(content["since"])
            self.progress = dict(content["progress"])
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, DeclarationError):
            # Another version may have written it.
            _LOG.exception("cannot read %s: the weather is fair again", self._path)
            self._path.unlink()

    # -------------------- what follows from it

    def policy(self) -> Policy:
        """Return a new policy of revocations for the present settings."""
        policy = self._revocations()
        settings = self.settings
        # Each one adds to what the policy inside of it revokes.
        if settings.availability:
            policy = Falling(self._replay(), policy, settings.seed)
        if settings.reclaim:
            policy = Reclaiming(settings.reclaim, policy, settings.seed)
        return policy

    def _replay(self) -> Replay:
        return Replay(self.settings.availability, self.clock, self.since)

    def _revocations(self) -> Policy:
        seed = self.settings.seed
        revocations = self.settings.revocations
        match revocations.kind:
            case "every":
                return Every(revocations.period, self.since, seed, time.time())
            case "published":
                return Published(self.clock, self.since, seed, self.settings.waves)
            case "file":
                rows = revocations.rows
                lifetimes = [row for row in rows if isinstance(row, LifetimeRow)]
                if lifetimes:
                    return FromLifetimes(lifetimes, self.clock, self.progress)
                schedule = [row for row in rows if isinstance(row, ScheduleRow)]
                return FromSchedule(schedule, self.clock, self.since, seed, self.progress)
        return Nothing()

    def refusal(self, record: Record, present: list[Record]) -> Refusal | None:
        """Return how the request for a VM fails; None if it does not.

        Parameters
        ----------
        record
            The requested VM.
        present
            All VMs.

        Raises
        ------
        ApiError
            403 if the request is refused immediately.
        """
        # A stopped VM that starts again counts like a new one.
        starting = {**record.resource, "status": "PROVISIONING"}
        request = Request(record.project, record.zone, gpu_of(record), record.transient, starting)
        others = [vm for vm in present if vm is not record]
        in_project = [vm.resource for vm in others if vm.project == record.project]
        refusal = capacity.over_quota(request, self.settings.quota, in_project)
        if refusal:
            return refusal
        return capacity.no_capacity(request, self._stockouts(others), time.time())

    def _stockouts(self, present: list[Record]) -> list[Stockout]:
        """Return the declared stockouts, and those of zones that are full by their traces."""
        counts: Counter[tuple[str, str]] = Counter()
        for vm in present:
            if vm.transient and not vm.ending and vm.status != "TERMINATED":
                counts[vm.zone, gpu_of(vm)] += 1
        stockouts = list(self.settings.stockout)
        for place, number in self._replay().numbers(time.time()).items():
            if counts[place] >= number:
                stockouts.append(Stockout(*place, spot=True))
        return stockouts

    def sold_out(self, zone: str, gpu: str, transient: bool) -> bool:
        """Return whether a request for such a VM would meet a stockout now."""
        now = time.time()
        stockouts = self._stockouts([])
        return any(stockout.holds(zone, gpu, transient, now) for stockout in stockouts)

    def lifetime(self, gpu: str, region: str) -> float | None:
        """Return the seconds for which most transient VMs run; None if that is undetermined."""
        revocations = self.settings.revocations
        match revocations.kind:
            case "every":
                return revocations.period
            case "published":
                return published.lifetimes(gpu, region).median
        return None

    def revoked_share(self, gpu: str, region: str) -> float | None:
        """Return the share of VMs that is revoked within a day; None if that is undetermined."""
        match self.settings.revocations.kind:
            case "every":
                return 1.0
            case "published":
                day = published.LAST_HOUR * published.HOUR
                return published.lifetimes(gpu, region).fraction(day)
        return None

    def startup(self, record: Record) -> Startup:
        """Return how a VM starts."""
        boot = self.settings.boot
        rate = self.clock.rate
        if boot == "published":
            seed = self.settings.seed
            gpu = gpu_of(record)
            return published_startup(record.zone, record.name, gpu, record.transient, seed, rate)
        seconds = boot if isinstance(boot, float) else self._boot_seconds
        total = seconds / rate
        return Startup(
            total * _PROVISIONING_PART,
            total * (1 - _PROVISIONING_PART),
            fails=boot == "fails",
            silent=boot == "silent",
        )

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
        """Return the seconds from a notice to the shutdown of a VM, on this machine's clock."""
        if not self.notice:
            return 0.0
        if isinstance(self.settings.notice, str):
            return record.requested_notice / self.clock.rate
        return record.requested_notice

    def preempted_in_creation(self, record: Record) -> float | None:
        """Return the part of its start at which a VM is preempted; None if it is not.

        It is drawn again for each VM of the same name.
        """
        place = (record.zone, record.name)
        self._drawn[place] += 1
        seed = self.settings.seed
        key = ("creation", *place, self._drawn[place])
        share = self.settings.creation_preemptions
        if not record.transient or chance.uniform(seed, *key) >= share:
            return None
        return chance.uniform(seed, *key, "moment")

    def attributes(self, record: Record) -> dict[str, str]:
        """Return what the VM's metadata server adds to its attributes.

        The pace of steps is two numbers: the seconds of a step on the VM's GPU, as published or
        set, and these relative to a K80's. `0 0` means no pace. The GPU is only a name, except if
        its driver fails: then programs look for it and find none.
        """
        attributes = {PACE_ATTRIBUTE: self._pace(gpu_of(record))}
        if self.settings.gpu_driver == "works":
            attributes[GPU_ATTRIBUTE] = "named"
        return attributes

    def _pace(self, gpu: str) -> str:
        slowest = catalog.ACCELERATORS["k80"].relative_step_seconds
        speeds = self.settings.gpu_speed
        seconds: float | None = None
        if isinstance(speeds, GpuSpeeds):
            times = dict(speeds.times).get(gpu)
            if slowest and times:
                seconds = slowest / times
        elif speeds == "published":
            seconds = catalog.ACCELERATORS[gpu].relative_step_seconds
        if not seconds or not slowest:
            return "0 0"
        return f"{seconds:g} {seconds / slowest:.4f}"

    def limits(self, region: dict[str, Any]) -> dict[str, Any]:
        """Set the quotas of the weather in a region's resource, and return that."""
        limits = capacity.limits(self.settings.quota, region["name"])
        for quota in region["quotas"]:
            quota["limit"] = limits.get(quota["metric"], quota["limit"])
        return region

    # -------------------- what clients see of it

    def to_json(self, vms: list[Record]) -> dict[str, Any]:
        """Return the answer to GET: the settings, the clock, and the weather in words."""
        settings = self._present(vms)
        content = settings.to_json()
        if not content["notice"]:
            content["notice"] = reading.seconds(self.usual_notice)
        content |= {
            "rate": self.clock.rate,
            "since": wire.now(self.since),
            "anchors": self.clock.anchors,
            "description": self.describe(vms),
            "wanted_back": settings.reclaim.to_json() if settings.reclaim else None,
            "link_bits_per_second": settings.link.rate if settings.link else None,
        }
        return content

    def describe(self, vms: list[Record]) -> list[str]:
        """Return the weather in a few sentences; none if it is fair."""
        from .words import describe

        kinds = {(gpu_of(vm), catalog.region(vm.zone)) for vm in vms if vm.transient}
        stand_ins = [published.stand_ins(gpu, region) for gpu, region in sorted(kinds)]
        return describe(self._present(vms), self.clock.rate, stand_ins, time.time())

    def _present(self, vms: list[Record]) -> Settings:
        """Return the settings without reclaimed VMs that are gone."""
        reclaim = self.settings.reclaim
        if not reclaim:
            return self.settings
        running = {vm.identity for vm in vms if vm.status == "RUNNING" and not vm.ending}
        return replace(self.settings, reclaim=reclaim.now(running))


def published_startup(
    zone: str, name: str, gpu: str, transient: bool, seed: int, rate: float
) -> Startup:
    """Return a start as measured for VMs with this GPU.

    Its duration is normally distributed, and not below half of the mean.

    Parameters
    ----------
    zone, name
        The VM, for which the duration is drawn.
    gpu
        The catalog's name of its GPU (`cpu`: none).
    transient
        Whether it may be preempted.
    seed
        The seed of the draw.
    rate
        How many times as fast as this machine's clock the emulated one runs.
    """
    *parts, deviation = published.startup(gpu, transient, catalog.region(zone))
    relative = deviation / sum(parts)
    stretch = max(chance.normal(1.0, relative, seed, "startup", zone, name), 0.5) / rate
    return Startup(*(part * stretch for part in parts))


def _check_link(link: Link, own_network: bool) -> None:
    """Raise DeclarationError if links cannot be shaped here, found by trying on the loopback."""
    if not own_network:
        raise DeclarationError(
            "The emulated VMs share this machine's network, so their links cannot be shaped"
        )
    try:
        if link.far is None:
            netlink.shape("lo", link.rate)
        else:
            netlink.shape_by_place("lo", link.rate, link.far, ["10.128.0.2"])
        netlink.unshape("lo")
    except OSError as error:
        what = f"This machine's kernel cannot shape links: {error.strerror}"
        raise DeclarationError(what) from None
    if link.round_trip is not None:
        try:
            os.close(delay_line.open_tap("try0"))
        except OSError as error:
            what = f"A latency needs a TAP, which this machine cannot create: {error.strerror}"
            fix = "Write far=100mbit for the rate only."
            raise DeclarationError(what, where="--link", fix=fix) from None


def gpu_of(record: Record) -> str:
    """Return the catalog's name of a VM's GPU; `cpu` without one, or with an unknown one."""
    attached = record.resource.get("guestAccelerators")
    if not attached:
        return "cpu"
    return gpu_called(wire.last(attached[0]["acceleratorType"]))


def gpu_called(name: str) -> str:
    """Return the catalog's name for Compute Engine's name of a GPU; `cpu` if it is unknown."""
    for key, accelerator in catalog.ACCELERATORS.items():
        if name and accelerator.compute_engine_name == name:
            return key
    return "cpu"
