"""The handle of a sleep, and its declaration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...client.cluster_handle import Cluster
from ...client.handle import Handle
from ...client.new_work import NewWork
from .fold import SleepState
from .spec import SleepSpec, result_file


class Sleep(Handle[SleepState, SleepState]):
    """A sleep on a VM of a cluster. It starts again on another VM if its VM is revoked."""

    kind = "sleep"
    at_stop = "its VM is free for other work"

    def result(self) -> str:
        """Return how long the last attempt slept, as its VM wrote it; empty before its end."""
        path = self.directory / result_file(self.state.attempt)
        if not path.exists():
            return ""
        return path.read_text(encoding="utf-8")

    def _is_home(self) -> bool:
        return self.state.woke is None or bool(self.result())


handle = Sleep


def declare_sleep(
    seconds: float, *, cluster: Cluster | str | None = None, name: str | None = None, **options: Any
) -> Sleep:
    """Declare a sleep, and return its handle without waiting.

    Parameters
    ----------
    seconds
        How long to sleep.
    cluster
        The cluster or its name (default: the current one).
    name
        A name (default: the next free one, `sleep-1`).
    **options
        Fields of `SleepSpec`: `retries`.

    Raises
    ------
    DeclarationError
        A value is invalid.
    ClusterError
        There is no such cluster, or it takes no work.
    """
    new = NewWork("sleep", cluster, name)
    spec = new.specify(SleepSpec.from_dict, {**options, "seconds": seconds})
    chosen = new.declare(lambda free_name: replace(spec, name=free_name).to_dict(), lambda folder: None)
    return Sleep(chosen, new.cluster)
