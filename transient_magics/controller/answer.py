"""How the small programs of this room answer: one line of JSON, or the reason why not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from ..errors import TransientError, told


def answer(work: Coroutine[Any, Any, dict[str, Any]]) -> int:
    """Print what comes of `work`, or the error's parts and class; the exit code, 0 or 1."""
    try:
        print(json.dumps(asyncio.run(work)))
    except (TransientError, OSError) as error:
        print(json.dumps(told(error)))
        return 1
    return 0
