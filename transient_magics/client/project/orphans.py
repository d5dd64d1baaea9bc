"""Orphans in a project: VMs and firewall rules of this user that belong to no cluster.

They are listed, and deleted on request.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import text
from ..commands import run_program


@dataclass(frozen=True)
class Orphan:
    """An orphaned VM.

    Attributes
    ----------
    name, zone : str
        The VM and its zone.
    why : str
        The reason why it is orphaned, as a clause.
    """

    name: str
    zone: str
    why: str


@dataclass(frozen=True)
class OrphanRule:
    """An orphaned firewall rule of a cluster without VMs.

    Attributes
    ----------
    name : str
        The rule.
    why : str
        The reason why it is orphaned, as a clause.
    """

    name: str
    why: str


@dataclass(frozen=True)
class Sweep:
    """The orphans of a project.

    Attributes
    ----------
    project : str or None
        The project; None for the emulator.
    orphans : tuple of Orphan
        The VMs.
    deleted : bool
        Whether the orphans were deleted.
    unreadable : tuple of str
        A sentence for each unreadable folder of a cluster, and for each failed request.
    rules : tuple of OrphanRule
        The firewall rules.
    """

    project: str | None
    orphans: tuple[Orphan, ...]
    deleted: bool
    unreadable: tuple[str, ...] = ()
    rules: tuple[OrphanRule, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the VMs."""
        return [orphan.name for orphan in self.orphans]

    def __str__(self) -> str:
        if not (self.orphans or self.rules):
            nothing = (
                "No orphans: all your VMs and firewall rules from this machine belong to a "
                "cluster or to the build of an image."
            )
            return "\n".join([nothing, *self.unreadable])
        vms = text.table(
            ["VM", "ZONE", "WHY"],
            [(orphan.name, orphan.zone, orphan.why) for orphan in self.orphans],
        )
        rules = text.table(["FIREWALL RULE", "WHY"], [(rule.name, rule.why) for rule in self.rules])
        tables: list[str] = []
        if self.orphans:
            tables += vms
        if self.rules:
            tables += rules
        end = "Nothing was deleted. Add --yes (in Python yes=True) to delete them."
        if self.deleted:
            end = "They are deleted."
        return "\n".join([*tables, *self.unreadable, end])

    def __repr__(self) -> str:
        return str(self)


def sweep(project: str | None = None, *, yes: bool = False, all_machines: bool = False) -> Sweep:
    """Find orphans: your VMs that belong to no cluster, and firewall rules of clusters without VMs.

    Parameters
    ----------
    project
        The project (default: the emulator).
    yes
        Whether to delete them.
    all_machines
        Whether to include what you created from other machines, an hour after its creation (rules:
        a day).

    Returns
    -------
    Sweep
        The orphans, shown as a table.

    Raises
    ------
    CloudError
        The project cannot be searched.

    Examples
    --------
    >>> tm.sweep("my-project", yes=True)
    """
    options: list[str] = []
    if yes:
        options.append("--yes")
    if all_machines:
        options.append("--all-machines")
    if project:
        options.append(project)
    found = run_program("sweep", "Sweeping", *options)
    orphans = tuple(Orphan(**values) for values in found["orphans"])
    rules = tuple(OrphanRule(**values) for values in found["rules"])
    return Sweep(project, orphans, bool(found["deleted"]), tuple(found["unreadable"]), rules)
