"""What an agent asks about the process that a VM runs for a piece of work: a `Part`, subclassed by
each kind.

The module `on_vm.agent` of the kind's package has its subclass as `PART`.
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
    """0: it could not be started."""
    code: int | None = None
    """Its exit code; None where it was not a child of this agent."""
    reason: str = ""
    """Why it was killed here, or could not be started, a clause."""


class Restarts:
    """When a process that has ended is started again.

    Parameters
    ----------
    pauses
        Seconds before each restart of processes that end one after the other; the last one is
        repeated.
    most
        Restarts of processes that end one after the other.
    lasting
        Seconds after which a process counts as one that lasts: the count begins again with it.
    """

    def __init__(self, pauses: Sequence[float], most: int, lasting: float = math.inf) -> None:
        self._pauses = pauses
        self._most = most
        self._lasting = lasting
        self._ended = 0

    def pause(self, seconds: float) -> float | None:
        """Return the pause after a process that ran for `seconds`; None where it is not started
        again.
        """
        if seconds > self._lasting:
            self._ended = 0
        self._ended += 1
        if self._ended > self._most:
            return None
        return self._pauses[min(self._ended, len(self._pauses)) - 1]


class Part(ABC):
    """The part of this VM in one piece of work, whose files are in `folder`. Raises ValueError for
    an invalid task.
    """

    end_seconds: ClassVar[float | None] = None
    """How long the process has to end once it is told to, before it is killed. None: it ends in its
    own time.
    """
    restarts_under_notice: ClassVar[bool] = True
    """Whether a process that ends while the VM is under notice is started again."""

    def __init__(self, folder: Path, begin: Begin) -> None:
        self.folder = folder
        self.begin = begin

    @property
    @abstractmethod
    def restarts(self) -> Restarts:
        """The pauses between starts of the process."""

    @abstractmethod
    def program(self) -> tuple[str, Sequence[str]]:
        """Return the module that is the process, and its arguments."""

    @abstractmethod
    def gave_up(self) -> None:
        """Report that the process has ended and is not started again."""

    # What a kind defines if it needs it

    @property
    def exclusive(self) -> bool:
        """Whether the VM does nothing else while it has this part."""
        return True

    def check(self) -> None:  # noqa: B027 (a hook)
        """Raise TrainingError where the part cannot begin."""

    def environment(self) -> Mapping[str, str]:
        """Return what the process has in its environment beside that of the agent."""
        return {}

    async def watch(self, pid: int) -> str:
        """Watch the process until cancelled; return why it was killed here, a clause, if it was."""
        return ""

    def ended(self, how: Ended) -> bool:
        """Report how the process ended, and return whether it may be started again."""
        if not how.pid:
            print(
                f"{self.begin.work} could not be started: {how.reason}", file=sys.stderr, flush=True
            )
        return True

    @staticmethod  # noqa: B027 (a hook)
    def clean(folder: Path) -> None:
        """Delete what must not stay in the folder of the work after its end."""
