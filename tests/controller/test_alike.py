"""Which runs need no check of their own, because another one's holds for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from transient_magics.controller.decisions.same_check import alike
from transient_magics.protocol.run import RunSpec
from transient_magics.works.runs.checking import content

FIRST = RunSpec("a", 100, "resnet", "resnet_digits", "image_digits", "learning_rate=0.1,batch_size=32")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"name": "b", "train_steps": 900, "seed": 3, "token": "x", "least_workers": 2, "declared_at": 9.0}, True),
        ({"hparams": "learning_rate=1e-3,batch_size=32"}, True),
        ({"hparams": "learning_rate=.5, batch_size=32"}, False),  # as it is written, but for the numbers
        ({"hparams": "learning_rate=0.1,batch_size=64"}, False),  # a whole number may be a size
        ({"hparams": "learning_rate=1,batch_size=32"}, False),
        ({"hparams": "dropout=0.1,batch_size=32"}, False),
        ({"hparams": ""}, False),
        ({"problem": "image_cifar10"}, False),
        ({"ps_shards": 2}, False),
        ({"keep_best": "max accuracy"}, False),
        ({"include": ("more.py",)}, False),
        ({"mode": "sync"}, False),
    ],
)
def test_runs_are_alike_that_differ_in_fractions_and_in_what_no_graph_is_built_of(
    changed: dict[str, object], expected: bool
) -> None:
    assert alike(FIRST, replace(FIRST, **changed)) == expected  # type: ignore[arg-type]


def test_code_and_packages_are_compared_by_what_they_are(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        (folder / "include").mkdir(parents=True)
        (folder / "cell.py").write_text("x = 1", encoding="utf-8")
        (folder / "include" / "more.py").write_text("y = 1", encoding="utf-8")
    first, second = folders
    assert content(first) == content(second)
    (second / "include" / "more.py").write_text("y = 2", encoding="utf-8")
    assert content(first) != content(second)
    (second / "include" / "more.py").write_text("y = 1", encoding="utf-8")
    (second / "wheels").mkdir()
    (second / "wheels" / "fast-1.0-py3-none-any.whl").write_bytes(b"w")
    assert content(first) != content(second)
    (second / "cell.py").unlink()
    with pytest.raises(OSError, match=r"cell\.py"):
        content(second)
