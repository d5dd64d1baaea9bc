"""How a rule for a kind of event is written: `@rules.of(KIND)` before a function of state and event."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from ..bags.state import DeclaredBag
from ..events import Event
from ..jobs import DaskState, JobState
from ..state import ClusterState, RunState, VmState
from ..studies import StudyState, TrialState

_Value = TypeVar("_Value", ClusterState, VmState, RunState, StudyState, TrialState, JobState, DaskState, DeclaredBag)
_Kind = TypeVar("_Kind", bound=Event)
Rule = Callable[[ClusterState, _Kind], ClusterState]


class Rules(dict[type[Event], Rule[Event]]):
    """By kind of event, the function that makes the next state of the present one."""

    def of(self, *kinds: type[_Kind]) -> Callable[[Rule[_Kind]], Rule[_Kind]]:
        """The function below is the rule for these kinds."""

        def register(function: Rule[_Kind]) -> Rule[_Kind]:
            self.update(dict.fromkeys(kinds, cast("Rule[Event]", function)))  # it gets events of these kinds alone
            return function

        return register


def changed(value: _Value, /, **changes: object) -> _Value:
    """As `dataclasses.replace`, which takes four times as long; a month's journal is folded when a panel opens."""
    new = object.__new__(type(value))
    for name in value.__slots__:
        object.__setattr__(new, name, changes[name] if name in changes else getattr(value, name))
    return new


def refuse_taken(state: ClusterState, kind: str, name: str) -> None:
    """Raise ValueError where other work of the cluster has the name, or reserves it."""
    if why := state.taken(kind, name):
        raise ValueError(why)
