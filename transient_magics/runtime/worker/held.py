"""An asynchronous step of an emulated accelerator: what it computes with is as old at its end as on a real one.

Variables are pulled when the step begins, and gradients are pushed when its pace is over. Were they pushed as soon as
this machine's cores have them, no other worker's step would ever come in between: nobody's gradients were late, and
a run with many slow workers as accurate as with one.

The step is one run of the graph, in two parts: the share of the gradients, by which each is multiplied before it is
sent, is fed to the second one only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from ..training.graph.worker import WorkerGraph


class Held:
    """Takes steps whose gradients are held back; answers as one run of loss, before, after, examples, weight and the
    moments of `split.moments` does."""

    def __init__(self, built: WorkerGraph, stop: threading.Event) -> None:
        self._built, self._stop = built, stop
        self._computed = [built.loss, built.before, built.examples, built.weight]
        self._computed += [built.fed, built.pulled, built.forward]
        self._pushed = [built.after, built.backward]
        self._pushing = 0.0

    def take(self, session: Any, feeds: Mapping[Any, Any], pace: float) -> tuple[Any, ...]:
        """One step that lasts `pace` seconds, or as long as it takes; once `stop` is set nothing is held any more."""
        began, share = time.monotonic(), self._built.share
        first = {key: value for key, value in feeds.items() if key is not share}
        step = session.partial_run_setup([*self._computed, *self._pushed], [*feeds])
        loss, before, examples, weight, *seen = session.partial_run(step, self._computed, first)
        self._stop.wait(max(0.0, pace - self._pushing - (time.monotonic() - began)))
        pushed = time.monotonic()
        after, backward = session.partial_run(step, self._pushed, {share: feeds[share]})
        self._pushing = time.monotonic() - pushed
        return loss, before, after, examples, weight, [*seen, backward]
