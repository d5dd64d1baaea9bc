"""What a panel shows of bags: points that are few numbers, ages, the surrogate, the end, a twin, a wish, an axis."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.client import Bag
from transient_magics.journal import Journal, bill, costs, events, replay
from transient_magics.panels import html, show_handle, status, view
from transient_magics.panels.display import Display
from transient_magics.panels.snapshot.axes import Axis
from transient_magics.protocol.space import Dimension, parse_space
from transient_magics.works.bags.policy.simulate import Progress, hours_left
from transient_magics.works.bags.state import DeclaredBag
from transient_magics.works.bags.view import STATES, pace, picture
from transient_magics.works.bags.view import sections as bags
from transient_magics.works.bags.words import bag_words

from . import stories
from .bag_story import BEGAN, BagStory, specification
from .test_display import displayed, eventually, widgets_of

SHORT = BagStory(specification(200), done=130)


def text_of(drawn: str) -> str:
    return " ".join(" ".join(ElementTree.fromstring(drawn).itertext()).split())


def twin(story: BagStory) -> str:
    state, now = story.state, story.now
    return html(view(state, bill(state, now), now), None, {"bag": bags(state, now)})


def test_a_bag_is_points_with_their_states_and_what_they_returned() -> None:
    (bag,) = bags(SHORT.state, SHORT.now)
    assert bag["words"] == "130 of 200 results, 3 under way, after 2 interruptions, 1 job failed"
    assert bag["about"] == "density=0.3:0.9 · temperature=0.8:1.6 · Gaussian process · until pressure 0.01 · reuse"
    assert bag["counts"] == [["done", 130], ["running", 3], ["waiting", 3], ["lost", 1], ["failed", 1]]
    points = bag["points"]
    assert len(points) == 138
    job = SHORT.state.of(DeclaredBag)["bag-1"].state.jobs[5]
    assert job.result is not None
    place = [float(f"{value:.6g}") for value in job.point.values()]
    assert points[5] == ["done", 2, place, [job.result.returned["pressure"]], [0.01]]
    assert [points[number][0] for number in (6, 133, 134, 137)] == ["failed", "lost", "running", "waiting"]
    assert points[6][3:] == [[], []]
    assert [(each["name"], each["output"]) for each in bag["axes"]] == [
        ("density", False), ("temperature", False), ("pressure", True),
    ]  # fmt: skip
    cost = costs(SHORT.state, SHORT.now)[bag["name"]]
    assert bag["cost_words"] == cost.words
    assert bag["per_result"] == pytest.approx(cost.total / 130)
    account = bill(SHORT.state, SHORT.now)
    assert account.lines[bag["name"]] == pytest.approx(cost.total)
    assert {*account.lines} == {bag["name"], "start-up", "idle"}, "nobody else works on the cluster"


def test_its_vms_are_told_with_their_ages_the_oldest_first_and_what_each_holds() -> None:
    (bag,) = bags(SHORT.state, SHORT.now)
    vms = {each["name"]: (each["job"], each["words"]) for each in bag["vms"]}
    assert vms == {
        "worker-0": (131, "for 34 s, 8 s saved"), "worker-1": (132, "for 33 s, 8 s saved"),
        "worker-2": (None, ""), "worker-7": (134, "for 31 s, 8 s saved"),
    }  # fmt: skip
    assert [each["name"] for each in bag["vms"]][-1] == "worker-7", "which took the place of another"
    assert {each["age"] for each in bag["vms"][:3]} == {"35 min"}
    assert bag["vms"][0]["at"].startswith("density 0.6188, temperature 0.8675")


def test_the_surrogate_is_as_good_as_its_last_batch_says() -> None:
    (bag,) = bags(SHORT.state, SHORT.now)
    assert bag["tried_words"] == "learnt from 120 results, tried on 4 batches"
    (tried,) = bag["tried"]
    assert (tried["output"], tried["until"], tried["good"]) == ("pressure", 0.01, False)
    assert tried["coverage"] == pytest.approx(23 / 24)
    assert tried["largest"] == pytest.approx(0.0173, abs=1e-4)
    wide = BagStory(specification(200, until={"": 0.1}), done=130)
    assert bags(wide.state, wide.now)[0]["tried"][0]["good"], "where the last batch is within the tolerance"
    plain = BagStory(specification(60, surrogate="none", until={}), done=40)
    (bag,) = bags(plain.state, plain.now)
    assert (bag["tried"], bag["tried_words"]) == ([], "")


def test_it_ends_when_all_results_are_there_with_an_interval() -> None:
    """70 results of jobs of a minute on four workers, of which the last ones overlap."""
    (bag,) = bags(SHORT.state, SHORT.now)
    told = re.fullmatch(
        r"in about (\d+) min, at (\d\d:\d\d) \((\d\d:\d\d) to (\d\d:\d\d)\), or sooner, if Spot capacity lasts",
        bag["ends"],
    )
    assert told, bag["ends"]
    assert 17 <= int(told[1]) <= 20
    early, middle, late = (
        (int(each[:2]) * 60 + int(each[3:]) - int(SHORT.now / 60 % 1440)) % 1440 for each in told.group(3, 2, 4)
    )
    assert early <= middle <= late <= early + 5


def test_the_end_of_a_bag_whose_jobs_end_together_is_not_at_the_pace_of_a_round() -> None:
    """Of 300 jobs of an hour on 16 VMs, 17 have just ended at almost the same time: 18 hours are left, not two."""
    jobs = [round(1 + 0.001 * number, 3) for number in range(17)]
    found = hours_left(Progress(283, 313 - 16, tuple(jobs), (0.0,) * 15, 16, revocable=False))
    low, high = np.quantile(found, [0.05, 0.95])
    assert 17.5 < low < high < 20
    revoked = hours_left(Progress(283, 313 - 16, tuple(jobs), (0.0,) * 15, 16, lost=20, watched=60.0))
    assert 1.1 < np.median(revoked) / np.median(found) < 2, "jobs lost with their VM are done again"


def test_an_end_is_without_an_interval_until_more_jobs_have_finished_than_run() -> None:
    few = BagStory(specification(200, until={}), done=3)
    assert re.fullmatch(r"in about \d+ min, if Spot capacity lasts", bags(few.state, few.now)[0]["ends"])


def test_it_ends_as_it_was_declared_how_long_jobs_take_before_any_has_finished() -> None:
    early = BagStory(specification(200, job_seconds=60.0, until={}), done=0)
    assert bags(early.state, early.now)[0]["ends"].startswith("in about 50 min"), "200 minutes on four workers"
    unknown = BagStory(specification(200), done=0)
    assert bags(unknown.state, unknown.now)[0]["ends"] == ""
    assert bags(SHORT.state, SHORT.now + 1e7)[0]["ends"] == "", "where it stands still"
    over = BagStory(specification(200), done=130, over=True)
    (bag,) = bags(over.state, over.now)
    assert bag["ends"].startswith("at ")
    assert (
        bag["words"] == "finished: the surrogate is good enough, 130 of 200 results, after 1 interruption, 1 job failed"
    )
    assert (bag["vms"], bag["stoppable"]) == ([], False)
    known = over.state.of(DeclaredBag)["bag-1"]
    gave_up = replace(known, phase="failed", reason="4 jobs failed, the last one: no such density")
    assert bag_words(gave_up).endswith("no such density, 130 of 200 results, after 1 interruption")
    fewer = replace(known.spec, jobs=130)
    whole = replace(known, spec=fewer, state=replace(known.state, spec=fewer), reason="all 130 results are complete")
    assert bag_words(whole) == "finished: all 130 results are complete, after 1 interruption, 1 job failed"


def test_until_its_driver_has_vms_it_waits_for_workers() -> None:
    state = replay([each for each in SHORT.history if each.at < BEGAN + 50.35])
    assert state.of(DeclaredBag)["bag-1"].phase == "running"
    assert bags(state, BEGAN + 60)[0]["words"] == "waits for workers"


def test_jobs_of_a_deleted_cluster_are_skipped() -> None:
    gone = [events.ClusterDeleting(reason="asked by the user"), events.ClusterDeleted()]
    late = [replace(event, seq=10**6 + at, time=int((SHORT.now + 1) * 1e9)) for at, event in enumerate(gone)]
    state = replay(late, SHORT.state)
    (bag,) = bags(state, SHORT.now + 2)
    assert (bag["words"], bag["phase"], bag["stoppable"]) == ("ended with its cluster", "stopped", False)
    assert bag["counts"] == [["done", 130], ["failed", 1], ["skipped", 7]]


def test_two_thousand_points_are_small_and_are_sent_less_often() -> None:
    long = BagStory(specification(2500), done=1980)
    state = long.state
    began = time.process_time()
    (bag,) = bags(state, long.now)
    took = time.process_time() - began
    assert len(bag["points"]) == 1988
    assert len(json.dumps(bag, allow_nan=False)) < 60 * len(bag["points"])
    assert took < 1.0
    assert (pace(SHORT.state), pace(state)) == (1.0, 1988 / 500)
    assert len(twin(long)) < 200_000


def test_the_twin_has_the_counts_the_points_the_vms_and_the_surrogate() -> None:
    drawn = twin(SHORT)
    said = text_of(drawn)
    assert "bag-1 : 130 of 200 results" in said
    assert "130 done 3 running 3 waiting 1 lost 1 failed" in said
    assert "worker-0 35 min 131 density 0.6188, temperature 0.8675, for 34 s, 8 s saved" in said
    assert "Surrogate: learnt from 120 results, tried on 4 batches." in said
    assert "pressure 96% 0.427 sd 0.0173 0.01 not yet" in said
    figure = next(
        each for each in ElementTree.fromstring(drawn).iter("svg") if "points of" in each.get("aria-label", "")
    )
    paths = {path.findtext("title"): path.get("d", "") for path in figure.iter("path") if path.findtext("title")}
    assert {state: path.count("M") for state, path in paths.items()} == {
        "done": 130, "running": 3, "waiting": 3, "lost": 1, "failed": 1,
    }  # fmt: skip
    forms = {path[path.index("m") :].partition("M")[0] for path in paths.values()}
    assert len(forms) == len(paths), "forms tell states apart, and not colours alone"
    narrow = BagStory(specification(60, space=parse_space("density=0.3:0.9")), done=40)
    assert ">none</text>" in twin(narrow), "where those stand that have no value, in words that are not cut off"
    nothing = BagStory(specification(60), done=0, over=True)
    assert "0 of 60 results" in text_of(twin(nothing))
    without = BagStory(specification(60, space=parse_space("density=0.3:0.9")), done=0)
    assert "3 waiting" in text_of(twin(without))
    assert "points of bag-1" not in twin(without), "there is nothing to draw the parameter over"


def test_a_terminal_says_how_good_the_surrogate_is() -> None:
    said = status(SHORT.state)
    assert "bag-1  130 of 200 results" in said
    assert "tried on 4 batches; pressure: 90% intervals held 96%, largest sd 0.0173 (until 0.01)" in said


@pytest.mark.slow
def test_a_page_gets_the_bags_by_themselves(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    with Journal(journal) as writing:
        writing.extend(SHORT.history[:60])
    _, page = displayed(journal)
    (panel,) = widgets_of(page)
    assert panel.sections["bag"][0]["results"] < 20
    with Journal(journal) as writing:
        writing.extend(SHORT.history[60:])
    eventually(lambda: panel.sections["bag"][0]["results"] == 130)
    assert "bag-1" in page.shown[0]["text/plain"]


def test_the_stored_picture_of_a_bag_has_its_end(tmp_path: Path) -> None:
    history, journal = BagStory(specification(60), done=40, over=True).history, tmp_path / "journal.jsonl"
    with Journal(journal) as writing:
        writing.extend(history[:-2])
    display = Display(stories.StoryCluster(journal), None, stories.StoryFeed(journal))
    shown: list[dict[str, Any]] = []
    display.show(lambda data, update: shown.append(data), page=True)
    with Journal(journal) as writing:
        writing.extend(history[-2:])
    eventually(lambda: "finished: the surrogate is good enough" in shown[-1]["text/html"])


@given(
    st.sampled_from(
        ["a=0.3:0.9", "a=1e-4:10:log", "a=1:6:int", "a=1:5000:int", "a=2,3,5", "a=x,yy,z", "a=-3:7", "a=3:5:log"]
    ),
    st.floats(0, 1),
)
def test_an_axis_has_its_values_and_their_names_within_it(text: str, share: float) -> None:
    dimension = Dimension.parse(text)
    axis = Axis.of(dimension)
    whole = int(dimension.low + share * (dimension.high - dimension.low))
    value: Any = dimension.low + share * (dimension.high - dimension.low)
    if dimension.kind == "choice":
        value = dimension.choices[int(share * (len(dimension.choices) - 1))]
    elif dimension.kind == "int":
        value = whole
    assert -1e-9 <= axis.place(value) <= 1 + 1e-9
    places = [place for place, _ in axis.named]
    assert 2 <= len(places) <= 8
    assert places == sorted(places)
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in places)
    assert len({words for _, words in axis.named}) == len(places)


def test_every_state_of_a_job_is_one_that_is_told() -> None:
    assert {each[0] for each in bags(SHORT.state, SHORT.now)[0]["points"]} <= {*STATES}


def test_a_bag_by_itself_is_a_sentence_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "journal.jsonl"
    with Journal(journal) as writing:
        writing.extend(SHORT.history)
    bag: Any = Bag("bag-1", stories.StoryCluster(journal))  # type: ignore[arg-type]
    show_handle(bag)
    assert capsys.readouterr().out.startswith("bag-1 on simulate: 130 of 200 results, 3 under way")
    assert "130 done" in text_of(picture(bag))
