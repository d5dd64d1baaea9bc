"""K trials of a study on one VM (`--per-vm K`), with one preparation for all (`--share-input`) and without.

Seconds in which as many trials see as many examples: one after the other, K at a time, and K at a time on the same
mini-batches. From the first step of the first to the last step of the last, with what lies between two trials and the
time in which each fills the buffer that it shuffles in: so it may be more than K times as long. Of decoding that takes
the VM's cores (it sorts numbers), as photographs do, and of decoding that takes next to none, where sharing has little
to bring. Published for CoorDL: up to 5 times on eight GPUs. Steps take as long as an emulated GPU says, which trials do
not share here; the cores they do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from _common import CELL, own_home, say_all

from transient_magics import client
from transient_magics.client import Cluster, Declaration
from transient_magics.client.studying import declare_study
from transient_magics.journal import metrics

BATCH, PACE = 32, 0.05
SLOW, QUICK = 100_000, 10
"""Numbers that are sorted for an example: some 6 ms of a core, and none to speak of."""
ALONE, TOGETHER, SHARED = "one after the other", "--per-vm", "--per-vm --share-input"
PROBLEM = (
    CELL
    + """

@registry.register_problem
class SortedDigits(ImageDigits):
    def preprocess_example(self, example, mode, hparams):
        import tensorflow as tf
        least = tf.sort(tf.random.uniform([NUMBERS]))[0]
        example["inputs"] += tf.cast(0.0 * least, example["inputs"].dtype)
        return super().preprocess_example(example, mode, hparams)
"""
)


def seconds(cluster: Cluster, name: str, how: str, trials: int, steps: int, numbers: int) -> float:
    """From the first step to the last, of a study of so many trials."""
    rates = ",".join(str(round(0.05 + 0.01 * number, 2)) for number in range(trials))
    study = declare_study(
        source=PROBLEM.replace("NUMBERS", str(numbers)), cluster=cluster, name=name, train_steps=steps,
        over=f"learning_rate={rates}", objective="max accuracy", per_vm=1 if how == ALONE else trials,
        share_input=how == SHARED, model="resnet", hparams_set="resnet_digits", problem="sorted_digits",
        hparams=f"batch_size={BATCH}", pace_seconds=PACE, prep_threads=2, check=False,
        eval_batches=1,
    )  # fmt: skip
    study.wait(1800)
    runs = [run for number in study.state.trials for run in study.trial(number).runs]
    made = [metrics.read(run.directory / "metrics.jsonl") for run in runs]
    if any(run.state.step < steps for run in runs):
        raise SystemExit(f"{how}: not all trials have their steps")
    first = min(rows[0]["time"] / 1e9 - rows[0]["compute_seconds"] - rows[0]["wait_seconds"] for rows in made)
    return max(rows[-1]["time"] for rows in made) / 1e9 - first


def compared(cluster: Cluster, counts: Sequence[int], steps: int, repeats: int) -> None:
    """Print each way, interleaved, and what sharing brings."""
    number = 0
    for numbers, decoding in ((SLOW, "slow decoding"), (QUICK, "quick decoding")):
        for trials in counts if numbers == SLOW else counts[-1:]:
            took: dict[str, list[float]] = {ALONE: [], TOGETHER: [], SHARED: []}
            for _ in range(repeats):
                for how, found in took.items():
                    number += 1
                    found.append(seconds(cluster, f"share-{number}", how, trials, steps, numbers))
            for how, found in took.items():
                say_all(f"{decoding}, {trials} trials, {how}", found, "s")
            for how in (ALONE, TOGETHER):
                ratios = [other / own for other, own in zip(took[how], took[SHARED], strict=True)]
                goal = "> 1" if numbers == SLOW else ""
                say_all(f"{decoding}, {trials} trials: {how} over shared", ratios, "x", goal)


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 steps a trial, once, not 400, three times")
    quick = parser.parse_args().quick
    with own_home():
        cluster = client.declare(Declaration("k80", name="bench"))
        cluster.wait()
        began = time.monotonic()
        compared(cluster, (2, 4), 100 if quick else 400, 1 if quick else 3)
        print(f"{time.monotonic() - began:.0f} s in all")
        cluster.delete(120)


if __name__ == "__main__":
    main()
