"""Look up what a new cluster needs: image, prices, zones, a free name, a correct clock, advice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from ... import journal, places
from ...catalog import accelerator, continent, home_first, learn, learned_seconds_ago, region
from ...cloud import ComputeEngine, Finding, Shape, Vm
from ...errors import AccessError, CloudError, CredentialsError
from ...journal import events, now, read
from ...protocol import layout
from ...spec import (
    CONTROLLER,
    JOBS,
    PARAMETER_SERVER,
    PREPARATION,
    TRAINING,
    WORKER,
    ClusterSpec,
    render_duration,
)
from ...spec.cluster import lines_of, with_home, worker_prices
from ...spec.measurement import measurements, shares
from ..decisions.capacity import HOLDS_SECONDS, due, phrase, questions, ranked
from ..record import Recorder
from .access import Access
from .machines import ID_LABEL, LABEL, USER_LABEL, instance_name
from .startup import lock_hash

# ---------------------------------------------------------------- images
#
# VMs boot from the newest image that has the packages of our locks, if the user named no image.
# Only images that were built on this machine count: the labels of an image say what its maker
# wants, and its content runs with the cluster's keys. A cluster with GPUs needs an image with a
# driver. Without GPUs any image will do, and GPU workers of a later resize boot from plain Debian
# (`ClusterSpec.image_for_gpus`).

_INSTALL = "VMs boot from Debian 12 and install {} at their first boot"
_INSTALLING = {TRAINING: "TensorFlow", JOBS: "Python packages"}
_INSTALLED = "an image that has it"

log = logging.getLogger(__name__)

_FRESH_SECONDS = 24 * 3600.0
_LIMIT_SECONDS = 60.0

_ROLES = f"({PARAMETER_SERVER}|{WORKER}|{CONTROLLER}|{PREPARATION})-[0-9]+"

MOST_CLOCK_ERROR = 60.0


def _built_here() -> set[str]:
    """Return the ids of images that this machine built."""
    journals = [read(path) for path in places.builds().glob(f"[a-z]*/{layout.JOURNAL}")]
    return {
        event.image_id
        for journal in journals
        for event in journal
        if isinstance(event, events.ImageBuilt)
    } - {""}


def needs_image(spec: ClusterSpec) -> bool:
    """Return whether to look for an image. Emulated VMs have the stack anyway."""
    return not spec.emulated and not spec.image


async def choose_image(spec: ClusterSpec, engine: ComputeEngine) -> events.ClusterImageChosen:
    """Return the chosen image, from one request.

    Without the permission to list images, none is chosen. Other failures raise CloudError.
    """
    with_gpu = any(accelerator(group.accelerator).compute_engine_name for group in spec.groups)
    install = _INSTALL.format(_INSTALLING[spec.purpose])
    try:
        found = await engine.images.fitting(
            partial(lock_hash, purpose=spec.purpose), with_gpu=with_gpu
        )
    except CredentialsError:
        # The error gives no information about the images.
        raise
    except AccessError as error:
        return events.ClusterImageChosen(image="", why=f"{install} ({error.what})")
    ours = _built_here()
    image = next((candidate for candidate in found if candidate.id in ours), None)
    if image is None:
        if spec.purpose == TRAINING:
            option = ""
        else:
            option = f" --for {spec.purpose}"
        better = f"%transient_image build{option} bakes {_INSTALLED}"
        if found:
            better = (
                f"{found[0].name} is labelled as {_INSTALLED}, but was not built from here: "
                f"--image {found[0].name}"
            )
        return events.ClusterImageChosen(image="", why=f"{install} ({better})")
    return events.ClusterImageChosen(
        image=image.name, why="it carries the stack already", gpu=image.with_gpu
    )


# ---------------------------------------------------------------- prices
#
# Clusters that cost money use Google's prices of today instead of the catalog's. They are requested
# before the first VM, at most once a day, or by a program (`programs/queries.py`), and kept on this
# machine. Without the permission to read them the dated prices of the catalog remain. Every bill
# has the date of its prices.


async def find_prices(spec: ClusterSpec, engine: ComputeEngine) -> events.ClusterPriced | None:
    """Return the cluster with today's prices if they differ from its declaration, or None.

    Raises CredentialsError.
    """
    if spec.emulated:
        return None
    try:
        async with asyncio.timeout(_LIMIT_SECONDS):
            await refresh_prices(engine)
    except CredentialsError:
        # The error gives no information about the prices.
        raise
    except (CloudError, TimeoutError) as error:
        log.warning("the prices are the catalog's: %s", error)
    changed = repriced(spec)
    if changed.prices == spec.prices:
        return None
    return events.ClusterPriced(
        hourly=changed.hourly, on_demand_hourly=changed.on_demand_hourly, spec=changed.to_dict()
    )


async def refresh_prices(engine: ComputeEngine, *, older_than: float = _FRESH_SECONDS) -> int:
    """Request today's prices if the known ones are older than this, and return how many there are.

    Raises CloudError.
    """
    if learned_seconds_ago() < older_than:
        return 0
    rows = await engine.list_prices(datetime.now(UTC).date().isoformat())
    # An answer without a recognized price is ignored.
    if rows:
        learn(rows)
    return len(rows)


def repriced(spec: ClusterSpec) -> ClusterSpec:
    """Return `spec` with the newest prices that this machine knows."""
    lines = lines_of(spec, spec.prices)
    candidates = {group.accelerator: spec.zones_for(group.accelerator) for group in spec.groups}
    prices = worker_prices(lines, spec.groups, candidates, spec.provisioning_model)
    return with_home(replace(spec, prices=prices), lines).with_end()


# ---------------------------------------------------------------- zones
#
# The zones with the cluster's GPUs are requested once, before the first VM, for GPUs whose zones
# the user did not name. The answer is an event of the journal, so that all controllers of the
# cluster use the same zones. Zones that the catalog does not have get the catalog's price of the
# nearest region, unless Google publishes its prices.


async def find_zones(spec: ClusterSpec, engine: ComputeEngine) -> events.ClusterZonesFound | None:
    """Return the zones with the GPUs if they differ from the declaration, or None.

    Without the permission to list them, the catalog applies. Other failures raise CloudError.
    """
    found: dict[str, frozenset[str]] = {}
    for kind, zones in open_zones(spec).items():
        try:
            found[kind] = await engine.zones_with(shape_of(spec, kind, zones[0]))
        except CredentialsError:
            # The error gives no information about the zones.
            raise
        except AccessError as error:
            log.info("the zones of %s are the catalog's: %s", kind, error)
    changed = with_zones(spec, found)
    if changed is None:
        return None
    return events.ClusterZonesFound(zones=dict(changed.candidates), spec=changed.to_dict())


def shape_of(spec: ClusterSpec, kind: str, zone: str) -> Shape:
    """Return the machine of a worker with this GPU in the form of a request for advice."""
    gpu = accelerator(kind)
    return Shape(
        spec.price(kind, zone).machine_type, "" if gpu.bundled else gpu.compute_engine_name
    )


def open_zones(spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """Return the GPUs that may be anywhere on their continent, and their zones in the catalog."""
    kinds = dict.fromkeys(group.accelerator for group in spec.groups if not group.zone)
    return {
        kind: zones
        for kind in kinds
        if accelerator(kind).compute_engine_name
        and not set(zones := spec.zones_for(kind)) <= set(spec.zones)
    }


def with_zones(spec: ClusterSpec, found: Mapping[str, Collection[str]]) -> ClusterSpec | None:
    """Return `spec` with the found zones by GPU, in declared order; None if they are the same.

    New zones come after the known ones of their region or continent. A GPU that was found in no
    zone of the continent keeps those of the catalog.
    """
    home = spec.zones[0]
    candidates = dict(spec.candidates)
    for kind, offered in found.items():
        # Zones with names of another form are for other purposes (`us-central1-ai1a`).
        near = {
            zone for zone in offered if region(zone) != zone and continent(zone) == continent(home)
        }
        order = [zone for zone in candidates[kind] if zone in near]
        order += sorted(near.difference(order))
        if order:
            candidates[kind] = home_first(order, home)
    if candidates == spec.candidates:
        return None
    lines = lines_of(spec, spec.prices)
    prices = worker_prices(lines, spec.groups, candidates, spec.provisioning_model)
    return with_home(
        replace(spec, candidates=candidates, prices={**spec.prices, **prices}), lines
    ).with_end()


# ---------------------------------------------------------------- names
#
# VMs have the name of their cluster, so two clusters of a project must not share a name. Their ids
# keep them apart, but the requests of the second one would be refused one after another.


async def name_conflict(spec: ClusterSpec, engine: ComputeEngine) -> str:
    """Return why a new cluster cannot have its name in its project, or "".

    The reason is a sentence with what to do. The names of VMs are checked too, because this program
    may not have made them. Raises CloudError.
    """
    if not spec.id:
        return ""
    labelled = await engine.list({LABEL: spec.name}, within=spec.all_zones)
    named = await engine.named(instance_name(spec, _ROLES), within=spec.all_zones)
    # The VMs of a cluster that is being deleted keep its name for some seconds only.
    others = [
        vm
        for vm in (*labelled, *named)
        if vm.labels.get(ID_LABEL) != spec.id and vm.status != "STOPPING"
    ]
    if not others:
        return ""
    if spec.project:
        where = f"project {spec.project}"
    else:
        where = "the emulator"
    return f"{_whose(spec, others[0])} ({where}). Declare this one with another --name"


def _whose(spec: ClusterSpec, vm: Vm) -> str:
    place = f"{vm.name} in {vm.zone}"
    if vm.labels.get(LABEL) != spec.name:
        return f"The name {spec.name} is taken by a VM that is not ours, {place}"
    marks = {"id": vm.labels.get(ID_LABEL), "user": vm.labels.get(USER_LABEL)}
    described = ", ".join(f"{key} {value}" for key, value in marks.items() if value)
    return f"There is another cluster {spec.name}, with the VM {place}{f' ({described})' if described else ''}"


# ---------------------------------------------------------------- clock
#
# VMs end by the clock of Compute Engine. If this machine's clock is off by more than a minute, no
# cluster is created: its journal, its bill and a controller on a VM would have different times. A
# cluster that exists continues, with its limits by the clock of Compute Engine.


def clock_error(ahead: float) -> str:
    """Return what is wrong with a clock `ahead` seconds ahead of Compute Engine's, or "".

    A negative number means that it is behind.
    """
    if abs(ahead) <= MOST_CLOCK_ERROR:
        return ""
    way = "ahead of" if ahead > 0 else "behind"
    return (
        f"This machine's clock is {render_duration(abs(ahead))} {way} Compute Engine's, by which "
        "VMs end; to set it: sudo timedatectl set-ntp true"
    )


def date_error(declared_at: float) -> str:
    """Return what is wrong with a declaration dated by a clock that was set since, or ""."""
    away = declared_at - journal.now()
    if away <= MOST_CLOCK_ERROR:
        return ""
    return f"It was declared by a clock that was {render_duration(away)} ahead; declare it again"


def corrected_now(ahead: float) -> float:
    """Return the present time in seconds since 1970.

    It is Compute Engine's time if the local clock is wrong.
    """
    return journal.now() - (ahead if clock_error(ahead) else 0.0)


# ---------------------------------------------------------------- advice
#
# `decisions.capacity` decides what to ask and what follows. Without advice from Compute Engine,
# what was measured from this machine within the last hour is used instead.


async def ask_advice(access: Access, spec: ClusterSpec, kind: str) -> events.ClusterAdvised | None:
    """Return the advice on a GPU of the cluster, if there is any. Never raises CloudError."""
    zones = questions(spec)[kind]
    shape = shape_of(spec, kind, zones[0])
    count = sum(
        group.count for group in spec.groups if group.accelerator == kind and not group.zone
    )
    found = await access.engine.advice.spot(shape, zones, count)
    chances = {zone: (chance.obtainability, chance.uptime) for zone, chance in found.items()}
    preempted = {
        zone: chance.preempted for zone, chance in found.items() if chance.preempted is not None
    }
    if not chances:
        return measured_advice(spec.project, kind, zones, now())
    return events.ClusterAdvised(accelerator=kind, zones=chances, preempted=preempted)


def measured_advice(
    project: str | None, kind: str, zones: Sequence[str], at: float
) -> events.ClusterAdvised | None:
    """Return what was measured in these zones in the hour before `at`, if anything.

    Only measurements with the same project from this machine count.
    """
    seen = (
        sighting
        for spec, sightings in measurements()
        if (spec.project, spec.gpu, spec.provisioning_model) == (project, kind, "spot")
        for sighting in sightings
        if sighting.zone in zones and at - HOLDS_SECONDS < sighting.at <= at
    )
    found = {zone: (given / asked, 0.0) for zone, (asked, given) in shares(seen).items()}
    if found:
        return events.ClusterAdvised(accelerator=kind, zones=found, measured=True)
    return None


async def advice_findings(access: Access, spec: ClusterSpec) -> list[Finding]:
    """Return the zone that the advice prefers, by GPU; empty without advice."""
    found: list[Finding] = []
    for kind, zones in questions(spec).items():
        if given := await ask_advice(access, spec, kind):
            found.append(
                Finding(
                    f"advice on {kind}",
                    True,
                    phrase(given, ranked(spec, kind, zones, given, given.at)),
                )
            )
    return found


class Adviser:
    """Requester of advice when it is due, and recorder of the answers."""

    def __init__(self, recorder: Recorder, access: Access) -> None:
        self._recorder = recorder
        self._access = access
        self._asked: dict[str, float] = {}

    async def keep_asking(self, now: float) -> None:
        """Request what is due at `now`, and return with the answers. Usually nothing is due."""
        spec = self._recorder.state.spec
        for kind in due(self._recorder.state, self._asked, now):
            # Also without an answer: the next moment would not have one either.
            self._asked[kind] = now
            if spec and (given := await ask_advice(self._access, spec, kind)):
                self._recorder.record(given)

    def due(self, now: float) -> bool:
        """Return whether a request is due."""
        return bool(due(self._recorder.state, self._asked, now))
