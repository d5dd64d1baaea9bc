"""Progress of start-up scripts on VMs that do not answer yet, and VMs whose script failed.

A script reports its progress in a guest attribute (templates/tell.sh.j2), the only way while a VM
installs what it needs. The report is not trusted: it is clipped, printable, and counts only until
the VM answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import NamedTuple

from ...cloud import ComputeEngine
from ...errors import CloudError
from ...journal import MOST_FAILED_BOOTS, VmState, events
from ...spec.image import boot_patience
from ..record import Recorder
from ..tasks import Tasks
from .access import Access
from .machines import instance_name
from .startup import NAMESPACE

log = logging.getLogger(__name__)

BOOT = "boot"
IMAGE = "image"
"""Guest attributes with the report: of a VM that trains, and of one that an image is made from."""
_EVERY = 10.0
_LINES = 5
_WORDS = 200
_LINE = 300


class BootReport(NamedTuple):
    """Latest report of a start-up script.

    `kind` is step, ready, failed, or empty; `words` is a clause.
    """

    kind: str = ""
    words: str = ""


async def read_report(
    engine: ComputeEngine, zone: str, instance: str, attribute: str
) -> BootReport:
    """Return the present report of the start-up script. Raises CloudError."""
    report = (await engine.guest_attributes(zone, instance, NAMESPACE)).get(attribute, "")
    kind, _, words = report.partition(": ")
    if kind in ("step", "ready", "failed"):
        return BootReport(kind, _plain(words, _WORDS))
    return BootReport()


async def last_lines(engine: ComputeEngine, zone: str, instance: str) -> str:
    """Return the last lines of the VM's serial port, or why they cannot be read."""
    try:
        lines = (await engine.console(zone, instance)).strip().splitlines()
    except CloudError as error:
        return f"What it wrote cannot be read: {error}"
    return "Its last lines:\n" + "\n".join(_plain(line, _LINE) for line in lines[-_LINES:])


class Boots:
    """Follower of the start-up scripts of a cluster's VMs."""

    def __init__(self, recorder: Recorder, access: Access, tasks: Tasks) -> None:
        self._recorder = recorder
        self._access = access
        self._tasks = tasks

    def follow(self, vm: VmState) -> None:
        """Follow the script until the VM answers, or record that its boot failed."""
        if vm.state == "booting" and not vm.failure:
            self._tasks.do(f"boot {vm.name}", partial(self._follow, vm.name))

    def forget(self, vm: str) -> None:
        """Stop following the VM, which is gone."""
        self._tasks.cancel(f"boot {vm}")

    @property
    def trouble(self) -> str:
        """Sentence about the kinds of VMs that are no longer requested; empty if none."""
        state = self._recorder.state
        given_up = state.given_up
        if not given_up:
            return ""
        last = next(
            (
                vm
                for vm in reversed([*state.vms.values()])
                if vm.failure and vm.boots_as in given_up
            ),
            None,
        )
        if last and last.ready_at:
            what = "were of no use"
        else:
            what = "did not boot"
        more = "more, and no workers," if state.stranded else "more"
        return (
            f"{' and '.join(sorted(given_up))}: {MOST_FAILED_BOOTS} VMs in a row {what}"
            f"{f', the last one: {last.failure}' if last else ''}; no {more} are asked for until the cluster is resized"
        )

    async def _follow(self, name: str) -> None:
        # This clock stops while this machine sleeps, so VMs keep their time to answer after it
        # wakes.
        gpu = self._recorder.state.vms[name].accelerator
        reported_at = time.monotonic()
        longest = boot_patience(self._recorder.spec, gpu)
        while True:
            await asyncio.sleep(_EVERY)
            vm = self._recorder.state.vms[name]
            if vm.state != "booting":
                return
            try:
                word = await read_report(
                    self._access.engine, vm.zone, instance_name(self._recorder.spec, name), BOOT
                )
            except CloudError as error:
                log.warning("boot of %s: %s", name, error)
                # Missing answers from Compute Engine do not count against the VM, either.
                continue
            if word.kind == "failed":
                await self._failed(vm, f"failed at: {word.words}")
                return
            if word.kind and word.words != vm.step:
                reported_at = time.monotonic()
                self._recorder.record(events.VmBootStep(vm=name, what=word.words))
            elif time.monotonic() - reported_at > longest:
                if vm.step:
                    at = f" after: {vm.step}"
                else:
                    at = ""
                await self._failed(vm, f"no answer within {longest / 60:.0f} min{at}")
                return

    async def _failed(self, vm: VmState, reason: str) -> None:
        lines = await last_lines(
            self._access.engine, vm.zone, instance_name(self._recorder.spec, vm.name)
        )
        self._recorder.record(events.VmBootFailed(vm=vm.name, reason=reason, lines=lines))


def _plain(text: str, most: int) -> str:
    return "".join(character for character in text if character.isprintable())[:most]
