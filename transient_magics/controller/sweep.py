"""`python -m transient_magics.controller.sweep [--yes] [--all-machines] [PROJECT]`: VMs that nothing here knows.

Those are VMs of this user's that were made from this machine, of clusters that are over or have no folder here, and of
images that are built no more. With `--all-machines` they are all of this user's, also from other machines, and what an
earlier version made in his login name; then what is younger than an hour is spared. A cluster whose controller runs on
a VM is looked after, wherever it was declared. Only with `--yes` they are deleted, with the firewall rules of their
clusters. Prints one JSON object: `{"orphans": [{name, zone, why}], "deleted": bool}` or `{"error": sentence}`. Without
a project it is about the emulator.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from .. import places
from ..cloud import Vm
from ..journal import read, replay
from .access import Access, to_project
from .answer import answer
from .baking import BUILD_LABEL
from .lock import held
from .machines import ID_LABEL, LABEL, SEAT_LABEL, rule_description
from .owner import MACHINE_LABEL, OWNER_LABEL, user, whose

_YOUNG = timedelta(hours=1)


async def sweep(project: str | None, *, yes: bool, all_machines: bool) -> dict[str, Any]:
    """What is swept (or would be, without `yes`), and why. Raises CloudError."""
    async with to_project(project) as access:
        await access.reopen()
        mine = await whose(access.engine)
        keys = (OWNER_LABEL,) if all_machines else (OWNER_LABEL, MACHINE_LABEL)
        found = await access.engine.list({key: mine[key] for key in keys})
        if all_machines:
            found += await access.engine.list({OWNER_LABEL: user()})  # whom an earlier version took for the owner
        clusters = _clusters_here()
        governed = {_identity(vm) for vm in found if vm.status == "RUNNING" and SEAT_LABEL.items() <= vm.labels.items()}
        reasons = [(vm, _why(vm, mine[MACHINE_LABEL], clusters, governed)) for vm in found]
        orphans = sorted(((vm, why) for vm, why in reasons if why), key=lambda each: (each[0].zone, each[0].name))
        if yes:
            await _delete(access, [vm for vm, _ in orphans], {_identity(vm) for vm, why in reasons if not why})
    shown = [{"name": vm.name, "zone": vm.zone, "why": why} for vm, why in orphans]
    return {"orphans": shown, "deleted": yes}


def _why(vm: Vm, machine: str, clusters: Mapping[str, bool], governed: Collection[str]) -> str:
    """Why nobody looks after the VM (a clause), or nothing. `clusters`: those that are known here, and whether over."""
    image, cluster, identity = vm.labels.get(BUILD_LABEL), vm.labels.get(LABEL), _identity(vm)
    from_here = vm.labels.get(MACHINE_LABEL) == machine
    if not from_here and vm.created and datetime.now(UTC) - vm.created < _YOUNG:
        return ""
    if image:
        under_way = from_here and _building(image, identity)
        return "" if under_way else f"the image {image} is built no more"
    if not cluster or clusters.get(identity) is False or (identity in governed and identity not in clusters):
        return ""
    if identity in clusters:
        return f"its cluster {cluster} is over"
    where = "this machine" if from_here else "this one of your machines, nor a controller on a VM"
    return f"its cluster {cluster} has no folder on {where}"


def _identity(vm: Vm) -> str:
    """The id of the VM's cluster; its name, where an earlier version made it."""
    return vm.labels.get(ID_LABEL) or vm.labels.get(LABEL, "")


def _clusters_here() -> dict[str, bool]:
    """Of the clusters that have a folder here, by id (by name where they have none), whether they are over."""
    known = {}
    for path in places.clusters().glob("[a-z]*/spec.json"):
        identity = json.loads(path.read_text()).get("id") or path.parent.name
        known[identity] = replay(read(path.parent / "journal.jsonl")).over
    return known


def _building(image: str, identity: str) -> bool:
    """Whether that very build of the image is under way on this machine."""
    folder = places.build(image)
    return held(folder) and json.loads((folder / "spec.json").read_text()).get("id", "") == identity


async def _delete(access: Access, orphans: Collection[Vm], spared: Collection[str]) -> None:
    """Delete all that can be, and the rules of clusters none of whose VMs is `spared`. Raises the first CloudError."""
    deletions = [access.engine.delete(vm.zone, vm.name, vm.labels) for vm in orphans]
    for outcome in await asyncio.gather(*deletions, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
    closed = [vm for vm in orphans if LABEL in vm.labels and _identity(vm) not in spared]
    clusters = {(vm.labels[LABEL], vm.labels.get(ID_LABEL, "")) for vm in closed}
    for name, identity in sorted(clusters):
        await access.engine.firewall.remove(await access.engine.firewall.find(rule_description(name, identity)))


def main() -> int:
    """Exit code 0, or 1 with the reason in the output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--yes", action="store_true")
    parser.add_argument("--all-machines", action="store_true")
    parser.add_argument("project", nargs="?")
    asked = parser.parse_args()
    return answer(sweep(asked.project, yes=asked.yes, all_machines=asked.all_machines))


if __name__ == "__main__":
    sys.exit(main())
