"""The only way from the product to the emulator, the package `transient_emulator`, which runs as a
process of its own.

`ensure` returns the URL of this user's emulator and starts it if needed; `running` returns it only
where one runs. `about` returns what an emulator reports of itself; `hold` keeps it from exiting.
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
    """The URL of this user's emulator, started if none answers.

    `linger` (default: 10 s) and `options` (of its command line) count only if it is started now;
    one that was killed is revived with the settings that it had, where these do not say otherwise.
    Raises UnreachableError.
    """
    state = _state()
    if url := _answering(state):
        return url
    deadline = time.monotonic() + timeout
    with (state / "start.lock").open("a", encoding="utf-8") as lock:
        # Others who start it at this moment are waited for; they take no longer than their own
        # limit.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _answering(state) or _start(
            state, linger, options, max(deadline - time.monotonic(), 1.0)
        )


def hold() -> IO[str]:
    """Keep this user's emulator from exiting until what is returned is closed, or this process
    ends.

    It runs already or is started later. Waits for one that is just exiting.
    """
    lock = (_state() / places.EMULATOR_HOLDERS).open("a", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def running() -> str:
    """The URL of this user's emulator, empty if none answers."""
    return _answering(places.emulator().absolute())


def about(url: str) -> dict[str, Any]:
    """What the emulator at `url` says of itself: relay, state, isolated, version. Raises
    UnreachableError.
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
        raise UnreachableError(f"the emulator refuses: {content}", where=url)
    return content


def main(argv: list[str]) -> int:
    """Run `transient emulator` with these arguments in this process; return its exit code."""
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
    if linger is None:
        lingering = []
    else:
        lingering = ["--linger", str(linger)]
    command = [
        sys.executable,
        "-m",
        "transient_emulator",
        "--state",
        str(state),
        *lingering,
        *options,
    ]
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
    with process.stdout as said:
        readable, _, _ = select.select([said], [], [], timeout)
        if readable:
            line = said.readline().decode()
        else:
            line = ""
    if line.startswith("ready "):
        return line.split()[1]
    if readable:
        process.wait()
    else:
        process.kill()
    last = (
        (state / "emulator.log")
        .read_text(errors="replace", encoding="utf-8")
        .strip()
        .rpartition("\n")[2]
    )
    why = last or f"no answer within {timeout:g} s"
    raise UnreachableError(
        f"the emulator could not be started: {why}", where=str(state / "emulator.log")
    )
