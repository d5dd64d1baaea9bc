"""Whether zones have Spot VMs is measured within a budget, kept with its moments, and nothing billable is left."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import transient_magics as tm
from tests.ends import ends
from tests.homes import own_home
from transient_magics import client, emulator, places
from transient_magics.catalog.traces import read_traces, sampled, to_csv
from transient_magics.client.planning.deadlines import on_demand
from transient_magics.client.text import event_words
from transient_magics.controller.decisions.capacity import ranked
from transient_magics.controller.vms.lookup import measured_advice
from transient_magics.errors import DeclarationError
from transient_magics.journal.lock import LOCK, take
from transient_magics.spec import RunSpec
from transient_magics.spec.measurement import LIFE_SECONDS, MeasureSpec, Sighting, next_request, write_sightings

OPEN, SHUT = "us-west1-b", "us-east1-c"
PATIENCE = 180.0


def spec(**more: object) -> MeasureSpec:
    values = {
        "name": "t4-1", "gpu": "t4", "zones": (OPEN,), "hourly": {OPEN: 0.3}, "budget": 1.0, "every_seconds": 600.0,
        "max_seconds": 3600.0, "declared_at": 1000.0, "id": "a1", **more,
    }  # fmt: skip
    return MeasureSpec(**values)  # type: ignore[arg-type]


def test_it_looks_at_once_then_as_often_as_was_said_until_its_time_or_its_money_is_over() -> None:
    known = spec()
    assert next_request(known, [], 1000.0) == (1000.0, "")
    seen = [Sighting(1000.0, OPEN, given=True, dollars=0.005)]
    assert next_request(known, seen, 1001.0) == (1600.0, "")
    assert next_request(known, seen, 1700.0) == (1700.0, ""), "it was late"
    assert next_request(known, seen, 4600.0) == (0.0, "its time is over")
    (_, over) = next_request(spec(budget=0.029), seen, 1001.0)
    assert over == "$0.01 of $0.03 are spent, and another request could cost $0.03"
    assert MeasureSpec.from_dict(json.loads(json.dumps(known.to_dict()))) == known


@given(
    st.floats(0.05, 5.0), st.floats(0.01, 3.0), st.integers(1, 4),
    st.lists(st.tuples(st.booleans(), st.floats(0, LIFE_SECONDS)), max_size=60),
)  # fmt: skip
def test_the_budget_holds_whenever_it_is_killed(
    budget: float, hourly: float, zones: int, lives: list[tuple[bool, float]]
) -> None:
    names = tuple(f"us-west1-{letter}" for letter in "abcd"[:zones])
    known = spec(zones=names, hourly=dict.fromkeys(names, hourly), budget=budget, max_seconds=1e9)
    seen: list[Sighting] = []
    for there, life in lives:
        due, over = next_request(known, seen, 0.0)
        if over:
            break
        worst = sum(each.dollars for each in seen) + zones * hourly * LIFE_SECONDS / 3600
        assert worst <= budget + 1e-9, "also where nobody lives to give the VMs back"
        dollars = hourly * max(60.0, life) / 3600 if there else 0.0
        seen += [Sighting(due, zone, there, dollars) for zone in names]
    assert sum(each.dollars for each in seen) <= budget + 1e-9


@given(st.lists(st.tuples(st.floats(1.0, 5000.0), st.integers(0, 1)), min_size=1, max_size=40))
def test_what_was_seen_is_a_trace_that_the_weather_reads(steps: list[tuple[float, int]]) -> None:
    at, seen = 1.7e9, list[tuple[float, int]]()
    for after, number in steps:
        at = round(at + after, 3)
        seen.append((at, number))
    trace = sampled(OPEN, "t4", seen, 600.0)
    assert trace
    assert read_traces(to_csv([trace]), "seen.csv") == (trace,)
    assert trace.end >= 600.0
    if all(later[0] - earlier[0] <= 1800.0 for earlier, later in itertools.pairwise(seen)):
        assert all(trace.at(moment - seen[0][0] + 1e-3) == number for moment, number in seen), "as it was seen"


def test_an_hour_in_which_nobody_looked_is_in_no_trace() -> None:
    seen = [(0.0, 1), (600.0, 0), (9000.0, 1), (9600.0, 1), (10200.0, 0)]
    trace = sampled(OPEN, "t4", seen, 600.0)
    assert trace
    assert (trace.seconds, trace.numbers, trace.end) == ((0.0, 1200.0), (1, 0), 1800.0)
    assert sampled(OPEN, "t4", [], 600.0) is None


@pytest.fixture
def home() -> Iterator[Path]:
    with own_home() as folder:
        yield folder


def test_mistakes_are_one_sentence_and_nothing_is_begun(home: Path) -> None:
    assert "There are no measurements" in str(tm.measure())
    for values, said in (
        ({}, "needs --zones and --budget"),
        ({"zones": [OPEN], "budget": 0.001}, "A request in each of 1 zone may cost"),
        ({"zones": ["us-east1-x"], "budget": 1.0}, "unknown zone"),
        ({"zones": ["us-west3-b"], "budget": 1.0, "gpu": "p100"}, "P100 is not available in us-west3-b"),
        ({"zones": [OPEN], "budget": 1.0, "gpu": "t5"}, "^Unknown GPU 't5'"),
        ({"zones": [OPEN], "budget": 1.0, "every": 5.0, "project": "my-own"}, "must be at least a minute"),
    ):
        with pytest.raises(DeclarationError, match=said):
            tm.measure(**{"gpu": "t4", **values})  # type: ignore[arg-type]
    assert not places.measurements().exists()


def test_a_measurement_begins_before_its_process_holds_its_lock_and_says_when_it_ends(home: Path) -> None:
    young = spec(declared_at=time.time())
    folder = places.private(places.measurements() / young.name)
    (folder / "spec.json").write_text(json.dumps(young.to_dict()), encoding="utf-8")
    assert "It is starting." in str(tm.measure())
    lock = take(folder)
    assert lock is not None
    assert "It is running." in str(tm.measure())
    assert "It is stopping." in str(tm.measure(stop=True))
    os.close(lock)
    assert "its process was killed" in str(tm.measure())
    (folder / LOCK).unlink()
    old = replace(young, declared_at=time.time() - 60)
    (folder / "spec.json").write_text(json.dumps(old.to_dict()), encoding="utf-8")
    assert "its process was killed" in str(tm.measure()), "it never started"


def test_zones_are_ranked_by_what_was_seen_within_the_hour_where_google_says_nothing(home: Path) -> None:
    cluster = client.specify(client.Declaration("t4", name="one", zone=(SHUT, OPEN)))
    folder = places.private(places.measurements() / "t4-1")
    declared = spec(zones=(OPEN, SHUT), hourly={OPEN: 1.0, SHUT: 1.0})
    (folder / "spec.json").write_text(json.dumps(declared.to_dict()), encoding="utf-8")
    now = time.time()
    write_sightings(folder, [Sighting(now - 7200, SHUT, given=True)])
    assert measured_advice(None, "t4", (OPEN, SHUT), now) is None, "too long ago"
    write_sightings(folder, [Sighting(now - 60, OPEN, given=True), Sighting(now - 60, SHUT, given=False)])
    advice = measured_advice(None, "t4", (OPEN, SHUT), now)
    assert advice
    assert advice.measured
    assert "most often in us-west1-b (100% of the polls)" in event_words(advice)
    assert measured_advice("another", "t4", (OPEN, SHUT), now) is None
    assert ranked(cluster, "t4", (SHUT, OPEN), replace(advice, time=int(now * 1e9)), now) == (OPEN, SHUT)


def sees(reached: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, f"not {what}"
        time.sleep(0.1)


@pytest.mark.slow
def test_it_sees_where_there_are_vms_and_leaves_none_also_where_it_is_killed(home: Path) -> None:
    address = f"{emulator.ensure(linger=PATIENCE)}/emulator/v1/weather"
    # Late answers: else a VM is deleted again before this process has seen it, many times in a row.
    weather = json.dumps({"stockout": f"{SHUT}:t4", "api_latency": "250ms"}).encode()
    with urllib.request.urlopen(urllib.request.Request(address, weather, method="PATCH")) as answer:
        assert answer.status == 200
    found = tm.measure("t4", [OPEN, SHUT], budget=1.0, every=1.0)
    sees(lambda: len(found.seen) >= 4, "seen twice")
    assert {(each.zone, each.given) for each in found.seen} == {(OPEN, True), (SHUT, False)}
    assert 0 < found.dollars <= 1.0
    assert all(abs(each.at - time.time()) < PATIENCE for each in found.seen)
    assert "the emulator" in str(found)
    assert "This measurement covers only these zones and hours." in str(found)

    sees(lambda: ends(found.name), "a VM asked for")
    os.kill(int((places.measurements() / found.name / LOCK).read_text(encoding="utf-8")), signal.SIGKILL)
    sees(lambda: found.over, "its end")
    assert "its process was killed" in str(found)
    assert all(moment < time.time() + LIFE_SECONDS + 1 for moment in ends(found.name).values()), (
        "they end by themselves"
    )
    left = ends(found.name)
    assert set(left) <= set(tm.sweep(yes=True).names)
    assert not ends(found.name)
    traces = read_traces(found.file.read_text(encoding="utf-8"), found.file.name)
    assert [trace.zone for trace in traces] == [OPEN, SHUT]

    short = tm.measure("t4", [SHUT], budget=1.0, every=1.0, provisioning_model="standard")
    sees(lambda: short.seen, "a look")
    assert "T4s on demand of the emulator" in str(short)
    due = RunSpec(name="r", train_steps=1)
    [known] = on_demand(client.specify(client.Declaration("t4", zone=(SHUT,))), due, time.time())
    assert not any(each.given for each in known.seen), "what a run with a deadline is told beforehand"
    assert "0 of 1 request of the last week succeeded" in known.words(time.time())
    assert [each.name for each in tm.measure(stop=True)] == [found.name, short.name]  # type: ignore[union-attr]
    short.wait(PATIENCE)
    assert short.ended == "it was stopped"
