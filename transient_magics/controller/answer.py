"""How the small programs of this room answer whoever started them: one line of JSON, or the reason why not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from ..errors import TransientError


def answer(work: Coroutine[Any, Any, dict[str, Any]]) -> int:
    """Print what comes of `work`, or `{"error": sentence, "kind": the error's class}`; the exit code, 0 or 1."""
    try:
        print(json.dumps(asyncio.run(work)))
    except (TransientError, OSError) as error:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))
        return 1
    return 0
