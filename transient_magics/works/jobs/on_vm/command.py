"""What a command says, in a file that has a bound: the first of it as it comes, the last of it at
the end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ....runtime.process_record import find_marked

MOST_BYTES = 8 * 2**20
LAST_BYTES = 64 * 2**10
_LONGEST_LINE = 32 * 2**10

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NICE = 5
_OOM_SCORE = "500"


# The processes of a job's command: all that it has started, also what has left its group or its session.


def adopt_orphans() -> None:
    """What a child of this process leaves behind becomes a child of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def in_child() -> Callable[[], None]:
    """What a command's process does before it becomes the command: it ends with this process, gives
    way to what looks after the VM, and is the first that the kernel takes where memory runs out.
    """
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.nice(_NICE)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write(_OOM_SCORE)

    return prepare


class Family:
    """All processes of the job in `folder`, whose command this process has started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def members(self) -> list[int]:
        """Their numbers: those that bear the job's mark, and all descendants of this process."""
        parents = _parents()
        ours = os.getpid()
        found = set(find_marked(self._folder))
        grew = True
        while grew:
            more = {
                pid for pid, parent in parents.items() if parent == ours or parent in found
            } - found
            found |= more
            grew = bool(more)
        return sorted(found - {ours})

    def tell(self, number: signal.Signals) -> None:
        """Send them a signal, each one once."""
        for pid in self.members():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill all, until there are none, and wait for the orphans among them."""
        for _ in range(20):
            if not self.members():
                break
            self.tell(signal.SIGKILL)
            time.sleep(0.02)
        self.reap()

    def reap(self) -> None:
        """Wait for orphans that have ended. The command itself is waited for by who started it."""
        for pid in _ended_children():
            if pid != self.command:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    command = 0
    """The number of the command's own process."""

    def memory(self, most: int) -> int:
        """The bytes that they have in memory, what several share counted once where it might be
        more than `most`.
        """
        members = self.members()
        page = os.sysconf("SC_PAGE_SIZE")
        resident = 0
        for pid in members:
            with suppress(OSError, ValueError, IndexError):
                resident += (
                    int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * page
                )
        if resident <= most:
            return resident
        return sum(map(_proportional, members))


def machine_memory() -> tuple[int, int]:
    """Bytes that this machine has, and that a process could still have."""
    known = dict(
        line.split(":", 1)
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    )
    total, free = (int(known[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total, free


def _proportional(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def _parents() -> dict[int, int]:
    """The parent of each process that has not ended."""
    return {pid: parent for pid, parent, state in _processes() if state not in "ZX"}


def _ended_children() -> list[int]:
    return [pid for pid, parent, state in _processes() if state == "Z" and parent == os.getpid()]


def _processes() -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                fields = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                found.append((int(path.name), int(fields[1]), fields[0]))
    return found


class Output:
    """The file of one attempt. What is beyond `most` bytes is left out, but for the last ones,
    which `close` writes.

    A carriage return counts as the end of a line, and a line that is too long is cut into several.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES, last: int = LAST_BYTES) -> None:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        self._left = most - os.fstat(self._handle).st_size
        self._most_last = last
        self._last = b""
        self._open = 0
        self._left_out = 0
        self.failed = ""

    def write(self, block: bytes) -> None:
        """Take what was said. What a full disk does not take is left out."""
        block = self._lined(block.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        now = block[: max(self._left, 0)]
        later = block[max(self._left, 0) :]
        self._put(now)
        self._left -= len(now)
        self._left_out += len(later)
        self._last = (self._last + block)[-self._most_last :]

    def tail(self, most: int) -> str:
        """The end of it, whole lines where there are any."""
        end = self._last[-most:]
        if len(self._last) > most:
            whole = end.partition(b"\n")[2]
        else:
            whole = end
        return (whole or end).decode(errors="replace").strip("\n")

    def close(self) -> None:
        """Write the last of what was left out, and end the last line."""
        if self._left_out > 0:
            kept = min(self._left_out, len(self._last))
            told = f"\n[transient] {self._left_out - kept:,} bytes were left out here\n".encode()
            self._put(told + self._last[-kept:])
            self._open = 0 if self._last.endswith(b"\n") else 1
        if self._open:
            self._put(b"\n")
        os.close(self._handle)

    def _lined(self, block: bytes) -> bytes:
        parts = block.split(b"\n")
        for place, part in enumerate(parts):
            before = self._open if place == 0 else 0
            if before + len(part) > _LONGEST_LINE:
                first = _LONGEST_LINE - before
                cut = [
                    part[:first],
                    *(
                        part[at : at + _LONGEST_LINE]
                        for at in range(first, len(part), _LONGEST_LINE)
                    ),
                ]
                parts[place] = b"\n".join(cut)
            if place == len(parts) - 1:
                line = parts[place].rpartition(b"\n")
                self._open = len(line[2]) + (before if not line[1] else 0)
        return b"\n".join(parts)

    def _put(self, block: bytes) -> None:
        try:
            while block:
                block = block[os.write(self._handle, block) :]
        except OSError as error:
            self.failed = error.strerror or str(error)
