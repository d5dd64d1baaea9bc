"""The interface between an agent and the process that a VM runs for a piece of work: `Part`.

Each kind of work that runs on VMs has a subclass as `PART` in the module `on_vm.agent` of its
package.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..protocol.agent_commands import Begin

LOG = "process.log"
"""The file in the folder of a piece of work with the output of its process."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    pid: int = 0
    """Its process id; 0 if it could not be started."""
    code: int | None = None
    """Its exit code; None if it was not a child of this agent."""
    reason: str = ""
    """Why the agent killed it, or could not start it, a clause."""


class Restarts:
    """The pauses between the starts of a process that ends too early.

    Parameters
    ----------
    pauses
        Seconds before each successive restart; the last one is repeated.
    most
        Most successive restarts.
    lasting
        Seconds after which a process counts as stable: the count of restarts begins again.
    """

    def __init__(self, pauses: Sequence[float], most: int, lasting: float = math.inf) -> None:
        self._pauses = pauses
        self._most = most
        self._lasting = lasting
        self._ended = 0

    def pause(self, seconds: float) -> float | None:
        """Return the pause after a process that ran for `seconds`; None: it is not restarted."""
        if seconds > self._lasting:
            self._ended = 0
        self._ended += 1
        if self._ended > self._most:
            return None
        return self._pauses[min(self._ended, len(self._pauses)) - 1]


class Part(ABC):
    """The part of this VM in one piece of work.

    Parameters
    ----------
    folder
        Folder of the work on this VM.
    begin
        The request for it.

    Raises
    ------
    ValueError
        The task of the request is invalid.
    """

    end_seconds: ClassVar[float | None] = None
    """Seconds that the process has to end before it is killed; None: it ends in its own time."""
    restarts_under_notice: ClassVar[bool] = True
    """Whether a process that ends while the VM is under notice is restarted."""

    def __init__(self, folder: Path, begin: Begin) -> None:
        self.folder = folder
        self.begin = begin

    @property
    @abstractmethod
    def restarts(self) -> Restarts:
        """Pauses between starts of the process."""

    @abstractmethod
    def program(self) -> tuple[str, Sequence[str]]:
        """Return the module to run, and its arguments."""

    @abstractmethod
    def gave_up(self) -> None:
        """Report that the process has ended and is not restarted."""

    # Hooks, which a kind overrides if it needs them

    @property
    def exclusive(self) -> bool:
        """Whether the VM runs nothing else while it has this part."""
        return True

    def check(self) -> None:  # noqa: B027 (a hook)
        """Raise TrainingError if the part cannot begin."""

    def environment(self) -> Mapping[str, str]:
        """Return variables for the process, besides those of the agent."""
        return {}

    async def watch(self, pid: int) -> str:
        """Watch the process until cancelled; return why this killed it, a clause, if it did."""
        return ""

    def ended(self, how: Ended) -> bool:
        """Report how the process ended, and return whether it may be restarted."""
        if not how.pid:
            text = f"{self.begin.work} could not be started: {how.reason}"
            print(text, file=sys.stderr, flush=True)
        return True

    @staticmethod  # noqa: B027 (a hook)
    def clean(folder: Path) -> None:
        """Delete files that must not stay in the folder after the end of the work."""
