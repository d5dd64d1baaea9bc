"""The handle of a cluster."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from ...errors import ClusterError, DeclarationError, TransientError, UnknownWorkError, unknown
from ...journal import Bill, ClusterState, Event, RunState, bill, events, kept, now, read, replay
from ...journal.declared import ATTACHED, agreed, was_elsewhere
from ...journal.store import restore
from ...kinds import KINDS
from ...protocol import layout
from ...protocol.cluster_commands import Agree, Delete, GiveUp, Logs, Relocate, Resize, Revoke
from ...protocol.names import is_name
from ...spec import ClusterSpec
from .. import commands
from ..following.follower import follower
from ..following.identity import Identity
from ..following.watch import is_of
from ..shown import Log, displayed
from .bag import Bag
from .dask import Dask
from .job import Job
from .run import Run
from .stalls import Stalls
from .study import Study
from .work import WorkList

if TYPE_CHECKING:
    from ..declaring import Relocation
    from ..project.deflation import Deflated
    from ..project.weather import Weather

_HANDLES = {handle.kind: handle for handle in (Run, Study, Job, Bag, Dask)}


class Cluster:
    """One cluster: the one that has the name when the handle is made, also once another cluster has taken that name.

    As a context manager it is deleted at the end of the block, whatever happened there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._identity = Identity.of(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the cluster and wait until it is gone. Raises as `delete` does."""
        self.delete()

    @property
    def identity(self) -> Identity:
        """The cluster's name and id."""
        if not self._identity.id:  # it had no folder before
            self._identity = Identity.of(self.name)
        return self._identity

    @property
    def directory(self) -> Path:
        """The folder with the cluster's journal, runs and logs."""
        return self.identity.directory

    @property
    def followed(self) -> str:
        """Of a cluster that another machine declared: what this machine follows, in a sentence; else nothing."""
        try:
            return (self.directory / ATTACHED).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    @property
    def of_study(self) -> str:
        """The study that has it for itself, and with which it goes; else nothing."""
        names = sorted(path.parent.name for path in (self.directory / layout.STUDIES).glob(f"*/{layout.STUDY}"))
        return next((name for name in names if is_name(name) and Study(name, self).alone), "")

    @property
    def state(self) -> ClusterState:
        """What the journal says now; what was declared, until its first line is written."""
        journal = self.directory / layout.JOURNAL
        state = kept(journal).read()
        if not state.seq and restore(journal):
            state = kept(journal).read()
        return state if state.seq else replay(self._declared())

    def _declared(self) -> list[Event]:
        try:
            spec = agreed(self.directory)
        except DeclarationError:
            return []
        return [events.ClusterDeclared(spec=spec.to_dict(), time=int(1e9 * spec.declared_at))]

    def events(self, kind: str | None = None) -> list[Event]:
        """All events, or those of one kind (`vm.revoked`) or family (`vm`)."""
        every = read(self.directory / layout.JOURNAL)
        return [event for event in every if is_of(event, kind)]

    def wait(self, timeout: float | None = None, until: str = "ready") -> ClusterState:
        """Block until the cluster is `ready` or `deleted`. Raises ClusterError when that cannot be any more.

        Interrupting the wait changes nothing: the cluster goes on.
        """

        def reached(state: ClusterState) -> bool:
            if until == "ready" and state.phase in ("deleting", "deleted"):
                what = "is deleted" if state.over else "is being deleted"
                raise ClusterError(f"{self.name} {what}: {state.reason or 'asked by the user'}")
            return state.phase == until or state.over

        state = self.follow(reached, timeout)
        if state is None:
            now = self.state
            waiting = ", ".join(f"{vm.name} {vm.state}" for vm in now.living if vm.state != "ready")
            what = f"{self.name} is not {until} after {timeout:.0f} s"
            raise ClusterError(f"{what} ({waiting})" if waiting else what, fix=now.trouble)
        return state

    def follow(self, reached: Callable[[ClusterState], bool], timeout: float | None = None) -> ClusterState | None:
        """Block until `reached(state)`; None after `timeout` seconds. What `reached` raises is raised here."""
        states: queue.SimpleQueue[ClusterState] = queue.SimpleQueue()
        end = follower().subscribe(self.identity, lambda state, _: states.put(state))
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                try:
                    state = states.get(timeout=min(left or 0.5, 0.5))  # wakes often, so that Ctrl-C is heard
                except queue.Empty:
                    continue
                if reached(state):
                    return state
        finally:
            end()

    def revoke(self, worker: str, seconds: float = 0.0) -> None:
        """Have Compute Engine take the VM of `worker` back (simulateMaintenanceEvent), after `seconds`."""
        commands.send(self.directory, Revoke(vm=worker, seconds=seconds))

    def agree(self, proposal: int | None = None) -> tuple[str, ...]:
        """Give up the workers that are proposed where the provider wants some back (`--give-up ask`), or those of the
        proposal of that number; return their names. To give up others, revoke them: they count.

        Raises ClusterError where nothing is proposed, or something else by now.
        """
        reclaim, going = self.state.reclaim, self.state.proposed_to_go
        if reclaim is None or reclaim.proposed is None or not going:
            raise ClusterError(f"Nothing is proposed for {self.name}", fix="Its panel shows what is.")
        commands.send(self.directory, Agree(run="", proposal=proposal or reclaim.proposed.seq))
        return going

    def deflate(
        self,
        worker: str = "",
        *,
        cpu: float | None = None,
        network: float | None = None,
        machine_type: str = "",
        reclaim: float | None = None,
        policy: str = "",
        restore: bool = False,
    ) -> list[Deflated]:
        """Shrink a VM or several, or restore them.

        Parameters
        ----------
        worker
            The name of a VM. With `restore`, all VMs by default.
        cpu, network
            The share of its CPU and of its network that the VM keeps, from 0.05 to 1. It continues to run.
        machine_type
            Instead of these, stop the worker, change its machine type, such as "n1-standard-2", and start it again.
            The worker leaves its run before and joins it again.
        reclaim
            Instead of a worker, take this number of vCPUs from all workers together.
        policy
            How `reclaim` is shared out: `proportional` to the workers' size (default), `priority` (the dearest keeps
            at least half, cheaper ones less) or `deterministic` (one after the other, the cheapest first).
        restore
            Restore the VM, or all, to what was rented.

        Returns
        -------
        list of Deflated
            What each VM has now. A VM that becomes another machine is listed as soon as the controller has the
            command; `events` has each step.

        Raises
        ------
        DeclarationError
            For options that contradict each other, and for what a VM cannot become.
        ClusterError
            For a cluster in a project, except for changes of a machine type: Compute Engine shrinks no VM that runs.
        """
        from ..project import deflation

        given = {
            "worker": worker, "cpu": cpu, "network": network, "machine_type": machine_type, "reclaim": reclaim,
            "policy": policy, "restore": restore or None,
        }  # fmt: skip
        values = {name: value for name, value in given.items() if value is not None and value != ""}
        return list(deflation.deflate(self, **values))

    def weather(self, **settings: Any) -> Weather:
        """What the emulator that the cluster lives in does to VMs; sets what is given first.

        Settings are called as the options of `%transient_weather`: `revocations="published"`, `hours_per_minute=60`,
        `stockout=["us-west1-b:k80"]`, ...; None is as in fair weather, `reset=True` makes all of it fair. Raises
        DeclarationError, and ClusterError for a cluster in a project, where the weather is Google's.
        """
        from ..project.weather import weather

        return weather(self, settings)

    def resize(self, spec: str = "", *, ps: int | None = None, give_up: GiveUp | None = None) -> None:
        """Have the workers of `spec` instead, or so many parameter servers: its runs go on from a checkpoint then.

        `give_up`: who goes where there are to be fewer workers, the `slowest`, the `youngest`, the `riskiest` or the
        `dearest`; None: as it was declared, else those with the highest places.
        Raises DeclarationError and ClusterError.
        """
        from ..declaring import relocated, resized
        from ..declaring.runs import refuse_unknown_speeds

        if bool(spec) == bool(ps) or (ps and give_up):
            raise DeclarationError("A resize takes either other workers or --ps N", fix="For example: k80x6")
        current = self._current
        if ps:
            command = Relocate(spec=relocated(current, servers=ps).to_dict(), agreed=True)
            commands.send(self.directory, command)
        else:
            target = resized(current, spec)
            for run in self.state.of(RunState).values():
                if not run.over and run.spec.batching == "static":
                    refuse_unknown_speeds(target, run.spec.most_workers)
            commands.send(self.directory, Resize(spec=target.to_dict(), give_up=give_up))

    def relocate(self, zone: str = "", *, gpus: str = "", yes: bool = False) -> Relocation:
        """Move to another zone, or to another GPU: new VMs first, then its runs go on there, then the old ones go.

        Without `yes` it is only told what that costs, data transfer among it. A move that fails leaves the cluster as
        it was. Raises DeclarationError and ClusterError where there can be none.
        """
        from ..declaring import Relocation, relocated

        if not (zone or gpus):
            raise DeclarationError("A move needs a zone or a GPU", fix="For example: --zone us-east1-c")
        before = self._current
        spec = relocated(before, zone, gpus)
        told = commands.send(self.directory, Relocate(spec=spec.to_dict()))
        if yes:
            commands.send(self.directory, Relocate(spec=spec.to_dict(), agreed=True))
        return Relocation.of(before, spec, told, begun=yes)

    @property
    def _current(self) -> ClusterSpec:
        """What it is, as far as this machine knows by itself, before somebody makes it another one."""
        if due := self.state.due:
            what = f"{due.name} has a deadline, for which the workers of {self.name} are changed as they have to be"
            raise ClusterError(what, fix=f"Stop {due.name} first, or declare another cluster.")
        history = self.events()
        current = agreed(self.directory, history) if was_elsewhere(history) else self.state.spec
        if current is None:
            raise ClusterError(f"{self.name} is not declared yet")
        return current

    def logs(self, worker: str, lines: int = 200) -> Log:
        """The last lines that `worker` (a VM's name) wrote in the latest run."""
        return Log(commands.send(self.directory, Logs(vm=worker, lines=lines))["text"])

    def delete(self, timeout: float | None = 300.0) -> None:
        """End every VM and wait until Compute Engine lists none. Results stay. Deleting twice is no mistake."""
        if self.state.over:
            return
        try:
            commands.send(self.directory, Delete())
        except ClusterError:
            if not self.state.over:  # somebody else's deletion may have come first
                raise
        if timeout:
            self.wait(timeout, until="deleted")

    def cost(self) -> Bill:
        """Return its bill so far, in US dollars: by work, start-up and idle time, per hour now, and on demand."""
        return bill(self.state, now())

    @overload
    def run(self, name: str | None = None, /) -> Run: ...
    @overload
    def run(self, name: str, /, *, keep: str = "", workers: int = 1, **options: Any) -> Job: ...
    def run(self, name: str | None = None, /, **options: Any) -> Run | Job:
        """Return the run called `name` (default: the latest). Raises UnknownWorkError if there is none.

        Of a command, which has blanks or options behind it, begin a job: `run("python train.py", keep="checkpoints/")`
        is `declare_job` on this cluster. A command of one word is `run("make", workers=1)`.
        """
        if name and (options or not is_name(name)):
            from .. import declare_job  # by the package, which imports it when it is asked for

            return declare_job(name, cluster=self, **options)
        return Run(self._name_of("run", name), self)

    def job(self, name: str | None = None) -> Job:
        """Return the job called `name` (default: the latest). Raises UnknownWorkError if there is none."""
        return Job(self._name_of("job", name), self)

    def bag(self, name: str | None = None) -> Bag:
        """Return the bag called `name` (default: the latest). Raises UnknownWorkError if there is none."""
        return Bag(self._name_of("bag", name), self)

    def study(self, name: str | None = None) -> Study:
        """Return the study called `name` (default: the latest). Raises UnknownWorkError if there is none."""
        return Study(self._name_of("study", name), self)

    def stalls(self, name: str | None = None) -> Stalls:
        """Return the measurement of stalls called `name` (default: the latest). Raises UnknownWorkError."""
        measured = [run.name for run in self.state.of(RunState).values() if run.spec.stalls]
        chosen = name or next(reversed(measured), "")
        if chosen not in measured:
            raise _unknown(self.name, "measurement of stalls", name, measured)
        return Stalls(chosen, self)

    def find(self, name: str) -> Run | Study | Job | Bag | Dask | Stalls:
        """Return the work called `name`, of whichever kind it is.

        Raises
        ------
        UnknownWorkError
            The cluster has no work of this name.
        """
        state = self.state
        kind = state.kind_by_name.get(name) or next((kind for kind in KINDS if self._has(state, kind, name)), None)
        if kind is None:
            raise _unknown(self.name, "work", name, [*state.kind_by_name])
        if name in state.of(RunState) and state.of(RunState)[name].spec.stalls:
            return Stalls(name, self)
        return _HANDLES[kind](name, self)

    def work(self) -> WorkList:
        """Return all work of the cluster, the oldest first, as `tm.work` does."""
        return WorkList([self])

    def dask(
        self, workers: int | None = None, *, threads: int = 0, memory_bytes: int = 0, allowed_failures: int = 3,
        timeout: float = 900.0,
    ) -> Dask:  # fmt: skip
        """Start a Dask cluster on VMs of this cluster, and block until its scheduler answers.

        Workers join when their VMs are ready. A second call returns the same Dask cluster while its client is open.

        Parameters
        ----------
        workers
            The number of VMs, each with one worker process (default: all VMs).
        threads
            Threads of each worker process (default: the cores of its VM).
        memory_bytes
            Memory of each worker process, in bytes (default: nine tenths of its VM's).
        allowed_failures
            The number of workers that may crash while they have a task before the task fails. Revocations do not
            count.
        timeout
            Seconds after which the wait for the scheduler ends, and with it the Dask cluster.

        Returns
        -------
        Dask
            Its `client` is a `distributed.Client`. As a context manager it is stopped at the end of the block.

        Raises
        ------
        DeclarationError
            Dask is not installed here, or not in the versions that the VMs have; or `workers` is too large.
        ClusterError
            The scheduler does not answer in time; or this process has another Dask cluster here.
        RemoteError
            No connection to the scheduler's VM can be made.
        """
        from .. import begin_dask  # by the package, which imports it when it is asked for

        return begin_dask(
            self, workers, threads=threads, memory_bytes=memory_bytes, allowed_failures=allowed_failures,
            timeout=timeout,
        )  # fmt: skip

    def _name_of(self, kind: str, name: str | None) -> str:
        """Return `name` if the cluster has such work, without one the latest of the kind. Raises UnknownWorkError."""
        state = self.state
        known = [*state.of_kind(kind)]
        chosen = name or next(reversed(known), "")
        if not self._has(state, kind, chosen):
            raise _unknown(self.name, str(KINDS[kind]), name, known)
        return chosen

    def _has(self, state: ClusterState, kind: str, name: str) -> bool:
        """Return whether work of a kind is in the journal, or declared in a folder of this machine."""
        if name in state.of_kind(kind):
            return True
        return is_name(name) and (self.directory / KINDS[kind].folder / name / KINDS[kind].file).exists()

    def __repr__(self) -> str:
        return f"<Cluster {self.name}: {self.state.phase}>"

    def _repr_mimebundle_(self, **_: Any) -> Any:
        return displayed(self)


def _unknown(cluster: str, what: str, name: str | None, known: Sequence[str]) -> TransientError:
    if name is None:
        return UnknownWorkError(f"{cluster} has no {what} yet")
    return unknown(what, name, known, where=cluster, numbered=True, error=UnknownWorkError)
