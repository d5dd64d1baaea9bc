"""The process that an agent runs for a rank of a job, and its events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....errors import TrainingError
from ....protocol import layout
from ....protocol.agent_commands import Begin
from ....protocol.vm_events import line_fields
from ....runtime.folder import Lines
from ....runtime.parts import Part, Restarts
from ..events import JobExited
from .task import JobTask


class JobPart(Part):
    """The runner of a job's command.

    If it is killed, another one starts the command again in the same working directory.
    """

    def __init__(self, folder: Path, begin: Begin) -> None:
        super().__init__(folder, begin)
        self.task = JobTask.from_dict(begin.task)

    @property
    def restarts(self) -> Restarts:
        """The pauses between starts of the runner."""
        return Restarts((1.0, 5.0), most=2)

    def check(self) -> None:
        """Raise TrainingError if the job has no VM."""
        if not self.task.addresses:
            raise TrainingError(f"{self.begin.work} has no VM")

    def program(self) -> tuple[str, Sequence[str]]:
        """Return the module of the runner."""
        return __package__ or "", ()

    def gave_up(self) -> None:
        """Report the end of the attempt for the runner, which could not."""
        exited = JobExited(
            job=self.begin.work,
            attempt=self.begin.attempt,
            rank=self.task.rank,
            code=None,
            reason="the runner of its command on the VM keeps ending",
        )
        Lines(self.folder / layout.job_events(self.begin.attempt)).write(
            exited.kind, line_fields(exited)
        )


PART = JobPart
