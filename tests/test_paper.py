"""The published study's notebook: how hours and dollars follow from steps, and a short form of it, whole."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.catalog.published import PUBLISHED
from tests.notebooks import runner_of

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
sys.path.insert(0, str(NOTEBOOKS))

import paper  # noqa: E402

SHORT = """REPEATS, STEPS, PACE = 1, 120, 0.05
WORKERS, OTHERS, SERVERS, LOST, GROWING = [2], [], [], ["k80x2"], []"""


def rows_of(
    step: float, joins: list[float], steps: int, first: float = 0.0, gone: tuple[int, float] | None = None
) -> tuple[list[dict[str, float | str]], float]:
    """The lines of workers that begin at `joins` and make a step in `step` seconds, `first` later the first time; the
    `gone` one stops then. And when step `steps` was made."""
    ends = [(begin + first + step * count, f"worker-{number}", first if count == 1 else 0.0)
            for number, begin in enumerate(joins) for count in range(1, steps + 1)
            if not (gone and number == gone[0] and begin + first + step * count > gone[1])]  # fmt: skip
    ends.sort()
    rows: list[dict[str, float | str]] = [
        {"time": 1e9 + time, "worker": worker, "step": made, "steps": 1, "seconds": step + more}
        for made, (time, worker, more) in enumerate(ends, 1)
    ]
    return rows[: steps + 3], ends[steps - 1][0]


@given(
    step=st.floats(0.05, 0.5),
    joins=st.lists(st.floats(0, 5), min_size=1, max_size=8),
    first=st.floats(0, 3),
)
def test_training_counts_from_each_workers_own_first_step_and_joining_apart(
    step: float, joins: list[float], first: float
) -> None:
    rows, end = rows_of(step, joins, 400, first)
    assume(len({row["worker"] for row in rows[:400]}) == len(joins))  # who comes after the end has no part in it
    found = paper.made(rows, 400)
    began = [begin + first for begin in joins]
    assert found.training == pytest.approx(statistics.fmean(end - begin for begin in began), abs=0.001)
    assert found.training + found.joining == pytest.approx(end - min(began), abs=0.001)
    assert found.joining >= -0.001
    assert found.training == pytest.approx(400 * step / len(joins), abs=step * 2)  # as if all had begun at once


def test_a_worker_that_was_lost_counts_for_dollars_and_not_for_hours() -> None:
    rows, end = rows_of(0.1, [0.0, 0.0], 400, gone=(1, 10.0))
    found = paper.made(rows, 400, ["worker-1"])
    assert found.training == pytest.approx(end, abs=0.001)
    assert found.of_workers == pytest.approx({"worker-0": end, "worker-1": 10.0}, abs=0.11)
    scale = paper.Scale(400, 0.1)
    hours = [scale.hours(seconds) for seconds in (end, 10.0)]
    assert paper.dollars(found, scale, "k80", 1) == pytest.approx(sum(hours) * 0.256 + hours[0] * 0.143, rel=0.01)
    with pytest.raises(ValueError, match="did not come to step 500"):
        paper.made(rows, 500)


@given(steps=st.integers(100, 64_000), pace=st.floats(0.01, 10.0))
def test_the_scale_gives_one_k80_its_published_hours_and_bytes_their_share_of_a_step(steps: int, pace: float) -> None:
    scale = paper.Scale(steps, pace)
    assert scale.hours(steps * pace) == pytest.approx(paper.ALONE)
    assert scale.seconds(paper.ALONE * 3600) == pytest.approx(steps * pace)
    assert scale.hours_per_minute / 60 * steps * pace == pytest.approx(paper.ALONE)
    ours = 4 * 64_010 * 8 / scale.link(64_010) / pace
    theirs = paper.MEGABYTES / (paper.SERVER_STEPS * paper.MEGABYTES) / (paper.ALONE * 3600 / paper.STEPS)
    assert ours == pytest.approx(theirs)


def test_one_k80_in_the_published_time_costs_what_was_published() -> None:
    scale = paper.Scale(800, 0.2)
    alone = paper.Made(160.0, 0.0, {"worker-0": 160.0})
    assert paper.dollars(alone, scale, "k80", 0, on_demand=True) == pytest.approx(paper.ON_DEMAND[1][1], abs=0.005)
    eight = paper.Made(160 * 0.508 / 3.911, 0.0, {f"worker-{n}": 160 * 0.508 / 3.911 for n in range(8)})
    assert paper.dollars(eight, scale, "k80", 1, on_demand=True) == pytest.approx(paper.ON_DEMAND[8][1], abs=0.01)


def test_what_is_kept_is_there_after_the_notebook_broke_off(tmp_path: Path) -> None:
    rows = paper.Rows(tmp_path / "rows.jsonl")
    for hours in (1.0, 2.0, 3.0):
        rows.add(paper.Kept("k80", hours, 0.5, 98.0, 0.1, 0.4))
    rows.add(paper.Kept("k80x2", 1.0, 0.5, 98.0, 0.1, 0.4))
    found = [row.hours for row in paper.Rows(tmp_path / "rows.jsonl").of("k80")]
    assert found == [1.0, 2.0, 3.0]
    assert paper.words(found) == "2.00 ± 0.58 (3)"
    assert paper.words([1.0]) == "1.00 (1)"
    assert paper.words([]) == "not measured"
    assert math.isnan(paper.error([1.0]))


def test_only_what_has_no_row_is_missing(tmp_path: Path) -> None:
    rows = paper.Rows(tmp_path / "rows.jsonl")
    assert rows.missing({"k80x2": 2, "k80": 1}) == {"k80x2": 2, "k80": 1}
    rows.add(paper.Kept("k80", 3.9, 1.0, 98.0, 0.0, 0.4))
    assert rows.missing({"k80x2": 2, "k80": 1}) == {"k80x2": 2}


def test_the_published_figures_are_those_of_the_data_set() -> None:
    data = PUBLISHED / "icac19" / "training"
    if not data.exists():
        pytest.skip("the published data are not beside the project")

    def durations(folder: str) -> list[float]:
        found = (data / folder / "train_data_processed.csv").read_text(encoding="utf-8").splitlines()
        column = found[0].split(",").index("Duration")
        return [float(line.split(",")[column]) for line in found[1:]]

    for gpu in ("p100", "v100"):
        for name, folder in ((gpu, f"p100_v100_spot/{gpu}"), (f"{gpu}x4", f"p100_v100_spot/4{gpu}")):
            hours = statistics.fmean(durations(folder)) / 3600
            assert hours == pytest.approx(paper.CLUSTERS[name].hours, abs=0.001)
    for (gpu, workers, servers), (seconds, _) in paper.SERVERS.items():
        folder = f"experiment_1ps_vs_2ps/{servers}ps{workers}{gpu[0]}"
        assert statistics.fmean(durations(folder)) == pytest.approx(seconds, abs=1)
    for spec, folder in (("k80x2", "2-spot"), ("k80x4", "4-spot"), ("k80x8", "8-spot")):
        there = [round(each) for each in durations(f"k80_spot/{folder}")]
        assert {seconds for _, seconds in paper.LOST[spec] + paper.LOST_TWO.get(spec, ())} <= set(there)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tm-"))
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(NOTEBOOKS), os.environ.get("PYTHONPATH")])))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.nightly
def test_the_notebook_runs_in_a_short_form(home: Path, tmp_path: Path) -> None:
    import nbformat

    notebook = nbformat.read(NOTEBOOKS / "icac19.ipynb", as_version=4)
    (parameters,) = (cell for cell in notebook.cells if cell.source.startswith("REPEATS = "))
    parameters.source += f"\n{SHORT}"
    runner_of(notebook, tmp_path).execute()
    kept = [json.loads(line) for line in (tmp_path / "icac19-rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["what"] for row in kept] == ["k80", "k80x2", "k80x2-4602"]
    assert all(row["accuracy"] > 50 and row["hours"] > 1 for row in kept)
    assert kept[0]["hours"] > 3.8
    said = "".join(str(output) for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "k80  (=)" in said
    assert "lost at 4602 s" in said
