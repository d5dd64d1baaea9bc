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
from ...errors import ClusterError, PlanError, reason_of
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
    """A surrogate's predictions for some outputs: a picture in a notebook, else a line for each."""

    bag: str
    sections: tuple[Section, ...]

    def _repr_html_(self) -> str:
        return load("bag", "view").plot_html(self)

    def __repr__(self) -> str:
        return "\n".join(f"{self.bag}, {section_words(section)}" for section in self.sections)


class Bag(Handle[DeclaredBag, DeclaredBag]):
    """A bag: one function that is computed for many points, and a surrogate of its results."""

    kind = "bag"
    at_stop = "no further job starts"

    def results(self) -> pandas.DataFrame:
        """Return the results so far as a DataFrame, a row for each, in order of arrival.

        Columns: `job`, one for each parameter, one for each number that the jobs return, `seconds`
        of computing, `attempts`, and `arrays`: the path of the npz file with returned arrays, or
        None.
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
        names = [dimension.name for dimension in bag.spec.space]
        if rows:
            values = list(rows[0])[1 + len(names) : -3]
        else:
            values = []
        return frame_of(rows, ["job", *names, *values, "seconds", "attempts", "arrays"], names)

    @property
    def surrogate(self) -> Surrogate:
        """The newest surrogate that has arrived. Raises ClusterError if there is none."""
        from . import storage

        names = (layout.SURROGATE, layout.SURROGATE_ARRAYS)
        try:
            for _ in range(_LOOKS):
                with suppress(ValueError):
                    return storage.unpack_surrogate(
                        *((self.directory / name).read_bytes() for name in names)
                    )
                time.sleep(_LOOK_SECONDS)  # a newer surrogate may be replacing the two files now
            return storage.unpack_surrogate(
                *((self.directory / name).read_bytes() for name in names)
            )
        except FileNotFoundError:
            none = self.state.spec.surrogate == "none"
            if none:
                why = "it was declared with --surrogate none"
            else:
                why = "it has too few results"
            raise ClusterError(
                f"{self.name} has no surrogate: {why}", where=self.cluster.name
            ) from None
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"The surrogate of {self.name} cannot be read: {reason_of(error)}",
                where=self.cluster.name,
            ) from error

    def output(self, job: int, lines: int | None = None) -> Log:
        """Return the last output of each completed attempt of a job.

        The output of attempts whose VM was lost is not available.

        Parameters
        ----------
        job
            The number of the job.
        lines
            How many lines to return of each attempt (default: its last 2,000 characters).

        Raises
        ------
        ClusterError
            The bag has no such job.
        """
        jobs = self.state.state.jobs
        if job not in jobs:
            if jobs:
                fix = f"Use a number from 0 to {len(jobs) - 1}."
            else:
                fix = "Wait until its first job has been chosen."
            raise ClusterError(f"{self.name} has no job {job}", where=self.cluster.name, fix=fix)
        parts = list[str]()
        for attempt, output in jobs[job].printed.items():
            parts += [f"[attempt {attempt}]"] if jobs[job].attempt > 1 else []
            parts += all_plain(output).splitlines()[-(lines or len(output)) :]
        return Log("\n".join(parts))

    def __call__(self, **parameters: Value) -> Answer | dict[str, Answer]:
        """Return the value at a point and its standard deviation, from the surrogate.

        Several outputs are returned by name. Without a surrogate, points that were computed have
        their results.

        Raises
        ------
        PlanError
            The point is outside of the results or of the space.
        ClusterError
            There is no surrogate, and the point was not computed.
        """
        try:
            surrogate = self.surrogate
        except ClusterError:
            computed = self._computed(parameters)
            if computed is None:
                raise
            return computed
        return surrogate(**parameters)

    def plot(self, *outputs: str, over: str | Sequence[str] = (), **values: Value) -> Plot:
        """Return a picture of the surrogate.

        Over one parameter it is a curve with its 90% band, over two a surface beside the surface of
        its standard deviation.

        Parameters
        ----------
        outputs
            The outputs (default: all).
        over
            The parameters of the axes, one or two (default: those without a value).
        values
            The values of the other parameters.

        Raises
        ------
        PlanError
            A name or a value is unknown, or more than two parameters have no value.
        ClusterError
            There is no surrogate yet.

        Examples
        --------
        >>> bag.plot("pressure", over=("density", "temperature"), salt=0.2)
        """
        from .surrogate.section import sections

        axes = (over,) if isinstance(over, str) else tuple(over)
        points = self.state.state.points()
        return Plot(self.name, sections(self.surrogate, points, outputs, axes, values))

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
        """The speed-up by the surrogate compared with simulations one after the other.

        Raises PlanError before the first result.
        """
        from .surrogate.active_learning import Speedup

        bag = self.state
        seconds = [
            found.seconds
            for number in bag.state.counted
            if (found := bag.state.jobs[number].result)
        ]
        if not seconds:
            raise PlanError(
                f"{self.name} has no results yet",
                where=self.cluster.name,
                fix="Wait for its first job.",
            )
        surrogate = self.surrogate
        points = [point for point, _ in bag.state.points()]
        began = time.perf_counter()
        for turn in range(_LOOKUPS):
            surrogate.predict([points[turn % len(points)]])
        lookup = (time.perf_counter() - began) / _LOOKUPS
        rate = self.cluster.state.clock.rate
        whole = rate * ((bag.ended_at or now()) - (bag.began_at or bag.declared_at))
        sequential = rate * statistics.fmean(seconds)
        return Speedup(sequential, lookup, whole / len(seconds), 0.0, len(seconds))

    def _is_home(self) -> bool:
        """Return whether its arrays and its surrogate are here, if NumPy is, which reads them."""
        if find_spec("numpy") is None:
            return True
        bag = self.state.state
        found = (job.result for job in bag.jobs.values())
        files = [
            f"{layout.RESULTS}/{result.arrays}" for result in found if result and result.arrays
        ]
        return all((self.directory / file).exists() for file in files) and self._has_learnt(bag)

    def _has_learnt(self, bag: BagState) -> bool:
        """Return whether the surrogate that was reported last is here."""
        try:
            return not bag.learnt or len(self.surrogate.rows) >= bag.learnt[-1].results
        except ClusterError:
            return False


handle = Bag


def bag(name: str | None = None, cluster: Cluster | str | None = None) -> Bag:
    """Return the bag called `name`.

    Parameters
    ----------
    name
        Its name (default: the newest bag).
    cluster
        The cluster or its name (default: any cluster that has such a bag).

    Raises
    ------
    UnknownWorkError
        There is no such bag.
    ClusterError
        Several clusters have such work.
    """
    return find_work("bag", name, cluster)
