"""A run's packages on a VM: what is said of a wheel that cannot be installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from transient_magics.errors import TrainingError
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.training.usercode import pip_reason, provide_packages

BROKEN = "broken-1.0-py3-none-any.whl"


@pytest.mark.slow
def test_a_wheel_that_cannot_be_installed_is_named_with_the_reason_that_pip_gives(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.wheels.mkdir()
    (folder.wheels / BROKEN).write_bytes(b"no archive")
    with pytest.raises(TrainingError) as refused:
        provide_packages(folder)
    said = str(refused.value)
    assert said.startswith(f"pip cannot install {BROKEN}: ")
    assert "invalid" in said
    assert said.endswith("(--pip).")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ("ERROR: a-1-cp39-none-any.whl is not a supported wheel on this platform.\n",
         "pip cannot install a-1-cp39-none-any.whl: a-1-cp39-none-any.whl is not a supported wheel on this platform."),
        ("WARNING: odd\nERROR: Exception:\nTraceback\nERROR: no room left\n[notice] a new release\n",
         "pip cannot install the packages: no room left"),
        ("Killed\n\n", "pip cannot install the packages: Killed"),
        ("", "pip cannot install the packages: no output"),
        ("ERROR: \x1b[31mred\x00\n", "pip cannot install the packages:  [31mred "),
    ],
)  # fmt: skip
def test_what_pip_says_is_one_plain_line(errors: str, said: str) -> None:
    assert pip_reason(errors, ["a-1-cp39-none-any.whl", "b-2-py3-none-any.whl"]) == said


def test_words_out_of_a_file_are_no_longer_than_a_line() -> None:
    said = pip_reason(f"ERROR: {'x' * 10**6}\n", [BROKEN])
    assert len(said) < 400
    assert said.startswith(f"pip cannot install {BROKEN}: xxx")
