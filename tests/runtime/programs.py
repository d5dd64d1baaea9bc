"""Small programs with TensorFlow, each in a process of its own that is forked from one which has it imported.

TensorFlow never comes into the process of the tests, and to import it takes longer than most such programs do. What a
program is forked from has imported, and done nothing else: no graph, no session, no server. Programs that look at how
something is imported, or need a network of their own, are started in another way. `run` and `serve` are for the
tests; the rest is `python -m tests.runtime.programs tensor2tensor|tensorflow`, one of each per process of the tests,
as it is asked for.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PROJECT = Path(__file__).parents[2]
PATIENCE = 600


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
    server = _server("tensorflow" if own else "tensor2tensor")
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("out", "err")]
        asked = {"program": program, "arguments": [str(each) for each in arguments], "files": files}
        server.stdin.write(json.dumps({**asked, "environment": dict(environment)}) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        output, errors = (Path(name).read_text(errors="replace", encoding="utf-8") for name in files)
    return subprocess.CompletedProcess([program, *map(str, arguments)], code, output, errors)


_servers: dict[str, subprocess.Popen[str]] = {}


def _server(kind: str) -> subprocess.Popen[str]:
    """It ends when its input does."""
    if kind not in _servers:
        command = [sys.executable, "-m", "tests.runtime.programs", kind]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        _servers[kind] = subprocess.Popen(command, text=True, cwd=PROJECT, **pipes)
    return _servers[kind]


def end() -> None:
    """End what programs were forked from."""
    for server in _servers.values():
        server.communicate()
    _servers.clear()


def main() -> None:
    """Fork for every line of the input, and answer with the exit code."""
    from transient_magics.runtime.training.define import preload

    preload(registered=sys.argv[1] == "tensor2tensor")
    for line in sys.stdin:
        if not (child := os.fork()):
            _become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(program: str, arguments: list[str], files: list[str], environment: dict[str, str]) -> NoReturn:
    """The program, as Python would have started it."""
    code = 1
    try:
        signal.alarm(PATIENCE)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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
