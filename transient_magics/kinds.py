"""The registry of the kinds of work that a cluster can have, the only place that lists them.

It is the bottom layer: protocol, journal, client and controller learn from it which kinds exist.
The code of a kind is in its package. `load` imports parts of it when they are needed, so that a
kernel never imports the part of the controller.
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
    """The package with its parts, such as `conduct`."""
    title: str
    """The title of lists of such work, a plural such as `Jobs`."""
    word: str = ""
    """Its name in texts (default: `name`)."""
    waits: bool = True
    """Whether a controller begins declared work without a command from a client."""
    moves: bool = False
    """Whether it continues, and may begin, while its cluster moves to other VMs."""
    saves: bool = False
    """Whether a cluster that ends waits until such work has saved its results and is over."""
    needs_server: bool = False
    """Whether it cannot continue without the VM of the first parameter server."""
    typed: tuple[str, ...] | None = None
    """Its commands in cells and terminals, such as `job` of `%%job` (default: `name`)."""

    def __str__(self) -> str:
        return self.word or self.name


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        # The control loop takes them in this order. A kind whose work begins other work comes
        # before that.
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
    """Return `value` if it is the name of a kind of work. Raises ValueError otherwise."""
    if isinstance(value, str) and value in KINDS:
        return value
    raise ValueError(f"unknown kind of work: {value!r:.80}")


def load(kind: str, part: str) -> ModuleType:
    """Import a part, such as `conduct`, of a kind's package.

    Raises ModuleNotFoundError if the kind has no such part.
    """
    found = find(kind, part)
    if found is None:
        raise ModuleNotFoundError(f"the package {KINDS[kind].package} has no module {part}")
    return found


@cache
def find(kind: str, part: str) -> ModuleType | None:
    """Import a part of a kind's package, or return None if the kind or this machine has none."""
    name = f"{KINDS[kind].package}.{part}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A VM has only the code that runs there, so a package above the part may be missing, too.
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


def having(part: str) -> list[ModuleType]:
    """Import this part of all kinds that have it, in the order of `KINDS`."""
    return list(parts(part).values())


@cache
def parts(part: str) -> Mapping[str, ModuleType]:
    """Import this part of all kinds that have it, by kind, in the order of `KINDS`."""
    found = {kind: find(kind, part) for kind in KINDS}
    return {kind: module for kind, module in found.items() if module}


@cache
def public_names() -> Mapping[str, tuple[str, str]]:
    """Return the public names of all kinds, each with its module and its name there.

    The stub of a kind's package lists them as `from .module import name as name`. A VM has no such
    stubs.
    """
    root = Path(__file__).parent.parent
    found: dict[str, tuple[str, str]] = {}
    for kind in KINDS.values():
        stub = root.joinpath(*kind.package.split("."), "__init__.pyi")
        if stub.exists():
            for module, source, name in _PUBLIC.findall(stub.read_text(encoding="utf-8")):
                found[name] = (f"{kind.package}.{module}", source)
    return found
