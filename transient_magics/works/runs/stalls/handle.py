"""The handle of a measurement of stalls, which is a run that trains nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....client import lookup
from ....client.cluster_handle import Cluster
from ....client.folders import KnownRun
from ....client.following.follower import follower
from ....client.handle import Handle
from ....client.recorded_run import RecordedRun
from ....errors import ClusterError, UnknownWorkError, unknown
from ....journal import ClusterState, Cost, RunState

if TYPE_CHECKING:
    import pandas

    from ....planner.stalls.terms import Prediction
    from .report import Report


class Stalls(Handle["RunState", "Report"]):
    """A measurement of where the time of a step goes: a run that trains nothing.

    Examples
    --------
    >>> stalls = tm.stalls()
    >>> print(stalls.wait())
    >>> stalls.what_if(cores=2)
    """

    kind = "run"
    word = "stalls"
    at_stop = "its measures so far remain"

    @property
    def run(self) -> RecordedRun:
        """The run that measures."""
        return self.cluster.run(self.name)

    @property
    def report(self) -> Report:
        """The report of the measurement so far, which `print` shows as tables."""
        from .report import report

        return report(self.cluster.state, self.state)

    @property
    def advice(self) -> str:
        """Advice against the longest stall of each kind of VM; empty until enough is measured."""
        bars = self.report.bars
        if len(bars) == 1:
            return bars[0].advice
        return "\n".join(f"{bar.label}: {bar.advice}" for bar in bars if bar.advice)

    def table(self) -> pandas.DataFrame:
        """Return the parts of a step as a DataFrame with a row for each kind of VM and part.

        Returns
        -------
        pandas.DataFrame
            The columns vm, part, seconds, low and high (the interval of 90 %), share (of the step,
            0 to 1), and measured (False: within the noise).
        """
        import pandas

        columns = ["vm", "part", "seconds", "low", "high", "share", "measured"]
        return pandas.DataFrame(self.report.rows, columns=columns)

    def what_if(
        self,
        *,
        cache: float = 0.0,
        cores: float = 1.0,
        disk: float = 1.0,
        link: float = 1.0,
        gpu: float = 1.0,
        batch: float = 1.0,
        ps: float = 1.0,
        vm: str = "",
    ) -> Prediction:
        """Predict the duration of a step with larger or faster resources.

        Parameters
        ----------
        cache : float, default 0
            The share of the data, 0 to 1, in a cache that never evicts.
        cores, disk, link, gpu, batch, ps : float, default 1
            Factors of what was measured: the cores that prepare examples, the throughput of the
            disk and of the link to the parameter servers, the speed of the GPU, the examples of a
            mini-batch, the parameter servers.
        vm : str, optional
            The kind of VM, as in `table()` (default: the one with the most workers).

        Returns
        -------
        Prediction
            Seconds of the step and of its parts.

        Raises
        ------
        DeclarationError
            A factor is impossible, or the kind of VM was not measured.
        ClusterError
            Not enough is measured.

        Examples
        --------
        >>> print(tm.stalls().what_if(cache=1, cores=2))
        """
        from ....planner.stalls.terms import Change, what_if

        bars = self.report.bars
        if not bars:
            raise ClusterError(
                f"{self.name} has not completed its first round of measurements",
                fix="Wait for it: stalls.wait()",
            )
        named = [bar for bar in bars if vm in ("", bar.label)]
        if not named:
            raise unknown("measured VM", vm, [bar.label for bar in bars], where="vm")
        chosen = max(named, key=lambda bar: len(bar.stalls.workers))
        return what_if(chosen.stalls, Change(cache, cores, disk, link, gpu, batch, ps))

    def changes(self) -> Iterator[Report]:
        """Yield the report whenever it has grown, until everything is measured."""
        over = threading.Event()
        changed = threading.Event()

        def see(state: ClusterState, _: object) -> None:
            if self.is_over(state):
                over.set()
            changed.set()

        end = follower().subscribe(self.cluster.identity, see)
        try:
            while not over.is_set():
                changed.wait()
                changed.clear()
                if self.name in self.cluster.state.of(RunState):
                    yield self.report
        finally:
            end()

    def cost(self) -> Cost:
        """Return the cost of the measurement so far and at its end, in US dollars."""
        return self.run.cost()

    def _is_home(self) -> bool:
        return self.run.is_home()

    def _outcome(self, state: ClusterState, work: RunState) -> Report:
        """Return the report, and record it for later plans."""
        from ....client.planning.workloads import learn, store_of

        measured = KnownRun(self.cluster.directory, work)
        learn(store_of(measured), measured)
        return self.report

    def __str__(self) -> str:
        return str(self.report)


def stalls(name: str | None = None, cluster: Cluster | str | None = None) -> Stalls:
    """Return a measurement of stalls.

    Parameters
    ----------
    name : str, optional
        The name of the measurement (default: the latest).
    cluster : Cluster or str, optional
        Its cluster (default: the latest one that has such a measurement).

    Raises
    ------
    UnknownWorkError
        There is no such measurement.
    ClusterError
        No cluster is named, and several that are not deleted have such work.
    """

    def measured(candidate: Cluster) -> bool:
        return any(
            run.spec.stalls and name in (None, run.name)
            for run in candidate.state.of(RunState).values()
        )

    if cluster is not None:
        if isinstance(cluster, Cluster):
            chosen = cluster
        else:
            chosen = lookup.cluster(cluster)
    else:
        chosen = lookup.holding(measured)
    if chosen is None:
        if name:
            what = f"There is no measurement of stalls {name}"
        else:
            what = "There is no measurement of stalls yet"
        raise UnknownWorkError(what, fix="Start one: %transient_stalls RUN")
    return chosen.stalls(name)
