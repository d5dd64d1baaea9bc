"""Measurements of availability: start them, and show them during and after their run."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ... import places
from ...catalog import (
    ACCELERATORS,
    ZONES,
    VmPrice,
    accelerator,
    has_gpu,
    never_on_demand,
    price_list,
    zones_with,
)
from ...errors import ClusterError, DeclarationError, reason_of
from ...journal.lock import is_locked, starting
from ...protocol import checks, layout
from ...spec import parse_groups, render_duration
from ...spec.measurement import ENDED, STOP, TRACE, MeasureSpec, Sighting, read_sightings, shares
from .. import commands, text

EVERY_SECONDS = 600.0
MOST_SECONDS = 24 * 3600.0
_LEAST_EVERY = 60.0
"""The shortest interval of requests to Compute Engine, which limits their rate."""
_POLL_SECONDS = 0.2
_ONLY = "This measurement covers only these zones and hours."


class Measurement:
    """A measurement of availability.

    Attributes
    ----------
    name : str
        The name of the measurement.
    spec : MeasureSpec
        Its declaration.

    Examples
    --------
    >>> measurement = tm.measure("t4", ["us-east1-c"], budget=2)
    >>> measurement.wait()
    """

    def __init__(self, name: str) -> None:
        """Read the declaration of a measurement. Raises ClusterError if it is unreadable."""
        self.name = name
        self._folder = places.measurements() / name
        try:
            self.spec = MeasureSpec.from_dict(
                checks.parsed_object((self._folder / layout.SPEC).read_bytes())
            )
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"The measurement {name} cannot be read: {reason_of(error)}",
                where=str(self._folder),
                fix="Delete its folder.",
            ) from None

    @property
    def seen(self) -> list[Sighting]:
        """The results so far, with their times in seconds since 1970."""
        return read_sightings(self._folder)

    @property
    def dollars(self) -> float:
        """The cost of its VMs so far, in US dollars."""
        return sum(sighting.dollars for sighting in self.seen)

    @property
    def file(self) -> Path:
        """The file with the results, in the format of traces.

        `%transient_weather` and `%transient_plan` read it with `--availability` if the VMs were
        Spot VMs.
        """
        return self._folder / TRACE

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return bool(self.ended) or not (
            starting(self._folder, self.spec.declared_at) or is_locked(self._folder)
        )

    @property
    def ended(self) -> str:
        """Why it ended, as a clause; empty while it runs, or if its process was killed."""
        with suppress(OSError, ValueError):
            return str(json.loads((self._folder / ENDED).read_text(encoding="utf-8"))["why"])
        return ""

    def stop(self) -> None:
        """Stop the measurement and keep its results."""
        (self._folder / STOP).touch()

    def wait(self, timeout: float | None = None) -> None:
        """Block until it has ended.

        Parameters
        ----------
        timeout
            The time limit in seconds (default: none).

        Raises
        ------
        ClusterError
            The time limit has passed.
        """
        deadline = math.inf
        if timeout is not None:
            deadline = time.monotonic() + timeout
        while not self.over:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{self.name} has not ended within {timeout:g} s",
                    fix="It continues; wait again, or call stop().",
                )
            time.sleep(_POLL_SECONDS)

    def __str__(self) -> str:
        spec = self.spec
        seen = self.seen
        rows = [
            (
                zone,
                str(requests),
                f"{given / requests:.0%}",
                _moment(max(sighting.at for sighting in seen if sighting.zone == zone)),
            )
            for zone, (requests, given) in sorted(shares(seen).items())
        ]
        every = render_duration(spec.every_seconds)
        lines = [
            f"{self.name}: {spec.kind} of {spec.source}, requested every {every} since "
            f"{_moment(spec.declared_at)}, {text.money(self.dollars)} of "
            f"{text.money(spec.budget)} spent."
        ]
        if rows:
            lines += text.table(("ZONE", "REQUESTS", "SUCCEEDED", "LAST REQUEST"), rows)
        else:
            lines.append("There are no results yet.")
        lines.append(self._phase)
        if rows and spec.provisioning_model == "spot":
            lines.append(f"To replay these results: --availability {self.file}")
        return "\n".join([*lines, _ONLY])

    @property
    def _phase(self) -> str:
        if self.over:
            return f"It has ended: {self.ended or 'its process was killed'}."
        if (self._folder / STOP).exists():
            return "It is stopping."
        if starting(self._folder, self.spec.declared_at):
            return "It is starting."
        return "It is running."

    def __repr__(self) -> str:
        return str(self)


class Measurements(tuple[Measurement, ...]):
    """All measurements that were started on this machine, oldest first."""

    def __str__(self) -> str:
        example = "For example: %transient_measure t4 --zones us-east1-c --budget 2"
        if not self:
            return f"There are no measurements on this machine yet. {example}"
        return "\n\n".join(map(str, self))

    def __repr__(self) -> str:
        return str(self)


@places.reporting()
def measure(
    gpu: str = "",
    zones: Sequence[str] = (),
    *,
    budget: float | None = None,
    every: float = EVERY_SECONDS,
    hours: float = MOST_SECONDS / 3600,
    provisioning_model: Literal["spot", "standard"] = "spot",
    project: str | None = None,
    stop: bool = False,
) -> Measurement | Measurements:
    """Start a measurement of availability and return immediately. Without `gpu`, list all.

    A separate process requests a VM in each zone at intervals, and deletes it immediately.

    Parameters
    ----------
    gpu
        The GPU, or `cpu`.
    zones
        The zones.
    budget
        The limit of the cost, in US dollars.
    every
        The interval in seconds.
    hours
        The duration in hours.
    provisioning_model
        `spot`, or `standard` for on-demand VMs, which cost more.
    project
        The project (default: the emulator).
    stop
        Whether to stop all running measurements first.

    Returns
    -------
    Measurement or Measurements
        The new measurement, or all measurements, shown as a table.

    Raises
    ------
    DeclarationError
        An option is invalid, or the budget does not suffice for one round of requests.

    Examples
    --------
    >>> tm.measure("t4", ["us-east1-c"], budget=2, project="my-project")
    >>> tm.measure()
    """
    measurements = Measurements(Measurement(path.parent.name) for path in sorted(_folders()))
    if stop:
        for measurement in measurements:
            measurement.stop()
    if not gpu:
        return measurements
    if budget is None or not zones:
        raise DeclarationError(
            "A measurement needs --zones and --budget",
            fix="For example: --zones us-east1-c --budget 2.",
        )
    gpu = accelerator(gpu.lower()).name
    on_demand = provisioning_model == "standard"
    if on_demand and (unsold := never_on_demand([gpu])):
        raise DeclarationError(unsold, where="--provisioning-model")
    for zone in zones:
        parse_groups(f"{gpu}@{zone}", ACCELERATORS, ZONES)
        if not has_gpu(zone, gpu):
            raise DeclarationError(
                f"{gpu.upper()} is not available in {zone}",
                where="--zones",
                fix=f"Zones with it: {', '.join(zones_with(gpu)[:4])}.",
            )
    if project and every < _LEAST_EVERY:
        raise DeclarationError(
            "With --project, --every must be at least a minute", fix="For example: --every 10m"
        )
    lines = price_list([gpu], external_ip=False)
    now = time.time()
    identity = secrets.token_hex(4)
    name = f"{gpu}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{identity[:4]}"
    spec = MeasureSpec(
        name=name,
        gpu=gpu,
        zones=tuple(dict.fromkeys(zones)),
        hourly={zone: _price(lines.worker_price(gpu, zone), on_demand) for zone in zones},
        budget=budget,
        every_seconds=every,
        max_seconds=3600 * hours,
        declared_at=now,
        project=project,
        id=identity,
        provisioning_model=provisioning_model,
    )
    if spec.round_dollars > budget:
        what = (
            f"A request in each of {text.count(len(spec.zones), 'zone')} may cost "
            f"{text.money(spec.round_dollars)}"
        )
        raise DeclarationError(what, where="--budget", fix="Raise the budget, or name fewer zones.")
    folder = places.private(places.measurements() / spec.name)
    (folder / layout.SPEC).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    commands.start("programs.measure", folder)
    return Measurement(spec.name)


def _folders() -> list[Path]:
    return list(places.measurements().glob(f"*/{layout.SPEC}"))


def _price(of: VmPrice, on_demand: bool) -> float:
    if on_demand:
        return of.on_demand
    return of.transient


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
