"""Carry out a declared availability measurement: `python -m ...programs.measure NAME`.

The declaration is `availability/NAME/spec.json`. The client starts it detached, so that it outlives
the notebook. Each round requests one VM in each zone, deletes it as soon as it exists, and records
whether there was one. Such a VM has no login, Compute Engine deletes it after a few minutes, and a
sweep finds it by its label. A kill therefore costs at most some cents, which are reserved in the
budget. The program ends immediately if another process carries out the measurement.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from ... import places
from ...catalog import DISK_GB, accelerator
from ...catalog.traces import sampled, to_csv
from ...cloud import ComputeEngine, VmRequest, request_id
from ...errors import (
    AccessError,
    CloudError,
    CredentialsError,
    GoneError,
    QuotaError,
    StockoutError,
    TransientError,
)
from ...files import write_atomically
from ...journal.lock import take
from ...protocol import layout
from ...spec.measurement import (
    ENDED,
    LEAST_SECONDS,
    LIFE_SECONDS,
    STOP,
    TRACE,
    MeasureSpec,
    Sighting,
    next_request,
    read_sightings,
    write_sightings,
)
from ..vms.access import Access, to_project
from ..vms.machines import MEASURE_LABEL, owner_labels

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_MOST_FAILURES = 5
"""Rounds in a row without a result, after which the measurement ends."""


class _Blind:
    """Request without information about capacity.

    Compute Engine did not answer, or refused for another reason.
    """


async def measure(spec: MeasureSpec, folder: Path) -> str:
    """Measure until the end, and return why it ended, a clause.

    Raises CloudError if no request can give a result.
    """
    failures = 0
    async with to_project(spec.project) as access:
        while True:
            seen = read_sightings(folder)
            due, over = next_request(spec, seen, time.time())
            if over:
                return over
            if await _stopped(folder, due):
                return "it was stopped"
            found = await _look(access, spec)
            write_sightings(folder, found)
            _write_traces(spec, folder)
            if found:
                failures = 0
            else:
                failures = failures + 1
            if failures >= _MOST_FAILURES:
                return "Compute Engine did not say whether there are VMs"
            if not found:
                await asyncio.sleep(min(spec.every_seconds, LEAST_SECONDS))


async def _stopped(folder: Path, until: float) -> bool:
    """Wait until a time (seconds since 1970), and return whether a stop was requested."""
    while not (folder / STOP).exists():
        left = until - time.time()
        if left <= 0:
            return False
        await asyncio.sleep(min(_LOOK_SECONDS, left))
    return True


async def _look(access: Access, spec: MeasureSpec) -> list[Sighting]:
    try:
        await access.reopen()
        # The check also measures the difference between this machine's clock and Compute Engine's.
        await access.engine.check()
        marks = {**await owner_labels(access.engine), MEASURE_LABEL: spec.id}
    except (AccessError, CredentialsError):
        raise
    except CloudError as error:
        log.warning("%s", error)
        return []
    probes = (_probe(access.engine, spec, zone, marks) for zone in spec.zones)
    found = await asyncio.gather(*probes, return_exceptions=True)
    # All of them have deleted their VMs by now.
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return [result for result in found if isinstance(result, Sighting)]


async def _probe(
    engine: ComputeEngine, spec: MeasureSpec, zone: str, marks: dict[str, str]
) -> Sighting | _Blind:
    """Request a VM in the zone, and delete it.

    Raises errors that every request would meet, such as QuotaError and AccessError.
    """
    gpu = accelerator(spec.gpu)
    began = time.time()
    attached = gpu.compute_engine_name if not gpu.bundled else ""
    name = f"{spec.name}-{spec.zones.index(zone)}-{int(began)}"
    ends = datetime.fromtimestamp(began - engine.ahead + LIFE_SECONDS, UTC)
    request = VmRequest(
        name=name,
        zone=zone,
        machine_type=gpu.machine_type,
        ssh_public_key="",
        accelerator=attached,
        accelerator_count=1 if attached else 0,
        provisioning_model=spec.provisioning_model,
        labels=marks,
        disk_gb=DISK_GB,
        external_ip=False,
        termination_time=ends,
        request_id=request_id(spec.id, name),
    )
    try:
        await engine.insert(request, timeout=LIFE_SECONDS)
    except (StockoutError, GoneError):
        return Sighting(round(began, 3), zone, given=False)
    except (QuotaError, AccessError, CredentialsError):
        raise
    except CloudError as error:
        # The VM may exist despite the error.
        log.warning("%s: %s", zone, error)
        await _give_back(engine, zone, name, marks)
        return _Blind()
    except asyncio.CancelledError:
        await asyncio.shield(_give_back(engine, zone, name, marks))
        raise
    await asyncio.shield(_give_back(engine, zone, name, marks))
    dollars = max(LEAST_SECONDS, time.time() - began) / 3600 * spec.hourly[zone]
    return Sighting(round(began, 3), zone, given=True, dollars=dollars)


async def _give_back(engine: ComputeEngine, zone: str, name: str, marks: dict[str, str]) -> None:
    try:
        await engine.delete(zone, name, marks)
    except CloudError as error:
        # Compute Engine deletes it automatically in some minutes.
        log.warning("%s ends automatically, because its deletion failed: %s", name, error)


def _write_traces(spec: MeasureSpec, folder: Path) -> None:
    seen = read_sightings(folder)
    found = (
        sampled(
            zone,
            spec.gpu,
            [(sighting.at, int(sighting.given)) for sighting in seen if sighting.zone == zone],
            spec.every_seconds,
        )
        for zone in spec.zones
    )
    if traces := [trace for trace in found if trace]:
        write_atomically(folder / TRACE, to_csv(traces), durable=False)


async def _carry_out(spec: MeasureSpec, folder: Path) -> int:
    work = asyncio.ensure_future(measure(spec, folder))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        why = await work
    except asyncio.CancelledError:
        why = "it was asked to end"
    except TransientError as error:
        why = str(error)
    write_atomically(folder / ENDED, json.dumps({"why": why}))
    return 0


def main(arguments: list[str]) -> int:
    """Carry out the measurement and return 0. The reason of its end is in its folder."""
    folder = places.measurements() / arguments[0]
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if take(folder) is None or (folder / ENDED).exists():
        return 0
    spec = MeasureSpec.from_dict(json.loads((folder / layout.SPEC).read_text(encoding="utf-8")))
    return asyncio.run(_carry_out(spec, folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
