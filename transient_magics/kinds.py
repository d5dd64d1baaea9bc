"""The registry of the kinds of work that a cluster can have: one line for each, and the one place
that lists them.

The bottom layer: protocol, journal, client and controller learn from here which kinds exist. What a
kind does is in its package, whose parts `load` imports when they are needed, so that a kernel never
imports the controller's part of it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

_PUBLIC = re.compile(r"^from \.(\S+) import (\w+) as (\w+)$", re.MULTILINE)


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
    package: str
    """The package with its parts."""
    title: str
    """The title of lists of such work, a plural such as `Jobs`."""
    word: str = ""
    """What people read (default: `name`)."""
    waits: bool = True
    """Whether a controller begins work that it finds declared, although no client asked for it."""
    moves: bool = False
    """Whether it continues, and may begin, while its cluster moves to other VMs."""
    saves: bool = False
    """Whether a cluster that ends keeps its VMs until such work has saved its results and is over.
    """
    needs_server: bool = False
    """Whether it cannot continue without the VM of the first parameter server."""
    typed: tuple[str, ...] | None = None
    """What is typed to declare such work, as in `%%job` and `transient job` (default: `name`)."""

    def __str__(self) -> str:
        return self.word or self.name


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        # A kind whose work begins other work stands before that: the control loop takes them in
        # this order.
        Kind(
            "study",
            "studies",
            "study.json",
            ("study",),
            "transient_magics.works.studies",
            "Studies",
            moves=True,
            typed=("sweep",),
        ),
        Kind(
            "run",
            "runs",
            "run.json",
            ("run", "stalls"),
            "transient_magics.works.runs",
            "Runs",
            moves=True,
            saves=True,
            needs_server=True,
            typed=("train",),
        ),
        Kind(
            "job", "jobs", "job.json", ("job",), "transient_magics.works.jobs", "Jobs", saves=True
        ),
        Kind(
            "bag",
            "bags",
            "bag.json",
            ("bag",),
            "transient_magics.works.bags",
            "Bags",
        ),
        # A Dask cluster without its client is of no use: the client declares another one.
        Kind(
            "dask",
            "dasks",
            "dask.json",
            ("dask",),
            "transient_magics.works.dask",
            "Dask clusters",
            word="Dask cluster",
            waits=False,
            needs_server=True,
            typed=(),
        ),
    )
}
"""All kinds by name. A measurement of stalls is a run."""


WORK_MAGICS = tuple(
    name for kind in KINDS.values() for name in ((kind.name,) if kind.typed is None else kind.typed)
)
"""The names of the cell magics that declare work, such as `job` of `%%job`."""


def checked_kind(value: object) -> str:
    """Return `value` if it names a kind of work. Raises ValueError."""
    if isinstance(value, str) and value in KINDS:
        return value
    raise ValueError(f"unknown kind of work: {value!r:.80}")


def load(kind: str, part: str) -> ModuleType:
    """Import a part, such as `conduct`, of a kind's package. Raises ModuleNotFoundError where the
    kind has none.
    """
    found = find(kind, part)
    if found is None:
        raise ModuleNotFoundError(f"{KINDS[kind].package} has no {part}")
    return found


@cache
def find(kind: str, part: str) -> ModuleType | None:
    """Import a part of a kind's package; None where the kind has no such part, or this machine has
    none of it.
    """
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
    return list(parts(part).values())


@cache
def parts(part: str) -> Mapping[str, ModuleType]:
    """Import this part of all kinds that have it, by kind, in the order of `KINDS`."""
    return {kind: module for kind in KINDS if (module := find(kind, part))}


@cache
def public_names() -> Mapping[str, tuple[str, str]]:
    """Return where the public names of all kinds are, such as `declare_job`: by name the module and
    the name there.

    The stub of a kind's package has them, each as `from .module import name as name`. A VM has no
    such stubs.
    """
    root = Path(__file__).parent.parent
    found: dict[str, tuple[str, str]] = {}
    for kind in KINDS.values():
        stub = root.joinpath(*kind.package.split("."), "__init__.pyi")
        if stub.exists():
            for module, source, name in _PUBLIC.findall(stub.read_text(encoding="utf-8")):
                found[name] = (f"{kind.package}.{module}", source)
    return found
