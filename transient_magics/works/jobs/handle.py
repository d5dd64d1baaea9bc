"""The handle of a job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from ...client import text
from ...client.cluster_handle import Cluster
from ...client.display_hook import Log
from ...client.following.cluster import until_home
from ...client.following.follower import follower
from ...client.handle import Handle
from ...client.lookup import find_work
from ...errors import ClusterError, reason_of
from ...journal import ClusterState
from ...protocol import layout
from ...protocol.checks import all_plain
from ...runtime.files.archive import newest, path_of, unpack
from .state import JobState

_MOST_OUTPUT = 256 * 1024


class Job(Handle[JobState, JobState]):
    """A job of a cluster: a command that continues on another VM when its VM is revoked."""

    kind = "job"
    at_stop = "its command receives SIGTERM, and the folder that it keeps is copied here"

    def output(self, lines: int | None = None) -> Log:
        """Return the output of its command on rank 0, of all attempts one after the other.

        The folder `directory` has all of it, in a file for each attempt and rank.

        Parameters
        ----------
        lines
            How many of the last lines to return (default: all of the last 256 KiB).
        """
        blocks = b"".join(block for _, block in self.blocks({}))
        output = blocks[-_MOST_OUTPUT:].decode(errors="replace")
        if lines is None:
            return Log(output)
        return Log("\n".join(output.splitlines()[-lines:]))

    def blocks(self, read: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        """Yield new output of rank 0, each block with the name of its file.

        `read` has the number of bytes that were read of each file, and is updated.
        """
        suffix = "-0"
        paths = {
            int(path.stem.removesuffix(suffix)): path
            for path in (self.directory / layout.OUTPUT).glob(f"*{suffix}.log")
            if path.stem.removesuffix(suffix).isdecimal()
        }
        for _, path in sorted(paths.items()):
            begin = read.get(path.name, 0)
            with path.open("rb") as file:
                size = file.seek(0, 2)
                # The first call would otherwise read a file of gigabytes.
                file.seek(max(begin, size - _MOST_OUTPUT))
                block = file.read(_MOST_OUTPUT)
            read[path.name] = size
            if block:
                yield path.name, block

    def stream(self, every: float = 0.3, *, quiet: bool = False) -> Iterator[str]:
        """Yield the output of rank 0 as it arrives, from the first line until the job is over.

        Parameters
        ----------
        every
            Seconds between reads.
        quiet
            Also yield an empty text when something else about the job has changed.
        """
        over = threading.Event()
        changed = threading.Event()

        def on_change(state: ClusterState, _: object) -> None:
            changed.set()
            if self.is_over(state):
                over.set()

        unsubscribe = follower().subscribe(self.cluster.identity, on_change)
        read = dict[str, int]()
        try:
            while True:
                is_last = over.is_set()
                if is_last:
                    until_home(self.cluster, self._has_all_output)
                blocks = (block.decode(errors="replace") for _, block in self.blocks(read))
                output = "".join(blocks)
                if output or (quiet and changed.is_set()):
                    changed.clear()
                    yield all_plain(output)
                if is_last:
                    return
                over.wait(every)
        finally:
            unsubscribe()

    def fetch(self, folder: str | Path) -> Path:
        """Unpack the newest archive of the folder that the job keeps, and return its path.

        Parameters
        ----------
        folder
            The folder to create. It must not exist, or be empty.

        Raises
        ------
        ClusterError
            No archive has arrived; the job is over and its last archive is still on the VM of the
            controller; or the folder cannot be created.
        """
        target = Path(folder).expanduser()
        is_complete = until_home(self.cluster, self._has_last_archive)
        job = self.state
        number = newest(self.directory, job.kept.number) if job.kept else 0
        if not number:
            if job.spec.keep:
                why = "no archive of its folder has arrived yet"
            else:
                why = "it was declared without --keep"
            raise ClusterError(f"{self.name} has nothing to fetch: {why}", where=self.cluster.name)
        cluster = self.cluster.state
        archive = path_of(self.directory, number)
        if not is_complete and job.over and cluster.seat and not cluster.over:
            what = f"The last archive of {self.name} is still on {cluster.seat}"
            fix = f"Try again in a moment; the newest one on this machine is {archive}."
            raise ClusterError(what, where=self.cluster.name, fix=fix)
        try:
            if target.is_dir():
                target.rmdir()
            elif target.exists():
                raise ClusterError(f"{target} is not a folder", fix="Name a folder.")
            unpack(archive, target)
        except (OSError, ValueError) as error:
            why = reason_of(error)
            raise ClusterError(
                f"{target} cannot be created: {why}", fix="Name a folder that does not exist."
            ) from error
        return target

    def _has_last_archive(self) -> bool:
        """Return whether the archive that was reported last is here."""
        job = self.cluster.state.of(JobState).get(self.name)
        return job is None or job.kept is None or path_of(self.directory, job.kept.number).exists()

    def _has_all_output(self) -> bool:
        """Return whether the last lines of rank 0 are here, once its command has ended."""
        job = self.cluster.state.of(JobState).get(self.name)
        if job is None or not job.vms:
            return True
        exited = job.exits.get(job.vms[0])
        if exited is None:
            return True
        return all_plain(self.output()).rstrip().endswith(all_plain(exited.tail).rstrip())

    def _is_home(self) -> bool:
        return self._has_all_output() and self._has_last_archive()

    def _failure(self, work: JobState) -> str:
        failure = super()._failure(work)
        last = text.plain(work.tail).strip()
        if failure and last:
            return f"{failure}. Its last output:\n{last}"
        return failure


handle = Job


def job(name: str | None = None, cluster: Cluster | str | None = None) -> Job:
    """Return the job called `name`.

    Parameters
    ----------
    name
        Its name (default: the newest job).
    cluster
        The cluster or its name (default: any cluster that has such a job).

    Raises
    ------
    UnknownWorkError
        There is no such job.
    ClusterError
        Several clusters have such work.
    """
    return find_work("job", name, cluster)
