"""The process that sleeps on a VM, and how the agent of the VM runs it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from ....files import write_atomically
from ....kinds import KINDS
from ....protocol import checks
from ....protocol.agent_commands import Begin
from ....protocol.vm_events import line_fields
from ....runtime import process_record
from ....runtime.folder import Lines
from ....runtime.metadata import watch_preemption
from ....runtime.parts import Part, Restarts
from ..events import SleepWoke
from ..spec import SleepSpec, events_file, result_file


class SleepPart(Part):
    """The process of a sleep. It ends in its own time after SIGTERM, and is not restarted here."""

    @property
    def restarts(self) -> Restarts:
        """No restarts: the controller begins another attempt."""
        return Restarts((0.0,), most=0)

    def program(self) -> tuple[str, Sequence[str]]:
        """Return this module."""
        return __name__, ()

    def gave_up(self) -> None:
        """Report the end of the attempt for the process, which could not."""
        report(self.folder, self.begin, 0.0, reason="its process ended on the VM")


PART = SleepPart


def report(folder: Path, begin: Begin, seconds: float, *, rested: bool = False, reason: str = "") -> None:
    """Write the result of the attempt, and report its end."""
    result = f"slept {seconds:.1f} s in attempt {begin.attempt}\n"
    write_atomically(folder / result_file(begin.attempt), result)
    woke = SleepWoke(sleep=begin.work, attempt=begin.attempt, seconds=seconds, rested=rested, reason=reason)
    Lines(folder / events_file(begin.attempt)).write(woke.kind, line_fields(woke))


async def sleep(seconds: float) -> bool:
    """Sleep until the time is over, SIGTERM or a preemption notice. Return whether it is over."""
    woken = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, woken.set)
    watching = asyncio.create_task(watch_preemption(woken.set))
    try:
        async with asyncio.timeout(seconds):
            await woken.wait()
    except TimeoutError:
        return True
    finally:
        watching.cancel()
    return False


def main() -> None:
    """Run the requested attempt; a second process for it ends immediately."""
    parser = argparse.ArgumentParser(description="Sleep; started by the agent.")
    parser.add_argument("--folder", type=Path, required=True)
    folder: Path = parser.parse_args().folder.absolute()
    begin = process_record.claim_requested(folder)
    if begin is None:
        return
    declaration = (folder / KINDS[begin.kind].file).read_bytes()
    spec = SleepSpec.from_dict(checks.parsed_object(declaration))
    began = time.monotonic()
    is_over = asyncio.run(sleep(spec.seconds))
    report(folder, begin, time.monotonic() - began, rested=is_over)
    process_record.mark_ended(folder, begin.attempt)


if __name__ == "__main__":
    main()
