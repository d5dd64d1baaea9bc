"""The common part of the processes of runs: start, environment, exit codes, messages and log.

Their records on disk are in process_record.py.
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
from .phases import Phases
from .process_record import claim_role, exit_file

RUNTIME = __name__.rpartition(".")[0]
"""Package of everything that runs on a VM."""
_PROGRAMS = {
    "ps": "parameter_server",
    "worker": "worker",
    **dict.fromkeys(("dispatcher", "prep", "input"), "preparation"),
}

DONE = 0
"""Exit code: the role ended as it should, and is not restarted."""
FAILED = 65
"""Exit code: the run cannot continue and train.failed says why; the role is not restarted."""
STUCK = 75
"""Exit code: a worker's watchdog ended it; it is restarted, and gets a new number."""
AGAIN = 76
"""Exit code: a phase of the run has ended; the role starts immediately for the next phase."""
UNFIT = 69
"""Exit code: this VM cannot do its part, as the log's last line says; it is not restarted here."""

ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # A dead machine or link is noticed within four seconds instead of many minutes.
    "TF_GRPC_DEFAULT_OPTIONS": (
        "grpc.keepalive_time_ms=2000,grpc.keepalive_timeout_ms=2000,"
        "grpc.keepalive_permit_without_calls=1"
    ),
    # PyArrow, which pandas imports, starts a thread for its memory otherwise; a fork server must
    # have none.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTHONUNBUFFERED": "1",
    # The order of a set of strings, and what follows from it (names of layers), is the same in all
    # processes of a run.
    "PYTHONHASHSEED": "0",
}
"""Variables of all processes of runs."""
_KEEP_ALIVE = "grpc.keepalive_permit_without_calls=1"

LONGEST_LINE = 1 << 20
"""Most bytes of a message, which is one JSON object on one line."""


def decode(line: bytes) -> dict[str, Any]:
    """Return the message on a line. Raises ValueError if it is not a JSON object."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("the message is not a JSON object")
    return message


def host_and_port(address: str) -> tuple[str, int]:
    """Split "10.128.0.2:2221"."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def token_fits(given: str, token: str) -> bool:
    """Return whether `given` is the run's token, in constant time."""
    return bool(token) and hmac.compare_digest(given.encode(), token.encode())


def program(role: str) -> str:
    """Return the module of a role's program, for `python -m`."""
    return f"{RUNTIME}.{_PROGRAMS[role]}"


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a role's process: `given`, with TensorFlow's settings.

    Bytecode is always written to disk. Without it TensorFlow takes 13 s to import instead of 3, at
    every start of every worker.
    """
    kept = {key: value for key, value in given.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **ENVIRONMENT}


def take_environment() -> None:
    """Use TensorFlow's settings of roles in this process, except those that its user has set."""
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)


class Role:
    """The arguments of this process, which claims its role as they are read.

    Raises TrainingError if another process has the role, or it is not requested any more.
    """

    def __init__(self, arguments: list[str] | None = None) -> None:
        parser = argparse.ArgumentParser(description="A role of a run; started by the agent.")
        parser.add_argument("--run-folder", type=Path, required=True)
        parser.add_argument("--assignment", required=True, help="JSON")
        parser.add_argument(
            "--requested",
            type=float,
            default=time.time(),
            help="when it was requested, in seconds since 1970",
        )
        given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
        self.requested_at: float = given.requested
        separate_children()  # the user's code may fork, for example in data pipelines
        self.folder = RunFolder(given.run_folder)
        self.assignment = Assignment.from_dict(json.loads(given.assignment))
        claim_role(self.folder.logs, self.assignment)
        self.spec: RunSpec = self.read_spec()
        if self.spec.stalls:
            # Connections are idle between measures, and servers refuse too many pings then.
            name = "TF_GRPC_DEFAULT_OPTIONS"
            os.environ[name] = os.environ.get(name, "").replace(_KEEP_ALIVE, _KEEP_ALIVE[:-1] + "0")
        # A VM that shuts down sends SIGHUP with SIGTERM to processes that SSH sessions have left.
        # It would kill this process, which trains on until shortly before the end.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def read_spec(self) -> RunSpec:
        """Return the declaration of the run, completed with the present phase of its training."""
        self.spec = Phases(self.folder).completed(self.assignment.fit)
        self.folder = self.folder.of_phase(self.spec.phase_begin)
        return self.spec

    def end(self, code: int) -> NoReturn:
        """Write the exit code to disk, and exit without waiting for TensorFlow's servers.

        These might wait for peers that are gone.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            write_atomically(exit_file(self.folder.logs, self.assignment.name), str(code))
        finally:
            os._exit(code)


def log(text: str) -> None:
    """Write a line to the role's log."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


class Stopwatch:
    """The parts of a start, with their seconds, in order."""

    def __init__(self, started: float, goal: str = "first gradient") -> None:
        self._started = self._last = started
        self._goal = goal
        self.parts: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Add the time since the last lap to the part `name`."""
        now = time.time()
        self.parts[name] = self.parts.get(name, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts.items())
        return f"{self._goal} after {self._last - self._started:.1f} s: {parts}"


_parent: int | None = None
_blocked = threading.local()
"""The signals that a thread had blocked before (`mask`), while it forks."""


def separate_children() -> None:
    """Give processes that this one forks Python's own signal handlers, and no wakeup descriptor.

    asyncio receives signals through a file descriptor that a fork shares (python/cpython #94454).
    The SIGTERM with which `multiprocessing.Pool` ends its processes would arrive in the event loop
    of their parent, and not end them. Only children of this process are separated: handlers that
    they set themselves are inherited by their own children as usual.
    """
    global _parent
    if _parent is None:
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_reset)
    _parent = os.getpid()


def _block() -> None:
    # A signal that reaches a child before `_reset` would be written to its parent's descriptor.
    if os.getpid() == _parent:
        _blocked.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _unblock() -> None:
    mask = getattr(_blocked, "mask", None)
    if mask is not None:
        _blocked.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _reset() -> None:
    if getattr(_blocked, "mask", None) is None:
        return
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
    _unblock()
