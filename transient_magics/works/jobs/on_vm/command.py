"""The command of a job on a VM: its processes, and its output in a file of limited size."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ....errors import reason_of
from ....runtime.process_record import find_marked

MOST_BYTES = 8 * 2**20
"""Limit on the beginning of the output that is kept, in bytes."""
LAST_BYTES = 64 * 2**10
"""Size of its end that is kept as well, in bytes."""
_LONGEST_LINE = 32 * 2**10

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NICE = 5
_OOM_SCORE = "500"


def adopt_orphans() -> None:
    """Become the parent of processes whose parent, a descendant of this process, has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def in_child() -> Callable[[], None]:
    """Return the function that a command's process runs between fork and exec.

    The process then ends with this one, has a lower priority than the agent, and is the first that
    the kernel kills when memory runs out.
    """
    prctl = ctypes.CDLL(None).prctl  # before the fork: afterwards only little may be called

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.nice(_NICE)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write(_OOM_SCORE)

    return prepare


class CommandProcesses:
    """All processes of the job in `folder`: also those that left its process group or session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.command = 0
        """The process id of the command itself."""

    def members(self) -> list[int]:
        """Return their ids: processes with the job's mark, and all descendants of this process."""
        parents = {pid: parent for pid, parent, state in _processes() if state not in "ZX"}
        this = os.getpid()
        found = set(find_marked(self._folder))
        while True:
            children = {pid for pid, parent in parents.items() if parent == this or parent in found}
            if children <= found:
                return sorted(found - {this})
            found |= children

    def send(self, number: signal.Signals) -> None:
        """Send each of them a signal."""
        for pid in self.members():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill them until none is left, and wait for the orphans among them."""
        # Processes that are forked in this time are found in the next round.
        for _ in range(20):
            if not self.members():
                break
            self.send(signal.SIGKILL)
            time.sleep(0.02)
        self.reap()

    def reap(self) -> None:
        """Wait for orphans that have ended. `Runner` waits for the command itself."""
        for pid, parent, state in _processes():
            if state == "Z" and parent == os.getpid() and pid != self.command:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def memory(self, most: int) -> int:
        """Return the bytes of their memory.

        If their sum exceeds `most`, memory that several processes share is counted once. Reading
        that takes the kernel much longer.
        """
        members = self.members()
        resident = sum(map(_resident, members))
        if resident <= most:
            return resident
        return sum(map(_proportional, members))


def machine_memory() -> tuple[int, int]:
    """Return the bytes of memory of this machine, and the bytes that are available."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    kibibytes = dict(line.split(":", 1) for line in lines)
    total, available = (
        int(kibibytes[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable")
    )
    return total, available


def _resident(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _proportional(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def _processes() -> list[tuple[int, int, str]]:
    """Return id, parent and state of all processes of this machine."""
    found: list[tuple[int, int, str]] = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                # The name in brackets may contain anything, brackets and blanks included.
                fields = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                found.append((int(path.name), int(fields[1]), fields[0]))
    return found


class Output:
    """The file with the output of one attempt.

    It has the first `most` bytes. `close` appends the last ones of what was left out.

    A carriage return counts as the end of a line, and lines that are too long are split.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES, last: int = LAST_BYTES) -> None:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        self._left = most - os.fstat(self._handle).st_size
        self._most_last = last
        self._last = b""
        self._line_bytes = 0
        """The length of the last line so far; 0 after the end of a line."""
        self._left_out = 0
        self.failed = ""

    def write(self, block: bytes) -> None:
        """Append output. What does not fit, or does not fit on the disk, is left out."""
        block = self._split_lines(block.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        fits = block[: max(self._left, 0)]
        self._append(fits)
        self._left -= len(fits)
        self._left_out += len(block) - len(fits)
        self._last = (self._last + block)[-self._most_last :]

    def tail(self, most: int) -> str:
        """Return the end of the output, at most `most` bytes, in whole lines if there are any."""
        end = self._last[-most:]
        if len(self._last) > most:
            end = end.partition(b"\n")[2] or end
        return end.decode(errors="replace").strip("\n")

    def close(self) -> None:
        """Append the end of what was left out, and end the last line."""
        if self._left_out > 0:
            kept = min(self._left_out, len(self._last))
            gap = f"\n[transient] {self._left_out - kept:,} bytes were left out here\n".encode()
            self._append(gap + self._last[-kept:])
            self._line_bytes = 0 if self._last.endswith(b"\n") else 1
        if self._line_bytes:
            self._append(b"\n")
        os.close(self._handle)

    def _split_lines(self, block: bytes) -> bytes:
        """Return the block with line breaks in lines that are too long."""
        lines: list[bytes] = []
        before = self._line_bytes
        for line in block.split(b"\n"):
            rest = line
            while before + len(rest) > _LONGEST_LINE:
                room = _LONGEST_LINE - before
                lines.append(rest[:room])
                rest = rest[room:]
                before = 0
            lines.append(rest)
            self._line_bytes = before + len(rest)
            before = 0
        return b"\n".join(lines)

    def _append(self, block: bytes) -> None:
        try:
            while block:
                block = block[os.write(self._handle, block) :]
        except OSError as error:
            self.failed = reason_of(error)
