"""What a panel shows of studies: a snapshot that is bounded, a twin that is sound, and wishes that are carried out."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from transient_magics.client import Study, Trial
from transient_magics.journal import Journal, bill, events, replay
from transient_magics.panels import html, view
from transient_magics.panels.actions import ActionStudy, Stoppable, find_action
from transient_magics.works.studies.events import StudyTold
from transient_magics.works.studies.picture import study_plot
from transient_magics.works.studies.state import StudyState
from transient_magics.works.studies.trials import best_so_far
from transient_magics.works.studies.view import MOST_CURVES, pace, whole_view
from transient_magics.works.studies.view import sections as studies

from . import stories
from .study_story import StudyStory, specification
from .test_display import displayed, eventually, widgets_of

SHORT = StudyStory(specification(40), told=12)


def text_of(drawn: str) -> str:
    return " ".join("".join(ElementTree.fromstring(drawn).itertext()).split())


def test_a_study_is_progress_the_best_and_a_row_for_each_trial() -> None:
    (study,) = studies(SHORT.state, SHORT.now)
    assert (study["ended"], study["planned"], study["words"]) == (12, 40, "12 of 40 trials, 4 under way")
    assert (study["metric"], study["params"]) == ("accuracy", ["learning_rate", "batch_size"])
    assert study["about"] == "max accuracy · tpe sampler · median pruner · 1 worker each"
    assert study["best_so_far"] == [[0.0, 0.9266]]
    lines = {line["number"]: line for line in study["trials"]}
    assert [number for number, line in lines.items() if line["best"]] == [0]
    assert [number for number, line in lines.items() if line["stoppable"]] == [12, 13, 14, 15]
    assert [step for step, _ in lines[0]["curve"]] == list(range(50, 401, 50))
    assert (study["curves_of"], lines[2]["value"]) == ("accuracy", None)
    snapshot = view(SHORT.state, bill(SHORT.state, SHORT.now), SHORT.now)
    assert (snapshot["training"], snapshot["beside"]) == (None, []), "its runs have no section of their own"
    assert snapshot["as_of"].endswith("; the study continued.")
    assert not any(said["text"].startswith("search-") for said in snapshot["events"] if "failed" not in said["text"])


def test_a_study_whose_trials_share_vms_says_so() -> None:
    for shares, said in (False, "2 runs on each VM"), (True, "2 runs on each VM share their input"):
        run = replace(SHORT.spec.run, share_input=shares, model="resnet", problem="image_digits")
        story = StudyStory(specification(4, run=run, per_vm=2, space=SHORT.spec.space[:1]), told=1, running=1)
        (study,) = studies(story.state, story.now)
        assert study["about"] == f"max accuracy · tpe sampler · median pruner · {said}"


def test_the_twin_of_a_study_has_the_best_first_and_says_how_many_are_left() -> None:
    snapshot = view(SHORT.state, bill(SHORT.state, SHORT.now), SHORT.now)
    drawn = html(snapshot, None, {"study": studies(SHORT.state, SHORT.now)})
    said = text_of(drawn)
    assert "search: 12 of 40 trials, 4 under way" in said
    assert "Best so far: accuracy 0.927 in trial 0: learning_rate 0.01761, batch_size 64." in said
    assert "0.927 ◎ best" in said
    assert re.search(r"0\.927 ◎ best\s*\d+ (s|min)\s*\$", said)
    assert "and 6 trials more" in said
    assert len(drawn) < 40_000
    (study,) = studies(SHORT.state, SHORT.now)
    assert f"aria-label='{study['curves_of']}, " in study_plot(study)
    brief = {**study, "trials": [{**each, "curve": [(60, 0.5)]} for each in study["trials"]]}
    assert f"aria-label='{study['curves_of']}, " not in study_plot(brief), "one step makes no curve"
    empty = StudyStory(specification(40), told=0, running=0)
    said = text_of(
        html(
            view(empty.state, bill(empty.state, empty.now), empty.now), None, {"study": studies(empty.state, empty.now)}
        )
    )
    assert "0 of 40 trials, waits for its first trial" in said


@pytest.mark.slow
def test_five_hundred_trials_are_rows_and_few_curves_and_are_sent_less_often() -> None:
    long = StudyStory(specification(500), told=496)
    (study,) = studies(long.state, long.now)
    drawn = [line["number"] for line in study["trials"] if line["curve"]]
    best = next(line["number"] for line in study["trials"] if line["best"])
    assert len(study["trials"]) == 500
    assert len(drawn) == MOST_CURVES
    assert {best, 496, 497, 498, 499} <= set(drawn)
    assert len(json.dumps(study, allow_nan=False)) < 200_000
    assert (pace(SHORT.state), pace(long.state)) == (1.0, 2.5)
    assert len(html(view(long.state, bill(long.state, long.now), long.now), None, {"study": [study]})) < 60_000


def test_the_plot_of_a_study_on_two_clusters_has_the_trials_of_both_and_one_best() -> None:
    later = StudyStory(specification(40, first=16), told=6, running=0)
    parts = [(each.state, each.state.of(StudyState)["search"]) for each in (SHORT, later)]
    ahead, behind = (best_so_far([study]) for _, study in parts)
    whole = whole_view(parts, SHORT.now)
    assert [each["number"] for each in whole["trials"]] == list(range(22))
    assert [each["number"] for each in whole["trials"] if each["best"]] == [int(whole["best_so_far"][-1][0])]
    assert whole["best_so_far"][: len(ahead)] == [[float(number), value] for number, value in ahead]
    assert max(value for _, value in whole["best_so_far"]) == max(value for _, value in [*ahead, *behind])
    drawn = study_plot(whole)
    assert "trial 21" in drawn
    assert ElementTree.fromstring(f"<div>{drawn}</div>") is not None


def test_without_evaluations_on_the_way_the_losses_are_drawn() -> None:
    spec = specification(4, pruner="none")
    story = StudyStory(replace(spec, run=replace(spec.run, eval_steps=None)), told=4, running=0, over=True)
    (study,) = studies(story.state, story.now)
    assert study["curves_of"] == "loss of training"
    assert len(study["trials"][0]["curve"]) == 8
    assert study["phase"] == "finished"


def test_trials_of_a_deleted_cluster_train_no_more() -> None:
    gone = [events.ClusterDeleting(reason="asked by the user"), events.ClusterDeleted()]
    late = [replace(event, seq=10**6 + at, time=int((SHORT.now + 1) * 1e9)) for at, event in enumerate(gone)]
    state = replay(late, SHORT.state)
    (study,) = studies(state, SHORT.now + 2)
    assert (study["words"], study["stoppable"]) == ("12 of 40 trials, ended with its cluster", False)
    assert {line["state"] for line in study["trials"][12:]} == {"stopped"}
    assert not any(line["stoppable"] for line in study["trials"])


def test_a_page_gets_the_studies_by_themselves(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    middle = next(at for at, event in enumerate(SHORT.history) if isinstance(event, StudyTold))
    with Journal(journal) as writing:
        writing.extend(SHORT.history[:middle])
    _, page = displayed(journal)
    (panel,) = widgets_of(page)
    assert panel.sections["study"][0]["ended"] == 0
    with Journal(journal) as writing:
        writing.extend(SHORT.history[middle:])
    eventually(lambda: panel.sections["study"][0]["ended"] == 12)
    assert "search" in page.shown[0]["text/plain"]


class Asked(stories.StoryCluster):
    """A cluster that notes which study, or which trial of it, was to be stopped."""

    def study(self, name: str | None = None) -> Any:
        self.asked.append(("study", name))
        return self

    def trial(self, number: int) -> Any:
        self.asked.append(("trial", number))
        return self


@pytest.mark.parametrize(
    ("message", "said", "asked"),
    [
        ({"do": "stop", "name": "search"}, "search is being stopped.", [("stop",)]),
        (
            {"do": "stop trial", "study": "search", "trial": 7},
            "Trial 7 of search is being stopped.",
            [("study", "search"), ("trial", 7), ("stop",)],
        ),
    ],
)
def test_a_page_can_stop_a_study_and_a_trial(
    tmp_path: Path, message: dict[str, Any], said: str, asked: list[tuple[Any, ...]]
) -> None:
    cluster = Asked(tmp_path / "journal.jsonl")
    found = find_action(cluster, None, message)
    assert found
    found.do()
    assert (found.notice, cluster.asked) == (said, asked)
    assert find_action(cluster, None, {"do": "stop trial", "study": "search", "trial": "all"}) is None
    for protocol, real in ((ActionStudy, Study), (Stoppable, Trial)):
        for name, method in inspect.getmembers(protocol, inspect.isfunction):
            if not name.startswith("_"):
                assert list(inspect.signature(method).parameters) == list(
                    inspect.signature(getattr(real, name)).parameters
                ), "real ones are asked the same"
