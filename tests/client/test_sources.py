"""Seconds that were measured on the emulator are never those of Compute Engine, and no plan, refusal or forecast mixes
the two."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

import transient_magics as tm
from tests.panels import stories
from tests.planner.test_learning import BEGAN, story
from tests.planner.test_stall_terms import terms
from tests.planner.test_stalls import one, step, told
from transient_magics import places
from transient_magics.client.declaring import Preview
from transient_magics.client.folders import known_runs
from transient_magics.client.forecaster import _words
from transient_magics.client.planning.bottlenecks import bound_words, foreseen
from transient_magics.client.planning.deadlines import _needed
from transient_magics.client.planning.forecasts import forecast_line
from transient_magics.client.planning.workloads import learn, store_of
from transient_magics.errors import PlanError, StoreError
from transient_magics.journal import Event, Journal, events
from transient_magics.planner.model_store import ModelStore
from transient_magics.planner.plan import Plan
from transient_magics.planner.run_records import CROSSING, Observation, Record
from transient_magics.planner.search import Search
from transient_magics.planner.speeds.throughput import Waits
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.space import parse_space
from transient_magics.works.studies.configurations import Part, StudyPreview
from transient_magics.works.studies.spec import StudySpec

EMULATED = 8
"""Steps per second of four emulated workers; those of the project are a fourth as fast."""
FULL: dict[str, Any] = {
    "observations": (Observation({"k80": 4}, 1, 8.0, 60.0), Observation({"k80": 4}, 1, 8.1, 60.0)),
    "source": "emulated", "joins": (12.0,), "evaluations": ((100, {"accuracy": 0.9}),), "batch_size": 32,
    "parameters": 10**6, "gigaflops": 1.5, "over": True, "closing": 3.0, "latest": (1.0, 100), "workers": 4.0,
    "gradients": ((50, 1.0, 2.0),), "mode": "async", "waits": {"k80": Waits(1.0, 10.0, 20)}, "settings": "units=64",
}  # fmt: skip
"""A record with something in every field."""


NEXT = RunSpec.from_dict({**stories.TRAIN, "name": "next", "train_steps": 7200})


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    return tmp_path


def renamed(event: Event, run: str) -> Event:
    """Return the event of run-1 as one of another run; any other event unchanged."""
    if event.work_of("run") != "run-1":
        return event
    field = "work" if isinstance(event, events.WorkDeclared) else "run"
    return replace(event, **{field: run})  # type: ignore[arg-type]


def trained(name: str, project: str | None, times: float = 1.0) -> None:
    """A cluster of that project (None: the emulator's) that trained run-NAME, `times` as fast as `story` tells."""
    history, rows = story()
    run = f"run-{name}"
    spec = stories.declaration(name, declared_at=BEGAN, project=project).to_dict()
    history = [renamed(event, run) for event in history]
    history[0] = replace(history[0], spec=spec)  # type: ignore[call-arg]
    folder = places.private(places.cluster(name))
    directory = places.private(folder / "runs" / run)
    (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    told = [{**row, "step": round(times * row["step"])} for row in rows]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told), encoding="utf-8")
    (directory / "model.json").write_text(json.dumps({"parameters": 10**6, "gigaflops": 1.5}), encoding="utf-8")
    with Journal(folder / "journal.jsonl") as journal:
        for event in history:
            journal.append(event)


def searched(spec: Any) -> StudyPreview:
    study = StudySpec.from_dict({
        "name": "search", "run": NEXT.without_token(), "objective": "max accuracy", "trials": 2, "sampler": "grid",
        "space": [asdict(each) for each in parse_space("learning_rate=1e-1,1e-2")],
    })  # fmt: skip
    return StudyPreview(study, (Part(spec, (), own=False),), "")


def planned(spec: str, **more: Any) -> Plan:
    found = tm.plan(spec, train_steps=7200, revocations="none", **more)
    assert isinstance(found, Plan)
    return found


def test_of_every_field_of_a_record_it_is_decided_whether_it_crosses() -> None:
    """A new field is a machine's seconds until somebody says that it is not."""
    assert FULL.keys() == {each.name for each in fields(Record)}, "give FULL a value for the new field"
    there = Record(**FULL)
    assert there.of("emulated") == there
    assert Record.from_dict(json.loads(json.dumps(there.to_dict()))) == there
    here = there.of("own")
    for each in fields(Record):
        default = each.default if each.default is not MISSING else each.default_factory() if (
            each.default_factory is not MISSING) else ()  # fmt: skip
        kept = each.name in CROSSING or each.name == "source"
        assert getattr(here, each.name) == (FULL[each.name] if kept else default), each.name


def test_the_store_learns_no_seconds_from_another_source(tmp_path: Path) -> None:
    store = ModelStore("resnet", "image_digits", directory=tmp_path)
    store.learn("demo/run-1@1", Record(**FULL))
    with pytest.raises(PlanError, match="has not trained long enough on Compute Engine"):
        store.workload("run-1", "own")
    speeds = (Observation({"k80": 4}, 1, 2.0, 60.0), Observation({"k80": 4}, 1, 2.1, 60.0))
    own = Record(speeds, "own", batch_size=32, parameters=10**6, gigaflops=1.5)
    store.learn("real/run-1@2", own)
    mixed = store.workload("run-1", "own")
    alone = ModelStore("resnet", "image_digits", "alone", directory=tmp_path)
    alone.learn("real/run-1@2", own)
    assert mixed == alone.workload("run-1", "own"), "waits, joins and speeds of the emulator are in none of it"
    assert store.workload("run-1", "emulated").step("k80").seconds == pytest.approx(4 / 8.05, rel=0.05)
    assert store.records("own")["demo/run-1@1"].evaluations == FULL["evaluations"]


