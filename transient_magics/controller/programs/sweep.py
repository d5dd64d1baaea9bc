"""Delete orphans: `python -m ...programs.sweep [--yes] [--all-machines] [PROJECT]`.

By default it considers this user's VMs that were made from this machine: of clusters that are over
or have no folder here, and of image builds and measurements whose process no longer runs. With
`--all-machines` it considers all of this user's VMs, also from other machines or made by an earlier
version in the user's login name. VMs of other machines that are younger than an hour are spared,
and so are the VMs of a cluster whose controller runs on a VM, wherever it was declared. VMs and the
firewall rules of their clusters are deleted only with `--yes`. Rules of clusters without VMs are
found and deleted like VMs. Rules of other machines are spared for a day, because a cluster that
waits for its first VM already has rules.

Prints one JSON object: `{"orphans": [{name, zone, why}], "rules": [{name, why}], "deleted": bool,
"unreadable": [sentence]}` or `{"error": sentence}`. Without a project it sweeps the emulator.
`unreadable` has a sentence for each cluster folder that cannot be read (its VMs are listed and
swept too, unless its controller runs), and for rules that may not be listed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from ... import places
from ...cloud import Vm
from ...cloud.firewall import same_owner
from ...errors import AccessError, DeclarationError
from ...journal import read, replay
from ...journal.declared import ATTACHED, unreadable
from ...journal.lock import is_locked
from ...protocol import checks, layout
from ...spec.measurement import MeasureSpec
from ..vms.access import Access, to_project
from ..vms.machines import (
    ID_LABEL,
    LABEL,
    MACHINE_LABEL,
    MEASURE_LABEL,
    OWNER_LABEL,
    SEAT_LABEL,
    login_name,
    owner_labels,
    rule_description,
    ruled_by,
)
from . import print_answer
from .bake import BUILD_LABEL

_YOUNG = timedelta(hours=1)
_YOUNG_RULE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Here:
    """Clusters with a folder on this machine: its own, followed, and unreadable ones."""

    over: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Whether a cluster is over, by id (by name if an earlier version gave it no id)."""
    followed: Collection[str] = ()
    """Ids of attached clusters that this machine follows and that seem not to be over."""
    broken: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Whether a controller runs for the cluster, by name."""


async def sweep(project: str | None, *, yes: bool, all_machines: bool) -> dict[str, Any]:
    """Return what is swept (or would be, without `yes`), and why. Raises CloudError."""
    async with to_project(project) as access:
        await access.reopen()
        mine = await owner_labels(access.engine)
        if all_machines:
            keys = (OWNER_LABEL,)
        else:
            keys = (OWNER_LABEL, MACHINE_LABEL)
        found = await access.engine.list({key: mine[key] for key in keys})
        if all_machines:
            # An earlier version used the login name as owner.
            found += await access.engine.list({OWNER_LABEL: login_name()})
        ruled, unlisted = await _rules(access, {key: mine[key] for key in keys})
        here = clusters_here()
        governed = {
            _identity(vm)
            for vm in found
            if vm.status == "RUNNING" and SEAT_LABEL.items() <= vm.labels.items()
        }
        reasons = [(vm, _why(vm, mine[MACHINE_LABEL], here, governed)) for vm in found]
        orphans = sorted(
            ((vm, why) for vm, why in reasons if why),
            key=lambda orphan: (orphan[0].zone, orphan[0].name),
        )
        stray = [
            (rule, why) for rule in ruled if (why := _why_rule(rule, mine[MACHINE_LABEL], here))
        ]
        if yes:
            await _delete(
                access, [vm for vm, _ in orphans], {_identity(vm) for vm, why in reasons if not why}
            )
            await access.engine.firewall.remove([rule for rule, _ in stray])
    return {
        "orphans": [{"name": vm.name, "zone": vm.zone, "why": why} for vm, why in orphans],
        "rules": [{"name": rule["name"], "why": why} for rule, why in stray],
        "deleted": yes,
        "unreadable": [*(unreadable(places.cluster(name)) for name in here.broken), *unlisted],
    }


async def _rules(
    access: Access, whose: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return this owner's rules whose clusters have no VM, and why they may not be listed."""
    try:
        found = await access.engine.firewall.find(
            lambda description: whose.items() <= ruled_by(description).items()
        )
    except AccessError as error:
        # A user with own rules needs no permission to list these.
        return [], [f"Firewall rules were not looked for: {error}"]
    clusters = sorted({ruled_by(rule["description"])[ID_LABEL] for rule in found})
    vms = await asyncio.gather(*(access.engine.list({ID_LABEL: identity}) for identity in clusters))
    empty = {identity for identity, left in zip(clusters, vms, strict=True) if not left}
    return [rule for rule in found if ruled_by(rule["description"])[ID_LABEL] in empty], []


