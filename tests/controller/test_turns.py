"""Configurations that the running cluster lacks: which clusters a study has for itself, and when each has its turn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transient_magics import client, places
from transient_magics.cli import verbs
from transient_magics.cli.arguments import parse
from transient_magics.client import commands, launch
from transient_magics.controller.decisions.core import BeginDeletion, Situation
from transient_magics.controller.decisions.core import decide as decide_cluster
from transient_magics.controller.works import Comes, Never, Waits
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import Event, Journal, events, now, read, replay
from transient_magics.protocol import layout
from transient_magics.spec import ClusterSpec
from transient_magics.works.studies import turn
from transient_magics.works.studies.configurations import StudyPreview
from transient_magics.works.studies.sampling import point
from transient_magics.works.studies.spec import StudySpec

DECLARED: dict[str, Any] = {
    "source": "model = None", "train_steps": 10, "objective": "max accuracy", "seed": 1, "name": "m", "over": "lr=1,2",
}  # fmt: skip


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The clusters whose controllers were started, of which none ever lives."""
    names: list[str] = []
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    monkeypatch.setattr(commands, "start_controller", lambda directory: names.append(directory.name))
    monkeypatch.setattr(commands, "send", lambda directory, command: names.append(f"begin {directory.name}"))
    return names


def folder_of(name: str) -> tuple[Path, ClusterSpec, StudySpec]:
    folder = places.cluster(name)
    declared = json.loads((folder / layout.STUDIES / "m" / layout.STUDY).read_text(encoding="utf-8"))
    return (
        folder,
        ClusterSpec.from_dict(json.loads((folder / layout.SPEC).read_text(encoding="utf-8"))),
        StudySpec.from_dict(declared),
    )


def happened(name: str, *more: Event) -> None:
    folder = places.cluster(name)
    with Journal(folder / layout.JOURNAL) as journal:
        for event in more:
            journal.append(event)


def test_what_the_running_cluster_holds_is_a_part_of_it_and_the_rest_has_clusters_of_its_own(
    started: list[str],
) -> None:
    client.declare(client.Declaration("k80x4", name="c"))
    study = client.declare_study(**DECLARED, on="k80x8,k80x1,k80x2+p100x2", max_cost=3.0, max_hours=5.0)
    assert started == ["c", "begin c", "m-k80x8", "m-k80x2-p100x2"]
    assert [part.cluster.name for part in study.parts] == ["c", "m-k80x8", "m-k80x2-p100x2"]
    tried = []
    for part in study.parts:
        _, cluster, spec = folder_of(part.cluster.name)
        tried += [(part.cluster.name, point(spec, number)) for number in range(spec.trials)]
        assert spec.bounded(99) == spec.trials == 2
        assert spec.alone == (part.cluster.name != "c")
        assert all(cluster.holds(each) for each in spec.here)
        if spec.alone:
            assert (cluster.max_cost, cluster.max_seconds) == (3.0, 5 * 3600.0)
            assert cluster.worker_count == spec.workers_of(spec.here[0]), "so many workers and no more"
    assert [(name, params["on"], params["lr"]) for name, params in tried if params] == [
        ("c", "k80x1", 1), ("c", "k80x1", 2), ("m-k80x8", "k80x8", 1), ("m-k80x8", "k80x8", 2),
        ("m-k80x2-p100x2", "k80x2+p100x2", 1), ("m-k80x2-p100x2", "k80x2+p100x2", 2),
    ]  # fmt: skip
    assert [folder_of(part.cluster.name)[2].run_names(1) for part in study.parts] == [("m-1",), ("m-3",), ("m-5",)]
    with pytest.raises(ClusterError, match="c has a study m already"):
        client.declare_study(**DECLARED, on="k80x1")
    over = []
    for part in study.parts:
        happened(part.cluster.name, events.ClusterDeleted())
        over.append(client.cluster("c").study("m").is_over())
    assert over == [False, False, True], "it ends with the last of its clusters"


