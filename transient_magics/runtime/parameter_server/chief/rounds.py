"""The chief's thread of synchronous training, which ends one round after the other.

A round is one step: every worker computes a gradient of the same variables and pushes it (worker/turn.py), the chief
applies their mean once enough are there. Both sides look at two numbers on ps/0, the chief at the count of complete
pushes, a worker at the number of the round. Nobody is waited for by name, so nobody's death has to be told to the
others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ....protocol.run import RunSpec
from ...role import log
from ...tf import placement
from ...tf.graph_mode import tensorflow
from ...training.step_rules import Looks, divisor, needed
from ..variables import Keeper

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
