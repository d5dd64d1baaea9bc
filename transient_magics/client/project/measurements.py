"""Measurements of availability: begun, and told while they go on and afterwards."""

from __future__ import annotations

import json
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
)
from ...errors import ClusterError, DeclarationError
from ...journal.lock import held, starting
from ...protocol import checks, layout
from ...spec import parse_groups, render_duration
from ...spec.measurement import ENDED, STOP, TRACE, MeasureSpec, Sighting, read_sightings, shares
from .. import commands, text

EVERY_SECONDS = 600.0
MOST_SECONDS = 24 * 3600.0
_LEAST_EVERY = 60.0
"""Between two looks at Compute Engine, which counts requests."""
_LOOK_SECONDS = 0.2
_ONLY = "It tells of these zones and hours, and forecasts no others."


class Measurement:
    """One measurement, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._folder = places.measurements() / name
        try:
            self.spec = MeasureSpec.from_dict(
                checks.parsed_object((self._folder / layout.SPEC).read_bytes())
            )
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"The measurement {name} cannot be read: {error}", where=str(self._folder)
            ) from None

    @property
    def seen(self) -> list[Sighting]:
        """What it has seen so far, with the moments (seconds since 1970)."""
        return read_sightings(self._folder)

    @property
    def dollars(self) -> float:
        """What its VMs have cost so far, in US dollars."""
        return sum(each.dollars for each in self.seen)

    @property
    def file(self) -> Path:
        """The same as traces; of Spot VMs `--availability` of `%transient_weather` and
        `%transient_plan` read them.
        """
        return self._folder / TRACE

    @property
    def over(self) -> bool:
        """Whether it looks no more."""
        return bool(self.ended) or not (
            starting(self._folder, self.spec.declared_at) or held(self._folder)
        )

    @property
    def ended(self) -> str:
        """Why it looks no more, a clause; nothing while it does, or where its process was killed."""
        with suppress(OSError, ValueError):
            return str(json.loads((self._folder / ENDED).read_text(encoding="utf-8"))["why"])
        return ""

    def stop(self) -> None:
        """Have it look no more. What it has seen stays."""
        (self._folder / STOP).touch()

    def wait(self, timeout: float | None = None) -> None:
        """Block until it is over. Raises ClusterError after `timeout` seconds."""
        if timeout is None:
            deadline = None
        else:
            deadline = time.monotonic() + timeout
        while not self.over:
            if deadline is not None and time.monotonic() > deadline:
                raise ClusterError(f"{self.name} is not over after {timeout:g} s")
            time.sleep(_LOOK_SECONDS)

    def __str__(self) -> str:
        spec = self.spec
        seen = self.seen
        rows = [
            (
                zone,
                str(asked),
                f"{given / asked:.0%}",
                _moment(max(each.at for each in seen if each.zone == zone)),
            )
            for zone, (asked, given) in sorted(shares(seen).items())
        ]
        said = f"{self.name}: {spec.kind} of {spec.source}, asked for every "
        said += f"{render_duration(spec.every_seconds)} since {_moment(spec.declared_at)}, "
        said += f"{text.money(self.dollars)} of {text.money(spec.budget)} spent."
        if rows:
            table = text.table(("ZONE", "LOOKS", "THERE WAS ONE", "LAST LOOK"), rows)
        else:
            table = ["Nothing was seen yet."]
        if rows and spec.provisioning_model == "spot":
            file = [f"As traces, for --availability: {self.file}"]
        else:
            file = []
        return "\n".join([said, *table, self._phase, *file, _ONLY])

    @property
    def _phase(self) -> str:
        if self.over:
            return f"It looks no more: {self.ended or 'its process was killed'}."
        if (self._folder / STOP).exists():
            return "It is ending."
        if starting(self._folder, self.spec.declared_at):
            return "It begins."
        return "It goes on."

    def __repr__(self) -> str:
        return str(self)


class Measurements(tuple[Measurement, ...]):
    """All measurements of this machine, the oldest first."""

    def __str__(self) -> str:
        example = "For example: %transient_measure t4 --zones us-east1-c --budget 2"
        return "\n\n".join(map(str, self)) or f"Nothing was measured from this machine. {example}"

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
    """Begin to measure whether zones have VMs with a GPU, and return at once; without a GPU tell
    what was seen.

    Every `every` seconds a VM is asked for in each zone and given back at once, until `budget` (US
    dollars) is spent or `hours` have passed; a process of its own does it, which outlives this one.
    With `provisioning_model` "standard" it is asked for on demand, and paid so. `stop` ends those
    under way. Raises DeclarationError.
    """
    known = Measurements(Measurement(path.parent.name) for path in sorted(_folders()))
    if stop:
        for each in known:
            each.stop()
    if not gpu:
        return known
    if budget is None or not zones:
        raise DeclarationError(
            "A measurement needs --zones and --budget", fix="As --zones us-east1-c --budget 2."
        )
    gpu = accelerator(gpu.lower()).name
    on_demand = provisioning_model == "standard"
    if on_demand and (unsold := never_on_demand([gpu])):
        raise DeclarationError(unsold, where="--provisioning-model")
    for zone in zones:
        parse_groups(f"{gpu}@{zone}", ACCELERATORS, ZONES)
        if not has_gpu(zone, gpu):
            raise DeclarationError(f"{zone} has no {gpu.upper()}", where="--zones")
    if project and every < _LEAST_EVERY:
        raise DeclarationError(
            "--every takes a minute at least with a project", fix="For example: --every 10m"
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
        what = f"One look into {text.count(len(spec.zones), 'zone')} could cost {text.money(spec.round_dollars)}"
        raise DeclarationError(what, where="--budget", fix="Raise it, or name fewer zones.")
    folder = places.private(places.measurements() / spec.name)
    (folder / layout.SPEC).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    commands.start("programs.measure", folder)
    return Measurement(spec.name)


def _folders() -> list[Path]:
    return list(places.measurements().glob(f"*/{layout.SPEC}"))


def _price(of: VmPrice, on_demand: bool) -> float:
    return of.on_demand if on_demand else of.transient


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
