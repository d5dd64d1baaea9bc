"""What a worker measures: one line of metrics about every second.

The training thread adds its steps, the thread that talks to the chief takes the sums. The global step before and after
tells how many other workers' gradients arrived while ours was computed (staleness).
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from ...protocol.measures.step_parts import StepParts
from .gradient_noise import Gradients


class Meter:
    """Sums of the current second."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._clear()
        self._stepped = 0.0
        self.steps = 0
        self.usual = 0.0
        """A slow average of a step's seconds; what counts as stuck depends on it."""

    def add(
        self,
        step: int,
        loss: float,
        samples: int,
        batch: int,
        compute: float,
        wait: float,
        staleness: int,
        divisor: float,
        parts: StepParts,
    ) -> None:
        """One step: the global step after it, its loss, examples, mini-batch, seconds of computing and of waiting, what
        its learning rate was divided by, and where its seconds went."""
        with self._lock:
            now = time.monotonic()
            if self.steps:
                self._gap = max(self._gap, now - self._stepped)
            self._stepped = now
            self.steps += 1
            self.usual = compute if not self.usual else 0.9 * self.usual + 0.1 * compute
            self._steps += 1
            self._step, self._batch, self._divisor = step, batch, divisor
            self._samples += samples
            self._loss += loss
            self._compute += compute
            self._wait += wait
            self._staleness += staleness
            self._parts = self._parts.plus(parts)

    def traced(self, seconds: float) -> None:
        """A step was made that took so many seconds because it was traced: it is counted nowhere, and its time is
        told."""
        with self._lock:
            self._traced += seconds
            self._stepped += seconds

    def measured(self, gradients: Gradients) -> None:
        """What was measured of the gradients since the last line, which seldom has more than one such estimate."""
        with self._lock:
            self._gradients.append(gradients)

    def take(self) -> dict[str, Any] | None:
        """The line since the last one; None if no step was made."""
        with self._lock:
            if not self._steps:
                return None
            loss = self._loss / self._steps
            line = {
                "time": time.time_ns(),
                "worker": self._worker,
                "step": self._step,
                "steps": self._steps,
                "samples": self._samples,
                "loss": round(loss, 6) if math.isfinite(loss) else None,
                "batch_size": self._batch,
                "compute_seconds": round(self._compute, 6),
                "wait_seconds": round(self._wait, 6),
                "gap_seconds": round(self._gap, 6),
                "staleness": round(self._staleness / self._steps, 2),
                "learning_rate_divisor": round(self._divisor, 6),
                "split": self._parts.told,
            }
            if self._traced:
                line["traced_seconds"] = round(self._traced, 6)
            for name in ("squared", "signal", "noise") if self._gradients else ():
                mean = sum(getattr(each, name) for each in self._gradients) / len(self._gradients)
                line[f"gradient_{name}"] = float(f"{mean:.6g}")
            self._clear()
            return line

    def _clear(self) -> None:
        self._steps = self._step = self._samples = self._batch = self._staleness = 0
        self._loss = self._compute = self._wait = self._gap = self._divisor = 0.0
        self._gradients: list[Gradients] = []
        self._parts = StepParts()
        self._traced = 0.0
