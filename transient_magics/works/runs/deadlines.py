"""The run with a deadline: it is decided at each tick; decisions are recorded or proposed."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from ...controller.record import Recorder
from ...deadlines.decisions import Verdict, decide, limit_reason, workers_text
from ...deadlines.simulation import COURSES, band, course
from ...deadlines.situation import Situation
from ...errors import ClusterError
from ...journal import ClusterState, RunState, events, now
from .deadline_situation import seen

PROPOSED_SECONDS = 600.0
"""How long a proposal is valid, in seconds."""
_TICK_SECONDS = 1.0
_SAVE_SECONDS = 15.0
_OUTLOOK_SECONDS = 60.0
_LEAST_OUTLOOK_SECONDS = 5.0
_LAST_SECONDS = 20.0
"""A run is stopped when its money lasts for this many seconds, the time of its last checkpoint."""
_SAFE_AGAIN = 0.9
_COURSES = 4
_COURSES_SECONDS = 0.03
_LEAST_COURSES = 20
"""The fewest simulated courses of an outlook.

Each tick simulates at most `_COURSES` courses or `_COURSES_SECONDS`, so that the rest of the
controller does not wait. The next tick continues, and an outlook uses the latest courses.
"""


class Deadlines:
    """The control of the run with a deadline.

    Parameters
    ----------
    recorder
        The journal.
    save
        Saves the run of a name.
    stop
        Stops the run of a name, with a last checkpoint.
    """

    def __init__(
        self, recorder: Recorder, save: Callable[[str], None], stop: Callable[[str], None]
    ) -> None:
        self._recorder = recorder
        self._save = save
        self._stop = stop
        self._ticked = -math.inf
        self._saved = -math.inf
        self._ends: deque[float] = deque(maxlen=COURSES)
        self._course: Iterator[float | None] | None = None
        self._chance = random.Random()
        self._simulated = ""

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    def tick(self, at: float) -> None:
        """Decide about the run with a deadline, at most once a second. `at`: seconds since 1970."""
        run = self._state.deadline_run
        # The clock of `at` may be set.
        moment = time.monotonic()
        if run is None or run.made or self._state.phase == "deleting":
            return
        if moment - self._ticked < _TICK_SECONDS:
            return
        self._ticked = moment
        if not self._state.has_begun(run):
            return
        sight = seen(self._state, run, at)
        verdict = decide(sight)
        self._follow(run, sight, verdict, at)
        self._report(run, sight, verdict, at)
        if verdict.save and moment - self._saved >= _SAVE_SECONDS:
            self._saved = moment
            self._save(run.name)
        if run.spec.max_cost is not None and sight.money <= _LAST_SECONDS * _costs(sight):
            self._recorder.note("money", limit_reason(run.name, run.spec.max_cost), run=run.name)
            self._stop(run.name)

    def agree(self, name: str, proposal: int) -> None:
        """Do what was proposed. Raises ClusterError where the proposal is not valid."""
        run = self._state.of(RunState).get(name)
        proposed = None
        if run and run.deadline and not run.over:
            proposed = run.deadline.proposed
        if proposed is None or proposed.seq != proposal or now() > proposed.until:
            raise ClusterError(
                f"The proposal for {name} is out of date", fix="See its panel for the present one."
            )
        self._recorder.record(
            events.DeadlineActed(
                run=name, machines=proposed.machines, reason=proposed.reason, agreed=True
            )
        )

    def _follow(self, run: RunState, sight: Situation, verdict: Verdict, at: float) -> None:
        """Change the workers, propose the change, or withdraw a proposal."""
        assert run.deadline
        proposed = run.deadline.proposed
        machines = _as_event(verdict.workers)
        if run.spec.adapt == "auto" and machines != _as_event(sight.workers):
            self._recorder.record(
                events.DeadlineActed(run=run.name, machines=machines, reason=verdict.reason)
            )
        elif run.spec.adapt == "ask":
            same = machines == _as_event(sight.workers)
            if proposed and (same or at > proposed.until):
                withdrawn = events.DeadlineProposed(
                    run=run.name, machines=proposed.machines, reason=proposed.reason, until=0
                )
                self._recorder.record(withdrawn)
            elif not same and (proposed is None or _is_another(proposed, machines, at)):
                until = at + PROPOSED_SECONDS
                self._recorder.record(
                    events.DeadlineProposed(
                        run=run.name, machines=machines, reason=verdict.reason, until=until
                    )
                )

    def _report(self, run: RunState, sight: Situation, verdict: Verdict, at: float) -> None:
        """Record the outlook each minute of the cloud's clock, and immediately that it is late."""
        assert run.deadline
        if not verdict.gpu:
            return
        last = run.deadline.outlook
        late = run.deadline.late
        if self._simulated != run.name:
            self._ends.clear()
            self._course = None
            self._simulated = run.name
        self._simulate(sight)
        if verdict.late and not late:
            why = (
                f"{workers_text(verdict.workers)} make its {sight.steps - sight.unsaved:,} "
                "steps no sooner"
            )
            self._recorder.record(events.DeadlineLate(run=run.name, ends=verdict.late, reason=why))
        if len(self._ends) < _LEAST_COURSES:
            return
        chance, (low, high) = band(self._ends, sight.deadline)
        if late and not verdict.late and chance >= _SAFE_AGAIN:
            self._recorder.record(
                events.DeadlineLate(run=run.name, ends=0.0, reason=late.reason, again=True)
            )
        if last is None or abs(at - last.at) >= max(
            _OUTLOOK_SECONDS / self._state.clock.rate, _LEAST_OUTLOOK_SECONDS
        ):
            self._recorder.record(
                events.DeadlineOutlook(
                    run=run.name,
                    chance=chance,
                    low=low,
                    high=high,
                    worth=verdict.worth,
                    price=verdict.price,
                    gpu=verdict.gpu,
                )
            )

    def _simulate(self, sight: Situation) -> None:
        """Continue the simulated course, and begin others from the present situation."""
        began = time.monotonic()
        ended = 0
        while ended < _COURSES and time.monotonic() - began < _COURSES_SECONDS:
            self._course = self._course or course(sight, self._chance)
            end = next(self._course)
            if end is not None:
                self._ends.append(end)
                self._course = None
                ended += 1


def _as_event(workers: Mapping[tuple[str, str], int]) -> events.Machines:
    return tuple(
        (gpu, "standard" if terms == "standard" else "spot", count)
        for (gpu, terms), count in sorted(workers.items())
        if count
    )


def _is_another(proposed: events.DeadlineProposed, new: events.Machines, at: float) -> bool:
    """Return whether to make another proposal.

    Changes of on-demand VMs are proposed immediately, of Spot workers no more often than outlooks.
    """
    before, after = (
        [machine for machine in machines if machine[1] == "standard"]
        for machines in (proposed.machines, new)
    )
    return before != after or (
        new != proposed.machines and abs(at - proposed.at) >= _OUTLOOK_SECONDS
    )


def _costs(sight: Situation) -> float:
    """Return the cost per second of all requested VMs, in US dollars."""
    prices = {(kind.gpu, "spot"): kind.spot for kind in sight.kinds}
    prices |= {(kind.gpu, "standard"): kind.on_demand or 0.0 for kind in sight.kinds}
    return sight.kept + sum(
        prices.get(machine, 0.0) * count for machine, count in sight.workers.items()
    )
