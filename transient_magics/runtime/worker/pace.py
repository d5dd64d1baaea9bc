"""How long a step takes on the accelerator that an emulated VM stands for.

The emulator's weather (`--gpu-speed published`) writes two numbers into the VM's metadata: the seconds of a step as
published for its GPU, and how they relate to a K80's. A run's own `--pace`, the least seconds of a step, then counts
for a K80, and for other GPUs in proportion; without one the published seconds do. Google's VMs have no such attribute,
and nothing is paced there but by `--pace`.

All these are seconds of a step with the declared mini-batch. A worker with another one (`--batching`) takes time in
proportion to it, as a GPU does that is busy with examples; so a slow GPU is helped by fewer of them.
"""

from __future__ import annotations

import http.client
import threading

from ..metadata import metadata_host

_PATH = "/computeMetadata/v1/instance/attributes/emulator-pace"
_POLL_SECONDS = 60
_PAUSE = 2.0


class Pace:
    """The pace of this VM's steps; follows the weather while it changes."""

    def __init__(self, declared: float | None, host: str | None = None) -> None:
        """`declared` are the seconds of `--pace`."""
        self._declared = declared or 0.0
        self._host = host
        self._published, self._relative = 0.0, 0.0
        self._over = threading.Event()

    @property
    def seconds(self) -> float:
        """The least seconds of a step now; 0 for no pace."""
        if not self._relative:
            return self._declared
        return self._declared * self._relative or self._published

    def of(self, part: float) -> float:
        """The least seconds of a step with `part` times the declared mini-batch."""
        return self.seconds * part

    @property
    def speed(self) -> float:
        """How many times as fast as a K80 this VM is; 0 where nothing says so."""
        return 1 / self._relative if self._relative else 0.0

    def start(self) -> None:
        """Follow the metadata in a thread that ends with the process."""
        threading.Thread(target=self._follow, daemon=True, name="pace").start()

    def stop(self) -> None:
        """Follow no longer, after the poll that is under way."""
        self._over.set()

    def _follow(self) -> None:
        etag = "0"
        while not self._over.is_set():
            try:
                status, text, etag = self._ask(etag)
            except (OSError, http.client.HTTPException):
                status, text = 0, ""
            if status == 404:
                return
            try:
                seconds, relative = map(float, text.split())
            except ValueError:  # not an answer: the server is down or being started again
                self._over.wait(_PAUSE)
            else:
                self._published, self._relative = seconds, relative
                if etag == "0":  # without one every poll would answer at once
                    self._over.wait(_PAUSE)

    def _ask(self, etag: str) -> tuple[int, str, str]:
        """One long poll: status, body and the etag to go on with."""
        connection = http.client.HTTPConnection(self._host or metadata_host(), timeout=_POLL_SECONDS + 15)
        try:
            query = f"wait_for_change=true&last_etag={etag}&timeout_sec={_POLL_SECONDS}"
            connection.request("GET", f"{_PATH}?{query}", headers={"Metadata-Flavor": "Google"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers.get("ETag", "0")
        finally:
            connection.close()
