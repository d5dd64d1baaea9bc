"""Where the seconds of one step went, from the moments that were seen in it.

The step waits for its mini-batch, then for what it still lacks of the variables, then computes until the last gradient
is there, then pushes until all are applied; each part begins where the one before it ended. A moment that comes before
the one it should follow took no exposed time. Pulling begins with the step, and gradients leave as soon as each is
there, after the loss: that much of either was hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.measures.step_parts import StepParts
from ..training.graph.worker import WorkerGraph

_UNLIKE = 0.01
"""Seconds by which two clocks may differ about one step."""
_TRAVEL = ("pull", "push")


def moments(built: WorkerGraph) -> list[object]:
    """What of a step's moments is fetched, in the order that `parts` takes."""
    return [built.fed, built.pulled, built.forward, built.backward]


def fetches(built: WorkerGraph) -> list[object]:
    """What a worker runs in each step; a measured step is the same one."""
    return [built.loss, built.before, built.after, built.examples, built.weight, moments(built), built.step]


def parts(began: float, seen: Sequence[float], ended: float) -> StepParts:
    """The parts of a step from `began` to `ended`; all in seconds since 1970 by one clock."""

    def within(moment: float, earliest: float) -> float:
        return min(max(float(moment), earliest), max(ended, began))

    fed = within(seen[0], began)
    pulled = within(seen[1], began)
    ready = max(fed, pulled)
    backward = within(seen[3], ready)
    forward = min(within(seen[2], ready), backward)
    return StepParts(
        input=fed - began,
        pull=ready - fed,
        compute=backward - ready,
        push=max(ended - backward, 0.0),
        hidden_pull=min(fed, pulled) - began,
        hidden_push=backward - forward,
        own=backward - forward,
    )


def whole(
    parts: StepParts, seconds: float, taking: float, barrier: float, between: float, pace: float = 0.0
) -> StepParts:
    """The parts of a step that lasted `seconds` in all, from the end of the one before it.

    `taking`: until its examples were in the process's hands; `between`: from the step before until this one began. An
    emulated accelerator computes for `pace` seconds, and what waited meanwhile was hidden. A step in which somebody set
    the clock is not split.
    """
    if parts.step > seconds + _UNLIKE:
        return StepParts(rest=seconds)
    parts = parts._replace(input=parts.input + taking, barrier=barrier)
    left = max(seconds - between - parts.step, 0.0)
    if not pace:
        return parts._replace(rest=between + left)
    computed = max(parts.compute, min(pace, parts.step - barrier + left))
    waited = parts.input + parts.pull + parts.push
    longer = max(parts.step - barrier + left - computed, 0.0)
    part = min(longer / waited, 1.0) if waited else 0.0
    exposed = {name: part * getattr(parts, name) for name in ("input", "pull", "push")}
    hidden = {
        f"hidden_{name}": getattr(parts, f"hidden_{name}") + (1 - part) * getattr(parts, name) for name in _TRAVEL
    }
    rest = between + max(longer - waited, 0.0)
    return parts._replace(**exposed, **hidden, compute=computed, rest=rest, own=max(pace, parts.compute))
