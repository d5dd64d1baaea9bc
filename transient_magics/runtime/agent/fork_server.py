"""A process that has imported what roles need and forks one at each request: `python -m
...agent.fork_server`.

Its agent asks on its standard input, a socket, in JSON lines. It has no thread and no GPU open, for
neither would be whole in a child; where the imports have left any, it says why in its log and ends.
A child is what the plain program of its role would be: with a session, a log, a folder and a
command line of its own. Memory is shared until it is written to. The server dies with its agent,
its children do not; and it is the first that the kernel takes where memory runs out, for nothing
that runs needs it.
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
_FIRST = "1000"
_NEEDED = (
    "parameter_server.__main__",
    "parameter_server.chief.chief",
    "parameter_server.variables",
    "worker.__main__",
    "worker.session",
)
"""Modules of roles, by name alone: this room imports nothing of theirs."""


class _Server:
    """What the process does once everything is imported."""

    def __init__(self, agent: socket.socket, oom_score: str) -> None:
        self._agent = agent
        self._oom_score = oom_score
        self._children: dict[int, int] = {}
        """Their numbers, by what tells their end."""

    def serve(self) -> None:
        """Fork until the agent has gone."""
        self._say(imported=os.getpid())
        unread = b""
        while True:
            for handle in self._events():
                if handle != self._agent.fileno():
                    self._bury(handle)
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

    def _bury(self, handle: int) -> None:
        os.close(handle)
        pid = self._children.pop(handle)
        self._say(ended=pid, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _fork(self, asked: Mapping[str, Any]) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes
            print(f"cannot fork: {error}", file=sys.stderr, flush=True)
            self._say(forked=None)
            return
        if not pid:
            self._become(**asked)
        self._children[os.pidfd_open(pid)] = pid
        self._say(forked=pid)

    def _say(self, **message: Any) -> None:
        self._agent.sendall(encode(message))

    def _become(self, folder: str, log: str, arguments: list[str], **asked: Any) -> NoReturn:
        """The process of a role, unless the agent that asked has gone meanwhile; or of a program
        beside a run.
        """
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
            sys.path[0] = folder  # as of a program that is started there
            with contextlib.suppress(OSError):
                _OOM_SCORE.write_text(self._oom_score, encoding="utf-8")
            if numpy := sys.modules.get("numpy"):
                numpy.random.seed()  # Python's own is seeded anew by the fork
            if "role" in asked:
                self._play(asked["role"], ["--run-folder", folder, *arguments])
            else:
                self._agent.close()
                _run(asked["program"], arguments, asked["caller"])
            code = 0
        except SystemExit as end:
            if isinstance(end.code, int):
                code = end.code
            else:
                code = int(end.code is not None)
        except BaseException:  # noqa: BLE001 - as Python does at the end of a program
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _play(self, role: str, arguments: list[str]) -> None:
        be_called(program(role), arguments)
        given = Role()
        if _hung_up(
            self._agent
        ):  # who looked before this process said what it is would start another one
            sys.exit(DONE)
        self._agent.close()
        importlib.import_module(f"{program(role)}.__main__").play(given)


def _run(name: str, arguments: list[str], caller: int) -> None:
    """A program of `runtime/programs`, for as long as its caller lives."""
    module = f"{RUNTIME}.programs.{name}"
    be_called(module, arguments)
    try:
        handle = os.pidfd_open(caller)
    except ProcessLookupError:
        return
    threading.Thread(target=_end_with, args=(handle,), daemon=True, name="caller").start()
    importlib.import_module(module).main()


def _end_with(handle: int) -> None:
    select.select([handle], [], [])
    os._exit(1)


def _hung_up(agent: socket.socket) -> bool:
    poll = select.poll()
    poll.register(agent, 0)
    return bool(poll.poll(0))


def be_called(module: str, arguments: list[str]) -> None:
    """Have the command line of a module that is run so, as far as there is room for it in that of
    the server.
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
    """Why a child of this process might not work; empty: it will.

    NumPy's OpenBLAS has threads from its import on, and ends them before a fork; they come back as
    they are needed.
    """
    if not (child := os.fork()):
        os._exit(DONE)
    os.waitpid(child, 0)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        return f"the imports have started {threads - 1} threads"
    for handle in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if (there := os.readlink(f"/proc/self/fd/{handle}")).startswith("/dev/nvidia"):
                return f"the imports have opened {there}"
    return ""


def main() -> None:
    """Serve the agent at the other end of the standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    agent = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    for early in (
        signal.SIGUSR1,
        signal.SIGUSR2,
    ):  # a chief that is asked for something before it listens goes on
        signal.signal(early, signal.SIG_IGN)
    oom_score = _OOM_SCORE.read_text(encoding="utf-8")
    _OOM_SCORE.write_text(_FIRST, encoding="utf-8")
    try:
        import_all(sys.argv[1:])
    except _UnfitError as error:
        print(f"roles are not forked here: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the agent has gone
        _Server(agent, oom_score).serve()
    os._exit(DONE)


class _UnfitError(Exception):
    """Roles cannot be forked from this process."""


def import_all(arguments: list[str]) -> None:
    """Import what roles need, for the models that the command line names. Raises an error where a
    fork might not work.

    A zygote of the emulator calls this once, and `main` in each process that it forks, where
    everything is imported.
    """
    from ..training.loading import preload

    take_environment()
    registered = _parser().parse_args(arguments).kind == "registered"
    preload(registered)
    model = "t2t" if registered else "user_model"
    for name in (*_NEEDED, f"training.{model}.trainable"):
        importlib.import_module(f"{RUNTIME}.{name}")
    gc.collect()
    gc.freeze()  # a collection would write to all of it, and share it no more
    if why := _unfit():
        raise _UnfitError(why)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Forks roles; started by the agent.")
    parser.add_argument("--root", required=True, help="the agent's")
    parser.add_argument("--kind", choices=("registered", "own"), required=True, help="of models")
    parser.add_argument("--room", help="for the command lines of the roles")
    return parser


if __name__ == "__main__":
    main()
