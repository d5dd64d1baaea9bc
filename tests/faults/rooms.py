"""Runs in a machine room (tests/runtime): real agents, chiefs and workers, without VMs, SSH or a controller."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.runtime.machine_room import PATIENCE, MachineRoom, free_ports, until
from tests.runtime.test_training import DECLARATION, Story, assignment
from transient_magics.cloud import BoundedToken, Reach, bounded_token
from transient_magics.protocol.run import RunSpec
from transient_magics.works.runs.bucket_token import tokens

CELL = """
import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

batch_size = 16

def input_fn(mode):
    pixels = np.random.default_rng(1).random((64, 8)).astype("float32")
    return pixels, (pixels.sum(1) > 4).astype("int64")

def model_fn(features, labels, mode):
    tf.get_variable("ballast", [BALLAST], initializer=tf.ones_initializer(), trainable=False)  # only makes saves long
    logits = features @ tf.get_variable("weights", [8, 2], initializer=tf.random_normal_initializer(stddev=0.01))
    answer = {"predictions": {"scores": tf.nn.softmax(logits)}}
    if mode != "infer":
        answer["loss"] = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == "train":
        answer |= {"optimizer": lambda rate: tf.train.GradientDescentOptimizer(rate), "learning_rate": 0.01}
    if mode == "eval":
        answer["eval_metric_ops"] = {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}
    return answer
"""
DECLARED: dict[str, Any] = {
    **DECLARATION,
    "model": "",
    "hparams_set": "",
    "problem": "",
    "train_steps": 10**6,
    "checkpoint_steps": 20,
    "checkpoint_seconds": None,
    "pace_seconds": 0.1,
}


class Ward(Story):
    """One run in a room: a parameter server and its workers, and what is done to them."""

    def __init__(
        self,
        room: MachineRoom,
        workers: Sequence[str] = ("worker-1",),
        megabytes: int = 0,
        cell: str = CELL,
        **declared: Any,
    ) -> None:
        """`megabytes` of each checkpoint."""
        super().__init__(room)
        self.declared = {**DECLARED, **declared}
        self.cell = cell.replace("BALLAST", str(max(1, megabytes << 18)))
        self.server, self.chief = (f"127.0.0.1:{port}" for port in free_ports(2))
        self.folder = room.run_folder("ps-0")
        self.checkpoints = self.folder / "checkpoints"
        """Where this process sees them."""
        self.place("ps-0")
        for name in workers:
            self.place(name)
            self.assign(name)

    def place(self, name: str, **changes: Any) -> Path:
        """Start a machine's agent and put the run there."""
        self.room.start_agent(name)
        return self.room.put(name, {**self.declared, **changes}, self.cell)

    def assign(self, name: str) -> None:
        self.room.say(name, assignment(name, [self.server], self.chief))

    def kill_server(self) -> int:
        """kill -9 of the parameter server's process, as soon as its agent says which that is."""
        number = until(lambda: self.room.pids("ps-0").get("ps-0"), "the parameter server's process")
        os.kill(number, signal.SIGKILL)
        return number

    def present(self) -> set[str]:
        """The workers that take part."""
        found: set[str] = set()
        for line in self.events("worker.joined", "worker.left"):
            (found.add if line["kind"] == "worker.joined" else found.discard)(line["worker"])
        return found

    def trains(self, since: float | None = None) -> float:
        """See every worker that takes part step after a moment (since 1970); seconds from then until all do."""
        began = time.time() if since is None else since

        def stepped() -> dict[str, float]:
            first: dict[str, float] = {}
            for line in self.metrics():
                if line["time"] / 1e9 > began and line["steps"]:
                    first.setdefault(line["worker"], line["time"] / 1e9)
            return first if first and self.present() <= first.keys() else {}

        return max(until(stepped, "steps of all workers").values()) - began

    def more(self, *kinds: str, than: int | None = None) -> dict[str, Any]:
        """Wait for one more event of `kinds` than there is now, or for one more than so many."""
        known = len(self.events(*kinds)) if than is None else than
        return until(lambda: self.events(*kinds)[known:], f"another {kinds}")[0]

    def steps_at_disk(self) -> list[int]:
        """Steps of the checkpoints that are whole on the parameter server's machine."""
        found = self.checkpoints.glob("model.ckpt-*.index")
        return sorted(int(path.stem.rpartition("-")[2]) for path in found)

    def while_saving(self, strike: Callable[[], object]) -> int:
        """Strike while a checkpoint is being written; the step of the one that was not whole then."""

        def struck() -> int:
            for name in os.listdir(self.checkpoints):
                if found := re.match(r"model\.ckpt-(\d+)\.data.*tempstate", name):
                    strike()
                    return int(found[1]) * (not (self.checkpoints / f"model.ckpt-{found[1]}.index").exists())
            return 0

        deadline = time.monotonic() + PATIENCE
        while not (step := struck()):
            assert time.monotonic() < deadline, "no checkpoint is being written"
        return step

    def bring_token(self, place: str | None) -> None:
        """Put the tokens of a run whose place is `place` on the parameter server's machine, as a controller does."""

        async def mint(places: Sequence[Reach]) -> BoundedToken:
            return await bounded_token(places, "p", os.environ["STORAGE_EMULATOR_HOST"])

        for name, made in tokens(mint, place, RunSpec.from_dict(self.declared)).items():
            token, path = asyncio.run(made()), self.folder / name
            path.with_suffix(".new").write_text(
                json.dumps({**token.to_dict(), "expires": time.time() + 3000.0}), encoding="utf-8"
            )
            path.with_suffix(".new").replace(path)
