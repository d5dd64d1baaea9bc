"""What every role process does at its start and end: its arguments, its environment, its exit code
on disk.

What others may want to know of the process is on disk (process_record.py).
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ..files import write_atomically
from ..protocol.agent_commands import Assignment
from ..protocol.run import RunSpec
from .folder import RunFolder
from .process_record import claim_role, exit_file

RUNTIME = __name__.rpartition(".")[0]
"""The package of everything that runs on a VM."""
_PROGRAMS = {
    "ps": "parameter_server",
    "worker": "worker",
    **dict.fromkeys(("dispatcher", "prep", "input"), "preparation"),
}

_parent: int | None = None
_held = threading.local()
"""Per thread that forks: the signals that it had blocked before (`mask`), while it forks."""

LONGEST_LINE = 1 << 20

DONE = 0
"""A role ended as it should; it is not started again."""
FAILED = 65
"""The run cannot go on and train.failed says why; it is not started again."""
STUCK = 75
"""A worker's watchdog ended it; it is started again and gets a new number."""
UNFIT = 69
"""This VM cannot do what it was rented for, as the last line of the log says; the role is not
started again here.
"""


# How the processes of a VM talk where protocol/ does not say it yet: JSON lines, tokens, and what exit codes mean.
#
# One message is one JSON object on one line. The first message on a connection to the chief carries the run's token.
# Nothing here opens a socket.


def decode(line: bytes) -> dict[str, Any]:
    """The message on a line. Raises ValueError if it is none."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message


def host_and_port(address: str) -> tuple[str, int]:
    """Split "10.128.0.2:2221"."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def token_fits(given: str, token: str) -> bool:
    """Whether this is the run's token; compared in constant time."""
    return bool(token) and hmac.compare_digest(given.encode(), token.encode())


def program(role: str) -> str:
    """The module that is the program of a role: `python -m` starts it."""
    return f"{RUNTIME}.{_PROGRAMS[role]}"


ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # A dead machine or link is noticed within four seconds instead of many minutes.
    "TF_GRPC_DEFAULT_OPTIONS": (
        "grpc.keepalive_time_ms=2000,grpc.keepalive_timeout_ms=2000,grpc.keepalive_permit_without_calls=1"
    ),
    # PyArrow, which pandas imports, starts a thread for its memory otherwise; a fork server must
    # have none.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTHONUNBUFFERED": "1",
    # The order of a set of strings, and what follows from it (names of layers), is the same in all
    # processes of a run.
    "PYTHONHASHSEED": "0",
}


_KEEP_ALIVE = "grpc.keepalive_permit_without_calls=1"


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a role process: the agent's, TensorFlow's settings, and compiled modules
    kept.

    Without its bytecode on disk TensorFlow takes 13 s to import instead of 3, at every start of
    every worker.
    """
    return {
        **{key: value for key, value in given.items() if key != "PYTHONDONTWRITEBYTECODE"},
        **ENVIRONMENT,
    }


def take_environment() -> None:
    """Have TensorFlow's settings of role processes in this one, but for those that its user has
    set.
    """
    os.environ.update({key: value for key, value in ENVIRONMENT.items() if key not in os.environ})


class Role:
    """The arguments of a role process, read once; from then on this process is the role, and no
    other can be.
    """

    def __init__(self, arguments: list[str] | None = None) -> None:
        parser = argparse.ArgumentParser(description="A role of a run; started by the agent.")
        parser.add_argument("--run-folder", type=Path, required=True)
        parser.add_argument("--assignment", required=True, help="JSON")
        parser.add_argument(
            "--asked",
            type=float,
            default=time.time(),
            help="when it was wanted, seconds since 1970",
        )
        given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
        self.asked: float = given.asked
        separate_children()  # the user's code may fork, in data pipelines above all
        self.folder = RunFolder(given.run_folder)
        self.assignment = Assignment.from_dict(json.loads(given.assignment))
        claim_role(self.folder.logs, self.assignment)
        self.spec: RunSpec = self.assignment.fit.applied(self.folder.spec())
        if (
            self.spec.stalls
        ):  # between its measures connections are idle, and a server takes so many pings amiss
            name = "TF_GRPC_DEFAULT_OPTIONS"
            os.environ[name] = os.environ.get(name, "").replace(_KEEP_ALIVE, _KEEP_ALIVE[:-1] + "0")
        # A VM that shuts down sends it along with SIGTERM to whatever an SSH session has left, and
        # would kill us so.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def end(self, code: int) -> NoReturn:
        """Leave the code on disk and end at once; TensorFlow's servers might wait for dead peers."""
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            write_atomically(exit_file(self.folder.logs, self.assignment.name), str(code))
        finally:
            os._exit(code)


def log(text: str) -> None:
    """A line in the role's log."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


# How long the parts of a start take.


class Stopwatch:
    """Names and seconds of the parts of a start, in order."""

    def __init__(self, started: float, goal: str = "first gradient") -> None:
        self._started = self._last = started
        self._goal = goal
        self.parts: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Everything since the last lap was `name`."""
        now = time.time()
        self.parts[name] = self.parts.get(name, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts.items())
        return f"{self._goal} after {self._last - self._started:.1f} s: {parts}"


# What processes that fork from ours inherit of our signals: nothing.
#
# asyncio hears of signals through a file descriptor that a fork shares (python/cpython #94454). The SIGTERM with
# which `multiprocessing.Pool` ends its processes would arrive in the event loop of their parent, and not end them.


def separate_children() -> None:
    """From now on, processes that fork from this one have Python's own signal handlers, and no
    wakeup descriptor.

    This is so for children alone: what they set themselves, their own children inherit as usual.
    """
    global _parent
    if _parent is None:
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_reset)
    _parent = os.getpid()


def _hold() -> None:
    # A signal that comes to a child before `_reset` would still be written to the parent's
    # descriptor.
    if os.getpid() == _parent:
        _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _release() -> None:
    mask = getattr(_held, "mask", None)
    if mask is not None:
        _held.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _reset() -> None:
    if getattr(_held, "mask", None) is None:
        return
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            if number == signal.SIGINT:
                usual = signal.default_int_handler
            else:
                usual = signal.SIG_DFL
            signal.signal(number, usual)
    _release()
