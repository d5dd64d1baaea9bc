"""Which cluster is meant where none is named, and names that are refused with those that are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.homes import own_home
from transient_magics import client, places
from transient_magics.cli import arguments, verbs
from transient_magics.client import specify
from transient_magics.errors import ClusterError, TransientError
from transient_magics.journal import Event, Journal, events
from transient_magics.protocol import layout
from transient_magics.works.jobs.spec import JobSpec


def declared(name: str, job: str = "job-1", *, over: bool = False) -> None:
    """The folder of a cluster with a job, deleted or not."""
    directory = places.cluster(name)
    directory.mkdir(parents=True)
    spec = specify(client.Declaration("cpux2", name=name)).to_dict()
    (directory / layout.SPEC).write_text(json.dumps(spec), encoding="utf-8")
    with Journal(directory / layout.JOURNAL) as journal:
        journal.append(events.ClusterDeclared(spec=spec))
        journal.append(events.WorkDeclared(of="job", work=job, spec=JobSpec(job, "make").to_dict()))
        if over:
            journal.append(events.ClusterDeleting(reason="asked by the user"))
            journal.append(events.ClusterDeleted())


def refused(ask: object, *words: object) -> str:
    assert callable(ask)
    with pytest.raises(ClusterError) as error:
        ask(*words)
    return str(error.value)


def test_a_mistyped_cluster_is_refused_with_the_nearest_of_those_that_are_there() -> None:
    with own_home() as home:
        first = "Unknown cluster 'tuor'. There is no cluster. Declare one: %transient_cluster k80x4"
        assert refused(client.cluster, "tuor") == first
        declared("tuor-of-old", over=True)
        assert refused(client.cluster, "tuor") == first, "one that is deleted is no help"
        declared("tour")
        declared("lake")
        assert refused(client.cluster, "tuor") == "Unknown cluster 'tuor'. Did you mean tour?"
        assert refused(client.cluster, "nowhere") == "Unknown cluster 'nowhere'. Known: lake, tour."
        for each in (home / "clusters").iterdir():
            (each / layout.SPEC).unlink()  # nothing to delete: they never had VMs


def test_a_mistyped_job_is_refused_with_the_nearest_of_any_cluster() -> None:
    with own_home() as home:
        assert refused(client.job, None) == "There is no job yet."
        assert refused(client.job, "sums") == "Unknown job 'sums'."
        declared("tour", job="digits", over=True)
        assert client.job("digits").cluster.name == "tour", "what it kept is read when its cluster is deleted"
        assert refused(client.job, "digist") == "Unknown job 'digist'. Did you mean digits?"
        assert refused(client.job, "sums") == "Unknown job 'sums'. Known: digits."
        assert refused(client.bag, "sums") == "Unknown bag 'sums'."
        for each in (home / "clusters").iterdir():
            (each / layout.SPEC).unlink()


UNCLEAR = "This machine has 2 clusters (mine, theirs), and none is named. Name one of them, such as --cluster theirs."
CELL = "def job(x, seed): return {'y': x}"
WAYS: dict[str, Callable[[], object]] = {
    "cluster": client.cluster,
    "train": lambda: client.train(source="", train_steps=1),
    "sweep": lambda: client.declare_study(source="", train_steps=1, over="lr=0.1,0.2"),
    "job": lambda: client.declare_job("make all"),
    "bag": lambda: client.declare_bag(source=CELL, over="x=0:1", jobs=1),
    "stalls": lambda: client.declare_stalls(source="1"),
    "status": lambda: verbs.ACTS["status"](),
    "weather": lambda: verbs.ACTS["weather"](),
    "events": lambda: list(verbs.ACTS["events"]()),
    "attach": client.attach,
}


def happened(name: str, *history: Event) -> None:
    with Journal(places.cluster(name) / layout.JOURNAL) as journal:
        for event in history:
            journal.append(event)


@pytest.fixture
def two() -> Iterator[None]:
    """A home with two clusters, neither of which this process declared."""
    with own_home() as home:
        declared("mine")
        declared("theirs")
        yield
        for folder in (home / "clusters").iterdir():
            (folder / layout.SPEC).unlink(missing_ok=True)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("way", WAYS)
def test_where_none_is_named_and_several_are_there_none_is_guessed(way: str) -> None:
    assert refused(WAYS[way]) == UNCLEAR


@pytest.mark.usefixtures("two")
def test_a_process_works_on_the_cluster_that_it_declared_or_attached_last() -> None:
    client.attach("mine")
    declared("later")
    assert client.cluster().name == "mine"
    assert verbs.ACTS["status"]().state.name == "mine"
    client.attach("theirs")
    assert client.cluster().name == "theirs"
    over = events.ClusterDeleting(reason="asked by the user"), events.ClusterDeleted()
    happened("theirs", *over)
    assert client.cluster().name == "mine", "the one before it"
    happened("mine", *over)
    assert client.cluster().name == "later", "the only one that is there"
    happened("later", *over)
    assert refused(client.cluster) == "There is no cluster yet. Declare one: %transient_cluster k80x4"


@pytest.mark.usefixtures("two")
def test_work_that_several_clusters_have_is_that_of_this_process() -> None:
    several = "2 clusters have such work (mine, theirs), and none is named. Name one of them, such as --cluster theirs."
    assert refused(client.job, "job-1") == several
    assert refused(client.job) == several
    assert client.job("job-1", "mine").cluster.name == "mine"
    client.attach("mine")
    assert client.job("job-1").cluster.name == client.job().cluster.name == "mine"
    happened("theirs", events.WorkDeclared(of="job", work="own", spec=JobSpec("own", "make").to_dict()))
    assert client.job("own").cluster.name == "theirs", "no other cluster has it"


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("words", [["delete"], ["resize"], ["stop"], ["revoke"]])
def test_what_ends_or_changes_a_cluster_needs_its_name(words: list[str]) -> None:
    client.attach("mine")
    with pytest.raises(TransientError):
        verbs.act(arguments.parse("cluster", words, called="transient cluster"))
