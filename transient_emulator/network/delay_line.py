"""What is under way between regions: every frame is held for half a round trip, by a process of its own on a TAP.

The neighbour tables of VMs name the line's hardware address for each VM of another region, so that what is for those
comes here. It goes on to its receiver, whose hardware address follows from the IPv4 address in it. Rates are shaped
where they are without a latency, at the VMs' own ends. (Linux's netem would do this in the kernel, and is not in every
kernel.) `Line` is pure; `keep` has the process run, and the process is this module: `... delay_line TAP SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Callable

from . import netlink

HARDWARE_ADDRESS = "42:02:00:00:00:02"
"""That VMs send to. It is behind the TAP, as a VM's is behind its cable: a bridge keeps for itself what is for one of
its ports."""
_OF_THE_PORT = "42:02:00:00:00:01"
_TAP = "far0"
_TUN, _SET_INTERFACE, _KIND = "/dev/net/tun", 0x400454CA, 0x0002 | 0x1000  # a TAP, without a header before each frame
_OWN = bytes.fromhex(HARDWARE_ADDRESS.replace(":", ""))
_OF_A_VM = b"\x42\x01"  # an emulated VM's hardware address is this and its IPv4 address
_IPV4, _AT_ADDRESS, _SHORTEST = b"\x08\x00", 30, 34
_LARGEST_FRAME = 1 << 17
_MOST_BYTES = 64 * 2**20
_LEARN_SECONDS = 60.0  # a bridge forgets within five minutes where a hardware address is
_LOG = logging.getLogger(__name__)


class Line:
    """Frames under way, in the order in which they came; all take `seconds`.

    What is more than `most` bytes at a time is lost, as in a router. Times in seconds of one clock.
    """

    def __init__(self, seconds: float, most: int = _MOST_BYTES) -> None:
        self._seconds, self._most = seconds, most
        self._frames: deque[tuple[float, bytes]] = deque()
        self._bytes = 0

    def take(self, frame: bytes, now: float) -> bool:
        """A frame that VMs sent; whether it goes on."""
        onward = _onward(frame)
        if onward is None or self._bytes + len(onward) > self._most:
            return False
        self._frames.append((now + self._seconds, onward))
        self._bytes += len(onward)
        return True

    def due(self, now: float) -> bytes | None:
        """The next frame that arrives by now."""
        if not self._frames or self._frames[0][0] > now:
            return None
        frame = self._frames.popleft()[1]
        self._bytes -= len(frame)
        return frame

    def wait(self, now: float) -> float | None:
        """Seconds until the next frame arrives; None while none is under way."""
        return max(self._frames[0][0] - now, 0.0) if self._frames else None


def _onward(frame: bytes) -> bytes | None:
    """The frame as its receiver gets it; None for what is no IPv4."""
    if len(frame) < _SHORTEST or frame[12:14] != _IPV4:
        return None
    return _OF_A_VM + frame[_AT_ADDRESS : _AT_ADDRESS + 4] + _OWN + frame[12:]


def open_tap(name: str = _TAP) -> int:
    """A descriptor of a new TAP, which is gone when nobody has it open. Raises OSError."""
    descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _KIND))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def carry(tap: int, ended: int, line: Line) -> None:
    """Have frames go from and to the TAP, until the descriptor `ended` says that the emulator is gone."""
    learn = 0.0
    while True:
        now = time.monotonic()
        while (frame := line.due(now)) is not None:
            _send(tap, frame)
            now = time.monotonic()
        if now >= learn:  # from this frame the bridge learns where the hardware address is
            _send(tap, b"\xff" * 6 + _OWN + b"\x88\xb5" + bytes(46))
            learn = now + _LEARN_SECONDS
        wait = line.wait(now)
        readable, _, _ = select.select([tap, ended], [], [], _LEARN_SECONDS if wait is None else wait)
        if ended in readable:
            return
        with contextlib.suppress(BlockingIOError):
            while tap in readable:
                frame = os.read(tap, _LARGEST_FRAME)
                # The time after the read. By an earlier one, a frame that came while the machine gave this process no
                # time would go on early.
                now = time.monotonic()
                line.take(frame, now)
                if line.wait(now) == 0.0:  # the next frame is due
                    break


def _send(tap: int, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # a full queue, or no bridge: lost, as on any wire
        os.write(tap, frame)


class DelayLine:
    """Keeps the process as it is wanted. `broken` is called where it ends by itself."""

    def __init__(self, bridge: str, broken: Callable[[], None]) -> None:
        self._bridge, self._broken = bridge, broken
        self._seconds: float | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def keep(self, round_trip: float | None) -> None:
        """Have frames take half of `round_trip` seconds; None: no line. Raises OSError."""
        wanted = None if round_trip is None else round_trip / 2
        running = self._process is not None and self._process.returncode is None
        if wanted == self._seconds and running == (wanted is not None):
            return
        await self.stop()
        if wanted is not None:
            await self._start(wanted)

    async def stop(self) -> None:
        """End it."""
        self._seconds = None
        if self._watch:
            self._watch.cancel()
            self._watch = None
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._process = None

    async def _start(self, seconds: float) -> None:
        tap = open_tap()
        try:
            netlink.plug(_TAP, self._bridge, _OF_THE_PORT)
            command = [sys.executable, "-m", __name__, str(tap), repr(seconds)]
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, pass_fds=(tap,), cwd="/", start_new_session=True
            )
        finally:
            os.close(tap)
        self._seconds = seconds
        self._watch = asyncio.create_task(self._watched(self._process))

    async def _watched(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        _LOG.error("the line between regions ended by itself (code %s), and is started again", code)
        self._broken()


def main() -> None:
    """Carry frames until standard input ends."""
    tap, seconds = int(sys.argv[1]), float(sys.argv[2])
    carry(tap, sys.stdin.fileno(), Line(seconds))


if __name__ == "__main__":
    main()
