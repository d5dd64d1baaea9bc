"""`python -m transient_magics.controller.sweep [PROJECT]`: delete this user's VMs that nothing here knows.

Those are VMs of clusters that are over or unknown, and of images that are built no more. An unknown cluster whose
controller runs on a VM of its own is looked after: another machine declared it.
Prints one JSON object: `{"deleted": [names]}` or `{"error": sentence}`. Without a project it sweeps the emulator.
"""

from __future__ import annotations

import asyncio
import sys

from .. import places
from ..journal import read, replay
from .access import to_project
from .answer import answer
from .baking import BUILD_LABEL
from .lock import held
from .machines import ID_LABEL, LABEL, OWNER_LABEL, SEAT_LABEL, owner, rule_description


async def sweep(project: str | None) -> list[str]:
    """Names of the VMs deleted: those whose cluster has no folder here or is over, or whose image is built no more."""
    living = set()
    for path in places.clusters().glob("[a-z]*/spec.json"):
        if not replay(read(path.parent / "journal.jsonl")).over:
            living.add(path.parent.name)
    async with to_project(project) as access:
        await access.reopen()
        found = await access.engine.list({OWNER_LABEL: owner()})
        seats = [vm.labels[LABEL] for vm in found if vm.status == "RUNNING" and SEAT_LABEL.items() <= vm.labels.items()]
        living |= {cluster for cluster in seats if not places.cluster(cluster).exists()}
        orphans = [
            vm
            for vm in found
            if (vm.labels.get(LABEL) and vm.labels[LABEL] not in living)
            or (vm.labels.get(BUILD_LABEL) and not held(places.build(vm.labels[BUILD_LABEL])))
        ]
        async with asyncio.TaskGroup() as tasks:
            for vm in orphans:
                tasks.create_task(access.engine.delete(vm.zone, vm.name, vm.labels))
        for cluster, identity in sorted(
            {(vm.labels[LABEL], vm.labels.get(ID_LABEL, "")) for vm in orphans if LABEL in vm.labels}
        ):
            await access.engine.firewall.remove(await access.engine.firewall.find(rule_description(cluster, identity)))
    return sorted(vm.name for vm in orphans)


def main() -> int:
    """Exit code 0, or 1 with the reason in the output."""

    async def deleted() -> dict[str, list[str]]:
        return {"deleted": await sweep(sys.argv[1] if len(sys.argv) > 1 else None)}

    return answer(deleted())


if __name__ == "__main__":
    sys.exit(main())
