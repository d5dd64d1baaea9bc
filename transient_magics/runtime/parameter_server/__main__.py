"""The process of one parameter server: `python -m transient_magics.runtime.parameter_server`.

It serves variables with TensorFlow's own server and knows of no worker. On ps/0 the chief runs in
the same process, so that it lives and dies with the variables it keeps. Exits with 0 when the run
has ended, 65 when it failed.
"""

from __future__ import annotations

import asyncio
import signal
from typing import NoReturn

from ..role import DONE, Role, log


async def _chief(role: Role) -> int:
    from .chief.chief import Chief

    chief = Chief(role.folder, role.spec, role.assignment, role.asked)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, chief.ask_for_save)
    loop.add_signal_handler(signal.SIGUSR2, chief.ask_to_evaluate)
    loop.add_signal_handler(signal.SIGTERM, chief.ask_to_stop)
    return await chief.run()


async def _server(role: Role) -> int:
    from .server_load import report
    from .variables import start_server

    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, told.set)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # only the chief saves
    await asyncio.to_thread(start_server, role.assignment, role.spec.threads)
    log(f"serving as ps {role.assignment.index} of {len(role.assignment.ps)}")
    if role.folder.standby.exists():
        role.folder.prepared.touch()  # it has no more to do: the chief puts the values into it
    reporting = asyncio.create_task(report(role.assignment, role.spec.token, role.spec.threads))
    await told.wait()
    reporting.cancel()
    return DONE


def play(role: Role) -> NoReturn:
    """Run until the end of the run."""
    code = asyncio.run(_chief(role) if role.assignment.index == 0 else _server(role))
    role.end(code)


if __name__ == "__main__":
    play(Role())
