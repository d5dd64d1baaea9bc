"""A worker's line to the chief: its number, how many are active, its metrics, and what it is told.

One daemon thread keeps the connection, comes back when the chief restarts, and sends a sign of life
every second whatever the training does; so silence means that the whole process is frozen or gone.
The training thread only reads attributes.
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...protocol import chief_messages as messages
from ..role import host_and_port
from ..tf.graph_mode import has_gpu

_EVERY = 1.0
_ANSWER_SECONDS = 2.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 0.5
_WITHOUT_CHIEF = 900.0
CHIEF_GONE = "the chief is gone"


def answer(servers: Sequence[str]) -> bool:
    """Whether every one of these takes a connection."""
    try:
        for server in servers:
            socket.create_connection(host_and_port(server), timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


class ChiefLink:
    """Talks to the chief of a run. `take_metrics` returns the line of the last second, or None."""

    def __init__(self, chief: str, token: str, name: str, accelerator: str) -> None:
        self._chief = chief
        self._token = token
        self._name = name
        self._accelerator = accelerator
        self.number: int | None = None
        self.active = 1
        self.batch: tuple[int, float] | None = None
        """The mini-batch that the chief gave this worker, and the share of its gradient; None for
        the declared one.
        """
        self.save_asked = threading.Event()
        """The chief wants a checkpoint of this worker."""
        self.connected = threading.Event()
        self.numbered = threading.Event()
        self.told: str | None = None
        """Why to end: "finished", "told to leave" or that the chief is gone; None while training
        goes on.
        """
        self.on_told: Callable[[], None] = lambda: None
        self.on_joined: Callable[[], None] = lambda: None
        self.on_leased: Callable[[Sequence[messages.LeasedBlock]], None] = lambda _: None
        self.turns: queue.SimpleQueue[messages.Take] = queue.SimpleQueue()
        """Measures that the chief wants taken, of a run that measures stalls."""
        self.take_metrics: Callable[[], Mapping[str, Any] | None] = lambda: None
        self._stepping: messages.Stepping | None = None
        self._noticed = False
        self._socket: socket.socket | None = None
        self._writing = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Connect and stay connected, on a thread of its own."""
        threading.Thread(target=self._run, daemon=True, name="chief").start()

    def stepping(
        self, loss: float | None, samples: int, speed: float = 0.0, program: str = ""
    ) -> None:
        """Report the first gradient that was applied, again to every chief that follows."""
        self._stepping = messages.Stepping(
            loss=loss, samples=samples, speed=speed, gpu=has_gpu(), program=program
        )
        self._send(self._stepping)

    def noticed(self) -> None:
        """Tell that this VM is under notice; told again to every chief that we meet later."""
        self._noticed = True
        self._send(messages.Noticed())

    def exhausted(self, fits: int) -> None:
        """Tell that the mini-batch did not fit into memory, and how many examples do."""
        self._send(messages.Exhausted(fits=fits))

    def lease(self, said: messages.Lease) -> None:
        """Say which blocks of the records are held, and ask for more."""
        self._send(said)

    def unsaved(self, reason: str) -> None:
        """Tell that the checkpoint that was asked for could not be written, or not be brought to
        the chief.
        """
        self._send(messages.Unsaved(reason=reason))

    def reading(self, note: str) -> None:
        """Tell what the user should know of the examples that are about to be read."""
        self._send(messages.Reading(note=note))

    def took(self, told: messages.Took) -> None:
        """Tell what a measure came to."""
        self._send(told)

    def report(self) -> None:
        """Send the metrics of this second now."""
        if line := self.take_metrics():
            self._send(messages.Metrics(line=line))

    def trouble(self, reason: str, fatal: bool) -> None:
        """Tell that this worker cannot go on."""
        self.connected.wait(5)
        self._send(messages.Trouble(reason=reason, fatal=fatal))

    def leave(self, reason: str) -> None:
        """Send the last metrics, say goodbye and close."""
        self._closed = True
        self.report()
        self._send(messages.Leaving(reason=reason))
        with self._writing:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        since = time.monotonic()
        while not self._closed and time.monotonic() - since < _WITHOUT_CHIEF:
            with contextlib.suppress(OSError, ValueError):
                self._talk()
                since = time.monotonic()
                pause = _FIRST_PAUSE
            if self.connected.is_set():
                since = time.monotonic()
                pause = _FIRST_PAUSE
            self.connected.clear()
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        if not self._closed:
            self._tell(CHIEF_GONE)

    def _talk(self) -> None:
        """One connection, until it ends."""
        with socket.create_connection(host_and_port(self._chief), timeout=5) as connection:
            connection.settimeout(10)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connection
            who = {"name": self._name, "accelerator": self._accelerator}
            self._send(messages.Join(token=self._token, number=self.number, **who))
            unread = b""
            due = time.monotonic() + _EVERY
            while not self._closed:
                readable, _, _ = select.select(
                    [connection], [], [], max(0.0, due - time.monotonic())
                )
                if readable:
                    block = connection.recv(1 << 16)
                    if not block:
                        return
                    *lines, unread = (unread + block).split(b"\n")
                    for line in lines:
                        self._hear(messages.read_to_worker(line))
                if time.monotonic() >= due:
                    due = time.monotonic() + _EVERY
                    line = self.take_metrics()
                    self._send(messages.Metrics(line=line) if line else messages.Alive())

    def _hear(self, message: messages.ToWorker | messages.Refused | None) -> None:
        match message:
            case messages.Joined():
                self.number = message.number
                self.active = message.active
                self.numbered.set()
                self.connected.set()
                if self._noticed:
                    self._send(messages.Noticed())
                if self._stepping is not None:
                    self._send(self._stepping)
                self.on_joined()
            case messages.Leased():
                self.on_leased(message.blocks)
            case messages.Active():
                self.active = message.active
            case messages.Batch():
                self.batch = message.size, message.share
            case messages.Take():
                self.turns.put(message)
            case messages.Save():
                self.save_asked.set()
            case messages.Stop():
                self._tell("finished")
            case messages.Leave():
                self._tell(message.reason)
            case messages.Refused() if self.number is None:
                raise ConnectionRefusedError(
                    "the chief of the run before ends here, and ours is still to come"
                )
            case messages.Refused():  # the chief of another run, where ours was
                self._tell("told to leave")
            case None:
                pass

    def _tell(self, reason: str) -> None:
        self.told = self.told or reason
        self.numbered.set()
        self.on_told()

    def _send(self, message: messages.FromWorker) -> None:
        """Send if connected; what is lost with a connection is not repeated (the next second says
        more).
        """
        with self._writing, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.sendall(message.encoded)
