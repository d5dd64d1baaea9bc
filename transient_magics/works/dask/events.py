"""The events of Dask clusters: what their VMs report, and what the controller records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from ...protocol import checks
from ...protocol.checks import Amount, Count, Name
from ...protocol.events import FACT, Event, event, read_foreign
from ...protocol.vm_events import VM

# What VMs report

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]{0,49}", re.ASCII)


def _version(value: str) -> str:
    """Return a version that is safe in a `pip install` command. Raises ValueError."""
    if not _VERSION.fullmatch(value):
        raise ValueError(f"{value!r:.80} is not a version")
    return value


@event("dask.serving", FACT)
class DaskServing(Event):
    """The scheduler of a Dask cluster listens on its VM at this `port`.

    `dashboard` is the port of its dashboard on the VM's loopback (0: none). `versions` are those of
    Python and packages that its clients must share.
    """

    dask: Name
    port: Annotated[int, checks.within(1, 65535)]
    dashboard: Annotated[int, checks.within(0, 65535)]
    versions: Mapping[Name, Annotated[str, _version]]


@event("dask.left", FACT)
class DaskLeft(Event):
    """A worker left a Dask cluster after its VM's preemption notice.

    Other workers have the `moved` results, of `moved_bytes`, after `seconds`. The `lost` results
    and the `interrupted` tasks are computed again.
    """

    dask: Name
    worker: Name
    seconds: Amount
    moved: Count
    moved_bytes: Count
    lost: Count
    interrupted: Count


@event("dask.crashed", FACT)
class DaskCrashed(Event):
    """A process of a Dask cluster ended on a VM that was not preempted.

    `reason` is a clause: how it ended, or why it was ended (`it needed more memory than it may
    have`). The crash counts against the tasks that it computed.
    """

    dask: Name
    vm: Name
    reason: str


@event("dask.gpu_unused", FACT)
class DaskGpuUnused(Event):
    """No process on a VM has used its GPU (`gpu`) in the `seconds` since its worker started.

    Zero seconds report that a process uses it now.
    """

    dask: Name
    vm: Name
    gpu: str
    seconds: Amount


@event("dask.closed", FACT)
class DaskClosed(Event):
    """The scheduler of a Dask cluster ended normally.

    `reason` is a clause (`its client has disconnected`).
    """

    dask: Name
    reason: str


_OF_DASK: dict[str, type[Event]] = {
    event_type.kind: event_type
    for event_type in (DaskServing, DaskLeft, DaskCrashed, DaskGpuUnused, DaskClosed)
}


def from_dask(line: bytes, dask: str, vm: str, schedules: bool, since: int, until: int) -> Event:
    """Return the event of a line from a VM of a Dask cluster, checked as in `from_chief`.

    Only the scheduler may report about other VMs.
    """
    found = read_foreign(line, _OF_DASK, VM, since, until)
    about = found.values
    if (
        about["dask"] != dask
        or about.get("vm", vm) != vm
        or not (schedules or isinstance(found, DaskCrashed | DaskGpuUnused))
    ):
        raise ValueError(f"this VM must not report a {found.kind} event")
    return found


# What the controller records


@event("dask.began", FACT)
class DaskBegan(Event):
    """The scheduler was assigned to this VM."""

    dask: Name
    vm: Name
