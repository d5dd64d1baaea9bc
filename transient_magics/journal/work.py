"""The common state of all work on a cluster, of any kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from .. import markup
from ..kinds import KINDS
from .events import WorkStopping

_Spec = TypeVar("_Spec", covariant=True)
_State = TypeVar("_State", bound="Work[object]")


Facts = tuple[str, Mapping[str, str]]
"""A heading, and texts by name: the representation of a value in a notebook."""
_facts: list[Callable[[Any], Facts]] = []


def show_as(facts: Callable[[Any], Facts]) -> None:
    """Register the function that returns the facts shown in notebooks for the state of any work."""
    _facts[:] = [facts]


@dataclass(frozen=True, slots=True)
class Work(Generic[_Spec]):
    """Work on a cluster. Times in seconds since 1970 (0: not yet)."""

    kind: ClassVar[str] = ""
    """The name of its kind in `kinds.KINDS`."""
    trains: ClassVar[bool] = False
    """Whether it needs parameter servers. Other work needs workers alone."""
    takes_workers: ClassVar[bool] = True
    """Whether it has workers itself, not only through work that it begins."""
    begins_with_fewer: ClassVar[bool] = False
    """Whether it begins with fewer workers than declared if its cluster has fewer."""

    name: str
    spec: _Spec
    """Its declaration."""
    phase: str = "declared"
    """declared (it waits), running, finished, failed, stopped."""
    declared_at: float = 0.0
    stop: WorkStopping | None = None
    """Why it began to end."""
    stopping_at: float = 0.0
    """When it began to end."""
    ended_at: float = 0.0
    reason: str = ""
    """Why it failed, or ended before it was done, a clause."""

    def __init_subclass__(cls) -> None:
        # IPython asks each class for its own method before it takes the repr of a dataclass.
        super(Work, cls).__init_subclass__()
        cls._repr_pretty_ = Work[Any]._repr_pretty_

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(markup.lines(*_facts[0](self)) if _facts else repr(self))

    def _repr_html_(self) -> str | None:
        if _facts:
            return markup.facts(*_facts[0](self))
        return None

    @property
    def owner(self) -> str:
        """The name of the work that began and contains it, such as a run's study; else empty."""
        return ""

    @property
    def members(self) -> Collection[str]:
        """The names of the work that it began and contains, such as a study's runs."""
        return ()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.phase in ("finished", "failed", "stopped")

    @property
    def worker_count(self) -> int:
        """The number of workers that it requests.

        Runs may have more or fewer, and have their own range.
        """
        return 1

    @property
    def may_change_vms(self) -> bool:
        """Whether other VMs can replace its own now, as between two attempts."""
        return False

    @property
    def owns_cluster(self) -> bool:
        """Whether its cluster was made for it alone, and ends with it."""
        return False


class Works(Mapping[str, Work[object]]):
    """All work of a cluster by name, in the order of `kinds.KINDS`, then of declaration. Immutable.

    It keeps one dictionary for each kind. A fold changes one work at each event and copies only the
    dictionary of its kind: a study has thousands of runs.
    """

    __slots__ = ("_by_kind",)

    def __init__(self, works: Iterable[Work[object]] = ()) -> None:
        self._by_kind: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        for work in works:
            self._by_kind[work.kind][work.name] = work

    def with_work(self, *works: Work[object]) -> Works:
        """Return a copy with new or changed work; other kinds share their dictionaries with it."""
        new = Works()
        new._by_kind = dict(self._by_kind)
        for kind in {work.kind for work in works}:
            new._by_kind[kind] = dict(self._by_kind[kind])
        for work in works:
            new._by_kind[work.kind][work.name] = work
        return new

    def of(self, state: type[_State]) -> Mapping[str, _State]:
        """Return the work of one kind, by the class of its state."""
        return self._by_kind[state.kind]

    def of_kind(self, kind: str) -> Mapping[str, Work[object]]:
        """Return the work of one kind."""
        return self._by_kind[kind]

    def latest(self, state: type[_State]) -> _State | None:
        """Return the work of one kind that was declared last; None if there is none."""
        return next(reversed(self._by_kind[state.kind].values()), None)

    def values(self) -> ValuesView[Work[object]]:
        """Return all work without a lookup for each name: screens and panels request it often."""
        return {
            name: work for works in self._by_kind.values() for name, work in works.items()
        }.values()

    def __getitem__(self, name: str) -> Work[object]:
        for works in self._by_kind.values():
            if name in works:
                return works[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self._by_kind.values())

    def __len__(self) -> int:
        return sum(map(len, self._by_kind.values()))

    def __contains__(self, name: object) -> bool:
        return any(name in works for works in self._by_kind.values())

    def __repr__(self) -> str:
        return f"Works({[*self.values()]!r})"
