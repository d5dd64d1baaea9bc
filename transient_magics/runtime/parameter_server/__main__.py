"""The process of one parameter server: `python -m transient_magics.runtime.parameter_server`.

TensorFlow's own server serves the variables, and has no list of workers. On ps/0 the chief runs in
the same process, so it ends with the variables that it keeps. Exits with 0 when the run has ended,
with 65 when it has failed.
"""

from __future__ import annotations

import asyncio
import signal
from typing import NoReturn

from ..role import DONE, Role, log


async def _chief(role: Role) -> int:
    from .chief.chief import Chief

    chief = Chief(role.folder, role.spec, role.assignment, role.requested_at)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, chief.save_now)
    loop.add_signal_handler(signal.SIGUSR2, chief.evaluate_now)
    loop.add_signal_handler(signal.SIGTERM, chief.stop_now)
    return await chief.run()


async def _server(role: Role) -> int:
    from .server_load import report
    from .variables import start_server

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # only the chief saves
    await asyncio.to_thread(start_server, role.assignment, role.spec.threads)
    log(f"serving as ps {role.assignment.index} of {len(role.assignment.ps)}")
    if role.folder.standby.exists():
        role.folder.prepared.touch()  # there is no more to prepare: the chief loads the values
    reporting = asyncio.create_task(report(role.assignment, role.spec.token, role.spec.threads))
    await stopped.wait()
    reporting.cancel()
    return DONE


def play(role: Role) -> NoReturn:
    """Serve until the end of the run, and end the process."""
    main = _chief if role.assignment.index == 0 else _server
    role.end(asyncio.run(main(role)))


if __name__ == "__main__":
    play(Role())
