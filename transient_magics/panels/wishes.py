"""What the page may ask for, and what is done then: each wish is said on the panel, and carried out
aside.

What a page sends is not trusted: it chooses among these wishes, and its words are checked where
they are used.
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


class AskedRun(Protocol):
    """The part of a run's handle with which wishes are carried out."""

    def save(self) -> None: ...
    def agree(self, proposal: int | None = None) -> None: ...
    def evaluate(self, now: bool = False) -> Mapping[str, float]: ...
    def logs(self, worker: str, lines: int = 200) -> object: ...


class Stoppable(Protocol):
    """Work of any kind, or a trial of a study."""

    def stop(self) -> None: ...


class AskedStudy(Protocol):
    """The part of a study's handle with which wishes are carried out."""

    def trial(self, number: int) -> Stoppable: ...


class Asked(Protocol):
    """What wishes are carried out with: a cluster's handle."""

    @property
    def state(self) -> ClusterState: ...
    def revoke(self, worker: str, seconds: float = 0.0) -> None: ...
    def resize(self, spec: str) -> None: ...
    def delete(self, timeout: float | None = 300.0) -> None: ...
    def agree(self, proposal: int | None = None) -> tuple[str, ...]: ...
    def run(self, name: str | None = None, /) -> AskedRun: ...
    def study(self, name: str | None = None) -> AskedStudy: ...
    def find(self, name: str) -> Stoppable: ...


@dataclass(frozen=True)
class Wish:
    """`said` at once, and what carrying it out takes some time for; what `do` returns is for the
    page.
    """

    said: str
    do: Callable[[], Mapping[str, Any] | None]


def wish(cluster: Asked, run: str | None, message: Mapping[str, Any]) -> Wish | None:
    """What a message of the page asks of `cluster`, or of its `run`; None where it is no wish."""
    target = str(message.get("worker") or "")
    match message.get("do"):
        case "delete":
            return Wish("The cluster is being deleted.", lambda: cluster.delete(timeout=None))
        case "revoke":
            return Wish(f"{target} will be revoked.", lambda: cluster.revoke(target))
        case "resize":
            spec = str(message.get("spec") or "").strip()
            if message.get("agreed") is True:
                return Wish(f"The cluster becomes {spec}.", lambda: cluster.resize(spec))
            return Wish("", lambda: {"question": _what_resizing_means(cluster.state, spec)})
        case "stop":
            name = str(message.get("name") or "")
            return Wish(f"{text.plain(name)} is being stopped.", lambda: cluster.find(name).stop())
        case "stop trial":
            study = str(message.get("study") or "")
            number = message.get("trial")
            if not isinstance(number, int):
                return None
            return Wish(
                f"Trial {number} of {study} is being stopped.",
                lambda: cluster.study(study).trial(number).stop(),
            )
        case "agree":
            name = str(message.get("run") or "")
            number = message.get("number")
            if not isinstance(number, int):
                return None
            if not name:
                return Wish(
                    "What was proposed is given up.", lambda: _nothing(cluster.agree(number))
                )
            return Wish(f"{name} gets what was proposed.", lambda: cluster.run(name).agree(number))
        case "save":
            return Wish("A checkpoint is being written.", lambda: cluster.run(run).save())
        case "evaluate":
            return Wish(
                "The model is being evaluated.",
                lambda: _nothing(cluster.run(run).evaluate(now=True)),
            )
        case "logs":
            return Wish("", lambda: {"log": {"worker": target, "text": _log(cluster, run, target)}})
    return None


def _nothing(_: object) -> None:
    return None


def _what_resizing_means(state: ClusterState, wanted: str) -> dict[str, str]:
    """The question before the workers change. Raises DeclarationError or ClusterError."""
    if state.spec is None:
        raise ClusterError("The cluster is not declared yet")
    new = declared.resized(state.spec, resized(state.spec, wanted), state, time.time())
    if new.groups == state.spec.groups:
        raise ClusterError(f"The cluster is {new.spec} already")
    prices = f"{text.money(new.hourly)} per hour, not {text.money(state.spec.hourly)}"
    fewer = state.spec.worker_count - new.worker_count
    if fewer > 0:
        ends = f" {text.count(fewer, 'worker')} will be deleted."
    else:
        ends = ""
    return {"spec": wanted, "text": f"Have {new.spec} for {prices}?{ends}"}


def _log(cluster: Asked, run: str | None, worker: str) -> str:
    """The last lines that a VM wrote, as plain text; of long lines the beginning."""
    try:
        said = str(cluster.run(run).logs(worker, LOG_LINES))
    except TransientError as error:
        return str(error)
    lines = [text.plain(line, _LINE_CHARACTERS) for line in said.splitlines()[-LOG_LINES:]]
    return "\n".join(lines)[-_LOG_CHARACTERS:]
