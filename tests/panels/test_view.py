"""A panel is a function of state: what it says at each point of a cluster's life."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from transient_magics.client import text
from transient_magics.journal import ClusterState, RunSeries, RunState, bill, events, fold, replay
from transient_magics.panels import html, view
from transient_magics.panels.snapshot.curves import curves, split_lines
from transient_magics.protocol.vm_events import (
    TrainCheckpoint,
    TrainData,
    TrainEvaluated,
    TrainFailed,
    TrainFinished,
    TrainMade,
    TrainStarted,
    WorkerJoined,
)

from . import stories

CHAPTERS = ["declared", "booting", "ready", "run", "training", "notice", "revoked", "short", "replaced", "finished",
            "deleting", "deleted"]  # fmt: skip


def at(chapter: str, **more: object) -> tuple[dict, float, ClusterState]:
    state = stories.state_at(chapter, stories.declaration(**more), began=time.time() - 300)  # type: ignore[arg-type]
    now = state.recent[-1].at + 1
    return view(state, bill(state, now), now), now, state


def rows(snapshot: dict) -> dict[str, str]:
    return {row["name"]: row["words"] for row in snapshot["vms"]}


def test_before_anything_happened_the_panel_says_that_it_starts() -> None:
    snapshot = view(ClusterState(name="demo"), bill(ClusterState(), 0.0), 0.0)
    assert (snapshot["name"], snapshot["phase_words"], snapshot["vms"]) == ("demo", "starting", [])
    assert "demo" in html(snapshot)
    assert "; on demand so far " in html(snapshot)


def test_vms_go_from_requested_to_training() -> None:
    assert set(rows(at("declared")[0]).values()) == {"requested"}
    assert set(rows(at("booting")[0]).values()) == {"booting"}
    assert set(rows(at("ready")[0]).values()) == {"ready"}
    assert rows(at("run")[0])["worker-0"] == "training"
    assert rows(at("run")[0])["ps-0"] == "serving"


def test_a_notice_counts_down_and_a_revoked_worker_names_its_replacement() -> None:
    snapshot, now, _ = at("notice")
    (leaving,) = [row for row in snapshot["vms"] if row["state"] == "leaving"]
    assert leaving["words"] == "training, leaving in 29 s"
    assert leaving["leaves_at"] - now == pytest.approx(29, abs=0.1)
    assert leaving["state"] == "leaving"
    assert rows(at("short")[0])["worker-3"] == "revoked, replaced by worker-4"


def test_a_replaced_worker_goes_from_the_table_once_its_place_is_taken() -> None:
    state = stories.state_at("replaced", began=time.time() - 300)
    now = state.recent[-1].at
    assert "worker-3" in rows(view(state, bill(state, now), now))
    assert "worker-3" not in rows(view(state, bill(state, now), now + 90))


def test_what_is_no_number_is_nothing_to_the_page() -> None:
    nan = float("nan")
    state = seconds_of([
        events.ClusterDeclared(spec=stories.declaration().to_dict()),
        events.WorkDeclared(of="run", work="run-1", spec=stories.TRAIN),
        TrainStarted(run="run-1", step=0),
        *(replace(stories.progress(step, 4), loss=nan) for step in (1, 2, 3)),
        TrainEvaluated(run="run-1", step=3, metrics={"loss": nan}),
    ])  # fmt: skip
    snapshot = view(state, replace(bill(state, 9.0), hourly=nan), 9.0)
    drawn = curves(state, state.of(RunState)["run-1"])
    json.dumps([snapshot, drawn], allow_nan=False)
    assert (snapshot["cost"]["hourly"], drawn["loss"], drawn["end"]["loss"]) == (None, [None] * 3, None)
    page = (Path(__file__).parents[2] / "widgets" / "contract.js").read_text(encoding="utf-8")
    assert f"VERSION = {snapshot['version']};" in page, "page and kernel agree upon a version"


def test_what_revocations_cost_is_the_time_of_empty_places_and_its_steps() -> None:
    began = [
        events.ClusterDeclared(spec=stories.declaration(count=2).to_dict()),
        *(stories.requested(f"worker-{slot}", slot) for slot in range(2)),
        events.WorkDeclared(of="run", work="run-1", spec=stories.TRAIN),
        TrainStarted(run="run-1", step=0),  # second 5
        stories.progress(0, 2),
    ]
    taken = [
        *(stories.progress(10 * number, 2) for number in range(1, 10)),
        events.VmRevoked(vm="worker-1", signal="api"),  # second 16
        stories.requested("worker-2", 1, "worker-1"),
        *(stories.progress(90 + 5 * number, 1) for number in range(7)),
        events.VmRunning(vm="worker-2", address=""),
        events.VmReady(vm="worker-2"),  # second 26
    ]
    whole, short = seconds_of(began), seconds_of([*began, *taken])
    assert short.run
    assert short.run.step == 120
    for state, now, words in (whole, 7.0, None), (short, 26.0, "10 s of a worker, ≈ 38 steps"):
        facts = dict(view(state, bill(state, now), now)["training"]["facts"])
        assert facts.get("lost to revocations") == words
    later = dict(view(short, bill(short, 90.0), 90.0)["training"]["facts"])["lost to revocations"]
    assert later.startswith("10 s"), "the place is taken again"
    beside = replace(short.run, name="run-2", started_at=short.run.started_at + 1)
    shared = replace(short, works=short.works.with_work(beside))
    assert "lost" not in json.dumps(view(shared, bill(shared, 26.0), 26.0)["training"]["facts"]), "whose it was"


def test_a_cluster_shows_every_run_that_goes_on_or_waits_and_a_run_only_its_own_revocations() -> None:
    began = [
        events.ClusterDeclared(spec=stories.declaration(count=4).to_dict()),
        *(stories.requested(f"worker-{slot}", slot) for slot in range(4)),
        *(
            events.WorkDeclared(of="run", work=f"run-{number}", spec={**stories.TRAIN, "name": f"run-{number}"})
            for number in (1, 2, 3)
        ),
        *(TrainStarted(run=f"run-{number}", step=0) for number in (1, 2)),
        replace(stories.progress(120, 2), run="run-2"),
        events.VmRevoked(vm="worker-1", signal="api"),
    ]
    state = seconds_of(began)
    joining = [("run-2", "worker-2"), ("run-1", "worker-0"), ("run-2", "worker-0")]
    joins = [WorkerJoined(run=run, worker=vm, number=0, active=1) for run, vm in joining]
    joined = replay(joins, state)
    trains = {vm["name"]: vm["runs"] for vm in view(joined, bill(joined, 20.0), 20.0)["vms"]}
    assert (trains["worker-2"], trains["worker-3"]) == (["run-2"], []), "whose log menu has it"
    assert trains["worker-0"] == ["run-1", "run-2"], "as where trials share a VM"
    snapshot = view(state, bill(state, 20.0), 20.0)
    assert snapshot["training"]["name"] == "run-1"
    assert [(run["name"], run["phase"], run["step"]) for run in snapshot["beside"]] == [
        ("run-2", "running", 120), ("run-3", "waiting", 0),
    ]  # fmt: skip
    assert "run-3: waits for the end of run-1 or run-2" in html(snapshot)
    waiting = view(state, bill(state, 20.0), 20.0, "run-3")
    assert (waiting["beside"], waiting["training"]["facts"]) == ([], []), "it has no figures yet"

    def measured(*workers: str) -> RunSeries:
        series = RunSeries()
        rows = [{"worker": name, "steps": 1, "loss": 1.0, "compute_seconds": 1.0} for name in workers]
        series.add({**row, "time": second * 10**9, "step": second} for second in range(10, 20) for row in rows)
        return series

    for number, workers, kinds in (1, ("worker-0", "worker-1"), ["revoked"]), (2, ("worker-2", "worker-3"), []):
        drawn = curves(state, state.of(RunState)[f"run-{number}"], measured(*workers))
        assert [mark[0] for mark in drawn["marks"]] == kinds


def test_only_emulated_workers_that_live_can_be_revoked_from_the_panel() -> None:
    assert [row["name"] for row in at("notice")[0]["vms"] if row["revocable"]] == ["worker-0", "worker-1", "worker-2"]
    assert not any(row["revocable"] for row in at("ready", project="p")[0]["vms"])


def test_training_shows_progress_curves_and_where_a_worker_was_taken() -> None:
    snapshot, _, state = at("short")
    training = snapshot["training"]
    drawn = curves(state, state.of(RunState)["run-1"])
    assert training["step"] < training["steps"] == 600
    assert dict(training["facts"])["workers"] == "3"
    assert len(drawn["time"]) == len(drawn["loss"]) == len(drawn["speed"])
    assert [mark[0] for mark in drawn["marks"]] == ["revoked", "checkpoint"]
    assert html(snapshot, drawn).count("stroke-dasharray") == 2
    run = state.of(RunState)["run-1"]
    quiet = replace(run, spec=replace(run.spec, alarm_below=0.0))
    assert (drawn["below"], curves(state, quiet)["below"]) == (0.8, 0.0), "an alarm that is off calls nothing slow"


def test_records_that_come_in_blocks_have_a_line_and_others_none() -> None:
    snapshot, now, state = at("short")
    assert snapshot["training"]["data"] == ""
    assert "data:" not in html(snapshot)
    told = TrainData(
        run="run-1", blocks=10, records=80, bytes=8_000_000, bound=24, epochs=2, hits=6, misses=14,
        saved_bytes=4_800_000, fetched_bytes=11_200_000,
    )  # fmt: skip
    state, before = replay([told], state), state
    assert state.recent == before.recent, "they come every half minute, and are no news"
    snapshot = view(state, bill(state, now), now)
    said = "2 epochs read; 6 blocks (30%) from caches, 4.8 MB saved; 14 blocks copied, 11.2 MB, each byte 1.4 times"
    assert said in snapshot["training"]["data"]
    assert f"data: {snapshot['training']['data']}" in html(snapshot)
    assert said in text.status(state, bill(state, now), now)


def seconds_of(history: list[events.Event]) -> ClusterState:
    """The state after these events, one second after the other."""
    return replay(replace(event, seq=number, time=number * 10**9) for number, event in enumerate(history, 1))


def test_curves_reach_to_the_figures_and_marks_to_the_last_checkpoint_and_evaluation() -> None:
    began = [
        events.ClusterDeclared(spec=stories.declaration().to_dict()),
        events.WorkDeclared(of="run", work="run-1", spec={**stories.TRAIN, "train_steps": 200}),
        TrainStarted(run="run-1", step=0),
        *(stories.progress(step, 4) for step in range(0, 190, 10)),
    ]
    ended = [
        TrainCheckpoint(run="run-1", step=200, path="checkpoints/model.ckpt-200"),
        TrainEvaluated(run="run-1", step=200, metrics={"loss": 0.2113}),
        TrainFinished(run="run-1", step=200, loss=0.061, seconds=95.0),
    ]
    series = RunSeries()
    measured = {"worker": "worker-0", "steps": 10, "loss": 1.0, "compute_seconds": 1.0}
    series.add({**measured, "time": second * 10**9, "step": 10 * second} for second in range(4, 15))
    for history, step in ((began, 180), ([*began, *ended], 200)):
        state = seconds_of(history)
        now = len(history) + 1.0
        run, training = state.of(RunState)["run-1"], view(state, bill(state, now), now)["training"]
        drawn = curves(state, run, series)
        assert drawn["end"] == training["end"]
        assert drawn["end"]["step"] == step
        assert drawn["time"][-1] < drawn["end"]["time"], "measured before"
        assert text.number(drawn["end"]["loss"]) == dict(training["facts"])["loss"], "tile and chart"
        assert f"loss, {drawn['end']['loss']:.3g} to " in "".join(
            ElementTree.fromstring(html(view(state, bill(state, now), now), drawn)).itertext()
        )
    assert [mark[0] for mark in drawn["marks"]] == ["checkpoint", "evaluation"]
    assert drawn["end"]["time"] == drawn["marks"][0][1], "no step was made behind the last checkpoint"


def test_where_nothing_was_measured_nothing_is_drawn() -> None:
    state = stories.state_at("short", began=0.5)
    series = RunSeries()
    measured = {"worker": "worker-0", "steps": 10, "loss": 1.0, "compute_seconds": 1.0}
    seconds = [*range(10), *range(40, 50)]
    series.add({**measured, "time": second * 10**9, "step": 10 * second} for second in seconds)
    run = state.of(RunState)["run-1"]
    drawn = curves(state, run, series)
    (hole,) = [index for index, loss in enumerate(drawn["loss"]) if loss is None]
    assert drawn["time"][hole - 1] < 10 < drawn["time"][hole] < 40 < drawn["time"][hole + 1]
    assert drawn["step"] == sorted(drawn["step"])
    assert drawn["workers"]["worker-0"]["speed"][hole] is None
    columns = [drawn[name] for name in ("time", "step", "loss", "speed", "expected")]
    assert {len(values) for values in columns} == {len(drawn["time"])}
    twin = ElementTree.fromstring(html(view(state, bill(state, 50.0), 50.0, "run-1"), {**drawn, "end": None}))
    paths = {svg.get("aria-label"): svg.find("path") for svg in twin.iter("svg")}
    path = paths["loss"]
    assert path is not None
    assert (path.get("d") or "").count("M") == 2, "a line before the hole, a line behind it"


def test_bars_say_where_a_steps_time_goes_lately_and_behind_the_end_over_the_whole_run() -> None:
    state = stories.state_at("short", began=0.5)
    series, evil = RunSeries(), "<img src=x>"

    def measured(worker: str, at: int, *parts: float) -> dict[str, object]:
        told = {"time": at * 10**9, "worker": worker, "step": at, "steps": 4, "compute_seconds": 1.0}
        return {**told, "split": [*parts, *[0.0] * (9 - len(parts))], "server_share": 0.5}

    series.add(measured(name, at, 0.8, 0.0, 0.2) for at in range(100) for name in ("worker-0", "worker-10", evil))
    series.add(measured("worker-9", at, 0.0, 1.5, 0.5) for at in range(100, 140))
    run = state.of(RunState)["run-1"]
    lately, over = curves(state, run, series)["split"], curves(state, replace(run, phase="finished"), series)["split"]
    assert lately["words"] == "over the last 30 s · the busiest parameter server used 50% of its cores"
    assert split_lines(lately)[1:] == ["  worker-9: 500 ms a step: pull 75%, compute 25%"]
    assert over["words"].startswith("over the whole run")
    assert [bar["worker"] for bar in over["bars"]] == [evil, "worker-0", "worker-9", "worker-10"]
    assert over["bars"][1]["parts"] == [0.2, 0.0, 0.05, 0.0, 0.0, 0.0]
    assert over["bars"][1]["words"] == "input 80%, compute 20%"
    twin = ElementTree.fromstring(html(view(state, bill(state, 50.0), 50.0, "run-1"), curves(state, run, series)))
    (drawn,) = [svg for svg in twin.iter("svg") if "worker-9" in (svg.get("aria-label") or "")]
    assert [float(part.get("width") or 0) for part in drawn] == [180, 60], "three quarters of the slowest's 240"
    many = RunSeries()
    many.add(measured(f"worker-{number}", 5, 0.1 * number) for number in range(1, 31))
    shown = curves(state, run, many)["split"]
    assert ([bar["worker"] for bar in shown["bars"]][::7], shown["more"]) == (["worker-23", "worker-30"], 22), "slowest"
    assert split_lines(shown)[-1] == "  and 22 more"
    many.add([{"worker": "worker-0", "time": 7 * 10**9, "step": 1, "steps": 1, "split": "0.5"}])  # of another version
    drawn = curves(state, replace(run, phase="finished"), series)
    assert "<img" not in html(view(state, bill(state, 50.0), 50.0), drawn)


def test_behind_its_last_step_a_run_is_being_evaluated() -> None:
    state = seconds_of([
        events.ClusterDeclared(spec=stories.declaration().to_dict()),
        events.WorkDeclared(of="run", work="run-1", spec={**stories.TRAIN, "train_steps": 200}),
        TrainStarted(run="run-1", step=0),
        stories.progress(200, 4),
    ])  # fmt: skip
    training = view(state, bill(state, 9.0), 9.0, "run-1")["training"]
    assert training["words"].endswith("its last checkpoint is being written")
    state = fold(state, TrainMade(run="run-1", step=200))
    training = view(state, bill(state, 9.0), 9.0, "run-1")["training"]
    assert training["phase_words"] == "evaluating"
    assert training["words"].endswith("being evaluated")


def test_a_run_that_ended_with_its_cluster_was_stopped() -> None:
    state = seconds_of([
        events.ClusterDeclared(spec=stories.declaration().to_dict()),
        events.WorkDeclared(of="run", work="run-1", spec=stories.TRAIN),
        TrainStarted(run="run-1", step=0),
        TrainFinished(run="run-1", step=20, seconds=3.0, stopped=True),
    ])  # fmt: skip
    training = view(state, bill(state, 9.0), 9.0, "run-1")["training"]
    assert (training["phase"], training["phase_words"]) == ("stopped", "stopped")


def test_a_picture_says_when_it_is_of_and_reads_without_its_drawings() -> None:
    snapshot, now, state = at("short")
    drawn = ElementTree.fromstring(html(snapshot, curves(state, state.run)))
    for parent in list(drawn.iter()):
        parent.attrib.pop("style", None)
        for drawing in parent.findall("svg"):
            parent.remove(drawing)
    said = " ".join(part.strip() for part in drawn.itertext())
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    assert re.search(rf"As of \d+ \w+ \d+, {clock} ?\w*; the run continued\.", said)
    assert "worker-3 K80 us-west1-b" in said
    assert "revoked, replaced by worker-4" in said
    assert re.search(r"loss, [\d.]+ to [\d.]+", said)
    assert "continued" not in html(at("deleted")[0])


def test_a_finished_run_shows_its_evaluation() -> None:
    training = at("finished")[0]["training"]
    assert dict(training["facts"])["dev accuracy"] == "0.947"
    assert "finished at step 600 of 600" in training["words"]


def test_a_long_run_is_drawn_with_few_points() -> None:
    spec, history = stories.declaration(), [stories.progress(step, 4) for step in range(2000)]
    beginning = [
        events.ClusterDeclared(spec=spec.to_dict()),
        events.WorkDeclared(of="run", work="run-1", spec=stories.TRAIN),
        TrainStarted(run="run-1", step=0),
    ]
    timed = [events.from_dict(event.kind, {**event.to_dict(), "time": (i + 1) * 10**10, "seq": i + 1})
             for i, event in enumerate([*beginning, *history])]  # fmt: skip
    state = replay(timed)
    drawn = curves(state, state.of(RunState)["run-1"])
    assert len(drawn["time"]) <= 720
    assert (drawn["step"][0], drawn["step"][-1]) == (0, 1999)
    assert len(html(view(state, bill(state, 1e4), 1e4), drawn)) < 8000


def test_a_large_cluster_shows_what_is_not_simply_at_work_first() -> None:
    spec = stories.declaration(count=100)
    state = stories.state_at("notice", spec, began=time.time() - 60)
    snapshot = view(state, bill(state, time.time()), time.time())
    first = [row["name"] for row in snapshot["vms"] if row["first"]]
    assert (len(snapshot["vms"]), len(first)) == (101, 24)
    assert {"ps-0", "worker-0", "worker-99"} <= set(first)
    assert "101 VMs" in snapshot["about"]
    twin = html(snapshot)
    assert "worker-99" in twin
    assert "and 89 more" in twin


def test_events_that_say_the_same_are_one_line() -> None:
    lines = [event["text"] for event in at("run")[0]["events"]]
    assert lines[0] == "4 workers joined run-1: 4 workers"
    assert "5 VMs are ready" in lines
    assert "5 VMs requested in us-west1-b" in lines


def test_the_bill_says_what_was_saved_and_that_nothing_is_billed() -> None:
    snapshot, _, _ = at("short")
    assert snapshot["emulated"]
    assert snapshot["cost"]["total"] < snapshot["cost"]["on_demand"]
    assert snapshot["cost"]["saved_words"].endswith("% saved against Google's on-demand price.")
    assert snapshot["cost"]["source"] == stories.ICAC
    assert "nothing is billed" in html(snapshot)
    assert "nothing is billed" not in html(at("short", project="p")[0])


def test_the_panel_of_one_run_leaves_out_the_rest() -> None:
    state = stories.state_at("short", began=time.time() - 300)
    now = state.recent[-1].at
    snapshot = view(state, bill(state, now), now, "run-1")
    assert snapshot["focus"] == "run-1"
    assert snapshot["training"]["stoppable"]
    assert not any("requested" in event["text"] for event in snapshot["events"])


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_twin_is_small_whole_and_without_script(chapter: str) -> None:
    snapshot, _, state = at(chapter)
    twin = html(snapshot, curves(state, state.run) if state.run else None)
    names = {element.tag for element in ElementTree.fromstring(twin).iter()}
    assert len(twin) < 9000
    assert not names & {"script", "style", "link", "img"}
    assert "None" not in re.sub(r"stroke='none'|fill='none'", "", twin)


def test_bars_stand_side_by_side_in_the_lane_of_a_worker_that_took_a_place() -> None:
    snapshot, _, _ = at("again")
    lanes = {
        lane.get("aria-label"): [(path.get("fill"), len(path)) for path in lane]
        for lane in ElementTree.fromstring(html(snapshot)).iter("svg")
    }
    drawn = lanes["life of worker-4"]
    assert ("none", 0) in drawn, "those before it are outlines"
    assert len({fill for fill, _ in drawn}) > 2
    assert all(inside == 0 for _, inside in drawn)


def test_everything_foreign_is_escaped() -> None:
    evil = "<img src=x onerror=alert(1)>'\""
    spec = stories.declaration(name=evil)
    history = [
        events.ClusterDeclared(spec=spec.to_dict(), seq=1),
        stories.requested("ps-0", 0),
        events.VmRefused(vm="ps-0", reason=evil),
        events.WorkDeclared(of="run", work=evil, spec={"model": evil, "problem": evil, "train_steps": 3}),
        TrainFailed(run=evil, reason=evil),
        events.ControllerTrouble(what=evil),
    ]
    state = replay(history)
    assert "<img" not in html(view(state, bill(state, 1.0), 1.0))
    assert "<img" not in html(view(state, bill(state, 1.0), 1.0, evil))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_text_fits_a_terminal(chapter: str) -> None:
    _, now, state = at(chapter)
    shown = text.status(state, bill(state, now), now)
    assert all(len(line) <= 110 for line in shown.splitlines())
    assert "k80x4" in shown


def test_a_lane_tells_who_was_there_before_until_the_next_was_asked_for() -> None:
    snapshot, _, _ = at("again")
    (lane,) = [row["life"] for row in snapshot["vms"] if row["name"] == "worker-4"]
    assert [(vm, what) for vm, what, _, _ in lane] == [
        ("worker-3", "requested"), ("worker-3", "booting"), ("worker-3", "ready"), ("worker-3", "leaving"),
        ("worker-3", "revoked"), ("worker-4", "requested"), ("worker-4", "booting"), ("worker-4", "ready"),
    ]  # fmt: skip
    assert all(end <= begin for (_, _, _, end), (_, _, begin, _) in pairwise(lane))
    assert lane[-1][3] == 0


def test_lanes_are_few_however_often_a_place_was_taken() -> None:
    spec = stories.declaration(count=1)
    history = [events.ClusterDeclared(spec=spec.to_dict()), stories.requested("worker-0", 0)]
    for number in range(300):
        vm, after = f"worker-{number}", f"worker-{number + 1}"
        history += [
            events.VmRunning(vm=vm, address=""),
            events.VmRevoked(vm=vm, signal="api"),
            stories.requested(after, 0, vm),
        ]
    timed = [replace(event, seq=number, time=number * 10**9) for number, event in enumerate(history, 1)]
    state = replay(timed)
    snapshot = view(state, bill(state, 1e4), 1e4)
    assert len(snapshot["vms"]) <= 4
    assert len(json.dumps(snapshot)) < 20_000


def test_a_run_behind_another_waits_and_the_clusters_panel_shows_the_one_that_trains() -> None:
    history = [
        events.ClusterDeclared(spec=stories.declaration().to_dict(), seq=1),
        *(events.WorkDeclared(of="run", work=run, spec=stories.TRAIN) for run in ("run-1", "run-2")),
        TrainStarted(run="run-1", step=0),
    ]
    state = replay(history)
    costs = bill(state, 1.0)
    assert view(state, costs, 1.0)["training"]["name"] == "run-1"
    waiting = view(state, costs, 1.0, "run-2")["training"]
    assert (waiting["phase_words"], waiting["words"]) == ("waiting", "waits for the end of run-1")


def test_a_lane_is_thinner_when_its_vm_has_become_a_smaller_machine_and_its_words_say_which() -> None:
    vm, big = "worker-0", stories.requested("worker-0", 0).machine_type
    history = [
        events.ClusterDeclared(spec=stories.declaration(count=1).to_dict()),
        stories.requested(vm, 0),
        events.VmRunning(vm=vm, address="10.0.0.1"),
        events.VmReady(vm=vm),
        events.VmMachineAsked(vm=vm, machine_type="n1-standard-1", hourly=0.125, on_demand_hourly=0.5, disk_hourly=0.01,
                              part=0.25, reason="asked by the user"),
        events.VmStopped(vm=vm, reason="to become n1-standard-1"),
        events.VmMachineChanged(vm=vm, machine_type="n1-standard-1", machine_before=big),
        events.VmStarted(vm=vm, address="10.0.0.1"),
        events.VmReady(vm=vm),
    ]  # fmt: skip
    timed = [replace(event, seq=number, time=number * 10**9) for number, event in enumerate(history, 1)]

    def lane(many: int) -> Mapping[str, Any]:
        state = replay(timed[:many])
        return view(state, bill(state, 100.0), 100.0)["vms"][0]

    assert lane(5)["words"] == "being stopped, to become n1-standard-1"
    assert lane(7)["words"] == "stopped, to become n1-standard-1"
    assert [tuple(part[1:]) for part in lane(9)["life"]] == [
        ("requested", 2, 3), ("booting", 3, 4), ("ready", 4, 6), ("stopped", 6, 8), ("booting", 8, 9),
        ("deflated", 9, 0),
    ]  # fmt: skip
    assert lane(9)["words"] == f"ready, as n1-standard-1 instead of {big}"
    assert lane(9)["terms"].startswith("n1-standard-1, Spot, $0.125")
    assert [text.event_words(event) for event in timed[4:8]] == [
        "worker-0 will be restarted as n1-standard-1: asked by the user",
        "worker-0 is stopped: to become n1-standard-1",
        f"worker-0 is n1-standard-1 now, and was {big}",
        "worker-0 boots again",
    ]


@pytest.mark.parametrize(
    ("machine_type", "said"),
    [("n1-standard-4", "4 vCPU"), ("n1-standard-1", "1 vCPU"), ("n1-custom-6-12288", "6 vCPU"), ("new-7", "new-7")],
)
def test_a_worker_without_a_gpu_is_called_by_the_vcpus_that_it_has_now(machine_type: str, said: str) -> None:
    asked = replace(stories.requested("worker-0", 0), accelerator="cpu", machine_type=machine_type)
    state = replay([events.ClusterDeclared(spec=stories.declaration(count=1).to_dict(), seq=1), asked])
    assert text.machine(state, state.vms["worker-0"]) == said


def test_a_lane_is_thinner_while_its_vm_has_less_and_words_say_what_it_has() -> None:
    vm = "worker-0"
    history = [
        events.ClusterDeclared(spec=stories.declaration(count=1).to_dict()),
        stories.requested(vm, 0),
        events.VmRunning(vm=vm, address="10.0.0.1"),
        events.VmReady(vm=vm),
        events.VmDeflated(vm=vm, cpu=0.5, network=1.0),
        events.VmDeflated(vm=vm, cpu=0.5, network=0.25, cpu_before=0.5),
        events.VmInflated(vm=vm, cpu=1.0, network=1.0, cpu_before=0.5, network_before=0.25),
    ]
    timed = [replace(event, seq=number, time=number * 10**9) for number, event in enumerate(history, 1)]

    def lane(many: int) -> Mapping[str, Any]:
        state = replay(timed[:many])
        return view(state, bill(state, 100.0), 100.0)["vms"][0]

    assert [tuple(part[1:]) for part in lane(6)["life"]] == [
        ("requested", 2, 3), ("booting", 3, 4), ("ready", 4, 5), ("deflated", 5, 0),
    ]  # fmt: skip
    assert lane(6)["words"] == "ready, with 50% of its CPU and 25% of its network"
    assert [part[1] for part in lane(7)["life"]] == ["requested", "booting", "ready", "deflated", "ready"]
    assert lane(7)["words"] == "ready"
    assert "worker-0 was deflated: it has 50% of its CPU, and had all of its CPU and network" in text.event_words(
        timed[4]
    )
