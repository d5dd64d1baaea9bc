"""Forecasts of a run that goes on, as the panel asks for them: by a process of their own, or not at all."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.panels import stories
from tests.planner.test_learning import BEGAN, story
from transient_magics import client, places
from transient_magics.catalog.published import stand_ins
from transient_magics.cli import program
from transient_magics.client.forecaster import Forecaster
from transient_magics.errors import ClusterError
from transient_magics.journal import Journal, RunState
from transient_magics.protocol.space import parse_space
from transient_magics.protocol.vm_events import TrainFinished
from transient_magics.works.studies.configurations import Part, StudyPreview
from transient_magics.works.studies.spec import StudySpec

CLOCK = r"\d\d:\d\d(:\d\d)?"
MONEY = r"\$\d+\.\d+"
LASTS = ", if Spot capacity lasts"
COSTS = rf"{LASTS}; this run {MONEY} at its end \({MONEY} to {MONEY}\)"
WORDS = re.compile(rf"ends about {CLOCK} \({CLOCK} to {CLOCK}\){COSTS}")


def training(
    home: Path, name: str = "demo", *, steps: int = 4000, times: int = 1, over: bool = False, **story_of: Any
) -> None:
    """A cluster whose run-1 has trained for four minutes and goes on, as of now; `times` as fast, or `over` by now."""
    later = time.time() - 260 - BEGAN
    history, rows = story(steps, **story_of)
    folder = places.private(places.cluster(name))
    run = places.private(folder / "runs" / "run-1")
    (folder / "spec.json").write_text(
        json.dumps(stories.declaration(name, declared_at=BEGAN + later).to_dict()), encoding="utf-8"
    )
    told = [{**row, "step": times * row["step"], "time": row["time"] + int(later * 1e9)} for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told), encoding="utf-8")
    last = history[-1]
    if over:
        ended = TrainFinished(run="run-1", step=times * rows[-1]["step"], loss=0.1)
        history.append(replace(ended, seq=last.seq + 1, time=last.time + 1))
    with Journal(folder / "journal.jsonl") as journal:
        for event in history:
            journal.append(replace(event, time=event.time + int(later * 1e9)))


@pytest.fixture
def forecaster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calm: str) -> Iterator[Forecaster]:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    monkeypatch.setenv("TRANSIENT_MAGICS_EMULATOR", calm)  # it is asked for its weather
    training(tmp_path)
    one = Forecaster()
    yield one
    one.end()


@pytest.mark.slow
def test_a_run_that_is_not_there_is_refused_with_the_latest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {name: SimpleNamespace(name=name, owner=study) for name, study in
            (("run-1", ""), ("run-2", ""), ("study-1-0", "study-1"))}  # fmt: skip
    known = [SimpleNamespace(state=SimpleNamespace(of=lambda state: runs, of_kind=lambda kind: runs))]
    monkeypatch.setattr("transient_magics.client.lookup.clusters", lambda all: known)
    with pytest.raises(ClusterError, match=r"Unknown run 'run-9'\. Known: run-2, run-1\."):
        client.run("run-9")
    with pytest.raises(ClusterError, match=r"Unknown run 'rum-2'\. Did you mean run-2\?"):
        client.run("rum-2")


@pytest.mark.slow
def test_how_a_run_ends_is_told_by_a_process_of_its_own(forecaster: Forecaster) -> None:
    assert WORDS.fullmatch(forecaster.words("demo", "run-1"))
    first = forecaster.process
    assert forecaster.words("demo", "run-2") == ""
    assert forecaster.words("nobody", "run-1") == ""
    assert forecaster.process == first
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert WORDS.fullmatch(forecaster.words("demo", "run-1"))
    assert forecaster.process != first


def test_how_a_run_ends_is_told_by_its_handle_and_by_the_status(
    forecaster: Forecaster, capsys: pytest.CaptureFixture[str]
) -> None:
    words = re.compile(rf"finishes in \d+ min \(.*\), at {CLOCK}{COSTS}")
    run = client.cluster("demo").run("run-1")
    assert words.fullmatch(str(run.forecast()))
    assert re.fullmatch(rf"{MONEY} so far, {MONEY} at its end \({MONEY} to {MONEY}\){LASTS}", run.cost().words)
    assert program.main(["cluster", "status", "demo"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if words.search(line)]
    assert line.strip().startswith("run-1 finishes in ")


def test_a_forecast_on_the_emulator_has_the_lifetimes_of_its_weather(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    monkeypatch.setattr("transient_magics.client.planning.forecasts.weather_of", lambda cluster: "published")
    training(tmp_path, gpu="t4")
    run = client.cluster("demo").run("run-1")
    known = run.forecast()
    assert known.risk == "lifetimes as the emulator's weather has them"
    where = run.cluster.state.vms["worker-1"].zone.rpartition("-")[0]
    assert f"; its emulated VMs live like others: {stand_ins('t4', where)}" in str(known)
    assert "396 preemptible VMs" not in str(known)
    assert "396 preemptible VMs" in str(run.forecast("published")), "where it is asked for"


def test_without_scipy_nothing_is_told_and_nothing_started(
    forecaster: Forecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert forecaster.words("demo", "run-1") == ""
    assert forecaster.process is None


@pytest.mark.parametrize(("pace", "declared", "said"), [
    (2, {}, True), (1, {}, False), (2, {"hparams": "learning_rate=0.3"}, False), (2, {"pace_seconds": 0.1}, False),
])  # fmt: skip
def test_a_run_that_is_slower_than_earlier_ones_of_its_model_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: int, declared: dict[str, Any], said: bool
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    training(tmp_path, name="before", steps=10**6, revoked=False, times=pace, over=True)
    training(tmp_path, steps=10**6, revoked=False, **declared)
    told = str(client.cluster("demo").run("run-1").forecast("none"))
    behind = "; it makes 8 steps/s where earlier runs lead to expect 1[56](.[0-9])? "
    assert bool(re.search(behind, told)) == said, told
    assert "its workers compute slower than those did" in told or not said


def test_a_studys_dry_run_says_hours_and_dollars_where_runs_of_its_model_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    training(tmp_path, steps=10**6, revoked=False)
    cluster = client.cluster("demo")
    spec = cluster.state.spec
    assert spec
    speed = 2.0  # steps/s of one worker; the story's four make eight

    def preview(steps: int, **options: Any) -> StudyPreview:
        ran = cluster.state.of(RunState)["run-1"].spec
        run = replace(ran, train_steps=steps, name="search", **options)
        study = StudySpec.from_dict({
            "name": "search", "run": run.without_token(), "objective": "max accuracy", "trials": 6, "sampler": "grid",
            "space": [asdict(each) for each in parse_space("learning_rate=1e-1,1e-2,1e-3 momentum=0,0.9")],
        })  # fmt: skip
        return StudyPreview(study, (Part(spec, (), own=False),), "")

    (row,) = preview(40_000).rows
    rounds = math.ceil(6 / row["at_once"])
    assert row["hours"] == pytest.approx(rounds * 40_000 / speed / 3600, rel=0.25)
    assert row["low"] <= row["hours"] <= row["high"]
    assert row["dollars"] == pytest.approx(row["hours"] * spec.hourly)
    (longer,) = preview(80_000).rows
    assert longer["hours"] / row["hours"] == pytest.approx(2, rel=0.1)
    said = str(preview(40_000))
    assert "hours and dollars hold while Spot capacity lasts:" in said.splitlines()[0]
    assert re.search(r"; about \d+ h( \d+ min)? \(\d+ h.* to \d+ h.*\), \$\d+\.\d+ \(\$\d.* to \$\d.*\)", said), said
    assert "Hours are estimated from measured runs of this model" in said
    unknown = preview(40_000, model="another")
    assert unknown.rows[0]["hours"] is None
    assert "No run of this model was measured" in str(unknown)
