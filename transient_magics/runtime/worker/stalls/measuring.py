"""A worker that takes measures in place of training: the chief says which one and when.

S0 runs in this process alone, S1 on a parameter server of this VM; all others on those of the cluster. Learning rates
are divided by so much that no variable moves: whatever is measured, the values are those of the first step.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ....errors import TrainingError
from ....protocol.chief_messages import Take, Took
from ....protocol.measures.stalls import COLD, MOST_STEPS, Measure
from ...role import log
from ...tf import placement
from ...tf.graph_mode import tensorflow
from ...training.usercode import reason
from ..chief_link import answer
from ..graph import Made
from ..held import Held
from ..session import IN_VAIN, Training
from ..split import fetches
from . import cold
from .arrangement import Arrangement, in_memory
from .server import OwnServer

_STILL = 1e12
"""What learning rates are divided by."""
_WARM_UP_SHARE, _WARM_UP_STEPS, _LEAST_STEPS = 0.25, 2, 3
"""Of a measure's seconds before those that count; steps before them, and of those that count."""
_FIRST_STEPS = 3
"""In each arrangement, before this worker counts as ready: the first ones also build what later ones find."""
_LOOK = 0.25
_A_MOMENT = 0.02
_READING: frozenset[Measure] = frozenset(("R4", "R5"))
_FROM_RECORDS: frozenset[Measure] = frozenset(("S4", "S5", "R4", "R5"))

_Step = Callable[[], object]


