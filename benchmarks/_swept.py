"""One trial of `bench_sweep.py` as a plain script: `python _swept.py CELL STEPS LR` trains the cell's model with Keras.

It prints the accuracy on the cell's held-out digits.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def main(cell: Path, steps: int, rate: float) -> None:
    """Train for so many steps of the cell's mini-batch, all in this process."""
    names: dict[str, Any] = {"lr": rate}
    exec(compile(cell.read_text(encoding="utf-8"), str(cell), "exec"), names)
    import tensorflow as tf

    model, input_fn = names["model"], names["input_fn"]
    records = tf.data.Dataset.from_tensor_slices(input_fn("train")).shuffle(1437, seed=0).repeat().batch(32)
    model.fit(records, steps_per_epoch=steps, epochs=1, verbose=0)
    print(model.evaluate(*input_fn("eval"), verbose=0, return_dict=True)["accuracy"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
