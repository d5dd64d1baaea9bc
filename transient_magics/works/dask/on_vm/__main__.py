"""Run the requested part of a Dask cluster.

`python -m transient_magics.works.dask.on_vm --folder DIRECTORY [--crashed JSON]`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from ....errors import TransientError
from ....runtime import process_record
from . import record
from .task import DaskTask


def main() -> None:
    """Run the part until it is over; a second process for it ends immediately."""
    parser = argparse.ArgumentParser(description="A part of a Dask cluster; started by the agent.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--crashed", default="[]", help="how earlier workers on this VM ended")
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    begin = process_record.claim_requested(folder)
    if begin is None:
        return
    task = DaskTask.from_dict(begin.task)
    from . import scheduler, worker

    try:
        if task.part == "scheduler":
            asyncio.run(scheduler.serve(folder, task))
        elif not asyncio.run(worker.work(folder, task, json.loads(given.crashed))):
            # If the agent sent SIGTERM, it ignores the exit code. Otherwise a task did: a crash.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
    except TransientError as error:
        sys.exit(str(error))  # the agent reports the last line of its output
    record.write_end(folder, os.getpid())


if __name__ == "__main__":
    main()
