"""Bake the image that `builds/NAME/spec.json` declares: `python -m ...programs.bake NAME`.

The client starts it detached, so that it outlives the notebook. Its steps are in `journal.jsonl`
beside the declaration. On SIGTERM it deletes its VM first. It ends immediately if another process
bakes the image.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ... import places
from ...cloud import (
    BASE_LABEL,
    FOR_LABEL,
    GPU_LABEL,
    LOCK_LABEL,
    ComputeEngine,
    VmRequest,
    request_id,
)
from ...errors import AlreadyExistsError, CloudError, JournalError, TransientError
from ...journal import Journal, events, now
from ...journal.lock import take
from ...protocol import layout
from ...spec import ImageSpec
from ...spec.image import FAMILIES
from ...version import VERSION
from ..vms.access import to_project
from ..vms.boots import IMAGE, BootReport, last_lines, read_report
from ..vms.machines import ID_LABEL, owner_labels
from ..vms.startup import image_script, lock_hash

log = logging.getLogger(__name__)

BUILD_LABEL = "transient-magics-image"
"""Label on the VM of a build: the name of the image."""
_LIFE = timedelta(hours=1)
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_INSERT_SECONDS = 120.0


# A VM installs the stack, and its disk becomes the image. The VM is on demand, has no login, and is
# deleted by Compute Engine after an hour. It is deleted with its disk in any case: when the image
# exists, after a failure, and when this program is terminated. If even that fails, a sweep finds it
# by its labels.


class Baking:
    """Build of one image.

    `say` receives what begins, as short clauses. `patience` is the time limit of the installation,
    in seconds.
    """

    def __init__(
        self,
        spec: ImageSpec,
        engine: ComputeEngine,
        say: Callable[[str], None],
        *,
        patience: float = 3000.0,
    ) -> None:
        self._spec = spec
        self._engine = engine
        self._say = say
        self._patience = patience
        self._whose: dict[str, str] = {}

    async def run(self) -> str:
        """Build the image, and return its id once it exists and the VM is gone.

        Raises CloudError, also after the VM is gone.
        """
        spec = self._spec
        engine = self._engine
        await engine.check()
        self._whose = await owner_labels(engine)
        if await engine.images.exists(spec.name):
            fix = "Name another, or delete it."
            raise AlreadyExistsError(
                f"The image {spec.name} already exists", where=spec.project or "", fix=fix
            )
        try:
            self._say(f"starting a VM from {spec.base}")
            await self._start_vm()
            versions = await self._installed()
            self._say("stopping the VM")
            await engine.power.stop(spec.zone, spec.vm)
            self._say("making the image from its disk")
            made = await engine.images.make(
                spec.name,
                disk=f"zones/{spec.zone}/disks/{spec.vm}",
                description=self._description(versions),
                labels=self._labels(),
                family=FAMILIES[spec.purpose],
            )
        finally:
            self._say("deleting the VM and its disk")
            left = await self._clear_away()
        if left:
            raise CloudError(f"The image {spec.name} was built, but {left}")
        return made

    async def _start_vm(self) -> None:
        insertion = asyncio.ensure_future(self._engine.insert(self._request()))
        try:
            await asyncio.shield(insertion)
        except asyncio.CancelledError:
            # A VM that is still being made cannot be deleted yet, and would appear after the
            # deletion.
            await asyncio.wait([insertion], timeout=_INSERT_SECONDS)
            raise

    async def _installed(self) -> str:
        """Return the start-up script's report on the stack once it is installed.

        Raises CloudError with the script's last lines if it failed.
        """
        spec = self._spec
        at = "starting"
        seen = BootReport()
        pause = _FIRST_PAUSE
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    word = await read_report(self._engine, spec.zone, spec.vm, IMAGE)
                    if word.kind == "ready":
                        return word.words
                    if word.kind == "failed":
                        break
                    if word != seen:
                        seen = word
                        at = word.words
                        pause = _FIRST_PAUSE
                        self._say(at)
                    await asyncio.sleep(pause)
                    pause = min(1.5 * pause, _LONGEST_PAUSE)
        except TimeoutError:
            what = f"The start-up script has not ended after {self._patience:g} s, at: {at}"
        else:
            what = f"The start-up script failed at: {word.words}"
        raise CloudError(
            what, where=spec.vm, fix=await last_lines(self._engine, spec.zone, spec.vm)
        )

    async def _clear_away(self) -> str:
        """Delete the VM, and return a sentence if that failed, or "".

        A VM of its name from another origin stays.
        """
        spec = self._spec
        if spec.project:
            option = f" --project {spec.project}"
        else:
            option = ""
        try:
            await self._engine.delete(spec.zone, spec.vm, self._request().labels)
        except CloudError as error:
            left = (
                f"its VM {spec.vm} could not be deleted: {error} Compute Engine deletes it within "
                f"an hour. To delete it now, type `transient cluster sweep{option} --yes`."
            )
            self._say(left)
            return left
        return ""

    def _request(self) -> VmRequest:
        spec = self._spec
        return VmRequest(
            name=spec.vm,
            zone=spec.zone,
            machine_type=spec.machine_type,
            provisioning_model="standard",
            ssh_public_key="",
            labels={BUILD_LABEL: spec.name, ID_LABEL: spec.id, **self._whose},
            metadata={"startup-script": image_script(with_gpu=spec.gpu, purpose=spec.purpose)},
            termination_time=datetime.fromtimestamp(now() - self._engine.ahead, UTC) + _LIFE,
            image=spec.base,
            disk_gb=spec.disk_gb,
            network=spec.network,
            subnet=spec.subnet,
            external_ip=spec.external_ip,
            request_id=request_id("image", spec.project, spec.name, spec.id, spec.declared_at),
        )

    def _labels(self) -> dict[str, str]:
        base = self._spec.base.rpartition("/")[2].lower()[:63]
        return {
            "transient-magics-version": VERSION.replace(".", "-").replace("+", "-"),
            LOCK_LABEL: lock_hash(with_gpu=self._spec.gpu, purpose=self._spec.purpose),
            GPU_LABEL: "yes" if self._spec.gpu else "no",
            BASE_LABEL: base,
            FOR_LABEL: self._spec.purpose,
            **self._whose,
        }

    def _description(self, versions: str) -> str:
        driver = ", NVIDIA driver" if self._spec.gpu else ""
        return f"{versions}{driver}, on {self._spec.base}; baked by transient_magics {VERSION}"


def main(arguments: list[str]) -> int:
    """Build the image and return the exit code.

    0: the image exists, or another process builds it. 1: it failed (see the journal).
    """
    directory = places.build(arguments[0])
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if take(directory) is None:
        return 0
    return asyncio.run(_bake(directory))


async def _bake(directory: Path) -> int:
    spec = ImageSpec.from_dict(json.loads((directory / layout.SPEC).read_text(encoding="utf-8")))
    with Journal(directory / layout.JOURNAL) as journal:

        def say(what: str) -> None:
            log.info("%s", what)
            try:
                journal.append(events.ImageStep(what=what))
            except JournalError as error:
                # A full disk must not keep the VM from being deleted.
                log.error("%s", error)

        task = asyncio.ensure_future(_run(spec, say))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            image = await task
        except asyncio.CancelledError:
            journal.append(events.ImageFailed(reason="it was asked to end"))
            return 1
        except TransientError as error:
            log.warning("%s", error)
            journal.append(events.ImageFailed(reason=str(error)))
            return 1
        journal.append(
            events.ImageBuilt(
                image=spec.name, seconds=time.time() - spec.declared_at, image_id=image
            )
        )
    return 0


async def _run(spec: ImageSpec, say: Callable[[str], None]) -> str:
    async with to_project(spec.project) as access:
        await access.reopen()
        return await Baking(spec, access.engine, say).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
