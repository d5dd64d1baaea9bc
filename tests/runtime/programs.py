"""Small programs with TensorFlow, each in a process of its own that is forked from one which has it imported.

TensorFlow never comes into the process of the tests, and to import it takes longer than most such programs do. What a
program is forked from has imported, and done nothing else: no graph, no session, no server. Programs that look at how
something is imported, or need a network of their own, are started in another way. `run` and `serve` are for the
tests; the rest is `python -m tests.runtime.programs tensor2tensor|tensorflow`, one of each for all processes of a test
session (`tests/zygotes.py`), which starts at the first request. Its standard input is the socket of the requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PROJECT = Path(__file__).parents[2]
KINDS = ("tensor2tensor", "tensorflow")
FOLDER = "TRANSIENT_TESTS_PROGRAMS"
"""The folder with the sockets of both kinds, in the environment."""
PATIENCE = 600
_LONGEST = 1 << 20


def run(program: str, *arguments: object, own: bool = False, code: int = 0) -> str:
    """What a program prints: Python code, or the name of a module. The test fails where it ends with another `code`.

    `own`: of a model that is none of Tensor2Tensor's, or none at all; Tensor2Tensor's bridges are not crossed then.
    """
    ended = _ended(program, arguments, own, os.environ)
    assert ended.returncode == code, f"ended with {ended.returncode}: {ended.stderr[-3000:]}"
    return ended.stdout


def serve(command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
    """What subprocess.run would give of a program that uses the trained model of a run (`serve --run FOLDER ...`)."""
    _, _, program, *arguments = command
    folder = Path(arguments[arguments.index("--run") + 1])
    own = not json.loads((folder / "run.json").read_text(encoding="utf-8")).get("model")
    return _ended(program, arguments, own, how.get("env") or os.environ)


def _ended(
    program: str, arguments: Sequence[object], own: bool, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    kind = "tensorflow" if own else "tensor2tensor"
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        files = [str(Path(folder) / name) for name in ("out", "err")]
        request = {
            "program": program,
            "arguments": [str(argument) for argument in arguments],
            "files": files,
            "environment": dict(environment),
        }
        server.connect(f"{os.environ[FOLDER]}/{kind}.sock")
        server.sendall(json.dumps(request).encode())
        code = int(server.recv(16))
        output, errors = (Path(name).read_text(errors="replace", encoding="utf-8") for name in files)
    return subprocess.CompletedProcess([program, *map(str, arguments)], code, output, errors)


def main() -> None:
    """Fork for every request, and answer with the exit code."""
    from transient_magics.runtime.training.loading import preload

    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    preload(registered=sys.argv[1] == "tensor2tensor")
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        poll = select.poll()
        for handle in (requests.fileno(), *children):
            poll.register(handle, select.POLLIN)
        for handle, _ in poll.poll():
            if handle in children:
                pid, caller = children.pop(handle)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(handle)
                with caller, contextlib.suppress(BrokenPipeError):  # the process of the tests was killed
                    caller.send(str(code).encode())
                continue
            caller, _ = requests.accept()
            request = json.loads(caller.recv(_LONGEST))
            pid = os.fork()
            if not pid:
                _become(**request)
            children[os.pidfd_open(pid)] = pid, caller


def _become(program: str, arguments: list[str], files: list[str], environment: dict[str, str]) -> NoReturn:
    """The program, as Python would have started it."""
    code = 1
    try:
        signal.alarm(PATIENCE)
        os.closerange(3, 1 << 10)
        for number, name in enumerate(files, 1):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        os.environ.update(environment)
        random.seed()
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()
        module = all(part.isidentifier() for part in program.split("."))
        sys.argv = [program if module else "-c", *arguments]
        if module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python does at the end of a program
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
