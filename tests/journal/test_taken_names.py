"""Declarations that the fold refuses: work whose name other work of the cluster has, or reserves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from tests.panels import bag_story, study_story
from transient_magics.errors import JournalError
from transient_magics.journal import ClusterState, Event, events, fold, replay
from transient_magics.kinds import KINDS
from transient_magics.works.bags import events as bag_events
from transient_magics.works.dask.spec import DaskSpec
from transient_magics.works.jobs.spec import JobSpec
from transient_magics.works.studies.events import StudyAsked

DECLARED: dict[str, Callable[[str], Event]] = {
    "run": lambda name: events.WorkDeclared(of="run", work=name, spec={"train_steps": 10}),
    "study": lambda name: events.WorkDeclared(of="study", work=name, spec=study_story.specification(9).to_dict()),
    "job": lambda name: events.WorkDeclared(of="job", work=name, spec=JobSpec(name, "make").to_dict()),
    "bag": lambda name: events.WorkDeclared(of="bag", work=name, spec=bag_story.specification(2).to_dict()),
    "dask": lambda name: events.WorkDeclared(of="dask", work=name, spec=DaskSpec(name, 2).to_dict()),
}


def refused(state: ClusterState, event: Event) -> str:
    with pytest.raises(JournalError) as error:
        fold(state, event)
    return str(error.value)


@pytest.mark.parametrize(("there", "new"), list(product(KINDS, KINDS)))
def test_a_second_declaration_of_a_name_is_refused(there: str, new: str) -> None:
    state = replay([DECLARED[there]("night")])
    assert state.kind_by_name == {"night": there}
    assert f"has a {KINDS[there]} night already" in refused(state, DECLARED[new]("night"))
    assert fold(state, DECLARED[new]("day")).kind_by_name == {"night": there, "day": new}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_has_a_trials_name_once_its_study_has_asked_for_it(kind: str) -> None:
    state = replay([DECLARED["study"]("s")])
    assert "has a study s, which reserves the name s-0" in refused(state, DECLARED[kind]("s-0"))
    asked = fold(state, StudyAsked(study="s", trial=0, params={"lr": 0.1}, runs=("s-0",)))
    assert fold(asked, DECLARED["run"]("s-0")).kind_by_name == {"s": "study", "s-0": "run"}
    assert "s-1" in refused(asked, DECLARED["run"]("s-1")), "a trial that was not asked for yet"


@pytest.mark.parametrize("kind", KINDS)
def test_a_dask_cluster_has_a_bags_name_once_the_bag_has_begun_it(kind: str) -> None:
    state = replay([DECLARED["bag"]("b")])
    assert "has a bag b, which reserves the name b-d1" in refused(state, DECLARED[kind]("b-d1"))
    began = fold(state, bag_events.BagBegan(bag="b", dask="b-d1"))
    assert fold(began, DECLARED["dask"]("b-d1")).kind_by_name == {"b": "bag", "b-d1": "dask"}
