"""The handle of a cluster.

It does not import any kind of work: it reaches handles and declarations of work by `kinds.load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from ..errors import ClusterError, DeclarationError, TransientError, UnknownWorkError, unknown
from ..journal import ClusterState, RunState
from ..journal.declared import agreed, was_elsewhere
from ..kinds import KINDS, load
from ..protocol.cluster_commands import Agree, Delete, GiveUp, Logs, Relocate, Resize, Revoke
from ..protocol.names import is_name
from ..spec import ClusterSpec
from . import commands
from .display_hook import Log, displayed
from .following.cluster import BaseCluster
from .work_list import WorkList, listed_names

if TYPE_CHECKING:
    from .declaring import Relocation
    from .project.deflation import Deflated
    from .project.weather import Weather


class Cluster(BaseCluster):
    """One cluster: the one that has the name when the handle is made, also once another cluster has
    taken that name.

    As a context manager it is deleted at the end of the block, whatever happened there.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the cluster and wait until it is gone. Raises as `delete` does."""
        self.delete()

    @property
    def of_study(self) -> str:
        """The study that has it for itself, and with which it goes; else nothing."""
        for kind in KINDS.values():
            for path in sorted((self.directory / kind.folder).glob(f"*/{kind.file}")):
                name = path.parent.name
                if is_name(name) and self._handle(kind.name, name).alone:
                    return name
        return ""

    def revoke(self, worker: str, seconds: float = 0.0) -> None:
        """Have Compute Engine take the VM of `worker` back (simulateMaintenanceEvent), after
        `seconds`.
        """
        commands.send(self.directory, Revoke(vm=worker, seconds=seconds))

    def agree(self, proposal: int | None = None) -> tuple[str, ...]:
        """Give up the workers that are proposed where the provider wants some back (`--give-up
        ask`), or those of the proposal of that number; return their names. To give up others,
        revoke them: they count.

        Raises ClusterError where nothing is proposed, or something else by now.
        """
        reclaim = self.state.reclaim
        going = self.state.proposed_to_go
        if reclaim is None or reclaim.proposed is None or not going:
            raise ClusterError(
                f"Nothing is proposed for {self.name}", fix="Its panel shows what is."
            )
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
            The share of its CPU and of its network that the VM keeps, from 0.05 to 1. It continues
            to run.
        machine_type
            Instead of these, stop the worker, change its machine type, such as "n1-standard-2", and
            start it again. The worker leaves its run before and joins it again.
        reclaim
            Instead of a worker, take this number of vCPUs from all workers together.
        policy
            How `reclaim` is shared out: `proportional` to the workers' size (default), `priority`
            (the dearest keeps at least half, cheaper ones less) or `deterministic` (one after the
            other, the cheapest first).
        restore
            Restore the VM, or all, to what was rented.

        Returns
        -------
        list of Deflated
            What each VM has now. A VM that becomes another machine is listed as soon as the
            controller has the command; `events` has each step.

        Raises
        ------
        DeclarationError
            For options that contradict each other, and for what a VM cannot become.
        ClusterError
            For a cluster in a project, except for changes of a machine type: Compute Engine shrinks
            no VM that runs.
        """
        from .project import deflation

        given = {
            "worker": worker,
            "cpu": cpu,
            "network": network,
            "machine_type": machine_type,
            "reclaim": reclaim,
            "policy": policy,
            "restore": restore or None,
        }
        values = {name: value for name, value in given.items() if value is not None and value != ""}
        return list(deflation.deflate(self, **values))

    def weather(self, **settings: Any) -> Weather:
        """What the emulator that the cluster lives in does to VMs; sets what is given first.

        Settings are called as the options of `%transient_weather`: `revocations="published"`,
        `hours_per_minute=60`, `stockout=["us-west1-b:k80"]`, ...; None is as in fair weather,
        `reset=True` makes all of it fair. Raises DeclarationError, and ClusterError for a cluster
        in a project, where the weather is Google's.
        """
        from .project.weather import weather

        return weather(self, settings)

    def resize(
        self, spec: str = "", *, ps: int | None = None, give_up: GiveUp | None = None
    ) -> None:
        """Have the workers of `spec` instead, or so many parameter servers: its runs go on from a
        checkpoint then.

        `give_up`: who goes where there are to be fewer workers, the `slowest`, the `youngest`, the
        `riskiest` or the `dearest`; None: as it was declared, else those with the highest places.
        Raises DeclarationError and ClusterError.
        """
        from .declaring import relocated, resized
        from .declaring.runs import refuse_unknown_speeds

        if bool(spec) == bool(ps) or (ps and give_up):
            raise DeclarationError(
                "A resize takes either other workers or --ps N", fix="For example: k80x6"
            )
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
        """Move to another zone, or to another GPU: new VMs first, then its runs go on there, then
        the old ones go.

        Without `yes` it is only told what that costs, data transfer among it. A move that fails
        leaves the cluster as it was. Raises DeclarationError and ClusterError where there can be
        none.
        """
        from .declaring import Relocation, relocated

        if not (zone or gpus):
            raise DeclarationError(
                "A move needs a zone or a GPU", fix="For example: --zone us-east1-c"
            )
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
        if was_elsewhere(history):
            current = agreed(self.directory, history)
        else:
            current = self.state.spec
        if current is None:
            raise ClusterError(f"{self.name} is not declared yet")
        return current

    def logs(self, worker: str, lines: int = 200) -> Log:
        """The last lines that `worker` (a VM's name) wrote in the latest run."""
        return Log(commands.send(self.directory, Logs(vm=worker, lines=lines))["text"])

    def delete(self, timeout: float | None = 300.0) -> None:
        """End every VM and wait until Compute Engine lists none. Results stay. Deleting twice is no
        mistake.
        """
        if self.state.over:
            return
        try:
            commands.send(self.directory, Delete())
        except ClusterError:
            if not self.state.over:  # somebody else's deletion may have come first
                raise
        if timeout:
            self.wait(timeout, until="deleted")

    def run(self, name: str | None = None, /, **options: Any) -> Any:
        """Return the run called `name` (default: the latest). Raises UnknownWorkError if there is
        none.

        Of a command, which has blanks or options behind it, begin a job: `run("python train.py",
        keep="checkpoints/")` is `declare_job` on this cluster. A command of one word is
        `run("make", workers=1)`.
        """
        if name and (options or not is_name(name)):
            return load("job", "declare").declare_job(name, cluster=self, **options)
        return load("run", "handle").Run(self._name_of("run", name), self)

    def job(self, name: str | None = None) -> Any:
        """Return the job called `name` (default: the latest). Raises UnknownWorkError if there is
        none.
        """
        return self.of_kind("job", name)

    def bag(self, name: str | None = None) -> Any:
        """Return the bag called `name` (default: the latest). Raises UnknownWorkError if there is
        none.
        """
        return self.of_kind("bag", name)

    def study(self, name: str | None = None) -> Any:
        """Return the study called `name` (default: the latest). Raises UnknownWorkError if there is
        none.
        """
        return self.of_kind("study", name)

    def stalls(self, name: str | None = None) -> Any:
        """Return the measurement of stalls called `name` (default: the latest). Raises
        UnknownWorkError.
        """
        measured = [run.name for run in self.state.of(RunState).values() if run.spec.stalls]
        chosen = name or next(reversed(measured), "")
        if chosen not in measured:
            raise _unknown(self.name, "measurement of stalls", name, measured)
        return self._handle("run", chosen)

    def of_kind(self, kind: str, name: str | None = None) -> Any:
        """Return the handle of the work of a kind, such as `job`, called `name` (default: the
        latest).

        Raises
        ------
        UnknownWorkError
            The cluster has no such work.
        """
        return self._handle(kind, self._name_of(kind, name))

    def find(self, name: str) -> Any:
        """Return the handle of the work called `name`, of whichever kind it is.

        Raises
        ------
        UnknownWorkError
            The cluster has no work of this name.
        """
        state = self.state
        kind = state.kind_by_name.get(name) or next(
            (kind for kind in KINDS if self._has(state, kind, name)), None
        )
        if kind is None:
            raise _unknown(self.name, "work", name, [*state.kind_by_name])
        return self._handle(kind, name)

    def work(self) -> WorkList:
        """Return all work of the cluster, the oldest first, as `tm.work` does."""
        return WorkList(self.find(name) for name in listed_names(self.state))

    def dask(
        self,
        workers: int | None = None,
        *,
        threads: int = 0,
        memory_bytes: int = 0,
        allowed_failures: int = 3,
        timeout: float = 900.0,
    ) -> Any:
        """Start a Dask cluster on VMs of this cluster, and block until its scheduler answers.

        Workers join when their VMs are ready. A second call returns the same Dask cluster while its
        client is open.

        Parameters
        ----------
        workers
            The number of VMs, each with one worker process (default: all VMs).
        threads
            Threads of each worker process (default: the cores of its VM).
        memory_bytes
            Memory of each worker process, in bytes (default: nine tenths of its VM's).
        allowed_failures
            The number of workers that may crash while they have a task before the task fails.
            Revocations do not count.
        timeout
            Seconds after which the wait for the scheduler ends, and with it the Dask cluster.

        Returns
        -------
        Dask
            Its `client` is a `distributed.Client`. As a context manager it is stopped at the end of
            the block.

        Raises
        ------
        DeclarationError
            Dask is not installed here, or not in the versions that the VMs have; or `workers` is
            too large.
        ClusterError
            The scheduler does not answer in time; or this process has another Dask cluster here.
        RemoteError
            No connection to the scheduler's VM can be made.
        """
        return load("dask", "declare").begin_dask(
            self,
            workers,
            threads=threads,
            memory_bytes=memory_bytes,
            allowed_failures=allowed_failures,
            timeout=timeout,
        )

    def _handle(self, kind: str, name: str) -> Any:
        return load(kind, "handle").handle(name, self)

    def _name_of(self, kind: str, name: str | None) -> str:
        """Return `name` if the cluster has such work, without one the latest of the kind. Raises
        UnknownWorkError.
        """
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
        return (
            is_name(name)
            and (self.directory / KINDS[kind].folder / name / KINDS[kind].file).exists()
        )

    def __repr__(self) -> str:
        return f"<Cluster {self.name}: {self.state.phase}>"

    def _repr_mimebundle_(self, **_: Any) -> Any:
        return displayed(self)


def _unknown(cluster: str, what: str, name: str | None, known: Sequence[str]) -> TransientError:
    if name is None:
        return UnknownWorkError(f"{cluster} has no {what} yet")
    return unknown(what, name, known, where=cluster, numbered=True, error=UnknownWorkError)
