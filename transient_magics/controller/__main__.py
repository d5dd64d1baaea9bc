"""Control a cluster until it is gone: `python -m transient_magics.controller NAME`.

It ends immediately if another process controls the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from .. import places
from ..imports import uncollected
from ..journal.lock import LOCK, is_of, mark, take
from ..protocol import layout
from . import host

_MARK_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_MISSED = 5


def main(arguments: list[str]) -> int:
    """Control the cluster and return the exit code.

    0: the cluster is gone or has another controller. 1: the controller failed (see controller.log).
    """
    directory = places.cluster(arguments[0])
    # Standard error is controller.log.
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    if (lock := take(directory)) is None:
        return 0
    asyncio.run(_take_charge(directory, lock))
    return 0


async def _take_charge(directory: Path, lock: int) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(_look_after(directory, lock))
    for number in (signal.SIGTERM, signal.SIGINT):
        # Ending the controller does not end the cluster: any client that follows the journal starts
        # a new one.
        loop.add_signal_handler(number, task.cancel)
    alive = asyncio.create_task(host.notify_watchdog(os.environ))
    marking = asyncio.create_task(_mark(lock))
    locked = asyncio.create_task(_end_without_lock(directory, lock, task))
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("stopped by a signal; the cluster continues")
    finally:
        alive.cancel()
        marking.cancel()
        locked.cancel()


async def _mark(lock: int) -> None:
    """Mark the lock until cancelled, so that clients know since when a dead controller is gone."""
    while True:
        # The journal reports a disk that cannot be written.
        with suppress(OSError):
            mark(lock)
        await asyncio.sleep(_MARK_SECONDS)


async def _end_without_lock(directory: Path, lock: int, task: asyncio.Task[None]) -> None:
    """End the task when the lock is no longer the folder's, so that there is only one controller.

    A lock file that is missing for a moment means that the folder is being removed: then the
    cluster is deleted.
    """
    missed = 0
    while missed < _MISSED:
        await asyncio.sleep(_LOOK_SECONDS)
        if is_of(lock, directory) or not directory.exists():
            missed = 0
        else:
            if (directory / LOCK).exists():
                missed = _MISSED
            else:
                missed = missed + 1
    logging.getLogger(__name__).error(
        "the lock of %s is not held any more, so this controller ends", directory
    )
    task.cancel()


async def _look_after(directory: Path, lock: int) -> None:
    """Control the cluster or, if the journal has another controller in charge, run its proxy.

    It continues while the folder is the one that was locked: a new cluster with the same name has a
    controller of its own.
    """
    with uncollected():
        from ..journal import read, replay
        from ..journal.declared import ATTACHED
        from ..journal.store import restore
        from .cluster import Controller
        from .host import controller_vm
        from .remote_controller.proxy import ControllerProxy

    restore(directory / layout.JOURNAL)
    while is_of(lock, directory) and not (state := replay(read(directory / layout.JOURNAL))).over:
        if (
            (directory / ATTACHED).exists()
            and state.seat == controller_vm()
            and state.phase != "deleting"
        ):
            what = (
                "the journal names this machine's controller, but this machine only follows "
                "the cluster"
            )
            logging.getLogger(__name__).error("%s", what)
            return
        await (
            Controller(directory) if state.seat == controller_vm() else ControllerProxy(directory)
        ).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
