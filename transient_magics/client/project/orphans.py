"""What this user left in a project and nothing on this machine knows any more: VMs, and firewall
rules without any.

Found, shown, and deleted where that is said.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import text
from ..commands import run_program


@dataclass(frozen=True)
class Orphan:
    """One VM that nobody looks after; `why` is a clause."""

    name: str
    zone: str
    why: str


@dataclass(frozen=True)
class OrphanRule:
    """A firewall rule of a cluster that has no VM and that nobody looks after; `why` is a clause."""

    name: str
    why: str


@dataclass(frozen=True)
class Sweep:
    """What was found in a project (None: on the emulator), and whether it was `deleted`."""

    project: str | None
    orphans: tuple[Orphan, ...]
    deleted: bool
    unreadable: tuple[str, ...] = ()
    """A sentence for each cluster's folder here that cannot be read, and for what else could not be
    looked at.
    """
    rules: tuple[OrphanRule, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the VMs."""
        return [orphan.name for orphan in self.orphans]

    def __str__(self) -> str:
        if not (self.orphans or self.rules):
            nothing = (
                "Nothing to sweep: every VM and firewall rule that you made from this machine belongs to a cluster, or "
                "to the build of an image."
            )
            return "\n".join([nothing, *self.unreadable])
        vms = text.table(
            ["VM", "ZONE", "WHY"],
            [(orphan.name, orphan.zone, orphan.why) for orphan in self.orphans],
        )
        rules = text.table(["FIREWALL RULE", "WHY"], [(rule.name, rule.why) for rule in self.rules])
        tables = [*(vms if self.orphans else ()), *(rules if self.rules else ())]
        if self.deleted:
            end = "They are deleted."
        else:
            end = "Nothing was deleted. With --yes (in Python yes=True) they are."
        return "\n".join([*tables, *self.unreadable, end])

    def __repr__(self) -> str:
        return str(self)


def sweep(project: str | None = None, *, yes: bool = False, all_machines: bool = False) -> Sweep:
    """Find VMs that you made from this machine (of `project`, else of the emulator) and that no
    living cluster has.

    And firewall rules of clusters that have no VM. `yes` deletes them. `all_machines`: also those
    of your other machines, an hour after they were made (rules: a day). Raises CloudError.
    """
    options = [*(["--yes"] if yes else []), *(["--all-machines"] if all_machines else [])]
    found = run_program("sweep", "Sweeping", *options, *([project] if project else []))
    orphans = tuple(Orphan(**each) for each in found["orphans"])
    rules = tuple(OrphanRule(**each) for each in found["rules"])
    return Sweep(project, orphans, bool(found["deleted"]), tuple(found["unreadable"]), rules)
