"""The handle of a bag."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...client.cluster_handle import Cluster
from ...client.display_hook import Log
from ...client.handle import Handle
from ...client.lookup import find_work
from ...client.results.comparison import frame_of
from ...errors import ClusterError, PlanError
from ...journal import now
from ...kinds import load
from ...protocol import layout
from ...protocol.checks import all_plain
from ...protocol.outputs import outputs_of
from ...protocol.run import Value
from .state import BagState, DeclaredBag
from .words import section_words

if TYPE_CHECKING:
    import pandas

    from .surrogate.active_learning import Speedup
    from .surrogate.model import Answer, Surrogate
    from .surrogate.section import Section

_LOOKUPS = 100
_LOOKS = 5
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Plot:
    """What a bag's surrogate said of some outputs when it was asked: a picture in a notebook, else
    a line for each.
    """

    bag: str
    sections: tuple[Section, ...]

    def _repr_html_(self) -> str:
        return load("bag", "view").plot_html(self)

    def __repr__(self) -> str:
        return "\n".join(f"{self.bag}, {section_words(section)}" for section in self.sections)


class Bag(Handle[DeclaredBag, DeclaredBag]):
    """A bag of a cluster: a function at many points, and a surrogate of its results."""

    kind = "bag"
    at_stop = "no further job starts"

    def results(self) -> pandas.DataFrame:
        """The results so far as a DataFrame, a row for each, in the order in which they came.

        Columns: job, a column for each parameter, one for each value that the jobs return, seconds
        (of computing), attempts, arrays (the path of the npz file with what else it returned, or
        None).
        """

        bag = self.state.state
        rows: list[dict[str, Any]] = []
        for number in bag.counted:
            job = bag.jobs[number]
            result = bag.jobs[number].result
            if result is not None:
                if result.arrays:
                    path = self.directory / layout.RESULTS / result.arrays
                else:
                    path = None
                rows.append(
                    {
                        "job": number,
                        **job.point,
                        **result.returned,
                        "seconds": result.seconds,
                        "attempts": job.attempt,
                        "arrays": path if path and path.exists() else None,
                    }
                )
        names = [each.name for each in bag.spec.space]
        if rows:
            values = list(rows[0])[1 + len(names) : -3]
        else:
            values = []
        return frame_of(rows, ["job", *names, *values, "seconds", "attempts", "arrays"], names)

    @property
    def surrogate(self) -> Surrogate:
        """What was learnt of the results so far, as it came home. Raises ClusterError where nothing
        was yet.
        """
        from . import storage

        names = (layout.SURROGATE, layout.SURROGATE_ARRAYS)
        try:
            for _ in range(_LOOKS):
                with suppress(ValueError):
                    return storage.unpack_surrogate(
                        *((self.directory / name).read_bytes() for name in names)
                    )
                time.sleep(_LOOK_SECONDS)  # the two may just be replaced by those of the next one
            return storage.unpack_surrogate(
                *((self.directory / name).read_bytes() for name in names)
            )
        except FileNotFoundError:
            none = self.state.spec.surrogate == "none"
            if none:
                why = "it was declared with --surrogate none"
            else:
                why = "too few results are there"
            raise ClusterError(
                f"{self.name} has no surrogate: {why}", where=self.cluster.name
            ) from None
        except (OSError, ValueError) as error:
            raise ClusterError(f"The surrogate of {self.name} cannot be read: {error}") from error

    def output(self, job: int, lines: int | None = None) -> Log:
        """The last that job number `job` printed: of each of its attempts that has ended, one after
        the other.

        At most 2,000 characters of each, or its last `lines`. What an attempt printed whose VM was
        lost is lost too. Raises ClusterError where the bag has no such job.
        """
        jobs = self.state.state.jobs
        if job not in jobs:
            if jobs:
                fix = f"Its jobs are 0 to {len(jobs) - 1}."
            else:
                fix = "None has been chosen yet."
            raise ClusterError(f"{self.name} has no job {job}", where=self.cluster.name, fix=fix)
        parts = list[str]()
        for attempt, said in jobs[job].said.items():
            parts += [f"[attempt {attempt}]"] if jobs[job].attempt > 1 else []
            parts += all_plain(said).splitlines()[-(lines or len(said)) :]
        return Log("\n".join(parts))

    def __call__(self, **parameters: Value) -> Answer | dict[str, Answer]:
        """The value at a point ± its standard deviation, from the surrogate; of several outputs all
        by their names.

        At a point that was computed where there is no surrogate: from the simulation. Raises
        PlanError for a point outside of the data, where nothing is known, and for one that is not
        of the space.
        """
        try:
            surrogate = self.surrogate
        except ClusterError:
            if (found := self._computed(parameters)) is not None:
                return found
            raise
        return surrogate(**parameters)

    def plot(self, *outputs: str, over: str | Sequence[str] = (), **held: Value) -> Plot:
        """What the surrogate says of the outputs (none: all): a curve with its 90% band over one
        parameter, a surface beside that of its standard deviation over two.

        `over`: which parameters are the axes, and `held` the values of the others:
        `bag.plot("pressure", over=("density", "temperature"), salt=0.2)`. Raises PlanError where a
        name or a value is not of this bag, and where there are more than two parameters without a
        value; ClusterError where there is no surrogate yet.
        """
        from .surrogate.section import sections

        if isinstance(over, str):
            axes = (over,)
        else:
            axes = tuple(over)
        return Plot(
            self.name, sections(self.surrogate, self.state.state.points(), outputs, axes, held)
        )

    def _computed(self, parameters: dict[str, Value]) -> Answer | dict[str, Answer] | None:
        from .surrogate.model import Answer

        for point, returned in self.state.state.points():
            if point == parameters:
                found = {
                    output: Answer(
                        returned[output], returned.get(f"{output}_error", 0.0), "simulation"
                    )
                    for output in outputs_of(returned)
                }
                if len(found) == 1:
                    return next(iter(found.values()))
                return found
        return None

    @property
    def speedup(self) -> Speedup:
        """How much sooner answers come by the surrogate than by simulations one after the other,
        and from how many look-ups on it pays. Raises PlanError before there is a surrogate.
        """
        from .surrogate.active_learning import Speedup

        bag = self.state
        taken = [
            found.seconds
            for number in bag.state.counted
            if (found := bag.state.jobs[number].result)
        ]
        if not taken:
            raise PlanError(f"{self.name} has no result yet")
        surrogate = self.surrogate
        points = [point for point, _ in bag.state.points()]
        began = time.perf_counter()
        for turn in range(_LOOKUPS):
            surrogate.predict([points[turn % len(points)]])
        lookup = (time.perf_counter() - began) / _LOOKUPS
        rate = self.cluster.state.clock.rate
        whole = rate * ((bag.ended_at or now()) - (bag.began_at or bag.declared_at))
        sequential = rate * statistics.fmean(taken)
        return Speedup(sequential, lookup, whole / len(taken), 0.0, len(taken))

    def _is_home(self) -> bool:
        """Whether the arrays of its results, and its surrogate, are here, where anybody could read
        them.
        """
        if find_spec("numpy") is None:
            return True
        bag = self.state.state
        found = (job.result for job in bag.jobs.values())
        files = [
            f"{layout.RESULTS}/{result.arrays}" for result in found if result and result.arrays
        ]
        return all((self.directory / file).exists() for file in files) and self._has_learnt(bag)

    def _has_learnt(self, bag: BagState) -> bool:
        """Whether the surrogate that was told of last is here."""
        try:
            return not bag.learnt or len(self.surrogate.rows) >= bag.learnt[-1].results
        except ClusterError:
            return False


handle = Bag


def bag(name: str | None = None, cluster: Cluster | str | None = None) -> Bag:
    """Return the bag called `name`, as `tm.run` finds a run. Raises UnknownWorkError and
    ClusterError.
    """
    return find_work("bag", name, cluster)
