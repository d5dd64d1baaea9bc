"""Programs that send Google, or the emulator, one question: `python -m ...programs.NAME`.

The client starts each in a process of its own, so that no kernel loads Google's client libraries.
They print one line of JSON (`print_answer`). `bake` and `measure` run in the background and write
a journal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from ...errors import TransientError, to_message


def print_answer(work: Coroutine[Any, Any, dict[str, Any]]) -> int:
    """Run `work` and print its result, or its error, as one line of JSON.

    Returns the exit code: 0, or 1 after an error.
    """
    try:
        print(json.dumps(asyncio.run(work)))
    except (TransientError, OSError) as error:
        print(json.dumps(to_message(error)))
        return 1
    return 0
