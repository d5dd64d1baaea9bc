"""`python -m transient_magics.controller.adopt NAME [PROJECT]`: the folder of a cluster that another machine declared.

Its controller runs on one of its VMs, which Compute Engine knows by a label. Whoever may change that VM's metadata may
come in: a key of this machine's own is added there, and what is needed to follow the cluster is copied. Prints one JSON
object: `{"folder": path}` or `{"error": sentence}`. Without a project it looks on the emulator.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from .. import places
from ..cloud import Vm
from ..errors import ClusterError, RemoteError, TransientError
from ..journal import VmState
from ..remote import generate_key
from ..spec import ClusterSpec
from .access import Access, to_project
from .core import PARAMETER_SERVER
from .machines import LABEL, SEAT_LABEL, USER, vm_name
from .seat import JOURNAL, Seat

ATTACHED = "attached"
"""A file in the folders of clusters that another machine declared."""


async def adopt(name: str, project: str | None) -> Path:
    """Make the folder of the cluster `name`. Raises ClusterError where there is none to follow, or CloudError."""
    found = await _find(name, project)
    spec = ClusterSpec(
        name=name, groups=(), zones=(found.zone,), prices={}, project=project, external_ip=bool(found.external_address)
    )
    directory = places.cluster(name)
    fresh = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=places.private(places.clusters())))
    try:
        async with Access(spec) as access:
            await access.reopen()
            key = generate_key(fresh / "key")
            await access.engine.add_ssh_key(found.zone, found.name, f"{USER}:{key}")
            async with await access.connect(_as_state(spec, found), fresh / "key") as connection:
                there = Seat.folder(name)
                await connection.get_tree(f"{there}/runs", places.private(fresh / "runs"))
                for file in ("spec.json", JOURNAL):
                    await connection.get(f"{there}/{file}", fresh / file)
        (fresh / ATTACHED).touch()
        fresh.rename(directory)
    except RemoteError as error:
        what = f"The controller of {name} cannot be followed yet: {error.what}"
        raise ClusterError(what, where=found.name, fix="Try again in a moment.") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return directory


async def _find(name: str, project: str | None) -> Vm:
    async with to_project(project) as access:
        await access.reopen()
        found = await access.engine.list({LABEL: name, **SEAT_LABEL})
    running = [vm for vm in found if vm.status == "RUNNING"]
    if not running:
        where = f"project {project}" if project else "the emulator"
        fix = "Only clusters declared with --controller cluster can be followed from another machine."
        raise ClusterError(f"No VM with the controller of a cluster {name} runs", where=where, fix=fix)
    return running[-1]


def _as_state(spec: ClusterSpec, vm: Vm) -> VmState:
    return VmState(
        name=vm_name(spec, vm.name), role=PARAMETER_SERVER, slot=0, zone=vm.zone, accelerator="", machine_type="",
        provisioning_model="standard", hourly=0.0, on_demand_hourly=0.0, address=vm.address,
        external_address=vm.external_address, vm_id=vm.id,
    )  # fmt: skip


def main() -> int:
    """Exit code 0, or 1 with the reason in the output."""
    name, *project = sys.argv[1:]
    try:
        print(json.dumps({"folder": str(asyncio.run(adopt(name, project[0] if project else None)))}))
    except (TransientError, OSError) as error:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
