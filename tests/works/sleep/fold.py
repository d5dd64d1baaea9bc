"""The state of a sleep, and the rules by which its events change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...journal.folding.rules import Rules, refuse_unknown_vms, with_work
from ...journal.state import ClusterState
from ...journal.work import Work
from .events import SleepBegan, SleepInterrupted, SleepWoke
from .spec import SleepSpec

rules = Rules()


@dataclass(frozen=True, slots=True)
class SleepState(Work[SleepSpec]):
    """One sleep."""

    kind = "sleep"

    attempt: int = 0
    vm: str = ""
    """The VM of the present attempt; empty between attempts."""
    woke: SleepWoke | None = None
    """The end of the present attempt, once its VM has reported it and its result is here."""
    interruptions: int = 0
    failures: int = 0

    @property
    def may_change_vms(self) -> bool:
        """Whether it is between two attempts."""
        return not self.vm


def begin(name: str, spec: Mapping[str, object], at: float) -> SleepState:
    """Return the state of a sleep that was declared at a moment (seconds since 1970)."""
    return SleepState(name, SleepSpec.from_dict({**spec, "name": name}), declared_at=at)


@rules.of(SleepBegan)
def _(state: ClusterState, event: SleepBegan) -> ClusterState:
    refuse_unknown_vms(state, [event.vm])
    return with_work(state, "sleep", event.sleep, phase="running", attempt=event.attempt, vm=event.vm, woke=None)


@rules.of(SleepWoke)
def _(state: ClusterState, event: SleepWoke) -> ClusterState:
    return with_work(state, "sleep", event.sleep, woke=event)


@rules.of(SleepInterrupted)
def _(state: ClusterState, event: SleepInterrupted) -> ClusterState:
    sleep = state.of(SleepState)[event.sleep]
    if event.failed:
        counted = {"failures": sleep.failures + 1}
    else:
        counted = {"interruptions": sleep.interruptions + 1}
    return with_work(state, "sleep", event.sleep, vm="", woke=None, **counted)
