"""Mini-batches prepared on VMs of their own (`--prep`): speed and dollars against decoding on the worker.

One worker with a K80 at list prices, on the emulator; its steps take as long as an emulated accelerator says. Decoding
an example is a sleep, of 24 at once as Tensor2Tensor interleaves them, so that each VM has cores for it of its own,
which this machine has not. Of slow decoding, and of that which a worker does in passing: there the other VMs can only
cost.
"""

from __future__ import annotations

import argparse
import time

from _common import CELL, all_in, own_home, rows_between, say, start, step_rate

from transient_magics import client
from transient_magics.client import Declaration, Run
from transient_magics.journal import ClusterState
from transient_magics.protocol.measures.step_parts import step_parts

BATCH, PACE = 32, 0.1
SLOW, QUICK = 0.240, 0.012
"""Seconds of decoding an example: a mini-batch takes three times as long as its step, and a sixth of it."""
SETTLE_SECONDS = 5.0
PROBLEM = (
    CELL
    + """

@registry.register_problem
class SlowDigits(ImageDigits):
    def preprocess_example(self, example, mode, hparams):
        import tensorflow as tf
        from tensorflow.python.data.experimental.ops import testing
        one = tf.data.Dataset.from_tensors(example["inputs"]).apply(testing.sleep(MICROSECONDS))
        decoded = one.get_single_element()
        decoded.set_shape(example["inputs"].shape)
        example["inputs"] = decoded
        return super().preprocess_example(example, mode, hparams)
"""
)


def measured(seconds: float, vms: int, span: float) -> tuple[float, float, float]:
    """Steps per second, the share of them that waits for mini-batches, and US dollars an hour of all VMs."""
    with own_home():
        cluster = client.declare(Declaration("k80", name="bench"))
        run = start(
            cluster, source=PROBLEM.replace("MICROSECONDS", str(round(1e6 * seconds))), problem="slow_digits",
            hparams=f"batch_size={BATCH}", pace_seconds=PACE, prep=f"cpux{vms}" if vms else "",
        )  # fmt: skip
        all_in(cluster, 1)
        run.reach(5, 600)
        if vms and seconds == SLOW:
            _have_all(run, vms)
        time.sleep(SETTLE_SECONDS)
        began = time.time()
        time.sleep(span)
        state = cluster.state
        ended = time.time()
        found = step_rate(run, began, ended), _waiting(run, began, ended), sum(vm.hourly for vm in state.living)
        cluster.delete(120)
        return found


def _have_all(run: Run, vms: int) -> None:
    """Wait until so many were added, because steps wait, and are at work."""

    def there(state: ClusterState) -> bool:
        return sum(vm.role == "prep" and vm.state == "ready" for vm in state.living) == vms

    run.cluster.follow(there, 600)
    before = run.state.step
    run.reach(before + 40, 600)


def _waiting(run: Run, since: float, until: float) -> float:
    split = [parts for row in rows_between(run, since, until) if (parts := step_parts(row.get("split")))]
    return sum(parts.input for parts in split) / sum(parts.step for parts in split)


def main() -> None:
    """Print each, and what a thousand steps cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 s of each, not 60; up to two VMs, not four")
    quick = parser.parse_args().quick
    for seconds, name in ((SLOW, "slow decoding"), (QUICK, "quick decoding")):
        alone = 0.0
        for vms in (0, 1, 2) if quick or seconds == QUICK else (0, 1, 2, 4):
            rate, waiting, hourly = measured(seconds, vms, 20.0 if quick else 60.0)
            alone = alone or rate
            where = f"--prep cpux{vms}" if vms else "on the worker"
            dollars = hourly / 3600 * 1000 / rate
            more = f"{rate / alone:.2f} x, {waiting:.0%} waiting, ${hourly:.3f}/h, ${dollars:.4f} per 1,000 steps"
            say(f"{name}, {where}", rate, "steps/s", more=more)


if __name__ == "__main__":
    main()
