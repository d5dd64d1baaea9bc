"""Programs that answer one question in a process of their own, because of what they import.

Those of the controller may import Google's client and those of the runtime TensorFlow; this process
not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import errors
from ..errors import CloudError, TrainingError, TransientError
from ..runtime.role import environment


def ask(
    name: str, what: str, *arguments: str, stdin: str = "", timeout: float = 300.0
) -> dict[str, Any]:
    """The answer of `transient_magics.controller.programs.NAME`, within `timeout` seconds.

    CloudError with its reason, or that `what` failed.
    """
    return _answer(
        f"controller.programs.{name}", what, arguments, CloudError, stdin=stdin, timeout=timeout
    )


def fetch(store: str, project: str | None, folder: Path, *, results: bool) -> None:
    """Bring checkpoints, and `results` if wanted, from a run's place in a bucket into `folder`.
    Raises CloudError.
    """
    request = {
        "store": store,
        "project": project,
        "folder": str(folder.absolute()),
        "results": results,
    }
    ask("fetch", "Fetching", stdin=json.dumps(request), timeout=6 * 3600.0)


_TAKE_AWAY = "run.fetch(FOLDER) takes what it needs to a machine that has it."


def ask_model(
    what: str,
    *arguments: str,
    program: str = "serve",
    otherwise: str = _TAKE_AWAY,
    timeout: float = 3600.0,
) -> dict[str, Any]:
    """The answer of a `program` of `transient_magics.runtime.programs`, which needs the training
    stack on this machine.

    TrainingError or CellError with its reason, or that `what` failed; where the stack is not here,
    with what to do `otherwise`.
    """
    from importlib.util import find_spec

    if missing := [name for name in ("tensorflow", "tensor2tensor") if find_spec(name) is None]:
        raise TrainingError(
            f"{what} needs the training stack, and {missing[0]} is not installed on this machine",
            fix=f"`make venv` brings it; {otherwise}",
        )
    own = environment(os.environ)
    return _answer(
        f"runtime.programs.{program}",
        what,
        arguments,
        TrainingError,
        timeout=timeout,
        environment=own,
    )


def _answer(
    module: str,
    what: str,
    arguments: tuple[str, ...],
    failure: type[TransientError],
    *,
    stdin: str = "",
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    command = [sys.executable, "-m", f"transient_magics.{module}", *arguments]
    try:
        ended = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
            cwd="/",
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise failure(f"{what} did not end within {timeout:.0f} s") from None
    try:
        answer = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = ended.stderr.strip().splitlines()
        raise failure(f"{what} failed: {said[-1] if said else 'no answer'}") from None
    if "error" in answer:
        raise errors.heard(answer, failure)
    return answer