class Measuring(Training):
    """One worker's part of a run that measures stalls."""

    _own_server: OwnServer | None = None
    _sessions: dict[str, Any]
    _kept: dict[str, Arrangement]
    _helds: dict[str, Held]
    _examples_bytes = 0

    def define(self) -> None:
        """As for training; a file that the cell opens is one of those that examples are read from."""
        self._opened = cold.open_files()
        super().define()

    def listen(self) -> None:
        """Start this worker's server, and the parameter server beside it."""
        super().listen()
        self._own_server = OwnServer(len(self._assignment.ps), self._assignment.address, self._spec.threads)

    def _use(self, made: Made) -> None:
        super()._use(made)
        self._made = made
        self._sessions, self._kept, self._helds = {}, {}, {"cluster": self._held}
        self._files = set[Path]()

    def run(self) -> None:
        """Take measures until told to stop, through as many sessions as it takes.

        Raises TrainingError where the sessions are there, and no step succeeds in one after the other.
        """
        self._pace.start()
        lost = placement.transient_errors()
        ready = False
        try:
            while not self.stop.is_set():
                self._moved()
                try:
                    if not ready:
                        ready = self._prepare()
                        continue
                    told = self._link.turns.get(timeout=_LOOK)
                except queue.Empty:
                    continue
                except lost as error:
                    self._lose(error)
                    continue
                try:
                    self._link.took(self._took(told))
                    self._fruitless = 0
                except lost as error:  # a parameter server is gone: the chief has somebody take this measure again
                    self._lose(error)
                    ready = False
                    self._link.took(Took(turn=told.turn))
        finally:
            self._examples.stop()
            for session in self._sessions.values():
                placement.close(session, 0.2)
            if self._own_server:
                self._own_server.close()

    # --- arrangements ------------------------------------------------------------------------------------------------
    def _prepare(self) -> bool:
        """Have a session for each arrangement, and make its first steps."""
        if not answer(self._assignment.ps) or not answer(self._own_servers):
            self.stop.wait(_LOOK)
            return False
        cluster = self._sessions["cluster"] = self._open()
        if not self._wait_until_ready(cluster):
            return False
        if not self._kept:
            self._keep_a_batch(cluster)
        for name, arrangement in self._kept.items():
            self._sessions[name] = session = self._session_of(name, arrangement)
            session.run(arrangement.start, arrangement.feeds)
            if name != "across":
                session.run(arrangement.initialise)
        for name in ("alone", "beside", "across", "cluster"):
            for _ in range(_FIRST_STEPS):
                self._step_of(name)()
                self._moved()
        self._stop_reading()
        self._files |= cold.open_files(self._opened)
        self._watch.lap("arrangements")
        files = ", ".join(sorted(str(each) for each in self._files))
        log(f"{self._watch}; examples are read from {files or 'no file'}")
        self._link.stepping(None, 0, self._pace.speed)
        return True

    @property
    def _own_servers(self) -> list[str]:
        assert self._own_server
        return self._own_server.addresses

    def _keep_a_batch(self, cluster: Any) -> None:
        """Make the graphs of the arrangements on the first mini-batch that there is."""
        made, device = self._made, placement.worker_device(self._number)
        features = dict(made.examples.features)
        batch = cluster.run(features, self._examples.feeds(made.examples.batch))
        make = partial(in_memory, made.graph, made.built, features, batch, device)
        self._kept = {"alone": make(apart=True), "beside": make()}
        self._kept["across"] = self._kept["beside"]
        self._helds |= {name: Held(each.built, self.stop) for name, each in self._kept.items()}
        self._files = cold.files_below(Path(self._folder.data_directory(self._spec)))

    def _session_of(self, name: str, arrangement: Arrangement) -> Any:
        tf, threads = tensorflow(), self._spec.threads
        if name == "alone":
            config = placement.plain_config(threads)
            placement.optimise_briefly(config)
            return tf.Session(graph=arrangement.graph, config=config)
        config = self._config
        if name == "beside":
            config = placement.worker_config(self._own_servers, self._number, self._address, threads)
        return tf.Session(self._server.target, graph=arrangement.graph, config=config)

    def _lose(self, error: Exception) -> None:
        log(f"session lost, opening others: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
        self._examples.stop()
        for session in self._sessions.values():
            placement.close(session, 0.2)
        self._sessions = {}
        if self._fruitless >= IN_VAIN and placement.may_be_own(error):
            raise TrainingError(f"no step succeeds: {reason(error, self._spec.line_offset)}") from error
        self.stop.wait(_LOOK)

    # --- measures ----------------------------------------------------------------------------------------------------
    def _took(self, take: Take) -> Took:
        """Take the measure."""
        with self._records(take.measure):
            seconds = self._measured(self._what(take.measure), take.seconds)
        if take.measure in _FROM_RECORDS:
            self._files |= cold.open_files(self._opened)
            self._stop_reading()
        log(f"{take.measure}: {len(seconds)} steps in {sum(seconds):.2f} s")
        return Took(
            turn=take.turn, seconds=_at_most(seconds), examples=self._made.examples.batch, bytes=cold.size(self._files)
        )

    @contextlib.contextmanager
    def _records(self, measure: Measure) -> Iterator[None]:
        """Read records inside, warm or cold, if the measure is of them."""
        if measure not in _FROM_RECORDS:
            yield
            return
        if measure not in COLD:
            cold.warm(self._files)
        with cold.KeptCold(self._files) if measure in COLD else contextlib.nullcontext():
            self._examples.resume(self._sessions["cluster"])
            yield

    def _stop_reading(self) -> None:
        """Read no more, and leave nothing that is prepared for the next measure."""
        self._examples.stop()
        session, source = self._sessions["cluster"], self._made.examples
        least = 1 if source.wanted is None else source.batch
        while not self.stop.is_set():
            self._moved()
            stopped = self._examples.stopped
            if session.run(source.left) >= least:
                self._read()
            elif stopped:
                return
            else:
                self.stop.wait(_A_MOMENT)

    def _read(self) -> None:
        """Take a mini-batch, for nothing."""
        source = self._made.examples
        session, operations = self._sessions["cluster"], [each.op for each in source.features.values()]
        session.run(operations, self._examples.feeds(source.batch))

    def _what(self, measure: Measure) -> _Step:
        if measure in _READING:
            return self._read
        names = {"S0": "alone", "S1": "beside", "S2": "across", "S3": "across"}
        return self._step_of(names.get(measure, "cluster"))

    def _step_of(self, name: str) -> _Step:
        """A step of that arrangement, as long as it takes on this VM's accelerator."""
        session, built = self._sessions[name], self._made.built if name == "cluster" else self._kept[name].built
        fetched = fetches(built)
        feeds: dict[Any, Any] = {built.divisor: _STILL, built.share: 1.0}
        if name == "cluster":
            feeds |= self._examples.feeds(self._made.examples.batch)

        def step() -> None:
            began, pace = time.monotonic(), self._pace.of(1.0)
            if not pace:
                session.run(fetched, feeds)
                return
            self._helds[name].take(session, feeds, pace)
            self.stop.wait(max(0.0, pace - (time.monotonic() - began)))

        return step

    def _measured(self, step: _Step, seconds: float) -> list[float]:
        """The seconds of each step, for that long, without the first ones."""
        until = time.monotonic() + _WARM_UP_SHARE * seconds
        warm = 0
        while not self.stop.is_set() and (time.monotonic() < until or warm < _WARM_UP_STEPS):
            step()
            self._moved()
            warm += 1
        found = list[float]()
        began = time.monotonic()
        until = began + seconds
        while not self.stop.is_set() and (began < until or len(found) < _LEAST_STEPS):
            step()
            self._moved()
            ended = time.monotonic()
            found.append(ended - began)
            began = ended
        return found


def _at_most(seconds: list[float]) -> tuple[float, ...]:
    """Their means over neighbours, where there are more than are told."""
    together = -(-len(seconds) // MOST_STEPS)
    groups = [seconds[begin : begin + together] for begin in range(0, len(seconds), max(together, 1))]
    return tuple(round(sum(group) / len(group), 7) for group in groups)
