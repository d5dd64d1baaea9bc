"""What a run's metrics add up to: few columns however long it is, speeds that are right, workers told apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from transient_magics.journal import RunSeries, metrics
from transient_magics.journal.series import POINTS
from transient_magics.protocol import jsonl

BEGAN = 1_700_000_000


def lines(seconds: int, workers: int = 2, *, steps: int = 4, every: float = 1.0) -> Iterator[dict[str, Any]]:
    """`workers` that make `steps` steps of 32 examples in each second, from BEGAN on."""
    for number in range(int(seconds / every)):
        for worker in range(workers):
            yield {
                "time": int((BEGAN + number * every + 0.01 * worker) * 1e9), "worker": f"worker-{worker}",
                "step": int(number * every * steps * workers), "steps": steps * every,
                "samples": 32 * steps * every, "loss": 1.0, "batch_size": 32, "compute_seconds": 0.8 * every,
                "wait_seconds": 0.2 * every, "staleness": workers - 1,
            }  # fmt: skip


def drawn(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    series = RunSeries()
    series.add(rows)
    return series.columns()


def test_speeds_add_up_and_workers_are_told_apart() -> None:
    columns = drawn(lines(60))
    assert columns["speed"][5:] == pytest.approx([8.0] * (len(columns["speed"]) - 5), rel=0.02)
    assert columns["workers"]["worker-1"]["speed"][5:] == pytest.approx([4.0] * (len(columns["time"]) - 5), rel=0.02)
    assert set(columns["workers"]["worker-0"]["batch"]) == {32.0}
    assert set(columns["workers"]["worker-0"]["staleness"]) == {1.0}
    assert columns["step"][-1] <= 59 * 8


def test_gradients_that_were_measured_are_averaged_before_their_ratio_is_taken() -> None:
    rows = list(lines(60))
    rows[40].update(gradient_squared=5.0, gradient_signal=3.0, gradient_noise=64.0)
    rows[41].update(gradient_squared=3.0, gradient_signal=-1.0, gradient_noise=64.0)
    rows[80].update(gradient_squared=3.0, gradient_signal=-1.0, gradient_noise=64.0)
    columns = drawn(iter(rows))
    assert [each for each in columns["gradient_squared"] if each is not None] == [4.0, 3.0]
    assert [each for each in columns["noise_scale"] if each is not None] == [64.0]


@pytest.mark.slow
def test_a_day_is_as_few_points_as_a_minute_and_covers_all_of_it() -> None:
    columns = drawn(lines(24 * 3600, 3, every=5.0))
    assert POINTS / 2 <= len(columns["time"]) <= POINTS
    assert columns["time"][0] - BEGAN < columns["width"]
    assert BEGAN + 24 * 3600 - columns["time"][-1] < 2 * columns["width"]
    assert columns["speed"][10:-1] == pytest.approx([12.0] * (len(columns["speed"]) - 11), rel=0.05)
    assert len(json.dumps(columns)) < 60_000


def test_the_expected_speed_is_what_warm_workers_reached_without_waiting() -> None:
    columns = drawn(lines(60))
    assert columns["expected"][0] == columns["expected"][-1] == pytest.approx(10.0)
    assert set(drawn(lines(20))["expected"]) == {None}


def test_a_worker_that_left_counts_no_more() -> None:
    columns = drawn(row for row in lines(60) if row["worker"] == "worker-0" or row["time"] < (BEGAN + 30) * 1e9)
    assert columns["speed"][-1] == pytest.approx(4.0, rel=0.02)
    assert columns["workers"]["worker-1"]["speed"][-1] is None


def test_lines_of_other_versions_are_passed_over() -> None:
    series = RunSeries()
    series.add([{"time": "?"}, {}, {"time": 1, "worker": "worker-0", "steps": None}])
    assert series.rows == 0
    assert series.columns()["time"] == []


def test_the_name_of_a_worker_is_plain_text_in_tables(tmp_path: Path) -> None:
    path, row = tmp_path / "metrics.jsonl", next(iter(lines(1)))
    path.write_text(json.dumps({**row, "worker": "\x1b[2Jworker-0\u202e"}) + "\n", encoding="utf-8")
    assert [each["worker"] for each in metrics.read(path)] == ["worker-0\ufffd"]


@pytest.mark.parametrize(
    "change",
    [{"step": None}, {"step": 1.5}, {"step": -1}, {"steps": None}, {"steps": 5e-324}, {"time": 2**63},
     {"gradient_squared": 1.0, "gradient_signal": 1.0}],
    ids=str,
)  # fmt: skip
def test_lines_that_cannot_be_computed_with_are_passed_over(tmp_path: Path, change: dict[str, object]) -> None:
    path, rows = tmp_path / "metrics.jsonl", list(lines(30))
    path.write_text(
        "".join(json.dumps({**row, **more}) + "\n" for row in rows for more in ({}, change)), encoding="utf-8"
    )
    assert metrics.read(path) == rows
    without = [{name: value for name, value in row.items() if name != "step"} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in without), encoding="utf-8")
    assert metrics.read(path) == []


def test_what_is_kept_of_the_last_seconds_is_bounded_however_often_a_worker_tells_one_moment() -> None:
    series, (row, *_) = RunSeries(), lines(1)
    for _ in range(40):
        series.add([{**row, "split": [0.1] * 9}] * 1000)
    assert len(series._lately) < 40_000


@pytest.mark.slow
async def test_a_large_file_is_read_in_samples_and_then_followed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in lines(40_000)), encoding="utf-8")
    size, seen, series = path.stat().st_size, 0, RunSeries()
    assert size > 12 * 2**20
    async for rows in metrics.follow(path):
        series.add(rows)
        seen += len(rows)
        if rows and rows[-1]["worker"] == "late":
            break
        if rows and rows[-1]["time"] // 10**9 == BEGAN + 39_999:
            jsonl.append_lines(path, json.dumps({**rows[-1], "worker": "late"}).encode() + b"\n")
    assert seen < 60_000
    assert len(metrics.sample(path)) < 60_000
    assert metrics.sample(path)[-1]["worker"] == "late"
    speeds = series.columns()["speed"]
    assert speeds == pytest.approx([8.0] * len(speeds), rel=0.1)


async def test_what_is_there_is_read_whole_where_it_is_small(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in lines(1000)), encoding="utf-8")
    seen = 0
    async for rows in metrics.follow(path):
        seen += len(rows)
        if seen == 2000:
            break
    assert metrics.read(path)[-1]["step"] == 999 * 8
    assert metrics.sample(path) == metrics.read(path)


@pytest.mark.slow
def test_a_long_run_is_thinned_and_its_counts_stay(tmp_path: Path) -> None:
    path, rows = tmp_path / "metrics.jsonl", list(lines(3 * 3600))
    rows[0].update(gradient_squared=5.0, gradient_signal=1.0, gradient_noise=32.0)
    rows[8].update(gradient_squared=3.0, gradient_signal=-1.0, gradient_noise=32.0)
    path.write_text(
        "".join(json.dumps({**row, "gap_seconds": 0.3 + (row["time"] // 10**9 % 60 == 7)}) + "\n" for row in rows),
        encoding="utf-8",
    )
    size = path.stat().st_size
    assert not metrics.compact(path)
    assert metrics.compact(path, large=size // 2)
    assert path.stat().st_size < 0.4 * size
    kept = metrics.read(path)
    last_hour = [row for row in rows if row["time"] > rows[-1]["time"] - 3600 * 10**9]
    assert len(kept) - len(last_hour) <= 2 * 122  # minutes of the clock, of each of two workers
    assert [row["time"] for row in kept[-len(last_hour) :]] == [row["time"] for row in last_hour]
    for name in ("steps", "samples"):
        assert sum(row[name] for row in kept) == sum(row[name] for row in rows)
    assert kept[4]["gap_seconds"] == pytest.approx(1.3)
    (measured,) = [row for row in kept if "gradient_squared" in row]
    assert [measured[f"gradient_{name}"] for name in ("squared", "signal", "noise")] == [4.0, 0.0, 32.0]
    assert metrics.speeds(kept) == pytest.approx([4.0] * len(kept), rel=0.02)
    speeds = drawn(kept)["speed"]
    assert speeds == pytest.approx([8.0] * len(speeds), rel=0.1)
    assert not list(tmp_path.glob("*.new"))
