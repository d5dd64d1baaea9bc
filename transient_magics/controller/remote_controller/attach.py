"""Attach a cluster that another machine declared: make its folder on this machine.

Its controller runs on one of its VMs, which has a label at Compute Engine. Permission to change
that VM's metadata is enough for access: this machine adds a key of its own there, and copies what
it needs to follow the cluster.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from ... import places
from ...cloud import Vm
from ...errors import ClusterError, DeclarationError, RemoteError
from ...journal.declared import ATTACHED, agreed, shown
from ...protocol import layout
from ...remote import generate_key
from ...spec import ClusterSpec
from ..vms.access import Access, to_project
from ..vms.machines import (
    ID_LABEL,
    LABEL,
    OWNER_LABEL,
    ROLE_LABEL,
    SEAT_LABEL,
    account,
    owner_labels,
)
from .install import RemoteInstall


async def attach(name: str, project: str | None) -> Path:
    """Make the folder of the cluster `name`.

    Raises ClusterError if there is none to follow, or CloudError.
    """
    directory = places.cluster(name)
    fresh = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=places.private(places.clusters())))
    try:
        async with to_project(project) as access:
            await access.reopen()
            seat = await the_seat(access, name, project)
            await copy(access, seat, fresh / layout.KEY, fresh)
            spec = fitting(fresh, seat, name, project)
        places.private(fresh / layout.RUNS)
        seat_fields = {"name": seat.name, "id": seat.id, "zone": seat.zone, "owner": _owner(seat)}
        (fresh / ATTACHED).write_text(shown(spec, seat_fields), encoding="utf-8")
        fresh.rename(directory)
    except RemoteError as error:
        what = f"The controller of {name} cannot be followed yet: {error.what}"
        raise ClusterError(what, where=error.where, fix="Try again in a moment.") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return directory


async def the_seat(access: Access, name: str, project: str | None) -> Vm:
    """Return this owner's VM with the controller of cluster `name`. Raises ClusterError."""
    where = project or "the emulator"
    found = await find(access, name)
    if not found:
        what = f"There is no cluster {name} on this machine, and no VM with its controller"
        fix = (
            "Only clusters declared with --controller cluster can be followed from another machine."
        )
        raise ClusterError(what, where=where, fix=fix)
    owner = (await owner_labels(access.engine))[OWNER_LABEL]
    listed = "; ".join(f"{vm.name} (id {vm.id}) in {vm.zone}, owner {_owner(vm)}" for vm in found)
    if not (ours := [vm for vm in found if vm.labels.get(OWNER_LABEL) == owner]):
        raise ClusterError(f"The cluster {name} does not belong to {owner}: {listed}", where=where)
    if len(ours) > 1:
        what = f"Several VMs have the label of the controller of {name}: {listed}"
        raise ClusterError(
            what, where=where, fix="Delete the VM that is not yours, then try again."
        )
    return ours[0]


def _owner(vm: Vm) -> str:
    return vm.labels.get(OWNER_LABEL, "") or "unknown"


def fitting(folder: Path, seat: Vm, name: str, project: str | None) -> ClusterSpec:
    """Return the declaration from the VM, if it is of this cluster. Raises ClusterError."""
    try:
        spec = agreed(folder)
    except DeclarationError as error:
        raise ClusterError(
            f"The declaration of {name} on {seat.name} cannot be read: {error}"
        ) from error
    if (spec.name, spec.id, spec.project) != (name, seat.labels.get(ID_LABEL, ""), project):
        what = f"{seat.name} belongs to another cluster: {spec.name} {spec.id}"
        raise ClusterError(what, where=seat.zone)
    return spec


async def find(access: Access, cluster: str) -> list[Vm]:
    """Return the running VMs made for the controller of `cluster`: one, or none.

    Raises CloudError.
    """
    found = await access.engine.list({LABEL: cluster, **SEAT_LABEL})
    return [vm for vm in found if vm.status == "RUNNING"]


async def copy(access: Access, seat: Vm, key: Path, folder: Path) -> None:
    """Log in with `key`, made if necessary, and copy the declaration and the journal to `folder`.

    Raises CloudError or RemoteError.
    """
    user = account(seat.labels.get(ROLE_LABEL, ""))
    await access.engine.add_ssh_key(seat.zone, seat.name, f"{user}:{generate_key(key)}")
    async with await access.enter(seat, key) as connection:
        for name in (layout.SPEC, layout.JOURNAL):
            await connection.get(
                f"{RemoteInstall.folder(seat.labels[LABEL])}/{name}", folder / name
            )
