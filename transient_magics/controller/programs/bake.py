"""`python -m ...programs.bake NAME`: bake the image that `builds/NAME/spec.json` declares.

Started detached, so that it outlives the notebook; what it does is in `journal.jsonl` beside the
declaration. Asked to end (SIGTERM), it deletes its VM first. Ends at once where another is at it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ... import places
from ...errors import JournalError, TransientError
from ...journal import Journal, events
from ...journal.lock import take
from ...protocol import layout
from ...spec import ImageSpec
from ..vms.access import to_project
from .baking import Baking

log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Exit code 0: the image is there, or somebody else is at it; 1: it failed, and the journal
    says why.
    """
    directory = places.build(arguments[0])
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if take(directory) is None:
        return 0
    return asyncio.run(_bake(directory))


async def _bake(directory: Path) -> int:
    spec = ImageSpec.from_dict(json.loads((directory / layout.SPEC).read_text(encoding="utf-8")))
    with Journal(directory / layout.JOURNAL) as journal:

        def say(what: str) -> None:
            log.info("%s", what)
            try:
                journal.append(events.ImageStep(what=what))
            except JournalError as error:  # a full disk must not keep a VM from being deleted
                log.error("%s", error)

        task = asyncio.ensure_future(_run(spec, say))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            image = await task
        except asyncio.CancelledError:
            journal.append(events.ImageFailed(reason="it was asked to end"))
            return 1
        except TransientError as error:
            log.warning("%s", error)
            journal.append(events.ImageFailed(reason=str(error)))
            return 1
        journal.append(
            events.ImageBuilt(
                image=spec.name, seconds=time.time() - spec.declared_at, image_id=image
            )
        )
    return 0


async def _run(spec: ImageSpec, say: Callable[[str], None]) -> str:
    async with to_project(spec.project) as access:
        await access.reopen()
        return await Baking(spec, access.engine, say).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
