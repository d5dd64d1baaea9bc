"""The handle of a cluster.

It imports no kind of work: `kinds.load` loads handles and declarations of work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from ..errors import ClusterError, DeclarationError, TransientError, UnknownWorkError, unknown
from ..journal import ClusterState, RunState
from ..journal.declared import agreed, was_elsewhere
from ..kinds import KINDS, load
from ..protocol.checks import is_name
from ..protocol.cluster_commands import Agree, Delete, GiveUp, Logs, Relocate, Resize, Revoke
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
    """The handle of one cluster.

    `tm.declare`, `tm.cluster` and `tm.attach` return handles. A handle stores nothing: it reads the
    cluster's journal and sends commands to the cluster's controller. It remains the handle of the
    cluster that had the name when the handle was created, even if a later cluster gets that name.

    As a context manager, it deletes the cluster at the end of the block.

    Parameters
    ----------
    name
        The name of the cluster.

    Attributes
    ----------
    name : str
        The name of the cluster.
    state : ClusterState
        The present state.
    directory : Path
        The folder with the cluster's journal, results and logs.

    Examples
    --------
    >>> with tm.declare("k80x4") as cluster:
    ...     cluster.wait()
    ...     job = cluster.run("python train.py", keep="checkpoints/")
    ...     job.wait()
    """

    def __enter__(self) -> Self:
        """Return the handle."""
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the cluster and wait until it is deleted. Raises as `delete`."""
        self.delete()

    @property
    def of_study(self) -> str:
        """The study that declared the cluster for itself and deletes it; empty if there is none."""
        for kind in KINDS.values():
            for path in sorted((self.directory / kind.folder).glob(f"*/{kind.file}")):
                name = path.parent.name
                if is_name(name) and self._handle(kind.name, name).alone:
                    return name
        return ""

    def revoke(self, worker: str, seconds: float = 0.0) -> None:
        """Revoke a worker, by a simulated maintenance event of Compute Engine.

        Parameters
        ----------
        worker
            The name of the VM, such as `worker-1`.
        seconds
            The time until the notice, in seconds. The VM stops 30 seconds after the notice.

        Raises
        ------
        ClusterError
            The cluster has no such VM, or is deleted.

        Examples
        --------
        >>> cluster.revoke("worker-1", seconds=60)
        """
        commands.send(self.directory, Revoke(vm=worker, seconds=seconds))

    def agree(self, proposal: int | None = None) -> tuple[str, ...]:
        """Accept the proposed release of workers (`--give-up ask`).

        To release other workers instead, revoke them. Revoked workers count too.

        Parameters
        ----------
        proposal
            The number of the proposal (default: the present one).

        Returns
        -------
        tuple of str
            The names of the released workers.

        Raises
        ------
        ClusterError
            There is no proposal, or it has changed.
        """
        reclaim = self.state.reclaim
        going = self.state.proposed_to_go
        if reclaim is None or reclaim.proposed is None or not going:
            raise ClusterError(
                f"{self.name} has no proposal to agree to",
                fix="Its panel and `status` show proposals.",
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
        """Shrink VMs, or restore them.

        Parameters
        ----------
        worker
            The name of a VM. With `restore`, all VMs by default.
        cpu, network
            The share of its CPU and of its network that the VM keeps, from 0.05 to 1. The VM
            continues to run.
        machine_type
            The new machine type, such as `n1-standard-2`, instead of `cpu` and `network`. The
            worker leaves its run, is stopped, changed and started again, and rejoins the run.
        reclaim
            The number of vCPUs to take from all workers together, instead of from one worker.
        policy
            How to share `reclaim`: `proportional` to the size of workers (default), `priority`
            (the most expensive worker keeps at least half, cheaper ones less) or `deterministic`
            (one worker after the other, the cheapest first).
        restore
            Restore the VM, or all VMs, to their rented size.

        Returns
        -------
        list of Deflated
            The present size of each VM. A VM that changes its machine type is listed as soon as the
            controller has received the command; `events` has each step.

        Raises
        ------
        DeclarationError
            Options contradict each other, or the VM cannot have this size.
        ClusterError
            The cluster is in a project: Compute Engine does not shrink running VMs. Changes of a
            machine type are possible there.

        Examples
        --------
        >>> cluster.deflate("worker-1", cpu=0.5)
        >>> cluster.deflate(restore=True)
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
        """Return the weather of the emulator, after changing settings.

        Parameters
        ----------
        settings
            The options of `%transient_weather` by name, such as `revocations="published"`,
            `hours_per_minute=60` or `stockout=["us-west1-b:k80"]`. None resets a setting, and
            `reset=True` resets all.

        Raises
        ------
        DeclarationError
            A setting is unknown or invalid.
        ClusterError
            The cluster is in a project.

        Examples
        --------
        >>> cluster.weather(revocations="every=60s")
        """
        from .project.weather import weather

        return weather(self, settings)

    def resize(
        self, spec: str = "", *, ps: int | None = None, give_up: GiveUp | None = None
    ) -> None:
        """Change the workers, or the number of parameter servers.

        Parameters
        ----------
        spec
            The workers after the resize, such as `k80x6`.
        ps
            The number of parameter servers, instead of `spec`. Runs continue from a checkpoint.
        give_up
            The workers to release first: the `slowest`, the `youngest`, the `riskiest` or the
            `costliest` (default: as the cluster was declared, else those with the highest numbers).

        Raises
        ------
        DeclarationError
            The workers are invalid or more than the cluster's limit.
        ClusterError
            The cluster cannot be resized at present.

        Examples
        --------
        >>> cluster.resize("k80x6")
        """
        from .declaring import relocated, resized
        from .declaring.runs import refuse_unknown_speeds

        if bool(spec) == bool(ps) or (ps and give_up):
            raise DeclarationError(
                "A resize needs workers or --ps N, not both", fix="For example: k80x6"
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
        """Move the cluster to another zone or another GPU.

        New VMs are rented, runs continue there from a checkpoint, then the old VMs are deleted. If
        the relocation fails, the cluster remains as it was.

        Parameters
        ----------
        zone
            The new zone.
        gpus
            The new GPU.
        yes
            Whether to relocate. Without it, only the price is computed.

        Returns
        -------
        Relocation
            The price of the move and of its data transfer, shown as sentences.

        Raises
        ------
        DeclarationError
            The zone does not have the GPU, or it is unknown.
        ClusterError
            The cluster cannot be relocated at present.

        Examples
        --------
        >>> cluster.relocate("us-east1-c")
        >>> cluster.relocate("us-east1-c", yes=True)
        """
        from .declaring import Relocation, relocated

        if not (zone or gpus):
            raise DeclarationError(
                "A relocation needs a zone or a GPU", fix="For example: --zone us-east1-c"
            )
        before = self._current
        spec = relocated(before, zone, gpus)
        answer = commands.send(self.directory, Relocate(spec=spec.to_dict()))
        if yes:
            commands.send(self.directory, Relocate(spec=spec.to_dict(), agreed=True))
        return Relocation.of(before, spec, answer, begun=yes)

    @property
    def _current(self) -> ClusterSpec:
        """The present declaration, from files of this machine only, as the base of a change."""
        if due := self.state.deadline_run:
            raise ClusterError(
                f"{self.name} changes its workers automatically, because {due.name} has a deadline",
                fix=f"Stop {due.name} first, or declare another cluster.",
            )
        history = self.events()
        if was_elsewhere(history):
            current = agreed(self.directory, history)
        else:
            current = self.state.spec
        if current is None:
            raise ClusterError(f"{self.name} is not declared yet", fix="Try again in a moment.")
        return current

    def logs(self, worker: str, lines: int = 200) -> Log:
        """Return the last lines of a VM's log.

        Parameters
        ----------
        worker
            The name of the VM, such as `worker-1` or `ps-0`.
        lines
            The number of lines.

        Raises
        ------
        ClusterError
            The cluster has no such VM, or the VM does not answer.
        """
        return Log(commands.send(self.directory, Logs(vm=worker, lines=lines))["text"])

    def delete(self, timeout: float | None = 300.0) -> None:
        """Delete all VMs of the cluster, and keep the results. Do nothing if it is deleted.

        Parameters
        ----------
        timeout
            The time limit of the wait until Compute Engine lists no VM, in seconds. None or 0: do
            not wait.

        Raises
        ------
        ClusterError
            The VMs are not deleted after `timeout` seconds.
        """
        if self.state.over:
            return
        try:
            commands.send(self.directory, Delete())
        except ClusterError:
            if not self.state.over:  # another process may have deleted it first
                raise
        if timeout:
            self.wait(timeout, until="deleted")

    def run(self, name: str | None = None, /, **options: Any) -> Any:
        """Return a run, or declare a job from a command.

        Parameters
        ----------
        name
            The name of the run (default: the latest). Text with blanks, or any text with options,
            is the command of a new job.
        options
            The options of `tm.declare_job`.

        Returns
        -------
        Run or Job
            The handle.

        Raises
        ------
        UnknownWorkError
            The cluster has no such run.
        DeclarationError
            An option is invalid.

        Examples
        --------
        >>> cluster.run("run-1").cost()
        >>> cluster.run("python train.py", keep="checkpoints/")
        >>> cluster.run("make", workers=1)
        """
        if name and (options or not is_name(name)):
            return load("job", "declare").declare_job(name, cluster=self, **options)
        return load("run", "handle").Run(self._name_of("run", name), self)

    def job(self, name: str | None = None) -> Any:
        """Return the job called `name` (default: the latest).

        Raises
        ------
        UnknownWorkError
            The cluster has no such job.
        """
        return self.of_kind("job", name)

    def bag(self, name: str | None = None) -> Any:
        """Return the bag called `name` (default: the latest).

        Raises
        ------
        UnknownWorkError
            The cluster has no such bag.
        """
        return self.of_kind("bag", name)

    def study(self, name: str | None = None) -> Any:
        """Return the study called `name` (default: the latest).

        Raises
        ------
        UnknownWorkError
            The cluster has no such study.
        """
        return self.of_kind("study", name)

    def stalls(self, name: str | None = None) -> Any:
        """Return the measurement of stalls called `name` (default: the latest).

        Raises
        ------
        UnknownWorkError
            The cluster has no such measurement.
        """
        measured = [run.name for run in self.state.of(RunState).values() if run.spec.stalls]
        chosen = name or next(reversed(measured), "")
        if chosen not in measured:
            raise _unknown(self.name, "measurement of stalls", name, measured)
        return self._handle("run", chosen)

    def of_kind(self, kind: str, name: str | None = None) -> Any:
        """Return the handle of work of a kind, such as `job` (default: the latest of the kind).

        Raises
        ------
        UnknownWorkError
            The cluster has no such work.
        """
        return self._handle(kind, self._name_of(kind, name))

    def find(self, name: str) -> Any:
        """Return the handle of the work called `name`, of any kind.

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
        """Return all work of the cluster, oldest first, as `tm.work`."""
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
            The number of workers that may crash with a task before the task fails. Revocations do
            not count.
        timeout
            The time limit of the wait for the scheduler, in seconds. After it, the Dask cluster is
            stopped.

        Returns
        -------
        Dask
            The handle. Its `client` is a `distributed.Client`. As a context manager, it stops the
            Dask cluster at the end of the block.

        Raises
        ------
        DeclarationError
            Dask is not installed on this machine, or not in the versions of the VMs; or `workers`
            is too large.
        ClusterError
            The scheduler does not answer in time, or this process has another Dask cluster on this
            cluster.
        RemoteError
            The scheduler's VM cannot be reached.

        Examples
        --------
        >>> with cluster.dask(workers=4) as dask:
        ...     dask.client.submit(sum, range(10)).result()
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
        """Return `name`, or the name of the latest work of the kind. Raises UnknownWorkError."""
        state = self.state
        names = [*state.of_kind(kind)]
        chosen = name or next(reversed(names), "")
        if not self._has(state, kind, chosen):
            raise _unknown(self.name, str(KINDS[kind]), name, names)
        return chosen

    def _has(self, state: ClusterState, kind: str, name: str) -> bool:
        """Return whether work is in the journal, or declared in a folder of this machine."""
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


def _unknown(cluster: str, what: str, name: str | None, names: Sequence[str]) -> TransientError:
    if name is None:
        return UnknownWorkError(f"{cluster} has no {what} yet")
    return unknown(what, name, names, where=cluster, numbered=True, error=UnknownWorkError)
