"""A long run as its journal and its metrics tell it: hours of workers that come, go and are replaced."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from transient_magics.journal import Event, encode, events
from transient_magics.protocol.vm_events import (
    TrainCheckpoint,
    TrainEvaluated,
    TrainProgress,
    TrainStarted,
    WorkerJoined,
    WorkerLeft,
)

from .stories import TRAIN, declaration, requested

REVOKED_EVERY = 7200.0
"""Seconds between two revocations, of one worker after the other."""
BOOT_SECONDS = 60.0
SPEED = 4.0
"""Steps per second of a worker."""


class LongStory:
    """`hours` of `workers` that end at `end` (seconds since 1970); the run goes on."""

    def __init__(self, hours: float, workers: int = 8, end: float | None = None) -> None:
        self.end = time.time() if end is None else end
        self.began = self.end - 3600 * hours
        self.workers = workers
        self._random = random.Random(1)
        self._lives = list(self._all_lives())

    def tell(self, folder: Path, metrics_every: float = 1.0) -> Path:
        """Write journal and metrics (a line per worker every so many seconds) into `folder`; returns the journal."""
        run = folder / "runs" / "run-1"
        run.mkdir(parents=True)
        history = sorted(self._events(), key=lambda event: event.time)
        lines = (encode(replace(event, seq=number)) for number, event in enumerate(history, 1))
        (folder / "journal.jsonl").write_bytes(b"".join(lines))
        with (run / "metrics.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(self.metrics(self.began + 64, self.end, metrics_every))
        return folder / "journal.jsonl"

    def _all_lives(self) -> Iterator[tuple[str, int, str | None, float, float]]:
        """(VM, slot, whom it replaces, asked for, revoked or 0)."""
        number, current = self.workers, {}
        for slot in range(self.workers):
            current[slot] = (f"worker-{slot}", None, self.began)
        at, slot = self.began + REVOKED_EVERY, 0
        while at < self.end:
            vm, before, asked = current[slot]
            yield vm, slot, before, asked, at
            current[slot] = (f"worker-{number}", vm, at + 1)
            number, at, slot = number + 1, at + REVOKED_EVERY, (slot + 1) % self.workers
        for slot, (vm, before, asked) in current.items():
            yield vm, slot, before, asked, 0.0

    def _events(self) -> Iterator[Event]:
        def at(moment: float, event: Event) -> Event:
            return replace(event, time=int(moment * 1e9))

        began = self.began
        spec = replace(declaration("long", self.workers), declared_at=began, max_seconds=100 * 3600.0)
        yield at(began, events.ClusterDeclared(spec=spec.to_dict()))
        yield at(began, requested("ps-0", 0))
        yield at(began + 30, events.VmRunning(vm="ps-0", address="10.128.0.2"))
        yield at(began + 50, events.VmReady(vm="ps-0"))
        yield at(began + 60, events.ClusterReady(workers=self.workers, seconds=60))
        yield at(began + 61, events.WorkDeclared(of="run", work="run-1", spec={**TRAIN, "train_steps": 4_000_000}))
        yield at(began + 62, TrainStarted(run="run-1", step=0))
        for number, (vm, slot, before, asked, revoked) in enumerate(self._lives):
            yield at(asked, requested(vm, slot, before))
            yield at(asked + 20, events.VmRunning(vm=vm, address="10.128.0.9"))
            yield at(asked + BOOT_SECONDS, events.VmReady(vm=vm))
            joined = WorkerJoined(run="run-1", worker=vm, number=number, active=self.workers)
            yield at(max(asked + BOOT_SECONDS, began + 63), joined)
            if revoked:
                yield at(revoked - 30, events.VmPreemptionNotice(vm=vm))
                left = {"run": "run-1", "worker": vm, "number": number, "active": self.workers - 1}
                yield at(revoked - 29, WorkerLeft(**left, reason="revoked"))
                yield at(revoked, events.VmRevoked(vm=vm, signal="notice"))
        moment = began + 64
        while moment < self.end:
            step = self.step(moment)
            progress = TrainProgress(
                run="run-1", step=step, loss=self.loss(step), steps_per_second=SPEED * self.workers, active=self.workers
            )
            yield at(moment, progress)
            if int(moment / 10) % 60 == 0:
                yield at(moment, TrainCheckpoint(run="run-1", step=step, path=f"checkpoints/model.ckpt-{step}"))
            if int(moment / 10) % 360 == 0:
                scores = {"accuracy": 1 - math.exp(-step / 3e5), "loss": self.loss(step) * 1.1}
                yield at(moment, TrainEvaluated(run="run-1", step=step, metrics=scores))
            moment += 10

    def step(self, moment: float) -> int:
        """The global step at a moment."""
        return max(0, int((moment - self.began - 63) * SPEED * self.workers))

    def loss(self, step: int) -> float:
        """The loss around a step."""
        return 2.2 * math.exp(-step / 6e5) + 0.08 + 0.05 * self._random.gauss(0, 1) * math.exp(-step / 2e6) ** 2

    def metrics(self, begin: float, end: float, every: float = 1.0) -> Iterator[str]:
        """The lines of the workers from one moment to another."""
        moment = begin
        while moment < end:
            step = self.step(moment)
            for vm, slot, _, asked, revoked in self._lives:
                if asked + BOOT_SECONDS <= moment and (not revoked or moment < revoked - 29):
                    batch = 24 + 4 * (slot % 5)
                    parts = 0.02, 0.1 + 0.05 * (slot % 3), 0.5, 0.1, 0.1, 0.01, 0.0, 0.0, 0.3
                    steps = SPEED * every * (1 + 0.03 * self._random.gauss(0, 1))
                    row = {
                        "time": int((moment + 0.01 * slot) * 1e9), "worker": vm, "step": step, "steps": round(steps, 2),
                        "samples": round(steps * batch), "loss": round(abs(self.loss(step)), 5), "batch_size": batch,
                        "compute_seconds": round(0.9 * every, 3), "wait_seconds": round(0.1 * every, 3),
                        "split": [part * every for part in parts], "server_share": 0.4, "gap_seconds": 0.3,
                        "staleness": round(self.workers - 1 + self._random.gauss(0, 0.6), 2),
                    }  # fmt: skip
                    yield json.dumps(row, separators=(",", ":")) + "\n"
            moment += every
