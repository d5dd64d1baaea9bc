"""How errors of graphs that a cell made are told: by what TensorFlow says behind its preface, and the cell's line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from transient_magics.runtime.training.usercode import reason, run_cell

SAID = "Received a label value of 30 which is outside the valid range of [0, 10)."
MADE = """Graph execution error:

Detected at node 'loss/Softmax' defined at (most recent call last):
    File "/usr/lib/python3.11/threading.py", line 982, in run
    File "/code/own/trainable.py", line 76, in objective{cell}
    File "/lib/keras/src/losses/losses.py", line 2359, in sparse_categorical_crossentropy
Node: 'loss/Softmax'
"""


class InvalidArgumentError(Exception):
    """As of TensorFlow: with the operation that failed."""

    node_def = SimpleNamespace(name="loss/Softmax")


@pytest.mark.parametrize(
    "what",
    [
        f"From /job:worker/replica:0/task:1:\n{SAID}\n\t [[{{{{node loss/Softmax}}}}]]",
        f"=====================\nINVALID_ARGUMENT: From /job:worker/replica:0/task:0:\n{SAID}\n\t [[{{{{node a}}}}]]\n"
        f"INVALID_ARGUMENT: From /job:ps/replica:0/task:0:\n{SAID}\n=====================",
        f"2 root error(s) found.\n  (0) INVALID_ARGUMENT: From /job:worker/replica:0/task:0:\n{SAID}",
    ],
    ids=["one worker", "a worker and a parameter server", "several roots"],
)
def test_an_operation_that_fails_is_told_by_what_it_says(what: str, tmp_path: Path) -> None:
    cell = tmp_path / "cell.py"
    run_cell(cell, tmp_path / "include", 1)  # without a file it is empty
    of_library = InvalidArgumentError(MADE.format(cell="") + what)
    assert reason(of_library, line_offset=1) == f"InvalidArgumentError: {SAID.removesuffix('.')} (loss/Softmax)."
    of_cell = InvalidArgumentError(MADE.format(cell=f'\n    File "{cell}", line 7, in model_fn') + what)
    assert reason(of_cell, line_offset=1) == f"cell line 8: InvalidArgumentError: {SAID}"


def test_a_keras_layer_that_cannot_be_called_is_named_behind_what_it_says() -> None:
    error = ValueError(
        "Exception encountered when calling Reshape.call().\n\n\x1b[1mCannot reshape a tensor of 64 elements to shape "
        "[8,9].\x1b[0m\n\nArguments received by Reshape.call():\n  • inputs=tf.Tensor(shape=(None, 64))"
    )
    said = "ValueError: Cannot reshape a tensor of 64 elements to shape [8,9] (Reshape.call())."
    assert reason(error, line_offset=1) == said
