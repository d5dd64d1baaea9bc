"""Names of clusters, jobs and bags that are not there: refused with those that are."""

from __future__ import annotations

import json

import pytest

from tests.homes import own_home
from transient_magics import client, places
from transient_magics.client import specify
from transient_magics.errors import ClusterError
from transient_magics.journal import Journal, events
from transient_magics.protocol import layout
from transient_magics.protocol.job import JobSpec


def declared(name: str, job: str = "job-1", *, over: bool = False) -> None:
    """The folder of a cluster with a job, deleted or not."""
    directory = places.cluster(name)
    directory.mkdir(parents=True)
    spec = specify(client.Declaration("cpux2", name=name)).to_dict()
    (directory / layout.SPEC).write_text(json.dumps(spec))
    with Journal(directory / layout.JOURNAL) as journal:
        journal.append(events.ClusterDeclared(spec=spec))
        journal.append(events.JobDeclared(job=job, spec=JobSpec(job, "make").to_dict()))
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
        first = "There is no cluster tuor. None is there now. Declare one: %transient_cluster k80x4"
        assert refused(client.cluster, "tuor") == first
        declared("tuor-of-old", over=True)
        assert refused(client.cluster, "tuor") == first, "one that is deleted is no help"
        declared("tour")
        declared("lake")
        assert refused(client.cluster, "tuor") == "There is no cluster tuor. Did you mean tour?"
        assert refused(client.cluster, "nowhere") == "There is no cluster nowhere. There are: lake, tour."
        for each in (home / "clusters").iterdir():
            (each / layout.SPEC).unlink()  # nothing to delete: they never had VMs


def test_a_mistyped_job_is_refused_with_the_nearest_of_any_cluster() -> None:
    with own_home() as home:
        assert refused(client.job, None) == "There is no job yet."
        assert refused(client.job, "sums") == "There is no job sums."
        declared("tour", job="digits", over=True)
        assert client.job("digits").cluster.name == "tour", "what it kept is read when its cluster is deleted"
        assert refused(client.job, "digist") == "There is no job digist. Did you mean digits?"
        assert refused(client.job, "sums") == "There is no job sums. There are: digits."
        assert refused(client.bag, "sums") == "There is no bag sums."
        for each in (home / "clusters").iterdir():
            (each / layout.SPEC).unlink()
