"""The program of a zygote (zygote.py): `python zygote_program.py CODE MODULE ROOM`.

Its standard input is a socket.

CODE is the folder from which MODULE is imported. ROOM only makes the command line long enough for
what is forked. A request is one message: the folder of the VM's own copy of the code, the module's
arguments, the environment and the working folder, and two descriptors (standard input, and a log).
The program starts in the namespaces of the process that sent the request, which the kernel
identifies: a VM can start programs only in itself. Nothing of a VM gets into the zygote. A VM whose
code differs from what was imported is refused, and starts its own program.

The module has `import_all(arguments)`, called once; `set_command_line(module, arguments)` and
`main()`, called in each fork.
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

# linux/prctl.h.
_PR_SET_PDEATHSIG = 1
_LONGEST_REQUEST = 1 << 16
_RECEIVE_SECONDS = 5.0
_IDLE_SECONDS = 900.0
# linux/sched.h: CLONE_NEW*. The one of users is first, because it gives the right to enter the
# others.
_NAMESPACES = {
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "uts": 0x04000000,
    "mnt": 0x00020000,
}


class _Zygote:
    """The zygote. Requests arrive on `listening`; `module` is imported from the folder `code`."""

    def __init__(self, listening: socket.socket, code: Path, module: str) -> None:
        self._listening = listening
        self._code = code
        self._name = module
        self._module: Any = None
        # The content of the files of the module's package that were imported, by path below `code`.
        self._imported: dict[Path, bytes] = {}

    def serve(self) -> None:
        """Fork until there was no request for 15 minutes and no forked process is left."""
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
        # A client that sends nothing must not block all others.
        connection.settimeout(_RECEIVE_SECONDS)
        descriptors: list[int] = []
        try:
            line, descriptors, _, _ = socket.recv_fds(connection, _LONGEST_REQUEST, 2)
            request = json.loads(line)
            agent, log = descriptors
            arguments = request["arguments"]
            if self._module is None:
                self._import(arguments)
            if self._is_imported(Path(request["code"])):
                self._fork(_peer(connection), request, agent, log)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"a request fails: {error}", file=sys.stderr, flush=True)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _import(self, arguments: list[str]) -> None:
        sys.path[:1] = [os.getcwd(), str(self._code)]
        self._module = importlib.import_module(self._name)
        self._module.import_all(arguments)
        for module in self._modules():
            path = Path(module.__file__)
            self._imported[path.relative_to(self._code)] = path.read_bytes()
        # From now on the kernel reaps the children. Imports may still have waited for theirs.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def _modules(self) -> list[Any]:
        """Return the imported modules of the module's package."""
        package = self._name.partition(".")[0]
        return [module for name, module in sys.modules.items() if name.partition(".")[0] == package]

    def _is_imported(self, code: Path) -> bool:
        """Return whether the code in a folder is the code that was imported."""
        for path, content in self._imported.items():
            if (code / path).read_bytes() != content:
                return False
        return True

    def _fork(self, peer: int, request: dict[str, Any], agent: int, log: int) -> None:
        if os.fork():
            return
        # A process cannot leave the namespaces that it has entered. So this one enters them, forks,
        # and stays until its child has ended. Its child ends with it, and it ends with the zygote.
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
        """Run the module in this process, as a program of the VM."""
        code = 1
        try:
            os.setsid()
            os.dup2(agent, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            # Nothing of the zygote's may reach the VM.
            os.closerange(3, 1 << 10)
            os.environ.clear()
            os.environ.update(request["environment"])
            # The module has cached the zygote's temporary folder.
            tempfile.tempdir = None
            os.chdir(request["folder"])
            sys.path[:2] = [request["folder"], request["code"]]
            self._move_code(Path(request["code"]))
            sys.argv = [self._name, *request["arguments"]]
            self._module.set_command_line(self._name, request["arguments"])
            self._module.main()
            code = 0
        except BaseException:  # noqa: BLE001 - as Python does at the end of a program
            traceback.print_exc()
        finally:
            os._exit(code)

    def _move_code(self, code: Path) -> None:
        """Import further modules from the VM's own copy of the code, as its programs do."""
        for module in self._modules():
            if hasattr(module, "__path__"):
                module.__path__ = [str(code / module.__name__.replace(".", "/"))]


def _peer(connection: socket.socket) -> int:
    """Return the id of the process at the other end, as the kernel knows it."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return struct.unpack("3i", credentials)[0]


def _enter_namespaces(process: int) -> None:
    """Enter the namespaces of a process, except those that this one is in. Raises OSError.

    The PID namespace applies only to processes that are forked afterwards.
    """
    library = ctypes.CDLL(None, use_errno=True)
    opened: list[tuple[int, int]] = []
    # All are opened before the first is entered: their paths are not valid in another mount
    # namespace.
    for name, kind in _NAMESPACES.items():
        path = f"/proc/{process}/ns/{name}"
        if os.readlink(path) != os.readlink(f"/proc/self/ns/{name}"):
            opened.append((os.open(path, os.O_RDONLY | os.O_CLOEXEC), kind))
    for descriptor, kind in opened:
        if library.setns(descriptor, kind):
            code = ctypes.get_errno()
            raise OSError(code, f"a namespace cannot be entered: {os.strerror(code)}")
        os.close(descriptor)


def _has_children() -> bool:
    process = os.getpid()
    path = Path(f"/proc/{process}/task/{process}/children")
    return bool(path.read_text(encoding="utf-8").strip())


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def main() -> None:
    """Serve until idle, or until the emulator is gone."""
    _end_with_parent()
    listening = socket.socket(fileno=os.dup(0))
    # Processes that are forked must not have the socket as their standard input.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _Zygote(listening, Path(sys.argv[1]), sys.argv[2]).serve()


if __name__ == "__main__":
    main()
