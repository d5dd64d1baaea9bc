"""The tokens with which a run's VMs reach the run's places in buckets, and nothing else there.

VMs that run a user's code have no service account. The controller exchanges its own credentials for
tokens that end at these places (and after an hour), keeps them in memory alone, and puts them on
the chief's VM over SSH: into files that only the training user reads, never into a journal, a log
or metadata. One is the chief's own. The other one opens the records for reading and nothing else:
the chief gives it to workers, which read their blocks in the bucket. Fresh ones follow at half of
their life. While the controller is away the last ones run out: checkpoints stay on the VM then, and
go on their way with the next; workers have their blocks from the chief.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...cloud import BoundedToken, Reach
from ...errors import CloudError, CredentialsError, RemoteError
from ...journal import now
from ...protocol import layout
from ...protocol.run import RunSpec
from ...remote import Connection

log = logging.getLogger(__name__)

NAME = "bucket-token.json"
FOR_RECORDS = "records-token.json"
"""In the run's folder on the VM: the chief's own, and the one for workers."""
Mint = Callable[[Sequence[Reach]], Awaitable[BoundedToken]]
_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 60.0
_SHORTEST_LIFE = (
    20.0  # seconds between two tokens; the metadata server gives out the same one almost to its end
)
_SOURCE = "bucket"


def reaches(store: str | None, run: RunSpec) -> list[Reach]:
    """What the chief of a run may do where: `store` is the run's own place, `run` its declaration.

    Of its own place it has the checkpoints; results are written there by the controller. Records
    that others made are read. Where there are none yet they are made under this problem's names,
    and nothing is ever replaced.
    """
    if store:
        found = [Reach(f"{store}/{layout.CHECKPOINTS}/", "objectUser")]
    else:
        found = []
    if resumed := run.resume_store:
        found.append(Reach(f"{resumed}/{layout.CHECKPOINTS}/", "objectViewer"))
    if records := run.records:
        place = f"{records.rstrip('/')}/"
        problem = run.problem
        found.append(Reach(place, "objectViewer"))
        found += [
            Reach(f"{place}{problem}{mark}", "objectCreator") for mark in ("-", ".records.json")
        ]
    return found


def only_own(store: str | None, run: RunSpec) -> RunSpec:
    """The declaration of a run that another machine has written, for `tokens`, which this machine's
    user pays for with all rights that he has: without what lies outside of its cluster's place,
    that of `store`.
    """
    if store:
        mine = f"{store.rpartition('/')[0]}/"
    else:
        mine = ""
    if mine and (run.resume_store or "").startswith(mine):
        resumed = run.resume_store
    else:
        resumed = None
    return replace(run, resume_store=resumed, data_dir=None if run.records else run.data_dir)


def tokens(
    mint: Mint, store: str | None, run: RunSpec
) -> dict[str, Callable[[], Awaitable[BoundedToken]]]:
    """What makes each token that is brought for a run, by its file's name; none for a run that
    needs no bucket.
    """
    places = {NAME: reaches(store, run)}
    if records := run.records:
        places[FOR_RECORDS] = [Reach(f"{records.rstrip('/')}/", "objectViewer")]
    return {name: partial(mint, found) for name, found in places.items() if found}


class TokenKeeper:
    """Keeps fresh tokens in `folder` on the VM at the other end of `connection()`, which may be
    another VM each time.

    `mints` makes them, by the names of their files; `note` takes what is wrong (a source and a
    sentence, or nothing).
    """

    def __init__(
        self,
        folder: str,
        mints: Mapping[str, Callable[[], Awaitable[BoundedToken]]],
        connection: Callable[[], Awaitable[Connection]],
        note: Callable[[str, str], None],
    ) -> None:
        self._folder = folder
        self._mints = mints
        self._connection = connection
        self._note = note
        self._tokens: Mapping[str, BoundedToken] = {}
        self._renew_at = 0.0
        self._pause = _FIRST_PAUSE
        self.shortest = _SHORTEST_LIFE

    @property
    def files(self) -> dict[str, bytes]:
        """What is brought with the run's other files to a VM that has none of them yet."""
        return {name: json.dumps(token.to_dict()).encode() for name, token in self._tokens.items()}

    async def renew(self) -> bool:
        """Have new tokens, if they can be had; says what is in the way."""
        try:
            self._tokens = {name: await mint() for name, mint in self._mints.items()}
        except CloudError as error:
            log.warning("no token for the bucket: %s", error)
            if not isinstance(
                error, CredentialsError
            ):  # of those everybody hears who asks Google for anything
                self._note(_SOURCE, str(error))
            self._renew_at = now() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            return False
        self._note(_SOURCE, "")
        self._pause = _FIRST_PAUSE
        ends = min(token.expires for token in self._tokens.values())
        self._renew_at = now() + max((ends - now()) / 2, self.shortest)
        return True

    async def keep(self) -> None:
        """Until cancelled."""
        brought: tuple[Mapping[str, BoundedToken], Connection | None] = {}, None
        while True:
            if now() >= self._renew_at:
                await self.renew()
            try:
                connection = await self._connection()
                if self._tokens and brought != (self._tokens, connection):
                    await connection.put_files(self.files, below=self._folder)
                    brought = self._tokens, connection
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