def test_the_dry_run_says_where_each_configuration_is_and_its_price_and_makes_nothing(
    started: list[str], tmp_path: Path
) -> None:
    declared = client.declare(client.Declaration("k80x4", name="c")).state.spec
    there = sorted(tmp_path.rglob("*"))
    preview = client.declare_study(**DECLARED, on="k80x1,k80x8", repeat=5, max_cost=3.0, dry_run=True)
    assert isinstance(preview, StudyPreview)
    assert (started, sorted(tmp_path.rglob("*"))) == (["c"], there)
    part, own = preview.rows
    assert declared
    assert (part["cluster"], part["own"], part["runs"], part["at_once"]) == ("c", False, 10, 4)
    assert part["hourly"] == declared.hourly
    assert (own["cluster"], own["own"], own["runs"], own["at_once"]) == ("m-k80x8", True, 10, 1)
    assert own["hourly"] == pytest.approx(client.specify(client.Declaration("k80x8")).hourly)
    said = str(preview)
    assert f"its own cluster m-k80x8 in {own['zone']}: 10 runs, 1 at once" in said
    assert "It ends after $3.00 or" in said or "It ends after $3.00 at the latest" in said
    assert said.endswith("Nothing was declared.")


def test_without_a_cluster_each_configuration_has_its_own(started: list[str]) -> None:
    study = client.declare_study(**DECLARED, on=["k80x1", "v100x1"])
    assert (started, repr(study)) == (["m-k80x1", "m-v100x1"], "<Study m on m-k80x1, m-v100x1: declared>")
    unnamed = {key: value for key, value in DECLARED.items() if key != "name"}
    client.declare(client.Declaration("k80x1", name="c"))
    assert client.declare_study(**unnamed, on="k80x1,v100x1").parts[0].cluster.name == "c", (
        "no cluster of a study's own"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sampler": "tpe"}, "sampler: tpe needs all configurations on one cluster|tpe needs all configurations"),
        ({"trials": 3}, "tries each point on each configuration"),
        (
            {"on": ",".join(f"k80x{count}" for count in range(1, 30))},
            "29 configurations need separate clusters",
        ),
        ({"max_hours": 9999.0}, "Compute Engine limits the life of VMs"),
        ({"max_hours": 0.0}, "--max-hours must be greater than 0"),
    ],
)
def test_what_cannot_be_on_clusters_of_its_own_is_refused(
    started: list[str], tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(DeclarationError, match=said):
        client.declare_study(**{**DECLARED, "on": "k80x1", **more})
    assert not started
    assert not list((tmp_path / "clusters").glob("m-*"))


@pytest.fixture
def three(started: list[str]) -> tuple[StudySpec, ClusterSpec]:
    """The last of three clusters, of which the first is the user's."""
    client.declare(client.Declaration("k80x1", name="c"))
    client.declare_study(**DECLARED, on="k80x1,k80x2,k80x3", max_cost=3.0, max_hours=5.0)
    for name in ("c", "m-k80x2"):
        _, cluster, study = folder_of(name)
        at = int(1e9 * cluster.declared_at)
        happened(name, events.ClusterDeclared(spec=cluster.to_dict(), time=at))
        if name == "c":
            happened(name, events.WorkDeclared(of="study", work="m", spec=study.to_dict(), time=at))
    folder, spec, _ = folder_of("m-k80x3")
    study = turn.waited_for(folder)
    assert study
    return study, spec


def test_a_turn_comes_when_those_before_are_done_with_what_is_left_of_the_limits(
    three: tuple[StudySpec, ClusterSpec],
) -> None:
    study, spec = three
    began = spec.declared_at
    second = folder_of("m-k80x2")[1]
    assert turn.waited_for(places.cluster("c")) is None, "a cluster of the user's waits for nobody"
    assert turn.turn(study, spec, began + 60) == Waits("m continues on c first")
    happened("c", events.WorkStopping(work="m", of="study"))
    assert isinstance(turn.turn(study, second, began + 60), Comes)
    assert turn.turn(study, spec, began + 60) == Waits("m has not begun on m-k80x2")
    own = folder_of("m-k80x2")[2]
    hourly = 1.5
    happened(
        "m-k80x2", events.WorkDeclared(of="study", work="m", spec=own.to_dict()),
        events.VmRequested(
            vm="worker-0", role="worker", slot=0, zone="us-west1-b", accelerator="k80", machine_type="n1-standard-4",
            provisioning_model="spot", hourly=hourly, on_demand_hourly=3.0,
        ),
        events.VmRunning(vm="worker-0", address="10.0.0.1", time=int(1e9 * (began + 600))),
        events.VmDeleted(vm="worker-0", reason="m is over", time=int(1e9 * (began + 600 + 3600))),
    )  # fmt: skip
    assert turn.turn(study, spec, began + 60) == Waits("m continues on m-k80x2 first")
    happened("m-k80x2", events.WorkStopping(work="m", of="study"))
    assert turn.turn(study, spec, began + 60) == Waits("m-k80x2 is deleted first")
    happened("m-k80x2", events.ClusterDeleting(reason="m is over"), events.ClusterDeleted())
    found = turn.turn(study, spec, began + 2 * 3600)
    assert isinstance(found, Comes)
    assert found.spec.max_cost == pytest.approx(3.0 - hourly)
    assert found.spec.max_seconds == pytest.approx(3 * 3600.0, abs=60)
    assert found.spec.ends_at <= began + 5 * 3600 + 60, "Compute Engine ends its VMs within the study's hours"
    again = turn.turn(study, found.spec, began + 2 * 3600)
    assert again == found, "for a controller that follows on one that died"
    assert turn.turn(study, spec, began + 6 * 3600) == Never("its limit of 5 h has passed")
    poor = replace(study, max_cost=1.0)
    assert turn.turn(poor, spec, began + 7200) == Never("its limit of $1.00 is spent")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            [events.WorkStopping(work="m", of="study", reason="stopped by the user")],
            "m ended on c: stopped by the user",
        ),
        (
            [events.ClusterDeleting(reason="asked by the user"), events.ClusterDeleted()],
            "m ended on c: its cluster was",
        ),
    ],
)
def test_a_study_that_ended_early_has_no_further_turn(
    three: tuple[StudySpec, ClusterSpec], what: list[Event], said: str
) -> None:
    study, spec = three
    happened("c", *what)
    found = turn.turn(study, spec, now())
    assert isinstance(found, Never)
    assert found.reason.startswith(said)


