"""The program of a zygote (zygote.py): `python zygote_program.py CODE MODULE ROOM`, its standard input a socket.

CODE is the folder from which MODULE is imported, ROOM only makes the command line long enough for what is forked. A
request is one message: the folder of the VM's own copy of the code, the module's arguments, the environment and the
working folder, and two descriptors (standard input, and a log). The program begins in the namespaces of the process
that sent the request, which the kernel names: a VM can start programs in itself alone. Nothing of a VM comes into the
zygote. A VM whose code is not what has been imported is refused, and starts its own program.

The module has `import_all(arguments)`, called once; `be_called(module, arguments)` and `main()`, called in each fork.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_LONGEST = 1 << 16
_RECEIVE_SECONDS = 5.0
_IDLE_SECONDS = 900.0
_NAMESPACES = {"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "uts": 0x04000000, "mnt": 0x00020000}
"""Kinds by name. That of users is first, because it gives the right to the others."""


class _Zygote:
    """What the process does; `listening` is where requests arrive."""

    def __init__(self, listening: socket.socket, code: Path, module: str) -> None:
        self._listening = listening
        self._code, self._name = code, module
        self._module: Any = None
        self._imported: dict[Path, bytes] = {}
        """The files that the module and what it needs of its package were imported from, below the code's folder."""

    def serve(self) -> None:
        """Fork until no request has arrived for a quarter of an hour and nothing runs that was forked."""
        self._listening.settimeout(_IDLE_SECONDS)
        while True:
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                if _has_children():
                    continue
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_RECEIVE_SECONDS)
        handles: list[int] = []
        try:
            line, handles, _, _ = socket.recv_fds(connection, _LONGEST, 2)
            request = json.loads(line)
            agent, log = handles
            arguments = request["arguments"]
            if self._module is None:
                self._import(arguments)
            if self._is_imported(Path(request["code"])):
                self._fork(_peer(connection), request, agent, log)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"a request fails: {error}", file=sys.stderr, flush=True)
        finally:
            for handle in handles:
                os.close(handle)

    def _import(self, arguments: list[str]) -> None:
        sys.path[:1] = [os.getcwd(), str(self._code)]
        self._module = importlib.import_module(self._name)
        self._module.import_all(arguments)
        for module in self._modules():
            path = Path(module.__file__)
            self._imported[path.relative_to(self._code)] = path.read_bytes()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # from now on the kernel buries the children

    def _modules(self) -> list[Any]:
        """What is imported of the module's package."""
        package = self._name.partition(".")[0]
        return [module for name, module in sys.modules.items() if name.partition(".")[0] == package]

    def _is_imported(self, code: Path) -> bool:
        return all((code / path).read_bytes() == content for path, content in self._imported.items())

    def _fork(self, peer: int, request: dict[str, Any], agent: int, log: int) -> None:
        if os.fork():
            return
        # A process cannot leave the namespaces that it has entered. So this one enters them, forks, and stays until its
        # child has ended. Its child ends with it, and it ends with the zygote.
        code = 1
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _end_with_parent()
            _enter_namespaces(peer)
            child = os.fork()
            if not child:
                self._become(request, agent, log)
            os.close(agent)
            os.close(log)
            os.waitpid(child, 0)
            code = 0
        except BaseException:  # noqa: BLE001 - as Python does at the end of a program
            traceback.print_exc()
        finally:
            os._exit(code)

    def _become(self, request: dict[str, Any], agent: int, log: int) -> NoReturn:
        code = 1
        try:
            os.setsid()
            os.dup2(agent, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.closerange(3, 1 << 10)
            os.environ.clear()
            os.environ.update(request["environment"])
            tempfile.tempdir = None
            os.chdir(request["folder"])
            sys.path[:2] = [request["folder"], request["code"]]
            self._move_code(Path(request["code"]))
            sys.argv = [self._name, *request["arguments"]]
            self._module.be_called(self._name, request["arguments"])
            self._module.main()
            code = 0
        except BaseException:  # noqa: BLE001 - as Python does at the end of a program
            traceback.print_exc()
        finally:
            os._exit(code)

    def _move_code(self, code: Path) -> None:
        """Import what is not imported yet from the VM's own copy of the code, as a program of the VM does."""
        for module in self._modules():
            if hasattr(module, "__path__"):
                module.__path__ = [str(code / module.__name__.replace(".", "/"))]


def _peer(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[0]


def _enter_namespaces(process: int) -> None:
    """Enter those namespaces of a process that are not this one's; that of processes only for what is forked then."""
    library = ctypes.CDLL(None, use_errno=True)
    entered: list[tuple[int, int]] = []
    for name, kind in _NAMESPACES.items():
        place = f"/proc/{process}/ns/{name}"
        if os.readlink(place) != os.readlink(f"/proc/self/ns/{name}"):
            entered.append((os.open(place, os.O_RDONLY | os.O_CLOEXEC), kind))
    for handle, kind in entered:
        if library.setns(handle, kind):
            code = ctypes.get_errno()
            raise OSError(code, f"a namespace cannot be entered: {os.strerror(code)}")
        os.close(handle)


def _has_children() -> bool:
    number = os.getpid()
    return bool(Path(f"/proc/{number}/task/{number}/children").read_text(encoding="utf-8").strip())


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def main() -> None:
    """Serve until idle, or until the emulator has gone."""
    _end_with_parent()
    listening = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _Zygote(listening, Path(sys.argv[1]), sys.argv[2]).serve()


if __name__ == "__main__":
    main()
