"""Actions that a page may request: the panel shows a notice, and a thread carries each one out.

Messages of a page are not trusted: they choose among these actions, and their texts are checked
where they are used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..client import text
from ..client.declaring import resized
from ..errors import ClusterError, TransientError
from ..journal import ClusterState, declared

LOG_LINES = 200
_LOG_CHARACTERS = 40_000
_LINE_CHARACTERS = 500


class ActionRun(Protocol):
    """The part of a run's handle that actions use."""

    def save(self) -> None:
        """Write a checkpoint now, while training continues."""
        ...

    def agree(self, proposal: int | None = None) -> None:
        """Agree to the workers that are proposed for the run."""
        ...

    def evaluate(self, now: bool = False) -> Mapping[str, float]:
        """Return the metrics of the dev split."""
        ...

    def logs(self, worker: str, lines: int = 200) -> object:
        """Return the last lines that a worker logged for the run."""
        ...


class Stoppable(Protocol):
    """Work of any kind, or a trial of a study."""

    def stop(self) -> None:
        """Stop the work and keep its results so far."""
        ...


class ActionStudy(Protocol):
    """The part of a study's handle that actions use."""

    def trial(self, number: int) -> Stoppable:
        """Return a trial by its number."""
        ...


class ActionCluster(Protocol):
    """The part of a cluster's handle that actions use."""

    @property
    def state(self) -> ClusterState:
        """The state of the cluster in its journal."""
        ...

    def revoke(self, worker: str, seconds: float = 0.0) -> None:
        """Revoke a worker, with its notice in `seconds` seconds."""
        ...

    def resize(self, spec: str) -> None:
        """Change the workers of the cluster."""
        ...

    def delete(self, timeout: float | None = 300.0) -> None:
        """Delete all VMs of the cluster. Results remain."""
        ...

    def agree(self, proposal: int | None = None) -> tuple[str, ...]:
        """Accept the proposed release of workers."""
        ...

    def run(self, name: str | None = None, /) -> ActionRun:
        """Return the run called `name` (default: the latest)."""
        ...

    def study(self, name: str | None = None) -> ActionStudy:
        """Return the study called `name` (default: the latest)."""
        ...

    def find(self, name: str) -> Stoppable:
        """Return the handle of the work called `name`, of any kind."""
        ...


@dataclass(frozen=True)
class Action:
    """An action: `notice` is shown immediately. `do` may take long and return data for the page."""

    notice: str
    do: Callable[[], Mapping[str, Any] | None]


def find_action(
    cluster: ActionCluster, run: str | None, message: Mapping[str, Any]
) -> Action | None:
    """Return the action that a page requests for a cluster or its `run`, or None."""
    target = str(message.get("worker") or "")
    match message.get("do"):
        case "delete":
            return Action("The cluster is being deleted.", lambda: cluster.delete(timeout=None))
        case "revoke":
            return Action(f"{target} will be revoked.", lambda: cluster.revoke(target))
        case "resize":
            spec = str(message.get("spec") or "").strip()
            if message.get("agreed") is True:
                return Action(f"The cluster becomes {spec}.", lambda: cluster.resize(spec))
            return Action("", lambda: {"question": _what_resizing_means(cluster.state, spec)})
        case "stop":
            name = str(message.get("name") or "")
            return Action(
                f"{text.plain(name)} is being stopped.", lambda: cluster.find(name).stop()
            )
        case "stop trial":
            study = str(message.get("study") or "")
            number = message.get("trial")
            if not isinstance(number, int):
                return None
            return Action(
                f"Trial {number} of {study} is being stopped.",
                lambda: cluster.study(study).trial(number).stop(),
            )
        case "agree":
            name = str(message.get("run") or "")
            number = message.get("number")
            if not isinstance(number, int):
                return None
            if not name:
                return Action(
                    "What was proposed is given up.", lambda: _nothing(cluster.agree(number))
                )
            return Action(
                f"{name} gets what was proposed.", lambda: cluster.run(name).agree(number)
            )
        case "save":
            return Action("A checkpoint is being written.", lambda: cluster.run(run).save())
        case "evaluate":
            return Action(
                "The model is being evaluated.",
                lambda: _nothing(cluster.run(run).evaluate(now=True)),
            )
        case "logs":
            return Action(
                "", lambda: {"log": {"worker": target, "text": _log(cluster, run, target)}}
            )
    return None


def _nothing(_: object) -> None:
    return None


def _what_resizing_means(state: ClusterState, spec: str) -> dict[str, str]:
    """Return the question before the workers change. Raises DeclarationError or ClusterError."""
    if state.spec is None:
        raise ClusterError("The cluster is not declared yet", fix="Try again in a moment.")
    new = declared.resized(state.spec, resized(state.spec, spec), state, time.time())
    if new.groups == state.spec.groups:
        raise ClusterError(f"The cluster already has {new.spec}")
    prices = f"{text.money(new.hourly)} per hour, not {text.money(state.spec.hourly)}"
    question = f"Change to {new.spec} for {prices}?"
    fewer = state.spec.worker_count - new.worker_count
    if fewer > 0:
        question += f" {text.count(fewer, 'worker')} will be deleted."
    return {"spec": spec, "text": question}


def _log(cluster: ActionCluster, run: str | None, worker: str) -> str:
    """Return the last lines of a VM's log as plain text; of long lines the beginning."""
    try:
        log = str(cluster.run(run).logs(worker, LOG_LINES))
    except TransientError as error:
        return str(error)
    lines = [text.plain(line, _LINE_CHARACTERS) for line in log.splitlines()[-LOG_LINES:]]
    return "\n".join(lines)[-_LOG_CHARACTERS:]
