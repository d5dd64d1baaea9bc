"""A worker's connection to the chief: its number, what it reports, and what it is asked to do.

One daemon thread keeps the connection, connects again when the chief restarts, and sends a
heartbeat every second, whatever the training does. So silence means that the whole process is
frozen or gone. The training thread only reads attributes.
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

_HEARTBEAT_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 0.5
_WITHOUT_CHIEF = 900.0
CHIEF_GONE = "the chief was lost"


def answer(servers: Sequence[str]) -> bool:
    """Return whether all of these servers accept a connection."""
    try:
        for server in servers:
            socket.create_connection(host_and_port(server), timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


class ChiefLink:
    """The connection of the worker `name` to the chief at `chief` ("host:port").

    Attributes that begin with `on_` and `take_metrics` are callbacks, which the connection's thread
    calls.
    """

    def __init__(self, chief: str, token: str, name: str, accelerator: str) -> None:
        self._chief = chief
        self._token = token
        self._name = name
        self._accelerator = accelerator
        self.number: int | None = None
        self.active = 1
        """Workers that train, as last reported by the chief."""
        self.batch: tuple[int, float] | None = None
        """Mini-batch that the chief assigned, and the share of its gradient; None: the declared."""
        self.limit: int | None = None
        """Global step at which to wait for the chief; None: do not wait."""
        self.rate = 1.0
        """Factor of the learning rate that the chief sent."""
        self.save_requested = threading.Event()
        """Set when the chief requests a checkpoint of this worker."""
        self.connected = threading.Event()
        self.numbered = threading.Event()
        """Set once there is a number, or none will come."""
        self.stop_reason: str | None = None
        """Why training stops: "finished", "told to leave", CHIEF_GONE; None while it continues."""
        self.phase: int | None = None
        """The step at which the run's phase began that this process trains; None before a number."""
        self.again = False
        """Whether the process should start again, for another phase."""
        self.on_stop: Callable[[], None] = lambda: None
        self.on_joined: Callable[[], None] = lambda: None
        self.on_leased: Callable[[Sequence[messages.LeasedBlock]], None] = lambda _: None
        self.measures: queue.SimpleQueue[messages.Take] = queue.SimpleQueue()
        """Measures that the chief requests, in a run that measures stalls."""
        self.take_metrics: Callable[[], Mapping[str, Any] | None] = lambda: None
        """Returns the metrics since its last call; None if there are none."""
        self._stepping: messages.Stepping | None = None
        self._noticed = False
        self._socket: socket.socket | None = None
        self._writing = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Connect, and stay connected, on another thread."""
        threading.Thread(target=self._run, daemon=True, name="chief").start()

    def report_stepping(
        self, loss: float | None, samples: int, speed: float = 0.0, program: str = ""
    ) -> None:
        """Report the first gradient that was applied, also to each later chief."""
        self._stepping = messages.Stepping(
            loss=loss, samples=samples, speed=speed, gpu=has_gpu(), program=program
        )
        self._send(self._stepping)

    def report_notice(self) -> None:
        """Report that this VM is under notice, also to each later chief."""
        self._noticed = True
        self._send(messages.Noticed())

    def report_exhausted(self, fits: int) -> None:
        """Report that the mini-batch did not fit into memory, and how many examples do."""
        self._send(messages.Exhausted(fits=fits))

    def send_lease(self, lease: messages.Lease) -> None:
        """Report which blocks of the records this worker has, and request more."""
        self._send(lease)

    def report_unsaved(self, reason: str) -> None:
        """Report that the requested checkpoint could not be written or delivered."""
        self._send(messages.Unsaved(reason=reason))

    def report_note(self, note: str) -> None:
        """Report what the user should know of the examples that are read next."""
        self._send(messages.Reading(note=note))

    def report_measure(self, result: messages.Took) -> None:
        """Report the result of a measure."""
        self._send(result)

    def send_metrics(self) -> None:
        """Send the metrics since the last line now."""
        if line := self.take_metrics():
            self._send(messages.Metrics(line=line))

    def report_trouble(self, reason: str, fatal: bool) -> None:
        """Report that this worker cannot continue; `fatal`: neither can any other worker."""
        self.connected.wait(5)
        self._send(messages.Trouble(reason=reason, fatal=fatal))

    def leave(self, reason: str) -> None:
        """Send the last metrics and the reason for leaving, and close the connection."""
        self._closed = True
        self.send_metrics()
        self._send(messages.Leaving(reason=reason))
        with self._writing:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)

    def _run(self) -> None:
        """Connect, with pauses in between, until closed or without a chief for too long."""
        pause = _FIRST_PAUSE
        since = time.monotonic()
        while not self._closed and time.monotonic() - since < _WITHOUT_CHIEF:
            with contextlib.suppress(OSError, ValueError):
                self._serve_connection()
                since = time.monotonic()
                pause = _FIRST_PAUSE
            if self.connected.is_set():
                since = time.monotonic()
                pause = _FIRST_PAUSE
            self.connected.clear()
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        if not self._closed:
            self._stop(CHIEF_GONE)

    def _serve_connection(self) -> None:
        """Join, then handle messages and send heartbeats until the connection ends."""
        with socket.create_connection(host_and_port(self._chief), timeout=5) as connection:
            connection.settimeout(10)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connection
            join = messages.Join(
                token=self._token,
                number=self.number,
                name=self._name,
                accelerator=self._accelerator,
            )
            self._send(join)
            unread = b""
            due = time.monotonic() + _HEARTBEAT_SECONDS
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
                        self._handle(messages.read_to_worker(line))
                if time.monotonic() >= due:
                    due = time.monotonic() + _HEARTBEAT_SECONDS
                    metrics = self.take_metrics()
                    self._send(messages.Metrics(line=metrics) if metrics else messages.Alive())

    def _handle(self, message: messages.ToWorker | messages.Refused | None) -> None:
        match message:
            case messages.Joined():
                self.number = message.number
                self.active = message.active
                if self.phase is None:
                    self.phase = message.phase
                if self.phase != message.phase:
                    self.again = True
                    self._stop("finished")
                    return
                self.numbered.set()
                self.connected.set()
                # A restarted chief does not know these.
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
            case messages.Proceed():
                self.limit = message.limit
                self.rate = message.rate
            case messages.Take():
                self.measures.put(message)
            case messages.Save():
                self.save_requested.set()
            case messages.Stop():
                self.again = message.again
                self._stop("finished")
            case messages.Leave():
                self._stop(message.reason)
            case messages.Refused() if self.number is None:
                # Raised so that `_run` connects again after a pause.
                raise ConnectionRefusedError("the chief of the previous run still has this address")
            case messages.Refused():
                self._stop("told to leave")  # the chief of a later run has this address
            case None:
                pass  # a message of another version

    def _stop(self, reason: str) -> None:
        """Note why training stops; the first reason counts."""
        self.stop_reason = self.stop_reason or reason
        self.numbered.set()
        self.on_stop()

    def _send(self, message: messages.FromWorker) -> None:
        """Send if connected.

        What is lost with a connection is not sent again: the next heartbeat has newer metrics.
        """
        with self._writing, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.sendall(message.encoded)
