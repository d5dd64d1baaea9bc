"""Latency between regions: a process of its own holds every frame on a TAP for half a round trip.

The neighbour tables of VMs name the line's hardware address for each VM of another region, so
frames for those VMs arrive here. The line sends them on to the receiver, whose hardware address
follows from the IPv4 address in the frame. Rates are shaped at the VMs' own ends, with or without a
latency. Linux's netem would do this in the kernel, but not every kernel has it. `Line` is pure.
`DelayLine` starts the process, which is this module: `... delay_line TAP SECONDS`.
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

# VMs send to this address. It lies behind the TAP, as a VM's address lies behind its cable: a
# bridge keeps frames for the addresses of its own ports, so the port of the TAP has another one.
HARDWARE_ADDRESS = "42:02:00:00:00:02"
"""The hardware address of the line."""
_PORT_ADDRESS = "42:02:00:00:00:01"
_TAP = "far0"

# linux/if_tun.h: TUNSETIFF, and IFF_TAP | IFF_NO_PI (no header before each frame).
_TUN = "/dev/net/tun"
_SET_INTERFACE = 0x400454CA
_KIND = 0x0002 | 0x1000

_OWN = bytes.fromhex(HARDWARE_ADDRESS.replace(":", ""))
# An emulated VM's hardware address is this prefix and its IPv4 address.
_VM_PREFIX = b"\x42\x01"
_BROADCAST = b"\xff" * 6
_IPV4 = b"\x08\x00"
# 88b5 is an EtherType for local experiments: no VM takes such a frame for anything.
_ANNOUNCEMENT = _BROADCAST + _OWN + b"\x88\xb5" + bytes(46)
# The destination address of an IPv4 packet starts at this byte of its Ethernet frame.
_DESTINATION = 30
_SHORTEST = 34
_LARGEST_FRAME = 1 << 17
_MOST_BYTES = 64 * 2**20
# A bridge forgets the place of a hardware address after five minutes.
_ANNOUNCE_SECONDS = 60.0
_LOG = logging.getLogger(__name__)


class Line:
    """A queue of frames in flight, in their order of arrival. All times are seconds of one clock.

    Parameters
    ----------
    seconds
        The delay of every frame.
    most
        Bytes that may be in flight. More are lost, as in a router with a full queue.
    """

    def __init__(self, seconds: float, most: int = _MOST_BYTES) -> None:
        self._seconds = seconds
        self._most = most
        self._frames: deque[tuple[float, bytes]] = deque()
        self._bytes = 0

    def take(self, frame: bytes, now: float) -> bool:
        """Accept a frame that a VM sent. Returns whether it will be delivered."""
        onward = _onward(frame)
        if onward is None or self._bytes + len(onward) > self._most:
            return False
        self._frames.append((now + self._seconds, onward))
        self._bytes += len(onward)
        return True

    def due(self, now: float) -> bytes | None:
        """Remove and return the next frame that arrives by `now`; None if there is none."""
        if not self._frames or self._frames[0][0] > now:
            return None
        frame = self._frames.popleft()[1]
        self._bytes -= len(frame)
        return frame

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next frame arrives; None if no frame is in flight."""
        if not self._frames:
            return None
        return max(self._frames[0][0] - now, 0.0)


def _onward(frame: bytes) -> bytes | None:
    """Return the frame as its receiver gets it; None if it is not IPv4."""
    if len(frame) < _SHORTEST or frame[12:14] != _IPV4:
        return None
    # The line is the sender. With the VM's own address, the bridge would learn that the VM is where
    # the line is.
    return _VM_PREFIX + frame[_DESTINATION : _DESTINATION + 4] + _OWN + frame[12:]


def open_tap(name: str = _TAP) -> int:
    """Open a new TAP.

    Returns
    -------
    int
        Its descriptor. The TAP disappears when no process has it open.

    Raises
    ------
    OSError
        If the system has no TAPs, or one of this name.
    """
    descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _KIND))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def carry(tap: int, ended: int, line: Line) -> None:
    """Carry frames between the TAP and the line until the emulator ends.

    Parameters
    ----------
    tap
        Descriptor of the TAP.
    ended
        A descriptor that becomes readable when the emulator ends.
    line
        The queue of the frames.
    """
    next_announcement = 0.0
    while True:
        now = time.monotonic()
        while (frame := line.due(now)) is not None:
            _send(tap, frame)
            now = time.monotonic()
        if now >= next_announcement:
            # The bridge learns from this frame where the hardware address is.
            _send(tap, _ANNOUNCEMENT)
            next_announcement = now + _ANNOUNCE_SECONDS
        wait = line.wait(now)
        if wait is None:
            wait = _ANNOUNCE_SECONDS
        readable, _, _ = select.select([tap, ended], [], [], wait)
        if ended in readable:
            return
        with contextlib.suppress(BlockingIOError):
            while tap in readable:
                frame = os.read(tap, _LARGEST_FRAME)
                # The delay starts after the read. With an earlier time, a frame that came while
                # this process had no processor would arrive early.
                now = time.monotonic()
                line.take(frame, now)
                # Frames that are due go first: reading on would delay them.
                if line.wait(now) == 0.0:
                    break


def _send(tap: int, frame: bytes) -> None:
    # A full queue or a missing bridge loses the frame, as any wire may.
    with contextlib.suppress(OSError):
        os.write(tap, frame)


class DelayLine:
    """The process of the line, started and stopped as the weather requires.

    Parameters
    ----------
    bridge
        The bridge that all VMs are plugged into.
    broken
        Called when the process ends unexpectedly.
    """

    def __init__(self, bridge: str, broken: Callable[[], None]) -> None:
        self._bridge = bridge
        self._broken = broken
        self._seconds: float | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def keep(self, round_trip: float | None) -> None:
        """Delay frames by half of `round_trip` seconds; None stops the line.

        Raises
        ------
        OSError
            If the TAP or the process cannot be created.
        """
        delay = None if round_trip is None else round_trip / 2
        running = self._process is not None and self._process.returncode is None
        if delay == self._seconds and running == (delay is not None):
            return
        # The delay is an argument of the process, so another delay needs another process.
        await self.stop()
        if delay is not None:
            await self._start(delay)

    async def stop(self) -> None:
        """Stop the process. Does nothing if there is none."""
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
            netlink.plug(_TAP, self._bridge, _PORT_ADDRESS)
            # The process notices at the end of its standard input that the emulator is gone.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                __name__,
                str(tap),
                repr(seconds),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(tap,),
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(tap)
        self._seconds = seconds
        self._watch = asyncio.create_task(self._report_end(self._process))

    async def _report_end(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        _LOG.error("the line between regions ended unexpectedly (code %s) and is restarted", code)
        self._broken()


def main() -> None:
    """Carry frames until standard input ends."""
    tap = int(sys.argv[1])
    seconds = float(sys.argv[2])
    carry(tap, sys.stdin.fileno(), Line(seconds))


if __name__ == "__main__":
    main()