def test_a_cluster_of_a_studys_own_goes_with_it(three: tuple[StudySpec, ClusterSpec]) -> None:
    spec, own = folder_of("m-k80x2")[1:]
    declared = [
        events.ClusterDeclared(spec=spec.to_dict()),
        events.WorkDeclared(of="study", work="m", spec=own.to_dict()),
    ]
    happened("m-k80x2", *declared[1:])
    state = replay(read(places.cluster("m-k80x2") / layout.JOURNAL))
    assert not any(isinstance(each, BeginDeletion) for each in decide_cluster(Situation(spec.declared_at + 9, state)))
    happened("m-k80x2", events.WorkStopping(work="m", of="study", reason="stopped by the user"))
    state = replay(read(places.cluster("m-k80x2") / layout.JOURNAL))
    assert decide_cluster(Situation(spec.declared_at + 9, state)) == [BeginDeletion("m is over")]


def test_the_command_stop_ends_a_study_on_the_clusters_whose_turns_are_to_come(
    started: list[str], three: tuple[StudySpec, ClusterSpec]
) -> None:
    happened("c", events.WorkStopping(work="m", of="study"))
    started.clear()
    assert str(verbs.act(parse("stop", ["c", "m"]))).startswith("m ")
    assert started == ["begin m-k80x2", "begin m-k80x3"]


def test_names_of_clusters_that_live_are_not_taken(started: list[str]) -> None:
    client.declare(client.Declaration("k80x1", name="m-k80x2"))
    with pytest.raises(ClusterError, match="The cluster m-k80x2 already exists"):
        client.declare_study(**DECLARED, on="k80x1,k80x2", cluster="m-k80x2")
    assert launch.is_free("m-k80x3")
