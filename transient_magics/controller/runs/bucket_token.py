"""The token with which a run's chief reaches the run's places in buckets, and nothing else there.

VMs that run a user's code have no service account. The controller exchanges its own credentials for a token that ends
at these places (and after an hour), keeps it in memory alone, and puts it on the chief's VM over SSH: into a file that
only the training user reads, never into a journal, a log or metadata. A fresh one follows at half of its life. While
the controller is away the last one runs out: checkpoints stay on the VM then, and go on their way with the next.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

from ...cloud import BoundedToken, Reach
from ...errors import CloudError, CredentialsError, RemoteError
from ...journal import now
from ...protocol import layout
from ...protocol.run import RunSpec
from ...remote import Connection

log = logging.getLogger(__name__)

NAME = "bucket-token.json"
"""In the run's folder on the VM."""
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_SHORTEST_LIFE = 20.0  # seconds between two tokens; the metadata server gives out the same one almost to its end
_SOURCE = "bucket"


def reaches(store: str | None, run: RunSpec) -> list[Reach]:
    """What the chief of a run may do where: `store` is the run's own place, `run` its declaration.

    Of its own place it has the checkpoints; results are written there by the controller. Records that others made are
    read. Where there are none yet they are made under this problem's names, and nothing is ever replaced.
    """
    found = [Reach(f"{store}/{layout.CHECKPOINTS}/", "objectUser")] if store else []
    if resumed := run.resume_store:
        found.append(Reach(f"{resumed}/{layout.CHECKPOINTS}/", "objectViewer"))
    if records := run.records:
        place, problem = f"{records.rstrip('/')}/", run.problem
        found.append(Reach(place, "objectViewer"))
        found += [Reach(f"{place}{problem}{mark}", "objectCreator") for mark in ("-", ".records.json")]
    return found


class TokenKeeper:
    """Keeps a fresh token in `folder` on the VM at the other end of `connection()`, which may be another VM each time.

    `mint` makes one, `note` takes what is wrong (a source and a sentence, or nothing).
    """

    def __init__(
        self,
        folder: str,
        mint: Callable[[], Awaitable[BoundedToken]],
        connection: Callable[[], Awaitable[Connection]],
        note: Callable[[str, str], None],
    ) -> None:
        self._folder, self._mint, self._connection, self._note = folder, mint, connection, note
        self._token: BoundedToken | None = None
        self._renew_at = 0.0
        self._pause = _FIRST_PAUSE
        self.shortest = _SHORTEST_LIFE

    @property
    def files(self) -> dict[str, bytes]:
        """What is brought with the run's other files to a VM that has none of them yet."""
        return {NAME: json.dumps(self._token.to_dict()).encode()} if self._token else {}

    async def renew(self) -> bool:
        """Have a new token, if it can be had; says what is in the way."""
        try:
            self._token = await self._mint()
        except CloudError as error:
            log.warning("no token for the bucket: %s", error)
            if not isinstance(error, CredentialsError):  # of those everybody hears who asks Google for anything
                self._note(_SOURCE, str(error))
            self._renew_at = now() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            return False
        self._note(_SOURCE, "")
        self._pause = _FIRST_PAUSE
        self._renew_at = now() + max((self._token.expires - now()) / 2, self.shortest)
        return True

    async def keep(self) -> None:
        """Until cancelled."""
        brought: tuple[BoundedToken | None, Connection | None] = None, None
        while True:
            if now() >= self._renew_at:
                await self.renew()
            try:
                connection = await self._connection()
                if self._token and brought != (self._token, connection):
                    await connection.put_files(self.files, below=self._folder)
                    brought = self._token, connection
                await _closed_within(connection, self._renew_at - now())
            except (RemoteError, OSError) as error:
                log.warning("the token for the bucket is not on the VM: %s", error)
                await asyncio.sleep(_FIRST_PAUSE)


async def _closed_within(connection: Connection, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            await connection.closed.wait()
    except TimeoutError:
        return
