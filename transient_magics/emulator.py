"""The product's only module for the emulator, which is a process of package `transient_emulator`.

`ensure` returns the URL of this user's emulator and starts it if needed. `running` returns it only
if one runs. `about` returns what an emulator reports about itself. `hold` keeps it from exiting.
Importing this module starts nothing and needs only sockets.

The first process that needs an emulator starts it, detached. The emulator exits when its last VM is
gone and no process holds it. A killed emulator is started again with its state, on the port that
its clients use.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import select
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import IO, Any

from . import places
from .errors import UnreachableError

_ANSWER_SECONDS = 3.0
_LINGER = 10.0


def ensure(
    *, linger: float | None = None, timeout: float = 60.0, options: tuple[str, ...] = ()
) -> str:
    """Return the URL of this user's emulator, and start it if none answers.

    Parameters
    ----------
    linger
        How long it keeps running without VMs and users, in seconds (default: 10). This and
        `options` count only if it is started now. They replace the settings of a killed emulator.
    timeout
        Limit on its start, in seconds.
    options
        More options of its command line.

    Raises
    ------
    UnreachableError
        It cannot be started.
    """
    state = _state()
    url = _answering(state)
    if url:
        return url
    deadline = time.monotonic() + timeout
    with (state / "start.lock").open("a", encoding="utf-8") as lock:
        # Another process that starts it has the lock, no longer than its own limit.
        fcntl.flock(lock, fcntl.LOCK_EX)
        seconds_left = max(deadline - time.monotonic(), 1.0)
        return _answering(state) or _start(state, linger, options, seconds_left)


def hold() -> IO[str]:
    """Keep this user's emulator from exiting until the returned file is closed.

    The end of this process closes it, too. The emulator may also be started later. If it is exiting
    at this moment, this waits until it has.
    """
    lock = (_state() / places.EMULATOR_HOLDERS).open("a", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def running() -> str:
    """Return the URL of this user's emulator, empty if none answers."""
    return _answering(places.emulator().absolute())


def about(url: str) -> dict[str, Any]:
    """Return what an emulator reports about itself: relay, state, isolated, version.

    Raises UnreachableError if it does not answer.
    """
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(
        place.hostname or "", place.port, timeout=_ANSWER_SECONDS
    )
    try:
        connection.request("GET", "/emulator/v1")
        answer = connection.getresponse()
        content = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnreachableError(
            "the emulator does not answer", where=url, fix="Run the cell again."
        ) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise UnreachableError(f"the emulator refused the request: {content}", where=url)
    return content


def main(argv: list[str]) -> int:
    """Run `transient emulator` with these arguments in this process, and return its exit code."""
    from transient_emulator.__main__ import run

    return run(argv)


def _state() -> Path:
    with places.reporting():
        return places.private(places.emulator().absolute())


def _answering(state: Path) -> str:
    try:
        url = json.loads((state / "emulator.json").read_text(encoding="utf-8"))["url"]
        return url if about(url)["state"] == str(state) else ""
    except (OSError, ValueError, KeyError, UnreachableError):
        return ""


def _start(state: Path, linger: float | None, options: tuple[str, ...], timeout: float) -> str:
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    if linger is None and not (state / "emulator.json").exists():
        linger = _LINGER
    command = [sys.executable, "-m", "transient_emulator", "--state", str(state)]
    if linger is not None:
        command += ["--linger", str(linger)]
    command += options
    with (state / "emulator.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": path},
        )
    assert process.stdout
    line = ""
    with process.stdout as output:
        readable, _, _ = select.select([output], [], [], timeout)
        if readable:
            line = output.readline().decode()
    if line.startswith("ready "):
        return line.split()[1]
    if readable:
        process.wait()
    else:
        process.kill()
    log_path = state / "emulator.log"
    last_line = log_path.read_text(errors="replace", encoding="utf-8").strip().rpartition("\n")[2]
    why = last_line or f"no answer within {timeout:g} s"
    raise UnreachableError(f"the emulator could not be started: {why}", where=str(log_path))
