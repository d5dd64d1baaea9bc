"""Python imports it at the start of programs that are to die while they start, each time at a later step.

A step is what others can see: a file opened to be written, moved or removed, a socket bound or connected, a program
started. `TRANSIENT_TESTS_STEPS` says before which of its steps each program dies (SIGKILL): the first one that starts
before that of the first number, and so on; those after the last number live. Programs are meant that have
`TRANSIENT_TESTS_MORTAL` in their command line, also those that are forked. Who dies adds a line to the file
`TRANSIENT_TESTS_DIED`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

_SEEN = ("os.rename", "os.remove", "os.truncate", "os.symlink", "socket.bind", "socket.connect", "subprocess.Popen")
_FORK_SERVER = "transient_magics.runtime.agent.fork_server"
_NOT_SEEN = (".pyc", ".log", os.devnull)


class _Mortal:
    """Counts the steps of this process, and ends it before the one at which it is to die."""

    def __init__(self, died: Path, left: int) -> None:
        self._died, self._left = died, left

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in _SEEN and not (event == "open" and _writes(*arguments)):
            return
        self._left -= 1
        if self._left == -1:
            with self._died.open("a", encoding="utf-8") as file:
                print(sys.orig_argv[2:4], event, arguments[-1 if event.startswith("socket") else 0], file=file)
            os.kill(os.getpid(), signal.SIGKILL)


def _writes(path: object, mode: object, flags: object) -> bool:
    """Whether a file is opened to be written that others look at."""
    if not isinstance(path, str) or not isinstance(flags, int):
        return False
    return bool(flags & (os.O_WRONLY | os.O_RDWR)) and not any(each in path for each in _NOT_SEEN)


def _make_mortal() -> None:
    file = Path(os.environ["TRANSIENT_TESTS_DIED"])
    steps = [int(each) for each in os.environ["TRANSIENT_TESTS_STEPS"].split()]
    gone = len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
    if gone < len(steps):
        sys.addaudithook(_Mortal(file, steps[gone]))


def _look_at_fork() -> None:
    """What is forked has arguments of its own in a moment, by which it is known."""
    known = False

    def heard(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal known
        if not known and _mark in " ".join(sys.argv):
            known = True
            _make_mortal()

    sys.addaudithook(heard)


if _mark := os.environ.get("TRANSIENT_TESTS_MORTAL"):
    if _mark in " ".join(sys.orig_argv):
        _make_mortal()
    elif _FORK_SERVER in sys.orig_argv:
        os.register_at_fork(after_in_child=_look_at_fork)
