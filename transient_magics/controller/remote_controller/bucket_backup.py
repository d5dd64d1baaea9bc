"""Copies in the cluster's bucket of results on the controller's VM, which may be lost.

Runs keep their checkpoints there on their own. Archives of jobs, output of jobs, and what bags
returned and learnt are copied beside the journal, under their names in the cluster's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from ...cloud import CloudStorage
from ...errors import CloudError, GoneError
from ...kinds import having
from ...protocol import layout
from ...runtime.files.manifest import split

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0


class BucketBackup:
    """Copies of a cluster's files in its place in a bucket, `store` (`gs://bucket/path`)."""

    def __init__(self, storage: CloudStorage, store: str) -> None:
        self._storage = storage
        self._bucket, self._path = split(store)
        self._there: dict[str, tuple[int, int]] = {}
        """Size and modification time of each copied file, by name."""

    async def renew(self, directory: Path) -> None:
        """Copy what changed since the last time, and delete archives that newer ones replaced.

        Raises CloudError.
        """
        found = dict(_found(directory))
        for name, status in found.items():
            if self._there.get(name) != status:
                try:
                    await self._storage.upload(
                        self._bucket, f"{self._path}{name}", directory / name
                    )
                except FileNotFoundError:
                    # A newer archive has just replaced this one.
                    continue
                self._there[name] = status
        for name in [copied for copied in self._there if copied not in found]:
            await self._storage.delete(self._bucket, f"{self._path}{name}")
            del self._there[name]

    async def get(self, name: str, target: Path, *, most: int) -> bool:
        """Copy a file to `target`; return False if it is missing or larger than `most` bytes.

        Results of a run are in the run's own place, which has the run's name. Raises CloudError.
        """
        full = f"{self._path}{name.removeprefix(f'{layout.RUNS}/')}"
        found = await self._storage.list(self._bucket, full, most=1)
        if not found or found[0].name != full or found[0].size > most:
            return False
        try:
            await self._storage.download(self._bucket, full, target, generation=found[0].generation)
        except GoneError:
            return False
        return True


async def keep_copies(copies: BucketBackup, directory: Path) -> str:
    """Renew the copies once, and return what failed, in a sentence, or "".

    A failure does not stop the work: the next call tries again.
    """
    try:
        await copies.renew(directory)
    except (CloudError, OSError) as error:
        log.warning("what jobs keep is not in the bucket: %s", error)
        return f"What jobs and bags left is not in the bucket, and goes with the controller's VM: {error}"
    return ""


def _found(directory: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    patterns = [pattern for part in having("artifacts") for pattern in part.SYNC.in_bucket]
    for path in sorted(path for pattern in patterns for path in directory.glob(pattern)):
        if not path.name.startswith("."):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            yield str(path.relative_to(directory)), (status.st_size, status.st_mtime_ns)
