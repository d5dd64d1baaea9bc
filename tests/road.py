"""The road between a program and an emulator, on which anything may happen: it is cut, silent, slow, or held up."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

_BLOCK = 1 << 14


class Road:
    """Relays every connection to `url`, from a port of its own and from a Unix socket, which other networks reach.

    While `cut`, connections end as soon as they begin, and those that there were have ended; while `silent`, nothing
    passes in either direction; `rate` bytes pass in a second (None: as many as come).
    """

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._folder = Path(tempfile.mkdtemp(prefix="tm-"))
        self.socket = self._folder / "road"
        self.cut = False
        self.silent = False
        self.rate: float | None = None
        self.held = threading.Event()
        """Set when as many bytes of clients have come as were to come before they are held up."""
        self._most: float = float("inf")
        self.passed = 0
        """Bytes of clients that went through."""
        self._ends: set[socket.socket] = set()
        self._doors = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
        self._doors[1].bind(str(self.socket))
        self._doors[1].listen()
        self.url = f"http://127.0.0.1:{self._doors[0].getsockname()[1]}"
        for door in self._doors:
            threading.Thread(target=self._accept, args=(door,), daemon=True).start()

    def hold_up(self, after: int) -> None:
        """Let so many more bytes of clients pass, and then nothing in their direction until `open`."""
        self.held.clear()
        self._most = self.passed + after

    def close_down(self) -> None:
        """Cut it, and all that is under way."""
        self.cut = True
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        """All is well again."""
        self._most, self.cut, self.silent, self.rate = float("inf"), False, False, None

    def close(self) -> None:
        self.close_down()
        for door in self._doors:
            with contextlib.suppress(OSError):
                door.shutdown(socket.SHUT_RDWR)
            door.close()
        self.open()
        shutil.rmtree(self._folder)

    def _accept(self, door: socket.socket) -> None:
        while True:
            try:
                near, _ = door.accept()
            except OSError:
                return
            if self.cut:
                near.close()
                continue
            far = socket.create_connection((self._to.hostname or "", self._to.port or 0))
            self._ends |= {near, far}
            for begin, end, counts in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._relay, args=(begin, end, counts), daemon=True).start()

    def _relay(self, begin: socket.socket, end: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while block := begin.recv(_BLOCK):
                if counts and self.passed + len(block) > self._most:
                    self.held.set()
                while self.silent or (counts and self.passed + len(block) > self._most):
                    if self.cut:
                        break
                    time.sleep(0.02)
                if self.rate:
                    time.sleep(len(block) / self.rate)
                end.sendall(block)
                self.passed += len(block) * counts
        for each in (begin, end):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            self._ends.discard(each)


@contextlib.contextmanager
def road(url: str) -> Iterator[Road]:
    """A road to what answers at `url`."""
    made = Road(url)
    try:
        yield made
    finally:
        made.close()
