"""What an emulator is told when it starts, and what it tells about itself in `emulator.json`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What an emulator is told: by its command line, and (descriptors) by the process that it was before."""

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
        """For the command line of the process that goes on inside."""
        return json.dumps(asdict(self))


def find(state: Path) -> dict[str, Any]:
    """What `emulator.json` in this state directory says, or nothing."""
    with contextlib.suppress(OSError, json.JSONDecodeError):
        return json.loads((state / "emulator.json").read_text(encoding="utf-8"))
    return {}
