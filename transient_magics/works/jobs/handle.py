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
from ...errors import ClusterError
from ...journal import ClusterState, JobState
from ...protocol import layout
from ...protocol.checks import all_plain
from ...runtime.files.archive import newest, path_of, unpack

_MOST_OUTPUT = 256 * 1024


class Job(Handle[JobState, JobState]):
    """A job of a cluster: a command that continues on another VM when its VM is revoked."""

    kind = "job"
    at_stop = "its command receives SIGTERM, and the folder that it keeps is copied here"

    def output(self, lines: int | None = None) -> Log:
        """What its command has said so far, of all attempts one after the other: of several VMs
        that of rank 0, and all of it or its last `lines`. At most the last 256 KiB; all of it lies
        in `directory`, a file for each attempt and rank.
        """
        said = b"".join(block for _, block in self.blocks({}))[-_MOST_OUTPUT:].decode(
            errors="replace"
        )
        return Log(said if lines is None else "\n".join(said.splitlines()[-lines:]))

    def blocks(self, read: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        """What rank 0 has said since `read`, which is what was read of each file and becomes what
        is read now.
        """
        found = [
            path
            for path in (self.directory / layout.OUTPUT).glob("*-0.log")
            if path.stem[:-2].isdecimal()
        ]
        for path in sorted(found, key=lambda each: int(each.stem[:-2])):
            begin = read.get(path.name, 0)
            with path.open("rb") as file:
                size = file.seek(0, 2)
                # Whoever asks for the first time does not want to hear of gigabytes.
                file.seek(max(begin, size - _MOST_OUTPUT))
                block = file.read(_MOST_OUTPUT)
            read[path.name] = size
            if block:
                yield path.name, block

    def stream(self, every: float = 0.3, *, quiet: bool = False) -> Iterator[str]:
        """What rank 0 says, from the first line on and as it comes, until the job is over. `quiet`:
        also nothing, where something else about the job has changed. Looks every so many seconds.
        """
        over = threading.Event()
        changed = threading.Event()

        def see(state: ClusterState, _: object) -> None:
            changed.set()
            if self.is_over(state):
                over.set()

        end = follower().subscribe(self.cluster.identity, see)
        read = dict[str, int]()
        try:
            while True:
                if last := over.is_set():
                    until_home(self.cluster, self._has_said_all)
                said = "".join(block.decode(errors="replace") for _, block in self.blocks(read))
                if said or (quiet and changed.is_set()):
                    changed.clear()
                    yield all_plain(said)
                if last:
                    return
                over.wait(every)
        finally:
            end()

    def fetch(self, folder: str | Path) -> Path:
        """Put what it keeps, as it was brought here last, into `folder`, which must not be there or
        be empty.

        Raises ClusterError where there is nothing yet, where it is over and the last of it does not
        come here from the VM of the controller, or the folder cannot be made.
        """
        target = Path(folder).expanduser()
        home = until_home(self.cluster, self._has_kept_all)
        job = self.state
        if job.kept:
            here = newest(self.directory, job.kept.number)
        else:
            here = 0
        if not here:
            if job.spec.keep:
                why = "nothing of it is here yet"
            else:
                why = "it was declared without --keep"
            raise ClusterError(f"{self.name} has nothing to fetch: {why}", where=self.cluster.name)
        cluster = self.cluster.state
        if not home and job.over and cluster.seat and not cluster.over:
            what = f"The last of what {self.name} kept is on {cluster.seat} and has not come here"
            fix = f"Try again in a moment; {path_of(self.directory, here)} has what came last."
            raise ClusterError(what, where=self.cluster.name, fix=fix)
        try:
            if target.is_dir():
                target.rmdir()
            elif target.exists():
                raise ClusterError(f"{target} is no folder", fix="Name another one.")
            unpack(path_of(self.directory, here), target)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError):
                why = error.strerror or str(error)
            else:
                why = str(error)
            raise ClusterError(
                f"{target} cannot be made: {why}", fix="Name a folder that is not there yet."
            ) from error
        return target

    def _has_kept_all(self) -> bool:
        """Whether the archive that was told of last is here."""
        job = self.cluster.state.of(JobState).get(self.name)
        return job is None or job.kept is None or path_of(self.directory, job.kept.number).exists()

    def _has_said_all(self) -> bool:
        """Whether the last lines of rank 0 are here, once it has ended."""
        job = self.cluster.state.of(JobState).get(self.name)
        if job and job.vms:
            exited = job.exits.get(job.vms[0])
        else:
            exited = None
        return exited is None or all_plain(self.output()).rstrip().endswith(
            all_plain(exited.tail).rstrip()
        )

    def _is_home(self) -> bool:
        return self._has_said_all() and self._has_kept_all()

    def _failure(self, work: JobState) -> str:
        failure = super()._failure(work)
        last = text.plain(work.tail).strip()
        if failure and last:
            return f"{failure}. It said last:\n{last}"
        return failure


handle = Job


def job(name: str | None = None, cluster: Cluster | str | None = None) -> Job:
    """Return the job called `name`, as `tm.run` finds a run. Raises UnknownWorkError and
    ClusterError.
    """
    return find_work("job", name, cluster)
