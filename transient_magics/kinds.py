"""The registry of the kinds of work that a cluster can have: one line for each, and the one place that lists them.

The bottom layer: protocol, journal, client and controller learn from here which kinds exist. What a kind does is in its
package, whose parts `load` imports when they are needed, so that a kernel never imports the controller's part of it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of work."""

    name: str
    """Its identifier in commands and events."""
    folder: str
    """The folder in a cluster's folder that holds a folder for each work of this kind."""
    file: str
    """The file with a declaration. It is written last: a folder that has it is complete."""
    stems: tuple[str, ...]
    """First parts of its automatic names, such as `run` of `run-1`."""
    word: str = ""
    """What people read (default: `name`)."""
    waits: bool = True
    """Whether a controller begins work that it finds declared, although no client asked for it."""
    moves: bool = False
    """Whether it continues, and may begin, while its cluster moves to other VMs."""
    saves: bool = False
    """Whether a cluster that ends keeps its VMs until such work has saved its results and is over."""
    needs_server: bool = False
    """Whether it cannot continue without the VM of the first parameter server."""
    package: str = ""
    """The package with its parts; empty where these are still in the packages of the frame."""

    def __str__(self) -> str:
        return self.word or self.name


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        # A kind whose work begins other work stands before that: the control loop takes them in this order.
        Kind("study", "studies", "study.json", ("study",), moves=True, package="transient_magics.works.studies"),
        Kind(
            "run",
            "runs",
            "run.json",
            ("run", "stalls"),
            moves=True,
            saves=True,
            needs_server=True,
            package="transient_magics.works.runs",
        ),
        Kind("job", "jobs", "job.json", ("job",), saves=True, package="transient_magics.works.jobs"),
        Kind("bag", "bags", "bag.json", ("bag",), package="transient_magics.works.bags"),
        # A Dask cluster without its client is of no use: the client declares another one.
        Kind(
            "dask",
            "dasks",
            "dask.json",
            ("dask",),
            word="Dask cluster",
            waits=False,
            needs_server=True,
            package="transient_magics.works.dask",
        ),
    )
}
"""All kinds by name. A measurement of stalls is a run."""


def checked_kind(value: object) -> str:
    """Return `value` if it names a kind of work. Raises ValueError."""
    if isinstance(value, str) and value in KINDS:
        return value
    raise ValueError(f"unknown kind of work: {value!r:.80}")


def load(kind: str, part: str) -> ModuleType:
    """Import a part, such as `conduct`, of a kind's package."""
    return importlib.import_module(f"{KINDS[kind].package}.{part}")


@cache
def find(kind: str, part: str) -> ModuleType | None:
    """Import a part of a kind's package; None where the kind has no such part, or this machine has none of it."""
    name = f"{KINDS[kind].package}.{part}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A VM has only what runs there, so a package above the part may be missing, too.
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


def having(part: str) -> list[ModuleType]:
    """Import this part of all kinds that have it, in the order of `KINDS`."""
    return [module for kind in KINDS if (module := find(kind, part))]
