"""Decide whether a run fits beside others on the parameter servers, by memory and network.

All servers of a cluster are alike, and a run's variables are spread over them, so one server and
its part of each run are considered. The values are estimates:

- Memory is the most that a run's process was measured to take. Before there is a measurement, it
  is estimated from what the check counted, by a formula that is up to 14 % above four models of
  10 to 190 MB (2 workers, 1 server).
- The link carries each parameter to a worker and its gradient back in every step, at the step rate
  measured in the run's last minutes. Before that, its pace or a run of the same model on this
  cluster gives the rate. An unknown rate takes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...catalog import egress, parameter_server_machine, server_machine
from ...errors import DeclarationError
from ...journal import ClusterState, RunState
from ...spec import BYTES_EACH_WAY, ClusterSpec

GB = 2**30
_OTHERS = 1.5 * GB
"""Memory of a parameter server's VM, in bytes, that is not for training.

It is for the system, the agent and its fork server, and an evaluation beside the training.
"""
_PROCESS = 1.0 * GB
_TIMES_VARIABLES = 4.0
_TIMES_VALUES = 6.0
"""Bytes of memory for each byte of parameters that is exchanged.

The constants above are TensorFlow's server with its buffers (half of it is there without a model),
and the bytes for each byte of variables (the optimizer's too; a checkpoint is written from copies).
"""
_USUAL_SLOTS = 3
"""Default number of variables for each parameter, as in Adam, if they were not counted."""
_LATEST = 30
"""Points of a run's speed, ten seconds apart, that count as its last minutes.

The span is long enough that replacing one worker does not count as a lower need.
"""
_USED_UP = 0.9
MEMORY = "memory"
LINK = "link"


@dataclass(frozen=True, slots=True)
class Server:
    """Resources of a parameter server's VM.

    `memory` is in bytes, `link` in bytes per second each way.
    """

    memory: float = math.inf
    link: float = math.inf


@dataclass(frozen=True, slots=True)
class Need:
    """Resources that a run takes of one parameter server, in the units of `Server`."""

    memory: float
    link: float = 0.0


def server(spec: ClusterSpec, link: float | None = None, memory: float | None = None) -> Server:
    """Return the resources of a parameter server of this cluster.

    `link` and `memory` are those of an emulated server on this machine, in bytes per second each
    way and in bytes; the catalog has those of a real one.
    """
    try:
        machine = server_machine(
            spec.parameter_server_machine or parameter_server_machine(spec.parameter_server_cores)
        )
    except DeclarationError:
        # Declared by a version that knew more machines than this one.
        return Server()
    there = machine.memory_gb * GB
    if spec.emulated:
        return Server(min(there, memory or math.inf) - _OTHERS, link or math.inf)
    return Server(
        there - _OTHERS,
        egress(machine.name.partition("-")[0].replace("custom", "n1"), machine.vcpus),
    )


def need(run: RunState, state: ClusterState, workers: int) -> Need:
    """Return what a run with this number of workers takes of each parameter server."""
    servers = max(state.spec.parameter_servers if state.spec else 1, 1)
    values = 4 * run.parameters
    variables = run.variable_bytes or _USUAL_SLOTS * values
    estimated = _PROCESS + (_TIMES_VARIABLES * variables + _TIMES_VALUES * values) / servers
    each_way = BYTES_EACH_WAY[run.spec.wire] * run.parameters / servers
    return Need(run.server_bytes or estimated, each_way * _exchanges(run, state, workers))


def shortage(room: Server, begun: Sequence[Need], more: Sequence[Need]) -> str:
    """Return which resource is short for `more` beside the begun runs: memory, link, or "".

    A link that the begun runs use up has no room even for a run that may need little.
    """
    together = [*begun, *more]
    if sum(run_need.memory for run_need in together) > room.memory:
        return MEMORY
    used = sum(run_need.link for run_need in begun)
    if sum(run_need.link for run_need in together) > room.link or used > _USED_UP * room.link:
        return LINK
    return ""


def why(short: str, room: Server, begun: Mapping[str, Need], own: Need) -> str:
    """Return a clause that names the short resource, its size, its users, and the need."""
    names = _and(begun)
    if short == MEMORY:
        used = sum(run_need.memory for run_need in begun.values())
        return (
            f"a parameter server has {_gb(room.memory)} of memory for runs, {names} {_takes(begun)} {_gb(used)} of it, "
            f"this one needs about {_gb(own.memory)}"
        )
    # The run may have been faster a minute ago.
    used = min(sum(run_need.link for run_need in begun.values()), room.link)
    if own.link:
        needs = f"this one needs about {_mbit(own.link)}"
    else:
        needs = "what this one needs is not known"
    link = f"a parameter server's link carries {_mbit(room.link)} each way"
    return f"{link}, {names} {_takes(begun)} {_mbit(used)} of it, {needs}"


def _exchanges(run: RunState, state: ClusterState, workers: int) -> float:
    """Return how many times per second a worker takes all values and gives all gradients.

    0 if that is unknown.
    """
    if measured := _measured(run, workers):
        return measured
    if run.spec.pace_seconds:
        return workers / run.spec.pace_seconds
    alike = [
        other
        for other in state.of(RunState).values()
        if other.name != run.name and _what(other) == _what(run)
    ]
    return next((found for other in reversed(alike) if (found := _measured(other, workers))), 0.0)


def _measured(run: RunState, workers: int) -> float:
    fastest = max((speed for *_, speed in run.series[-_LATEST:]), default=0.0)
    return fastest * (workers if run.spec.mode == "sync" else 1)


def _what(run: RunState) -> tuple[object, ...]:
    spec = run.spec
    return (
        run.parameters,
        spec.model,
        spec.hparams_set,
        spec.hparams,
        spec.problem,
        spec.mode,
        spec.pace_seconds,
    )


def _and(names: Iterable[str]) -> str:
    *some, last = names
    if some:
        return f"{', '.join(some)} and {last}"
    return last


def _takes(begun: Mapping[str, Need]) -> str:
    return "takes" if len(begun) == 1 else "take"


def _gb(count: float) -> str:
    return f"{max(count, 0.0) / GB:.1f} GB"


def _mbit(rate: float) -> str:
    return f"{8 * rate / 1e6:,.3g} Mbit/s"
