"""The handle of a job."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ClusterError, TrainingError
from ...journal import ClusterState, Cost, JobState, costs, now
from ...protocol import layout
from ...protocol.checks import all_plain
from ...protocol.cluster_commands import Stop
from ...runtime.jobs.archive import newest, path_of, unpack
from .. import commands, text
from ..following.follower import follower
from ..following.home import until_home
from ..shown import Log

if TYPE_CHECKING:
    from .cluster import Cluster

_MOST_OUTPUT = 256 * 1024


class Job:
    """One job of one cluster: a command that goes on elsewhere when its VM is taken."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name = name
        self.cluster = cluster

    @property
    def directory(self) -> Path:
        """The folder with its declaration, its output, and the folder that it keeps, as archives."""
        return self.cluster.directory / layout.JOBS / self.name

    @property
    def state(self) -> JobState:
        """What the journal says now. Raises ClusterError until the controller has heard of the job."""
        found = self.cluster.state.jobs.get(self.name)
        if found is None:
            raise ClusterError(f"{self.name} has not begun", where=self.cluster.name, fix="Try again in a moment.")
        return found

    def output(self, lines: int | None = None) -> Log:
        """What its command has said so far, of all attempts one after the other: of several VMs that of rank 0, and
        all of it or its last `lines`. At most the last 256 KiB; all of it lies in `directory`, a file for each attempt
        and rank."""
        said = b"".join(block for _, block in self.blocks({}))[-_MOST_OUTPUT:].decode(errors="replace")
        return Log(said if lines is None else "\n".join(said.splitlines()[-lines:]))

    def blocks(self, read: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        """What rank 0 has said since `read`, which is what was read of each file and becomes what is read now."""
        found = [path for path in (self.directory / layout.OUTPUT).glob("*-0.log") if path.stem[:-2].isdecimal()]
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
        """What rank 0 says, from the first line on and as it comes, until the job is over. `quiet`: also nothing, where
        something else about the job has changed. Looks every so many seconds."""
        over, changed = threading.Event(), threading.Event()

        def see(state: ClusterState, _: object) -> None:
            changed.set()
            if state.over or self.is_over(state):
                over.set()

        end, read = follower().subscribe(self.cluster.identity, see), dict[str, int]()
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

    def wait(self, timeout: float | None = None) -> JobState:
        """Block until the job is over and what it left is here, and return how it is then.

        Raises TrainingError where it failed, with its last lines, or is not over after `timeout` seconds. Interrupting
        the wait changes nothing: the job goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        state = self.cluster.follow(lambda state: state.over or self.is_over(state), timeout)
        if state is None:
            raise TrainingError(f"{self.name} is not over after {timeout:.0f} s", where=self.cluster.name)
        job = state.jobs.get(self.name)
        if job is None:
            raise TrainingError(f"{self.cluster.name} was deleted before {self.name} began")
        until_home(self.cluster, lambda: self._has_said_all() and self._has_kept_all(), deadline=deadline)
        if job.phase == "failed":
            last = text.plain(job.tail).strip()
            what = f"{self.name} failed: {job.reason.rstrip('.')}" + (f". It said last:\n{last}" if last else "")
            raise TrainingError(what, where=self.cluster.name)
        return job

    def is_over(self, state: ClusterState) -> bool:
        """Whether in this state of its cluster it will not run any more."""
        job = state.jobs.get(self.name)
        return job is not None and job.over

    def __await__(self) -> Generator[Any, None, JobState]:
        """`await job`: like `wait`, while the notebook's loop goes on."""
        return asyncio.to_thread(self.wait).__await__()

    def stop(self) -> None:
        """End it: its command is told (SIGTERM), and what it keeps is brought here once more."""
        commands.send(self.cluster.directory, Stop(kind="job", name=self.name))

    def cost(self) -> Cost:
        """Return what it has cost so far, in US dollars, as `Run.cost` counts it; final once it is over."""
        return costs(self.cluster.state, now()).get(self.name) or Cost(subject=self.name, total=0.0)

    def fetch(self, folder: str | Path) -> Path:
        """Put what it keeps, as it was brought here last, into `folder`, which must not be there or be empty.

        Raises ClusterError where there is nothing yet, where it is over and the last of it does not come here from the
        VM of the controller, or the folder cannot be made.
        """
        target = Path(folder).expanduser()
        home = until_home(self.cluster, self._has_kept_all)
        job = self.state
        here = newest(self.directory, job.kept.number) if job.kept else 0
        if not here:
            why = "nothing of it is here yet" if job.spec.keep else "it was declared without --keep"
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
            why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            raise ClusterError(f"{target} cannot be made: {why}", fix="Name a folder that is not there yet.") from error
        return target

    def _has_kept_all(self) -> bool:
        """Whether the archive that was told of last is here."""
        job = self.cluster.state.jobs.get(self.name)
        return job is None or job.kept is None or path_of(self.directory, job.kept.number).exists()

    def _has_said_all(self) -> bool:
        """Whether the last lines of rank 0 are here, once it has ended."""
        job = self.cluster.state.jobs.get(self.name)
        exited = job.exits.get(job.vms[0]) if job and job.vms else None
        return exited is None or all_plain(self.output()).rstrip().endswith(all_plain(exited.tail).rstrip())

    def __str__(self) -> str:
        job = self.cluster.state.jobs.get(self.name)
        return f"{self.name}: {text.job_words(job) if job else 'declared'}."

    def __repr__(self) -> str:
        job = self.cluster.state.jobs.get(self.name)
        return f"<Job {self.name} on {self.cluster.name}: {job.phase if job else 'declared'}>"