@pytest.mark.slow
def test_a_plan_says_where_its_seconds_were_measured_and_takes_no_others(home: Path) -> None:
    trained("emu", None)
    emulated = planned("k80x4", workload="run-emu")
    assert emulated.steps_per_second == pytest.approx(EMULATED, rel=0.05)
    assert str(emulated).splitlines()[1].startswith("7,200 steps of run-emu, measured on the emulator: ")
    assert "Emulated workers are processes of this machine" in str(emulated)
    counted = planned("k80x4", workload="run-emu", project="my-project")
    assert str(counted).splitlines()[1].startswith("7,200 steps of run-emu, counted, never measured: ")
    assert counted.accuracy is None
    trained("real", "my-project", 0.25)
    model = {"model": "resnet", "problem": "image_digits", "hparams_set": "resnet_digits"}
    for asked in ({"workload": "run-emu", "project": "my-project"}, model):
        real = planned("k80x4", **asked)
        assert "measured on Compute Engine: " in str(real).splitlines()[1]
        assert real.steps_per_second == pytest.approx(EMULATED / 4, rel=0.05)
    searched: dict[str, Any] = {"gpus": ("k80",), "zone": ("us-west1-b",), "ps": 1, "provisioning_model": "spot"}
    found = tm.plan(workload="run-emu", project="my-project", train_steps=7200, revocations="none", **searched)
    assert isinstance(found, Search)
    assert str(found).startswith("7,200 steps of run-emu, measured on Compute Engine, if Spot capacity lasts: ")
    assert found.asked["project"] == "my-project", "a panel asks again for the same project"


def test_dry_runs_deadlines_and_what_holds_back_take_the_seconds_that_fit_the_cluster(home: Path) -> None:
    trained("emu", None)
    emulated, real = (stories.declaration("new", 40, project=project) for project in (None, "my-project"))

    def hours(spec: Any) -> float | None:
        return searched(spec).rows[0]["hours"]

    assert "of run-emu: The parameter server holds the workers back" in bound_words(emulated)
    assert _needed(emulated, NEXT, "", 7200) is not None
    assert hours(emulated) is not None
    assert bound_words(real) == ""
    assert _needed(real, NEXT, "", 7200) is None
    assert hours(real) is None
    trained("real", "my-project", 0.25)
    quick, slow = hours(emulated), hours(real)
    assert quick is not None
    assert slow == pytest.approx(4 * quick, rel=0.1)


def test_the_newest_source_is_that_of_the_run_that_was_declared_last(tmp_path: Path) -> None:
    """Runs are learnt again while they go on, in any order, and measures of stalls are kept apart from them."""
    store = ModelStore("resnet", "image_digits", directory=tmp_path)
    assert store.newest_source is None
    emulated = Record(**FULL)
    own = replace(emulated, source="own", settings="newest")
    stalls = {"k80": replace(terms(one(told([step()] * 5))), source="emulated")}
    store.keep_stalls("demo/stalls-1@10", stalls)
    store.learn("real/run-2@30", own)
    store.learn("demo/run-1@20", emulated)
    assert store.newest_source == "own"
    assert list(store.records("own").values())[-1].settings == "newest"
    store.keep_stalls("demo/stalls-2@40", stalls)
    assert store.newest_source == "emulated"
    store.learn("real/run-2@30", own)
    assert store.newest_source == "emulated", "the run is not newer because it was learnt again"


def test_a_file_of_another_version_is_not_read_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    store = ModelStore("resnet", "image_digits", directory=tmp_path)
    store.learn("real/run-1@1", Record(**FULL))
    kept = json.loads(store.path.read_text(encoding="utf-8"))
    del kept["runs"]["real/run-1@1"]["source"]
    for text in (json.dumps(kept), "{", '{"runs": {"run-1": {}}}', '{"runs": ["a@1"]}', '{"runs": null}'):
        store.path.write_text(text, encoding="utf-8")
        with pytest.raises(StoreError, match=rf"{re.escape(store.path.name)}\)\. Delete that file\."):
            _ = store.newest_source
    store.path.rename(store.path.with_name(re.sub(r"\.v\d+", "", store.path.name)))
    assert store.newest_source is None


def test_where_a_broken_file_leaves_out_a_figure_its_error_takes_the_place(home: Path) -> None:
    trained("real", "my-project")
    (known,) = known_runs()
    store = store_of(known)
    learn(store, known)
    store.path.write_text('{"runs": {"demo/run-1@1": {}}}', encoding="utf-8")
    error = f"Earlier measurements cannot be read: KeyError: 'observations' ({store.path}). Delete that file."
    spec = stories.declaration("new", 40, project="my-project")
    assert error in str(foreseen(Preview(spec)))
    assert f"The duration is unknown. {error}" in str(searched(spec))
    with pytest.raises(StoreError, match="Delete that file"):
        _needed(spec, NEXT, "", 7200)
    run = tm.cluster("real").run("run-real")
    assert repr(run.cost()).endswith(f" so far, no forecast: {error}")
    assert forecast_line(run) == f"run-real: no forecast: {error}"
    assert _words("real", "run-real") == f"no forecast: {error}"
