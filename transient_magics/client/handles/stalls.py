"""The handle of a measure of stalls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from ...errors import ClusterError, unknown
from ...journal import ClusterState, Cost
from ..folders import KnownRun
from ..following.follower import follower
from .run import Run

if TYPE_CHECKING:
    import pandas

    from ...planner.stalls.what_if import Prediction
    from ..results.stalls import Report
    from .cluster import Cluster


class Stalls:
    """A measure of where the time of a step goes: a `run` that trains nothing."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def name(self) -> str:
        """Of its run."""
        return self.run.name

    @property
    def cluster(self) -> Cluster:
        """Where it is measured."""
        return self.run.cluster

    @property
    def report(self) -> Report:
        """What it came to so far: `print` shows it."""
        from ..results.stalls import report

        return report(self.cluster.state, self.run.state)

    @property
    def advice(self) -> str:
        """What to do about the longest stall, of each kind of VM; empty as long as too little is measured."""
        bars = self.report.bars
        found = [each for each in bars if each.advice]
        return "\n".join(f"{each.label}: {each.advice}" if len(bars) > 1 else each.advice for each in found)

    def wait(self, timeout: float | None = None) -> Report:
        """Block until all is measured, keep it for plans to come, and return the report.

        Raises TrainingError where it failed or is not over after `timeout` seconds. Interrupting the wait changes
        nothing: it is measured on.
        """
        from ..planning.learning import learn, store_of

        self.run.wait(timeout)
        known = KnownRun(self.cluster.directory, self.run.state)
        learn(store_of(known), known)
        return self.report

    def __await__(self) -> Generator[Any, None, Report]:
        """`await stalls`: like `wait`, while the notebook's loop goes on."""
        return asyncio.to_thread(self.wait).__await__()

    def cost(self) -> Cost:
        """Return what the measurement has cost so far, in US dollars, as `Run.cost` counts it."""
        return self.run.cost()

    def stop(self) -> None:
        """End it; what was measured stays."""
        self.run.stop()

    def table(self) -> pandas.DataFrame:
        """A row for each kind of VM and part of a step: its seconds, their interval of 90 %, its share of the step, and
        whether it was `measured`, or is within the noise."""
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

        `cache`: the share of the data that a cache holds which never evicts. All others say how many times as much
        there is of what was measured: cores that prepare examples, bytes a second from the disk and over the link to
        the parameter servers, the GPU's speed, examples in a mini-batch, parameter servers. `vm`: which kind, as in
        `table()`, where there are several (the one with the most workers). Raises DeclarationError for what cannot be,
        ClusterError where too little was measured.
        """
        from ...planner.stalls.what_if import Change, what_if

        bars = self.report.bars
        if not bars:
            raise ClusterError(f"{self.name} has not taken all measures once", fix="Wait for it: stalls.wait()")
        named = [each for each in bars if vm in ("", each.label)]
        if not named:
            raise unknown("measured VM", vm, [bar.label for bar in bars], where="vm")
        chosen = max(named, key=lambda each: len(each.stalls.workers))
        return what_if(chosen.stalls, Change(cache, cores, disk, link, gpu, batch, ps))

    def is_over(self, state: ClusterState) -> bool:
        """Whether in this state of its cluster nothing more is measured."""
        run = state.runs.get(self.name)
        return state.over or (run is not None and run.over)

    def changes(self) -> Iterator[Report]:
        """The report, whenever there is more of it, until all is measured."""
        over, changed = threading.Event(), threading.Event()

        def see(state: ClusterState, _: object) -> None:
            if self.is_over(state):
                over.set()
            changed.set()

        end = follower().subscribe(self.cluster.identity, see)
        try:
            while not over.is_set():
                changed.wait()
                changed.clear()
                if self.name in self.cluster.state.runs:
                    yield self.report
        finally:
            end()

    def __str__(self) -> str:
        return str(self.report)

    def __repr__(self) -> str:
        return f"<Stalls {self.name} on {self.cluster.name}: {self.run.state.phase}>"
