"""Programs of the controller's that answer one question: they may import Google's client, this process not."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from ..errors import CloudError


def ask(name: str, what: str, *arguments: str, stdin: str = "") -> dict[str, Any]:
    """The answer of `transient_magics.controller.NAME`. CloudError with its reason, or that `what` failed."""
    command = [sys.executable, "-m", f"transient_magics.controller.{name}", *arguments]
    ended = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, cwd="/", check=False)
    try:
        answer = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = ended.stderr.strip().splitlines()
        raise CloudError(f"{what} failed: {said[-1] if said else 'no answer'}") from None
    if "error" in answer:
        raise CloudError(str(answer["error"]))
    return answer
