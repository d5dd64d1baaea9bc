"""Programs of the controller's that answer one question: they may import Google's client, this process not."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from ..errors import CloudError


def ask(name: str, what: str, *arguments: str, stdin: str = "", timeout: float = 300.0) -> dict[str, Any]:
    """The answer of `transient_magics.controller.NAME`, within `timeout` seconds.

    CloudError with its reason, or that `what` failed.
    """
    command = [sys.executable, "-m", f"transient_magics.controller.{name}", *arguments]
    whole: dict[str, Any] = {"input": stdin, "capture_output": True, "text": True, "timeout": timeout, "cwd": "/"}
    try:
        ended = subprocess.run(command, **whole, check=False)
    except subprocess.TimeoutExpired:
        raise CloudError(f"{what} did not end within {timeout:.0f} s") from None
    try:
        answer = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = ended.stderr.strip().splitlines()
        raise CloudError(f"{what} failed: {said[-1] if said else 'no answer'}") from None
    if "error" in answer:
        raise CloudError(str(answer["error"]))
    return answer
