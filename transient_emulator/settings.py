"""The settings with which an emulator starts, and its description in `emulator.json`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The settings of an emulator, from its command line and from the process that it was before.

    Attributes
    ----------
    state
        The directory of its state.
    relay
        The path of the socket that leads into the VM network.
    homes
        The directory of the links to the VMs' home directories.
    owner
        The user's id outside of any namespace.
    isolation
        The value of an `Isolation`.
    linger
        Seconds from the end of the last VM to the emulator's exit; 0 for no exit.
    boot
        Seconds until a new VM runs.
    notice
        Seconds from the notice of a preemption to its end.
    keep
        Whether VMs outlive the emulator.
    fresh
        Whether to start with a new project.
    listening, lock, sources
        Descriptors: the listening socket, the lock of the state, and `ownership.open_sources`.
    holder
        Id and start stamp of the process that keeps the namespaces alive.
    same_network
        Whether the network of an earlier emulator still exists.
    """

    state: str
    relay: str
    homes: str
    owner: int
    isolation: str
    linger: float = 0.0
    boot: float = 1.5
    notice: float = 30.0
    keep: bool = False
    fresh: bool = False
    listening: int = -1
    lock: int = -1
    sources: list[int] = field(default_factory=list)
    holder: list[Any] | None = None
    same_network: bool = False

    def to_json(self) -> str:
        """Return the form for the command line of the process inside the namespaces."""
        return json.dumps(asdict(self))


def find(state: Path) -> dict[str, Any]:
    """Return the content of `emulator.json` in a state directory; empty if there is none."""
    with contextlib.suppress(OSError, json.JSONDecodeError):
        return json.loads((state / "emulator.json").read_text(encoding="utf-8"))
    return {}