def _why_rule(rule: Mapping[str, Any], machine: str, here: Here) -> str:
    """Return why the rule is not needed, whose cluster has no VM (a clause), or ""."""
    marks = ruled_by(rule["description"])
    created = rule["created"]
    from_here = marks[MACHINE_LABEL] == machine
    if not from_here and (not created or datetime.now(UTC) - created < _YOUNG_RULE):
        return ""
    return _why_cluster(marks[LABEL], marks[ID_LABEL], from_here, here)


def _why(vm: Vm, machine: str, here: Here, governed: Collection[str]) -> str:
    """Return why the VM is an orphan (a clause), or "".

    `governed` has the ids of clusters with a controller on a VM.
    """
    if measurement := vm.labels.get(MEASURE_LABEL):
        if measurement in _measuring():
            return ""
        return "no process measures availability with it any more"
    image = vm.labels.get(BUILD_LABEL)
    cluster = vm.labels.get(LABEL)
    identity = _identity(vm)
    from_here = vm.labels.get(MACHINE_LABEL) == machine
    if not from_here and vm.created and datetime.now(UTC) - vm.created < _YOUNG:
        return ""
    if image:
        under_way = from_here and _building(image, identity)
        if under_way:
            return ""
        return f"no process builds the image {image} any more"
    if not cluster or (identity in governed and identity not in here.over):
        return ""
    return _why_cluster(cluster, identity, from_here, here)


def _why_cluster(cluster: str, identity: str, from_here: bool, here: Here) -> str:
    """Return why the cluster appears to have no controller (a clause), or ""."""
    if here.over.get(identity) is False:
        return ""
    if identity in here.over:
        return f"its cluster {cluster} is over"
    if identity in here.followed:
        return f"its cluster {cluster} is only followed from here, and has no controller on a VM any more"
    if from_here and cluster in here.broken:
        if here.broken[cluster]:
            return ""
        return f"the folder of its cluster {cluster} on this machine cannot be read"
    if from_here:
        where = "this machine"
    else:
        where = "this one of your machines, nor a controller on a VM"
    return f"its cluster {cluster} has no folder on {where}"


def _identity(vm: Vm) -> str:
    """Return the id of the VM's cluster; its name if an earlier version made it."""
    return vm.labels.get(ID_LABEL) or vm.labels.get(LABEL, "")


def clusters_here() -> Here:
    """Return the clusters that have a folder on this machine."""
    over_by_id: dict[str, bool] = {}
    followed: set[str] = set()
    broken: dict[str, bool] = {}
    for folder in sorted(path.parent for path in places.clusters().glob(f"[a-z]*/{layout.SPEC}")):
        if unreadable(folder):
            broken[folder.name] = is_locked(folder)
        else:
            identity = (
                json.loads((folder / layout.SPEC).read_text(encoding="utf-8")).get("id")
                or folder.name
            )
            over = replay(read(folder / layout.JOURNAL)).over
            if over or not (folder / ATTACHED).exists():
                over_by_id[identity] = over
            else:
                followed.add(identity)
    return Here(over_by_id, followed, broken)


def _measuring() -> set[str]:
    """Return the ids of measurements that run on this machine."""
    found = set[str]()
    for folder in (
        path.parent
        for path in places.measurements().glob(f"*/{layout.SPEC}")
        if is_locked(path.parent)
    ):
        with suppress(OSError, ValueError, DeclarationError):
            found.add(
                MeasureSpec.from_dict(checks.parsed_object((folder / layout.SPEC).read_bytes())).id
            )
    return found


def _building(image: str, identity: str) -> bool:
    """Return whether this build of the image runs on this machine."""
    folder = places.build(image)
    if not is_locked(folder):
        return False
    try:
        return checks.parsed_object((folder / layout.SPEC).read_bytes()).get("id", "") == identity
    except (OSError, ValueError):
        # It is unknown which build runs, so assume this one.
        return True


async def _delete(access: Access, orphans: Collection[Vm], spared: Collection[str]) -> None:
    """Delete the orphans, and the rules of clusters without `spared` VMs.

    Raises the first CloudError, after all deletions have ended.
    """
    deletions = [access.engine.delete(vm.zone, vm.name, vm.labels) for vm in orphans]
    for outcome in await asyncio.gather(*deletions, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
    closed = [vm for vm in orphans if LABEL in vm.labels and _identity(vm) not in spared]
    clusters = {(vm.labels[LABEL], vm.labels.get(ID_LABEL, "")) for vm in closed}
    for name, identity in sorted(clusters):
        # Only owners are compared: the rest of a description differs from rule to rule.
        is_of_cluster = partial(same_owner, rule_description(name, identity))
        found = await access.engine.firewall.find(is_of_cluster)
        await access.engine.firewall.remove(found)


def main() -> int:
    """Return exit code 0, or 1 with the reason in the output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--yes", action="store_true")
    parser.add_argument("--all-machines", action="store_true")
    parser.add_argument("project", nargs="?")
    asked = parser.parse_args()
    return print_answer(sweep(asked.project, yes=asked.yes, all_machines=asked.all_machines))


if __name__ == "__main__":
    sys.exit(main())
