"""Tokens for a run's VMs, limited to the run's places in buckets.

VMs that run a user's code have no service account. The controller exchanges its own credentials for
tokens that are limited to these places and to an hour. It keeps them in memory only. It sends them
to the chief's VM over SSH, to files that only the training user can read: never to a journal, a log
or metadata. One token is the chief's own. The other one can only read records: the chief passes it
to workers, which read their blocks from the bucket. Tokens are renewed at half of their life. If
the controller is away, the last ones expire: checkpoints then stay on the VM until the next token,
and workers get their blocks from the chief.
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
"""The names of the files in the run's folder on the VM: the chief's token, and that of workers."""
Mint = Callable[[Sequence[Reach]], Awaitable[BoundedToken]]
_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 60.0
# Seconds between two tokens; the metadata server returns the same one until shortly before its end.
_SHORTEST_LIFE = 20.0
_SOURCE = "bucket"


def reaches(store: str | None, run: RunSpec) -> list[Reach]:
    """Return what the chief of a run may do in which places.

    The chief may write checkpoints to its own place; the controller writes results there. It may
    read records of others, and create missing ones under the names of its problem. Nothing is
    replaced.

    Parameters
    ----------
    store
        The run's own place; None without one.
    run
        Its declaration.
    """
    found = []
    if store:
        found.append(Reach(f"{store}/{layout.CHECKPOINTS}/", "objectUser"))
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
    """Return a declaration that another machine wrote without places outside its cluster's place.

    The tokens for such places would have all rights of this machine's user. `store` is the run's
    place.
    """
    own = f"{store.rpartition('/')[0]}/" if store else ""
    resumed = None
    if own and (run.resume_store or "").startswith(own):
        resumed = run.resume_store
    return replace(run, resume_store=resumed, data_dir=None if run.records else run.data_dir)


def tokens(
    mint: Mint, store: str | None, run: RunSpec
) -> dict[str, Callable[[], Awaitable[BoundedToken]]]:
    """Return the functions that create tokens, by file name; empty for a run without a bucket."""
    places = {NAME: reaches(store, run)}
    if records := run.records:
        places[FOR_RECORDS] = [Reach(f"{records.rstrip('/')}/", "objectViewer")]
    return {name: partial(mint, found) for name, found in places.items() if found}


class TokenKeeper:
    """Keeps fresh tokens on the VM of a run's chief.

    Parameters
    ----------
    folder
        The folder there.
    mints
        Create the tokens, by the names of their files.
    connection
        Returns the connection to the VM, which may be another VM each time.
    note
        Takes a problem: its source and a sentence, empty once it is solved.
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
        self.least_seconds = _SHORTEST_LIFE
        """The minimum time between two renewals, in seconds."""

    @property
    def files(self) -> dict[str, bytes]:
        """The files for a VM that has none of them yet."""
        return {name: json.dumps(token.to_dict()).encode() for name, token in self._tokens.items()}

    async def renew(self) -> bool:
        """Replace all tokens by new ones and return True.

        If one cannot be created, note why, keep the old ones and return False.
        """
        try:
            self._tokens = {name: await mint() for name, mint in self._mints.items()}
        except CloudError as error:
            log.warning("no token for the bucket: %s", error)
            # Missing credentials are reported by every request to Google already.
            if not isinstance(error, CredentialsError):
                self._note(_SOURCE, str(error))
            self._renew_at = now() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            return False
        self._note(_SOURCE, "")
        self._pause = _FIRST_PAUSE
        ends = min(token.expires for token in self._tokens.values())
        # The minimum prevents a tight loop if tokens expire almost immediately.
        self._renew_at = now() + max((ends - now()) / 2, self.least_seconds)
        return True

    async def keep(self) -> None:
        """Renew and send tokens until cancelled."""
        sent: tuple[Mapping[str, BoundedToken], Connection | None] = {}, None
        while True:
            if now() >= self._renew_at:
                await self.renew()
            try:
                connection = await self._connection()
                if self._tokens and sent != (self._tokens, connection):
                    await connection.put_files(self.files, below=self._folder)
                    sent = self._tokens, connection
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
