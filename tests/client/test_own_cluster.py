"""`%%train k80x4`: the run has the kernel's cluster with these workers, or declares one for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import transient_magics as tm
from transient_magics.client import lookup
from transient_magics.errors import DeclarationError, UnknownWorkError
from transient_magics.works.runs import own_cluster

FIT = "import keras\nmodel = keras.Sequential()\nmodel.compile()\nmodel.fit(1, 2)\n"


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    monkeypatch.setattr(lookup, "_CURRENT", [])


@pytest.mark.slow
def test_a_kernel_that_has_these_workers_trains_on_them(no_cluster: None) -> None:
    with tm.declare("k80x2+p100", name="there") as cluster:
        for same in ("k80x2+p100", "p100+k80+k80", "k80x2+p100x1"):
            found, declared = own_cluster.cluster_with(same)
            assert (found.name, declared) == (cluster.name, False)
        with pytest.raises(DeclarationError) as caught:
            own_cluster.cluster_with("k80x4")
        assert "This notebook has the cluster there with k80x2+p100, not k80x4" in str(caught.value)
        assert "Leave k80x4 out to train on there" in str(caught.value)
        assert "%transient_cluster resize there k80x4" in str(caught.value)


@pytest.mark.slow
def test_a_declared_cluster_is_deleted_when_no_run_is_declared(no_cluster: None) -> None:
    with pytest.raises(UnknownWorkError, match="Unknown run"):
        own_cluster.train_on("k80x1", source=FIT, resume="nothing")
    assert [cluster.state.phase for cluster in tm.clusters(all=True)] == ["deleted"]


def test_a_cluster_in_a_project_needs_a_limit(no_cluster: None) -> None:
    with pytest.raises(DeclarationError, match="Add --max-cost DOLLARS or --max-hours HOURS"):
        own_cluster.cluster_with("l4x1", project="my-project")


def test_workers_and_a_cluster_exclude_each_other(no_cluster: None) -> None:
    with pytest.raises(DeclarationError, match="k80x1 and --cluster cannot be used together"):
        own_cluster.train_on("k80x1", cluster="other", source=FIT)
