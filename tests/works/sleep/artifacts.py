"""The result of a sleep, and its sync from a controller's VM or a bucket."""

from __future__ import annotations

from collections.abc import Iterator

from ...controller.artifacts import Artifact
from ...controller.remote_controller.result_sync import Sync
from ...kinds import KINDS
from .fold import SleepState
from .spec import result_file

_FOLDER = KINDS["sleep"].folder
_MOST_BYTES = 4096


def result(sleep: str, attempt: int) -> Artifact:
    """Return the result of an attempt."""
    return Artifact(f"result of {sleep}", (f"{_FOLDER}/{sleep}/{result_file(attempt)}",), _MOST_BYTES)


class SleepSync(Sync[SleepState]):
    """Copies the results of sleeps."""

    kind = "sleep"
    in_bucket = (f"{_FOLDER}/*/{result_file(0).replace('0', '*')}",)

    def left(self, work: SleepState) -> Iterator[Artifact]:
        """Yield the result of the last attempt."""
        if work.woke:
            yield result(work.name, work.attempt)


SYNC = SleepSync
