"""Which files of checkpoints stay and which go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime import programs
from transient_magics.errors import TrainingError
from transient_magics.protocol.objective import Best
from transient_magics.runtime.files.checkpoints import Checkpoints

BROKEN = """
import sys
from pathlib import Path
from transient_magics.errors import TrainingError
from transient_magics.runtime.files.checkpoints import Checkpoints

for _ in range(2):
    try:
        print(Checkpoints(Path(sys.argv[1])).newest())
    except TrainingError as error:
        print(error)
"""

MENDED = """
import shutil
import sys
from pathlib import Path
from transient_magics.runtime.files.checkpoints import Checkpoints
from transient_magics.runtime.tf.graph_mode import tensorflow

here, elsewhere = map(Path, sys.argv[1:])
here.mkdir()
tf, numbers = tensorflow(), [float(each) for each in range(1000)]
for step in (10, 20, 30):
    with tf.Graph().as_default(), tf.Session() as session:
        values = [tf.constant([number + step for number in numbers])]
        session.run(tf.raw_ops.SaveV2(prefix=f"{here}/model.ckpt-{step}", tensor_names=["v"], shape_and_slices=[""],
                                      tensors=values))
shutil.copytree(here, elsewhere)


def hurt():
    data = here / "model.ckpt-20.data-00000-of-00001"
    data.write_bytes(bytes(255 - byte for byte in data.read_bytes()))  # of the same size
    (here / "model.ckpt-30.data-00000-of-00001").unlink()


def mend():
    shutil.copytree(elsewhere, here, dirs_exist_ok=True)


for mended in (None, mend):
    mend()
    hurt()
    step, values = Checkpoints(here).newest(mended)
    print(step, values["v"][0])
"""


def save(prefix: str) -> None:
    for ending in (".data-00000-of-00001", ".index"):
        Path(prefix + ending).write_text("values", encoding="utf-8")


def test_what_was_just_written_stays_though_older_steps_have_higher_numbers(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (40, 84, 120, 81):
        saved = checkpoints.write(step, save)
        assert saved.bytes == 12
    assert checkpoints.steps() == [120, 81]
    assert 'model_checkpoint_path: "model.ckpt-81"' in (tmp_path / "checkpoint").read_text(encoding="utf-8")


def test_the_best_one_stays_until_another_is_better(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (10, 20):
        checkpoints.write(step, save)
        checkpoints.keep_best(Best("max accuracy", step / 100, step))
    for step in (30, 40):
        checkpoints.write(step, save)
    assert checkpoints.steps() == [40, 20]
    assert '"model.ckpt-20"' in (tmp_path / "checkpoint").read_text(encoding="utf-8")
    assert checkpoints.best() == Best("max accuracy", 0.2, 20)
    checkpoints.keep_best(Best("max accuracy", 0.4, 40))
    checkpoints.write(50, save)
    assert checkpoints.steps() == [50, 40]
    (tmp_path / "model.ckpt-40.index").unlink()
    assert checkpoints.best() is None, "it is lost"


def test_a_good_checkpoint_is_not_spoiled_by_writing_it_again(tmp_path: Path):
    def full(prefix: str) -> None:
        Path(f"{prefix}.index").write_text("a part", encoding="utf-8")
        raise OSError("no space left on device")

    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(40, save)
    assert checkpoints.write(40, full).bytes == 12
    with pytest.raises(OSError, match="no space"):
        checkpoints.write(41, full)
    assert checkpoints.steps() == [40]
    assert (tmp_path / "model.ckpt-40.index").read_text(encoding="utf-8") == "values"


def test_what_a_killed_save_left_goes_with_the_next_one(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(40, save)
    for ending in (".data-00000-of-00001.tempstate17", ".data-00000-of-00001"):
        (tmp_path / f"model.ckpt-47{ending}").write_text("a part", encoding="utf-8")
    checkpoints.write(60, save)
    assert not list(tmp_path.glob("model.ckpt-47.*"))
    assert checkpoints.steps() == [60, 40]


@pytest.mark.training
def test_flipped_bytes_and_an_index_without_its_data_are_passed_over_or_mended(tmp_path: Path):
    told = programs.run(MENDED, tmp_path / "here", tmp_path / "elsewhere", own=True).splitlines()
    assert told == ["10 10.0", "30 30.0"]


@pytest.mark.training
def test_a_run_whose_checkpoints_are_all_broken_never_starts_from_nothing(tmp_path: Path):
    save(str(tmp_path / "model.ckpt-40"))
    first, second = programs.run(BROKEN, tmp_path, own=True).splitlines()
    assert "no checkpoint of the run can be read" in first
    assert "no checkpoint of the run can be read" in second


def test_a_checkpoint_is_found_by_its_step_or_as_the_newest(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the run has no checkpoint yet"):
        Checkpoints(tmp_path).find()
    for step in (10, 20):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    assert (Checkpoints(tmp_path).find(), Checkpoints(tmp_path).find(10)) == (20, 10)
    with pytest.raises(TrainingError, match=r"no checkpoint of step 15 .*Use one of these steps: 20, 10\."):
        Checkpoints(tmp_path).find(15)
