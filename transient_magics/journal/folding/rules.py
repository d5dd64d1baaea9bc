"""How a rule for a kind of event is written: `@rules.of(KIND)` before a function of state and
event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from typing import TypeVar, cast

from ..events import Event
from ..state import ClusterState
from ..work import Work

_Value = TypeVar("_Value")
_Kind = TypeVar("_Kind", bound=Event)
Rule = Callable[[ClusterState, _Kind], ClusterState]


class Rules(dict[type[Event], Rule[Event]]):
    """By kind of event, the function that makes the next state of the present one."""

    def of(self, *kinds: type[_Kind]) -> Callable[[Rule[_Kind]], Rule[_Kind]]:
        """The function below is the rule for these kinds."""

        def register(function: Rule[_Kind]) -> Rule[_Kind]:
            self.update(
                dict.fromkeys(kinds, cast("Rule[Event]", function))
            )  # it gets events of these kinds alone
            return function

        return register


def changed(value: _Value, /, **changes: object) -> _Value:
    """As `dataclasses.replace`, which takes four times as long; a month's journal is folded when a
    panel opens.
    """
    new = object.__new__(type(value))
    for name in _names(type(value)):
        object.__setattr__(new, name, changes[name] if name in changes else getattr(value, name))
    return new


@cache
def _names(cls: type) -> tuple[str, ...]:
    """Return the names of all fields of a dataclass, also of those that it inherits."""
    return tuple(field.name for field in fields(cls))


def declare(state: ClusterState, work: Work[object]) -> ClusterState:
    """Add new work. Raises ValueError where other work of the cluster has its name, or reserves it."""
    if why := state.taken(work.kind, work.name):
        raise ValueError(why)
    return put(state, work)


def refuse_unknown_vms(state: ClusterState, vms: Iterable[str]) -> None:
    """Raise ValueError where work is given to a VM that the cluster never had: a VM may have
    written the event.
    """
    unknown = [vm for vm in vms if vm not in state.vms]
    if unknown:
        raise ValueError(f"the cluster has no VM {', '.join(unknown)}")


def with_work(state: ClusterState, kind: str, name: str, /, **changes: object) -> ClusterState:
    """Change work, unless it is over. Raises KeyError where it is unknown."""
    work = state.of_kind(kind)[name]
    if work.over:
        return state
    return put(state, changed(work, **changes))


def put(state: ClusterState, *works: Work[object]) -> ClusterState:
    """Add or change work."""
    return changed(state, works=state.works.with_work(*works))
