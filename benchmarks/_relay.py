"""A port of this machine that carries so many bytes a second to another one."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_BLOCK = 1 << 14


class Relay:
    """A port of this machine whose bytes all go to another one, `rate` of them a second each way (0: as they come)."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target, self.rate = (host, int(port)), 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = self._reached()
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _reached(self) -> socket.socket:
        """The other end, which may be starting yet."""
        for _ in range(600):
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(self._target)
            time.sleep(0.1)
        raise ConnectionRefusedError(f"nobody listens at {self._target}")

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := one.recv(_BLOCK):
                if self.rate:
                    time.sleep(len(block) / self.rate)
                other.sendall(block)
