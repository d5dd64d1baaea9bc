"""Run a bag's scheduler and driver.

Usage: `python -m transient_magics.works.bags.driver --folder DIRECTORY`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from ....runtime import process_record
from ...dask.on_vm import record
from ...dask.on_vm.task import DaskTask


def main() -> None:
    """Run both until the bag is over; a second process for it ends immediately."""
    parser = argparse.ArgumentParser(
        description="The driver of a bag of jobs; started by the agent."
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--crashed", default="[]", help="of workers; a driver has none")
    folder: Path = parser.parse_args().folder.absolute()
    begin = process_record.claim_requested(folder)
    if begin is None:
        return
    from . import driver

    asyncio.run(driver.serve(folder, DaskTask.from_dict(begin.task)))
    record.write_end(folder, os.getpid())


if __name__ == "__main__":
    main()
