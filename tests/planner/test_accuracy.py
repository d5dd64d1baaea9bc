"""How accurate runs like a planned one became, beside its hours and dollars."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import transient_magics as tm
from tests.planner.test_efficiency import examples, trained
from transient_magics import panels
from transient_magics.planner.efficiency import Accuracies
from transient_magics.planner.plan import Plan
from transient_magics.planner.run_records import Record
from transient_magics.planner.search import Search


def ran(accuracy: float, workers: float = 4, step: int = 1000, **more: Any) -> Record:
    told = ((step // 2, {"accuracy": accuracy - 0.2}), (step, {"accuracy": accuracy, "loss": 0.3}))
    return Record((), "own", evaluations=told, batch_size=32, workers=workers, **more)


def test_only_runs_like_the_planned_one_tell_its_accuracy() -> None:
    like = [ran(0.90), ran(0.92, 3.8), ran(0.91, step=1040)]
    others = [ran(0.5, 8), ran(0.5, step=3000), ran(0.5, mode="sync"), ran(0.5, settings="learning_rate=10"),
              replace(ran(0.5), batch_size=64), Record((), "own", batch_size=32, workers=4)]  # fmt: skip
    found = Accuracies(like + others, 32).at(4, 1000)
    assert found is not None
    assert (found.value, found.runs, found.guess) == (pytest.approx(0.91), 3, False)
    assert found.low < 0.9 < 0.92 < found.high < 0.96
    halfway = Accuracies(like, 32).at(4, 500)
    assert halfway is not None
    assert halfway.value == pytest.approx(0.71), "as it was evaluated on the way"
    assert Accuracies(like, 32).at(4, 700) is None, "nothing is read between two evaluations"
    assert not Accuracies(others, 128)
    sure = Accuracies([ran(1.0)], 32).at(4, 1000)
    assert sure is not None
    assert (sure.guess, sure.high) == (True, 1.0)


def test_an_accuracy_is_surer_the_fewer_workers_and_the_more_runs_there_were() -> None:
    """As ICAC'19's runs differ: by 0.002 of one worker and 0.008 of four."""

    def width(workers: float, *found: float) -> float:
        told = Accuracies([ran(each, workers) for each in found], 32).at(round(workers), 1000)
        assert told is not None
        return told.high - told.low

    assert 0.01 < width(1, 0.9) < 0.02 < width(4, 0.9) < 0.06
    assert width(4, 0.9, 0.9, 0.9) < 0.75 * width(4, 0.9)
    assert width(4, 0.85, 0.9, 0.95) > 0.1, "what these runs tell counts for more"


@pytest.mark.slow
def test_plans_and_searches_show_it_where_it_is_known(tmp_path: Path) -> None:
    trained("demo-2", 2)
    model: dict[str, Any] = {"model": "resnet", "problem": "image_digits", "hparams_set": "resnet_digits"}
    asked: dict[str, Any] = {**model, "train_steps": round(examples(64) / 32) + 2, "revocations": "none"}
    two, four = tm.plan("k80x2", **asked), tm.plan("k80x4", **asked)
    assert isinstance(two, Plan)
    said = "Accuracy 100.0% (one run), as a run with as many workers and steps had; how others differ is unknown."
    assert said in str(two).splitlines()
    assert said in panels.plan_html(two)
    assert "Accuracy" not in str(four)
    found = tm.plan(gpus=("k80",), zone=("us-central1-a",), **asked)
    assert isinstance(found, Search)
    view = panels.plan.search_view(found)
    column = view["header"].index("Accuracy")
    shown = {row["cells"][-1].split()[1]: row["cells"][column] for row in view["rows"]}
    assert {"100.0% (one run)", "-"} >= set(shown.values())
    assert shown.get("k80x2", "100.0% (one run)") == "100.0% (one run)"
    assert "ACCURACY" in str(found)
    assert ">Accuracy</th>" in panels.search_html(found)
    published = tm.plan(workload="icac19/resnet-32", train_steps=64_000, gpus=("k80",), revocations="none")
    assert "ACCURACY" not in str(published)


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))
