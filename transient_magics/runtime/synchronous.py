"""Synchronous training at run time: the chief's thread that ends rounds, and a worker's turn in each of them.

A round is one step: every worker computes a gradient of the same variables and pushes it, the chief applies their mean
once enough are there. Both sides look at two numbers on ps/0, the chief at the count of complete pushes, a worker at
the number of the round. Nobody is waited for by name, so nobody's death has to be told to the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..protocol.run import RunSpec
from . import placement
from .barrier import Looks, needed
from .graph.worker import WorkerGraph
from .graph_mode import tensorflow
from .keeper import Keeper
from .learning_rate import divisor
from .role import log

_SLOW_UPDATE = 120_000
"""Milliseconds after which an update counts as lost; the wait for gradients is no part of it."""


class Rounds(threading.Thread):
    """Ends one round after the other, in a session of its own, for as long as its process lives."""

    def __init__(self, keeper: Keeper, spec: RunSpec, failed: Callable[[BaseException], object]) -> None:
        super().__init__(daemon=True, name="rounds")
        self._keeper, self._spec, self._failed = keeper, spec, failed
        self.live = 0
        """How many workers train; the chief sets it whenever it changes."""

    def run(self) -> None:
        """Go on through as many sessions as it takes."""
        lost = placement.transient_errors()
        session: Any = None
        while True:
            try:
                session = self._keeper.another_session()
                self._end_rounds(session)
            except lost as error:  # another parameter server went away; the keeper restores it
                log(f"the round is lost: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
            except Exception as error:  # noqa: BLE001 - the optimizer may raise anything; it becomes train.failed
                self._failed(error)
                return
            finally:
                if session is not None:
                    placement.close(session)
            time.sleep(0.5)

    def _end_rounds(self, session: Any) -> None:
        keeper, spec, accumulators = self._keeper, self._spec, self._keeper.accumulators
        options = tensorflow().RunOptions(timeout_in_ms=_SLOW_UPDATE)
        by = divisor(spec.lr_policy, synchronous=True, active=0, slots=spec.max_workers)
        look = session.make_callable([*accumulators.position, accumulators.complete])
        with keeper.still:
            accumulators.open(session)
        step, began, looks = 0, time.monotonic(), Looks()
        while True:  # up to the last step, and beyond: another parameter server may be lost with it
            with keeper.still:
                number, step, complete = look()
                enough = needed(self.live, spec.backup_workers)
                if complete >= enough and step < spec.train_steps:
                    feeds = {accumulators.round: number, accumulators.needed: enough, keeper.divisor: by}
                    step = session.run(accumulators.update, feeds, options=options)
                    looks.happened(time.monotonic() - began)
                    began = time.monotonic()
            time.sleep(looks.pause(time.monotonic() - began))


@dataclass(frozen=True)
class Made:
    """What a step came to. `waited` are the seconds at the barrier; `counted`: the gradient is part of the step."""

    loss: float
    before: int
    after: int
    examples: int
    waited: float
    counted: bool


class Turn:
    """A worker's part in the rounds: push once in each, then wait for the next."""

    def __init__(self, built: WorkerGraph, stop: threading.Event, alive: Callable[[], None]) -> None:
        self._built, self._stop, self._alive = built, stop, alive
        self._session: Any = None
        self._look: Any = None
        self._position = 0, 0
        self._looks = Looks()
        self._computing = 0.0

    def take(self, session: Any, feeds: Mapping[Any, Any], pace: float = 0.0) -> Made:
        """Compute and push one gradient in `pace` seconds at least, and wait until its round is over or `stop` is set.

        An emulated accelerator pushes at the end of its step, so what its step takes longer than ours comes first;
        otherwise nobody would ever be seen waiting for the slow ones.
        """
        built = self._built
        if session is not self._session:
            self._session, self._look = session, session.make_callable([built.current_round, built.current_step])
            self._position = self._look()
        number, before = self._position
        fetches = [built.loss, built.examples, built.seen, built.step]
        self._stop.wait(max(0.0, pace - self._computing))
        began = time.monotonic()
        loss, examples, seen, _ = session.run(fetches, {**feeds, built.round: number})
        pushed = time.monotonic()
        self._computing, waited = pushed - began, 0.0
        while self._position[0] == number and not self._stop.wait(self._looks.pause(waited)):
            self._position = self._look()
            self._alive()
            waited = time.monotonic() - pushed
        self._looks.happened(waited)
        after = self._position[1]
        # A round that ended without a step was lost with a parameter server.
        return Made(loss, before, after, examples, waited, seen == number and after > before)
