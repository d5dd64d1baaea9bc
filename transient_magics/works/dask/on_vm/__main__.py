"""`python -m transient_magics.works.dask.on_vm --folder DIRECTORY [--crashed JSON]`: be the part that is wanted there."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from ....errors import TransientError
from . import record


def main() -> None:
    """Be that part until it is over; a second process that would ends at once."""
    parser = argparse.ArgumentParser(description="A part of a Dask cluster; started by the agent.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--crashed", default="[]", help="what became of the workers here before this one")
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    begin = record.wanted(folder)
    if begin is None or not record.claim(folder):
        return
    from . import scheduler, worker

    try:
        if begin.part == "scheduler":
            asyncio.run(scheduler.serve(folder, begin))
        elif not asyncio.run(worker.work(folder, begin, json.loads(given.crashed))):
            # Where the agent sent it, nothing asks for the code. Otherwise a task did, and that is its fault.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
    except TransientError as error:
        sys.exit(str(error))  # the last that it says is what its agent tells
    record.tell_end(folder, os.getpid())


if __name__ == "__main__":
    main()
