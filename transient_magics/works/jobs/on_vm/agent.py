"""What an agent does for the part of its VM in a job: the process that looks after the command, and
its events.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....errors import TrainingError
from ....protocol import layout
from ....protocol.agent_commands import Begin
from ....protocol.vm_events import told
from ....runtime.folder import Lines
from ....runtime.parts import Part, Restarts
from ..events import JobExited
from .task import JobTask


class JobPart(Part):
    """The supervisor of a job's command. Where it is killed, the command begins again in its folder
    as it was left.
    """

    def __init__(self, folder: Path, begin: Begin) -> None:
        super().__init__(folder, begin)
        self.task = JobTask.from_dict(begin.task)

    @property
    def restarts(self) -> Restarts:
        """The pauses between starts of the supervisor."""
        return Restarts((1.0, 5.0), most=2)

    def check(self) -> None:
        """Raise TrainingError where the job has no VM."""
        if not self.task.addresses:
            raise TrainingError(f"{self.begin.work} has no VM")

    def program(self) -> tuple[str, Sequence[str]]:
        """Return the module of the supervisor."""
        return __package__ or "", ()

    def gave_up(self) -> None:
        """Report the end of the attempt, which the supervisor has not reported."""
        exited = JobExited(
            job=self.begin.work,
            attempt=self.begin.attempt,
            rank=self.task.rank,
            code=None,
            reason="what looks after its command on the VM keeps ending",
        )
        Lines(self.folder / layout.job_events(self.begin.attempt)).write(exited.kind, told(exited))


PART = JobPart
