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
    """A measurement of where the time of a step goes: a `run` that trains nothing."""

    kind = "run"
    word = "stalls"
    at_stop = "its measures so far remain"

    @property
    def run(self) -> RecordedRun:
        """The run that takes the measures."""
        return self.cluster.run(self.name)

    @property
    def report(self) -> Report:
        """What it came to so far: `print` shows it."""
        from .report import report

        return report(self.cluster.state, self.state)

    @property
    def advice(self) -> str:
        """What to do about the longest stall, of each kind of VM; empty as long as too little is
        measured.
        """
        bars = self.report.bars
        found = [bar for bar in bars if bar.advice]
        return "\n".join(
            f"{each.label}: {each.advice}" if len(bars) > 1 else each.advice for each in found
        )

    def table(self) -> pandas.DataFrame:
        """A row for each kind of VM and part of a step: its seconds, their interval of 90 %, its
        share of the step, and whether it was `measured`, or is within the noise.
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
        """What a step would take with something bigger or faster.

        `cache`: the share of the data that a cache holds which never evicts. All others say how
        many times as much there is of what was measured: cores that prepare examples, bytes a
        second from the disk and over the link to the parameter servers, the GPU's speed, examples
        in a mini-batch, parameter servers. `vm`: which kind, as in `table()`, where there are
        several (the one with the most workers). Raises DeclarationError for what cannot be,
        ClusterError where too little was measured.
        """
        from ....planner.stalls.terms import Change, what_if

        bars = self.report.bars
        if not bars:
            raise ClusterError(
                f"{self.name} has not taken all measures once", fix="Wait for it: stalls.wait()"
            )
        named = [each for each in bars if vm in ("", each.label)]
        if not named:
            raise unknown("measured VM", vm, [bar.label for bar in bars], where="vm")
        chosen = max(named, key=lambda each: len(each.stalls.workers))
        return what_if(chosen.stalls, Change(cache, cores, disk, link, gpu, batch, ps))

    def changes(self) -> Iterator[Report]:
        """Yield the report whenever there is more of it, until all is measured."""
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
        """Return the cost of the measurement so far and at its end, in US dollars, as of other
        work.
        """
        return self.run.cost()

    def _is_home(self) -> bool:
        return self.run.is_home()

    def _outcome(self, state: ClusterState, work: RunState) -> Report:
        """Return the report, and record it for later plans."""
        from ....client.planning.workloads import learn, store_of

        known = KnownRun(self.cluster.directory, work)
        learn(store_of(known), known)
        return self.report

    def __str__(self) -> str:
        return str(self.report)


def stalls(name: str | None = None, cluster: Cluster | str | None = None) -> Stalls:
    """Return the measurement of stalls called `name`, as `run` finds a run; without a name the
    latest one.

    Raises UnknownWorkError and ClusterError.
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
