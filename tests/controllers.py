"""Controllers that the test process starts are forked from a process that has imported what they need.

These imports take most of the processor time of a short-lived cluster. A forked controller is what its program would
be: a process with its own session, environment, log, folder and command line, which outlives the test process.
Controllers that kernels and terminals start are programs, and so are those within `started_plainly`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import pytest

from transient_magics.client import commands

MODULE = "transient_magics.controller"
PROJECT = Path(__file__).parents[1]
_LONGEST = 1 << 16
_ROOM = 256
"""Bytes that a forked controller has for its own command line."""
_PR_SET_PDEATHSIG = 1


class Forked:
    """A controller's process, with what its callers use of `subprocess.Popen`."""

    def __init__(self, pid: int, code: BinaryIO) -> None:
        """`code` is the end of a pipe on which the server writes the exit code."""
        self.pid = pid
        self.returncode: int | None = None
        self._code = code

    def poll(self) -> int | None:
        """Return the exit code of a process that has ended, else None."""
        if self.returncode is None and select.select([self._code], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._code], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(MODULE, timeout or 0.0)
            with self._code:
                self.returncode = int(self._code.read(16) or b"-9")
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process."""
        self.send_signal(signal.SIGKILL)


class Controllers:
    """The server that forks controllers. It starts with the first one and stops at `end`."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._read_at_start = read_at_start()

    def popen(self, command: Sequence[str], *, stdout: IO[bytes], **how: Any) -> Forked | subprocess.Popen[bytes]:
        """Fork a controller, and start any other command with `subprocess.Popen`.

        A controller whose loader or interpreter has other variables than this process began with is started, too.
        """
        # What a process reads only as it starts does not reach one that is forked.
        if list(command[1:3]) != ["-m", MODULE] or read_at_start() != self._read_at_start:
            return subprocess.Popen[bytes](command, stdout=stdout, **how)
        readable, writable = os.pipe()
        request = {"arguments": list(command[3:]), "environment": dict(os.environ), "folder": how["cwd"]}
        with self._lock:
            connection = self._connection()
            socket.send_fds(connection, [json.dumps(request).encode()], [stdout.fileno(), writable])
            answer = connection.recv(16)
        os.close(writable)
        if not answer:
            os.close(readable)
            raise RuntimeError("the server that forks controllers has ended")
        pid = int(answer)
        return Forked(pid, open(readable, "rb", buffering=0))

    def end(self) -> None:
        """Stop the server. Its controllers continue."""
        if self._server and self._socket:
            self._socket.close()
            self._server.wait()

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                program = [sys.executable, "-m", __name__, " " * _ROOM]
                self._server = subprocess.Popen(program, stdin=theirs.fileno(), cwd=PROJECT)
        return self._socket


class _Subprocess:
    """The module `subprocess`, except that `Popen` forks a controller."""

    def __init__(self, controllers: Controllers) -> None:
        self.Popen = controllers.popen

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


def read_at_start() -> dict[str, str]:
    """Return the variables that the loader and the interpreter read as a process starts, such as LD_PRELOAD."""
    return {name: value for name, value in os.environ.items() if name.startswith(("LD_", "PYTHON"))}


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """Fork the controllers that this process starts in this context."""
    controllers = Controllers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "subprocess", _Subprocess(controllers))
        try:
            yield
        finally:
            controllers.end()


@contextlib.contextmanager
def started_plainly() -> Iterator[None]:
    """Start controllers as programs in this context, as in use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "subprocess", subprocess)
        yield


def _import_all() -> None:
    """Import what a controller imports in its first seconds."""
    from transient_magics import kinds
    from transient_magics.cloud.calling import clients
    from transient_magics.controller import __main__, cluster
    from transient_magics.controller.remote_controller import proxy

    del __main__, cluster, proxy
    kinds.having("conduct")
    clients.preload()
    gc.collect()
    gc.freeze()  # a collection would write to all of it, and share it no more


def _serve(requests: socket.socket) -> int:
    """Fork at every request until the test process closes its end. Return the exit code, also in each fork."""
    children: dict[int, tuple[int, int]] = {}
    while True:
        poll = select.poll()
        for handle in (requests.fileno(), *children):
            poll.register(handle, select.POLLIN)
        for handle, _ in poll.poll():
            if handle in children:
                pid, output = children.pop(handle)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):  # the caller does not keep what `popen` returned
                    os.write(output, str(code).encode())
                os.close(output)
                os.close(handle)
                continue
            line, handles, _, _ = socket.recv_fds(requests, _LONGEST, 2)
            if not line:
                return 0
            log, output = handles
            pid = os.fork()
            if not pid:
                return _become(log, **json.loads(line))
            os.close(log)
            children[os.pidfd_open(pid)] = pid, output
            requests.send(str(pid).encode())


def _become(log: int, arguments: list[str], environment: dict[str, str], folder: str) -> int:
    """Run the controller and return its exit code."""
    from transient_magics.controller.__main__ import main
    from transient_magics.runtime.agent.fork_server import set_command_line

    os.setsid()
    for number in (1, 2):
        os.dup2(log, number)
    os.closerange(3, 1 << 10)
    os.chdir(folder)
    sys.path[0] = folder
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    random.seed()
    set_command_line(MODULE, arguments)
    return main(arguments)


def main() -> int:
    """Serve the process at the other end of the standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _import_all()
    return _serve(requests)


if __name__ == "__main__":
    sys.exit(main())
