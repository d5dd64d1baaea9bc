"""Choose or propose the VMs that go when a provider reclaims a number of VMs.

The cluster's `--give-up` decides. With `ask` a choice is proposed: a user may agree, or preempt
another worker, which counts too. Without an answer, the proposed VMs go just before the provider
would take VMs automatically.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalog import region
from ..clock import SECONDS_PER_HOUR
from ..errors import CloudError, ClusterError
from ..journal import ClusterState, VmState, events, metrics, now
from ..protocol.cluster_commands import GiveUp
from ..spec import WORKER
from .decisions.shrink_policy import MEASURES, compared, first_to_go, lately
from .record import Recorder
from .tasks import Tasks
from .works import Works

if TYPE_CHECKING:
    from .vms.access import WantedBack
    from .vms.fleet import Fleet

_AHEAD_SECONDS = 10.0
_AHEAD_PART = 0.25
"""Lead time of an answer before the provider takes VMs automatically.

It is at most `_AHEAD_PART` of the whole time.
"""
_AGAIN_SECONDS = 1.0


class Reclaims:
    """Reclaims of VMs of one cluster; `works` is its work, a collection for each kind."""

    def __init__(self, recorder: Recorder, works: Collection[Works[Any]]) -> None:
        self._recorder = recorder
        self._works = works
        self._sent = set[str]()
        """VMs whose preemption was requested; their notices may not have arrived yet."""
        self._refused = set[str]()
        """VMs whose preemption Compute Engine refused or did not receive."""

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    def note_wanted_back(self, request: WantedBack | None) -> None:
        """Record the present reclaim of the provider; None ends it."""
        present = self._state.reclaim
        state = self._state
        vms = tuple(
            vm.name
            for vm in state.living
            if vm.role == WORKER and request and vm.vm_id in request.vms
        )
        if request is None or not vms:
            if present:
                self._recorder.record(events.ReclaimWanted(number=0))
        elif present is None or not math.isclose(
            present.request.until, request.until, rel_tol=0, abs_tol=1e-3
        ):
            number = min(request.number, len(vms))
            self._recorder.record(events.ReclaimWanted(number=number, vms=vms, until=request.until))

    def advance(self, tasks: Tasks, fleet: Fleet, at: float) -> None:
        """Start what is due at `at`, in seconds since 1970."""
        # The VM is gone, or is not wanted any more.
        for name in self._refused.difference(self._state.wanted_back):
            if _task(name) not in tasks:
                self._refused.discard(name)
                self._recorder.note(_task(name), "")
        reclaim = self._state.reclaim
        if reclaim is None or self._state.phase == "deleting" or at >= reclaim.request.until:
            return
        if reclaim.answered:
            for name in reclaim.answered.vms:
                if name in self._state.wanted_back and name not in self._sent:
                    tasks.do(_task(name), partial(self._give_back, fleet, self._state.vms[name]))
        elif not self._state.still_wanted:
            return
        elif reclaim.proposed is None:
            tasks.do("reclaim", self._choose)
        elif at >= reclaim.proposed.until:
            self._answer(f"{reclaim.proposed.reason}, because no others were chosen")

    def agree(self, proposal: int) -> None:
        """Give up the proposed VMs. Raise ClusterError if that proposal is no longer current."""
        if self._state.reclaim:
            proposed = self._state.reclaim.proposed
        else:
            proposed = None
        if proposed is None or proposed.seq != proposal or not self._state.proposed_to_go:
            name = self._recorder.spec.name
            raise ClusterError(
                f"The proposal for {name} is out of date", fix="See its panel for the present one."
            )
        self._answer(proposed.reason, agreed=True)

    def _answer(self, reason: str, *, agreed: bool = False) -> None:
        """Record that the proposed VMs that are still needed go."""
        vms = self._state.proposed_to_go
        self._recorder.record(events.ReclaimAnswered(vms=vms, reason=reason, agreed=agreed))

    async def _choose(self) -> None:
        """Propose the VMs to give up, or record that they go."""
        asked = self._recorder.spec.give_up
        policy: GiveUp = "slowest" if asked is None or asked == "ask" else asked
        forecasts = await measured(self._works, self._state, policy)
        self._recorder.note("reclaim", "")
        reclaim = self._state.reclaim
        number = self._state.still_wanted
        if reclaim is None or not number:
            # The reclaim ended during the measurement.
            return
        of = f"of {len(self._state.wanted_back)}"
        if forecasts is not None:
            reason = f"the {policy} {of}"
        else:
            reason = f"the youngest {of}, for {MEASURES[policy]}"
        vms = first_to_go(
            self._state, policy if forecasts is not None else "youngest", forecasts or {}
        )[:number]
        if asked == "ask":
            until = reclaim.request.until - min(
                _AHEAD_SECONDS, _AHEAD_PART * (reclaim.request.until - now())
            )
            self._recorder.record(events.ReclaimProposed(vms=vms, reason=reason, until=until))
        else:
            self._recorder.record(events.ReclaimAnswered(vms=vms, reason=reason))

    async def _give_back(self, fleet: Fleet, vm: VmState) -> None:
        try:
            await fleet.preempt(vm, 0.0)
        except CloudError:
            self._refused.add(vm.name)
            await asyncio.sleep(_AGAIN_SECONDS)
            raise
        self._sent.add(vm.name)
        self._recorder.note(_task(vm.name), "")


def _task(vm: str) -> str:
    return f"give back {vm}"


async def measured(
    works: Iterable[Works[Any]], state: ClusterState, policy: GiveUp
) -> Mapping[str, float] | None:
    """Return the values by worker that a policy compares (`shrink_policy.leaving`).

    None if there are no such values.
    """
    match policy:
        case "slowest":
            paths = [path for kind in works for path in kind.metrics_files()]
            return await asyncio.to_thread(_speeds, paths) or None
        case "riskiest":
            return await asyncio.to_thread(_risks, state) or None
        case "youngest" | "costliest":
            return {}


def _speeds(paths: Iterable[Path]) -> dict[str, float]:
    """Return the relative speed of each worker, from the metrics of all runs that train."""
    return compared([lately(metrics.sample(path), now()) for path in paths])


def _risks(state: ClusterState) -> dict[str, float]:
    """Return the probability that each transient worker is preempted within an hour.

    The hour is one of the cluster's clock.
    """
    from ..planner.lifetimes.study import best_known, risk

    spec = state.spec
    if spec is None or spec.provisioning_model == "standard":
        return {}
    lifetimes = best_known(spec.provisioning_model, emulated=spec.emulated)
    at = now()
    found: dict[str, float] = {}
    for vm in state.serving:
        if vm.role == WORKER and vm.provisioning_model != "standard" and vm.running_at:
            age = state.clock.between(vm.started_at or vm.running_at, at) / SECONDS_PER_HOUR
            found[vm.name] = risk(lifetimes(vm.accelerator, region(vm.zone)), age)
    return found
