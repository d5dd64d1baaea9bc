"""The VMs of a panel, a lane each: what a VM is, its state, and its life with that of predecessors.

There is a lane for each living VM and for recently lost ones. A lane also shows the lives of the
VMs that its VM replaced. Of many lanes some are `first`: VMs that are not simply at work, and as
many others as there is room for. The page shows the rest on request.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ...client import text
from ...journal import ClusterState, VmState
from ...protocol.machines import WHOLE
from ...spec import JOBS
from .contract import Lane, Part

MOST_LANES = 24
_ALL_LANES = 256
_GONE_SHOWN_SECONDS = 60.0
_GONE_LANES = 3
_MOST_BEFORE = 12
_ROLES = {"ps": "parameter server", "controller": "controller", "prep": "preparation"}
_FIRST = ("controller", "ps")
_TRANSIENT = ("worker", "prep")


def lanes(state: ClusterState, now: float) -> list[Lane]:
    """Return a lane for each VM: what it is, its state and life, and whether it can be revoked."""
    living = sorted(state.living, key=_order)
    gone = [vm for vm in state.vms.values() if vm.state in ("revoked", "refused")]
    if state.over:
        chosen = sorted(state.vms.values(), key=_order)[:_ALL_LANES]
    else:
        after = text.replacements(state)
        replaced = {name for name, vm in after.items() if vm.state == "ready"}
        gone = [
            vm for vm in gone if now - vm.ended_at < _GONE_SHOWN_SECONDS or vm.name not in replaced
        ]
        chosen = living[:_ALL_LANES] + gone[-_GONE_LANES:]
    ranked = sorted(
        chosen,
        key=lambda vm: (vm.role not in _FIRST, vm.living and vm.state == "ready", _order(vm)),
    )
    first = {vm.name for vm in ranked[:MOST_LANES]}
    return [_lane(state, vm, now, first=vm.name in first) for vm in sorted(chosen, key=_order)]


def life(vm: VmState) -> list[Part]:
    """Return the parts of a VM's life in order; `to` is 0 for the present part.

    The last part of a VM that is gone has no length: it says how the VM ended.
    """
    moments = [
        (vm.requested_at, "requested"),
        (vm.running_at, "booting"),
        (vm.ready_at, "ready"),
        *_restarts(vm),
        (vm.noticed_at, "leaving"),
        (vm.ended_at, vm.state),
    ]
    changes = _thinned([(at, what) for at, what in moments if at], vm)
    ends = [at for at, _ in changes[1:]] + [vm.ended_at]
    return [(vm.name, what, at, end) for (at, what), end in zip(changes, ends, strict=False)]


def _restarts(vm: VmState) -> Iterator[tuple[float, str]]:
    """Yield the times at which a VM was stopped, was started again, and answered."""
    for stretch in vm.stretches[1:]:
        yield stretch.since, "booting" if stretch.runs else "stopped"
        yield stretch.ready_at, "ready"


def _thinned(moments: list[tuple[float, str]], vm: VmState) -> list[tuple[float, str]]:
    """Return the same times with those at which a running VM was deflated or inflated."""
    found: list[tuple[float, str]] = []
    for (begin, what), (end, _) in itertools.pairwise([*moments, (math.inf, "")]):
        if what == "ready":
            turns = [begin, *(at for at, _ in vm.shares if begin < at < end)]
        else:
            turns = [begin]
        states = [
            (at, "deflated" if what == "ready" and _is_less(vm, at) else what) for at in turns
        ]
        found += [
            turn
            for before, turn in itertools.pairwise([(0.0, ""), *states])
            if turn[1] != before[1]
        ]
    return found


def _is_less(vm: VmState, at: float) -> bool:
    """Return whether a VM had less than it was rented with at a time."""
    share = next((share for since, share in reversed(vm.shares) if since <= at), WHOLE)
    return not share.whole or vm.ran_at(at).part < 1.0


def _lane(state: ClusterState, vm: VmState, now: float, *, first: bool) -> Lane:
    spec = state.spec
    words = text.vm_words(state, vm, now)
    return {
        "name": vm.name,
        "first": first,
        "runs": [run.name for run in state.runs_of(vm)],
        "role": "scheduler"
        if vm.role == "ps" and spec and spec.purpose == JOBS
        else _ROLES.get(vm.role, "worker"),
        "chief": bool(vm.role == "ps" and vm.slot == 0 and spec and spec.chief == "ps"),
        "machine": text.machine(state, vm),
        "zone": vm.zone,
        "terms": f"{vm.machine_type}, {text.RENTED.get(vm.provisioning_model, '')}, "
        f"{text.money(vm.hourly)} per hour",
        "state": "training" if words == "training" else vm.state,
        "words": words,
        "leaves_at": text.leaves_at(vm),
        "revocable": bool(
            spec and spec.emulated and vm.role in _TRANSIENT and vm.state in ("booting", "ready")
        ),
        "life": [*_before(state, vm), *life(vm)],
    }


def _before(state: ClusterState, vm: VmState) -> list[Part]:
    """Return the lives of the VMs that a VM replaced, each until its successor was requested."""
    found: list[list[Part]] = []
    before = state.vms.get(vm.replaces or "")
    while before and len(found) < _MOST_BEFORE:
        # A VM that lives has a lane of its own.
        if before.ended_at:
            until = vm.requested_at
            cut = [
                (name, what, at, min(end, until))
                for name, what, at, end in life(before)[:-1]
                if at < until
            ]
            found.insert(0, [*cut, *life(before)[-1:]])
        vm = before
        before = state.vms.get(before.replaces or "")
    return [part for parts in found for part in parts]


def _order(vm: VmState) -> tuple[int, int, float]:
    """Return a sort key: parameter servers and the controller, which are on demand, come first."""
    return _FIRST.index(vm.role) if vm.role in _FIRST else len(_FIRST), vm.slot, vm.requested_at
