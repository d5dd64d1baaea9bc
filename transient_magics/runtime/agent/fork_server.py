"""A process that has imported what roles need, and forks one at each request.

`python -m ...agent.fork_server` is started by the agent, which sends requests as JSON lines on its
standard input, a socket. It has no thread and no open GPU, because neither works in a child. If the
imports leave any, it logs why and exits.

A child is like the plain program of its role, with its own session, log, folder and command line.
Memory is shared until it is written to. The server ends with its agent, but its children do not.
When memory runs out the kernel kills the server first, because no running process needs it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ...protocol.messages import encode
from ..role import DONE, RUNTIME, Role, decode, program, take_environment

_PR_SET_PDEATHSIG = 1

_OOM_SCORE = Path("/proc/self/oom_score_adj")
_KILLED_FIRST = "1000"
_MODULES = (
    "parameter_server.__main__",
    "parameter_server.chief.chief",
    "parameter_server.variables",
    "worker.__main__",
    "worker.session",
)
"""Modules of roles, by name: this package does not import them."""


class _Server:
    """The server, once everything is imported."""

    def __init__(self, agent: socket.socket, oom_score: str) -> None:
        self._agent = agent
        self._oom_score = oom_score
        self._children: dict[int, int] = {}
        """Process ids of its children, by pidfd."""

    def serve(self) -> None:
        """Fork at each request until the agent is gone."""
        self._send(imported=os.getpid())
        unread = b""
        while True:
            for handle in self._events():
                if handle != self._agent.fileno():
                    self._reap(handle)
                    continue
                block = self._agent.recv(1 << 16)
                if not block:
                    return
                *lines, unread = (unread + block).split(b"\n")
                for line in lines:
                    self._fork(decode(line))

    def _events(self) -> list[int]:
        poll = select.poll()
        for handle in (self._agent.fileno(), *self._children):
            poll.register(handle, select.POLLIN)
        return [handle for handle, _ in poll.poll()]

    def _reap(self, handle: int) -> None:
        os.close(handle)
        pid = self._children.pop(handle)
        self._send(ended=pid, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _fork(self, request: Mapping[str, Any]) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes
            print(f"cannot fork: {error}", file=sys.stderr, flush=True)
            self._send(forked=None)
            return
        if not pid:
            self._become(**request)
        self._children[os.pidfd_open(pid)] = pid
        self._send(forked=pid)

    def _send(self, **message: Any) -> None:
        self._agent.sendall(encode(message))

    def _become(self, folder: str, log: str, arguments: list[str], **request: Any) -> NoReturn:
        """Become a role, unless the agent is gone by now, or a program beside a run."""
        code = 1
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(output, sys.stdout.fileno())
            os.dup2(output, sys.stderr.fileno())
            # A process forked from a zygote inherits block buffering: prints of the cell would
            # reach the log only when the process ends.
            assert isinstance(sys.stdout, io.TextIOWrapper)
            sys.stdout.reconfigure(line_buffering=True)
            for handle in (output, *self._children):
                os.close(handle)
            os.setsid()
            os.chdir(folder)
            sys.path[0] = folder  # as in a program that is started there
            with contextlib.suppress(OSError):
                _OOM_SCORE.write_text(self._oom_score, encoding="utf-8")
            if numpy := sys.modules.get("numpy"):
                numpy.random.seed()  # Python seeds its own generator at a fork
            if "role" in request:
                self._play(request["role"], ["--run-folder", folder, *arguments])
            else:
                self._agent.close()
                _run(request["program"], arguments, request["caller"])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 - like Python at the end of a program
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _play(self, role: str, arguments: list[str]) -> None:
        set_command_line(program(role), arguments)
        claimed = Role()
        if _is_closed(self._agent):
            # The agent may not have seen the claim, and start another process of this role.
            sys.exit(DONE)
        self._agent.close()
        importlib.import_module(f"{program(role)}.__main__").play(claimed)


def _run(name: str, arguments: list[str], caller: int) -> None:
    """Run a program of `runtime/programs` while its caller lives."""
    module = f"{RUNTIME}.programs.{name}"
    set_command_line(module, arguments)
    try:
        handle = os.pidfd_open(caller)
    except ProcessLookupError:
        return
    threading.Thread(target=_end_with, args=(handle,), daemon=True, name="caller").start()
    importlib.import_module(module).main()


def _end_with(handle: int) -> None:
    select.select([handle], [], [])
    os._exit(1)


def _is_closed(agent: socket.socket) -> bool:
    poll = select.poll()
    poll.register(agent, 0)
    return bool(poll.poll(0))


def set_command_line(module: str, arguments: list[str]) -> None:
    """Set this process's command line to that of `python -m MODULE`.

    Only as many bytes are written as the server's own command line has.
    """
    sys.argv = [module, *arguments]
    words = [sys.executable, "-m", *sys.argv]
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    begin = int(fields[45])
    end = int(fields[46])
    if begin < end:
        line = b"\0".join(map(os.fsencode, words))[: end - begin - 1]
        ctypes.memmove(begin, line.ljust(end - begin, b"\0"), end - begin)


def _unfit() -> str:
    """Return why children of this process might not work; "" if they will.

    NumPy's OpenBLAS starts threads when it is imported, and ends them before a fork; so fork once
    before threads are counted.
    """
    child = os.fork()
    if not child:
        os._exit(DONE)
    os.waitpid(child, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"the imports have started {threads - 1} threads"
    for handle in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{handle}")
            if path.startswith("/dev/nvidia"):
                return f"the imports have opened {path}"
    return ""


def main() -> None:
    """Serve the agent at the other end of the standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    agent = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    # A request to a chief that has no handlers yet must not end its process.
    for early in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(early, signal.SIG_IGN)
    oom_score = _OOM_SCORE.read_text(encoding="utf-8")
    _OOM_SCORE.write_text(_KILLED_FIRST, encoding="utf-8")
    try:
        import_all(sys.argv[1:])
    except _UnfitError as error:
        print(f"roles are not forked here: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the agent is gone
        _Server(agent, oom_score).serve()
    os._exit(DONE)


class _UnfitError(Exception):
    """Roles cannot be forked from this process."""


def import_all(arguments: list[str]) -> None:
    """Import what roles need, for the kind of model on the command line.

    A zygote of the emulator calls this once, and then `main` in each process that it forks, where
    everything is already imported. Raises an error if forks might not work.
    """
    from ..training.loading import preload

    take_environment()
    registered = _parser().parse_args(arguments).kind == "registered"
    preload(registered)
    model = "t2t" if registered else "user_model"
    for name in (*_MODULES, f"training.{model}.trainable"):
        importlib.import_module(f"{RUNTIME}.{name}")
    gc.collect()
    gc.freeze()  # a collection would write to all objects, so they would not be shared any more
    if why := _unfit():
        raise _UnfitError(why)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Forks roles; started by the agent.")
    parser.add_argument("--root", required=True, help="root directory of the agent")
    parser.add_argument(
        "--kind", choices=("registered", "own"), required=True, help="kind of models"
    )
    parser.add_argument("--room", help="blanks that make room for the command lines of roles")
    return parser


if __name__ == "__main__":
    main()
