"""A process with an event loop that runs user code in a thread, as a Dask worker does, and what that code may start.

It prints a line of JSON: what came back, and whether a signal to a child arrived in the loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.context import ForkContext
from typing import Any

from transient_magics.runtime.role import separate_children


def double(value: int) -> int:
    return 2 * value


def wait_for_ever() -> None:
    threading.Event().wait()


def end_at_once(context: ForkContext) -> set[int | None]:
    """The exit codes of processes that are terminated as soon as they have begun."""
    codes = set[int | None]()
    for _ in range(30):
        process = context.Process(target=wait_for_ever)
        process.start()
        process.terminate()
        process.join()
        codes.add(process.exitcode)
    return codes


def handle_themselves(connection: Any) -> None:
    """A child with a handler of its own, which a child of it has, too."""
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(60)
    connection.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def user_code() -> dict[str, Any]:
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    found: dict[str, Any] = {}
    for _ in range(5):
        with fork.Pool(2) as pool:
            found["fork pool"] = pool.map(double, [1, 2])
    with spawn.Pool(1) as pool:
        found["spawn pool"] = pool.map(abs, [-1])
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as executor:
        found["executor"] = list(executor.map(double, [3, 4]))
    found["exit codes"] = list(end_at_once(fork))
    process = subprocess.Popen(["sleep", "60"], preexec_fn=os.setsid)
    process.terminate()
    found["subprocess"] = process.wait()
    here, there = fork.Pipe()
    fork.Process(target=handle_themselves, args=(there,)).start()
    found["grandchild"] = here.recv()
    return found


async def main() -> None:
    separate_children()
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        loop.add_signal_handler(number, over.set)
    found = await asyncio.to_thread(user_code)
    found["signals here"] = over.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(over.wait(), 60)  # our own signals still arrive
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
